"""Lines of the kernel log to Xid events and notices, with the little memory that takes.

Laws:
1. Addresses are joined to UUIDs by the kernel's own lines, so that a GPU has its name even when NVML is dead.
2. "Fallen off the bus" in words is told only where no Xid 79 of that GPU said it within `SAME_LOSS`.
3. One SXid per switch, code and link within `SAME_SXID`: a switch repeats itself for every port and second.
4. Bounded: at most `KEPT` addresses, losses and SXids are remembered, the oldest go.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from exporter.health.vocabulary import BootId
from exporter.readers.xid_line import (
    FellOffLine,
    NoticeHead,
    NoticeTail,
    ResetLine,
    SxidLine,
    UuidLine,
    XidLine,
    parse,
)
from exporter.readings import KernelNotice, NoticeKind, XidEvent, XidFamily

SOURCE: Final = "kernel-log"
OFF_THE_BUS: Final = 79
SAME_LOSS: Final = timedelta(minutes=5)
SAME_SXID: Final = timedelta(seconds=5)
KEPT: Final = 256

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class When:
    """When a line was written, and in which boot."""

    at: datetime
    boot_id: BootId


class KernelStory:
    """The lines of one boot, in order."""

    def __init__(self) -> None:
        self._uuids: OrderedDict[str, str] = OrderedDict()
        self._losses: OrderedDict[str, datetime] = OrderedDict()
        self._sxids: OrderedDict[tuple[str, int, int | None], datetime] = OrderedDict()
        self._pending: str | None = None

    def read(self, text: str, when: When) -> tuple[XidEvent | KernelNotice, ...]:
        """What `text` (one record, maybe of several lines) tells."""
        told = (self._line(line, when) for line in text.splitlines())
        return tuple(event for event in told if event is not None)

    def _line(self, line: str, when: When) -> XidEvent | KernelNotice | None:
        match parse(line):
            case XidLine() as xid:
                return self._xid(xid, when)
            case SxidLine() as sxid:
                return self._sxid(sxid, when)
            case UuidLine(pci_bus_id=pci, uuid=uuid):
                _keep(self._uuids, pci, uuid)
            case FellOffLine(pci_bus_id=pci):
                return self._lost(pci, line, when)
            case NoticeHead(pci_bus_id=pci):
                self._pending = pci
            case NoticeTail():
                pending, self._pending = self._pending, None
                return self._lost(pending, line, when) if pending else None
            case ResetLine(uuid=uuid, success=success):
                kind = NoticeKind.RESET_DONE if success else NoticeKind.RESET_FAILED
                return KernelNotice(
                    kind=kind, gpu=uuid, pci_bus_id=None, observed_at=when.at, text=line, boot_id=when.boot_id
                )
        return None

    def _xid(self, xid: XidLine, when: When) -> XidEvent:
        if xid.code == OFF_THE_BUS:
            _keep(self._losses, xid.pci_bus_id, when.at)
        return XidEvent(
            code=xid.code,
            gpu=self._uuids.get(xid.pci_bus_id),
            pci_bus_id=xid.pci_bus_id,
            observed_at=when.at,
            source=SOURCE,
            text=xid.text,
            pid=xid.pid,
            process=xid.process,
            gpu_instance=xid.gpu_instance,
            boot_id=when.boot_id,
        )

    def _sxid(self, sxid: SxidLine, when: When) -> XidEvent | None:
        key = sxid.pci_bus_id, sxid.code, sxid.link
        last = self._sxids.get(key)
        if last is not None and abs(when.at - last) < SAME_SXID:
            return None
        _keep(self._sxids, key, when.at)
        return XidEvent(
            code=sxid.code,
            gpu=None,
            pci_bus_id=sxid.pci_bus_id,
            observed_at=when.at,
            source=SOURCE,
            text=sxid.text,
            family=XidFamily.SXID,
            boot_id=when.boot_id,
        )

    def _lost(self, pci: str, line: str, when: When) -> KernelNotice | None:
        last = self._losses.get(pci)
        if last is not None and abs(when.at - last) < SAME_LOSS:
            return None
        _keep(self._losses, pci, when.at)
        return KernelNotice(
            kind=NoticeKind.FELL_OFF,
            gpu=self._uuids.get(pci),
            pci_bus_id=pci,
            observed_at=when.at,
            text=line,
            boot_id=when.boot_id,
        )


def _keep(table: "OrderedDict[K, V]", key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > KEPT:
        table.popitem(last=False)
