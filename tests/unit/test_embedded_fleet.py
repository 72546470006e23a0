"""Scheduler, controllers and kubelets of the embedded cluster, together and over HTTP."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster, Fleet
from remediator.simulation.controllers import Pace
from remediator.simulation.kubelet_hooks import Run, Timing
from remediator.simulation.node_devices import Holder
from remediator.simulation.registration import NodeSpec
from tests.contract.api.world import eventually

FAST = Timing(start_seconds=0.02, stop_seconds=0.02, reboot_seconds=0.1, heartbeat_seconds=0.2)
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
Object = dict[str, Any]


class World:
    """Hooks that remember; `runs` says how pods end, by name prefix."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.devices: dict[str, dict[str, Holder]] = {}
        self.ran: list[tuple[str, str, tuple[str, ...]]] = []

    def on_devices_changed(self, node: str, holders: Mapping[str, Holder]) -> None:
        self.devices[node] = dict(holders)

    def run_pod(self, node: str, pod: Object, devices: tuple[str, ...]) -> Run | None:
        name = pod["metadata"]["name"]
        self.ran.append((node, name, devices))
        return next((run for prefix, run in self.runs.items() if name.startswith(prefix)), None)


@pytest.fixture
def hooks() -> World:
    return World()


@pytest.fixture
def cluster(hooks: World) -> Iterator[EmbeddedCluster]:
    pace = Pace(job_backoff_seconds=0.05, node_grace_seconds=0.6)
    before = set(threading.enumerate())
    with EmbeddedCluster(fleet=Fleet(hooks=hooks, timing=FAST, pace=pace)) as found:
        yield found
    assert set(threading.enumerate()) == before


def get(cluster: EmbeddedCluster, path: str) -> Object:
    body: Object = cluster.request("GET", path).body
    return body


def pods(cluster: EmbeddedCluster, phase: str = "") -> list[Object]:
    items: list[Object] = get(cluster, PODS)["items"]
    return [pod for pod in items if not phase or pod["status"]["phase"] == phase]


def a_template(name: str, gpus: int = 1, **spec: Any) -> Object:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    containers = [{"name": "main", "image": "pause:1", **limits}]
    return {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers, **spec}}


