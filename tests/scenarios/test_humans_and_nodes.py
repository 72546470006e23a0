"""Scenarios 2, 4, 6 to 11, 35, 36: humans, other controllers, nodes that come and go, played in the tiny cluster."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.health import keys
from remediator.domain.actions import EvictPod, LiftQuarantine, Quarantine, RunJob, TellEvent
from remediator.domain.model import NamespaceFacts, Phase, Taint
from tests.tiny_cluster import TinyCluster
from tests.worlds import BARE, a_node, a_pod, a_policy


def faulty(**changes: Any) -> TinyCluster:
    """Three nodes, six pods of a Deployment, Xid 79 on GPU 3 of n1."""
    cluster = TinyCluster.of("n1", "n2", "n3", **changes)
    cluster.deploy(6)
    cluster.tick(5)
    cluster.fault("n1", 3)
    return cluster


def reaching(phase: Phase, **changes: Any) -> TinyCluster:
    cluster = faulty(**changes)
    cluster.run_until(lambda c: bool(c.incidents) and c.only().phase is phase)
    return cluster


def destructive(cluster: TinyCluster) -> list[str]:
    return [
        a.key for a in cluster.log if isinstance(a, Quarantine | EvictPod) or (isinstance(a, RunJob) and a.destructive)
    ]


def waits(cluster: TinyCluster) -> str:
    deferral = cluster.only().deferral
    return deferral.code if deferral else ""


# 2. A restart hours later with an unfinished plan.


def test_2_after_hours_away_a_cleared_fault_is_validated_and_nobody_is_evicted() -> None:
    cluster = reaching(Phase.DRAINING)
    before = cluster.evicted()
    cluster.heal("n1")
    cluster.tick(7200)
    cluster.outcomes.clear()
    cluster.run()
    incident = cluster.only()
    assert [entry.to for entry in incident.history][-3:] == ["Validating", "Probation", "Resolved"]
    assert cluster.evicted() == before and incident.attempts == {"validate": 1}
    assert cluster.our_taints() == []


def test_2_a_suspicion_that_clears_is_cancelled_without_a_trace_on_the_node() -> None:
    cluster = faulty(policy=a_policy(suspicionSeconds=60))
    cluster.turn()
    cluster.heal("n1")
    cluster.run(turns=3)
    incident = cluster.only()
    assert (incident.phase, incident.outcome, incident.open) == (Phase.CANCELLED, "fault-cleared", False)
    assert destructive(cluster) == [] and cluster.done(LiftQuarantine) == []


# 3. Two replicas.


def test_3_a_replica_that_is_not_the_leader_writes_nothing() -> None:
    cluster = faulty(leader=False)
    for _ in range(5):
        cluster.turn()
        cluster.tick()
    assert cluster.log == []


# 4. Two faults on one node.


def test_4a_two_gpus_of_one_node_one_repair_each_at_a_time_and_one_taint() -> None:
    cluster = faulty()
    cluster.fault("n1", 2, "xid-48")
    cluster.run()
    assert sorted((i.fault, i.phase) for i in cluster.stored()) == [("xid-48", "Resolved"), ("xid-79", "Resolved")]
    assert cluster.our_taints() == [] and len(cluster.done(LiftQuarantine)) == 1


def test_4b_one_recovers_and_the_node_stays_out_for_the_other() -> None:
    cluster = faulty(policy=a_policy(repair=["ask-human"]))
    cluster.fault("n1", 2, "xid-48")
    cluster.run_until(lambda c: len(c.incidents) == 2 and all(i.phase is Phase.REPAIRING for i in c.stored()))
    name = next(i.name for i in cluster.stored() if i.fault == "xid-48")
    cluster.incidents[name]["metadata"]["annotations"] = {keys.RELEASE: "checked by hand"}
    for _ in range(5):
        cluster.turn()
        cluster.tick()
    assert sorted((i.fault, i.open) for i in cluster.stored()) == [("xid-48", False), ("xid-79", True)]
    assert cluster.our_taints() == ["n1"]


# 6 and 7. Human cordons and uncordons.


def test_6_a_human_cordon_before_us_stays_and_so_do_foreign_taints() -> None:
    cluster = faulty()
    foreign = Taint(key="team/reserved", value="x", effect="NoSchedule")
    cluster.hosts["n1"].facts = replace(cluster.hosts["n1"].facts, unschedulable=True, taints=(foreign,))
    cluster.run()
    assert cluster.only().outcome == "healed"
    assert cluster.hosts["n1"].facts.unschedulable and cluster.hosts["n1"].facts.taints == (foreign,)


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.REPAIRING, Phase.VALIDATING, Phase.PROBATION])
def test_7_a_human_takes_our_taint_off_and_is_obeyed(phase: Phase) -> None:
    cluster = reaching(phase)
    cluster.untaint("n1")
    before = destructive(cluster)
    for _ in range(20):
        cluster.turn()
        cluster.tick()
    incident = cluster.only()
    assert (incident.phase, incident.outcome, incident.open) == (Phase.CANCELLED, "by-human", False)
    assert destructive(cluster) == before, "no more evictions, no repair, no taint for the same fault instance"
    assert cluster.our_taints() == []


def test_7_after_a_reboot_a_human_is_still_obeyed() -> None:
    cluster = reaching(Phase.REPAIRING, policy=a_policy(repair=["ask-human"]))
    cluster.reboot("n1", "boot-2")
    cluster.run_until(lambda c: c.only().phase is Phase.PROBATION)
    cluster.untaint("n1")
    cluster.run(turns=5)
    assert cluster.only().outcome == "by-human" and len(cluster.done(Quarantine)) == 1


def test_7_a_node_incident_whose_cordon_is_taken_back() -> None:
    cluster = TinyCluster.of("n1", "n2", "n3")
    cluster.fault("n1", None, "gpu-missing")
    cluster.run_until(lambda c: bool(c.incidents) and c.only().phase is Phase.REPAIRING)
    assert cluster.hosts["n1"].facts.unschedulable
    cluster.hosts["n1"].facts = replace(cluster.hosts["n1"].facts, unschedulable=False)
    cluster.run(turns=5)
    assert cluster.only().outcome == "by-human"
    assert cluster.our_taints() == []


# 8 and 9. Opt-out.


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.REPAIRING, Phase.VALIDATING, Phase.PROBATION])
def test_8_opted_out_in_the_middle_everything_stops_and_the_node_is_left_as_it_is(phase: Phase) -> None:
    cluster = reaching(phase)
    cluster.annotate_node("n1", keys.OPT_OUT, "on the phone with the vendor")
    before, facts = [a for a in cluster.log if not isinstance(a, TellEvent)], cluster.hosts["n1"].facts
    for _ in range(30):
        cluster.turn()
        cluster.tick()
    new = [a for a in cluster.log if not isinstance(a, TellEvent)][len(before) :]
    assert {type(a).__name__ for a in new} <= {"SaveIncident"}
    assert cluster.hosts["n1"].facts == facts
    assert cluster.only().phase is phase and waits(cluster) == "opted-out"


def test_9_expired_opt_out_does_not_protect() -> None:
    cluster = faulty()
    cluster.annotate_node("n1", keys.OPT_OUT, "x")
    cluster.annotate_node("n1", keys.OPT_OUT_UNTIL, "2026-03-01T12:01:00Z")
    cluster.turn()
    assert cluster.incidents == {}
    cluster.tick(120)
    cluster.run()
    assert cluster.only().outcome == "healed"


def test_9b_after_an_opt_out_the_fault_is_watched_anew() -> None:
    cluster = reaching(Phase.DRAINING, policy=a_policy(suspicionSeconds=20), blocked=lambda pod: True)
    cluster.annotate_node("n1", keys.OPT_OUT, "x")
    cluster.run(turns=5)
    cluster.annotate_node("n1", keys.OPT_OUT, None)
    cluster.blocked = lambda pod: False
    cluster.run(turns=15)
    assert waits(cluster) == "opt-out-ended" and cluster.evicted() == []
    cluster.run()
    assert cluster.only().outcome == "healed" and cluster.evicted() == ["web-4"]


def test_9b_opted_out_while_suspected_starts_over() -> None:
    cluster = faulty(policy=a_policy(suspicionSeconds=10))
    cluster.turn()
    cluster.annotate_node("n1", keys.OPT_OUT, "x")
    cluster.run(turns=3)
    assert cluster.only().outcome == "opted-out" and not cluster.only().open
    cluster.annotate_node("n1", keys.OPT_OUT, None)
    cluster.turn()
    assert [i.phase for i in cluster.open_incidents()] == [Phase.SUSPECTED]
    assert len(cluster.incidents) == 2


def test_8_an_opted_out_namespace_keeps_its_pod_and_the_node_is_still_quarantined() -> None:
    cluster = faulty()
    cluster.namespaces["team-a"] = NamespaceFacts(name="team-a", annotations={keys.OPT_OUT: "demo day"})
    for _ in range(20):
        cluster.turn()
        cluster.tick()
    assert cluster.evicted() == [] and cluster.our_taints() == ["n1"]
    assert cluster.only().phase is Phase.REPAIRING and waits(cluster) == "pods-held"


# Operators.


def test_hold_stops_and_goes_on_where_it_was() -> None:
    cluster = reaching(Phase.DRAINING)
    cluster.annotate_incident(keys.HOLD, "wait for me")
    before = destructive(cluster)
    cluster.run(turns=10)
    assert waits(cluster) == "held-by-human" and destructive(cluster) == before
    cluster.annotate_incident(keys.HOLD, "false")
    cluster.run()
    assert cluster.only().outcome == "healed"


def test_cancel_takes_our_mark_off_and_the_same_fault_is_left_alone() -> None:
    cluster = reaching(Phase.REPAIRING, policy=a_policy(repair=["ask-human"]))
    cluster.annotate_incident(keys.CANCEL, "known issue")
    for _ in range(10):
        cluster.turn()
        cluster.tick()
    assert cluster.only().outcome == "by-human" and cluster.our_taints() == []
    assert [waiting.code for waiting in cluster.plans[-1].deferrals] == ["cancelled-by-human"]


def test_release_returns_an_escalated_node_on_an_operators_word() -> None:
    cluster = reaching(Phase.ESCALATED, job_works=lambda step: step != "repair")
    cluster.annotate_incident(keys.RELEASE, "burn-in passed by hand")
    cluster.run(turns=5)
    incident = cluster.only()
    assert (incident.phase, incident.outcome, incident.open) == (Phase.RESOLVED, "released", False)
    assert cluster.our_taints() == []


# 10. Other controllers.


def test_10_another_controller_is_taking_the_node_down() -> None:
    cluster = reaching(Phase.DRAINING, blocked=lambda pod: True)
    facts = cluster.hosts["n1"].facts
    mark = Taint(key="karpenter.sh/disrupted", value="", effect="NoSchedule")
    cluster.hosts["n1"].facts = replace(facts, taints=(*facts.taints, mark))
    cluster.blocked = lambda pod: False
    cluster.run(turns=40)
    assert waits(cluster) == "foreign-controller" and cluster.evicted() == []


# 11. Dry run.


def test_11b_observe_writes_nothing_but_events() -> None:
    cluster = faulty(policy=a_policy("observe"))
    for host in cluster.hosts.values():
        host.facts = replace(host.facts, gpu_healthy=None)
    for _ in range(20):
        cluster.turn()
        cluster.tick()
    assert {type(a) for a in cluster.log} == {TellEvent}
    assert len(cluster.log) == 1, "told once, not every turn"
    assert [waiting.code for waiting in cluster.plans[-1].deferrals] == ["observe"]


def test_11b_recommend_writes_its_incident_and_nothing_else_until_approved() -> None:
    cluster = faulty(policy=a_policy("recommend"))
    for _ in range(10):
        cluster.turn()
        cluster.tick()
    assert destructive(cluster) == [] and waits(cluster) == "recommend"
    cluster.annotate_incident(keys.APPROVE, "yes")
    cluster.run()
    assert cluster.only().outcome == "healed"


# 35 and 36. Nodes that come, go, and fall silent.


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.REPAIRING, Phase.PROBATION])
def test_35a_the_node_is_deleted_at_any_step(phase: Phase) -> None:
    cluster = reaching(phase)
    del cluster.hosts["n1"]
    cluster.run(turns=3)
    incident = cluster.only()
    assert (incident.phase, incident.outcome, incident.open) == (Phase.CANCELLED, "node-gone", False)
    assert cluster.done(LiftQuarantine) == []


def test_35b_a_new_node_of_the_same_name_is_not_treated_as_the_old_one() -> None:
    cluster = reaching(Phase.REPAIRING)
    new = a_node("n1", gpus=4, boot="boot-9", uid="uid-n1-new")
    cluster.hosts["n1"].facts, cluster.hosts["n1"].exporter = new.node, new.exporter
    before = destructive(cluster)
    cluster.run(turns=5)
    assert cluster.only().outcome == "node-gone" and destructive(cluster) == before
    assert cluster.our_taints() == []


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.REPAIRING, Phase.PROBATION])
def test_36_not_ready_nothing_is_forced_through_a_dead_kubelet(phase: Phase) -> None:
    cluster = (
        reaching(phase, policy=a_policy(repair=["ask-human"])) if phase is not Phase.PROBATION else reaching(phase)
    )
    cluster.hosts["n1"].facts = replace(cluster.hosts["n1"].facts, ready=None)
    before = destructive(cluster)
    cluster.run(turns=100)
    assert cluster.only().phase is phase and waits(cluster) == "node-not-ready"
    assert destructive(cluster) == before and cluster.our_taints() == ["n1"]


def test_a_bare_pod_on_the_bad_gpu_is_held_and_the_reset_waits_for_it() -> None:
    cluster = TinyCluster.of("n1", "n2", "n3")
    cluster.add(a_pod("bare", "n1", **BARE), 3)
    cluster.fault("n1", 3)
    cluster.run(turns=20)
    assert cluster.our_taints() == ["n1"] and cluster.evicted() == []
    assert waits(cluster) == "pods-held" and cluster.jobs == {}
    del cluster.pods["uid-bare"]
    cluster.run()
    assert cluster.only().outcome == "healed"


# 6. What others put on the node, and what one incident leaves to another.


def test_6_a_taint_with_our_key_that_a_human_put_on_before_us_stays() -> None:
    cluster = faulty()
    theirs = Taint(key=keys.UNHEALTHY_TAINT, value="being-tested", effect=keys.NO_SCHEDULE)
    cluster.hosts["n1"].facts = replace(cluster.hosts["n1"].facts, taints=(theirs,))
    cluster.run()
    assert (cluster.only().outcome, cluster.only().open) == ("healed", False)
    assert cluster.hosts["n1"].facts.taints == (theirs,)


def test_6_a_taint_of_ours_whose_incident_was_deleted_is_taken_over_and_off() -> None:
    cluster = reaching(Phase.REPAIRING, policy=a_policy(repair=["ask-human"]))
    cluster.incidents.clear()
    cluster.turn()
    cluster.reboot("n1", "boot-2")
    cluster.run()
    assert cluster.only().outcome == "healed" and cluster.our_taints() == []


def test_6_a_taint_with_our_key_and_another_effect_is_foreign_and_holds_nothing_up() -> None:
    cluster = faulty()
    theirs = Taint(key=keys.UNHEALTHY_TAINT, value="xid-79", effect="PreferNoSchedule")
    cluster.hosts["n1"].facts = replace(cluster.hosts["n1"].facts, taints=(theirs,))
    cluster.run()
    assert cluster.done(Quarantine) and cluster.only().outcome == "healed" and not cluster.only().open
    assert cluster.hosts["n1"].facts.taints == (theirs,)


def test_4b_a_cordon_of_ours_goes_with_its_incident_though_a_sibling_keeps_the_taint() -> None:
    cluster = TinyCluster.of("n1", "n2", "n3", policy=a_policy(repair=["ask-human"]))
    cluster.fault("n1", None, "gpu-missing")
    cluster.run_until(lambda c: c.hosts["n1"].facts.unschedulable)
    cluster.fault("n1", 3)
    cluster.run_until(lambda c: len(c.incidents) == 2)
    host = cluster.hosts["n1"]
    assert host.exporter.report is not None
    host.exporter = replace(host.exporter, report=replace(host.exporter.report, findings=()))
    cluster.run_until(lambda c: len(c.open_incidents()) == 1)
    assert not cluster.hosts["n1"].facts.unschedulable, "nobody would ever take it off"
    assert cluster.our_taints() == ["n1"]
