"""Kernel lines to health events: Xids, SXids, Xid 154, lost GPUs and resets."""

from collections.abc import Iterator

from exporter.assess.observations import GPU_RESET, KERNEL_LOG, good, proof
from exporter.assess.recovery import announced_action, demand
from exporter.assess.rulings import CANCELS, fault_code, judge_xid
from exporter.assess.xids import located
from exporter.health.codes import GPU_LOST, RECOVERY_ACTION
from exporter.health.vocabulary import Advice, ClearedBy, HealthEvent, Scope, Severity
from exporter.readings import KernelNotice, NoticeKind, Snapshot, XidEvent, XidFamily

RECOVERY_XID = 154


def xid_events(snapshot: Snapshot) -> Iterator[HealthEvent]:
    """What the Xids and SXids since the previous snapshot say."""
    readable = {gpu.identity.uuid for gpu in snapshot.gpus if gpu.recovery_action is not None}
    for xid in located(snapshot.xids, snapshot.gpus):
        if xid.boot_id not in (None, snapshot.boot_id):
            continue
        if xid.family is XidFamily.XID and xid.code == RECOVERY_XID:
            if xid.gpu not in readable:
                yield from _announced(xid)
            continue
        yield _xid(xid)
        over = CANCELS.get(fault_code(xid))
        if over is not None:
            yield _over(over, xid)


def _xid(xid: XidEvent) -> HealthEvent:
    verdict = judge_xid(xid)
    return HealthEvent(
        code=fault_code(xid),
        gpu=xid.gpu,
        severity=verdict.severity,
        scope=verdict.scope,
        advice=verdict.advice,
        # A GPU that nobody can name can show neither a reset nor an exchange.
        cleared_by=ClearedBy.REBOOT if _outlives_naming(xid, verdict.cleared_by) else verdict.cleared_by,
        message=verdict.message if xid.gpu or xid.family is XidFamily.SXID else _at(xid.pci_bus_id, verdict.message),
        observed_at=xid.observed_at,
        source=xid.source,
        boot_id=xid.boot_id,
        pid=xid.pid,
    )


def _outlives_naming(xid: XidEvent, cleared_by: ClearedBy) -> bool:
    return xid.gpu is None and cleared_by in (ClearedBy.GPU_RESET, ClearedBy.REPLACEMENT)


def _at(address: str | None, message: str) -> str:
    return f"{message} (unknown GPU at PCI {address or 'unknown'})"


def _over(code: str, xid: XidEvent) -> HealthEvent:
    return good(code, xid.gpu, xid.observed_at, source=xid.source)


def _announced(xid: XidEvent) -> Iterator[HealthEvent]:
    """Xid 154 where field 230 cannot be read; without a number in it there is nothing to obey."""
    action = announced_action(xid.text)
    if action == 0:
        yield good(RECOVERY_ACTION, xid.gpu, xid.observed_at, source=xid.source)
    elif action is not None:
        asked = demand(action)
        yield HealthEvent(
            code=RECOVERY_ACTION,
            gpu=xid.gpu,
            severity=asked.severity,
            scope=asked.scope,
            advice=asked.advice,
            cleared_by=ClearedBy.REBOOT if xid.gpu is None else asked.cleared_by,
            message=f"driver asks for {asked.words} (Xid 154)",
            observed_at=xid.observed_at,
            source=xid.source,
            boot_id=xid.boot_id,
        )


def notice_events(snapshot: Snapshot) -> Iterator[HealthEvent]:
    """What the kernel said about GPUs without an Xid."""
    addresses = {gpu.identity.pci_bus_id: gpu.identity.uuid for gpu in snapshot.gpus}
    for notice in snapshot.notices:
        if notice.boot_id not in (None, snapshot.boot_id):
            continue
        gpu = notice.gpu or addresses.get(notice.pci_bus_id or "")
        if notice.kind is NoticeKind.RESET_DONE and gpu is not None:
            yield proof(GPU_RESET, gpu, notice.observed_at, ClearedBy.GPU_RESET)
        elif notice.kind is NoticeKind.FELL_OFF:
            yield _fell_off(notice, gpu)


def _fell_off(notice: KernelNotice, gpu: str | None) -> HealthEvent:
    message = "kernel says that the GPU has fallen off the bus"
    return HealthEvent(
        code=GPU_LOST,
        gpu=gpu,
        severity=Severity.CRITICAL,
        scope=Scope.NODE,
        advice=Advice.REBOOT_NODE,
        cleared_by=ClearedBy.VALUE if gpu else ClearedBy.REBOOT,
        message=message if gpu else _at(notice.pci_bus_id, message),
        observed_at=notice.observed_at,
        source=KERNEL_LOG,
        boot_id=notice.boot_id,
    )
