"""The transition table: every (phase, signal) pair, the illegal ones too."""

from itertools import product

import pytest

from remediator.domain.model import HistoryEntry, Phase
from remediator.domain.states import (
    KEPT_BEGINNING,
    MAX_HISTORY,
    TRANSITIONS,
    IllegalTransition,
    Signal,
    advance,
    bounded,
    diagram,
    legal,
)
from tests.worlds import NOW, ago, an_incident

P, S = Phase, Signal

# Written out once more by hand: a change of the table must be meant twice.
RULES: dict[Phase, dict[Signal, Phase]] = {
    P.SUSPECTED: {
        S.CONFIRMED: P.QUARANTINED,
        S.CLEARED: P.CANCELLED,
        S.CANCEL_ASKED: P.CANCELLED,
        S.NODE_GONE: P.CANCELLED,
    },
    P.QUARANTINED: {
        S.QUARANTINE_HELD: P.DRAINING,
        S.CLEARED: P.VALIDATING,
        S.TAKEN_BACK: P.CANCELLED,
        S.CANCEL_ASKED: P.CANCELLED,
        S.RELEASE_ASKED: P.RESOLVED,
        S.NODE_GONE: P.CANCELLED,
    },
    P.DRAINING: {
        S.DRAINED: P.REPAIRING,
        S.CLEARED: P.VALIDATING,
        S.TAKEN_BACK: P.CANCELLED,
        S.CANCEL_ASKED: P.CANCELLED,
        S.RELEASE_ASKED: P.RESOLVED,
        S.NODE_GONE: P.CANCELLED,
    },
    P.REPAIRING: {
        S.REPAIRED: P.VALIDATING,
        S.CLEARED: P.VALIDATING,
        S.REPAIR_FAILED: P.REPAIRING,
        S.EXHAUSTED: P.ESCALATED,
        S.TAKEN_BACK: P.CANCELLED,
        S.CANCEL_ASKED: P.CANCELLED,
        S.RELEASE_ASKED: P.RESOLVED,
        S.NODE_GONE: P.CANCELLED,
    },
    P.VALIDATING: {
        S.VALIDATED: P.PROBATION,
        S.VALIDATION_FAILED: P.DRAINING,
        S.EXHAUSTED: P.ESCALATED,
        S.TAKEN_BACK: P.CANCELLED,
        S.CANCEL_ASKED: P.CANCELLED,
        S.RELEASE_ASKED: P.RESOLVED,
        S.NODE_GONE: P.CANCELLED,
    },
    P.PROBATION: {
        S.PROBATION_SERVED: P.RESOLVED,
        S.FAULT_RETURNED: P.DRAINING,
        S.EXHAUSTED: P.ESCALATED,
        S.TAKEN_BACK: P.CANCELLED,
        S.CANCEL_ASKED: P.CANCELLED,
        S.RELEASE_ASKED: P.RESOLVED,
        S.NODE_GONE: P.CANCELLED,
    },
    P.ESCALATED: {
        S.TAKEN_BACK: P.CANCELLED,
        S.CANCEL_ASKED: P.CANCELLED,
        S.RELEASE_ASKED: P.RESOLVED,
        S.NODE_GONE: P.CANCELLED,
    },
    P.RESOLVED: {},
    P.CANCELLED: {},
}


@pytest.mark.parametrize(("phase", "signal"), list(product(Phase, Signal)), ids=lambda word: word.name)
def test_every_pair(phase: Phase, signal: Signal) -> None:
    before = an_incident(phase, deadline=ago(-60))
    target = RULES[phase].get(signal)
    assert legal(phase, signal) is (target is not None)
    if target is None:
        with pytest.raises(IllegalTransition, match=phase.value) as refused:
            advance(before, signal, NOW, "why")
        assert (refused.value.phase, refused.value.signal) == (phase, signal)
        assert before == an_incident(phase, deadline=ago(-60))
        return
    after = advance(before, signal, NOW, "why")
    assert (after.phase, after.phase_since, after.reason) == (target, NOW, "why")
    assert after.deadline is None and after.deferral is None
    assert after.history[-1] == HistoryEntry(time=NOW, source=phase.value, to=target.value, sentence="why")


def test_every_phase_but_the_first_can_be_reached() -> None:
    reached = {target for moves in TRANSITIONS.values() for target in moves.values()}
    assert set(Phase) - reached == {Phase.SUSPECTED}


def test_the_table_cannot_be_changed_by_its_readers() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[Phase.RESOLVED] = {}  # type: ignore[index]  # the point of the test


def test_history_keeps_its_beginning_and_its_end() -> None:
    entries = tuple(HistoryEntry(time=NOW, source="", to="x", sentence=str(number)) for number in range(200))
    kept = bounded(entries)
    assert len(kept) == MAX_HISTORY
    assert kept[:KEPT_BEGINNING] == entries[:KEPT_BEGINNING]
    assert kept[-1] == entries[-1]
    assert bounded(entries[:MAX_HISTORY]) == entries[:MAX_HISTORY]


def test_the_diagram_shows_every_move_of_the_table() -> None:
    text = diagram()
    assert text.startswith("stateDiagram-v2\n    [*] --> Suspected\n")
    assert "    Resolved --> [*]\n" in text and "    Cancelled --> [*]\n" in text
    for phase, moves in TRANSITIONS.items():
        for signal, target in moves.items():
            (line,) = [line for line in text.splitlines() if line.startswith(f"    {phase} --> {target}:")]
            assert signal.value in line
