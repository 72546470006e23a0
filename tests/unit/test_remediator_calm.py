"""Nothing is asked of the API server again and again at full speed, however often it says no."""

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remediator.cli_program import Program
from remediator.settings import Settings
from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster, crd_manifests
from tests.fakes.world import World, eventually

ENFORCE = "rules: [{name: lost, mode: enforce, faults: [xid-79], playbook: {repair: [ask-human]}}]"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


@pytest.fixture
def world(cluster: EmbeddedCluster) -> Iterator[World]:
    made = World(cluster)
    for name in ("n1", "n2"):
        made.add_node(name)
    made.start()
    yield made
    made.stop()


Start = Callable[[], Program]


@pytest.fixture
def start(cluster: EmbeddedCluster, world: World, tmp_path: Path) -> Iterator[Start]:
    running: list[Program] = []

    def run() -> Program:
        path = tmp_path / "policy.yaml"
        path.write_text(ENFORCE)
        address = "127.0.0.1:0"
        settings = Settings(config_file=path, kube_api_server=cluster.url, web_listen_address=address, identity="a")
        program = Program(settings, "test")
        running.append(program)
        program.start()
        return program

    yield run
    for program in running:
        program.stop()


def invalid(message: str) -> Reply:
    return Reply(code=422, body={"kind": "Status", "code": 422, "reason": "Invalid", "message": message})


@pytest.mark.parametrize(
    "path", ["/gpuincidents/", "/api/v1/nodes/n1", "/api/v1/nodes/n1/status"], ids=["incident", "taint", "condition"]
)
def test_a_write_that_is_refused_is_tried_again_calmly(
    cluster: EmbeddedCluster, world: World, start: Start, path: str
) -> None:
    tried: list[float] = []

    def refuse(call: Call) -> Reply | None:
        theirs = b"GPUHealthy" not in call.body and path.endswith("/nodes/n1/status")
        wanted = path in call.path if path.startswith("/gpu") else path == call.path
        if call.method != "PATCH" or not wanted or theirs:
            return None
        tried.append(time.monotonic())
        return invalid("a webhook says no")

    cluster.intercept(refuse)
    start()
    world.fault("n1", 0)
    eventually(lambda: tried, what="never tried")
    time.sleep(3)
    assert len(tried) <= 4


def without(crd: dict[str, Any], field: str) -> dict[str, Any]:
    old = copy.deepcopy(crd)
    version = old["spec"]["versions"][0]
    del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][field]
    return old


@pytest.mark.parametrize("field", ["quarantine", "deferral"])
def test_a_definition_of_another_version_is_noticed_and_nothing_is_done_on_a_lost_intent(
    cluster: EmbeddedCluster, world: World, start: Start, field: str
) -> None:
    [crd] = [found for found in crd_manifests() if found["metadata"]["name"].startswith("gpuincidents")]
    cluster.request("DELETE", f"{DEFINITIONS}/{crd['metadata']['name']}")
    cluster.apply([without(crd, field)])
    writes: list[str] = []

    def note(call: Call) -> Reply | None:
        if call.method == "PATCH" and ("/gpuincidents/" in call.path or call.path == "/api/v1/nodes/n1"):
            writes.append(call.path)
        return None

    cluster.intercept(note)
    program = start()
    world.fault("n1", 0)
    eventually(lambda: writes, what="never tried")
    time.sleep(3)
    assert len(writes) <= 4
    assert "/api/v1/nodes/n1" not in writes, "acted although the intent was not stored"
    assert b'errors_total{part="crd"}' in program.metrics.page()
    events = cluster.request("GET", "/api/v1/namespaces/default/events").body["items"]
    [event] = [found for found in events if found["reason"] == "IncidentNotStored"]
    assert f"status.{field}" in event["message"]
