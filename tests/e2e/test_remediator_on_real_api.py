"""The remediator as it is shipped (process, service account, RBAC, CRDs) against a real API server, without nodes.

Machines, exporters and kubelets are played by tests/fakes/world.py, because what is at stake here is the API server:
what it refuses, what it forbids, and that it may not be there yet.
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
import yaml

from exporter.health import keys
from tests.fakes.world import World
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.processes import free_port
from tests.rig.stage import INCIDENTS, MANIFESTS, NODES, WORKLOADS, Remediator
from tests.rig.waiting import eventually
from tests.rig.world_server import COLLECTIONS, RealServer

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

SICK, SPARE, OPTED_OUT = NAMES = ("real-n1", "real-n2", "real-n3")
CHECK = {"restartPolicy": "Never", "containers": [{"name": "check", "image": "x:1", "command": ["true"]}]}
JOB = {"spec": {"template": {"spec": CHECK}}}
PLAYBOOK = {
    "repair": [{"name": "reboot", "job": JOB, "needs": "gpu", "proof": "boot-id"}],
    "validate": {"job": JOB},
    "probationSeconds": 1,
}
POLICY = {
    "budget": {"nodes": 1},
    "mirrorCondition": True,
    "rules": [{"name": "lost", "mode": "enforce", "faults": ["xid-79"], "playbook": PLAYBOOK}],
}
LEASES = COLLECTIONS["Lease"].format(keys.NAMESPACE)
LEASE = f"{LEASES}/{keys.CONTROLLER}"
RIGHTS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def shipped(*kinds: str) -> str:
    """The shipped manifests of these kinds, or all but the workloads."""
    documents = [each for path in sorted(MANIFESTS.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]
    return yaml.safe_dump_all(
        [each for each in documents if each and (each["kind"] in kinds if kinds else each["kind"] not in WORKLOADS)]
    )


@pytest.fixture
def remediator(real_control_plane: ControlPlane, tmp_path: Path) -> Iterator[Remediator]:
    """Not started; its token is the service account's, the policy beside it is POLICY."""
    plane = real_control_plane
    policy, token, port = tmp_path / "policy.yaml", tmp_path / "token", free_port()
    policy.write_text(yaml.safe_dump(POLICY))
    token.write_text(plane.service_account_token(keys.NAMESPACE, "remediator"))
    command = [
        *(str(Path(sys.executable).with_name("gpu-remediator")), "--config.file", str(policy)),
        *("--kube.api-server", plane.url, "--kube.token-file", str(token), "--kube.ca-file", str(plane.ca_file)),
        *("--web.listen-address", f"127.0.0.1:{port}", "--identity", "real", "--log.level", "debug"),
        *("--incidents.keep-count", "0"),
    ]
    made = Remediator(command, f"http://127.0.0.1:{port}", tmp_path / "remediator.log")
    yield made
    made.stop()
    plane.api.ask("DELETE", LEASE)


