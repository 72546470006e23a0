"""What the observer must list besides its watches: pods are never watched cluster-wide.

Pods of a node are needed while an incident is open on it, or a fault on it could open one; pods of a namespace while
we wait there for the replacement of a pod that we evicted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.health.vocabulary import HealthReport, Severity
from remediator.domain.model import Fate, Incident

AWAITING_REPLACEMENT = (Fate.EVICTING, Fate.GONE, Fate.UNPLACED)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Where to list pods before the next turn."""

    nodes: frozenset[str] = frozenset()
    """List by field selector spec.nodeName and hand over as `NodeView.pods`."""
    namespaces: frozenset[str] = frozenset()
    """Needed for opt-out annotations (`ClusterView.namespaces`) and, by owner, as `ClusterView.pods_by_owner`."""


def attention(reports: Mapping[str, HealthReport], incidents: Iterable[Incident]) -> Attention:
    """Nodes and namespaces whose pods the next view must hold; `reports` by node name."""
    still_open = tuple(incident for incident in incidents if incident.open)
    nodes = {incident.node for incident in still_open}
    nodes |= {name for name, report in reports.items() if _has_critical(report)}
    namespaces = {pod.namespace for incident in still_open for pod in incident.pods if pod.fate in AWAITING_REPLACEMENT}
    return Attention(nodes=frozenset(nodes), namespaces=frozenset(namespaces))


def _has_critical(report: HealthReport) -> bool:
    findings = (*report.findings, *(finding for gpu in report.gpus for finding in gpu.findings))
    return any(finding.severity is Severity.CRITICAL for finding in findings)
