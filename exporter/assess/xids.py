"""Xid counters per GPU and code: what `gpu_xid_errors_total` and its timestamp twin show.

Laws:
1. Counters belong to one boot: a new boot id starts them again; an event of another boot is not counted.
2. One fault told by two witnesses counts once (`witness`).
3. Bounded: at most `MAX_SERIES` pairs of GPU and code; what does not fit is counted in `overflow`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from exporter.assess.limits import Limits
from exporter.assess.witness import Subject, Unpaired, forget, pair
from exporter.health.codes import xid_code
from exporter.health.vocabulary import BootId
from exporter.readings import GpuReadings, XidEvent, XidFamily

MAX_SERIES = 4096
"""64 GPUs with 64 different codes each: far beyond any real node."""


@dataclass(frozen=True, kw_only=True)
class XidCount:
    """How often one Xid came on one GPU in this boot."""

    gpu: str | None
    """UUID; None when the PCI address of the event matched no GPU."""
    code: int
    count: int
    last_seen: datetime


@dataclass(frozen=True, kw_only=True)
class XidCounts:
    """Every counter of one boot."""

    boot: BootId | None = None
    counts: tuple[XidCount, ...] = ()
    """Sorted by GPU and code."""
    overflow: int = 0
    """Events that had no room."""
    window: timedelta = Limits().duplicate_window
    unpaired: Unpaired = field(default_factory=dict)


def located(events: Iterable[XidEvent], gpus: Iterable[GpuReadings]) -> tuple[XidEvent, ...]:
    """The events with the UUID filled in wherever their PCI address is that of a known GPU."""
    addresses = {gpu.identity.pci_bus_id: gpu.identity.uuid for gpu in gpus}
    return tuple(
        replace(event, gpu=addresses[event.pci_bus_id])
        if event.gpu is None and event.family is XidFamily.XID and event.pci_bus_id in addresses
        else event
        for event in events
    )


def count(counts: XidCounts, events: Iterable[XidEvent], boot: BootId) -> XidCounts:
    """`counts` and the `events` of this boot (SXids are not GPU errors and stay out)."""
    fresh = counts if counts.boot == boot else XidCounts(boot=boot, window=counts.window)
    table: dict[tuple[str | None, int], XidCount] = {(c.gpu, c.code): c for c in fresh.counts}
    unpaired = dict(fresh.unpaired)
    overflow = fresh.overflow
    latest: datetime | None = None
    for event in events:
        if event.family is not XidFamily.XID or event.boot_id not in (None, boot):
            continue
        latest = event.observed_at if latest is None else max(latest, event.observed_at)
        if not pair(unpaired, _subject(event), (event.source, event.observed_at), fresh.window):
            overflow += not _add(table, event)
    if latest is not None:
        forget(unpaired, latest, fresh.window)
    ordered = tuple(sorted(table.values(), key=lambda c: (c.gpu or "", c.code)))
    return replace(fresh, counts=ordered, overflow=overflow, unpaired=unpaired)


def _subject(event: XidEvent) -> Subject:
    return event.gpu or event.pci_bus_id or "", xid_code(event.code)


def _add(table: dict[tuple[str | None, int], XidCount], event: XidEvent) -> bool:
    key = event.gpu, event.code
    if key not in table:
        if len(table) >= MAX_SERIES:
            return False
        table[key] = XidCount(gpu=event.gpu, code=event.code, count=1, last_seen=event.observed_at)
        return True
    old = table[key]
    table[key] = replace(old, count=old.count + 1, last_seen=max(old.last_seen, event.observed_at))
    return True
