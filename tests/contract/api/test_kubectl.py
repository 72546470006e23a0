"""The real kubectl against either server: what an operator types must work, and must look alike."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.api.asking import Object, Server
from tests.contract.api.conftest import REAL, TOKEN, serve
from tests.contract.api.world import GPU_NODES, INCIDENTS, NODES, PODS, World
from tests.rig import binaries
from tests.rig.require import require_rig

Kubectl = Callable[..., str]


@pytest.fixture(scope="module", params=["embedded", REAL])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    # kubectl keeps its token to itself on plain HTTP, so the embedded server must let everyone in.
    yield from serve(request, None)


@pytest.fixture
def kubectl(server: Server, tmp_path: Path) -> Kubectl:
    program = binaries.find("kubectl")
    if program is None:
        require_rig("kubectl is not built (run: make rig)")
    cluster: dict[str, object] = {"server": server.url}
    if server.url.startswith("https"):
        cluster["insecure-skip-tls-verify"] = True
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"token": TOKEN}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))

    def run(*arguments: str, text: str = "") -> str:
        command = [str(program), "--kubeconfig", str(path), "--cache-dir", str(tmp_path / "cache"), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
        return done.stdout

    return run


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_get_shows_the_columns_of_our_kinds(world: World, kubectl: Kubectl) -> None:
    world.gpu_node({"health": "Unhealthy", "seenGPUs": 8})
    world.incident({"phase": "Draining", "reason": "waits"}, node=world.name)
    assert rows(kubectl("get", "gn", world.name))[0] == ["NAME", "HEALTH", "GPUS", "FAULT", "AGE", "DRIVER"]
    assert rows(kubectl("get", "gpunodes", world.name))[1][:3] == [world.name, "Unhealthy", "8"]
    header, row = rows(kubectl("get", "gpuincident", world.name))
    assert header == ["NAME", "NODE", "GPU", "FAULT", "PHASE", "WHY", "AGE"]
    assert row[:-1] == [world.name, world.name, "xid-79", "Draining", "waits"]


def test_get_of_many_kinds(world: World, kubectl: Kubectl) -> None:
    world.pod()
    world.gpu_node()
    told = kubectl("get", "nodes,pods,gpunodes,gpuincidents")
    assert f"node/{world.name}" in told and f"pod/{world.name}" in told and f"gpunode.gpuward.io/{world.name}" in told


def test_get_wide_and_yaml(world: World, kubectl: Kubectl) -> None:
    world.pod()
    wide = rows(kubectl("get", "pod", world.name, "-o", "wide"))
    assert wide[1][wide[0].index("NODE")] == world.name
    found = yaml.safe_load(kubectl("get", "node", world.name, "-o", "yaml"))
    assert found["metadata"]["name"] == world.name


def test_annotate_and_label_as_an_operator_does(world: World, server: Server, kubectl: Kubectl) -> None:
    world.incident()
    kubectl("annotate", "gpuincident", world.name, "gpuward.io/hold=the vendor is here")
    annotations = server.get(f"{INCIDENTS}/{world.name}")["metadata"]["annotations"]
    assert annotations == {"gpuward.io/hold": "the vendor is here"}
    kubectl("annotate", "gpuincident", world.name, "gpuward.io/hold-")
    assert "annotations" not in server.get(f"{INCIDENTS}/{world.name}")["metadata"]
    world.gpu_node()
    kubectl("label", "gpunode", world.name, "a=b")
    assert server.get(f"{GPU_NODES}/{world.name}")["metadata"]["labels"] == {"a": "b"}


def test_taint_and_cordon(world: World, server: Server, kubectl: Kubectl) -> None:
    world.node()
    kubectl("taint", "node", world.name, "a=b:NoSchedule")
    kubectl("cordon", world.name)
    spec = server.get(f"{NODES}/{world.name}")["spec"]
    assert spec["unschedulable"] is True
    assert {"key": "a", "value": "b", "effect": "NoSchedule"} in spec["taints"]
    kubectl("taint", "node", world.name, "a-")
    kubectl("uncordon", world.name)
    assert "unschedulable" not in server.get(f"{NODES}/{world.name}")["spec"]


def test_describe(world: World, server: Server, kubectl: Kubectl) -> None:
    world.pod()
    uid = world.incident({"phase": "Draining"})["metadata"]["uid"]
    event = {
        "metadata": {"name": world.name},
        "involvedObject": {"kind": "GPUIncident", "apiVersion": "gpuward.io/v1alpha1", "name": world.name, "uid": uid},
        "reason": "Drained",
        "message": "three pods moved",
        "type": "Normal",
        "source": {"component": "gpuward-remediator"},
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    world.make("/api/v1/namespaces/default/events", event)
    told = kubectl("describe", "gpuincident", world.name)
    assert "Phase:  Draining" in told and "three pods moved" in told
    assert f"{world.name}" in kubectl("describe", "node", world.name)
    assert "Node:" in kubectl("describe", "pod", world.name)


def test_drain_evicts(world: World, server: Server, kubectl: Kubectl) -> None:
    world.pod(terminationGracePeriodSeconds=0)
    told = kubectl("drain", world.name, "--force", "--timeout=20s")
    assert f"node/{world.name} drained" in told
    assert not [pod for pod in server.get(PODS)["items"] if pod["metadata"]["name"] == world.name]


def test_apply_twice_and_delete(world: World, server: Server, kubectl: Kubectl) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": world.name}, "data": {"a": "1"}}
    kubectl("apply", "-f", "-", text=yaml.safe_dump(manifest))
    kubectl("apply", "-f", "-", text=yaml.safe_dump(manifest | {"data": {"b": "2"}}))
    assert server.get(f"/api/v1/namespaces/default/configmaps/{world.name}")["data"] == {"b": "2"}
    kubectl("delete", "configmap", world.name)


def test_apply_of_a_deployment_twice(world: World, server: Server, kubectl: Kubectl) -> None:
    container: Object = {"name": "a", "image": "pause:1", "env": [{"name": "A", "value": "1"}]}
    template = {"metadata": {"labels": {"app": world.name}}, "spec": {"containers": [container]}}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": world.name},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": world.name}}, "template": template},
    }
    world.forget_later(f"/apis/apps/v1/namespaces/default/deployments/{world.name}")
    kubectl("apply", "-f", "-", text=yaml.safe_dump(manifest))
    container["env"] = [{"name": "B", "value": "2"}]
    kubectl("apply", "-f", "-", text=yaml.safe_dump(manifest))
    stored = server.get(f"/apis/apps/v1/namespaces/default/deployments/{world.name}")
    assert stored["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": "2"}]


def test_wait_for_a_condition(world: World, kubectl: Kubectl) -> None:
    world.node()
    kubectl("wait", f"node/{world.name}", "--for=condition=Ready", "--timeout=10s")
    world.incident({"phase": "Resolved"})
    kubectl("wait", f"gpuincident/{world.name}", "--for=jsonpath={.status.phase}=Resolved", "--timeout=10s")


def test_api_resources_knows_the_short_names(kubectl: Kubectl) -> None:
    found = {row[0]: row[1] for row in rows(kubectl("api-resources", "--api-group=gpuward.io"))[1:]}
    assert found == {"gpuincidents": "gi", "gpunodes": "gn"}