def deploy(cluster: EmbeddedCluster, replicas: int, kind: str = "Deployment", **spec: Any) -> None:
    selector = {"matchLabels": {"app": "d"}}
    body = {"replicas": replicas, "selector": selector, "template": a_template("d", **spec)}
    cluster.apply([{"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "d"}, "spec": body}])


def a_job(cluster: EmbeddedCluster, name: str, **spec: Any) -> None:
    template = a_template(name, gpus=0, restartPolicy="Never")
    body = {"template": template, **spec}
    cluster.apply([{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}])


def ended(cluster: EmbeddedCluster, name: str) -> Object:
    def look() -> Object | None:
        status = get(cluster, f"{JOBS}/{name}").get("status") or {}
        return status if status.get("conditions") else None

    return eventually(f"Job {name} has ended", look)


def running(cluster: EmbeddedCluster, count: int) -> list[Object]:
    def look() -> list[Object] | None:
        found = [pod for pod in pods(cluster, "Running") if "deletionTimestamp" not in pod["metadata"]]
        return found if len(found) == count else None

    return eventually(f"{count} pods run", look)


def device_of(pod: Object) -> str:
    (status,) = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    device: str = status["resources"][0]["resourceID"]
    return device


def test_a_node_is_ready_with_its_devices_lease_and_boot_id(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["GPU-a", "GPU-b"], labels={"pool": "x"})
    node = get(cluster, "/api/v1/nodes/n1")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2" and node["metadata"]["labels"]["pool"] == "x"
    assert node["status"]["nodeInfo"]["bootID"] == cluster.kubelets.boot_id("n1")

    def untainted() -> bool:
        return "taints" not in get(cluster, "/api/v1/nodes/n1")["spec"]

    eventually("the not-ready taint is lifted", untainted)
    lease = get(cluster, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1")
    assert lease["spec"]["holderIdentity"] == "n1"


def test_a_deployment_spreads_and_every_pod_has_a_device_of_its_own(cluster: EmbeddedCluster, hooks: World) -> None:
    for name in ("n1", "n2"):
        cluster.add_node(name, [f"{name}-a", f"{name}-b"])
    deploy(cluster, 4)
    found = running(cluster, 4)
    assert sorted(device_of(pod) for pod in found) == ["n1-a", "n1-b", "n2-a", "n2-b"]
    holder = hooks.devices["n1"]["n1-a"]
    assert (holder.namespace, holder.container, holder.resource) == ("default", "main", "nvidia.com/gpu")

    def told() -> bool:
        status = get(cluster, "/apis/apps/v1/namespaces/default/deployments/d")["status"]
        return (status.get("replicas"), status.get("availableReplicas")) == (4, 4)

    eventually("the Deployment says so", told)


def test_an_evicted_pod_is_replaced_elsewhere_and_its_device_is_free(cluster: EmbeddedCluster, hooks: World) -> None:
    cluster.add_node("n1", ["n1-a"])
    deploy(cluster, 1)
    (pod,) = running(cluster, 1)
    cluster.add_node("n2", ["n2-a"])
    taint = {"key": "gpuward.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
    cluster.request("PATCH", "/api/v1/nodes/n1", {"spec": {"taints": [taint]}})
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    assert cluster.request("POST", f"{PODS}/{name}/eviction", body).code == 201

    def moved() -> bool:
        found = pods(cluster)
        return [p["spec"].get("nodeName") for p in found] == ["n2"] and found[0]["status"]["phase"] == "Running"

    eventually("its replacement runs on n2", moved)
    assert hooks.devices["n1"] == {}


def test_scaling_down_and_deleting_takes_the_pods_along(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a", "b", "c"])
    deploy(cluster, 3)
    running(cluster, 3)
    path = "/apis/apps/v1/namespaces/default/deployments/d"
    cluster.request("PATCH", path, {"spec": {"replicas": 1}})
    eventually("one pod is left", lambda: len(pods(cluster)) == 1)
    cluster.request("DELETE", path)
    eventually("no pod is left", lambda: not pods(cluster))
    assert cluster.kubelets.holders("n1") == {}


def test_a_changed_template_replaces_the_pods(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a", "b"])
    deploy(cluster, 1)
    (old,) = running(cluster, 1)
    deploy(cluster, 1, terminationGracePeriodSeconds=1)

    def replaced() -> bool:
        found = pods(cluster)
        return len(found) == 1 and found[0]["metadata"]["name"] != old["metadata"]["name"]

    eventually("the old pod is gone", replaced)


def test_a_stateful_set_makes_its_pods_in_order(cluster: EmbeddedCluster, hooks: World) -> None:
    cluster.add_node("n1", ["a", "b", "c"])
    deploy(cluster, 3, kind="StatefulSet")
    running(cluster, 3)
    assert [name for _, name, _ in hooks.ran] == ["d-0", "d-1", "d-2"]
    cluster.request("DELETE", f"{PODS}/d-1")

    def back() -> bool:
        found = get(cluster, f"{PODS}/d-1")
        return found.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in found["metadata"]

    eventually("d-1 is back under its name", back)


def test_a_job_completes(cluster: EmbeddedCluster, hooks: World) -> None:
    cluster.add_node("n1")
    hooks.runs["j"] = Run(exit_code=0, seconds=0.01)
    a_job(cluster, "j", completions=3, parallelism=2)
    status = ended(cluster, "j")
    assert [c["type"] for c in status["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert status["succeeded"] == 3 and len(hooks.ran) == 3


def test_a_job_fails_after_its_backoff_limit(cluster: EmbeddedCluster, hooks: World) -> None:
    cluster.add_node("n1")
    hooks.runs["j"] = Run(exit_code=3, seconds=0.01)
    a_job(cluster, "j", backoffLimit=1)
    status = ended(cluster, "j")
    assert (status["conditions"][-1]["type"], status["conditions"][-1]["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert status["failed"] == 2
    (state, *_) = [pod["status"]["containerStatuses"][0]["state"] for pod in pods(cluster, "Failed")]
    assert state["terminated"]["exitCode"] == 3


def test_a_job_that_takes_too_long_fails(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    a_job(cluster, "j", activeDeadlineSeconds=1)
    assert ended(cluster, "j")["conditions"][-1]["reason"] == "DeadlineExceeded"
    eventually("its pod is gone", lambda: not pods(cluster))


def test_a_finished_job_goes_after_its_time(cluster: EmbeddedCluster, hooks: World) -> None:
    cluster.add_node("n1")
    hooks.runs["j"] = Run(seconds=0.01)
    a_job(cluster, "j", ttlSecondsAfterFinished=0)
    eventually("the Job is gone", lambda: cluster.request("GET", f"{JOBS}/j").code == 404)
    eventually("its pod is gone", lambda: not pods(cluster))


def test_a_budget_in_percent_follows_the_wished_replicas(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a", "b", "c"])
    deploy(cluster, 4)
    running(cluster, 3)
    selector = {"matchLabels": {"app": "d"}}
    spec = {"maxUnavailable": "50%", "selector": selector}
    cluster.apply([{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}])

    def told() -> bool:
        status = get(cluster, "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b")["status"]
        keys = ("expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed")
        return [status.get(key) for key in keys] == [4, 2, 3, 1]

    eventually("four wished, two needed, three healthy, one may go", told)


def bound_pod(cluster: EmbeddedCluster, name: str, gpus: int = 1, **spec: Any) -> None:
    template = a_template(name, gpus=gpus, nodeName="n1", **spec)
    cluster.apply([{"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": name}}])


def test_a_pod_bound_past_the_scheduler_is_refused_when_no_device_is_free(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a"])
    bound_pod(cluster, "first")
    running(cluster, 1)
    bound_pod(cluster, "second")
    (failed,) = eventually("the second pod is refused", lambda: pods(cluster, "Failed"))
    assert failed["status"]["reason"] == "UnexpectedAdmissionError"
    assert failed["status"]["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 1, Available: 0, which is unexpected"
    )


def test_what_the_scheduler_does_not_do_it_says(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a"])
    bound_pod(cluster, "first")
    running(cluster, 1)
    urgent = a_template("urgent", priorityClassName="system-cluster-critical")
    rule = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    apart = a_template("apart", gpus=0, affinity=affinity)
    for name, template in (("urgent", urgent), ("apart", apart)):
        cluster.apply([{"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": name}}])

    def words(name: str) -> str:
        conditions = get(cluster, f"{PODS}/{name}")["status"].get("conditions") or [{}]
        return str(conditions[0].get("message", ""))

    eventually("preemption", lambda: "embedded scheduler: preemption is not implemented" in words("urgent"))
    eventually("affinity", lambda: words("apart") == "embedded scheduler: podAntiAffinity is not implemented")


def test_a_force_deleted_pod_loses_its_device_at_once(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a"])
    bound_pod(cluster, "first")
    running(cluster, 1)
    cluster.request("DELETE", f"{PODS}/first", {"gracePeriodSeconds": 0})
    eventually("the device is free", lambda: cluster.kubelets.holders("n1") == {})


def test_an_unhealthy_device_is_not_given_out_and_shows_in_the_pod(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a", "b"])
    bound_pod(cluster, "first")
    running(cluster, 1)
    cluster.kubelets.set_device_health("n1", "a", healthy=False)
    status = get(cluster, f"{PODS}/first")["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    assert status == [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "a", "health": "Unhealthy"}]}]
    node = get(cluster, "/api/v1/nodes/n1")["status"]
    assert (node["capacity"]["nvidia.com/gpu"], node["allocatable"]["nvidia.com/gpu"]) == ("2", "1")
    bound_pod(cluster, "second")
    assert sorted(device_of(pod) for pod in running(cluster, 2)) == ["a", "b"]


@pytest.mark.parametrize("plugin_late", [True, False], ids=["plugin late", "plugin in time"])
def test_a_reboot(plugin_late: bool, cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a"])
    bound_pod(cluster, "gpu")
    bound_pod(cluster, "cpu", gpus=0)
    bound_pod(cluster, "once", gpus=0, restartPolicy="Never")
    running(cluster, 3)
    before = cluster.kubelets.boot_id("n1")
    cluster.kubelets.reboot("n1", plugin_late=plugin_late)

    def rebooted() -> bool:
        return bool(get(cluster, "/api/v1/nodes/n1")["status"]["nodeInfo"]["bootID"] not in (before, ""))

    eventually("the node shows a new boot id", rebooted)

    def settled() -> bool:
        phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods(cluster)}
        return phases == {"gpu": "Failed" if plugin_late else "Running", "cpu": "Running", "once": "Failed"}

    eventually("the pods have met their fate", settled)
    assert get(cluster, f"{PODS}/cpu")["status"]["containerStatuses"][0]["restartCount"] == 1
    if plugin_late:
        assert get(cluster, f"{PODS}/gpu")["status"]["reason"] == "UnexpectedAdmissionError"


def test_a_silent_node_becomes_unknown_and_loses_its_pods(cluster: EmbeddedCluster) -> None:
    cluster.kubelets.add_node(NodeSpec(name="n1", devices={"nvidia.com/gpu": ("a",)}))
    hasty = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 0}]
    bound_pod(cluster, "hasty", tolerations=hasty)
    running(cluster, 1)
    cluster.kubelets.silence("n1")

    def unknown() -> bool:
        conditions = {c["type"]: c["status"] for c in get(cluster, "/api/v1/nodes/n1")["status"]["conditions"]}
        return bool(conditions["Ready"] == "Unknown")

    eventually("Ready is Unknown", unknown)
    eventually("the pod is told to go", lambda: "deletionTimestamp" in get(cluster, f"{PODS}/hasty")["metadata"])
    taints = get(cluster, "/api/v1/nodes/n1")["spec"]["taints"]
    assert {(t["key"], t["effect"]) for t in taints} == {
        ("node.kubernetes.io/unreachable", "NoSchedule"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
    }
    cluster.kubelets.silence("n1", up=True)
    eventually("the pod is gone", lambda: not pods(cluster))
    eventually("the taints are lifted", lambda: "taints" not in get(cluster, "/api/v1/nodes/n1")["spec"])


def test_kubelets_survive_an_expired_watch(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1", ["a"])
    cluster.expire_history()
    bound_pod(cluster, "first")
    running(cluster, 1)


@pytest.mark.parametrize("code", [409, 500])
def test_a_pod_starts_though_the_server_refuses_its_first_news(cluster: EmbeddedCluster, code: int) -> None:
    cluster.add_node("n1", ["a"])
    refusals = [Reply(code=code, body={"kind": "Status", "code": code, "message": "not now"}) for _ in range(3)]

    def unwilling(call: Call) -> Reply | None:
        return refusals.pop() if refusals and call.path.endswith("/status") and "/pods/" in call.path else None

    cluster.intercept(unwilling)
    bound_pod(cluster, "first")
    running(cluster, 1)
    assert not refusals
