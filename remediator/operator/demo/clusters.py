"""The two clusters a demo can play on: the embedded one in this process, or a real control plane beside it."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import requests

from remediator.adapters.kubeconfig import from_kubeconfig
from remediator.adapters.transport import Endpoint
from remediator.operator.demo.programs import ProgramEnded
from remediator.simulation.cluster import EmbeddedCluster, Fleet

PLURALS = {
    "CustomResourceDefinition": "customresourcedefinitions",
    "Namespace": "namespaces",
    "Node": "nodes",
    "Pod": "pods",
    "Deployment": "deployments",
    "PodDisruptionBudget": "poddisruptionbudgets",
}
"""Path element of every kind the demo creates."""


class Cluster(Protocol):
    """What the stage needs of a cluster."""

    kubeconfig: Path

    def start(self) -> None:
        """Return when the API server answers."""

    def stop(self) -> None:
        """Leave nothing behind; may be called twice."""

    def endpoint(self) -> Endpoint:
        """Where it is and as whom we speak."""


class Embedded:
    """API server, scheduler and controllers in this process."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._cluster = EmbeddedCluster(fleet=Fleet())

    def start(self) -> None:
        self._cluster.start()
        self._cluster.write_kubeconfig(self.kubeconfig)

    def stop(self) -> None:
        self._cluster.stop()

    def endpoint(self) -> Endpoint:
        return from_kubeconfig(self.kubeconfig)


class Real:
    """kube-apiserver, etcd, scheduler and controller-manager as child processes (`python -m tests.rig up`)."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._log = folder / "control-plane.log"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.rig",
            "up",
            "--kubeconfig",
            str(self.kubeconfig),
            "--controllers",
            "fleet",
        ]
        with self._log.open("wb") as log:
            # It ends when our end of its standard input closes, however we end.
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        for line in self._child.stdout or ():
            if line.startswith(b"READY"):
                return
        said = self._log.read_text(errors="replace").strip()
        raise ProgramEnded(f"no real control plane (run from a clone, after `make rig`): {said[-800:]}")

    def stop(self) -> None:
        if self._child and self._child.stdin:
            self._child.stdin.close()
            self._child.wait(60)
            self._child = None

    def endpoint(self) -> Endpoint:
        return from_kubeconfig(self.kubeconfig)


def session(endpoint: Endpoint) -> requests.Session:
    """A plain HTTP client with the endpoint's credentials."""
    client = requests.Session()
    # Proxies and CA bundles of the environment are meant for the outside world, not for a server on loopback.
    client.trust_env = False
    client.verify = endpoint.ca_file or True
    token = endpoint.token.current()
    if token:
        client.headers["Authorization"] = f"Bearer {token}"
    return client


def apply(client: requests.Session, url: str, objects: Iterable[dict[str, Any]]) -> None:
    """Create each object; one that exists already stays as it is. Raises requests.HTTPError on a refusal."""
    for item in objects:
        root = "/api/v1" if item["apiVersion"] == "v1" else f"/apis/{item['apiVersion']}"
        namespace = item["metadata"].get("namespace")
        where = f"/namespaces/{namespace}" if namespace else ""
        reply = client.post(f"{url}{root}{where}/{PLURALS[item['kind']]}", json=item, timeout=10)
        if reply.status_code != requests.codes.conflict:
            reply.raise_for_status()


def annotate(client: requests.Session, address: str, annotations: Mapping[str, str]) -> None:
    """`kubectl annotate` of the object at `address`; raises requests.HTTPError on a refusal."""
    headers = {"Content-Type": "application/merge-patch+json"}
    body = {"metadata": {"annotations": dict(annotations)}}
    client.patch(address, json=body, headers=headers, timeout=10).raise_for_status()
