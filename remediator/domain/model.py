"""Everything one turn may know: the facts of the cluster and our own incidents, frozen.

Laws:
1. A ClusterView is built once per turn by the observer and never changed.
2. None means "not known", never "none there": `NodeView.pods is None` = not listed yet, `ready is None` = Unknown.
3. All times are UTC and come from outside; nothing here asks the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from exporter.health.vocabulary import HealthReport
from remediator.domain.outcomes import PastOutcome


class Phase(StrEnum):
    """Where an incident stands. The moves between phases: `states.TRANSITIONS`."""

    SUSPECTED = "Suspected"
    """Seen; nothing applied to the node."""
    QUARANTINED = "Quarantined"
    """Quarantine intended; left when it has been seen in the cluster."""
    DRAINING = "Draining"
    REPAIRING = "Repairing"
    VALIDATING = "Validating"
    PROBATION = "Probation"
    """Validated, still out of service, watched for some time."""
    RESOLVED = "Resolved"
    """Good again. Open until our quarantine is gone (`closed_at`)."""
    ESCALATED = "Escalated"
    """A human holds it; stays out of service until released or cancelled."""
    CANCELLED = "Cancelled"
    """No longer ours to handle. Open until our quarantine is gone (`closed_at`)."""


class Fate(StrEnum):
    """What became of one pod on a bad GPU."""

    PENDING = "Pending"
    EVICTING = "Evicting"
    """The eviction is intended or accepted; the pod object is still there."""
    BLOCKED = "Blocked"
    HELD = "Held"
    GONE = "Gone"
    """The pod object is gone; no replacement seen yet."""
    REPLACED = "Replaced"
    """Its controller's replacement is Running and Ready on a GPU not known to be bad."""
    UNPLACED = "Unplaced"
    NO_CONTROLLER = "NoController"


class IncidentScope(StrEnum):
    """What the incident takes out: one GPU or the whole node."""

    GPU = "GPU"
    NODE = "Node"


@dataclass(frozen=True, kw_only=True)
class Taint:
    """One node taint."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What the API server says about one node."""

    name: str
    uid: str
    resource_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool | None = True
    """Condition Ready; None = Unknown or absent."""
    boot_id: str = ""
    """`status.nodeInfo.bootID`, the kubelet's word. Proof of a reboot is the exporter's boot id, see repair."""
    gpu_allocatable: int = 0
    """Sum over resources named `keys.GPU_RESOURCE_PREFIX`*."""
    gpu_capacity: int = 0
    gpu_healthy: str | None = None
    """Status of our mirrored condition GPUHealthy (`True`, `False`, `Unknown`); None = absent."""


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """What the API server says about one pod."""

    namespace: str
    name: str
    uid: str
    node: str | None = None
    """None = not bound yet."""
    phase: str = "Running"
    ready: bool = True
    owner_kind: str | None = None
    """Kind of the controlling ownerReference (controller: true); None = bare pod."""
    owner_name: str | None = None
    owner_uid: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    deletion_timestamp: datetime | None = None
    gpus: int = 0
    """Sum of requested resources named `keys.GPU_RESOURCE_PREFIX`*, init containers counted by maximum."""
    is_mirror: bool = False
    """Static pod (annotation kubernetes.io/config.mirror)."""
    is_daemonset: bool = False
    has_local_storage: bool = False
    """A writable hostPath volume. emptyDir does not count: it dies with any restart of the pod."""
    finalizers: tuple[str, ...] = ()
    created_at: datetime | None = None
    start_time: datetime | None = None
    message: str = ""
    """Why it is not running, in the cluster's words (PodScheduled condition message, waiting reason)."""

    @property
    def terminal(self) -> bool:
        """It has ended and holds no device."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class ExporterState:
    """The exporter's word on a node and whether it still lives."""

    report: HealthReport | None = None
    """None = no GPUNode, or one that cannot be read."""
    heartbeat: datetime | None = None
    """When the Lease was last renewed, by our clock: the moment we saw renewTime change (at first sight the
    renewTime itself, never later than now). None = no Lease. A wrong clock on a node must not matter."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """One node with its exporter's report and, where asked for, its pods."""

    node: NodeFacts
    exporter: ExporterState = field(default_factory=ExporterState)
    pods: tuple[PodFacts, ...] | None = None
    """Pods bound to the node; None = not listed (see `attention.attention` for which nodes must be)."""

    @property
    def has_gpus(self) -> bool:
        """Counts for budgets: GPUs by the device plugin's or the exporter's word."""
        report = self.exporter.report
        expected = max(report.expected_gpus, len(report.gpus)) if report else 0
        return self.node.gpu_allocatable > 0 or self.node.gpu_capacity > 0 or expected > 0


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """One Job of ours (label `keys.INCIDENT_LABEL`)."""

    name: str
    uid: str = ""
    incident: str = ""
    """Value of `keys.INCIDENT_LABEL`."""
    step: str = ""
    """Value of `keys.STEP_LABEL`: `repair` or `validate`."""
    succeeded: bool = False
    """Condition Complete is True."""
    failed: bool = False
    """Condition Failed is True."""
    finished_at: datetime | None = None
    message: str = ""
    """Message of the Failed condition."""


