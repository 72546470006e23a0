"""Hardware profiles: what each simulated GPU model is, can do, and does not support. Data only.

Law: what a generation or its driver branch does not have is None, False or 0 here, and NVML then says NOT_SUPPORTED
(or the symbol is absent). Figures are those of the vendor's data sheets and of `nvidia-smi -q` on such boards.
"""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024

SYMBOL_SINCE: Final[dict[str, int]] = {
    "nvmlDeviceGetTemperatureV": 570,
    "nvmlDeviceGetMarginTemperature": 570,
}
"""First driver branch that exports a symbol; before it the library lacks the symbol altogether."""

RECOVERY_ACTION_SINCE: Final = 565
"""First driver branch with field 230 and Xid 154."""


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Clocks of one domain, MHz as NVML counts them."""

    idle: int
    max: int


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One GPU model under one driver branch."""

    name: str
    model: str
    architecture: int
    """NVML_DEVICE_ARCH_*."""
    compute_capability: tuple[int, int]
    driver_version: str
    cuda_version: int
    """As NVML codes it: 12080 is CUDA 12.8."""
    vbios: str
    part_number: str
    pci_device_id: int
    pci_subsystem_id: int
    buses: tuple[int, ...]
    """PCI bus numbers of a board with eight GPUs; further GPUs repeat them in the next PCI domain."""
    memory_bytes: int
    memory_reserved_bytes: int
    idle_watts: float
    limit_watts: float
    min_limit_watts: float
    ambient_celsius: float
    celsius_per_watt: float
    shutdown_celsius: int
    slowdown_celsius: int
    gpu_max_celsius: int
    memory_max_celsius: int | None
    graphics: Clocks
    memory: Clocks
    video: Clocks
    pcie_generation: int
    pcie_generation_idle: int
    pcie_width: int
    nvlinks: int
    row_remap: bool
    """Ampere and later; earlier generations retire pages instead."""
    memory_temperature: bool
    mig: bool
    idle_performance_state: int
    event_types: int
    """What nvmlDeviceGetSupportedEventTypes answers."""

    @property
    def driver_branch(self) -> int:
        """Number before the first dot of the driver version."""
        return int(self.driver_version.partition(".")[0])

    @property
    def has_recovery_action(self) -> bool:
        """Whether the driver answers field 230 and writes Xid 154."""
        return self.driver_branch >= RECOVERY_ACTION_SINCE

    def has_symbol(self, name: str) -> bool:
        """Whether this driver's library exports `name` (of those that the simulator knows at all)."""
        return self.driver_branch >= SYMBOL_SINCE.get(name, 0)


H100: Final = Profile(
    name="h100",
    model="NVIDIA H100 80GB HBM3",
    architecture=9,
    compute_capability=(9, 0),
    driver_version="570.124.06",
    cuda_version=12080,
    vbios="96.00.74.00.01",
    part_number="692-2G520-0200-000",
    pci_device_id=0x233010DE,
    pci_subsystem_id=0x16C110DE,
    buses=(0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF),
    memory_bytes=81559 * MIB,
    memory_reserved_bytes=551 * MIB,
    idle_watts=70.0,
    limit_watts=700.0,
    min_limit_watts=200.0,
    ambient_celsius=28.0,
    celsius_per_watt=0.055,
    shutdown_celsius=92,
    slowdown_celsius=89,
    gpu_max_celsius=87,
    memory_max_celsius=95,
    graphics=Clocks(idle=345, max=1980),
    memory=Clocks(idle=2619, max=2619),
    video=Clocks(idle=765, max=1545),
    pcie_generation=5,
    pcie_generation_idle=5,
    pcie_width=16,
    nvlinks=18,
    row_remap=True,
    memory_temperature=True,
    mig=True,
    idle_performance_state=0,
    event_types=0x1 | 0x2 | 0x8 | 0x100,
)

A100: Final = Profile(
    name="a100",
    model="NVIDIA A100-SXM4-80GB",
    architecture=7,
    compute_capability=(8, 0),
    driver_version="550.163.01",
    cuda_version=12040,
    vbios="92.00.45.00.03",
    part_number="692-2G506-0212-002",
    pci_device_id=0x20B210DE,
    pci_subsystem_id=0x146310DE,
    buses=(0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD),
    memory_bytes=81920 * MIB,
    memory_reserved_bytes=604 * MIB,
    idle_watts=60.0,
    limit_watts=400.0,
    min_limit_watts=100.0,
    ambient_celsius=26.0,
    celsius_per_watt=0.1,
    shutdown_celsius=92,
    slowdown_celsius=89,
    gpu_max_celsius=85,
    memory_max_celsius=95,
    graphics=Clocks(idle=210, max=1410),
    memory=Clocks(idle=1593, max=1593),
    video=Clocks(idle=585, max=1290),
    pcie_generation=4,
    pcie_generation_idle=4,
    pcie_width=16,
    nvlinks=12,
    row_remap=True,
    memory_temperature=True,
    mig=True,
    idle_performance_state=0,
    event_types=0x1 | 0x2 | 0x8 | 0x100,
)

T4: Final = Profile(
    name="t4",
    model="Tesla T4",
    architecture=6,
    compute_capability=(7, 5),
    driver_version="535.183.01",
    cuda_version=12020,
    vbios="90.04.38.00.03",
    part_number="900-2G183-0000-001",
    pci_device_id=0x1EB810DE,
    pci_subsystem_id=0x12A210DE,
    buses=(0x1E, 0x3B, 0x5E, 0x86, 0x87, 0xAF, 0xD8, 0xDA),
    memory_bytes=15360 * MIB,
    memory_reserved_bytes=257 * MIB,
    idle_watts=10.0,
    limit_watts=70.0,
    min_limit_watts=60.0,
    ambient_celsius=25.0,
    celsius_per_watt=0.7,
    shutdown_celsius=96,
    slowdown_celsius=93,
    gpu_max_celsius=85,
    memory_max_celsius=None,
    graphics=Clocks(idle=300, max=1590),
    memory=Clocks(idle=405, max=5001),
    video=Clocks(idle=540, max=1470),
    pcie_generation=3,
    pcie_generation_idle=1,
    pcie_width=16,
    nvlinks=0,
    row_remap=False,
    memory_temperature=False,
    mig=False,
    idle_performance_state=8,
    event_types=0x1 | 0x2 | 0x8,
)

PROFILES: Final[tuple[Profile, ...]] = (H100, A100, T4)


def profile_named(name: str) -> Profile:
    """The profile called `name`; raises ValueError that lists what there is."""
    for profile in PROFILES:
        if profile.name == name:
            return profile
    known = ", ".join(profile.name for profile in PROFILES)
    raise ValueError(f"no simulated GPU profile {name!r}; there are: {known}")


def parse_fleet(text: str) -> tuple[Profile, int]:
    """`h100x8` as (profile, count); raises ValueError that says the form. At most 64 GPUs, as a report holds."""
    name, cross, count = text.rpartition("x")
    if not cross or not count.isdecimal() or not 1 <= int(count) <= 64:
        raise ValueError(f"{text!r} is not PROFILExCOUNT with 1 to 64 GPUs, such as h100x8")
    return profile_named(name), int(count)
