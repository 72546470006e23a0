"""What the planner may ask for: a closed union of idempotent actions, and the plan that holds them.

Laws:
1. Each action is safe to repeat: repeating a finished one changes nothing and counts as `Done`.
2. Actions of one `chain` run in the order of the plan. When a `gates` action is not `Done`, the rest of its chain is
   dropped for this turn: an intent that was not stored is never acted on (write-ahead). Other chains go on.
3. At most one of OpenIncident, SaveIncident, CloseIncident per incident and plan: its resource version is used once.
4. A new action breaks the build (`match` with `assert_never` in the executor), not the night.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

from remediator.domain.model import Deferral, Incident
from remediator.domain.outcomes import Blocked, Done, Outcome, PastOutcome, Refused, Retry


@dataclass(frozen=True, kw_only=True)
class _IncidentWrite:
    """Part of every action that writes the incident itself."""

    incident: Incident
    destructive: ClassVar[bool] = False
    gates: ClassVar[bool] = True

    @property
    def chain(self) -> str:
        return self.incident.name


@dataclass(frozen=True, kw_only=True)
class _IncidentStep:
    """Part of every action that is taken for an incident, named by it."""

    incident: str

    @property
    def chain(self) -> str:
        return self.incident


@dataclass(frozen=True, kw_only=True)
class OpenIncident(_IncidentWrite):
    """Create the GPUIncident and write its status. AlreadyExists = `Retry`: look again, it is ours from before."""

    @property
    def key(self) -> str:
        return f"open/{self.incident.name}"


@dataclass(frozen=True, kw_only=True)
class SaveIncident(_IncidentWrite):
    """Write the status with the resource version as precondition. Conflict = `Retry`: look again."""

    @property
    def key(self) -> str:
        return f"save/{self.incident.name}"


@dataclass(frozen=True, kw_only=True)
class CloseIncident(_IncidentWrite):
    """The last write of an incident: like SaveIncident, `closed_at` and `outcome` are set."""

    @property
    def key(self) -> str:
        return f"close/{self.incident.name}"


@dataclass(frozen=True, kw_only=True)
class Quarantine(_IncidentStep):
    """Take the target out of scheduling by `method`, leaving every foreign taint and cordon as it is.

    `taint`: key keys.UNHEALTHY_TAINT, effect NoSchedule, value `taint_value`; a taint of that key that is there
    already is enough. `cordon` asks for spec.unschedulable as well.
    """

    method: str
    node: str
    node_uid: str
    taint_value: str
    gpu: str | None = None
    cordon: bool = False
    destructive: ClassVar[bool] = True
    gates: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return f"quarantine/{self.incident}"


@dataclass(frozen=True, kw_only=True)
class LiftQuarantine(_IncidentStep):
    """Undo exactly what we applied: the taint only when `untaint`, the cordon only when `uncordon`."""

    method: str
    node: str
    node_uid: str
    gpu: str | None = None
    untaint: bool = True
    uncordon: bool = False
    destructive: ClassVar[bool] = False
    gates: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return f"lift/{self.incident}"


@dataclass(frozen=True, kw_only=True)
class EvictPod(_IncidentStep):
    """Eviction API with the UID as precondition. 404 and 409 on the UID = `Done`; 429 of a PDB = `Blocked`.

    `grace_seconds` None = the pod's own. Never 0.
    """

    node: str
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None
    destructive: ClassVar[bool] = True
    gates: ClassVar[bool] = False

    @property
    def key(self) -> str:
        return f"evict/{self.namespace}/{self.name}/{self.uid}"


@dataclass(frozen=True, kw_only=True)
class RunJob(_IncidentStep):
    """Create a Job in our namespace. `manifest` is complete but for metadata.namespace; AlreadyExists = `Done`.

    `step` is `repair` (destructive: it resets or reboots) or `validate`.
    """

    step: str
    node: str
    name: str
    manifest: Mapping[str, Any]
    gates: ClassVar[bool] = True

    @property
    def destructive(self) -> bool:
        return self.step == "repair"

    @property
    def key(self) -> str:
        return f"job/{self.name}"


@dataclass(frozen=True, kw_only=True)
class DeleteJob(_IncidentStep):
    """Delete one of our Jobs with its pods (propagation Background), in our namespace; 404 = `Done`."""

    name: str
    destructive: ClassVar[bool] = False
    gates: ClassVar[bool] = False

    @property
    def key(self) -> str:
        return f"delete-job/{self.name}"


@dataclass(frozen=True, kw_only=True)
class MirrorCondition:
    """Set the node condition keys.GPU_HEALTHY_CONDITION (status subresource of the node)."""

    node: str
    node_uid: str
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str
    """CamelCase, as conditions want it."""
    message: str
    destructive: ClassVar[bool] = False
    gates: ClassVar[bool] = False

    @property
    def chain(self) -> str:
        return f"node/{self.node}"

    @property
    def key(self) -> str:
        return f"condition/{self.node}/{self.status}"


@dataclass(frozen=True, kw_only=True)
class TellEvent:
    """Write a Kubernetes Event about a Node (`kind` Node) or one of our incidents (`kind` GPUIncident)."""

    kind: str
    name: str
    uid: str
    reason: str
    """CamelCase: FaultSeen, Quarantined, OptedOut, EvictionBlocked..."""
    message: str
    warning: bool = False
    dedupe: str
    """Same key = same event; told again at the earliest after an hour."""
    incident: str = ""
    """Told in the chain of this incident, so only after its state was stored; empty = told by itself."""
    destructive: ClassVar[bool] = False
    gates: ClassVar[bool] = False

    @property
    def chain(self) -> str:
        return self.incident or f"event/{self.dedupe}"

    @property
    def key(self) -> str:
        return f"event/{self.dedupe}"


Action: TypeAlias = (
    OpenIncident
    | SaveIncident
    | CloseIncident
    | Quarantine
    | LiftQuarantine
    | EvictPod
    | RunJob
    | DeleteJob
    | MirrorCondition
    | TellEvent
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole decision of one turn."""

    actions: tuple[Action, ...] = ()
    deferrals: tuple[Deferral, ...] = ()
    """All waits of this turn, of incidents and of faults that have none (observe, opted out)."""
    incidents: tuple[Incident, ...] = ()
    """Every open incident as it will be when the actions are done."""
    next_look: datetime | None = None
    """Look again at the latest then, even when nothing changes; None = only when something changes."""
    summary: str = ""
    """One sentence: what is done and why."""

    def chains(self) -> tuple[tuple[Action, ...], ...]:
        """The actions grouped by chain, in order of first appearance; chains are independent of each other."""
        groups: dict[str, list[Action]] = {}
        for action in self.actions:
            groups.setdefault(action.chain, []).append(action)
        return tuple(tuple(group) for group in groups.values())


__all__ = [
    "Action",
    "Blocked",
    "CloseIncident",
    "Deferral",
    "DeleteJob",
    "Done",
    "EvictPod",
    "LiftQuarantine",
    "MirrorCondition",
    "OpenIncident",
    "Outcome",
    "PastOutcome",
    "Plan",
    "Quarantine",
    "Refused",
    "Retry",
    "RunJob",
    "SaveIncident",
    "TellEvent",
]
