"""Which standing findings are a reason to act, and on what target.

Law: only critical findings that are not the application's own count. Scope of the target: a finding that names a GPU
is about that GPU, whatever it takes to repair it (Xid 79 asks for a reboot, yet only its own pods are lost); a
finding without a GPU is about the node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.health.vocabulary import Advice, DeviceReport, Finding, HealthReport, Scope, Severity
from remediator.domain.model import Incident, IncidentScope

_STRENGTH = {Advice.CONTACT_SUPPORT: 4, Advice.REBOOT_NODE: 3, Advice.RESET_GPU: 2, Advice.UNKNOWN: 1}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One actionable finding with its device (None = the node)."""

    finding: Finding
    device: DeviceReport | None

    @property
    def code(self) -> str:
        return self.finding.code

    @property
    def place(self) -> str:
        return f"GPU {self.device.index}" if self.device else "the node"


def actionable(finding: Finding) -> bool:
    """Stands, is critical, and is not an application's fault."""
    return finding.severity is Severity.CRITICAL and finding.scope is not Scope.APP


def standing(report: HealthReport) -> tuple[Fault, ...]:
    """All actionable faults of a node, per target the one that asks for the strongest repair first."""
    faults = [Fault(finding=f, device=None) for f in report.findings if actionable(f)]
    faults += [Fault(finding=f, device=gpu) for gpu in report.gpus for f in gpu.findings if actionable(f)]
    return tuple(sorted(faults, key=_rank))


def _rank(fault: Fault) -> tuple[int, int, str, str]:
    index = fault.device.index if fault.device else -1
    return index, -_STRENGTH.get(fault.finding.advice, 0), fault.finding.first_seen.isoformat(), fault.code


def on_target(faults: Iterable[Fault], incident: Incident) -> tuple[Fault, ...]:
    """The faults that concern the incident's target; a node incident is about the node's own findings."""
    if incident.scope is IncidentScope.NODE:
        return tuple(fault for fault in faults if fault.device is None)
    uuid = incident.gpu.uuid if incident.gpu else None
    return tuple(fault for fault in faults if fault.device is not None and fault.device.uuid == uuid)
