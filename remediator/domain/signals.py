"""What the view says about an incident: one signal at a time, the same for a fresh process as for an old one.

Order: what ends an incident whatever its phase (node gone, operators, our mark taken off), then the brakes, then the
phase's own progress. A brake that refuses silences progress, so that an unknown health neither heals nor harms.
"""

from collections.abc import Callable, Mapping

from exporter.health import keys
from remediator.domain import drain, quarantining, repair, validate
from remediator.domain.case import Case
from remediator.domain.guards import asked, node_opted_out, paused
from remediator.domain.model import Phase
from remediator.domain.states import Signal, legal

Found = tuple[Signal, str]

FINAL = (Phase.RESOLVED, Phase.CANCELLED)


def draining(case: Case) -> Found | None:
    """Draining ends early when the fault is gone by itself."""
    return repair.cleared(case) or drain.signal(case)


PROGRESS: Mapping[Phase, Callable[[Case], Found | None]] = {
    Phase.SUSPECTED: quarantining.suspected_signal,
    Phase.QUARANTINED: quarantining.quarantined_signal,
    Phase.DRAINING: draining,
    Phase.REPAIRING: repair.signal,
    Phase.VALIDATING: validate.signal,
    Phase.PROBATION: validate.probation_signal,
}

OUTCOMES: Mapping[Signal, str] = {
    Signal.PROBATION_SERVED: "healed",
    Signal.CLEARED: "fault-cleared",
    Signal.NODE_GONE: "node-gone",
    Signal.TAKEN_BACK: "by-human",
    Signal.CANCEL_ASKED: "by-human",
    Signal.RELEASE_ASKED: "released",
}
"""How an incident ended, by the signal that ended it."""

OPTED_OUT_OUTCOME = "opted-out"


def read(case: Case) -> Found | None:
    """The signal that is due now; None = the incident stays in its phase."""
    found = _ending(case)
    if found is not None:
        return found
    progress = PROGRESS.get(case.incident.phase)
    if progress is None or case.refusal() is not None or debouncing(case):
        return None
    return progress(case)


def _ending(case: Case) -> Found | None:
    if case.incident.phase in FINAL:
        return None
    if case.node is None:
        return Signal.NODE_GONE, _node_gone(case)
    if paused(case.view, case.policy) is not None:
        return None
    for key, signal in ((keys.CANCEL, Signal.CANCEL_ASKED), (keys.RELEASE, Signal.RELEASE_ASKED)):
        reason = asked(case.incident, key)
        if reason is not None and legal(case.incident.phase, signal):
            return signal, f"{signal.value.split()[0]} asked by an operator: {reason}"
    if quarantining.taken_back(case):
        return Signal.TAKEN_BACK, f"our quarantine was taken off {case.incident.node}: obeyed"
    if case.incident.phase is Phase.SUSPECTED and node_opted_out(case.node.node, case.now):
        return Signal.CANCEL_ASKED, f"node {case.incident.node} was opted out before anything was done"
    return None


def _node_gone(case: Case) -> str:
    other = case.view.nodes.get(case.incident.node)
    return f"another node has come under the name {case.incident.node}" if other else "the node is gone"


def outcome(case: Case, signal: Signal) -> str:
    """The one word for how it ended."""
    if signal is Signal.CANCEL_ASKED and asked(case.incident, keys.CANCEL) is None:
        return OPTED_OUT_OUTCOME
    return OUTCOMES.get(signal, "")


def debouncing(case: Case) -> bool:
    """An opt-out has ended and the suspicion time runs anew: what was planned before it is not simply resumed."""
    waited = case.incident.deferral
    if waited is None or waited.code not in ("opted-out", "opt-out-ended"):
        return False
    return waited.code == "opted-out" or case.since(waited.since) < case.playbook.suspicion_seconds
