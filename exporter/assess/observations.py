"""How observations are written down: witnesses, proofs, and the two forms of a polled condition (bad, good)."""

from datetime import datetime
from typing import Final

from exporter.health.codes import ROW_REMAP_FAILURE
from exporter.health.vocabulary import Advice, ClearedBy, HealthEvent, Scope, Severity
from exporter.readings import GpuReadings

POLL: Final = "nvml-poll"
WATCHDOG: Final = "watchdog"
KERNEL_LOG: Final = "kernel-log"

POLLED = frozenset({POLL, WATCHDOG})
"""Witnesses that say the same thing again in every sweep."""

GPU_RESET: Final = "gpu-reset"
"""Code of the event that says: this GPU was reset. It is a proof, never a finding."""

GPU_REPLACED: Final = "gpu-replaced"
"""Code of the event that says: another board sits in this slot. It is a proof, never a finding."""


def bad(
    code: str, gpu: GpuReadings, message: str, grade: tuple[Severity, Scope, Advice], source: str = POLL
) -> HealthEvent:
    """A condition of `gpu` that was read and is bad; `grade` = severity, scope, advice."""
    severity, scope, advice = grade
    return HealthEvent(
        code=code,
        gpu=gpu.identity.uuid,
        severity=severity,
        scope=scope,
        advice=advice,
        # The failure flag lives in the board's InfoROM: only another board ends it.
        cleared_by=ClearedBy.REPLACEMENT if code == ROW_REMAP_FAILURE else ClearedBy.VALUE,
        message=message,
        observed_at=gpu.taken_at,
        source=source,
    )


def good(code: str, gpu: str | None, at: datetime, source: str = POLL) -> HealthEvent:
    """The same condition, read and good."""
    return HealthEvent(
        code=code,
        gpu=gpu,
        severity=Severity.INFO,
        scope=Scope.GPU if gpu else Scope.NODE,
        advice=Advice.NONE,
        cleared_by=ClearedBy.VALUE,
        message="",
        observed_at=at,
        source=source,
        present=False,
    )


def proof(code: str, gpu: str, at: datetime, cleared_by: ClearedBy) -> HealthEvent:
    """Something happened to `gpu` that ends every finding with this `cleared_by` (see `ends`)."""
    return HealthEvent(
        code=code,
        gpu=gpu,
        severity=Severity.INFO,
        scope=Scope.GPU,
        advice=Advice.NONE,
        cleared_by=cleared_by,
        message="",
        observed_at=at,
        source=KERNEL_LOG if code == GPU_RESET else POLL,
        present=False,
    )
