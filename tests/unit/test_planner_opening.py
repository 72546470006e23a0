"""Which faults become incidents: one row per rule."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from exporter.health import keys
from exporter.health.vocabulary import Advice, Health, Scope, Severity
from remediator.domain.actions import EvictPod, MirrorCondition, OpenIncident, Plan, Quarantine, RunJob, TellEvent
from remediator.domain.model import Deferral, IncidentScope, NodeView, Phase
from remediator.domain.outcomes import Done, PastOutcome
from remediator.domain.planner import plan
from remediator.domain.policy import load_policy
from tests.worlds import (
    NOW,
    a_node,
    a_policy,
    a_view,
    ago,
    an_incident,
    annotated,
    report_of,
    reporting,
    silent,
    tainted,
    uuid_of,
    with_fault,
)


def kinds(decided: Plan) -> list[str]:
    """What is done, conditions and Events apart."""
    return [type(a).__name__ for a in decided.actions if not isinstance(a, MirrorCondition | TellEvent)]


def codes(decided: Plan) -> list[str]:
    return [waits.code for waits in decided.deferrals]


ROWS: list[tuple[str, NodeView, dict[str, Any], list[str], list[str]]] = [
    ("healthy node: nothing", a_node(), {}, [], []),
    (
        "certain fault: opened and quarantined",
        with_fault(a_node()),
        {},
        ["OpenIncident", "Quarantine"],
        ["quarantine-pending"],
    ),
    (
        "node fault: the same",
        with_fault(a_node(), None, "gpu-missing"),
        {},
        ["OpenIncident", "Quarantine"],
        ["quarantine-pending"],
    ),
    ("fault no rule names: observed", with_fault(a_node(), code="xid-95"), {}, [], ["observe"]),
    ("warning: nothing", with_fault(a_node(), severity=Severity.WARNING), {}, [], []),
    ("error: nothing", with_fault(a_node(), severity=Severity.ERROR), {}, [], []),
    ("application fault: nothing, even if it is called critical", with_fault(a_node(), scope=Scope.APP), {}, [], []),
    (
        "suspicion: opened, nothing applied",
        with_fault(a_node()),
        {"suspicionSeconds": 60},
        ["OpenIncident"],
        ["suspicion"],
    ),
    ("opted out: no incident", annotated(with_fault(a_node()), opt_out="burn-in"), {}, [], ["opted-out"]),
    ("silent exporter: no incident", silent(with_fault(a_node())), {}, [], ["unknown-health"]),
    (
        "driver upgrade: no incident",
        reporting(with_fault(a_node()), driver_state="no-driver"),
        {},
        [],
        ["unknown-health"],
    ),
    (
        "node not ready: opened, nothing applied",
        with_fault(a_node(ready=False)),
        {},
        ["OpenIncident"],
        ["node-not-ready"],
    ),
]


@pytest.mark.parametrize(
    ("node", "playbook", "actions", "waits"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_fault_in_enforce_mode(
    node: NodeView, playbook: dict[str, Any], actions: list[str], waits: list[str]
) -> None:
    decided = plan(a_view(node), a_policy(**playbook), NOW)
    assert kinds(decided) == actions
    assert codes(decided) == waits


def test_the_first_turn_stores_the_intent_and_then_taints() -> None:
    decided = plan(a_view(with_fault(a_node())), a_policy(), NOW)
    opened, taint = decided.chains()[0][0], decided.chains()[0][-1]
    assert isinstance(opened, OpenIncident) and isinstance(taint, Quarantine)
    incident = opened.incident
    assert incident.phase is Phase.QUARANTINED and incident.scope is IncidentScope.GPU
    assert incident.gpu is not None and (incident.gpu.index, incident.gpu.serial) == (3, "S3")
    assert incident.quarantine is not None and not incident.quarantine.verified
    assert (taint.node, taint.taint_value, taint.method, taint.cordon) == ("n7", "xid-79", "node-taint", False)
    assert len(incident.name) <= 63 and incident.name.startswith("n7-gpu3-")
    assert decided.next_look is not None and decided.next_look > NOW


def test_a_node_fault_is_cordoned_as_well_and_a_prior_cordon_is_remembered() -> None:
    faulty = with_fault(a_node(), None, "gpu-missing")
    (cordon,) = [a for a in plan(a_view(faulty), a_policy(), NOW).actions if isinstance(a, Quarantine)]
    assert cordon.cordon
    before_us = replace(faulty, node=replace(faulty.node, unschedulable=True))
    decided = plan(a_view(before_us), a_policy(), NOW)
    (cordon,) = [a for a in decided.actions if isinstance(a, Quarantine)]
    record = decided.incidents[0].quarantine
    assert not cordon.cordon
    assert record is not None and record.prior_cordon and not record.cordoned


def test_observe_tells_an_event_once_and_writes_nothing() -> None:
    view = a_view(with_fault(a_node()))
    decided = plan(view, a_policy("observe"), NOW)
    (event,) = decided.actions
    assert isinstance(event, TellEvent) and event.kind == "Node" and event.reason == "Observe"
    assert "would quarantine" in event.message
    told = {event.key: PastOutcome(key=event.key, outcome=Done(), at=ago(60))}
    assert plan(replace(view, outcomes=told), a_policy("observe"), NOW).actions == ()
    hours_ago = {event.key: PastOutcome(key=event.key, outcome=Done(), at=ago(3700))}
    assert plan(replace(view, outcomes=hours_ago), a_policy("observe"), NOW).actions == (event,)


def test_recommend_opens_and_waits_until_it_is_approved() -> None:
    node = with_fault(a_node())
    decided = plan(a_view(node), a_policy("recommend"), NOW)
    assert kinds(decided) == ["OpenIncident"] and codes(decided) == ["recommend"]
    waiting = an_incident(Phase.SUSPECTED)
    assert kinds(plan(a_view(node, incidents=[waiting]), a_policy("recommend"), NOW)) == ["SaveIncident"]
    approved = replace(waiting, annotations={keys.APPROVE: "do it"})
    decided = plan(a_view(node, incidents=[approved]), a_policy("recommend"), NOW)
    assert kinds(decided) == ["SaveIncident", "Quarantine"]


def test_not_the_leader_plans_nothing() -> None:
    decided = plan(a_view(with_fault(a_node()), leader=False), a_policy(), NOW)
    assert decided.actions == () and decided.summary == "standing by: another replica leads"


def test_paused_plans_no_action() -> None:
    node = with_fault(a_node())
    view = a_view(node, incidents=[an_incident(Phase.RESOLVED, "n1")], paused="")
    decided = plan(view, a_policy(), NOW)
    assert kinds(decided) == ["SaveIncident"] and codes(decided) == ["paused", "paused"]


def test_the_budget_is_spent_on_the_first_and_the_others_wait_in_suspected() -> None:
    nodes = [with_fault(a_node(f"n{i}"), i) for i in (1, 2, 3, 4)]
    decided = plan(a_view(*nodes), a_policy(budget={"nodes": 2}), NOW)
    assert kinds(decided).count("Quarantine") == 2 and kinds(decided).count("OpenIncident") == 4
    assert codes(decided).count("budget") == 2
    assert sorted(i.phase for i in decided.incidents) == ["Quarantined", "Quarantined", "Suspected", "Suspected"]


def test_two_gpus_of_one_node_cost_one_place() -> None:
    node = with_fault(with_fault(a_node(), 1), 2)
    decided = plan(a_view(node), a_policy(budget={"nodes": 1}), NOW)
    assert kinds(decided) == ["OpenIncident", "Quarantine", "OpenIncident", "Quarantine"]


def test_one_incident_per_target_and_the_strongest_fault_names_it() -> None:
    node = with_fault(with_fault(a_node(), 3, "xid-48"), 3, "xid-79")
    (opened,) = plan(a_view(node), a_policy(), NOW).incidents
    assert opened.fault == "xid-79" and opened.findings == ("xid-79", "xid-48")


def test_a_weaker_fault_that_may_be_acted_on_beats_a_stronger_one_that_may_not() -> None:
    node = with_fault(with_fault(a_node(), 3, "xid-48"), 3, "xid-999", advice=Advice.CONTACT_SUPPORT)
    (opened,) = plan(a_view(node), a_policy(), NOW).incidents
    assert opened.fault == "xid-48"


def test_a_second_fault_on_the_target_joins_the_open_incident() -> None:
    node = with_fault(with_fault(a_node(), 3), 3, "xid-48")
    decided = plan(a_view(node, incidents=[an_incident(Phase.SUSPECTED)]), a_policy(), NOW)
    (incident,) = decided.incidents
    assert incident.findings == ("xid-79", "xid-48")


def test_a_fault_instance_that_an_operator_settled_is_not_opened_again() -> None:
    cancelled = an_incident(Phase.CANCELLED, outcome="by-human", closed_at=ago(1))
    node = with_fault(a_node(), first_seen=ago(100))
    decided = plan(a_view(node, incidents=[cancelled]), a_policy(), NOW)
    assert kinds(decided) == [] and codes(decided) == ["cancelled-by-human"]
    newer = with_fault(a_node(), first_seen=NOW)
    assert kinds(plan(a_view(newer, incidents=[cancelled]), a_policy(), NOW)) == ["OpenIncident", "Quarantine"]
    rebooted = reporting(node, boot_id="boot-2")
    assert kinds(plan(a_view(rebooted, incidents=[cancelled]), a_policy(), NOW)) == ["OpenIncident", "Quarantine"]
    healed = replace(cancelled, phase=Phase.RESOLVED, outcome="healed")
    assert kinds(plan(a_view(node, incidents=[healed]), a_policy(), NOW)) == ["OpenIncident", "Quarantine"]


def test_names_do_not_collide_with_earlier_incidents_of_the_same_fault() -> None:
    node = with_fault(a_node("a" * 60))
    (first,) = plan(a_view(node), a_policy(), NOW).incidents
    old = replace(first, closed_at=ago(1), phase=Phase.CANCELLED, outcome="opted-out")
    (second,) = plan(a_view(node, incidents=[old]), a_policy(), NOW).incidents
    assert first.name != second.name and len(second.name) <= 63


def test_nothing_destructive_but_the_quarantine_in_the_first_turn() -> None:
    decided = plan(a_view(with_fault(a_node())), a_policy(), NOW)
    assert not [a for a in decided.actions if isinstance(a, EvictPod | RunJob)]


MIRROR: list[tuple[str, NodeView, str, list[str]]] = [
    ("unchanged: not written", a_node(gpu_healthy="True"), "enforce", []),
    ("absent: written", a_node(gpu_healthy=None), "enforce", ["True"]),
    ("unhealthy", with_fault(a_node(), code="xid-95"), "enforce", ["False"]),
    ("silent exporter", silent(a_node()), "enforce", ["Unknown"]),
    ("health unknown", reporting(a_node(), health=Health.UNKNOWN), "enforce", ["Unknown"]),
    ("degraded is still true", reporting(a_node(gpu_healthy="False"), health=Health.DEGRADED), "enforce", ["True"]),
    ("opted out: never", annotated(a_node(gpu_healthy=None), opt_out=""), "enforce", []),
    ("observe: never", a_node(gpu_healthy=None), "observe", []),
    ("recommend: never", a_node(gpu_healthy=None), "recommend", []),
]


@pytest.mark.parametrize(("node", "mode", "statuses"), [row[1:] for row in MIRROR], ids=[row[0] for row in MIRROR])
def test_the_condition(node: NodeView, mode: str, statuses: list[str]) -> None:
    decided = plan(a_view(node), a_policy(mode), NOW)
    assert [a.status for a in decided.actions if isinstance(a, MirrorCondition) and a.node == "n7"] == statuses


def test_the_condition_can_be_turned_off_and_never_storms() -> None:
    fleet = a_view(*(a_node(f"m{i}", gpu_healthy=None) for i in range(120)))
    assert len(plan(fleet, a_policy(), NOW).actions) == 50
    assert plan(fleet, a_policy().model_copy(update={"mirror_condition": False}), NOW).actions == ()
    assert plan(fleet, load_policy(None), NOW).actions == ()


def test_when_an_opt_out_ends_nothing_moves_until_the_fault_was_watched_anew() -> None:
    waited = Deferral(code="opted-out", message="x", since=ago(900), retry_at=ago(1))
    incident = an_incident(Phase.PROBATION, phase_since=ago(900), deferral=waited)
    view = a_view(tainted(a_node()), incidents=[incident])
    (watched,) = plan(view, a_policy(suspicionSeconds=20), NOW).incidents
    assert watched.phase is Phase.PROBATION and watched.deferral is not None
    assert (watched.deferral.code, watched.deferral.since) == ("opt-out-ended", NOW)
    later = NOW + timedelta(seconds=20)
    (moved,) = plan(a_view(tainted(a_node()), incidents=[watched]), a_policy(suspicionSeconds=20), later).incidents
    assert moved.phase is Phase.RESOLVED


def test_uuids_of_the_world_are_those_of_the_report() -> None:
    assert report_of(a_node()).gpus[3].uuid == uuid_of("n7", 3)


def test_a_condition_that_no_watch_shows_yet_is_not_written_again_at_once() -> None:
    view = a_view(with_fault(a_node()))
    [wish] = [a for a in plan(view, a_policy(), NOW).actions if isinstance(a, MirrorCondition)]
    written = replace(view, outcomes={wish.key: PastOutcome(key=wish.key, outcome=Done(), at=ago(3))})
    assert not [a for a in plan(written, a_policy(), NOW).actions if isinstance(a, MirrorCondition)]
    healed = replace(written, nodes={**view.nodes, "n7": a_node(gpu_healthy="False")})
    assert [a.status for a in plan(healed, a_policy(), NOW).actions if isinstance(a, MirrorCondition)] == ["True"]
