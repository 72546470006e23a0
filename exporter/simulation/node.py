"""What a simulated node remembers: frozen facts and their JSON form. No file, no clock.

Laws:
1. Aggregate ECC counts, remapped rows and event numbers only grow, over resets and reboots.
2. Identity is a function of (node name, profile, index), so that every program computes the same UUIDs.
3. Energy, power and temperature are anchored: the reading at any time follows from the anchor (`physics`).
"""

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from exporter.simulation.profiles import Profile, profile_named

SCHEMA: Final = 1
MAX_EVENTS: Final = 256
"""Events kept for NVML processes that wait; a driver's queue is bounded as well."""

_NAMESPACE: Final = uuid.UUID("6f1c1f0e-5f43-4d0c-9a53-3c8b3c0a7f11")


class StateError(ValueError):
    """A state file that is not one, or of another schema."""


@dataclass(frozen=True)
class SimulatedProcess:
    """One process on a GPU: host pid, command name, memory, share of the GPU's time (0..1), `compute` or `graphics`."""

    pid: int
    name: str
    memory_bytes: int
    utilization_ratio: float = 0.0
    type: str = "compute"


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """Known power, temperature and energy at one wall-clock time (seconds since the epoch)."""

    at: float
    power_watts: float
    temperature_celsius: float
    energy_joules: float


@dataclass(frozen=True, kw_only=True)
class EccTotals:
    """ECC error counts of one GPU; volatile since the last reset or boot, aggregate for life."""

    corrected_volatile: int = 0
    corrected_aggregate: int = 0
    uncorrected_volatile: int = 0
    uncorrected_aggregate: int = 0

    def plus(self, *, corrected: int = 0, uncorrected: int = 0) -> "EccTotals":
        """These counts after further errors."""
        return EccTotals(
            corrected_volatile=self.corrected_volatile + corrected,
            corrected_aggregate=self.corrected_aggregate + corrected,
            uncorrected_volatile=self.uncorrected_volatile + uncorrected,
            uncorrected_aggregate=self.uncorrected_aggregate + uncorrected,
        )

    def reloaded(self) -> "EccTotals":
        """These counts after a reset: volatile ones start again."""
        return replace(self, corrected_volatile=0, uncorrected_volatile=0)


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """Everything that can differ between two GPUs of a simulated node."""

    index: int
    anchor: Anchor
    lost: bool = False
    hung: bool = False
    missing: bool = False
    slow_ms: int = 0
    thermal_slowdown: bool = False
    recovery_action: int = 0
    links_down: tuple[int, ...] = ()
    remap_pending: bool = False
    remap_failure: bool = False
    rows_corrected: int = 0
    rows_uncorrected: int = 0
    pages_retired: int = 0
    """Pages retired after a double bit error (before Ampere)."""
    pages_pending: bool = False
    ecc: EccTotals = field(default_factory=EccTotals)
    processes: tuple[SimulatedProcess, ...] = ()
    loads: tuple[tuple[float, float], ...] = ()
    """Recent loads: (seconds since the epoch, ratio from then on); empty = always as it is now."""
    announced: bool = False
    """Whether the kernel log already holds the two lines that name this GPU."""

    @property
    def utilization_ratio(self) -> float:
        """Busy share of the GPU, 0..1: what its processes ask for, cut at 1."""
        return min(1.0, sum(process.utilization_ratio for process in self.processes))


@dataclass(frozen=True, kw_only=True)
class NvmlEvent:
    """One event in the driver's queue; `number` grows for ever, so that each reader sees each event once."""

    number: int
    gpu_index: int
    type: int
    data: int


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """One simulated node. `boot_at` is seconds since the epoch."""

    node: str
    profile: Profile
    boot_id: str
    boot_at: float
    gpus: tuple[GpuState, ...]
    events: tuple[NvmlEvent, ...] = ()
    last_event: int = 0
    log_lines: int = 0
    """Records in the kernel log of this boot; the next record's sequence number."""

    @property
    def visible(self) -> tuple[GpuState, ...]:
        """The GPUs that the driver enumerates, in index order."""
        return tuple(gpu for gpu in self.gpus if not gpu.missing)

    def uuid(self, index: int) -> str:
        """UUID of the GPU in slot `index`."""
        return gpu_uuid(self.node, self.profile.name, index)

    def with_gpu(self, gpu: GpuState) -> "NodeState":
        """This node with one GPU replaced."""
        return replace(self, gpus=tuple(gpu if old.index == gpu.index else old for old in self.gpus))


def gpu_uuid(node: str, profile: str, index: int) -> str:
    """UUID of slot `index` of a simulated node, the same in every program and on every run."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{profile}/{index}')}"


def gpu_serial(node: str, profile: str, index: int) -> str:
    """Board serial number, 13 digits."""
    return f"16{uuid.uuid5(_NAMESPACE, f'{node}/{profile}/{index}/serial').int % 10**11:011d}"


def pci_address(profile: Profile, index: int) -> tuple[int, int]:
    """(domain, bus) of slot `index`; the device number is always 0."""
    return index // len(profile.buses), profile.buses[index % len(profile.buses)]


def to_json(state: NodeState) -> dict[str, Any]:
    """`state` as plain JSON types."""
    raw = asdict(state)
    return raw | {"schema": SCHEMA, "profile": state.profile.name}


def from_json(raw: Mapping[str, Any]) -> NodeState:
    """Inverse of `to_json`; raises `StateError` on anything else."""
    try:
        if raw["schema"] != SCHEMA:
            raise StateError(f"state file of schema {raw['schema']}, this program reads {SCHEMA}")
        fields = {name: value for name, value in raw.items() if name not in ("schema", "profile", "gpus", "events")}
        return NodeState(
            profile=profile_named(raw["profile"]),
            gpus=tuple(_gpu(gpu) for gpu in raw["gpus"]),
            events=tuple(NvmlEvent(**event) for event in raw["events"]),
            **fields,
        )
    except (KeyError, TypeError, AttributeError) as wrong:
        raise StateError(f"not the state of a simulated node: {wrong!r}") from wrong


def _gpu(raw: Mapping[str, Any]) -> GpuState:
    nested: dict[str, Any] = {
        "anchor": Anchor(**raw["anchor"]),
        "ecc": EccTotals(**raw["ecc"]),
        "links_down": tuple(raw["links_down"]),
        "loads": tuple((at, ratio) for at, ratio in raw["loads"]),
        "processes": tuple(SimulatedProcess(**process) for process in raw["processes"]),
    }
    return GpuState(**(dict(raw) | nested))
