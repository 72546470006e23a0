"""The small adapters: fence, taint, Events, one eviction per budget, facts from what a server may leave out."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from exporter.health import keys
from remediator.adapters import wire
from remediator.adapters.api import KubeApi
from remediator.adapters.disruption import BudgetLocks
from remediator.adapters.errors import NotLeader
from remediator.adapters.facts import job_facts, node_facts, pod_facts
from remediator.adapters.fence import FencedTransport
from remediator.adapters.quarantine import METHODS
from remediator.adapters.quarantine.node_taint import NodeTaint
from remediator.adapters.recorder import Recorder, Told
from remediator.adapters.resources import NODES, Ref
from remediator.adapters.transport import Endpoint, HttpTransport
from remediator.domain.actions import LiftQuarantine, Quarantine
from remediator.domain.outcomes import Done, Outcome, Retry
from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster
from tests.fakes.world import eventually

FOREIGN = {"key": "team.example/keep", "value": "x", "effect": "NoExecute"}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        made.apply([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}])
        made.request("PATCH", "/api/v1/nodes/n1", {"spec": {"taints": [FOREIGN]}})
        yield made


@pytest.fixture
def api(cluster: EmbeddedCluster) -> KubeApi:
    return KubeApi(HttpTransport(Endpoint(url=cluster.url)))


def orders(api: KubeApi, *, cordon: bool = False) -> tuple[Quarantine, LiftQuarantine]:
    uid = api.get(Ref(NODES, "n1")).metadata.uid
    common: dict[str, Any] = {"incident": "i1", "method": "node-taint", "node": "n1", "node_uid": uid}
    return Quarantine(**common, taint_value="xid-79", cordon=cordon), LiftQuarantine(**common, uncordon=cordon)


def allowed(_: wire.NodeObject) -> Outcome | None:
    return None


def spec(cluster: EmbeddedCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.request("GET", "/api/v1/nodes/n1").body["spec"]
    return found


@pytest.mark.parametrize("cordon", [False, True], ids=["taint", "taint and cordon"])
def test_quarantine_adds_ours_and_undo_leaves_everything_else(
    cluster: EmbeddedCluster, api: KubeApi, cordon: bool
) -> None:
    before = spec(cluster)
    apply, undo = orders(api, cordon=cordon)
    method = NodeTaint(api)
    assert isinstance(method.apply(apply, allowed), Done)
    keys_on = [taint["key"] for taint in spec(cluster)["taints"]]
    assert keys_on[0] == FOREIGN["key"]
    assert keys.UNHEALTHY_TAINT in keys_on
    assert spec(cluster).get("unschedulable", False) is cordon
    assert method.apply(apply, allowed) == Done(note="was already there")
    assert isinstance(method.undo(undo), Done)
    assert spec(cluster) == before
    assert method.undo(undo) == Done(note="was already gone")


def test_a_conflict_reads_and_asks_again(cluster: EmbeddedCluster, api: KubeApi) -> None:
    apply, _ = orders(api)
    asked: list[str] = []

    def still_allowed(node: wire.NodeObject) -> Outcome | None:
        asked.append(node.metadata.resource_version)
        if len(asked) == 1:
            # Somebody else writes between our read and our write.
            cluster.request("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"a": "b"}}})
        return None

    assert isinstance(NodeTaint(api).apply(apply, still_allowed), Done)
    assert len(set(asked)) == 2


def test_another_machine_of_that_name_is_not_touched(cluster: EmbeddedCluster, api: KubeApi) -> None:
    apply, undo = orders(api)
    cluster.request("DELETE", "/api/v1/nodes/n1")
    cluster.apply([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}])
    before = cluster.request("GET", "/api/v1/nodes/n1").body["metadata"]["resourceVersion"]
    assert isinstance(NodeTaint(api).apply(apply, allowed), Retry)
    assert NodeTaint(api).undo(undo) == Done(note="the node was replaced")
    assert cluster.request("GET", "/api/v1/nodes/n1").body["metadata"]["resourceVersion"] == before


def test_methods_have_different_names(api: KubeApi) -> None:
    names = [method(api).name for method in METHODS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("lead_for", "sent"), [(11.0, True), (9.0, False), (float("-inf"), False)], ids=["long", "short", "not leader"]
)
def test_the_fence_lets_no_write_outlive_the_lease(cluster: EmbeddedCluster, lead_for: float, sent: bool) -> None:
    transport = FencedTransport(HttpTransport(Endpoint(url=cluster.url)), lambda: time.monotonic() + lead_for)
    api = KubeApi(transport, timeout=10)
    assert api.get(Ref(NODES, "n1")).metadata.name == "n1"
    if sent:
        api.merge_patch(Ref(NODES, "n1"), {"metadata": {"labels": {"a": "b"}}})
    else:
        with pytest.raises(NotLeader):
            api.merge_patch(Ref(NODES, "n1"), {"metadata": {"labels": {"a": "b"}}})
    assert ("labels" in cluster.request("GET", "/api/v1/nodes/n1").body["metadata"]) is sent


def test_repeated_events_are_one_event_with_a_count(cluster: EmbeddedCluster, api: KubeApi) -> None:
    results: list[str] = []
    recorder = Recorder(api, instance="a", on_result=results.append)
    recorder.start()
    told = Told(kind="Node", name="n1", uid="u", reason="FaultSeen", message="m", warning=True, dedupe="k")
    for _ in range(3):
        recorder.record(told)
    recorder.stop()
    [event] = cluster.request("GET", "/api/v1/namespaces/default/events").body["items"]
    assert (event["count"], event["type"], event["reason"]) == (3, "Warning", "FaultSeen")
    assert results == ["written"] * 3


def test_telling_never_blocks_however_slow_the_server(cluster: EmbeddedCluster) -> None:
    dropped: list[str] = []
    gate = threading.Event()

    def slow(call: Call) -> Reply | None:
        if call.path.endswith("/events"):
            gate.wait(5)
        return None

    cluster.intercept(slow)
    recorder = Recorder(KubeApi(HttpTransport(Endpoint(url=cluster.url))), instance="a", on_result=dropped.append)
    recorder.start()
    began = time.monotonic()
    for number in range(1500):
        recorder.record(Told(kind="Node", name="n1", uid="u", reason="R", message=str(number)))
    assert time.monotonic() - began < 1
    assert dropped.count("dropped") >= 400
    cluster.intercept(None)
    gate.set()
    eventually(lambda: "written" in dropped)


def test_one_eviction_at_a_time_per_budget_and_others_pass(cluster: EmbeddedCluster, api: KubeApi) -> None:
    for name in ("a", "b"):
        selector = {"matchLabels": {"app": name}}
        cluster.apply(
            [
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"selector": selector, "minAvailable": 1},
                }
            ]
        )
    locks = BudgetLocks(api)
    assert locks.covering("default", {"app": "a"}) == ("default/a",)
    assert locks.covering("default", {"app": "c"}) == ()
    running = {"a": 0, "b": 0, "c": 0}
    worst = dict(running)
    lock = threading.Lock()

    def evict(name: str) -> None:
        with locks.turn(locks.covering("default", {"app": name}), wait=5) as ours:
            assert ours
            with lock:
                running[name] += 1
                worst[name] = max(worst[name], running[name])
            time.sleep(0.01)
            with lock:
                running[name] -= 1

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(evict, "abc" * 12))
    assert worst["a"] == worst["b"] == 1
    assert worst["c"] > 1, "pods without a budget wait for nobody"
    with locks.turn(("default/a",), wait=1), locks.turn(("default/a",), wait=0.01) as second:
        assert not second


def test_what_a_server_leaves_out_or_writes_as_null_is_not_known() -> None:
    node = node_facts(wire.decode(b'{"metadata":{"name":"n","creationTimestamp":null}}', wire.NodeObject))
    assert (node.ready, node.gpu_allocatable, node.gpu_healthy) == (None, 0, None)
    pod = pod_facts(wire.decode(b'{"metadata":{"name":"p"},"status":{"startTime":null}}', wire.PodObject))
    assert (pod.phase, pod.ready, pod.node, pod.owner_uid) == ("Pending", False, None, None)
    job = job_facts(wire.decode(b'{"metadata":{"name":"j"},"status":{"completionTime":null}}', wire.JobObject))
    assert (job.succeeded, job.failed, job.finished_at) == (False, False, None)


def test_gpus_of_a_pod_count_init_containers_by_their_maximum() -> None:
    raw = b"""{"metadata":{"name":"p"},"spec":{
      "containers":[{"resources":{"limits":{"nvidia.com/gpu":"1","cpu":2}}},
                    {"resources":{"requests":{"nvidia.com/mig-1g.10gb":"1"}}}],
      "initContainers":[{"resources":{"limits":{"nvidia.com/gpu":"4"}}}]}}"""
    assert pod_facts(wire.decode(raw, wire.PodObject)).gpus == 4


@pytest.mark.parametrize(("read_only", "local"), [(True, False), (False, True)], ids=["read-only", "writable"])
def test_only_a_writable_host_path_is_local_storage(read_only: bool, local: bool) -> None:
    body = {
        "metadata": {"name": "p"},
        "spec": {
            "volumes": [{"name": "v", "hostPath": {"path": "/data"}}, {"name": "e", "emptyDir": {}}],
            "containers": [{"volumeMounts": [{"name": "v", "readOnly": read_only}, {"name": "e"}]}],
        },
    }
    assert pod_facts(wire.decode(wire.encode(body), wire.PodObject)).has_local_storage is local
