"""The whole loop on two real nodes: a fault becomes a quarantine, a moved pod, a repair, a validation, a return.

Nothing here is a stand-in but the silicon: the API server, the scheduler, the kubelets and the pods are real, exporters
and remediator are processes with the shipped rights. Proof is what the API server stores and what its audit log says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from exporter.health import keys
from exporter.simulation import state
from tests.rig.api import Object
from tests.rig.audit import Write
from tests.rig.crash_proxy import CrashProxy, StoredWrite
from tests.rig.image import NAME as IMAGE
from tests.rig.node import Node
from tests.rig.pod_resources import devices
from tests.rig.stage import INCIDENTS, NODES, Remediator, Stage
from tests.rig.waiting import eventually
from tests.rig.workloads import Pods, deployment, name_of, on, pods, running, uid_of

pytestmark = [pytest.mark.timeout(400), pytest.mark.prometheus]

NAMESPACE = "training"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
REPLICAS = 4
CHECK_CONTAINER = {"name": "check", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/true"]}
CHECK = {"restartPolicy": "Never", "containers": [CHECK_CONTAINER]}
POLICY: dict[str, object] = {
    "budget": {"nodes": 1},
    "rules": [
        {
            "name": "certain",
            "mode": "enforce",
            "faults": ["xid-79"],
            "playbook": {
                "repair": ["ask-human"],
                "validate": {"job": {"spec": {"backoffLimit": 0, "template": {"spec": CHECK}}}},
                "probationSeconds": 1,
            },
        }
    ],
}


@dataclass
class Training:
    """A Deployment of one-GPU pods, as it was before the fault."""

    stage: Stage
    before: Pods

    def now(self) -> Pods:
        return running(pods(self.stage.api, NAMESPACE, "trainer"))

    def victim(self, node: Node) -> tuple[Object, str]:
        """Return one pod on the node and the GPU that the kubelet gave it."""
        pod = on(self.before, node.name)[0]
        (gpu,) = devices(node.pod_resources_socket)[f"{NAMESPACE}/{name_of(pod)}"]
        return pod, gpu

    def moved(self, victim: Object) -> Object | None:
        """Return the pod that runs in the victim's place, None while all are not running again."""
        known = {uid_of(pod) for pod in self.before}
        fresh = [pod for pod in self.now() if uid_of(pod) not in known]
        kept = known - {uid_of(victim)}
        complete = {uid_of(pod) for pod in self.now()} >= kept and len(self.now()) == REPLICAS
        return fresh[0] if len(fresh) == 1 and complete else None


@pytest.fixture
def training(stage: Stage) -> Iterator[Training]:
    """Four trainers, two per node; at the end nodes, incidents and the leader's Lease are as new."""
    stage.cluster.plane.ensure(f"/api/v1/namespaces/{NAMESPACE}", "/api/v1/namespaces", NAMESPACE)
    stage.api.create(DEPLOYMENT, deployment("trainer", REPLICAS))
    eventually("all trainers run", lambda: len(running(pods(stage.api, NAMESPACE, "trainer"))) == REPLICAS, 60.0)
    yield Training(stage, running(pods(stage.api, NAMESPACE, "trainer")))
    stage.api.delete(f"{DEPLOYMENT}/trainer", {"propagationPolicy": "Background"})
    stage.clear()
    eventually("the trainers are gone", lambda: not pods(stage.api, NAMESPACE, "trainer"), 60.0)


def strike(node: Node, gpu: str) -> None:
    state.inject(node.silicon, node.gpus.index(gpu), "xid:79")


def await_phase(stage: Stage, node: Node, phase: str, seconds: float = 60.0) -> None:
    eventually(f"the incident is {phase}: {stage.incidents(node)}", lambda: stage.phase(node) == phase, seconds)


def closed(stage: Stage, node: Node) -> bool:
    return bool(stage.incidents(node)[0]["status"].get("closedAt"))


def end_state(stage: Stage, node: Node) -> dict[str, Any]:
    """What is left of a story, without names and times; the same whether the remediator was killed or not."""
    (incident,) = stage.incidents(node)
    status = incident["status"]
    return {
        "fault": incident["spec"]["fault"],
        "phase": status["phase"],
        "fates": [pod["fate"] for pod in status["pods"]],
        "taint": stage.taint(node),
        "evicted": len(evictions(stage)),
        "jobs": len(accepted(stage, "create", "jobs")),
    }


HEALED = {"fault": "xid-79", "phase": "Resolved", "fates": ["Replaced"], "taint": None, "evicted": 1, "jobs": 1}


def evictions(stage: Stage) -> list[str]:
    """Return the pods whose eviction by us was accepted, by the audit log."""
    return [write.name for write in accepted(stage, "create", "pods/eviction")]


def accepted(stage: Stage, verb: str, resource: str) -> list[Write]:
    writes = stage.cluster.audit.writes("remediator", stage.audit_mark)
    return [write for write in writes if (write.verb, write.resource) == (verb, resource) and write.status < 300]


