"""One turn: everything known goes in, everything to be done comes out. Pure.

Laws:
1. Standing by (not the leader) means an empty plan.
2. Each incident is written at most once per turn, before anything is done for it (write-ahead).
3. All is derived by looking: the same view gives the same plan to a fresh process and to an old one.
4. Every open incident either acts or carries a deferral with a reason and a time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from remediator.domain import drain, quarantining, repair, restart, signals, validate
from remediator.domain.actions import Action, CloseIncident, DeleteJob, OpenIncident, Plan, SaveIncident, TellEvent
from remediator.domain.budgets import Ledger, ledger
from remediator.domain.case import Case, Step, later
from remediator.domain.deferrals import Code, Wait, deferral
from remediator.domain.mirror import mirrored
from remediator.domain.model import ClusterView, Deferral, Fate, Incident, IncidentScope, Phase, PodRecord
from remediator.domain.opening import Unopened, survey
from remediator.domain.outcomes import Done
from remediator.domain.policy import Policy
from remediator.domain.states import Signal, advance

MAX_FINDINGS = 32
"""Bound of the CRD."""
EVENT_REPEAT_SECONDS = 3600.0
FOLLOW_PODS_SECONDS = 1.0
"""Pods are not watched, so somebody must look: one list of one node, a millisecond of the API server's time."""
FOLLOWED_FOR_SECONDS = 300.0

ACTS: Mapping[Phase, Callable[[Case], Step]] = {
    Phase.SUSPECTED: quarantining.suspected_act,
    Phase.QUARANTINED: quarantining.quarantined_act,
    Phase.DRAINING: drain.act,
    Phase.REPAIRING: repair.act,
    Phase.VALIDATING: validate.act,
    Phase.PROBATION: validate.probation_act,
    Phase.RESOLVED: quarantining.closing_act,
    Phase.CANCELLED: quarantining.closing_act,
    Phase.ESCALATED: lambda case: Step(
        incident=case.incident,
        wait=Wait(code=Code.ESCALATED, message=f"a human holds it: {case.incident.reason}"[:512]),
    ),
}

RESTORABLE = (Code.UNKNOWN_HEALTH, Code.NODE_NOT_READY)
"""Brakes under which a guard taint lost in a reboot still goes back on: it harms nobody and doubt asks for it."""


@dataclass(kw_only=True)
class _Turn:
    """What piles up while a turn is worked through. Local to one call of `plan`."""

    view: ClusterView
    policy: Policy
    now: datetime
    ledger: Ledger
    latest: dict[str, Incident]
    actions: list[Action] = field(default_factory=list)
    deferrals: list[Deferral] = field(default_factory=list)


def plan(view: ClusterView, policy: Policy, now: datetime) -> Plan:
    """The whole decision of one turn: actions in order, waits, incidents as they will be, and one sentence."""
    if not view.leader:
        return Plan(summary="standing by: another replica leads")
    turn = _Turn(
        view=view,
        policy=policy,
        now=now,
        ledger=ledger(view, policy.budget),
        latest={incident.name: incident for incident in view.incidents if incident.open},
    )
    for incident in _in_order(turn.latest.values()):
        _handle(turn, incident, stored=True)
    for found in survey(view, policy, now):
        if isinstance(found, Unopened):
            _tell_unopened(turn, found)
        else:
            turn.latest[found.name] = found
            _handle(turn, found, stored=False)
    turn.actions += mirrored(view, policy, now)
    return _finished(turn)


def _in_order(incidents: Iterable[Incident]) -> list[Incident]:
    """Endings first, as they free budget for nobody this turn but siblings must see them; then the oldest."""
    return sorted(incidents, key=lambda i: (i.phase not in signals.FINAL, i.opened_at, i.name))


def _handle(turn: _Turn, before: Incident, *, stored: bool) -> None:
    case = _case(turn, before)
    case = quarantining.verified(case.at(_observed(case)))
    events: list[TellEvent] = [] if stored else [_event(case.incident, "FaultSeen", case.incident.reason)]
    for _ in Phase:
        found = signals.read(case)
        if found is None:
            break
        case = _move(case, *found)
        events.append(_event(case.incident, case.incident.phase.value, case.incident.reason))
    step = _step(case)
    after = _with_deferral(turn, before, step)
    turn.latest[after.name] = after
    turn.ledger = step.ledger or turn.ledger
    turn.actions += _write(before, after, stored=stored)
    turn.actions += [event for event in events if _due(turn, event)]
    turn.actions += step.actions
    if after.closed_at is not None:
        turn.actions += _tidy(turn, after)


def _observed(case: Case) -> Incident:
    """The incident with what only looking adds: fates of pods and codes seen, whatever brake is on."""
    if case.incident.phase in signals.FINAL:
        return case.incident
    seen = dict.fromkeys((*case.incident.findings, *(fault.code for fault in case.faults)))
    return replace(restart.follow(case), findings=tuple(seen)[:MAX_FINDINGS])


def _case(turn: _Turn, incident: Incident) -> Case:
    siblings = tuple(
        other for other in turn.latest.values() if other.node_uid == incident.node_uid and other.name != incident.name
    )
    return Case(
        view=turn.view, policy=turn.policy, now=turn.now, incident=incident, siblings=siblings, ledger=turn.ledger
    )