@pytest.fixture
def world(real_control_plane: ControlPlane) -> Iterator[World]:
    """Three nodes with two GPUs each, the last one opted out."""
    plane = real_control_plane
    plane.apply(shipped())
    made = World(RealServer(plane.api))
    for name in NAMES:
        made.add_node(name)
    plane.api.merge(f"{NODES}/{OPTED_OUT}", {"metadata": {"annotations": {keys.OPT_OUT: "mine"}}})
    made.start()
    yield made
    made.stop()
    jobs = f"/apis/batch/v1/namespaces/{keys.NAMESPACE}/jobs"
    for collection in (INCIDENTS, jobs, COLLECTIONS["ReplicaSet"].format("team"), COLLECTIONS["Pod"].format("team")):
        plane.api.delete(collection, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
    for name in NAMES:
        for collection in (NODES, COLLECTIONS["GPUNode"], LEASES):
            plane.api.ask("DELETE", f"{collection}/{name}")


def page(remediator: Remediator, path: str) -> tuple[int, str]:
    try:
        answer = urllib3.request("GET", f"{remediator.url}{path}", timeout=5.0, retries=False)
    except urllib3.exceptions.HTTPError as error:
        raise ConnectionError(str(error)) from error
    return answer.status, answer.data.decode().strip()


def await_missing(remediator: Remediator, kinds: str) -> None:
    """Return when it says that it is alive and for whose first list it waits."""

    def told() -> bool:
        assert remediator.running()
        return page(remediator, "/-/ready") == (503, f"starting: not listed yet: {kinds}")

    eventually(f"it waits for {kinds}", told, 40.0)
    assert page(remediator, "/-/healthy") == (200, "healthy"), "a restart would not help"


def await_refused(remediator: Remediator, kind: str, reason: str) -> None:
    def refused() -> bool:
        return bool(remediator.sample("watch_reconnects_total", kind=kind, reason=reason))

    eventually(f"{kind} are refused: {reason}", refused, 30.0)


def test_it_waits_for_server_rights_and_definitions(real_control_plane: ControlPlane, remediator: Remediator) -> None:
    plane = real_control_plane
    plane.kubectl("delete", "--ignore-not-found", "-f", "-", text=shipped("CustomResourceDefinition", *RIGHTS))
    plane.stop_apiserver()
    try:
        remediator.start()
        await_missing(remediator, "nodes, gpunodes, leases, gpuincidents, jobs")
    finally:
        plane.start_apiserver()
    await_refused(remediator, "nodes", "http-403")
    assert forbidden(plane) > 0, "the witness of the story below sees refusals"
    plane.apply(shipped(*RIGHTS))
    await_missing(remediator, "gpunodes, gpuincidents")
    await_refused(remediator, "gpunodes", "http-404")
    plane.apply(shipped())
    eventually("it is ready", lambda: page(remediator, "/-/ready") == (200, "ready"), 40.0)
    eventually("it leads", lambda: remediator.sample("leader") == 1.0, 30.0)
    plane.restart_apiserver()
    plane.ensure(f"{NODES}/{SPARE}", NODES, SPARE)
    mark = remediator.sample("watch_events_total", kind="nodes") or 0.0
    plane.api.merge(f"{NODES}/{SPARE}", {"metadata": {"labels": {"seen": "yes"}}})
    eventually("it sees news", lambda: (remediator.sample("watch_events_total", kind="nodes") or 0.0) > mark, 40.0)
    plane.api.delete(f"{NODES}/{SPARE}")
    assert remediator.stop() == 0
    assert "Traceback" not in remediator.log.read_text()


def forbidden(plane: ControlPlane) -> int:
    """How many requests, whoever asked, found no rule that allows them since the API server started."""
    refusals = ('authorization_attempts_total{result="no-opinion"}', 'authorization_attempts_total{result="denied"}')
    lines = plane.api.ask("GET", "/metrics").text.splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(refusals))


def untouched(plane: ControlPlane, victim: str) -> tuple[Object, Object]:
    """Return the opted-out node and its pod, which nobody writes but us: their versions tell."""
    pod = plane.api.get(f"{COLLECTIONS['Pod'].format('team')}/{victim}")
    return plane.api.get(f"{NODES}/{OPTED_OUT}")["metadata"], pod["metadata"]


def test_a_story_with_the_shipped_rights(
    real_control_plane: ControlPlane, world: World, remediator: Remediator, tmp_path: Path
) -> None:
    plane = real_control_plane
    victim, protected = world.add_pod(SICK, 0), world.add_pod(OPTED_OUT, 0)
    left_alone = untouched(plane, protected)
    refusals = forbidden(plane)
    remediator.start()
    eventually("it leads", lambda: remediator.sample("leader") == 1.0)

    world.fault(OPTED_OUT, 0)
    eventually("it defers", lambda: remediator.sample("deferrals", reason="opted-out") == 1.0)
    world.fault(SICK, 0)
    eventually("the taint is on", lambda: keys.UNHEALTHY_TAINT in world.taints(SICK))
    assert [each["spec"]["nodeName"] for each in world.incidents()] == [SICK]
    eventually("it is healed", lambda: world.phase() == "Resolved" and keys.UNHEALTHY_TAINT not in world.taints(SICK))
    status = world.incidents()[0]["status"]
    assert [pod["fate"] for pod in status["pods"]] == ["Replaced"]
    assert world.evicted == [victim]
    assert untouched(plane, protected) == left_alone

    (tmp_path / "policy.yaml").write_text("rules: [{name: x, modus: enforce}]")
    eventually("it says so", lambda: remediator.sample("policy_valid") == 0.0)
    assert remediator.sample("policy_rules", mode="enforce") == 1.0, "the last good policy stays"
    eventually("it is told", lambda: [each for each in events(plane) if each["reason"] == "PolicyRefused"])
    world.fault(SICK, 1)
    eventually("the last good policy acts", lambda: keys.UNHEALTHY_TAINT in world.taints(SICK))
    # Its housekeeping runs half a minute after the start.
    eventually("closed incidents are forgotten", lambda: not world.incidents(), 60.0)

    assert plane.api.get(LEASE)["spec"]["holderIdentity"] == "real"
    assert remediator.process is not None
    remediator.process.send(signal.SIGTERM)
    assert remediator.process.wait(10.0) == 0
    assert plane.api.get(LEASE)["spec"]["holderIdentity"] == ""
    log = remediator.log.read_text()
    assert "Traceback" not in log
    assert [line for line in log.splitlines() if "forbidden" in line.lower()] == []
    assert forbidden(plane) == refusals
    assert untouched(plane, protected) == left_alone


def events(plane: ControlPlane) -> list[Object]:
    return plane.api.list("/api/v1/namespaces/default/events")
