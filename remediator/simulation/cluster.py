"""`EmbeddedCluster`: the API server, and by choice scheduler, controllers and kubelets, as one context manager."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources as package_data
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from remediator.simulation.api import Api
from remediator.simulation.calls import Call, Reply
from remediator.simulation.client import HttpClient
from remediator.simulation.control_loop import ControlLoop
from remediator.simulation.controllers import Pace, control_loop
from remediator.simulation.http import ApiHttpServer, Behaviour, Intercept
from remediator.simulation.kubelet import Kubelets
from remediator.simulation.kubelet_hooks import KubeletHooks, Timing
from remediator.simulation.registration import NodeSpec
from remediator.simulation.status_errors import Obj
from remediator.simulation.store import Store
from remediator.simulation.watching import Watch
from remediator.simulation.writes import Clock

PRIORITIES = {
    "system-cluster-critical": (2_000_000_000, "can be moved from their current node if necessary"),
    "system-node-critical": (2_000_001_000, "must not be moved from their current node"),
}
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What runs beside the API server: scheduler, controllers, kubelets."""

    hooks: KubeletHooks | None = None
    timing: Timing = field(default_factory=Timing)
    pace: Pace = field(default_factory=Pace)


class ClusterError(RuntimeError):
    """The embedded API server refused what `apply` asked for."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class EmbeddedCluster:
    """An embedded Kubernetes API server on loopback; use it as a context manager."""

    def __init__(
        self,
        port: int = 0,
        *,
        tokens: Mapping[str, str] | None = None,
        clock: Clock = utc_now,
        behaviour: Behaviour | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        """`port` 0 takes a free one; `tokens` maps bearer tokens to users, None lets everyone in.

        Without a `fleet` it is an API server alone: nothing schedules, runs or cleans up.
        """
        behaviour = behaviour or Behaviour()
        self.store = Store(behaviour.history)
        self.api = Api(self.store, clock, tokens)
        self._token = next(iter(tokens), "") if tokens else ""
        self._server = ApiHttpServer(self.api, behaviour, port)
        self._fleet = fleet
        self._loop: ControlLoop | None = None
        self._kubelets: Kubelets | None = None
        self._stopped = False

    @property
    def url(self) -> str:
        """Base URL, without a trailing slash."""
        return f"http://127.0.0.1:{self._server.port}"

    def start(self) -> None:
        """Ready when it returns: namespaces and our two CRDs are there."""
        self._server.start()
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES)
        self.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "description": f"Used for system critical pods that {told}.",
            }
            for name, (value, told) in PRIORITIES.items()
        )
        self.apply(crd_manifests())
        if self._fleet is not None:
            self._loop = control_loop(self.api, self._token, self._fleet.pace)
            self._loop.start()
            self._kubelets = Kubelets(HttpClient(self.url, self._token), self._fleet.hooks, self._fleet.timing)
            self._kubelets.start()

    def stop(self) -> None:
        """Leaves no thread and no socket; a second call does nothing."""
        if not self._stopped:
            self._stopped = True
            if self._kubelets is not None:
                self._kubelets.stop()
            if self._loop is not None:
                self._loop.stop()
            self._server.stop()

    def __enter__(self) -> "EmbeddedCluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubelets(self) -> Kubelets:
        """The fake kubelets; ClusterError when the cluster has no fleet."""
        if self._kubelets is None:
            raise ClusterError("this cluster was made without a fleet, or is not started")
        return self._kubelets

    def add_node(self, name: str, gpus: Sequence[str] = (), labels: Mapping[str, str] | None = None) -> None:
        """A Ready node whose `nvidia.com/gpu` devices have these ids (UUIDs)."""
        devices = {"nvidia.com/gpu": tuple(gpus)} if gpus else {}
        self.kubelets.add_node(NodeSpec(name=name, devices=devices, labels=labels or {}))

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Reply:
        """One request without the wire; the answer may be a refusal. Not for watches."""
        headers = {"content-type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        raw = b"" if body is None else json.dumps(body).encode()
        answer = self.api.answer(Call(method=method, path=path, query=query, headers=headers, body=raw))
        if isinstance(answer, Watch):
            raise ClusterError("request() does not watch; use the URL")
        return answer

    def apply(self, objects: Iterable[Obj]) -> list[Obj]:
        """Creates each object, or merge-patches it where it exists; raises ClusterError when refused."""
        return [self._apply(obj) for obj in objects]

    def _apply(self, obj: Obj) -> Obj:
        resource = self.api.registry.by_kind(obj["apiVersion"], obj["kind"])
        if resource is None:
            raise ClusterError(f"{obj['apiVersion']} {obj['kind']} is not served")
        prefix = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        if resource.namespaced:
            prefix += f"/namespaces/{obj['metadata'].get('namespace', 'default')}"
        path = f"{prefix}/{resource.plural}"
        reply = self.request("POST", path, obj)
        if reply.code == 409:
            reply = self.request("PATCH", f"{path}/{obj['metadata']['name']}", obj)
        if reply.code >= 300:
            raise ClusterError(f"{obj['kind']} {obj['metadata'].get('name')}: {reply.body}")
        stored: Obj = reply.body
        if "status" in obj and "status" in resource.subresources:
            name = stored["metadata"]["name"]
            stored = self.request("PATCH", f"{path}/{name}/status", {"status": obj["status"]}).body
        return stored

    def intercept(self, answer: Intercept | None) -> None:
        """Lets a test answer requests in the server's place; None ends it."""
        self._server.intercept = answer

    def expire_history(self) -> None:
        """Provokes 410 for every older watch and continue token, as a restart of the real server does."""
        self.store.compact()
        self.api.reads.forget_pages()

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig; returns `path`. kubectl sends no token over plain HTTP: use a cluster without tokens for it."""
        user = {"token": self._token} if self._token else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "embedded",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url}}],
            "users": [{"name": "embedded", "user": user}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
        }
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        path.chmod(0o600)
        return path


def crd_manifests() -> list[Obj]:
    """Our CustomResourceDefinitions, from the package data of the domain."""
    folder = package_data.files("remediator.domain").joinpath("crds")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return [yaml.safe_load(file.read_text()) for file in files]
