"""Scenarios 12, 14, 16, 18 to 20, 22, 25, 28, 30 to 32, 37, 38, 40: signals, bursts, drains, repairs."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.health.vocabulary import Scope
from remediator.domain.actions import EvictPod, Quarantine, RunJob
from remediator.domain.model import Fate, NodeView, Phase
from tests.tiny_cluster import TinyCluster
from tests.worlds import a_policy, report_of, with_fault


def faulty(**changes: Any) -> TinyCluster:
    cluster = TinyCluster.of("n1", "n2", "n3", **changes)
    cluster.deploy(6)
    cluster.tick(5)
    cluster.fault("n1", 3)
    return cluster


def turns(cluster: TinyCluster, count: int) -> None:
    for _ in range(count):
        cluster.turn()
        cluster.tick()


def waits(cluster: TinyCluster) -> str:
    deferral = cluster.only().deferral
    return deferral.code if deferral else ""


def test_12_a_burst_is_worked_off_within_the_budget_and_recoveries_go_on() -> None:
    cluster = TinyCluster.of(*(f"n{i}" for i in range(10)), policy=a_policy(budget={"percent": "20%"}))
    for number in range(5):
        cluster.fault(f"n{number}", 0)
    most = 0
    for _ in range(600):
        turns(cluster, 1)
        most = max(most, len(cluster.our_taints()))
        if cluster.incidents and not cluster.open_incidents():
            break
    assert most == 2
    assert [i.outcome for i in cluster.stored()] == ["healed"] * 5


@pytest.mark.parametrize(("size", "out"), [(1, 0), (2, 1), (4, 1)])
def test_14_small_pools_neither_lose_all_nor_dead_lock(size: int, out: int) -> None:
    cluster = TinyCluster.of(
        *(f"n{i}" for i in range(size)), policy=a_policy(budget={"percent": 25}, repair=["ask-human"])
    )
    for number in range(size):
        cluster.fault(f"n{number}", 0)
    turns(cluster, 10)
    assert len(cluster.our_taints()) == out
    assert [w.code for w in cluster.plans[-1].deferrals].count("budget") == size - out


def test_16_a_crashed_job_with_xid_45_everywhere_is_no_reason_to_cordon() -> None:
    cluster = TinyCluster.of("n1", "n2", "n3")
    for name, host in cluster.hosts.items():
        seen = NodeView(node=host.facts, exporter=host.exporter)
        host.exporter = with_fault(seen, 0, "xid-79" if name == "n1" else "xid-45", scope=Scope.APP).exporter
    turns(cluster, 10)
    assert cluster.incidents == {}


def test_18_a_flapping_gpu_is_quarantined_once_and_not_returned() -> None:
    cluster = faulty(policy=a_policy(repair=["ask-human"], validate={}))
    for _ in range(20):
        turns(cluster, 15)
        cluster.heal("n1")
        turns(cluster, 15)
        cluster.fault("n1", 3)
    assert len(cluster.done(Quarantine)) == 1 and len(cluster.incidents) == 1
    assert cluster.our_taints() == ["n1"]


def test_18_each_return_makes_the_next_probation_longer() -> None:
    cluster = faulty()
    spans = []
    for _ in range(3):
        cluster.run(turns=400)
        moves = {entry.to: entry.time for entry in cluster.stored()[-1].history}
        spans.append((moves["Resolved"] - moves["Probation"]).total_seconds())
        cluster.tick(30)
        cluster.fault("n1", 3)
        cluster.turn()
    assert spans == [60, 120, 240]


def test_19_alternating_faults_count_from_the_first_one() -> None:
    cluster = faulty(policy=a_policy(suspicionSeconds=30))
    for second in range(40):
        cluster.turn()
        cluster.tick()
        cluster.heal("n1")
        cluster.fault("n1", 3, "xid-48" if second % 2 else "xid-79")
    assert cluster.our_taints() == ["n1"]


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.REPAIRING, Phase.VALIDATING, Phase.PROBATION])
def test_20_the_exporter_dies_during_a_quarantine_neither_action_nor_return(phase: Phase) -> None:
    cluster = faulty()
    cluster.run_until(lambda c: bool(c.incidents) and c.only().phase is phase)
    cluster.hosts["n1"].alive = False
    cluster.tick(100)
    before = [a.key for a in cluster.log if isinstance(a, EvictPod | RunJob | Quarantine)]
    turns(cluster, 300)
    assert cluster.only().phase is phase and waits(cluster) == "unknown-health"
    assert [a.key for a in cluster.log if isinstance(a, EvictPod | RunJob | Quarantine)] == before
    assert cluster.our_taints() == ["n1"]
    cluster.hosts["n1"].alive = True
    cluster.run(turns=800)
    assert not cluster.only().open or cluster.only().phase is Phase.ESCALATED


def test_22_a_driver_upgrade_is_not_a_fault() -> None:
    cluster = faulty()
    host = cluster.hosts["n1"]
    report = report_of(NodeView(node=host.facts, exporter=host.exporter))
    host.exporter = replace(host.exporter, report=replace(report, driver_state="no-driver"))
    turns(cluster, 10)
    assert cluster.incidents == {}
    assert [w.code for w in cluster.plans[-1].deferrals] == ["unknown-health"]


def test_25_an_unknown_mapping_holds_the_drain_but_not_the_taint() -> None:
    cluster = faulty()
    host = cluster.hosts["n1"]
    report = report_of(NodeView(node=host.facts, exporter=host.exporter))
    blind = replace(report, mapping_known=False, gpus=tuple(replace(gpu, pods=()) for gpu in report.gpus))
    for _ in range(10):
        host.exporter = replace(host.exporter, report=blind)
        cluster.turn()
        cluster.tick()
    assert cluster.our_taints() == ["n1"] and cluster.evicted() == []
    assert waits(cluster) == "mapping-unknown" and cluster.only().phase is Phase.DRAINING


def test_28_a_budget_that_never_allows_is_waited_for_visibly_and_never_bypassed() -> None:
    cluster = faulty(blocked=lambda pod: True)
    turns(cluster, 300)
    incident = cluster.only()
    assert incident.phase is Phase.DRAINING and waits(cluster) == "eviction-blocked"
    assert incident.deferral is not None and (cluster.now - incident.deferral.since).total_seconds() > 250
    assert [pod.fate for pod in incident.pods] == [Fate.BLOCKED]
    asked = [a for decided in cluster.plans for a in decided.actions if isinstance(a, EvictPod)]
    assert 8 <= len(asked) <= 14, "with growing pauses of 5 to 30 s"
    assert all(action.grace_seconds != 0 for action in asked)
    saves = sum(type(a).__name__ == "SaveIncident" for a in cluster.log)
    assert saves < 30, "waiting writes little"


def test_30_a_pod_stuck_in_terminating_still_holds_its_gpu() -> None:
    cluster = faulty()
    pod, gpu = cluster.pods["uid-web-4"]
    cluster.pods["uid-web-4"] = (replace(pod, finalizers=("example.com/keep",)), gpu)
    turns(cluster, 120)
    assert cluster.only().phase is Phase.DRAINING and waits(cluster) == "pods-leaving"
    assert cluster.evicted() == ["web-4"] and cluster.jobs == {}


def test_31b_a_pod_that_comes_back_to_the_bad_gpu_is_not_chased_for_ever() -> None:
    cluster = faulty()
    cluster.run_until(lambda c: bool(c.incidents) and c.only().phase is Phase.DRAINING)
    cluster.tick(20)
    pod, _ = cluster.pods["uid-web-1"]
    late = replace(pod, name="web-late", uid="uid-late", created_at=cluster.now)
    cluster.wanted += 1
    cluster.add(late, 3)
    turns(cluster, 60)
    assert cluster.evicted() == ["web-4"]
    held = [record for record in cluster.only().pods if record.name == "web-late"]
    assert [record.fate for record in held] == [Fate.HELD] and waits(cluster) == "pods-held"


def test_32_no_room_elsewhere_is_reported_and_the_repair_makes_room() -> None:
    cluster = TinyCluster.of("n1", "n2", "n3", gpus=2, policy=a_policy(repair=["ask-human"]))
    cluster.deploy(6)
    cluster.tick(5)
    cluster.fault("n1", 1)
    turns(cluster, 50)
    (record,) = cluster.only().pods
    assert record.fate is Fate.UNPLACED and "not placed" in record.reason
    assert cluster.only().phase is Phase.REPAIRING
    cluster.heal("n1")
    cluster.run()
    assert cluster.only().outcome == "healed"


def test_38_an_action_that_succeeds_with_the_fault_still_there_climbs_and_stops_at_the_cap() -> None:
    ladder = [
        {
            "name": "reset",
            "job": a_policy().rules[0].playbook.repair[0].model_dump()["job"],
            "needs": "gpu",
            "timeoutSeconds": 30,
        },
        "ask-human",
    ]
    cluster = faulty(policy=a_policy(repair=ladder))
    cluster.run_until(lambda c: any(work.facts.step == "repair" for work in c.jobs.values()))
    (work,) = cluster.jobs.values()
    work.facts = replace(work.facts, succeeded=True, finished_at=cluster.now)
    turns(cluster, 60)
    incident = cluster.only()
    assert incident.attempts == {"repair": 2} and waits(cluster) == "waiting-for-human"
    cluster.reboot("n1", "boot-2", heals=False)
    turns(cluster, 5)
    assert cluster.only().phase is Phase.ESCALATED and cluster.our_taints() == ["n1"]


def test_40_a_repair_that_never_completes_times_out_and_frees_its_place_in_the_ladder() -> None:
    cluster = faulty()
    cluster.run_until(lambda c: c.jobs != {})
    for work in cluster.jobs.values():
        work.ends = cluster.now.replace(year=2099)
    cluster.tick(601)
    turns(cluster, 3)
    assert cluster.only().attempts == {"repair": 2}
    assert "showed no proof in time" in cluster.only().history[-1].sentence


def test_a_reboot_by_a_human_heals_keeps_the_taint_until_the_end_and_needs_no_memory() -> None:
    cluster = faulty(policy=a_policy(repair=["ask-human"]))
    cluster.run_until(lambda c: bool(c.incidents) and waits(c) == "waiting-for-human")
    cluster.tick(3600)
    cluster.reboot("n1", "boot-2")
    seen = []
    for _ in range(120):
        cluster.turn()
        cluster.tick()
        if cluster.only().open and cluster.only().phase is not Phase.RESOLVED:
            seen.append(cluster.our_taints())
    assert all(taints == ["n1"] for taints in seen)
    assert cluster.only().outcome == "healed" and cluster.our_taints() == []
