"""Each brake as one small pure function: None = go on, a Wait = no, because of this.

They are asked before every destructive step (case.py gives the order); the first refusal is told.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from exporter.health import keys
from exporter.health.vocabulary import Health
from remediator.domain.deferrals import Code, Wait
from remediator.domain.model import ClusterView, ExporterState, GpuTarget, Incident, NodeFacts
from remediator.domain.opt_out import opted_out
from remediator.domain.policy import Mode, Policy, Rule

FOREIGN_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler is removing the node",
    "karpenter.sh/disrupted": "Karpenter is removing the node",
    "karpenter.sh/disruption": "Karpenter is removing the node",
    "node.kubernetes.io/out-of-service": "the node was declared out of service",
    "medik8s.io/remediation": "a medik8s remediator is at work on the node",
}
"""Taints by which another controller says that it is taking the node down."""
FOREIGN_ANNOTATIONS = {"weave.works/kured-reboot-in-progress": "kured is rebooting the node"}


def paused(view: ClusterView, policy: Policy) -> Wait | None:
    """The pause switch, in the policy or outside it."""
    if view.paused is not None:
        return Wait(code=Code.PAUSED, message=f"remediation is paused: {view.paused or 'no reason given'}")
    if policy.pause:
        return Wait(code=Code.PAUSED, message="remediation is paused by the policy (pause: true)")
    return None


def node_opted_out(node: NodeFacts, now: datetime) -> Wait | None:
    """The node's opt-out annotation; looked at again when it ends."""
    found = opted_out(node.annotations, now)
    if found is None:
        return None
    soon = now + timedelta(seconds=Code.OPTED_OUT.look_again_seconds)
    retry = min(found.until, soon) if found.until else None
    return Wait(code=Code.OPTED_OUT, message=f"node {node.name} is {found}", retry_at=retry)


def asked(incident: Incident, key: str) -> str | None:
    """The operator's reason in the incident annotation `key`; None = not asked ("false" takes it back)."""
    return wished(incident.annotations, key)


def wished(annotations: Mapping[str, str], key: str) -> str | None:
    """As `asked`, of bare annotations."""
    value = annotations.get(key)
    if value is None or value.strip().lower() == "false":
        return None
    return value.strip() or "no reason given"


def held(incident: Incident) -> Wait | None:
    """The hold annotation on the incident."""
    reason = asked(incident, keys.HOLD)
    return None if reason is None else Wait(code=Code.HELD, message=f"held by an operator: {reason}")


def mode_forbids(rule: Rule | None, incident: Incident) -> Wait | None:
    """The rule's mode; an approved incident of a recommend rule is treated as enforced."""
    mode = rule.mode if rule else Mode.OBSERVE
    if mode is Mode.ENFORCE or (mode is Mode.RECOMMEND and asked(incident, keys.APPROVE) is not None):
        return None
    if rule is None:
        return Wait(code=Code.OBSERVE, message=f"no rule matches {incident.fault}: observe only")
    if mode is Mode.OBSERVE:
        return Wait(code=Code.OBSERVE, message=f"rule {rule.name} is in mode observe")
    message = f"rule {rule.name} is in mode recommend: annotate the incident with {keys.APPROVE} to act"
    return Wait(code=Code.RECOMMEND, message=message)


def stale(exporter: ExporterState, now: datetime, stale_seconds: float) -> Wait | None:
    """No report, no heartbeat, one that is too old, or a driver that cannot be asked: health is unknown."""
    if exporter.report is None:
        return Wait(code=Code.UNKNOWN_HEALTH, message="the node has no health report")
    if exporter.heartbeat is None:
        return Wait(code=Code.UNKNOWN_HEALTH, message="the exporter of the node has never shown a heartbeat")
    if now - exporter.heartbeat > timedelta(seconds=stale_seconds):
        message = f"the exporter of the node is silent since {exporter.heartbeat:%H:%M:%S}: health is unknown"
        return Wait(code=Code.UNKNOWN_HEALTH, message=message)
    if exporter.report.driver_state != "ok":
        message = f"the driver cannot be asked ({exporter.report.driver_state}): health is unknown"
        return Wait(code=Code.UNKNOWN_HEALTH, message=message)
    return None


def unknown_target(exporter: ExporterState, gpu: GpuTarget | None) -> Wait | None:
    """The report itself calls the health of the target Unknown; for a node target that is the node's health."""
    report = exporter.report
    if report is None:
        return Wait(code=Code.UNKNOWN_HEALTH, message="the node has no health report")
    if gpu is None:
        if report.health is Health.UNKNOWN:
            return Wait(code=Code.UNKNOWN_HEALTH, message="the exporter reports the node's health as Unknown")
        return None
    device = next((device for device in report.gpus if device.uuid == gpu.uuid), None)
    if device is not None and device.health is Health.UNKNOWN:
        return Wait(code=Code.UNKNOWN_HEALTH, message=f"the exporter reports GPU {gpu.index} as Unknown")
    return None


def mapping_unknown(exporter: ExporterState) -> Wait | None:
    """Which pod is on which GPU is not known: never read as "no pods"."""
    if exporter.report is not None and exporter.report.mapping_known:
        return None
    return Wait(code=Code.MAPPING_UNKNOWN, message="the pods of each GPU are unknown (kubelet pod-resources)")


def node_not_ready(node: NodeFacts) -> Wait | None:
    """A dead kubelet can finish neither an eviction nor a repair."""
    if node.ready is True:
        return None
    state = "NotReady" if node.ready is False else "of unknown readiness"
    return Wait(code=Code.NODE_NOT_READY, message=f"node {node.name} is {state}")


def foreign_controller(node: NodeFacts) -> Wait | None:
    """Another controller is taking the node down or rebooting it: respect its mark and wait."""
    marks = [FOREIGN_TAINTS[taint.key] for taint in node.taints if taint.key in FOREIGN_TAINTS]
    marks += [words for key, words in FOREIGN_ANNOTATIONS.items() if key in node.annotations]
    return Wait(code=Code.FOREIGN, message=marks[0]) if marks else None
