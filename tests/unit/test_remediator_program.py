"""The whole remediator, in process, against the embedded API server: the story of one fault, and its brakes."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from exporter.health import keys
from remediator.cli_program import Program
from remediator.domain.drain import BACKOFF_SECONDS
from remediator.settings import Settings
from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster
from tests.fakes.world import World, eventually

JOB = "{spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'x:1', command: ['true']}]}}}}"
ENFORCE = f"""
budget: {{nodes: 1}}
mirrorCondition: true
rules:
- name: lost
  mode: enforce
  faults: [xid-79]
  playbook:
    repair: [{{name: reboot, job: {JOB}, needs: gpu, proof: boot-id}}]
    validate: {{job: {JOB}}}
    probationSeconds: 1
"""


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


@pytest.fixture
def world(cluster: EmbeddedCluster) -> Iterator[World]:
    made = World(cluster)
    made.start()
    yield made
    made.stop()


Start = Callable[[str], Program]


@pytest.fixture
def start(cluster: EmbeddedCluster, world: World, tmp_path: Path) -> Iterator[Start]:
    running: list[Program] = []

    def run(policy: str) -> Program:
        path = tmp_path / "policy.yaml"
        path.write_text(policy)
        program = Program(
            Settings(config_file=path, kube_api_server=cluster.url, web_listen_address="127.0.0.1:0", identity="a"),
            "test",
        )
        running.append(program)
        program.start()
        return program

    yield run
    for program in running:
        program.stop()


def fetch(program: Program, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{program.server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_write(call: Call) -> bool:
    """A write of the remediator, its leases, Events and conditions apart."""
    quiet = ("leases", "events", "gpunodes")
    return call.method != "GET" and not any(f"/{word}" in call.path for word in quiet)


def test_a_fault_heals_from_taint_to_release(world: World, start: Start) -> None:
    for name in ("n1", "n2"):
        world.add_node(name)
    victim = world.add_pod("n1", 0)
    neighbour = world.add_pod("n1", 1, owner="other")
    program = start(ENFORCE)
    eventually(program.observer.synced)
    world.fault("n1", 0)

    eventually(lambda: keys.UNHEALTHY_TAINT in world.taints("n1"), what="taint")
    eventually(lambda: world.phase() == "Resolved" and world.incidents()[0]["status"].get("closedAt"), 20, "resolved")
    assert world.evicted == [victim]
    assert neighbour in world.pods()
    assert keys.UNHEALTHY_TAINT not in world.taints("n1")
    [incident] = world.incidents()
    status = incident["status"]
    assert [entry["to"] for entry in status["history"]][-6:] == [
        "Quarantined",
        "Draining",
        "Repairing",
        "Validating",
        "Probation",
        "Resolved",
    ]
    [pod] = status["pods"]
    assert (pod["fate"], pod["replacementNode"]) == ("Replaced", "n2")
    conditions = {c["type"]: c["status"] for c in world.node("n1")["status"]["conditions"]}
    assert conditions["Ready"] == "True", "the kubelet's own condition is left alone"
    eventually(
        lambda: {c["type"]: c["status"] for c in world.node("n1")["status"]["conditions"]}["GPUHealthy"] == "True"
    )
    healed = 'gpuward_remediator_incidents_closed_total{outcome="healed"} 1.0'
    eventually(lambda: healed in fetch(program, "/metrics")[1])
    assert 'gpuward_remediator_evictions_total{result="done"} 1.0' in fetch(program, "/metrics")[1]
    assert fetch(program, "/-/healthy") == (200, "healthy\n")
    assert fetch(program, "/-/ready") == (200, "ready\n")


def test_without_a_policy_nothing_is_written(cluster: EmbeddedCluster, world: World, start: Start) -> None:
    world.add_node("n1")
    world.add_node("n2")
    world.add_pod("n1", 0)
    writes: list[str] = []

    def note(call: Call) -> Reply | None:
        if is_write(call):
            writes.append(f"{call.method} {call.path}")
        return None

    cluster.intercept(note)
    program = start("")
    world.fault("n1", 0)
    eventually(lambda: 'deferrals{reason="observe"} 1.0' in fetch(program, "/metrics")[1])
    assert writes == []


@pytest.mark.parametrize("what", ["node", "namespace", "pod"])
def test_opting_out_at_the_last_moment_is_honoured(
    cluster: EmbeddedCluster, world: World, start: Start, what: str
) -> None:
    for name in ("n1", "n2"):
        world.add_node(name)
    victim = world.add_pod("n1", 0)
    paths = {
        "node": "/api/v1/nodes/n1",
        "namespace": "/api/v1/namespaces/team",
        "pod": f"/api/v1/namespaces/team/pods/{victim}",
    }
    opted: list[bool] = []

    def at_the_taint(call: Call) -> Reply | None:
        # The remediator has decided and is about to write; in this very moment somebody opts out.
        if call.method == "PATCH" and call.path == "/api/v1/nodes/n1" and not opted:
            opted.append(True)
            cluster.request("PATCH", paths[what], {"metadata": {"annotations": {keys.OPT_OUT: "mine"}}})
        assert not call.path.endswith("/eviction"), "evicted although opted out"
        return None

    cluster.intercept(at_the_taint)
    start(ENFORCE)
    world.fault("n1", 0)
    eventually(lambda: opted, what="never tried")
    time.sleep(1.5)
    assert victim in world.pods()
    if what == "node":
        assert keys.UNHEALTHY_TAINT not in world.taints("n1")


@pytest.mark.parametrize("how", ["held", "deleted"])
def test_an_operator_who_holds_the_incident_at_the_last_moment_is_obeyed(
    cluster: EmbeddedCluster, world: World, start: Start, how: str
) -> None:
    for name in ("n1", "n2"):
        world.add_node(name)
    victim = world.add_pod("n1", 0)
    stopped: list[str] = []

    def at_the_eviction(call: Call) -> Reply | None:
        # The eviction is decided and recorded; its pod is being looked at once more.
        if call.path == f"/api/v1/namespaces/team/pods/{victim}" and call.method == "GET" and not stopped:
            name = world.incidents()[0]["metadata"]["name"]
            path = f"/apis/{keys.API_VERSION}/{keys.GPU_INCIDENTS}/{name}"
            stopped.append(name)
            if how == "held":
                cluster.request("PATCH", path, {"metadata": {"annotations": {keys.HOLD: "let me look"}}})
            else:
                cluster.request("DELETE", path)
        evicting = call.path.endswith("/eviction")
        assert not (evicting and how == "held"), "evicted although held"
        assert not (evicting and world.incidents()[0]["metadata"]["uid"] in stopped), "no intent on record"
        return None

    cluster.intercept(at_the_eviction)
    start(ENFORCE)
    world.fault("n1", 0)
    eventually(lambda: stopped, what="never tried")
    if how == "held":
        time.sleep(1.5)
        assert victim in world.pods()
        assert "held by an operator" in world.incidents()[0]["status"]["deferral"]["message"]
    else:
        eventually(lambda: victim not in world.pods(), 30, "the new incident goes on")


def test_a_failed_incident_write_stops_the_chain(cluster: EmbeddedCluster, world: World, start: Start) -> None:
    for name in ("n1", "n2"):
        world.add_node(name)
    world.add_pod("n1", 0)
    refused: list[str] = []

    def no_incident_writes(call: Call) -> Reply | None:
        if "gpuincidents" in call.path and call.method != "GET" and len(refused) < 3:
            refused.append(call.path)
            return Reply(code=500, body={"kind": "Status", "code": 500, "message": "etcd is unhappy"})
        if call.method == "PATCH" and call.path == "/api/v1/nodes/n1":
            assert len(refused) == 3, "acted before the intent was stored"
        return None

    cluster.intercept(no_incident_writes)
    start(ENFORCE)
    world.fault("n1", 0)
    eventually(lambda: keys.UNHEALTHY_TAINT in world.taints("n1"), 20)
    assert len(refused) == 3


def test_a_disruption_budget_is_waited_for(cluster: EmbeddedCluster, world: World, start: Start) -> None:
    for name in ("n1", "n2"):
        world.add_node(name)
    victim = world.add_pod("n1", 0)
    full = [True]
    asked: list[float] = []
    body = {
        "kind": "Status",
        "code": 429,
        "reason": "TooManyRequests",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pods and has 1 currently"}]},
    }

    def budget(call: Call) -> Reply | None:
        if call.path.endswith("/eviction"):
            asked.append(time.monotonic())
            return Reply(code=429, body=body) if full[0] else None
        return None

    cluster.intercept(budget)
    start(ENFORCE)
    world.fault("n1", 0)
    eventually(lambda: asked)
    eventually(lambda: [p["fate"] for p in world.incidents()[0]["status"].get("pods", [])] == ["Blocked"])
    assert victim in world.pods()
    full[0] = False
    eventually(lambda: victim not in world.pods(), 25)
    assert all(after - before > BACKOFF_SECONDS[0] - 0.5 for before, after in pairwise(asked)), "asked before its time"


@pytest.mark.parametrize(
    ("playbook", "phase"),
    [("repair: [ask-human]", "Repairing"), ("validate: {}, probationSeconds: 600", "Probation")],
    ids=["a human is asked", "probation"],
)
def test_a_wait_is_written_once(
    cluster: EmbeddedCluster, world: World, start: Start, playbook: str, phase: str
) -> None:
    for name in ("n1", "n2"):
        world.add_node(name)
    world.add_pod("n1", 0)
    program = start(f"rules: [{{name: lost, mode: enforce, faults: [xid-79], playbook: {{{playbook}}}}}]")
    world.fault("n1", 0)
    eventually(lambda: world.phase() == "Repairing", 20)
    if phase == "Probation":
        world.reboot("n1")
    eventually(lambda: world.phase() == phase and world.incidents()[0]["status"].get("deferral"), 20)
    eventually(lambda: world.incidents()[0]["status"]["pods"][0]["fate"] == "Replaced")
    program.loop.stop()
    eventually(lambda: not program.executor.busy())
    writes: list[str] = []

    def note(call: Call) -> Reply | None:
        if is_write(call):
            writes.append(f"{call.method} {call.path}")
        return None

    program.loop.turn()  # may still have to write what the loop saw last
    eventually(lambda: not program.executor.busy())
    cluster.intercept(note)
    first, second = program.loop.turn(), program.loop.turn()
    eventually(lambda: not program.executor.busy())
    assert (first.actions, second.actions) == ((), ())
    assert writes == []


def test_a_wrong_policy_file_changes_nothing_but_what_is_said(world: World, start: Start, tmp_path: Path) -> None:
    world.add_node("n1")
    world.add_node("n2")
    program = start(ENFORCE)
    eventually(lambda: "policy_valid 1.0" in fetch(program, "/metrics")[1])
    (tmp_path / "policy.yaml").write_text("rules: [{name: x, modus: enforce}]")
    eventually(lambda: "policy_valid 0.0" in fetch(program, "/metrics")[1], 20)
    assert 'policy_rules{mode="enforce"} 1.0' in fetch(program, "/metrics")[1]
    events = world.cluster.request("GET", "/api/v1/namespaces/default/events").body["items"]
    assert any(e["reason"] == "PolicyRefused" and "modus" in e["message"] for e in events)
    world.fault("n1", 0)
    eventually(lambda: keys.UNHEALTHY_TAINT in world.taints("n1"), what="the last good policy is not in force")


def test_stopping_gives_the_lease_back(cluster: EmbeddedCluster, world: World, start: Start) -> None:
    world.add_node("n1")
    program = start(ENFORCE)
    path = f"/apis/coordination.k8s.io/v1/namespaces/gpuward/leases/{keys.CONTROLLER}"
    eventually(lambda: cluster.request("GET", path).code == 200)
    assert cluster.request("GET", path).body["spec"]["holderIdentity"] == "a"
    program.stop()
    assert cluster.request("GET", path).body["spec"]["holderIdentity"] == ""
