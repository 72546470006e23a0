"""The fake kubelets are API clients: what they write must suit a real API server too (`make demo CLUSTER=real`)."""

from collections.abc import Iterator

import pytest

from remediator.simulation.client import HttpClient
from remediator.simulation.kubelet import Kubelets
from remediator.simulation.kubelet_hooks import Timing
from remediator.simulation.registration import NodeSpec
from tests.contract.api.asking import Ask, Object, Server
from tests.contract.api.conftest import TOKEN
from tests.contract.api.test_evictions import evict, success
from tests.contract.api.world import NODES, PODS, World, a_pod, eventually

NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
TIMING = Timing(start_seconds=0.05, stop_seconds=0.05, reboot_seconds=0.2, heartbeat_seconds=1.0)


@pytest.fixture
def kubelets(server: Server, world: World) -> Iterator[Kubelets]:
    found = Kubelets(HttpClient(server.url, TOKEN, server.ca_file), timing=TIMING)
    found.start()
    world.forget_later(f"{NODES}/{world.name}")
    found.add_node(NodeSpec(name=world.name, devices={"nvidia.com/gpu": ("GPU-a", "GPU-b")}))
    yield found
    found.stop()
    server.ask(Ask(method="DELETE", path=f"{NODE_LEASES}/{world.name}"))


def run_a_pod(world: World, **spec: object) -> Object:
    """A bound pod with one GPU, once it runs."""
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    containers = [{"name": "main", "image": "pause:1", "resources": limits}]
    world.make(PODS, a_pod(world.name, nodeName=world.name, containers=containers, **spec))

    def running() -> Object | None:
        pod = world.server.get(f"{PODS}/{world.name}")
        return pod if pod["status"]["phase"] == "Running" else None

    return eventually("the pod runs", running)


def test_a_node_a_pod_and_its_eviction(world: World, server: Server, kubelets: Kubelets) -> None:
    node = server.get(f"{NODES}/{world.name}")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert server.get(f"{NODE_LEASES}/{world.name}")["spec"]["holderIdentity"] == world.name
    pod = run_a_pod(world)
    assert {c["type"]: c["status"] for c in pod["status"]["conditions"]}["Ready"] == "True"
    (container,) = pod["status"]["containerStatuses"]
    resources = [{"resourceID": "GPU-a", "health": "Healthy"}]
    assert container["allocatedResourcesStatus"] == [{"name": "nvidia.com/gpu", "resources": resources}]
    assert [holder.name for holder in kubelets.holders(world.name).values()] == [world.name]
    assert success(evict(server, world.name))

    def gone() -> bool:
        return server.ask(Ask(method="GET", path=f"{PODS}/{world.name}")).status == 404

    eventually("the kubelet has ended the pod", gone)
    eventually("the device is free", lambda: kubelets.holders(world.name) == {})


def test_a_reboot_shows_a_new_boot_id(world: World, server: Server, kubelets: Kubelets) -> None:
    run_a_pod(world)
    before = server.get(f"{NODES}/{world.name}")["status"]["nodeInfo"]["bootID"]
    kubelets.reboot(world.name)

    def rebooted() -> bool:
        return bool(server.get(f"{NODES}/{world.name}")["status"]["nodeInfo"]["bootID"] != before)

    eventually("the boot id has changed", rebooted)

    def refused() -> bool:
        return bool(server.get(f"{PODS}/{world.name}")["status"].get("reason") == "UnexpectedAdmissionError")

    eventually("the pod lost its device", refused)
