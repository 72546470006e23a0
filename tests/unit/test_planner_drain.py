"""Draining: who leaves, who is held, when it is done, and where the pods went."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from exporter.health import keys
from exporter.health.vocabulary import Health
from remediator.domain.actions import EvictPod, Plan, SaveIncident
from remediator.domain.drain import MAX_PODS
from remediator.domain.model import ClusterView, Fate, NamespaceFacts, Phase, PodFacts, PodRecord
from remediator.domain.outcomes import Blocked, Done, Outcome, PastOutcome, Refused, Retry
from remediator.domain.planner import plan
from tests.worlds import (
    BARE,
    NOW,
    a_node,
    a_pod,
    a_policy,
    a_view,
    ago,
    an_incident,
    placed,
    report_of,
    reporting,
    tainted,
    with_fault,
)

FAULTY = tainted(with_fault(a_node()))
DRAINING = an_incident(Phase.DRAINING)


def draining(*pods: tuple[PodFacts, int | None], incident: Any = DRAINING, **changes: Any) -> ClusterView:
    return a_view(placed(FAULTY, *pods), incidents=[incident], **changes)


def evicted(decided: Plan) -> list[str]:
    return [a.name for a in decided.actions if isinstance(a, EvictPod)]


def fates(decided: Plan) -> dict[str, Fate]:
    return {pod.name: pod.fate for pod in decided.incidents[0].pods}


def test_only_the_pods_of_the_bad_gpu_leave_lowest_priority_first() -> None:
    pods = [
        (a_pod("high", priority=100), 3),
        (a_pod("low"), 3),
        (a_pod("sibling"), 4),
        (a_pod("no-gpu", gpus=0), None),
        (a_pod("ended", phase="Succeeded"), 3),
    ]
    decided = plan(draining(*pods), a_policy(), NOW)
    assert evicted(decided) == ["low", "high"]
    assert isinstance(decided.actions[0], SaveIncident), "the intent is stored first"
    assert fates(decided) == {"low": Fate.EVICTING, "high": Fate.EVICTING}
    (first, _) = [a for a in decided.actions if isinstance(a, EvictPod)]
    assert (first.uid, first.grace_seconds, first.destructive) == ("uid-low", None, True)


def test_a_pod_on_two_gpus_is_one_unit() -> None:
    pod = a_pod("big", gpus=2)
    node = placed(placed(FAULTY, (pod, 3)), (pod, 4))
    node = replace(node, pods=(pod,))
    assert evicted(plan(a_view(node, incidents=[DRAINING]), a_policy(), NOW)) == ["big"]


def test_the_playbook_may_ask_for_the_whole_node() -> None:
    pods = [(a_pod("bad"), 3), (a_pod("sibling"), 4), (a_pod("unmapped"), None), (a_pod("cpu", gpus=0), None)]
    decided = plan(draining(*pods), a_policy(drain={"pods": "node", "graceSeconds": 7}), NOW)
    assert evicted(decided) == ["bad", "sibling", "unmapped"]
    assert {a.grace_seconds for a in decided.actions if isinstance(a, EvictPod)} == {7}


HELD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("opted out", {"annotations": {keys.OPT_OUT: "paper due"}}, {}, "the pod is opted out: paper due"),
    ("opt-out unreadable", {"annotations": {keys.OPT_OUT: "", keys.OPT_OUT_UNTIL: "?"}}, {}, "the pod is opted out"),
    ("protected namespace", {"namespace": "kube-system"}, {}, "namespace kube-system is protected by the policy"),
    ("opted-out namespace", {"namespace": "quiet"}, {}, "namespace quiet is opted out: exam"),
    ("namespace not known", {"namespace": "new"}, {}, "namespace new is not known yet, so its opt-out is not either"),
    ("bare", BARE, {}, "no controller would start it again (drain.barePods: hold)"),
    ("static", {**BARE, "is_mirror": True}, {}, "static pod: the kubelet owns it"),
    ("DaemonSet", {"is_daemonset": True}, {}, "DaemonSet pod: it would come back at once"),
    ("local storage", {"has_local_storage": True}, {}, "its data is on this node (drain.localStorage: hold)"),
    (
        "not safe to evict",
        {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
        {},
        "annotation cluster-autoscaler.kubernetes.io/safe-to-evict=false",
    ),
    (
        "came after the quarantine",
        {"created_at": ago(30)},
        {},
        "came after the quarantine (toleration or nodeName): evicting it would go round for ever",
    ),
]


@pytest.mark.parametrize(("pod", "drain", "reason"), [row[1:] for row in HELD], ids=[row[0] for row in HELD])
def test_held_pods_stay_with_their_reason(pod: dict[str, Any], drain: dict[str, Any], reason: str) -> None:
    namespaces = {
        name: NamespaceFacts(name=name, annotations={keys.OPT_OUT: "exam"} if name == "quiet" else {})
        for name in ("team-a", "quiet", "kube-system")
    }
    view = draining((a_pod("x", **pod), 3), (a_pod("y"), 3), namespaces=namespaces)
    decided = plan(view, a_policy(drain=drain), NOW)
    assert evicted(decided) == ["y"]
    assert {record.name: (record.fate, record.reason) for record in decided.incidents[0].pods}["x"] == (
        Fate.HELD,
        reason,
    )


@pytest.mark.parametrize(
    ("pod", "drain"),
    [
        pytest.param(BARE, {"barePods": "evict"}, id="bare pods, by the policy"),
        pytest.param({"has_local_storage": True}, {"localStorage": "evict"}, id="local storage, by the policy"),
        pytest.param({"annotations": {keys.OPT_OUT: "false"}}, {}, id="opt-out false"),
        pytest.param({"created_at": ago(45)}, {}, id="bound while the taint was on its way"),
        pytest.param({"created_at": None}, {}, id="age unknown"),
        pytest.param({"ready": False}, {}, id="not ready but on the GPU"),
        pytest.param({"phase": "Pending"}, {}, id="starting on the GPU"),
    ],
)
def test_pods_that_leave(pod: dict[str, Any], drain: dict[str, Any]) -> None:
    assert evicted(plan(draining((a_pod("x", **pod), 3)), a_policy(drain=drain), NOW)) == ["x"]


def after(outcome: Outcome, seconds: float, streak: int = 1) -> dict[str, PastOutcome]:
    key = "evict/team-a/x/uid-x"
    return {key: PastOutcome(key=key, outcome=outcome, at=ago(seconds), streak=streak)}


BUDGET = Blocked(reason="budget web needs 2 healthy pods")
TRIES: list[tuple[str, dict[str, PastOutcome], bool, Fate]] = [
    ("never tried", {}, True, Fate.EVICTING),
    ("accepted, not visible yet", after(Done(), 2), False, Fate.EVICTING),
    ("accepted long ago and still there", after(Done(), 60), True, Fate.EVICTING),
    ("blocked just now", after(BUDGET, 4), False, Fate.BLOCKED),
    ("blocked 5 s ago", after(BUDGET, 5), True, Fate.BLOCKED),
    ("blocked a second time: 10 s", after(BUDGET, 9, 2), False, Fate.BLOCKED),
    ("blocked many times: 30 s at most", after(BUDGET, 30, 99), True, Fate.BLOCKED),
    ("the server's Retry-After counts", after(replace(BUDGET, after_seconds=20), 19), False, Fate.BLOCKED),
    ("server busy", after(Retry(after_seconds=10, reason="429"), 9), False, Fate.EVICTING),
    ("server no longer busy", after(Retry(after_seconds=10, reason="429"), 10), True, Fate.EVICTING),
    ("refused: said, not repeated soon", after(Refused(reason="two budgets"), 59), False, Fate.BLOCKED),
    ("refused: asked again, a human may have mended it", after(Refused(reason="2"), 60), True, Fate.BLOCKED),
    ("never gets through: said", after(Retry(after_seconds=15, reason="403"), 9, streak=3), False, Fate.BLOCKED),
    ("waits its turn at a budget", after(Retry(after_seconds=0.25, reason="t"), 9, streak=9), True, Fate.EVICTING),
]


@pytest.mark.parametrize(("outcomes", "tried", "fate"), [row[1:] for row in TRIES], ids=[row[0] for row in TRIES])
def test_evictions_are_tried_with_pauses(outcomes: dict[str, PastOutcome], tried: bool, fate: Fate) -> None:
    decided = plan(draining((a_pod("x"), 3), outcomes=outcomes), a_policy(), NOW)
    assert evicted(decided) == (["x"] if tried else [])
    assert fates(decided) == {"x": fate}
    (waits,) = decided.deferrals
    assert waits.code == ("eviction-blocked" if fate is Fate.BLOCKED else "pods-leaving")
    assert waits.retry_at > NOW


def test_a_refused_eviction_is_not_written_down_every_second() -> None:
    refused = after(Refused(reason="two budgets"), 1)
    (incident,) = plan(draining((a_pod("x"), 3), outcomes=refused), a_policy(), NOW).incidents
    again = draining((a_pod("x"), 3), incident=incident, outcomes=refused)
    actions = plan(again, a_policy(), NOW + timedelta(seconds=10)).actions
    assert not any(isinstance(action, SaveIncident) for action in actions)


def test_a_terminating_pod_is_waited_for_and_not_evicted_again() -> None:
    leaving = a_pod("x", deletion_timestamp=NOW + timedelta(seconds=20), finalizers=("keep",))
    decided = plan(draining((leaving, 3)), a_policy(), NOW)
    assert evicted(decided) == [] and fates(decided) == {"x": Fate.EVICTING}
    assert decided.incidents[0].phase is Phase.DRAINING


NOT_DONE: list[tuple[str, ClusterView, str]] = [
    ("pods not listed", a_view(replace(FAULTY, pods=None), incidents=[DRAINING]), "pods-unknown"),
    ("mapping unknown", a_view(reporting(FAULTY, mapping_known=False), incidents=[DRAINING]), "mapping-unknown"),
    ("a GPU pod on no known GPU", draining((a_pod("x"), None)), "mapping-incomplete"),
]


@pytest.mark.parametrize(("view", "code"), [row[1:] for row in NOT_DONE], ids=[row[0] for row in NOT_DONE])
def test_never_no_pods_found_so_done(view: ClusterView, code: str) -> None:
    decided = plan(view, a_policy(), NOW)
    assert evicted(decided) == [] and decided.incidents[0].phase is Phase.DRAINING
    assert [waits.code for waits in decided.deferrals] == [code]


def test_the_whole_node_needs_no_mapping() -> None:
    view = a_view(placed(reporting(FAULTY, mapping_known=False), (a_pod("x"), None)), incidents=[DRAINING])
    assert evicted(plan(view, a_policy(drain={"pods": "node"}), NOW)) == ["x"]


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([], id="nobody there"),
        pytest.param([(a_pod("sibling"), 4)], id="siblings only"),
        pytest.param([(a_pod("x", phase="Failed"), 3)], id="ended pods hold nothing"),
        pytest.param([(a_pod("x", is_daemonset=True), None)], id="DaemonSet pods never hold us up"),
        pytest.param([(a_pod("job", labels={keys.INCIDENT_LABEL: "x"}), 3)], id="our own Jobs are no tenants"),
    ],
)
def test_drained(pods: list[tuple[PodFacts, int | None]]) -> None:
    assert plan(draining(*pods), a_policy(), NOW).incidents[0].phase is Phase.REPAIRING


def test_held_pods_do_not_stop_the_draining_but_are_named() -> None:
    decided = plan(draining((a_pod("bare", **BARE), 3)), a_policy(repair=["ask-human"]), NOW)
    (incident,) = decided.incidents
    assert incident.phase is Phase.REPAIRING
    assert "left in place: team-a/bare" in incident.history[-1].sentence


EVICTED = PodRecord(
    namespace="team-a",
    name="web-1",
    uid="uid-web-1",
    fate=Fate.EVICTING,
    owner="ReplicaSet/web",
    owner_uid="uid-rs-web",
    evicted_at=ago(20),
)


def followed(*replacements: PodFacts, record: PodRecord = EVICTED, **changes: Any) -> PodRecord:
    incident = replace(DRAINING, phase=Phase.REPAIRING, pods=(record,))
    other = placed(a_node("n1"), *((pod, 0) for pod in replacements if pod.node == "n1"))
    view = a_view(tainted(with_fault(a_node())), other, incidents=[incident], **changes)
    view = replace(view, pods_by_owner={"uid-rs-web": replacements})
    return plan(view, a_policy(repair=["ask-human"]), NOW).incidents[0].pods[0]


def test_the_replacement_runs_on_a_healthy_gpu() -> None:
    record = followed(a_pod("web-2", "n1", created_at=ago(19)))
    assert (record.fate, record.replacement, record.replacement_node) == (Fate.REPLACED, "web-2", "n1")
    assert record.replaced_at == NOW


LATE = replace(EVICTED, evicted_at=ago(40))
NOT_REPLACED: list[tuple[str, list[PodFacts], PodRecord, Fate, str]] = [
    ("nothing yet", [], EVICTED, Fate.GONE, ""),
    ("nothing for long", [], LATE, Fate.UNPLACED, "its controller has started no replacement yet"),
    ("an older sibling is no replacement", [a_pod("web-0", "n1")], EVICTED, Fate.GONE, ""),
    (
        "no room",
        [a_pod("web-2", None, phase="Pending", ready=False, created_at=ago(30), message="0/6 nodes")],
        LATE,
        Fate.UNPLACED,
        "web-2: not placed: 0/6 nodes",
    ),
    (
        "not ready",
        [a_pod("web-2", "n1", ready=False, created_at=ago(30))],
        LATE,
        Fate.UNPLACED,
        "web-2: Running, not ready on n1",
    ),
    (
        "GPU not known",
        [a_pod("web-2", "n2", created_at=ago(30))],
        LATE,
        Fate.UNPLACED,
        "web-2: runs on n2, its GPU is not known yet",
    ),
    ("terminating", [a_pod("web-2", "n1", created_at=ago(30), deletion_timestamp=NOW)], EVICTED, Fate.GONE, ""),
    ("no controller", [], replace(EVICTED, owner_uid="", owner=""), Fate.NO_CONTROLLER, "gone; nobody starts it again"),
]


@pytest.mark.parametrize(
    ("pods", "record", "fate", "reason"), [row[1:] for row in NOT_REPLACED], ids=[row[0] for row in NOT_REPLACED]
)
def test_not_replaced_yet(pods: list[PodFacts], record: PodRecord, fate: Fate, reason: str) -> None:
    found = followed(*pods, record=record)
    assert (found.fate, found.reason) == (fate, reason)


def test_a_replacement_on_a_bad_gpu_does_not_count() -> None:
    pod = a_pod("web-2", "n2", created_at=ago(30))
    bad = placed(with_fault(a_node("n2"), 5, "xid-95"), (pod, 5))
    incident = replace(DRAINING, phase=Phase.REPAIRING, pods=(LATE,))
    view = a_view(FAULTY, bad, incidents=[incident], pods_by_owner={"uid-rs-web": (pod,)})
    (found,) = [i for i in plan(view, a_policy(repair=["ask-human"]), NOW).incidents if i.node == "n7"]
    assert found.pods[0].reason == "web-2: runs on n2 GPU 5, which is Unhealthy"
    assert report_of(bad).gpus[5].health is Health.UNHEALTHY


def test_one_replacement_counts_for_one_pod() -> None:
    records = (EVICTED, replace(EVICTED, name="web-9", uid="uid-web-9"))
    incident = replace(DRAINING, phase=Phase.REPAIRING, pods=records)
    pod = a_pod("web-2", "n1", created_at=ago(19))
    other = placed(a_node("n1"), (pod, 0))
    view = a_view(FAULTY, other, incidents=[incident], pods_by_owner={"uid-rs-web": (pod,)})
    (found,) = plan(view, a_policy(repair=["ask-human"]), NOW).incidents
    assert [record.fate for record in found.pods] == [Fate.REPLACED, Fate.GONE]


def test_a_statefulset_pod_of_the_same_name_is_the_replacement_and_not_the_victim() -> None:
    again = a_pod("web-1", "n1", uid="uid-web-1-new", created_at=ago(19))
    record = followed(again)
    assert (record.fate, record.replacement, record.replacement_uid) == (Fate.REPLACED, "web-1", "uid-web-1-new")


def test_records_of_pods_that_are_gone_make_room_for_those_that_must_leave() -> None:
    """Else the last pods of a crowded node could never be recorded, so never be evicted, and nobody would know why."""
    gone = [replace(EVICTED, name=f"old-{n}", uid=f"uid-old-{n}", fate=Fate.REPLACED) for n in range(MAX_PODS)]
    decided = plan(draining((a_pod("x"), 3), incident=replace(DRAINING, pods=tuple(gone))), a_policy(), NOW)
    assert evicted(decided) == ["x"]
    assert len(decided.incidents[0].pods) == MAX_PODS
    assert "old-0" not in fates(decided) and "old-1" in fates(decided)
    assert [waits.code for waits in decided.deferrals] == ["pods-leaving"]