def test_a_fault_heals(stage: Stage, training: Training) -> None:
    node, other = stage.cluster.nodes
    victim, gpu = training.victim(node)
    with stage.remediator(POLICY) as remediator:
        eventually("the remediator leads", lambda: remediator.sample("leader") == 1.0, 60.0)
        strike(node, gpu)
        eventually("the taint is in the API", lambda: stage.taint(node) == "xid-79:NoSchedule", 30.0)
        moved = eventually("a replacement runs", lambda: training.moved(victim), 60.0)
        assert moved["spec"]["nodeName"] == other.name
        (fresh,) = devices(other.pod_resources_socket)[f"{NAMESPACE}/{name_of(moved)}"]
        assert fresh in other.gpus
        assert evictions(stage) == [name_of(victim)]
        alert = {"gpu": gpu, "xid": "79"}
        firing = stage.prometheus.firing
        eventually("the alert fires", lambda: [a for a in firing("GPUXidCritical") if alert.items() <= a.items()], 30.0)

        await_phase(stage, node, "Repairing")
        told = stage.cluster.plane.kubectl("get", "gpuincidents")
        assert all(word in told for word in ("NODE", "FAULT", "WHY", node.name, "xid-79", "Repairing")), told
        stage.reboot(node)
        await_phase(stage, node, "Resolved", 90.0)
        eventually("the taint is gone", lambda: stage.taint(node) is None, 30.0)
        eventually("the incident is closed", lambda: closed(stage, node), 30.0)
        assert remediator.stop() == 0
    assert end_state(stage, node) == HEALED
    history = [entry["to"] for entry in stage.incidents(node)[0]["status"]["history"]]
    assert history[-5:] == ["Draining", "Repairing", "Validating", "Probation", "Resolved"]


def test_an_opted_out_node_is_watched_and_left_alone(stage: Stage, training: Training) -> None:
    node = stage.cluster.nodes[1]
    stage.api.merge(f"{NODES}/{node.name}", {"metadata": {"annotations": {keys.OPT_OUT: "end-to-end test"}}})
    _, gpu = training.victim(node)
    spare = next(each for each in node.gpus if each != gpu)
    with stage.remediator(POLICY) as remediator:
        eventually("the remediator leads", lambda: remediator.sample("leader") == 1.0, 60.0)
        node_before, pods_before = untouched(stage, node)
        for number, struck in enumerate((gpu, spare), 1):
            strike(node, struck)
            await_seen(stage, node, struck)
            await_let_go(remediator, number)
    assert untouched(stage, node) == (node_before, pods_before)
    names = {node.name, *(name_of(pod) for pod in on(training.before, node.name))}
    writes = stage.cluster.audit.writes("remediator", stage.audit_mark)
    assert [
        write for write in writes if write.resource.split("/")[0] in {"nodes", "pods"} and write.name in names
    ] == []


def await_seen(stage: Stage, node: Node, gpu: str) -> None:
    sample = stage.exporters[node.name].sample
    eventually("the metric shows it", lambda: sample("gpu_xid_errors_total", gpu=gpu, xid="79"), 30.0)
    eventually("the finding is in the API", lambda: "xid-79" in stage.findings(node, gpu), 30.0)


def await_let_go(remediator: Remediator, waits: int) -> None:
    """Return on the remediator's own word that it looked and let go: from here on its silence is a decision."""
    eventually(
        f"the remediator defers {waits} for the opt-out",
        lambda: remediator.sample("deferrals", reason="opted-out") == waits,
        30.0,
    )


def untouched(stage: Stage, node: Node) -> tuple[object, object]:
    """Return all of a node that its kubelet does not keep writing, and its pods' versions."""
    found = stage.api.get(f"{NODES}/{node.name}")
    managers = sorted({entry["manager"] for entry in found["metadata"]["managedFields"]})
    stable = (found["spec"], found["metadata"]["annotations"], found["metadata"]["labels"], managers)
    here = on(pods(stage.api, NAMESPACE, "trainer"), node.name)
    return stable, {name_of(pod): (uid_of(pod), pod["metadata"]["resourceVersion"]) for pod in here}


class Mortal:
    """A remediator that dies by SIGKILL at each of its writes, when the write is stored and its answer not yet sent."""

    def __init__(self) -> None:
        self.deaths: list[StoredWrite] = []
        self.remediator: Remediator | None = None

    def strike_dead(self, write: StoredWrite) -> None:
        assert self.remediator is not None
        self.deaths.append(write)
        self.remediator.kill()

    def revive(self) -> None:
        assert self.remediator is not None
        if not self.remediator.running():
            self.remediator.start()


def test_a_remediator_killed_at_every_write_ends_the_same(stage: Stage, training: Training) -> None:
    node = stage.cluster.nodes[0]
    victim, gpu = training.victim(node)
    mortal = Mortal()
    rebooted = False

    def healed() -> bool:
        nonlocal rebooted
        mortal.revive()
        if stage.phase(node) == "Repairing" and not rebooted:
            stage.reboot(node)
            rebooted = True
        return stage.phase(node) == "Resolved" and stage.taint(node) is None and closed(stage, node)

    with CrashProxy(stage.cluster.plane.url, stage.cluster.plane.folder / "certs", mortal.strike_dead) as proxy:
        mortal.remediator = stage.remediator(POLICY, proxy.url)
        try:
            strike(node, gpu)
            eventually("it is healed in spite of all deaths", healed, 200.0)
        finally:
            mortal.remediator.stop()
    assert end_state(stage, node) == HEALED
    assert evictions(stage) == [name_of(victim)]
    assert training.moved(victim) is not None
    incident = name_of(stage.incidents(node)[0])
    deaths = [(death.method, death.path) for death in mortal.deaths]
    beside = {("PATCH", f"{NODES}/{each.name}/status") for each in stage.cluster.nodes}  # the mirrored condition
    first = next(death for death in deaths if death not in beside)
    assert first == ("POST", INCIDENTS), "the intent is durable before anything else is done"
    assert deaths.count(("PATCH", f"{NODES}/{node.name}")) == 2, "once to set the taint, once to lift it"
    assert deaths.count(("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name_of(victim)}/eviction")) == 1
    assert deaths.count(("POST", f"/apis/batch/v1/namespaces/{keys.NAMESPACE}/jobs")) == 1
    assert ("PATCH", f"{INCIDENTS}/{incident}/status") in deaths
