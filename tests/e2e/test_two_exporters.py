"""Two exporters on two real nodes: what the kubelet knows shows in `/metrics`, what they see shows in the API."""

from collections.abc import Iterator

import pytest

from exporter.health import keys
from exporter.simulation import state
from tests.rig.api import MERGE, Api
from tests.rig.pod_resources import devices
from tests.rig.stage import GPU_NODES, Stage
from tests.rig.waiting import eventually
from tests.rig.workloads import deployment, name_of, pods, running

pytestmark = pytest.mark.timeout(300)

NAMESPACE = "two-exporters"


@pytest.fixture
def trainers(stage: Stage) -> Iterator[list[str]]:
    """Names of four running one-GPU pods, two per node."""
    stage.cluster.plane.ensure(f"/api/v1/namespaces/{NAMESPACE}", "/api/v1/namespaces", NAMESPACE)
    collection = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    stage.api.create(collection, deployment("trainer", 4))
    eventually("four trainers run", lambda: len(running(pods(stage.api, NAMESPACE, "trainer"))) == 4, 60.0)
    yield [name_of(pod) for pod in pods(stage.api, NAMESPACE, "trainer")]
    stage.api.delete(f"{collection}/trainer", {"propagationPolicy": "Background"})
    eventually("the trainers are gone", lambda: not pods(stage.api, NAMESPACE, "trainer"), 60.0)


def await_sample(stage: Stage, node: str, name: str, labels: dict[str, str]) -> None:
    exporter = stage.exporters[node]
    eventually(f"{name} {labels} is 1", lambda: exporter.sample(name, **labels) == 1.0, 30.0)


def test_allocations_are_those_of_the_kubelet(stage: Stage, trainers: list[str]) -> None:
    for node in stage.cluster.nodes:
        held = {key: ids for key, ids in devices(node.pod_resources_socket).items() if key.startswith(f"{NAMESPACE}/")}
        assert len(held) == 2
        for full_name, (gpu,) in held.items():
            pod = full_name.removeprefix(f"{NAMESPACE}/")
            assert pod in trainers
            labels = {"gpu": gpu, "pod": pod, "container": "main", "resource": "nvidia.com/gpu", "namespace": NAMESPACE}
            await_sample(stage, node.name, "gpu_allocation_info", labels)

    def in_the_api() -> bool:
        gpus = [gpu for node in stage.cluster.nodes for gpu in stage.gpu_node(node).get("gpus", [])]
        return {pod["name"] for gpu in gpus for pod in gpu.get("pods", [])} >= set(trainers)

    eventually("the GPUNodes name the trainers", in_the_api, 30.0)


def test_a_token_speaks_for_its_own_node_only(stage: Stage) -> None:
    one, other = stage.cluster.nodes
    token = (stage.folder / f"exporter-{one.name}.token").read_text()
    api = Api(stage.cluster.plane.url, stage.cluster.plane.ca_file, token)
    refused = api.ask("PATCH", f"{GPU_NODES}/{other.name}/status", {"status": {}}, MERGE)
    assert refused.status == 403
    assert f"exporter on node {one.name} may not write gpunodes {other.name}" in refused.body["message"]
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases"
    assert api.ask("PATCH", f"{leases}/{other.name}", {"spec": {"holderIdentity": "thief"}}, MERGE).status == 403
    assert api.ask("GET", f"/api/v1/namespaces/{keys.NAMESPACE}/secrets").status == 403
    api.close()


def test_an_xid_becomes_metric_finding_and_alert(stage: Stage) -> None:
    node = stage.cluster.nodes[0]
    gpu = node.gpus[3]
    state.inject(node.silicon, 3, "xid:79")
    sample = stage.exporters[node.name].sample
    eventually("the counter shows", lambda: (sample("gpu_xid_errors_total", gpu=gpu, xid="79") or 0) >= 1, 20.0)
    eventually("the GPU is unhealthy", lambda: sample("gpu_health", gpu=gpu, state="Unhealthy") == 1.0, 20.0)
    eventually("the finding is in the API", lambda: "xid-79" in stage.findings(node, gpu), 20.0)

    def alerts() -> list[tuple[str, str]]:
        return [(labels["gpu"], labels["xid"]) for labels in stage.prometheus.firing("GPUXidCritical")]

    eventually("the alert fires", lambda: alerts() == [(gpu, "79")], 30.0)
    assert [sample.value for sample in stage.prometheus.query("up")] == [1.0, 1.0]
    stage.reboot(node)
    stage.await_healthy(node)
