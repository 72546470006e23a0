"""World factories for the ledger: events with good defaults, proofs, and short ways to fold them."""

from typing import Any

from exporter.assess.ledger import Ledger, fold
from exporter.assess.observations import GPU_REPLACED, GPU_RESET, proof
from exporter.health.vocabulary import Advice, BootId, ClearedBy, HealthEvent, Scope, Severity
from tests.rig.readings_world import BOOT, at, uuid


def a_fault(code: str, *, seconds: float = 0, gpu: str | None = uuid(0), **changed: Any) -> HealthEvent:
    """A critical fault of GPU 0, told by the kernel log, that a reset ends."""
    facts: dict[str, Any] = {
        "code": code,
        "gpu": gpu,
        "severity": Severity.CRITICAL,
        "scope": Scope.GPU,
        "advice": Advice.RESET_GPU,
        "cleared_by": ClearedBy.GPU_RESET,
        "message": f"{code} happened",
        "observed_at": at(seconds),
        "source": "kernel-log",
    }
    return HealthEvent(**{**facts, **changed})


def polled(code: str, *, seconds: float = 0, gpu: str | None = uuid(0), **changed: Any) -> HealthEvent:
    """A polled condition of GPU 0 that was read and is bad."""
    facts = {"source": "nvml-poll", "cleared_by": ClearedBy.VALUE}
    return a_fault(code, seconds=seconds, gpu=gpu, **{**facts, **changed})


def good(code: str, *, seconds: float = 0, gpu: str | None = uuid(0), source: str = "nvml-poll") -> HealthEvent:
    """The same condition, read and good."""
    return a_fault(
        code,
        seconds=seconds,
        gpu=gpu,
        source=source,
        cleared_by=ClearedBy.VALUE,
        severity=Severity.INFO,
        present=False,
    )


def a_reset(*, seconds: float, gpu: str = uuid(0)) -> HealthEvent:
    """Proof that a GPU was reset."""
    return proof(GPU_RESET, gpu, at(seconds), ClearedBy.GPU_RESET)


def a_replacement(*, seconds: float, gpu: str = uuid(0)) -> HealthEvent:
    """Proof that another board sits in the slot of `gpu`."""
    return proof(GPU_REPLACED, gpu, at(seconds), ClearedBy.REPLACEMENT)


def folded(*events: HealthEvent, ledger: Ledger | None = None, boot: BootId = BOOT, seconds: float = 0) -> Ledger:
    """`ledger` (an empty one by default) after `events`."""
    return fold(ledger or Ledger(), events, boot, at(seconds))


def codes(ledger: Ledger) -> list[str]:
    """Codes of the standing findings."""
    return [finding.code for finding in ledger.findings]


def watched(ledger: Ledger, *, until: float, every: float = 60, since: float = 0) -> Ledger:
    """`ledger` after nothing happened and somebody watched all the time."""
    seconds = since
    while seconds < until:
        seconds = min(until, seconds + every)
        ledger = folded(ledger=ledger, seconds=seconds)
    return ledger
