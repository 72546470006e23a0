"""A small GPU cluster on an API server: nodes, exporters' words, workloads, and who brings pods back.

Only what the remediator sees is here; the real exporter, scheduler and kubelets join in tests/e2e.
"""

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

from exporter.health import keys
from exporter.health.vocabulary import (
    Advice,
    BootId,
    ClearedBy,
    DevicePod,
    DeviceReport,
    Finding,
    Health,
    HealthReport,
    Scope,
    Severity,
)
from exporter.health.wire import report_to_status
from remediator.simulation.calls import Reply

PODS = "/api/v1/namespaces/team/pods"


class Server(Protocol):
    """The API server: `EmbeddedCluster`, or a real one (tests/rig/world_server.py)."""

    def request(self, method: str, path: str, body: Any = None) -> Reply: ...

    def apply(self, objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]: ...


class World:
    """State of the machines; writes what exporters, kubelets and controllers would write."""

    def __init__(self, cluster: Server, gpus: int = 2) -> None:
        self.cluster = cluster
        self.gpus = gpus
        self.boots: dict[str, int] = {}
        self.faults: dict[tuple[str, int], str] = {}
        self.where: dict[str, tuple[str, int]] = {}
        """Pod name -> (node, GPU index)."""
        self.evicted: list[str] = []
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._live, daemon=True)
        for name in ("gpuward", "team"):
            cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def add_node(self, name: str, **annotations: str) -> None:
        self.boots[name] = 1
        count = {"nvidia.com/gpu": str(self.gpus), "cpu": "8", "memory": "64Gi", "pods": "110"}
        [node] = self.cluster.apply(
            [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "annotations": {k.replace("_", "/"): v for k, v in annotations.items()}},
                    "status": {
                        "capacity": count,
                        "allocatable": count,
                        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}],
                    },
                }
            ]
        )
        if node["spec"].get("taints"):
            self.cluster.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        self.report(name)
        self.beat(name)

    def add_pod(self, node: str, gpu: int, *, owner: str | None = "rs", labels: dict[str, str] | None = None) -> str:
        with self._lock:
            self._number += 1
            name = f"{owner or 'bare'}-{self._number}"
            pod: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "team", "labels": labels or {"app": owner or "bare"}},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "x:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                },
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }
            if owner:
                pod["metadata"]["ownerReferences"] = [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "ReplicaSet",
                        "name": owner,
                        "uid": self._owner(owner),
                        "controller": True,
                    }
                ]
            self.cluster.apply([pod])
            self.where[name] = (node, gpu)
            self.report(node)
            return name

    def _owner(self, name: str) -> str:
        """The UID of a controller of that name; a real garbage collector deletes pods of owners that do not exist."""
        labels, meta = {"app": name}, {"name": name, "namespace": "team"}
        pods = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "x:1"}]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pods}
        made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec}
        return str(self.cluster.apply([made])[0]["metadata"]["uid"])

    def fault(self, node: str, gpu: int, code: str = "xid-79") -> None:
        with self._lock:
            self.faults[(node, gpu)] = code
        self.report(node)

    def reboot(self, node: str) -> None:
        """As a repair does it: a new boot id, and the faults of the node are gone."""
        with self._lock:
            self.boots[node] += 1
            self.faults = {at: code for at, code in self.faults.items() if at[0] != node}
        self.report(node)

    def report(self, node: str) -> None:
        """The exporter of `node` writes its GPUNode."""
        with self._lock:
            status = report_to_status(self._report(node))
        self.cluster.apply(
            [{"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND, "metadata": {"name": node}, "status": status}]
        )

    def beat(self, node: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": node, "leaseDurationSeconds": 90, "renewTime": now}
        meta = {"name": node, "namespace": "gpuward"}
        self.cluster.apply([{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}])

    def node(self, name: str) -> dict[str, Any]:
        return self._get(f"/api/v1/nodes/{name}")

    def taints(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.node(name)["spec"].get("taints") or []]

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self._get(PODS)["items"]}

    def incidents(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._get("/apis/gpuward.io/v1alpha1/gpuincidents")["items"]
        return items

    def phase(self) -> str:
        return ",".join(sorted(item.get("status", {}).get("phase", "none") for item in self.incidents()))

    def _get(self, path: str) -> dict[str, Any]:
        reply = self.cluster.request("GET", path)
        assert reply.code == 200, reply.body
        body: dict[str, Any] = reply.body
        return body

    def _report(self, node: str) -> HealthReport:
        now = datetime.now(UTC)
        boot = BootId(f"{node}-boot-{self.boots[node]}")
        gpus = tuple(self._device(node, index, boot, now) for index in range(self.gpus))
        worst = Health.UNHEALTHY if any(gpu.findings for gpu in gpus) else Health.HEALTHY
        return HealthReport(
            node=node,
            boot_id=boot,
            observed_at=now,
            driver_version="580.1",
            exporter_version="test",
            expected_gpus=self.gpus,
            seen_gpus=self.gpus,
            health=worst,
            gpus=gpus,
        )

    def _device(self, node: str, index: int, boot: BootId, now: datetime) -> DeviceReport:
        uuid, code = f"GPU-{node}-{index}", self.faults.get((node, index))
        finding = Finding(
            code=code or "",
            gpu=uuid,
            severity=Severity.CRITICAL,
            scope=Scope.GPU,
            advice=Advice.REBOOT_NODE,
            cleared_by=ClearedBy.REBOOT,
            count=1,
            first_seen=now,
            last_seen=now,
            message="has fallen off the bus",
            source="nvml-event",
            boot_id=boot,
        )
        held = [name for name, at in self.where.items() if at == (node, index)]
        pods = tuple(
            DevicePod(namespace="team", name=name, uid="", container="main", resource="nvidia.com/gpu") for name in held
        )
        return DeviceReport(
            uuid=uuid,
            index=index,
            minor=index,
            pci_bus_id=f"0000:0{index}:00.0",
            serial=None,
            model="NVIDIA H100 80GB HBM3",
            health=Health.UNHEALTHY if code else Health.HEALTHY,
            findings=(finding,) if code else (),
            pods=pods,
        )

    def _live(self) -> None:
        """Kubelets end terminating pods, controllers bring new ones, repair Jobs reboot, validation Jobs pass."""
        while not self._stopping.wait(0.05):
            for name, pod in self.pods().items():
                if pod["metadata"].get("deletionTimestamp"):
                    self._end(name, pod)
            jobs = self._get("/apis/batch/v1/namespaces/gpuward/jobs")["items"]
            for job in jobs:
                if not (job.get("status") or {}).get("conditions"):
                    self._run(job)

    def _end(self, name: str, pod: dict[str, Any]) -> None:
        with self._lock:
            node, _ = self.where.pop(name, ("", 0))
            self.evicted.append(name)
            body = {"gracePeriodSeconds": 0}
            self.cluster.request("DELETE", f"{PODS}/{name}", body)
            owners = pod["metadata"].get("ownerReferences") or []
            self.report(node)
            free = self._free()
            if owners and free:
                self.add_pod(*free, owner=owners[0]["name"], labels=pod["metadata"]["labels"])

    def _free(self) -> tuple[str, int] | None:
        taken = set(self.where.values())
        for node in self.boots:
            if keys.UNHEALTHY_TAINT in self.taints(node):
                continue
            for index in range(self.gpus):
                if (node, index) not in taken:
                    return node, index
        return None

    def _run(self, job: dict[str, Any]) -> None:
        meta = job["metadata"]
        if meta["labels"][keys.STEP_LABEL] == "repair":
            self.reboot(meta["labels"][keys.NODE_LABEL])
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        done = {"type": "Complete", "status": "True", "lastTransitionTime": now, "lastProbeTime": now}
        criteria = {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now, "lastProbeTime": now}
        status = {"conditions": [criteria, done], "succeeded": 1, "startTime": now, "completionTime": now}
        self.cluster.request(
            "PATCH", f"/apis/batch/v1/namespaces/gpuward/jobs/{meta['name']}/status", {"status": status}
        )


def eventually(check: Callable[[], object], within: float = 10.0, what: str = "") -> None:
    """Wait until `check` is true; fails with `what` after `within` seconds."""
    end = time.monotonic() + within
    while not check():
        assert time.monotonic() < end, what or "not in time"
        time.sleep(0.02)
