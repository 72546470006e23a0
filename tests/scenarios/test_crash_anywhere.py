"""Scenario 1: the remediator dies after any write; the next process resumes by looking. No second eviction, no second
repair, the same end."""

from collections.abc import Callable

import pytest

from remediator.domain.actions import EvictPod, RunJob
from remediator.domain.model import Fate, Phase
from tests.tiny_cluster import TinyCluster
from tests.worlds import a_policy


def healed_by_jobs() -> TinyCluster:
    cluster = TinyCluster.of("n1", "n2", "n3")
    cluster.deploy(6)
    cluster.tick(5)
    cluster.fault("n1", 3)
    return cluster


def two_faults_on_one_node() -> TinyCluster:
    cluster = healed_by_jobs()
    cluster.fault("n1", 2, "xid-48")
    return cluster


def repair_fails_first() -> TinyCluster:
    cluster = healed_by_jobs()
    cluster.job_works = lambda step: (
        step != "repair" or sum(job.facts.step == "repair" for job in cluster.jobs.values()) > 1
    )
    return cluster


def never_repaired() -> TinyCluster:
    cluster = healed_by_jobs()
    cluster.job_works = lambda step: step != "repair"
    return cluster


def whole_node() -> TinyCluster:
    cluster = TinyCluster.of("n1", "n2", "n3", policy=a_policy(drain={"pods": "node"}))
    cluster.deploy(6)
    cluster.tick(5)
    cluster.fault("n1", None, "gpu-missing")
    return cluster


STORIES: dict[str, Callable[[], TinyCluster]] = {
    story.__name__: story
    for story in (healed_by_jobs, two_faults_on_one_node, repair_fails_first, never_repaired, whole_node)
}


def end_state(cluster: TinyCluster) -> dict[str, object]:
    """What must not depend on where we died. Times and the wording of a wait may."""
    return {
        "phases": sorted(
            (i.node, i.fault, i.phase, i.outcome, tuple(sorted(i.attempts.items()))) for i in cluster.stored()
        ),
        "moves": sorted((i.fault, tuple(entry.to for entry in i.history)) for i in cluster.stored()),
        "taints": cluster.our_taints(),
        "cordons": sorted(name for name, host in cluster.hosts.items() if host.facts.unschedulable),
        "evicted": sorted(cluster.evicted()),
        "repairs": sorted({a.name for a in cluster.done(RunJob) if isinstance(a, RunJob) and a.step == "repair"}),
        "running": len(cluster.running()),
        "fates": sorted((pod.name, pod.fate) for i in cluster.stored() for pod in i.pods),
    }


def play(story: str, crash_after: int | None = None) -> TinyCluster:
    cluster = STORIES[story]()
    cluster.crash_after = crash_after
    cluster.run(turns=150)
    return cluster


@pytest.mark.parametrize("story", STORIES)
def test_a_crash_after_any_write_changes_nothing_but_timing(story: str) -> None:
    undisturbed = play(story)
    wanted = end_state(undisturbed)
    assert undisturbed.writes > 10
    for write in range(1, undisturbed.writes + 1):
        crashed = play(story, crash_after=write)
        assert end_state(crashed) == wanted, f"died after write {write}: {crashed.log[write - 1].key}"


@pytest.mark.parametrize("story", STORIES)
def test_a_crash_in_every_turn_still_gets_there_and_evicts_nobody_twice(story: str) -> None:
    wanted = end_state(play(story))
    cluster = STORIES[story]()
    for _ in range(300):
        cluster.crash_after = cluster.writes + 1
        cluster.turn()
        cluster.tick()
    found = end_state(cluster)
    # One incident may get ahead of the other, and then the other is repaired with it: the moves differ, the end not.
    assert {**found, "moves": None} == {**wanted, "moves": None}
    assert len(cluster.evicted()) == len(set(cluster.evicted()))


def test_the_undisturbed_story_is_the_designed_one() -> None:
    cluster = play("healed_by_jobs")
    incident = cluster.only()
    assert [entry.to for entry in incident.history] == [
        *("Suspected", "Quarantined", "Draining", "Repairing", "Validating", "Probation", "Resolved"),
    ]
    assert incident.outcome == "healed" and not incident.open
    assert cluster.evicted() == ["web-4"]
    assert [(pod.fate, pod.replacement_node) for pod in incident.pods] == [(Fate.REPLACED, "n2")]
    assert cluster.our_taints() == [] and cluster.jobs == {}


def test_at_the_cap_a_human_holds_it_and_the_node_stays_out() -> None:
    cluster = play("never_repaired")
    incident = cluster.only()
    assert incident.phase is Phase.ESCALATED and incident.open
    assert incident.deferral is not None and incident.deferral.code == "escalated"
    assert incident.attempts == {"repair": 2}
    assert cluster.our_taints() == ["n1"]


def test_the_intent_is_stored_before_each_destructive_call() -> None:
    """S5, read off the log: when a pod is evicted or a Job runs, the stored incident already says so."""
    cluster = STORIES["healed_by_jobs"]()
    for _ in range(100):
        before = len(cluster.log)
        cluster.turn()
        stored = cluster.only()
        for action in cluster.log[before:]:
            if isinstance(action, EvictPod):
                assert [pod.fate for pod in stored.pods if pod.uid == action.uid] == [Fate.EVICTING]
            if isinstance(action, RunJob) and action.step == "repair":
                assert stored.repair is not None and stored.repair.job == action.name
                assert cluster.log.index(action) > before, "the save comes first"
        cluster.tick()
