"""What the demo sees: the API server and the exporters' `/metrics`, by plain HTTP like any other client."""

import re
from collections.abc import Mapping
from typing import Any

import requests

from exporter.health import keys

SAMPLE = re.compile(r"^(?P<name>[a-z_0-9]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
TIMEOUT_SECONDS = 5.0


class Eyes:
    """Reads of one cluster and its exporters; every method asks anew."""

    def __init__(self, api: str, session: requests.Session, exporters: Mapping[str, str]) -> None:
        self._api = api
        self._session = session
        self._exporters = exporters

    def get(self, path: str) -> dict[str, Any]:
        """One object or list from the API server; raises requests.HTTPError."""
        reply = self._session.get(self._api + path, timeout=TIMEOUT_SECONDS)
        reply.raise_for_status()
        found: dict[str, Any] = reply.json()
        return found

    def pods(self, namespace: str, **labels: str) -> list[dict[str, Any]]:
        """Pods of a namespace that carry `labels`."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found: list[dict[str, Any]] = self.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
        return found

    def node(self, name: str) -> dict[str, Any]:
        return self.get(f"/api/v1/nodes/{name}")

    def taint(self, node: str) -> str | None:
        """Value of our taint on a node; None = not there."""
        taints = self.node(node)["spec"].get("taints") or []
        return next((taint.get("value", "") for taint in taints if taint["key"] == keys.UNHEALTHY_TAINT), None)

    def gpu_node(self, name: str) -> dict[str, Any]:
        """Status of a GPUNode; empty while there is none."""
        reply = self._session.get(
            f"{self._api}/apis/{keys.API_VERSION}/{keys.GPU_NODES}/{name}", timeout=TIMEOUT_SECONDS
        )
        return dict(reply.json().get("status") or {}) if reply.ok else {}

    def incidents(self, node: str) -> list[dict[str, Any]]:
        """GPUIncidents of one node, oldest first."""
        found = self.get(f"/apis/{keys.API_VERSION}/{keys.GPU_INCIDENTS}")["items"]
        mine = [incident for incident in found if incident["spec"]["nodeName"] == node]
        return sorted(mine, key=lambda incident: str(incident["spec"]["openedAt"]))

    def events(self, node: str) -> list[dict[str, Any]]:
        """Events about one node."""
        found = self.get("/api/v1/events")["items"]
        return [event for event in found if event["involvedObject"].get("name") == node]

    def metric(self, node: str, name: str, **labels: str) -> float | None:
        """One sample of an exporter's `/metrics`; None = absent."""
        reply = requests.get(f"{self._exporters[node]}/metrics", timeout=TIMEOUT_SECONDS)
        reply.raise_for_status()
        for line in reply.text.splitlines():
            sample = SAMPLE.match(line)
            if sample and sample["name"] == name:
                found = dict(LABEL.findall(sample["labels"] or ""))
                if all(found.get(key) == value for key, value in labels.items()):
                    return float(sample["value"])
        return None
