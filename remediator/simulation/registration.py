"""What a kubelet says about its node: the Node object, its status, its Lease."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from exporter.health.wire import timestamp
from remediator.simulation.client import STRATEGIC, HttpClient
from remediator.simulation.node_devices import DeviceBook
from remediator.simulation.status_errors import ApiError

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 40
"""leaseDurationSeconds of a kubelet."""


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A machine."""

    name: str
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Extended resource -> device ids, in the order in which they are given out."""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = 110


class Registration:
    """Writes what a kubelet writes."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._ready_since: dict[str, tuple[str, str]] = {}

    def register(self, spec: NodeSpec) -> None:
        """Node and Lease exist afterwards."""
        labels = {
            "kubernetes.io/hostname": spec.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **spec.labels,
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": spec.name, "labels": labels}}
        self._create("/api/v1/nodes", node)
        holder = {"holderIdentity": spec.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micro_now()}
        metadata = {"name": spec.name}
        self._create(
            LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": holder}
        )

    def _create(self, path: str, body: Mapping[str, object]) -> None:
        try:
            self._client.request("POST", path, body)
        except ApiError as error:
            if error.code != 409:
                raise

    def renew(self, name: str) -> None:
        """The heartbeat."""
        self._client.request("PATCH", f"{LEASES}/{name}", {"spec": {"renewTime": micro_now()}})

    def announce(self, spec: NodeSpec, boot_id: str, book: DeviceBook) -> None:
        """Capacity, Ready and the boot id."""
        now = timestamp(datetime.now(UTC))
        basic = {"cpu": spec.cpu, "memory": spec.memory, "pods": str(spec.pods)}
        info = {
            "bootID": boot_id,
            "kubeletVersion": "v1.36.3",
            "osImage": "simulated",
            "kernelVersion": "6.18.0",
            "operatingSystem": "linux",
            "architecture": "amd64",
            "containerRuntimeVersion": "simulated://1",
        }
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": now,
            "lastTransitionTime": self._since(spec.name, boot_id, now),
        }
        status = {
            "capacity": basic | book.capacity(),
            "allocatable": basic | book.allocatable(),
            "conditions": [ready],
            "addresses": [{"type": "Hostname", "address": spec.name}],
            "nodeInfo": info,
        }
        self._client.request("PATCH", f"/api/v1/nodes/{spec.name}/status", {"status": status}, STRATEGIC)

    def _since(self, name: str, boot_id: str, now: str) -> str:
        """Ready since the first announcement of this boot."""
        if self._ready_since.get(name, ("", ""))[0] != boot_id:
            self._ready_since[name] = (boot_id, now)
        return self._ready_since[name][1]


def micro_now() -> str:
    """MicroTime of now."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
