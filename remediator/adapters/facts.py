"""Kubernetes objects in the domain's words.

Law: what a server left out becomes "not known" or the safe reading, never a guess that would let us act.
"""

from datetime import datetime

from exporter.health import keys
from exporter.health.wire import parse_timestamp
from remediator.adapters import wire
from remediator.domain.model import JobFacts, NamespaceFacts, NodeFacts, PodFacts, Taint

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
_READINESS = {"True": True, "False": False}


def node_facts(item: wire.NodeObject) -> NodeFacts:
    conditions = {condition.type: condition.status for condition in item.status.conditions}
    return NodeFacts(
        name=item.metadata.name,
        uid=item.metadata.uid,
        resource_version=item.metadata.resource_version,
        labels=item.metadata.labels,
        annotations=item.metadata.annotations,
        taints=tuple(Taint(key=t.key, value=t.value, effect=t.effect) for t in item.spec.taints),
        unschedulable=item.spec.unschedulable,
        ready=_READINESS.get(conditions.get("Ready", "Unknown")),
        boot_id=item.status.node_info.boot_i_d,
        gpu_allocatable=_gpus(item.status.allocatable),
        gpu_capacity=_gpus(item.status.capacity),
        gpu_healthy=conditions.get(keys.GPU_HEALTHY_CONDITION),
    )


def pod_facts(item: wire.PodObject) -> PodFacts:
    meta, owner = item.metadata, item.metadata.controller()
    return PodFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=item.spec.node_name or None,
        phase=item.status.phase or "Pending",
        ready=any(c.type == "Ready" and c.status == "True" for c in item.status.conditions),
        owner_kind=owner.kind if owner else None,
        owner_name=owner.name if owner else None,
        owner_uid=owner.uid if owner else None,
        labels=meta.labels,
        annotations=meta.annotations,
        priority=item.spec.priority,
        deletion_timestamp=_moment(meta.deletion_timestamp),
        gpus=gpus_of(item.spec),
        is_mirror=MIRROR_ANNOTATION in meta.annotations,
        is_daemonset=owner is not None and owner.kind == "DaemonSet",
        has_local_storage=_writes_to_host(item.spec),
        finalizers=meta.finalizers,
        created_at=_moment(meta.creation_timestamp),
        start_time=_moment(item.status.start_time),
        message=_why_not_running(item.status),
    )


def job_facts(item: wire.JobObject) -> JobFacts:
    conditions = {c.type: c for c in item.status.conditions if c.status == "True"}
    complete, failed = conditions.get("Complete"), conditions.get("Failed")
    ended = complete or failed
    return JobFacts(
        name=item.metadata.name,
        uid=item.metadata.uid,
        incident=item.metadata.labels.get(keys.INCIDENT_LABEL, ""),
        step=item.metadata.labels.get(keys.STEP_LABEL, ""),
        succeeded=complete is not None,
        failed=failed is not None,
        finished_at=_moment(ended.last_transition_time) if ended else None,
        message=f"{failed.reason}: {failed.message}".strip(": ") if failed else "",
    )


def namespace_facts(item: wire.NamespaceObject) -> NamespaceFacts:
    return NamespaceFacts(name=item.metadata.name, labels=item.metadata.labels, annotations=item.metadata.annotations)


def gpus_of(spec: wire.PodSpec) -> int:
    """GPUs that the pod asks for: containers added up, init containers by their maximum, whichever is more."""
    together = sum(_asked(container) for container in spec.containers)
    return max([together, *(_asked(container) for container in spec.init_containers)])


def _asked(container: wire.Container) -> int:
    # Extended resources are integers and requests equal limits; a limit alone is allowed.
    wanted = {name: bytes(raw).decode() for name, raw in container.resources.requests.items()}
    wanted |= {name: bytes(raw).decode() for name, raw in container.resources.limits.items()}
    return _gpus({name: text.strip('"') for name, text in wanted.items()})


def _gpus(quantities: dict[str, str]) -> int:
    return sum(_count(text) for name, text in quantities.items() if name.startswith(keys.GPU_RESOURCE_PREFIX))


def _count(text: str) -> int:
    # Quantities of devices are plain integers, but "1k" is legal spelling: at least one rather than none.
    return int(text) if text.isdigit() else 1


def _writes_to_host(spec: wire.PodSpec) -> bool:
    paths = {volume.name for volume in spec.volumes if volume.host_path is not None}
    containers = (*spec.containers, *spec.init_containers)
    return any(mount.name in paths and not mount.read_only for c in containers for mount in c.volume_mounts)


def _why_not_running(status: wire.PodStatus) -> str:
    for condition in status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message[:200]
    for container in status.container_statuses:
        if container.state.waiting is not None:
            return f"{container.state.waiting.reason}: {container.state.waiting.message}"[:200].strip(": ")
    return status.reason


def _moment(text: wire.Time) -> datetime | None:
    if not text:
        return None
    try:
        return parse_timestamp(text)
    except ValueError:
        return None
