"""The words in which health is told: events, findings, reports.

Laws:
1. Unknown is a value of its own; it is never Healthy and never Unhealthy.
2. A HealthEvent is one observation; a Finding stands until what really clears it has happened (`ClearedBy`).
3. Nothing here knows the time, a device or Kubernetes.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

BootId = NewType("BootId", str)
"""The kernel's boot id (a UUID as text). A changed boot id is the only proof of a reboot."""


class Severity(StrEnum):
    """How bad one finding is, in rising order (see `SEVERITY_ORDER`)."""

    INFO = "info"
    """Counted only."""
    WARNING = "warning"
    """A condition worth knowing; no drain."""
    ERROR = "error"
    """Hurts the workload on the GPU; the GPU itself may go on."""
    CRITICAL = "critical"
    """Stop scheduling on the GPU now."""


SEVERITY_ORDER: tuple[Severity, ...] = (Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.CRITICAL)


class Scope(StrEnum):
    """How far a fault reaches."""

    APP = "app"
    GPU = "gpu"
    NODE = "node"
    FABRIC = "fabric"


class Advice(StrEnum):
    """What the vendor, or the driver itself, says should be done."""

    NONE = "none"
    RESTART_APP = "restart-app"
    RESET_GPU = "reset-gpu"
    REBOOT_NODE = "reboot-node"
    CONTACT_SUPPORT = "contact-support"
    UNKNOWN = "unknown"


class ClearedBy(StrEnum):
    """The only thing that ends a finding; silence never does."""

    VALUE = "value"
    """The reading itself is good again (and was read)."""
    WORKLOAD_END = "workload-end"
    """Application fault: over when the fault has not repeated for its quiet time."""
    GPU_RESET = "gpu-reset"
    """GPU reset or node reboot."""
    REBOOT = "reboot"
    """A new boot id."""
    REPLACEMENT = "replacement"
    """Another serial number or UUID in that slot."""


class Health(StrEnum):
    """Health of one GPU or node as other programs see it."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, kw_only=True)
class HealthEvent:
    """One observation of one fault on one device (or node) at one time.

    `gpu` is the UUID, or None for the node itself. `present` is False when the observation says that the condition is
    gone (used for readings that come and go, such as row remap pending).
    `key` identifies the occurrence across witnesses (NVML event and kernel log of the same Xid share it, or are equal
    within the duplicate window of `fold`).
    """

    code: str
    """Fault code in our spelling: `xid-79`, `gpu-lost`, `probe-hung`, `row-remap-pending`, `recovery-action`..."""
    gpu: str | None
    severity: Severity
    scope: Scope
    advice: Advice
    cleared_by: ClearedBy
    message: str
    observed_at: datetime
    source: str
    """Witness: `nvml-event`, `kernel-log`, `nvml-poll`, `watchdog`."""
    present: bool = True
    boot_id: BootId | None = None
    """Boot in which it happened, when the witness knows; None = the current one."""
    pid: int | None = None
    """Host pid named by the kernel log. Never blame a pod by pid alone for codes that are not tied to a channel."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault that stands: what `fold` makes of events, what a GPUNode shows, what the remediator acts on."""

    code: str
    gpu: str | None
    severity: Severity
    scope: Scope
    advice: Advice
    cleared_by: ClearedBy
    count: int
    first_seen: datetime
    last_seen: datetime
    message: str
    source: str
    boot_id: BootId | None = None
    pod: str | None = None
    """`namespace/name` of the causing pod, if known."""


@dataclass(frozen=True, kw_only=True)
class DevicePod:
    """One container that holds (a part of) a GPU."""

    namespace: str
    name: str
    uid: str
    """Empty when the source does not tell it (kubelet pod-resources has no UID)."""
    container: str
    resource: str
    """Extended resource name, e.g. `nvidia.com/gpu`."""
    share: str = "whole"
    """`whole`, `mig`, `replica`, ..."""
    source: str = "pod-resources"


@dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """One GPU as a GPUNode shows it."""

    uuid: str
    index: int
    minor: int | None
    pci_bus_id: str
    serial: str | None
    model: str
    health: Health
    findings: tuple[Finding, ...] = ()
    pods: tuple[DevicePod, ...] = ()
    mig: tuple[str, ...] = ()
    """UUIDs of MIG devices on this GPU."""


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """Everything one exporter says about its node; the status of a GPUNode."""

    node: str
    boot_id: BootId
    observed_at: datetime
    driver_version: str | None
    exporter_version: str
    expected_gpus: int
    """GPUs this node should have: the configured number, else the most ever seen in this boot and the state file."""
    seen_gpus: int
    health: Health
    """Worst of the GPUs and the node findings; Unknown when the mapping of readings to truth is lost."""
    gpus: tuple[DeviceReport, ...]
    findings: tuple[Finding, ...] = ()
    """Node-level findings (gpu is None)."""
    mapping_known: bool = True
    """False = the pods of each GPU are unknown (kubelet socket absent, hung or garbled), never an empty mapping."""
    driver_state: str = "ok"
    """`ok`, `no-driver`, `library-missing`, `no-gpu`."""
