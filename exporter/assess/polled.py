"""Polled readings to health events: presence, the driver's demand, row remapping, the driver, the number of GPUs."""

from collections.abc import Iterator

from exporter.assess.limits import Limits
from exporter.assess.observations import POLL, WATCHDOG, bad, good
from exporter.assess.recovery import demand
from exporter.health.codes import (
    DRIVER_FAILED,
    GPU_LOST,
    GPU_MISSING,
    PROBE_HUNG,
    RECOVERY_ACTION,
    ROW_REMAP_FAILURE,
    ROW_REMAP_PENDING,
)
from exporter.health.vocabulary import Advice, ClearedBy, HealthEvent, Scope, Severity
from exporter.readings import DriverState, GpuReadings, GpuStatus, Snapshot


def gpu_events(gpu: GpuReadings) -> Iterator[HealthEvent]:
    """What the readings of one GPU say."""
    yield from _presence(gpu)
    yield from _recovery(gpu)
    yield from _row_remap(gpu)


_GONE = {
    GpuStatus.LOST: "the driver has lost the GPU",
    GpuStatus.MISSING: "the driver no longer enumerates the GPU",
    GpuStatus.RESET_REQUIRED: "the driver refuses work until the GPU is reset",
}


def _presence(gpu: GpuReadings) -> Iterator[HealthEvent]:
    uuid, at = gpu.identity.uuid, gpu.taken_at
    if gpu.status is GpuStatus.UP:
        yield good(GPU_LOST, uuid, at)
        yield good(PROBE_HUNG, uuid, at)
    elif gpu.status is GpuStatus.HUNG:
        yield bad(
            PROBE_HUNG,
            gpu,
            "a driver call on this GPU did not return",
            (Severity.CRITICAL, Scope.NODE, Advice.REBOOT_NODE),
            source=WATCHDOG,
        )
    elif gpu.status is GpuStatus.RESET_REQUIRED:
        yield bad(GPU_LOST, gpu, _GONE[gpu.status], (Severity.CRITICAL, Scope.GPU, Advice.RESET_GPU))
    elif gpu.status in _GONE:
        yield bad(GPU_LOST, gpu, _GONE[gpu.status], (Severity.CRITICAL, Scope.NODE, Advice.REBOOT_NODE))


def _recovery(gpu: GpuReadings) -> Iterator[HealthEvent]:
    if gpu.recovery_action is None:
        return
    if gpu.recovery_action == 0:
        yield good(RECOVERY_ACTION, gpu.identity.uuid, gpu.taken_at)
        return
    asked = demand(gpu.recovery_action)
    yield bad(RECOVERY_ACTION, gpu, f"driver asks for {asked.words}", (asked.severity, asked.scope, asked.advice))


def _row_remap(gpu: GpuReadings) -> Iterator[HealthEvent]:
    if gpu.row_remap is None:
        return
    if gpu.row_remap.pending:
        grade = (Severity.WARNING, Scope.GPU, Advice.RESET_GPU)
        yield bad(ROW_REMAP_PENDING, gpu, "a row remap waits for the next GPU reset", grade)
    else:
        yield good(ROW_REMAP_PENDING, gpu.identity.uuid, gpu.taken_at)
    if gpu.row_remap.failure:
        grade = (Severity.CRITICAL, Scope.GPU, Advice.CONTACT_SUPPORT)
        yield bad(ROW_REMAP_FAILURE, gpu, "a memory row could not be remapped: no spare row is left", grade)


def expected_gpus(snapshot: Snapshot, limits: Limits) -> int:
    """GPUs that this node should have: the limit, and never less than this boot has shown."""
    return max(limits.expected_gpus or 0, len(snapshot.gpus), snapshot.enumerated)


def nameless(snapshot: Snapshot) -> int:
    """GPUs that the driver enumerates and that never said who they are in this boot: lost or hung before we came."""
    return max(0, snapshot.enumerated - sum(gpu.status is not GpuStatus.MISSING for gpu in snapshot.gpus))


def node_events(snapshot: Snapshot, limits: Limits) -> Iterator[HealthEvent]:
    """What the driver and the number of GPUs say about the node."""
    expected = expected_gpus(snapshot, limits)
    if snapshot.driver_state in (DriverState.OK, DriverState.NO_GPU):
        yield good(DRIVER_FAILED, None, snapshot.taken_at)
        if snapshot.enumerated >= expected and (unnamed := nameless(snapshot)):
            message = f"{unnamed} of {snapshot.enumerated} GPUs cannot be identified: lost, or they do not answer"
            yield _node_fault(GPU_MISSING, snapshot, message, Severity.WARNING, Advice.UNKNOWN)
        elif snapshot.enumerated >= expected:
            yield good(GPU_MISSING, None, snapshot.taken_at)
        elif snapshot.enumerated or snapshot.driver_state is DriverState.NO_GPU:
            # 0 GPUs from a working driver means that the sweep never came to count them.
            message = f"{snapshot.enumerated} of {expected} GPUs are there"
            yield _node_fault(GPU_MISSING, snapshot, message, Severity.CRITICAL, Advice.REBOOT_NODE)
    elif snapshot.driver_state is not DriverState.STARTING and expected:
        # A driver upgrade looks the same: worth knowing, nothing to act on.
        message = f"{expected} GPUs expected and no driver answers ({snapshot.driver_state})"
        yield _node_fault(DRIVER_FAILED, snapshot, message, Severity.WARNING, Advice.UNKNOWN)


def _node_fault(code: str, snapshot: Snapshot, message: str, severity: Severity, advice: Advice) -> HealthEvent:
    return HealthEvent(
        code=code,
        gpu=None,
        severity=severity,
        scope=Scope.NODE,
        advice=advice,
        cleared_by=ClearedBy.VALUE,
        message=message,
        observed_at=snapshot.taken_at,
        source=POLL,
    )
