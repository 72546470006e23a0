"""Who is on the bad GPU: the exporter's mapping joined with the API server's pods.

Laws:
1. The API server says which pods exist, the mapping says where they are. A pod that asks for GPUs and is in no
   mapping is unplaced knowledge (`unmapped`), never "not there".
2. A pod that is terminating, not ready or stuck still holds its GPU until its object is gone.
3. Never "no pods found, so done": callers ask `guards.mapping_unknown` and `NodeView.pods` first.
"""

from exporter.health import keys
from exporter.health.vocabulary import DevicePod, HealthReport
from remediator.domain.case import Case
from remediator.domain.model import IncidentScope, PodFacts


def live_pods(case: Case) -> tuple[PodFacts, ...] | None:
    """Pods of the node that have not ended, our own Jobs' pods apart (tools, not tenants); None = not listed."""
    if case.node is None or case.node.pods is None:
        return None
    return tuple(pod for pod in case.node.pods if not pod.terminal and keys.INCIDENT_LABEL not in pod.labels)


def whole_node(case: Case) -> bool:
    """All GPU pods of the node are concerned, not only those of one GPU."""
    return case.incident.scope is IncidentScope.NODE or case.playbook.drain.pods == "node"


def on_device(case: Case, pods: tuple[PodFacts, ...]) -> tuple[PodFacts, ...]:
    """Pods with at least one container on the incident's GPU."""
    device = case.device
    return tuple(pod for pod in pods if device and any(_same(pod, held) for held in device.pods))


def with_gpus(case: Case, pods: tuple[PodFacts, ...]) -> tuple[PodFacts, ...]:
    """Pods of the node that ask for a GPU or are mapped to one."""
    held = mapped(case.report)
    return tuple(pod for pod in pods if pod.gpus > 0 or any(_same(pod, device_pod) for device_pod in held))


def victims(case: Case, pods: tuple[PodFacts, ...]) -> tuple[PodFacts, ...]:
    """Pods that must leave, lowest priority first, then by name."""
    found = with_gpus(case, pods) if whole_node(case) else on_device(case, pods)
    return tuple(sorted(found, key=lambda pod: (pod.priority, pod.namespace, pod.name)))


def unmapped(case: Case, pods: tuple[PodFacts, ...]) -> tuple[PodFacts, ...]:
    """Pods that ask for GPUs but are on no device of the mapping: where they are is not known yet."""
    held = mapped(case.report)
    return tuple(pod for pod in pods if pod.gpus > 0 and not any(_same(pod, device_pod) for device_pod in held))


def mapped(report: HealthReport | None) -> tuple[DevicePod, ...]:
    """Every container on every GPU of the node, as the exporter reports it."""
    return tuple(pod for device in report.gpus for pod in device.pods) if report else ()


def _same(pod: PodFacts, held: DevicePod) -> bool:
    """Joined by namespace and name, because the kubelet's socket tells no UID; by UID as well where it is told."""
    return (pod.namespace, pod.name) == (held.namespace, held.name) and held.uid in ("", pod.uid)