def _move(case: Case, signal: Signal, sentence: str) -> Case:
    moved = advance(case.incident, signal, case.now, sentence[:512])
    if moved.phase in (Phase.DRAINING, Phase.REPAIRING):
        moved = repair.fresh_round(moved)
    if moved.phase in signals.FINAL:
        moved = replace(moved, outcome=signals.outcome(case, signal))
    return case.at(moved)


def _step(case: Case) -> Step:
    """What the phase does, unless a brake is on."""
    if case.incident.phase in signals.FINAL:
        paused = case.refusal() if case.node else None
        if paused is not None and paused.code is Code.PAUSED:
            return Step(incident=case.incident, wait=paused)
        return quarantining.closing_act(case)
    refusal = case.refusal()
    restored = quarantining.restore(case)
    if refusal is not None:
        guard = (restored,) if restored and refusal.code in RESTORABLE else ()
        return Step(incident=case.incident, actions=guard, wait=refusal)
    if signals.debouncing(case):
        wait = Wait(code=Code.DEBOUNCE, message="the opt-out has ended; the fault is watched anew before going on")
        return Step(incident=case.incident, wait=wait)
    step = ACTS[case.incident.phase](case)
    return replace(step, actions=(restored, *step.actions)) if restored else step


def _with_deferral(turn: _Turn, before: Incident, step: Step) -> Incident:
    incident = step.incident
    if step.wait is None:
        return replace(incident, deferral=None)
    place = (incident.node, incident.gpu.uuid if incident.gpu and incident.scope is IncidentScope.GPU else None)
    old = before.deferral if incident.phase is before.phase else None
    waits = deferral(step.wait, old, turn.now, place)
    turn.deferrals.append(waits)
    return replace(incident, deferral=waits)


def _write(before: Incident, after: Incident, *, stored: bool) -> list[Action]:
    if not stored:
        return [OpenIncident(incident=after)]
    if after.closed_at is not None:
        return [CloseIncident(incident=after)]
    return [SaveIncident(incident=after)] if after != before else []


def _tidy(turn: _Turn, incident: Incident) -> list[Action]:
    """A closed incident leaves no Job behind."""
    return [DeleteJob(incident=incident.name, name=j.name) for j in turn.view.jobs if j.incident == incident.name]


def _event(incident: Incident, reason: str, message: str) -> TellEvent:
    return TellEvent(
        kind="GPUIncident",
        name=incident.name,
        uid=incident.uid,
        reason=reason,
        message=message,
        warning=incident.phase is Phase.ESCALATED,
        dedupe=f"{incident.name}/{reason}/{len(incident.history)}",
        incident=incident.name,
    )


def _due(turn: _Turn, event: TellEvent) -> bool:
    past = turn.view.outcomes.get(event.key)
    told = past is not None and isinstance(past.outcome, Done)
    return not (told and past is not None and (turn.now - past.at).total_seconds() < EVENT_REPEAT_SECONDS)


def _tell_unopened(turn: _Turn, found: Unopened) -> None:
    """A fault that is seen and left alone: said in the plan, and once an hour in an Event on the node."""
    node, fault = found.node.node, found.fault
    uuid = fault.device.uuid if fault.device else None
    first_seen = fault.finding.first_seen
    since = replace(deferral(found.wait, None, turn.now, (node.name, uuid)), since=min(first_seen, turn.now))
    turn.deferrals.append(since)
    event = TellEvent(
        kind="Node",
        name=node.name,
        uid=node.uid,
        reason=_reason(found.wait),
        message=f"{fault.code} on {fault.place}: left alone, {found.wait.message}",
        warning=True,
        dedupe=f"{node.uid}/{uuid or 'node'}/{fault.code}/{found.wait.code.value}",
    )
    if _due(turn, event):
        turn.actions.append(event)


def _reason(wait: Wait) -> str:
    return "".join(word.capitalize() for word in wait.code.value.split("-"))


def _finished(turn: _Turn) -> Plan:
    still_open = tuple(incident for incident in turn.latest.values() if incident.open)
    moments = [waits.retry_at for waits in turn.deferrals]
    moments += [incident.deadline for incident in still_open if incident.deadline]
    if any(_moving(pod, turn.now) for incident in still_open for pod in incident.pods):
        moments.append(later(turn.now, FOLLOW_PODS_SECONDS))
    return Plan(
        actions=tuple(turn.actions),
        deferrals=tuple(turn.deferrals),
        incidents=still_open,
        # What was due before and still waits (a deadline under a brake) is no reason to look at full speed.
        next_look=min((moment for moment in moments if moment > turn.now), default=None),
        summary=_summary(turn, still_open),
    )


def _moving(pod: PodRecord, now: datetime) -> bool:
    """Evicted just now and not running elsewhere yet. One that finds no place is looked at less often later."""
    recent = pod.evicted_at is not None and now < later(pod.evicted_at, FOLLOWED_FOR_SECONDS)
    return recent and pod.fate in (Fate.EVICTING, Fate.GONE, Fate.UNPLACED)


def _summary(turn: _Turn, still_open: tuple[Incident, ...]) -> str:
    done = [type(action).__name__ for action in turn.actions]
    counts = ", ".join(f"{done.count(name)} {name}" for name in sorted(set(done)))
    waits = sorted({waits.code for waits in turn.deferrals})
    words = [f"{len(still_open)} open incidents", counts or "nothing to do"]
    return "; ".join(words + ([f"waiting: {', '.join(waits)}"] if waits else []))
