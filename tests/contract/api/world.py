"""The objects that contract cases are about, under names of their own, and what is removed afterwards."""

import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.contract.api.asking import Ask, Object, Server

T = TypeVar("T")

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
GPU_NODES = "/apis/gpuward.io/v1alpha1/gpunodes"
INCIDENTS = "/apis/gpuward.io/v1alpha1/gpuincidents"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def eventually(what: str, look: Callable[[], T | None], seconds: float = 10.0) -> T:
    """The first true answer of `look`; AssertionError when none comes in time."""
    end = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class World:
    """A fresh name, and objects made under it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = f"t{secrets.token_hex(4)}"
        self._made: list[str] = []

    def make(self, collection: str, body: Object, status: Object | None = None) -> Object:
        """Creates an object (with its status) and removes it at the end."""
        made = self.server.must("POST", collection, body)
        path = f"{collection}/{made['metadata']['name']}"
        self._made.append(path)
        return self.server.merge(f"{path}/status", {"status": status}) if status else made

    def forget_later(self, path: str) -> None:
        """Removes an object that the test itself creates."""
        self._made.append(path)

    def node(self, **status: Any) -> Object:
        """A node without taints."""
        self.make(NODES, {"metadata": {"name": self.name}}, {"conditions": [READY], **status})
        return self.server.merge(f"{NODES}/{self.name}", {"spec": {"taints": None}})

    def gpu_node(self, status: Object | None = None) -> Object:
        return self.make(GPU_NODES, a_gpu_node(self.name), status)

    def incident(self, status: Object | None = None, node: str = "n7") -> Object:
        return self.make(INCIDENTS, an_incident(self.name, node), status)

    def pod(self, *, running: bool = True, suffix: str = "", **spec: Any) -> Object:
        """A pod on a node that it makes by itself once (bound, so that no scheduler moves it)."""
        if f"{NODES}/{self.name}" not in self._made:
            self.node()
        body = a_pod(self.name + suffix, nodeName=self.name, **spec)
        body["metadata"]["labels"] = {"app": self.name}
        return self.make(PODS, body, {"phase": "Running", "conditions": [READY]} if running else None)

    def budget(self, suffix: str = "", **spec: Any) -> Object:
        """A budget over our pods, seen by the disruption controller."""
        selector = {"matchLabels": {"app": self.name}}
        name = self.name + suffix
        self.make(BUDGETS, {"metadata": {"name": name}, "spec": {"selector": selector, **spec}})

        def observed() -> Object | None:
            found = self.server.get(f"{BUDGETS}/{name}")
            return found if found["status"].get("observedGeneration") == 1 else None

        return eventually("the budget is observed", observed)

    def clean_up(self) -> None:
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        for path in reversed(self._made):
            if self.server.ask(Ask(method="DELETE", path=path, body=options)).status == 200:
                finalizers = {"metadata": {"finalizers": None}}
                kind = "application/merge-patch+json"
                self.server.ask(Ask(method="PATCH", path=path, body=finalizers, kind=kind))


READY: Object = {"type": "Ready", "status": "True"}


def a_gpu_node(name: str) -> Object:
    return {"apiVersion": "gpuward.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}


def an_incident(name: str, node: str = "n7") -> Object:
    spec = {
        "nodeName": node,
        "nodeUID": "u",
        "scope": "GPU",
        "fault": "xid-79",
        "bootID": "b",
        "openedAt": "2026-01-01T00:00:00Z",
    }
    return {"apiVersion": "gpuward.io/v1alpha1", "kind": "GPUIncident", "metadata": {"name": name}, "spec": spec}


def a_pod(name: str, **spec: Any) -> Object:
    containers = [{"name": "main", "image": "pause:1"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def eviction(name: str, **options: Any) -> Object:
    """The body of an eviction."""
    body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return body | ({"deleteOptions": options} if options else {})
