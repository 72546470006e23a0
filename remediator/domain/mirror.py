"""The node condition GPUHealthy: our verdict in a form that other controllers understand.

Laws: only on nodes that some enforce rule selects, never on an opted-out node; written when the status changes, not
when a word of the message does, because every node status write costs all kubelet watchers.
"""

from collections.abc import Iterator
from datetime import datetime

from exporter.health.vocabulary import Health, HealthReport
from remediator.domain import guards
from remediator.domain.actions import MirrorCondition
from remediator.domain.case import settling
from remediator.domain.faults import standing
from remediator.domain.model import ClusterView, NodeView
from remediator.domain.policy import Mode, Policy

PER_TURN = 50
"""Conditions written per turn: a start in a cluster of 5,000 nodes must not be a write storm."""


def mirrored(view: ClusterView, policy: Policy, now: datetime) -> Iterator[MirrorCondition]:
    """The conditions that differ from what the exporters say, a bounded number per turn."""
    if not policy.mirror_condition or guards.paused(view, policy):
        return
    left = PER_TURN
    for name in sorted(view.nodes):
        node = view.nodes[name]
        if left == 0:
            return
        if not _ours_to_write(node, policy, now):
            continue
        status, reason, message = verdict(node, policy, now)
        if status == node.node.gpu_healthy:
            continue
        wish = MirrorCondition(node=name, node_uid=node.node.uid, status=status, reason=reason, message=message[:512])
        if not settling(view.outcomes.get(wish.key), now):
            left -= 1
            yield wish


def _ours_to_write(node: NodeView, policy: Policy, now: datetime) -> bool:
    if node.exporter.report is None or guards.node_opted_out(node.node, now):
        return False
    labels = node.node.labels
    return any(
        rule.mode is Mode.ENFORCE and all(labels.get(key) == value for key, value in rule.node_selector.items())
        for rule in policy.rules
    )


def verdict(node: NodeView, policy: Policy, now: datetime) -> tuple[str, str, str]:
    """Status, CamelCase reason and message of the condition."""
    unknown = guards.stale(node.exporter, now, policy.heartbeat_stale_seconds)
    report = node.exporter.report
    if unknown is not None or report is None:
        return "Unknown", "HealthUnknown", unknown.message if unknown else "no report"
    if report.health is Health.UNHEALTHY:
        return "False", "GPUFault", _faults(report)
    if report.health is Health.UNKNOWN:
        return "Unknown", "HealthUnknown", "the exporter reports the health as Unknown"
    return "True", "GPUsHealthy", f"{report.seen_gpus} GPUs, none unhealthy"


def _faults(report: HealthReport) -> str:
    return "; ".join(f"{fault.code} on {fault.place}" for fault in standing(report)) or "unhealthy"