@dataclass(frozen=True, kw_only=True)
class NamespaceFacts:
    """One namespace: its opt-out lives in the annotations."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Deferral:
    """An action we wanted and did not take: why, since when, and when we look again."""

    code: str
    """One of `deferrals.py`'s words; a metric label, so bounded."""
    message: str
    since: datetime
    retry_at: datetime
    node: str = ""
    gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuTarget:
    """The GPU an incident is about."""

    uuid: str
    index: int
    serial: str | None = None


@dataclass(frozen=True, kw_only=True)
class QuarantineRecord:
    """What we applied to the node and what was there before us; only this is ever undone."""

    method: str
    applied_at: datetime
    """When we recorded the intent."""
    verified: bool = False
    """Seen in the cluster at least once. From then on its absence means that somebody took it off."""
    prior_cordon: bool = False
    prior_taint: bool = False
    """A taint with our key, but not of ours (its value is no fault of this node), was there before us."""
    cordoned: bool = False
    """We cordoned (never true when it was cordoned before us)."""
    boot_id: str = ""
    """Boot in which the mark was last seen: a mark that is gone in the same boot was taken off by somebody."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class RepairRecord:
    """The repair asked for."""

    step: str
    job: str
    """Name of the Job; empty when a human was asked."""
    requested_at: datetime
    boot_id_before: str
    outcome: str = ""


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """The validation asked for; `job` is empty when a clean report is the whole test."""

    job: str
    requested_at: datetime
    outcome: str = ""


@dataclass(frozen=True, kw_only=True)
class PodRecord:
    """One pod on the bad GPU and its fate."""

    namespace: str
    name: str
    uid: str
    fate: Fate
    owner: str = ""
    """`Kind/name` of the controller, or empty."""
    owner_uid: str = ""
    reason: str = ""
    evicted_at: datetime | None = None
    replacement: str | None = None
    """Name of the replacement; its UID beside it, because a StatefulSet uses the name again."""
    replacement_uid: str | None = None
    replacement_node: str | None = None
    replaced_at: datetime | None = None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One move of an incident, in one sentence."""

    time: datetime
    source: str
    """Phase before; empty at the opening. On the wire: `from`."""
    to: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Our durable record on one target (GPU or node); the GPUIncident object in domain words."""

    name: str
    node: str
    node_uid: str
    boot_id: str
    """The exporter's boot id at opening."""
    scope: IncidentScope
    fault: str
    """Fault code that opened it; also the value of the taint."""
    opened_at: datetime
    gpu: GpuTarget | None = None
    playbook: str = ""
    """Name of the policy row in force at opening."""
    uid: str = ""
    resource_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    phase: Phase = Phase.SUSPECTED
    phase_since: datetime
    reason: str = ""
    findings: tuple[str, ...] = ()
    """Fault codes seen on the target while the incident was open."""
    quarantine: QuarantineRecord | None = None
    repair: RepairRecord | None = None
    validation: ValidationRecord | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    """`repair` and `validate`: how often each was asked for."""
    deadline: datetime | None = None
    deferral: Deferral | None = None
    pods: tuple[PodRecord, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    outcome: str = ""
    """How it ended, one word for metrics: `healed`, `fault-cleared`, `node-gone`, `by-human`, `released`."""
    closed_at: datetime | None = None
    """Set when nothing of ours is left on the node; a closed incident is history."""

    @property
    def open(self) -> bool:
        return self.closed_at is None

    @property
    def target(self) -> str:
        """Identity of what is taken out: node UID, plus the GPU's UUID for one GPU."""
        return f"{self.node_uid}/{self.gpu.uuid if self.gpu and self.scope is IncidentScope.GPU else ''}"


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """Everything one turn may know."""

    nodes: Mapping[str, NodeView]
    """By node name: every GPU node and every node named by an open incident that exists."""
    incidents: tuple[Incident, ...] = ()
    """Open ones, and closed ones as far as kept: they are the memory of repeat offenders."""
    jobs: tuple[JobFacts, ...] = ()
    namespaces: Mapping[str, NamespaceFacts] = field(default_factory=dict)
    """By name. A namespace that is missing here is unknown: its pods are held."""
    pods_by_owner: Mapping[str, tuple[PodFacts, ...]] = field(default_factory=dict)
    """By owner UID: pods of the controllers whose pods we evicted (namespaces of `attention`)."""
    leader: bool = False
    """We hold the lease now."""
    paused: str | None = None
    """Reason of a pause switch; None = not paused."""
    outcomes: Mapping[str, PastOutcome] = field(default_factory=dict)
    """By `Action.key`."""
