"""Worlds with good defaults, so that a test shows only its one line of difference.

`a_node("n7", gpus=8)` is a healthy node with a living exporter; `a_pod(...)` a Deployment's 1-GPU pod; `a_view(...)`
a cluster of six such nodes that we lead; `a_policy()` enforces the certain faults with a Job repair and a Job test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

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
from remediator.domain.model import (
    ClusterView,
    ExporterState,
    GpuTarget,
    Incident,
    IncidentScope,
    NamespaceFacts,
    NodeFacts,
    NodeView,
    Phase,
    PodFacts,
    QuarantineRecord,
    Taint,
)
from remediator.domain.policy import Policy, load_policy

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
H100 = "NVIDIA H100 80GB HBM3"

REBOOT_FAULTS = {"xid-79": Advice.REBOOT_NODE, "gpu-lost": Advice.REBOOT_NODE}


def ago(seconds: float, now: datetime = NOW) -> datetime:
    return now - timedelta(seconds=seconds)


def uuid_of(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def a_finding(code: str = "xid-79", gpu: str | None = None, **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "code": code,
        "gpu": gpu,
        "severity": Severity.CRITICAL,
        "scope": Scope.GPU if gpu else Scope.NODE,
        "advice": REBOOT_FAULTS.get(code, Advice.RESET_GPU),
        "cleared_by": ClearedBy.REBOOT,
        "count": 1,
        "first_seen": ago(5),
        "last_seen": ago(5),
        "message": f"{code} happened",
        "source": "kernel-log",
    }
    return Finding(**{**fields, **changes})


def a_report(name: str = "n7", gpus: int = 8, boot: str = "boot-1", **changes: Any) -> HealthReport:
    devices = tuple(
        DeviceReport(
            uuid=uuid_of(name, index),
            index=index,
            minor=index,
            pci_bus_id=f"00000000:{index:02x}:00.0",
            serial=f"S{index}",
            model=H100,
            health=Health.HEALTHY,
        )
        for index in range(gpus)
    )
    fields: dict[str, Any] = {
        "node": name,
        "boot_id": BootId(boot),
        "observed_at": ago(1),
        "driver_version": "570.1",
        "exporter_version": "0.1.0",
        "expected_gpus": gpus,
        "seen_gpus": gpus,
        "health": Health.HEALTHY,
        "gpus": devices,
    }
    return HealthReport(**{**fields, **changes})


def a_node(name: str = "n7", gpus: int = 8, boot: str = "boot-1", **facts: Any) -> NodeView:
    """A healthy node; `facts` change its NodeFacts."""
    node = NodeFacts(
        name=name, uid=f"uid-{name}", gpu_allocatable=gpus, gpu_capacity=gpus, boot_id=boot, gpu_healthy="True"
    )
    exporter = ExporterState(report=a_report(name, gpus, boot), heartbeat=ago(10))
    return NodeView(node=replace(node, **facts), exporter=exporter, pods=())


def report_of(view: NodeView) -> HealthReport:
    assert view.exporter.report is not None
    return view.exporter.report


def reporting(view: NodeView, **changes: Any) -> NodeView:
    """The node with its report changed."""
    return replace(view, exporter=replace(view.exporter, report=replace(report_of(view), **changes)))


def silent(view: NodeView, seconds: float = 600) -> NodeView:
    """The node with an exporter that has been silent for so long."""
    return replace(view, exporter=replace(view.exporter, heartbeat=ago(seconds)))


def with_fault(view: NodeView, index: int | None = 3, code: str = "xid-79", **changes: Any) -> NodeView:
    """The node with a critical finding on GPU `index`, or on the node itself (None)."""
    report = report_of(view)
    if index is None:
        found = (*report.findings, a_finding(code, None, **changes))
        return reporting(view, findings=found, health=Health.UNHEALTHY)
    finding = a_finding(code, uuid_of(view.node.name, index), **changes)
    gpus = tuple(
        replace(gpu, findings=(*gpu.findings, finding), health=Health.UNHEALTHY) if gpu.index == index else gpu
        for gpu in report.gpus
    )
    return reporting(view, gpus=gpus, health=Health.UNHEALTHY)


def a_pod(name: str = "web-1", node: str | None = "n7", namespace: str = "team-a", **changes: Any) -> PodFacts:
    """A Running 1-GPU pod of the ReplicaSet `web`."""
    fields: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "uid": f"uid-{name}",
        "node": node,
        "owner_kind": "ReplicaSet",
        "owner_name": "web",
        "owner_uid": "uid-rs-web",
        "gpus": 1,
        "created_at": ago(3600),
    }
    return PodFacts(**{**fields, **changes})


BARE: dict[str, Any] = {"owner_kind": None, "owner_name": None, "owner_uid": None}


def placed(view: NodeView, *pods: tuple[PodFacts, int | None]) -> NodeView:
    """The node with these pods, each on the GPU of that index (None = not in the mapping)."""
    report = report_of(view)
    held: dict[int, list[DevicePod]] = {}
    for pod, index in pods:
        if index is not None:
            held.setdefault(index, []).append(
                DevicePod(namespace=pod.namespace, name=pod.name, uid="", container="main", resource="nvidia.com/gpu")
            )
    gpus = tuple(replace(gpu, pods=(*gpu.pods, *held.get(gpu.index, ()))) for gpu in report.gpus)
    listed = (*(view.pods or ()), *(pod for pod, _ in pods))
    return replace(reporting(view, gpus=gpus), pods=listed)


def tainted(view: NodeView, value: str = "xid-79") -> NodeView:
    """The node with our taint beside what it has."""
    ours = Taint(key=keys.UNHEALTHY_TAINT, value=value, effect=keys.NO_SCHEDULE)
    return replace(view, node=replace(view.node, taints=(*view.node.taints, ours)))


def annotated(view: NodeView, **annotations: str) -> NodeView:
    named = {ANNOTATIONS[word]: value for word, value in annotations.items()}
    return replace(view, node=replace(view.node, annotations={**view.node.annotations, **named}))


ANNOTATIONS = {"opt_out": keys.OPT_OUT, "until": keys.OPT_OUT_UNTIL}


def an_incident(phase: Phase = Phase.SUSPECTED, node: str = "n7", index: int | None = 3, **changes: Any) -> Incident:
    """An open incident for Xid 79; from Quarantined on with a verified node taint."""
    quarantined = phase is not Phase.SUSPECTED
    fields: dict[str, Any] = {
        "name": f"{node}-gpu{index}-aaaa" if index is not None else f"{node}-node-aaaa",
        "node": node,
        "node_uid": f"uid-{node}",
        "boot_id": "boot-1",
        "scope": IncidentScope.NODE if index is None else IncidentScope.GPU,
        "fault": "xid-79",
        "opened_at": ago(60),
        "gpu": None if index is None else GpuTarget(uuid=uuid_of(node, index), index=index, serial=f"S{index}"),
        "playbook": "certain",
        "uid": "uid-incident",
        "resource_version": "7",
        "phase": phase,
        "phase_since": ago(30),
        "findings": ("xid-79",),
        "quarantine": QuarantineRecord(method="node-taint", applied_at=ago(50), verified=True, boot_id="boot-1")
        if quarantined
        else None,
    }
    return Incident(**{**fields, **changes})


def a_view(*nodes: NodeView, incidents: Sequence[Incident] = (), **changes: Any) -> ClusterView:
    """A cluster that we lead: the given nodes, filled up with healthy ones to six."""
    filled = {node.node.name: node for node in nodes}
    for number in range(1, 7):
        if len(filled) < 6:
            filled.setdefault(f"n{number}", a_node(f"n{number}"))
    fields: dict[str, Any] = {
        "nodes": filled,
        "incidents": tuple(incidents),
        "namespaces": {name: NamespaceFacts(name=name) for name in ("team-a", "team-b")},
        "leader": True,
    }
    return ClusterView(**{**fields, **changes})


def a_job(command: str = "true") -> dict[str, Any]:
    """A Job template."""
    container = {"name": "main", "image": "tool", "command": [command, "{{gpu}}"]}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


def a_policy(mode: str = "enforce", budget: Mapping[str, Any] | None = None, **playbook: Any) -> Policy:
    """Certain faults on any node; reset by Job, test by Job, one minute of probation; `playbook` changes it."""
    book: dict[str, Any] = {
        "repair": [{"name": "reset", "job": a_job("reset"), "needs": "gpu", "timeoutSeconds": 600}],
        "validate": {"job": a_job("test"), "timeoutSeconds": 300},
        "probationSeconds": 60,
    }
    rule = {
        "name": "certain",
        "mode": mode,
        "faults": ["xid-79", "xid-48", "gpu-lost", "gpu-missing"],
        "playbook": {**book, **playbook},
    }
    return load_policy({"budget": dict(budget or {"nodes": 2}), "rules": [rule]})
