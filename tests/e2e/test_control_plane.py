"""The rig itself: what other tests take for granted about the real control plane."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rig.api import Api, ApiError
from tests.rig.control_plane import PLAIN_TOKEN, ControlPlane
from tests.rig.waiting import eventually

ROOT = Path(__file__).parents[2]


def a_pod(name: str, node: str = "") -> dict[str, object]:
    spec: dict[str, object] = {"containers": [{"name": "c", "image": "none"}], "serviceAccountName": "exporter"}
    return {"metadata": {"name": name}, "spec": {**spec, "nodeName": node} if node else spec}


def test_it_is_the_pinned_version(real_control_plane: ControlPlane) -> None:
    version = real_control_plane.api.get("/version")
    assert (version["major"], version["minor"], version["gitVersion"]) == ("1", "36", "v1.36.3")


def test_rights_are_checked(real_control_plane: ControlPlane) -> None:
    plain = real_control_plane.api_as(PLAIN_TOKEN)
    with pytest.raises(ApiError, match="cannot list resource") as refusal:
        plain.list("/api/v1/nodes")
    plain.close()
    assert (refusal.value.status, refusal.value.reason) == (403, "Forbidden")


def test_a_token_bound_to_a_pod_names_its_node(real_control_plane: ControlPlane) -> None:
    plane = real_control_plane
    plane.api.create("/api/v1/nodes", {"metadata": {"name": "token-node"}})
    plane.service_account_token("token-test", "exporter")
    plane.api.create("/api/v1/namespaces/token-test/pods", a_pod("x", node="token-node"))
    bound = plane.service_account_token("token-test", "exporter", pod="x")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    identity = Api(plane.url, plane.ca_file, bound)
    user = identity.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)["status"]["userInfo"]
    identity.close()
    assert user["username"] == "system:serviceaccount:token-test:exporter"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["token-node"]
    plane.api.delete("/api/v1/nodes/token-node")


def test_our_definitions_are_served(real_control_plane: ControlPlane) -> None:
    plane = real_control_plane
    crds = sorted((ROOT / "remediator" / "domain" / "crds").glob("*.yaml"))
    assert crds
    plane.apply(*crds)
    resources = plane.api.get("/apis/gpuward.io/v1alpha1")["resources"]
    assert {"gpunodes", "gpunodes/status", "gpuincidents", "gpuincidents/status"} <= {
        each["name"] for each in resources
    }


def test_the_command_runs_until_its_owner_is_gone(real_control_plane: ControlPlane, tmp_path: Path) -> None:
    # The fixture only says that the programs are there.
    kubeconfig = tmp_path / "kubeconfig"
    command = [
        sys.executable,
        "-m",
        "tests.rig",
        "up",
        "--controllers",
        "none",
        "--no-scheduler",
        "--kubeconfig",
        str(kubeconfig),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        ready = child.stdout.readline().split()
        assert ready[0] == "READY" and ready[2] == str(kubeconfig)
        folder = next(
            Path(line.split("certificate-authority:")[1].strip()).parents[1]
            for line in kubeconfig.read_text().splitlines()
            if "certificate-authority:" in line
        )
        assert folder.is_dir()
        child.stdin.close()
        assert child.wait(30) == 0
    assert not kubeconfig.exists() and not folder.exists()


def test_a_killed_owner_leaves_no_process(real_control_plane: ControlPlane) -> None:
    command = [sys.executable, "-m", "tests.rig", "up", "--controllers", "none", "--no-scheduler"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().split()[2]).parent
        children = _children(child.pid)
        assert len(children) == 2  # etcd, kube-apiserver
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    eventually("etcd and kube-apiserver are gone", lambda: not any(_alive(pid) for pid in children), 10.0)
    # Any other rig that starts meanwhile may have removed the folder already.
    with ControlPlane(controllers="none", scheduler=False):
        assert not folder.exists(), "the next run removes what a killed one left"


def test_it_is_ready_in_seconds(real_control_plane: ControlPlane) -> None:
    started = time.monotonic()
    with ControlPlane() as plane:
        assert plane.api.ask("GET", "/readyz").text == "ok"
        # 3 s on two idle cores; the rest is for a busy machine.
        assert time.monotonic() - started < 30


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
