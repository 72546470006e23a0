"""The shipped manifests, as the real API server takes them: strict fields, least privilege, own node only."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from exporter.health import keys
from remediator.domain.policy import load_policy
from tests.rig.api import Api, Object
from tests.rig.control_plane import ControlPlane
from tests.rig.waiting import eventually

MANIFESTS = sorted((Path(__file__).parents[2] / "deploy" / "manifests").glob("*.yaml"))
GPU_NODES = f"/apis/{keys.API_VERSION}/{keys.GPU_NODES}"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases"
OWN, OTHER = "manifest-n1", "manifest-n2"


def gpu_node(name: str) -> Object:
    return {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND, "metadata": {"name": name}}


def lease(name: str) -> Object:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}


@pytest.fixture(scope="module")
def installed(real_control_plane: ControlPlane) -> ControlPlane:
    real_control_plane.apply(*MANIFESTS)
    return real_control_plane


@pytest.fixture(scope="module")
def exporter(installed: ControlPlane) -> Iterator[Api]:
    """The exporter of node OWN, with a token bound to its pod as the kubelet would mount it."""
    for name in (OWN, OTHER):
        installed.ensure("/api/v1/nodes/" + name, "/api/v1/nodes", name=name)
    token = installed.service_account_token(keys.NAMESPACE, "exporter", node=OWN)
    api = installed.api_as(token)

    def policy_in_force() -> bool:
        return api.ask("POST", GPU_NODES + "?dryRun=All", gpu_node(OTHER)).status == 403

    eventually("the admission policy takes effect", policy_in_force, 20)
    yield api
    api.close()
    for name in (OWN, OTHER):
        installed.api.ask("DELETE", f"/api/v1/nodes/{name}")
        installed.api.ask("DELETE", f"{GPU_NODES}/{name}")


def test_every_manifest_is_accepted_with_strict_fields(installed: ControlPlane) -> None:
    names = {
        crd["metadata"]["name"] for crd in installed.api.list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    }
    assert {f"{keys.GPU_NODES}.{keys.GROUP}", f"{keys.GPU_INCIDENTS}.{keys.GROUP}"} <= names


def test_an_exporter_writes_its_own_node(exporter: Api) -> None:
    assert exporter.ask("POST", GPU_NODES, gpu_node(OWN)).status == 201
    status = {"status": {"health": "Healthy", "bootID": "b", "observedAt": "2026-01-01T00:00:00Z"}}
    patched = exporter.ask("PATCH", f"{GPU_NODES}/{OWN}/status", status, "application/merge-patch+json")
    assert patched.status == 200
    assert patched.body["status"]["health"] == "Healthy"
    assert exporter.ask("POST", LEASES, lease(OWN)).status == 201


@pytest.mark.parametrize("body", [pytest.param(gpu_node(OTHER), id="GPUNode"), pytest.param(lease(OTHER), id="Lease")])
def test_an_exporter_may_not_speak_for_another_node(exporter: Api, body: Object) -> None:
    answer = exporter.ask("POST", GPU_NODES if body["kind"] == keys.GPU_NODE_KIND else LEASES, body)
    assert answer.status == 403
    assert f"exporter on node {OWN} may not write" in answer.body["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "/api/v1/pods", id="pods"),
        pytest.param("GET", "/api/v1/secrets", id="secrets"),
        pytest.param("GET", f"/apis/{keys.API_VERSION}/{keys.GPU_INCIDENTS}", id="incidents"),
        pytest.param("GET", "/api/v1/nodes", id="list of nodes"),
    ],
)
def test_an_exporter_reads_nothing_else(exporter: Api, method: str, path: str) -> None:
    assert exporter.ask(method, path).status == 403


def test_a_phase_that_does_not_exist_is_refused(installed: ControlPlane) -> None:
    path = f"/apis/{keys.API_VERSION}/{keys.GPU_INCIDENTS}"
    spec = {
        "nodeName": OWN,
        "nodeUID": "u",
        "bootID": "b",
        "scope": "GPU",
        "fault": "xid-79",
        "openedAt": "2026-01-01T00:00:00Z",
    }
    incident = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.GPU_INCIDENT_KIND,
        "metadata": {"name": "manifest-i1"},
        "spec": spec,
    }
    installed.api.create(path, incident)
    try:
        answer = installed.api.ask(
            "PATCH", f"{path}/manifest-i1/status", {"status": {"phase": "Fixed"}}, "application/merge-patch+json"
        )
        assert answer.status == 422
        changed = installed.api.ask(
            "PATCH", f"{path}/manifest-i1", {"spec": {"fault": "x"}}, "application/merge-patch+json"
        )
        assert "spec is immutable" in changed.body["message"]
    finally:
        installed.api.delete(f"{path}/manifest-i1")


def test_the_shipped_policy_only_observes() -> None:
    text = next(path for path in MANIFESTS if path.name == "45-policy.yaml").read_text()
    policy = load_policy(yaml.safe_load(yaml.safe_load(text)["data"]["policy.yaml"]))
    assert {rule.mode.value for rule in policy.rules} == {"observe"}
