"""Where pods land and what is said when they do not: the scheduler of either cluster, without kubelets."""

import pytest

from tests.contract.api.asking import Ask, Object, Server
from tests.contract.api.world import NODES, PODS, READY, World, a_pod, eventually

NO_HELP = "no new claims to deallocate, preemption: 0/{n} nodes are available: {n} Preemption is not helpful for "


def waiting_for(world: World, **spec: object) -> str:
    """The scheduler's words about a pod that fits nowhere."""
    world.make(PODS, a_pod(world.name, **spec))

    def refused() -> Object | None:
        conditions = world.server.get(f"{PODS}/{world.name}")["status"].get("conditions") or []
        return next((c for c in conditions if c["type"] == "PodScheduled"), None)

    condition = eventually("the scheduler has spoken", refused)
    assert (condition["status"], condition["reason"], condition["observedGeneration"]) == ("False", "Unschedulable", 1)
    message = condition["message"]
    assert isinstance(message, str)
    return message


@pytest.fixture
def only_node(world: World, server: Server) -> Object:
    """A node with two GPUs, the only one in the cluster: the scheduler's words count all nodes."""
    eventually("no other test has nodes here", lambda: not server.get(NODES)["items"])
    room = {"cpu": "4", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "2"}
    return world.node(capacity=room, allocatable=room, conditions=[READY])


def gpus(count: int) -> list[Object]:
    return [{"name": "main", "image": "pause:1", "resources": {"limits": {"nvidia.com/gpu": str(count)}}}]


@pytest.mark.parametrize(
    ("change", "spec", "reason"),
    [
        pytest.param({}, {"containers": gpus(4)}, "1 Insufficient nvidia.com/gpu", id="too few GPUs"),
        pytest.param(
            {"taints": [{"key": "gpuward.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}]},
            {},
            "1 node(s) had untolerated taint(s)",
            id="taint",
        ),
        pytest.param({"unschedulable": True}, {}, "1 node(s) were unschedulable", id="cordon"),
        pytest.param(
            {}, {"nodeSelector": {"a": "b"}}, "1 node(s) didn't match Pod's node affinity/selector", id="selector"
        ),
    ],
)
@pytest.mark.usefixtures("only_node")
def test_why_a_pod_waits(change: Object, spec: Object, reason: str, world: World, server: Server) -> None:
    server.merge(f"{NODES}/{world.name}", {"spec": change})
    message = waiting_for(world, **spec)
    assert message == f"0/1 nodes are available: {reason}. {NO_HELP.format(n=1)}scheduling."


@pytest.mark.usefixtures("only_node")
def test_a_pod_with_a_toleration_is_bound_to_a_tainted_node(world: World, server: Server) -> None:
    taint = {"key": "gpuward.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
    server.merge(f"{NODES}/{world.name}", {"spec": {"taints": [taint]}})
    tolerations = [{"key": "gpuward.io/unhealthy", "operator": "Exists"}]
    world.make(PODS, a_pod(world.name, tolerations=tolerations, containers=gpus(1)))

    def bound() -> Object | None:
        pod = server.get(f"{PODS}/{world.name}")
        return pod if pod["spec"].get("nodeName") else None

    pod = eventually("the pod is bound", bound)
    assert pod["spec"]["nodeName"] == world.name
    assert [(c["type"], c["status"]) for c in pod["status"]["conditions"]] == [("PodScheduled", "True")]


@pytest.mark.usefixtures("only_node")
def test_a_waiting_pod_takes_the_place_of_one_that_goes(world: World, server: Server) -> None:
    first = a_pod(f"{world.name}-a", containers=gpus(2), nodeName=world.name)
    world.make(PODS, first, {"phase": "Running"})
    message = waiting_for(world, containers=gpus(1))
    assert message.startswith("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    server.must("DELETE", f"{PODS}/{world.name}-a", {"gracePeriodSeconds": 0})

    def bound() -> bool:
        return bool(server.get(f"{PODS}/{world.name}")["spec"].get("nodeName") == world.name)

    eventually("the waiting pod is bound", bound)


@pytest.mark.usefixtures("only_node")
def test_the_more_urgent_pod_goes_first(world: World, server: Server) -> None:
    server.merge(f"{NODES}/{world.name}", {"spec": {"unschedulable": True}})
    world.make(PODS, a_pod(f"{world.name}-low", containers=gpus(2)))
    urgent = a_pod(f"{world.name}-high", containers=gpus(2), priorityClassName="system-cluster-critical")
    world.make(PODS, urgent)

    def both_wait() -> bool:
        pods = [server.get(f"{PODS}/{world.name}-{name}") for name in ("low", "high")]
        return all(pod["status"].get("conditions") for pod in pods)

    eventually("both wait", both_wait)
    server.merge(f"{NODES}/{world.name}", {"spec": {"unschedulable": None}})

    def bound() -> bool:
        return bool(server.get(f"{PODS}/{world.name}-high")["spec"].get("nodeName") == world.name)

    eventually("the urgent pod is bound", bound)
    assert "nodeName" not in server.get(f"{PODS}/{world.name}-low")["spec"]


@pytest.mark.usefixtures("only_node")
def test_a_binding_is_final(world: World, server: Server) -> None:
    world.make(PODS, a_pod(world.name, schedulerName="nobody"))
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": world.name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": world.name},
    }
    path = f"{PODS}/{world.name}/binding"
    assert server.ask(Ask(method="POST", path=path, body=body)).status == 201
    again = server.ask(Ask(method="POST", path=path, body=body))
    assert again.status == 409
    told = f'pod {world.name} is already assigned to node "{world.name}"'
    assert again.body["message"] == f'Operation cannot be fulfilled on pods/binding "{world.name}": {told}'
