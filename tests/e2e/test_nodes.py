"""The rig itself: two real nodes with devices, on which everything that the product relies on really happens."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import cgroups
from tests.rig.api import Object
from tests.rig.nodes import Cluster
from tests.rig.pod_resources import devices
from tests.rig.waiting import eventually
from tests.rig.workloads import container, deployment, name_of, on, pods, running, uid_of

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
NAMESPACE = "rig-nodes"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


@pytest.fixture
def namespace(two_nodes: Cluster) -> Iterator[str]:
    """A namespace whose deployments and pods are gone at the end."""
    api = two_nodes.plane.api
    two_nodes.plane.ensure(f"/api/v1/namespaces/{NAMESPACE}", "/api/v1/namespaces", NAMESPACE)
    yield NAMESPACE
    for collection in (
        DEPLOYMENTS,
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
        f"/api/v1/namespaces/{NAMESPACE}/pods",
    ):
        api.delete(collection, {"propagationPolicy": "Background"})
    eventually("no pod is left", lambda: not api.list(f"/api/v1/namespaces/{NAMESPACE}/pods"), 60.0)


def run_trainers(cluster: Cluster, replicas: int) -> list[Object]:
    cluster.plane.api.create(DEPLOYMENTS, deployment("trainer", replicas))

    def all_running() -> list[Object]:
        found = running(pods(cluster.plane.api, NAMESPACE, "trainer"))
        return found if len(found) == replicas else []

    return eventually(f"{replicas} trainers run", all_running, 60.0)


def test_pods_get_devices_on_both_nodes(two_nodes: Cluster, namespace: str) -> None:
    trainers = run_trainers(two_nodes, 4)
    for node in two_nodes.nodes:
        here = on(trainers, node.name)
        assert len(here) == 2
        held = devices(node.pod_resources_socket)
        ids = [held[f"{namespace}/{name_of(pod)}"] for pod in here]
        assert all(len(each) == 1 and each[0] in node.gpus for each in ids)
        assert ids[0] != ids[1]


def test_an_eviction_moves_a_pod(two_nodes: Cluster, namespace: str) -> None:
    trainers = run_trainers(two_nodes, 2)
    victim, node = trainers[0], trainers[0]["spec"]["nodeName"]
    two_nodes.plane.kubectl("cordon", node)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name_of(victim)}}
    two_nodes.plane.api.create(f"/api/v1/namespaces/{namespace}/pods/{name_of(victim)}/eviction", eviction)

    def moved() -> bool:
        found = pods(two_nodes.plane.api, namespace, "trainer")
        gone = uid_of(victim) not in {uid_of(pod) for pod in found}
        return gone and len(running(found)) == 2 and not on(running(found), node)

    eventually("the replacement runs on the other node", moved, 60.0)
    two_nodes.plane.kubectl("uncordon", node)


def test_a_device_called_unhealthy_is_offered_no_more(two_nodes: Cluster) -> None:
    node = two_nodes.nodes[0]

    def allocatable() -> str:
        found = node.read()
        assert found is not None
        return str(found["status"]["allocatable"]["nvidia.com/gpu"])

    node.mark_unhealthy(node.gpus[0])
    eventually("three devices are offered", lambda: allocatable() == "3", 30.0)
    node.mark_unhealthy()
    eventually("four devices are offered", lambda: allocatable() == "4", 30.0)


def test_devices_come_back_after_a_kubelet_restart(two_nodes: Cluster, namespace: str) -> None:
    node = two_nodes.nodes[0]
    trainers = run_trainers(two_nodes, 2)
    before = devices(node.pod_resources_socket)
    node.stop("kubelet")
    node.start("kubelet")
    eventually("the kubelet names the same devices", lambda: devices(node.pod_resources_socket) == before, 60.0)
    eventually("the node offers its devices", node.ready, 60.0)
    assert {uid_of(pod) for pod in running(pods(two_nodes.plane.api, namespace, "trainer"))} == {
        uid_of(p) for p in trainers
    }


@pytest.mark.parametrize(("status", "condition"), [("0", "Complete"), ("3", "Failed")])
def test_jobs_end_as_they_are_told(two_nodes: Cluster, namespace: str, status: str, condition: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    pod = {"restartPolicy": "Never", "containers": [container(gpus=0, PAUSE_SLEEP="100ms", PAUSE_EXIT=status)]}
    name = f"exit-{status}"
    two_nodes.plane.api.create(
        jobs, {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}
    )

    def conditions() -> set[str]:
        found = two_nodes.plane.api.get(f"{jobs}/{name}")["status"].get("conditions", [])
        return {each["type"] for each in found if each["status"] == "True"}

    eventually(f"the Job is {condition}", lambda: condition in conditions(), 60.0)


def test_a_reboot_shows_a_new_boot_id(two_nodes: Cluster, namespace: str) -> None:
    node = two_nodes.nodes[1]
    (before_reboot,) = containers(on(run_trainers(two_nodes, 2), node.name))
    before = node.boot_id
    assert node.reboot() != before
    eventually("the node is back with a new boot id and its devices", node.ready, 90.0)
    found = node.read()
    assert found is not None and found["status"]["nodeInfo"]["bootID"] == node.boot_id
    events = two_nodes.plane.api.list("/api/v1/namespaces/default/events?fieldSelector=reason%3DRebooted")
    assert node.name in {event["involvedObject"]["name"] for event in events}

    def restarted() -> bool:
        now = containers(running(pods(two_nodes.plane.api, namespace, "trainer")))
        return len(now) == 2 and before_reboot not in now

    eventually("two trainers run, none in the container from before the reboot", restarted, 90.0)


def containers(found: list[Object]) -> list[str]:
    return [pod["status"]["containerStatuses"][0]["containerID"] for pod in found]


CRASHING = """
import os, sys
from tests.rig import nodes, workfolder
from tests.rig.control_plane import ControlPlane
from tests.rig.node import Node
with workfolder.work_folder("crash") as folder, ControlPlane(controllers="none", scheduler=False) as plane:
    node = Node(plane, "crash", folder / "crash", ("h100", 1))
    node.boot()
    print(folder, node._group, flush=True)
    sys.stdin.read()
"""


def test_a_killed_owner_leaves_no_process_and_no_mount(two_nodes: Cluster) -> None:
    # The fixture says that nodes can run here, and holds the lock of the rig.
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        folder, group = child.stdout.readline().split()
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    eventually("no process mentions the folder", lambda: not processes_naming(folder), 20.0)
    assert folder not in Path("/proc/mounts").read_text()
    cgroups.remove(group)
    assert not [hierarchy for hierarchy in cgroups.hierarchies() if (hierarchy / group).exists()]
    shutil.rmtree(folder)


def processes_naming(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found
