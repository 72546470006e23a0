"""Suspected and Quarantined, and the way back: putting our mark on the node, seeing it there, taking it off.

Laws:
1. The intent (method, what was there before us) is stored before the mark is set.
2. A mark of ours that was seen and is gone without a reboot was taken off by somebody: obey, never put it back for
   the same incident. Gone together with a new boot id, it goes back on.
3. Only what we applied is undone; a mark that another open incident needs stays.
"""

from dataclasses import replace

from exporter.health import keys
from remediator.domain.actions import LiftQuarantine, Quarantine
from remediator.domain.budgets import holds_node, mark, tainted
from remediator.domain.case import Case, Step, later
from remediator.domain.deferrals import Code, Wait
from remediator.domain.faults import standing
from remediator.domain.model import IncidentScope, NodeView, Phase, QuarantineRecord
from remediator.domain.outcomes import Done
from remediator.domain.repair import cleared
from remediator.domain.states import Signal

NODE_TAINT = "node-taint"
"""Method: the taint keys.UNHEALTHY_TAINT on the node, and for a node incident a cordon as well. Narrower methods
(one GPU only) come as other values of `QuarantineRecord.method`; `method_for` is where the choice will be made."""


def method_for(case: Case) -> str:
    """The narrowest method that works on this node; at present there is one."""
    return NODE_TAINT


def in_place(case: Case) -> bool:
    """The cluster shows the quarantine of this incident."""
    node, record = case.node, case.incident.quarantine
    if node is None or record is None:
        return False
    return tainted(node) and (node.node.unschedulable or not record.cordoned)


def suspected_signal(case: Case) -> tuple[Signal, str] | None:
    """CLEARED, or CONFIRMED when suspicion is served and the budget has room."""
    if not case.faults:
        return cleared(case)
    if _suspicion(case) is not None or _budget(case) is not None:
        return None
    return Signal.CONFIRMED, f"{case.incident.fault} stands on {case.where}"


def suspected_act(case: Case) -> Step:
    wait = _suspicion(case) or _budget(case)
    return Step(incident=case.incident, wait=wait)


def _suspicion(case: Case) -> Wait | None:
    served_at = later(case.incident.opened_at, case.playbook.suspicion_seconds)
    if case.now >= served_at:
        return None
    return Wait(code=Code.SUSPICION, message=f"{case.incident.fault} must stand for a while first", retry_at=served_at)


def _budget(case: Case) -> Wait | None:
    refused = case.ledger.refusal(case.incident.node_uid)
    return Wait(code=Code.BUDGET, message=refused) if refused else None


def quarantined_signal(case: Case) -> tuple[Signal, str] | None:
    """CLEARED, or QUARANTINE_HELD when the mark is seen."""
    if in_place(case):
        return Signal.QUARANTINE_HELD, f"{case.incident.node} takes no new pods"
    return cleared(case)


def quarantined_act(case: Case) -> Step:
    """Stores the intent and sets the mark; charges the budget."""
    node = case.node
    if node is None:
        return Step(incident=case.incident)
    record = case.incident.quarantine or _intent(case, node)
    incident = replace(case.incident, quarantine=record)
    action = _quarantine(case.at(incident), record)
    why = case.last_word(action.key)
    wait = Wait(code=Code.QUARANTINE, message=f"waits to see the {record.method} on {case.incident.node}{why}")
    due = () if case.just_done(action.key) else (action,)
    return Step(incident=incident, actions=due, wait=wait, ledger=case.ledger.charge(case.incident.node_uid))


def _intent(case: Case, node: NodeView) -> QuarantineRecord:
    prior = node.node.unschedulable
    wants_cordon = case.incident.scope is IncidentScope.NODE
    return QuarantineRecord(
        method=method_for(case),
        applied_at=case.now,
        prior_cordon=prior,
        prior_taint=_foreign(case, node),
        cordoned=wants_cordon and not prior,
        boot_id=str(case.report.boot_id) if case.report else "",
        detail=f"{keys.UNHEALTHY_TAINT}={case.incident.fault}:{keys.NO_SCHEDULE}",
    )


def _foreign(case: Case, node: NodeView) -> bool:
    """A taint with our key that nobody of us can have set: its value is no fault ever seen on this node."""
    value = mark(node)
    known = {incident.fault for incident in case.view.incidents if incident.node == case.incident.node}
    known |= {fault.code for fault in standing(case.report)} if case.report else set()
    return value is not None and value not in known | {case.incident.fault}


def _quarantine(case: Case, record: QuarantineRecord) -> Quarantine:
    incident = case.incident
    return Quarantine(
        incident=incident.name,
        method=record.method,
        node=incident.node,
        node_uid=incident.node_uid,
        taint_value=incident.fault,
        gpu=incident.gpu.uuid if incident.gpu else None,
        cordon=record.cordoned,
    )


def verified(case: Case) -> Case:
    """Notes in the incident that the mark has been seen, and in which boot: its absence now means something."""
    record = case.incident.quarantine
    if record is None or not in_place(case):
        return case
    boot = str(case.report.boot_id) if case.report else record.boot_id
    return case.at(replace(case.incident, quarantine=replace(record, verified=True, boot_id=boot)))


def taken_back(case: Case) -> bool:
    """Somebody took our mark off: it was seen, it is gone, and the node has not rebooted in between."""
    record = case.incident.quarantine
    if record is None or not record.verified or case.node is None or in_place(case):
        return False
    return not _rebooted(case)


def restore(case: Case) -> Quarantine | None:
    """The guard to put back on after a reboot that lost it."""
    record = case.incident.quarantine
    if record is None or not record.verified or case.node is None or in_place(case) or not _rebooted(case):
        return None
    action = _quarantine(case, record)
    return None if case.just_done(action.key) else action


def _rebooted(case: Case) -> bool:
    """The node runs another boot than the one in which our mark was last seen."""
    record = case.incident.quarantine
    seen_in = record.boot_id if record and record.boot_id else case.incident.boot_id
    return case.report is not None and case.report.boot_id not in ("", seen_in)


def closing_act(case: Case) -> Step:
    """Resolved or Cancelled: takes our mark off, then closes."""
    record = case.incident.quarantine
    needed = any(holds_node(other) and other.phase not in (Phase.RESOLVED, Phase.CANCELLED) for other in case.siblings)
    if record is None or case.node is None:
        return _closed(case)
    untaint = not needed and not record.prior_taint
    if not (untaint or record.cordoned):
        return _closed(case)
    action = LiftQuarantine(
        incident=case.incident.name,
        method=record.method,
        node=case.incident.node,
        node_uid=case.incident.node_uid,
        gpu=case.incident.gpu.uuid if case.incident.gpu else None,
        untaint=untaint,
        uncordon=record.cordoned,
    )
    # The mark may be on its way from a turn before and not visible yet: only a lift that was done settles it.
    if _lifted(case, action.key) and not (untaint and tainted(case.node)):
        return _closed(case)
    what, why = record.method if untaint else "cordon", case.last_word(action.key)
    wait = Wait(code=Code.LIFTING, message=f"takes the {what} off {case.incident.node}{why}")
    return Step(incident=case.incident, actions=() if case.just_done(action.key) else (action,), wait=wait)


def _lifted(case: Case, key: str) -> bool:
    past = case.past(key)
    return past is not None and isinstance(past.outcome, Done) and past.at >= case.incident.phase_since


def _closed(case: Case) -> Step:
    return Step(incident=replace(case.incident, closed_at=case.now, deferral=None, deadline=None))
