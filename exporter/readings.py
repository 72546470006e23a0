"""What one sweep of one node read: the frozen facts between the readers and everything that judges or shows them.

Laws:
1. None = this GPU or driver does not support the reading. It is never 0 and never an error.
2. A reading that failed is absent (None) and its subject is counted in `GpuReadings.failed`.
3. Once a GPU is lost or its probe hangs, every reading of it goes; identity stays (`status` says which).
4. Base units: bytes, celsius, watts, joules, hertz, ratios 0..1, seconds. Counters only grow within a driver load.
5. No sentinel ever leaves the reader (0xffffffff, blank values, negative MIG ids).
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from exporter.health.vocabulary import BootId

MODES: Final = "modes"
"""Subject (see `GpuReadings.failed`) that tells MIG and its instances."""


class GpuStatus(StrEnum):
    """Whether a GPU answered in the last sweep."""

    UP = "up"
    LOST = "lost"
    """NVML says GPU_IS_LOST (15) or the handle is gone."""
    RESET_REQUIRED = "reset-required"
    """NVML error 16."""
    HUNG = "hung"
    """A call did not return within the probe deadline; the worker was killed."""
    MISSING = "missing"
    """Seen before in this boot, not enumerated now."""
    FAILED = "failed"
    """Every call failed for another reason; unknown, neither healthy nor faulty."""


class DriverState(StrEnum):
    """Whether there is a driver to ask; the words are also the wire words of `HealthReport.driver_state`."""

    OK = "ok"
    NO_DRIVER = "no-driver"
    LIBRARY_MISSING = "library-missing"
    NO_GPU = "no-gpu"
    STARTING = "starting"


@dataclass(frozen=True, kw_only=True)
class GpuIdentity:
    """What does not change while a GPU stays in its slot."""

    uuid: str
    index: int
    minor: int | None
    pci_bus_id: str
    """Normalised `dddddddd:bb:dd.f` in lower case, as NVML's 32-character form."""
    serial: str | None
    model: str
    brand: str | None = None
    architecture: str | None = None
    vbios: str | None = None
    compute_capability: str | None = None
    mig_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClockReading:
    """Current and maximal clock of one domain, hertz."""

    domain: str
    """`graphics`, `sm`, `memory`, `video`."""
    current_hertz: float
    max_hertz: float | None = None


@dataclass(frozen=True, kw_only=True)
class EccCount:
    """ECC errors of one type: aggregate over the life of the board, volatile since the driver was loaded."""

    type: str
    """`corrected` or `uncorrected`."""
    aggregate: int | None
    volatile: int | None


@dataclass(frozen=True, kw_only=True)
class RowRemap:
    """Row remapping (Ampere and later)."""

    corrected_rows: int
    uncorrected_rows: int
    pending: bool
    failure: bool


@dataclass(frozen=True, kw_only=True)
class PcieLink:
    """PCIe link of one GPU; generation falls when idle, width never should."""

    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    replays: int | None = None


@dataclass(frozen=True, kw_only=True)
class NvLinkState:
    """One NVLink link: its number and whether it is up."""

    link: int
    active: bool


@dataclass(frozen=True, kw_only=True)
class GpuIntegrals:
    """Sums over time of one GPU since the exporter started; None = never read."""

    busy_seconds: float | None = None
    memory_byte_seconds: float | None = None
    unobserved_seconds: float = 0.0
    """Gaps in the readings, which the sums leave out."""


