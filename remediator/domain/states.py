"""The life of an incident as data.

Laws:
1. Every move is in TRANSITIONS; `advance` is the only function that changes a phase.
2. An illegal move raises `IllegalTransition` and changes nothing.
3. Signals are read off the cluster view (signals.py), never remembered, so a restart resumes by looking.
4. Resolved and Cancelled are final. Escalated is left only by an operator's word or with the node itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from remediator.domain.model import HistoryEntry, Incident, Phase

MAX_HISTORY = 64
"""Bound of the CRD; the first entries tell how it began, the last ones how it went, so the middle is cut."""
KEPT_BEGINNING = 8


class Signal(StrEnum):
    """What the view says about one incident."""

    CONFIRMED = "fault confirmed"
    """The fault has stood for the suspicion time and every guard lets us act."""
    CLEARED = "fault cleared"
    """A fresh report of a healthy exporter no longer shows the fault."""
    QUARANTINE_HELD = "quarantine held"
    DRAINED = "drained"
    REPAIRED = "repaired"
    REPAIR_FAILED = "repair failed"
    VALIDATED = "validated"
    VALIDATION_FAILED = "validation failed"
    FAULT_RETURNED = "fault returned"
    EXHAUSTED = "attempts exhausted"
    PROBATION_SERVED = "probation served"
    TAKEN_BACK = "quarantine taken off by somebody else"
    CANCEL_ASKED = "cancel asked"
    RELEASE_ASKED = "release asked"
    NODE_GONE = "node gone"


class IllegalTransition(ValueError):
    """A signal that has no meaning in that phase: our own bug, nothing was changed."""

    def __init__(self, phase: Phase, signal: Signal) -> None:
        super().__init__(f"no transition from {phase} on signal {signal.value!r}")
        self.phase = phase
        self.signal = signal


_P, _S = Phase, Signal

_WHILE_QUARANTINED: Mapping[Signal, Phase] = {
    _S.TAKEN_BACK: _P.CANCELLED,
    _S.CANCEL_ASKED: _P.CANCELLED,
    _S.RELEASE_ASKED: _P.RESOLVED,
    _S.NODE_GONE: _P.CANCELLED,
}

TRANSITIONS: Mapping[Phase, Mapping[Signal, Phase]] = MappingProxyType(
    {
        _P.SUSPECTED: {
            _S.CONFIRMED: _P.QUARANTINED,
            _S.CLEARED: _P.CANCELLED,
            _S.CANCEL_ASKED: _P.CANCELLED,
            _S.NODE_GONE: _P.CANCELLED,
        },
        _P.QUARANTINED: {
            _S.QUARANTINE_HELD: _P.DRAINING,
            _S.CLEARED: _P.VALIDATING,
            **_WHILE_QUARANTINED,
        },
        _P.DRAINING: {
            _S.DRAINED: _P.REPAIRING,
            _S.CLEARED: _P.VALIDATING,
            **_WHILE_QUARANTINED,
        },
        _P.REPAIRING: {
            _S.REPAIRED: _P.VALIDATING,
            _S.CLEARED: _P.VALIDATING,
            _S.REPAIR_FAILED: _P.REPAIRING,
            _S.EXHAUSTED: _P.ESCALATED,
            **_WHILE_QUARANTINED,
        },
        _P.VALIDATING: {
            _S.VALIDATED: _P.PROBATION,
            _S.VALIDATION_FAILED: _P.DRAINING,
            _S.EXHAUSTED: _P.ESCALATED,
            **_WHILE_QUARANTINED,
        },
        _P.PROBATION: {
            _S.PROBATION_SERVED: _P.RESOLVED,
            _S.FAULT_RETURNED: _P.DRAINING,
            _S.EXHAUSTED: _P.ESCALATED,
            **_WHILE_QUARANTINED,
        },
        _P.ESCALATED: _WHILE_QUARANTINED,
        _P.RESOLVED: {},
        _P.CANCELLED: {},
    }
)
"""Phase -> signal -> next phase. Validation failed and fault returned go through Draining, not straight to Repairing:
pods may have come to the GPU in between (nodeName, tolerations), and looking costs nothing."""


def legal(phase: Phase, signal: Signal) -> bool:
    """Whether `signal` means anything in `phase`."""
    return signal in TRANSITIONS[phase]


def advance(incident: Incident, signal: Signal, now: datetime, sentence: str) -> Incident:
    """The incident after `signal`, with one more line of history; raises `IllegalTransition` on an illegal move."""
    target = TRANSITIONS[incident.phase].get(signal)
    if target is None:
        raise IllegalTransition(incident.phase, signal)
    entry = HistoryEntry(time=now, source=incident.phase.value, to=target.value, sentence=sentence)
    return replace(
        incident,
        phase=target,
        phase_since=now,
        reason=sentence,
        deadline=None,
        deferral=None,
        history=bounded((*incident.history, entry)),
    )


def bounded(history: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
    """At most MAX_HISTORY entries: the beginning and the latest."""
    if len(history) <= MAX_HISTORY:
        return history
    return history[:KEPT_BEGINNING] + history[-(MAX_HISTORY - KEPT_BEGINNING) :]


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> Suspected"]
    for phase, moves in TRANSITIONS.items():
        by_target: dict[Phase, list[str]] = {}
        for signal, target in moves.items():
            by_target.setdefault(target, []).append(signal.value)
        lines += [f"    {phase} --> {target}: {' / '.join(words)}" for target, words in by_target.items()]
    lines += [f"    {phase} --> [*]" for phase, moves in TRANSITIONS.items() if not moves]
    return "\n".join(lines) + "\n"
