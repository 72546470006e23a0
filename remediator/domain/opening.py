"""Which standing faults become incidents, and what is said about those that do not.

Laws:
1. One open incident per target; a second fault on the target joins it.
2. Nothing is opened on an opted-out node, in observe mode, on unknown health, or for a fault instance that an
   operator cancelled or released; each of these is said in a deferral.
3. The name follows from target and fault instance, so a crash between creating and seeing makes no second one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from remediator.domain import guards
from remediator.domain.case import node_model
from remediator.domain.deferrals import Code, Wait
from remediator.domain.faults import Fault, standing
from remediator.domain.model import (
    ClusterView,
    GpuTarget,
    HistoryEntry,
    Incident,
    IncidentScope,
    NodeView,
    Phase,
)
from remediator.domain.policy import Mode, Policy, Rule

BY_OPERATOR = ("by-human", "released")


@dataclass(frozen=True, kw_only=True)
class Unopened:
    """A standing fault without an incident, and why."""

    node: NodeView
    fault: Fault
    wait: Wait


def survey(view: ClusterView, policy: Policy, now: datetime) -> Iterator[Incident | Unopened]:
    """Per target with a standing fault and no open incident: the incident to open, or why none is opened."""
    for name in sorted(view.nodes):
        node = view.nodes[name]
        report = node.exporter.report
        if report is None:
            continue
        by_target: dict[str, list[Fault]] = {}
        for fault in standing(report):
            by_target.setdefault(fault.device.uuid if fault.device else "", []).append(fault)
        for uuid, faults in by_target.items():
            if not _has_open(view, node, uuid):
                yield _judge(view, policy, now, (node, faults))


def _judge(view: ClusterView, policy: Policy, now: datetime, at: tuple[NodeView, list[Fault]]) -> Incident | Unopened:
    node, faults = at
    chosen, rule = _choose(policy, node, faults)
    wait = (
        guards.paused(view, policy)
        or guards.node_opted_out(node.node, now)
        or guards.stale(node.exporter, now, policy.heartbeat_stale_seconds)
        or _observe(rule, chosen)
        or guards.unknown_target(node.exporter, _target(chosen))
        or _settled_by_operator(view, node, chosen)
    )
    if wait is not None or rule is None:
        return Unopened(node=node, fault=chosen, wait=wait or Wait(code=Code.OBSERVE, message="no rule matches"))
    return _incident(view, now, node, (chosen, rule, faults))


def _choose(policy: Policy, node: NodeView, faults: list[Fault]) -> tuple[Fault, Rule | None]:
    """The strongest fault whose rule may act; else the strongest of all with whatever rule it has."""
    ruled = [(fault, _rule(policy, node, fault)) for fault in faults]
    acting = [(fault, rule) for fault, rule in ruled if rule is not None and rule.mode is not Mode.OBSERVE]
    return (acting or ruled)[0]


def _rule(policy: Policy, node: NodeView, fault: Fault) -> Rule | None:
    model = fault.device.model if fault.device else node_model(node.exporter.report)
    return policy.rule_for(node.node.labels, model, fault.code)


def _observe(rule: Rule | None, fault: Fault) -> Wait | None:
    if rule is None:
        return Wait(code=Code.OBSERVE, message=f"no rule matches {fault.code}: observe only")
    if rule.mode is Mode.OBSERVE:
        message = f"rule {rule.name} is in mode observe; it would quarantine the node for {fault.code}"
        return Wait(code=Code.OBSERVE, message=message)
    return None


def _settled_by_operator(view: ClusterView, node: NodeView, fault: Fault) -> Wait | None:
    """An operator cancelled or released an incident on this target in this boot, and the fault stood then already."""
    report, uuid = node.exporter.report, fault.device.uuid if fault.device else ""
    for old in view.incidents:
        if (
            old.outcome in BY_OPERATOR
            and old.closed_at is not None
            and old.target == f"{node.node.uid}/{uuid}"
            and report is not None
            and old.boot_id == report.boot_id
            and fault.finding.first_seen <= old.closed_at
        ):
            message = f"{fault.code} was settled by an operator in {old.name} and has not ended since"
            return Wait(code=Code.CANCELLED_BEFORE, message=message)
    return None


def _target(fault: Fault) -> GpuTarget | None:
    device = fault.device
    return GpuTarget(uuid=device.uuid, index=device.index, serial=device.serial) if device else None


def _incident(view: ClusterView, now: datetime, node: NodeView, what: tuple[Fault, Rule, list[Fault]]) -> Incident:
    fault, rule, faults = what
    report = node.exporter.report
    sentence = f"{fault.code} seen on {fault.place} of {node.node.name}: {fault.finding.message}"[:512]
    return Incident(
        name=_name(view, node, fault),
        node=node.node.name,
        node_uid=node.node.uid,
        boot_id=str(report.boot_id) if report else "",
        scope=IncidentScope.GPU if fault.device else IncidentScope.NODE,
        fault=fault.code,
        opened_at=now,
        gpu=_target(fault),
        playbook=rule.name,
        phase=Phase.SUSPECTED,
        phase_since=now,
        reason=sentence,
        findings=tuple(dict.fromkeys(f.code for f in faults)),
        history=(HistoryEntry(time=now, source="", to=Phase.SUSPECTED.value, sentence=sentence),),
    )


def _name(view: ClusterView, node: NodeView, fault: Fault) -> str:
    """`n7-gpu3-1f0c9a2b`: at most 63 characters, so that it can be a label value; a number in the hash keeps names of
    earlier incidents of the same fault instance apart."""
    place = f"gpu{fault.device.index}" if fault.device else "node"
    identity = f"{node.node.uid}/{fault.device.uuid if fault.device else ''}/{fault.code}/{fault.finding.first_seen}"
    taken = {incident.name for incident in view.incidents}
    for number in range(len(taken) + 1):
        digest = sha256(f"{identity}/{number}".encode()).hexdigest()[:8]
        name = f"{node.node.name[:40].rstrip('-.')}-{place}-{digest}"
        if name not in taken:
            return name
    raise AssertionError("more names taken than incidents exist")


def _has_open(view: ClusterView, node: NodeView, uuid: str) -> bool:
    return any(incident.open and incident.target == f"{node.node.uid}/{uuid}" for incident in view.incidents)