@dataclass(frozen=True, kw_only=True)
class GpuReadings:
    """All readings of one GPU in one sweep; see the laws of this module for None."""

    identity: GpuIdentity
    status: GpuStatus
    taken_at: datetime
    """When this GPU last answered, or when its silence was noticed."""
    utilization_ratio: float | None = None
    memory_copy_utilization_ratio: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    slowdown_celsius: float | None = None
    shutdown_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    clocks: tuple[ClockReading, ...] = ()
    clock_event_bits: int | None = None
    """Bit mask of nvmlDeviceGetCurrentClocksEventReasons."""
    performance_state: int | None = None
    ecc_mode: bool | None = None
    ecc: tuple[EccCount, ...] = ()
    row_remap: RowRemap | None = None
    pcie: PcieLink | None = None
    nvlinks: tuple[NvLinkState, ...] | None = None
    """None = no NVLink on this GPU or not answered."""
    recovery_action: int | None = None
    """Field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset, 7 system reboot."""
    persistence_mode: bool | None = None
    compute_processes: int | None = None
    utilization_samples: tuple[tuple[int, float], ...] | None = None
    """Driver's samples since the last sweep: (microseconds since the epoch, mean ratio since the sample before)."""
    integrals: GpuIntegrals | None = None
    """Added by the sampler, which outlives the workers."""
    failed: tuple[str, ...] = ()
    """Subjects whose call failed in this sweep (e.g. `power`, `ecc`), sorted."""
    sweep_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DriverInfo:
    """Versions of the driver stack."""

    driver_version: str
    nvml_version: str | None = None
    cuda_version: str | None = None


class XidFamily(StrEnum):
    """Who numbers the fault: the GPU driver (Xid) or the NVSwitch driver (SXid)."""

    XID = "xid"
    SXID = "sxid"


@dataclass(frozen=True, kw_only=True)
class XidEvent:
    """One Xid (or SXid) as a witness told it, before any judgement."""

    code: int
    gpu: str | None
    """UUID, or None when only the PCI address is known and could not be mapped."""
    pci_bus_id: str | None
    observed_at: datetime
    source: str
    """`nvml-event` or `kernel-log`."""
    text: str = ""
    pid: int | None = None
    process: str | None = None
    gpu_instance: int | None = None
    family: XidFamily = XidFamily.XID
    """SXid: `pci_bus_id` is the switch's address and `gpu` is None."""
    boot_id: BootId | None = None
    """Boot in which it happened, when the witness knows; None = the current one."""


class NoticeKind(StrEnum):
    """What the kernel log tells about a GPU without an Xid."""

    FELL_OFF = "fell-off"
    """"fallen off the bus" in a line without Xid, as at driver load."""
    RESET_DONE = "reset-done"
    """`GPU reset executed: <uuid>, success: true`, written by whoever reset the GPU."""
    RESET_FAILED = "reset-failed"


@dataclass(frozen=True, kw_only=True)
class KernelNotice:
    """One line of the kernel log about a GPU that is not an Xid."""

    kind: NoticeKind
    gpu: str | None
    pci_bus_id: str | None
    observed_at: datetime
    text: str = ""
    boot_id: BootId | None = None


@dataclass(frozen=True, kw_only=True)
class PodDevice:
    """One device of one container, as the kubelet's pod-resources socket names it."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    """GPU UUID, MIG UUID, or a sharing system's id (`GPU-...::0`)."""


@dataclass(frozen=True, kw_only=True)
class PodMapping:
    """Who holds which device, or why that is unknown."""

    known: bool
    devices: tuple[PodDevice, ...] = ()
    allocatable: tuple[tuple[str, str], ...] = ()
    """(resource, device id) of every healthy device the kubelet may give out."""
    reason: str = ""
    """When unknown: `absent`, `timeout`, `garbled`, `refused`; shown in a metric."""
    taken_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All readings of one node at one instant."""

    node: str
    boot_id: BootId
    taken_at: datetime
    driver_state: DriverState
    driver: DriverInfo | None
    gpus: tuple[GpuReadings, ...]
    """Every GPU ever seen in this boot, in index order; those that do not answer keep their identity."""
    xids: tuple[XidEvent, ...] = ()
    """Events since the previous snapshot, oldest first."""
    notices: tuple[KernelNotice, ...] = ()
    """Other kernel lines about GPUs since the previous snapshot, oldest first."""
    enumerated: int = 0
    """What nvmlDeviceGetCount said in this sweep."""
    worker_restarts: int = 0
    details: str = ""
    """One sentence for humans when `driver_state` is not OK."""
    failed_reads: tuple[tuple[str, str, int], ...] = field(default=())
    """(uuid, subject, total failures) since the exporter started."""
