"""The kernel log of a simulated node: what the driver prints, as records of /dev/kmsg (`prio,seq,usec,flags;text`).

Lives here: the wording per Xid and the record form. The file itself belongs to `state`.
Rules of the wording: up to driver branch 565 pid and name are always printed, `'<unknown>'` when there is no process;
later branches leave them out; the PCI address has no function part.
"""

from typing import Final

from exporter.simulation.node import GpuState, NodeState, SimulatedProcess, gpu_serial, pci_address

ERROR_PRIORITY: Final = 3
INFO_PRIORITY: Final = 6
UNKNOWN_OWNER_UNTIL: Final = 565

RECOVERY_WORDS: Final = (
    "None",
    "GPU Reset Required",
    "Node Reboot Required",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)

_CHANNEL_XIDS: Final = frozenset({13, 31, 43, 45, 48, 94, 95, 109})
"""Xids that belong to the channel of a process; the others name none (or whoever was in the driver)."""

_TEXTS: Final[dict[int, str]] = {
    13: "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
    31: "Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_6 faulted @ 0x7f5a_e7504000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000008",
    45: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 3, "
    "subpartition 1.",
    62: "2c5c1b42 00003c10 0000018d",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Error writing to infoROM",
    74: "NVLink: fatal error detected on link 0(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: CE User Channel (0xb). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2, 0x0). RST: Yes, D-RST: No",
    109: "Ch 00000076, errorString CTX SWITCH TIMEOUT, Info 0x2c01a",
    110: "SEC_FAULT: _FAULT_SCC",
    119: "Timeout after 45s of waiting for RPC response from GPU GSP! Expected function 76 (GSP_RM_CONTROL) "
    "sequence 1208 (0x20801348 0x410).",
    120: "GSP task exception: load access page fault (cause:0xd) @ pc:0x16f2c04, partition:4#0, task:1",
    140: "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, MMU:0, PCIE:0",
    143: "Error status 0x62 while polling for FSP boot complete, 0x10, 0x0, 0x0, 0x0",
}
_RETIREMENT: Final[dict[int, str]] = {
    63: "Dynamic Page Retirement: New retired page, reload the driver to activate. (0x000000000013c8e1)",
    64: "Dynamic Page Retirement: Page retirement failed. (0x000000000013c8e1)",
}
"""Wording of the generations that retire pages."""


def record(sequence: int, seconds_since_boot: float, text: str, priority: int = ERROR_PRIORITY) -> str:
    """One record of /dev/kmsg without its line end."""
    return f"{priority},{sequence},{max(0, int(seconds_since_boot * 1e6))},-;{text}"


def boot_line(state: NodeState) -> str:
    """What the driver prints when it is loaded."""
    return f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {state.profile.driver_version}"


def announcement(state: NodeState, gpu: GpuState) -> tuple[str, str]:
    """The two lines that name a GPU before its first Xid of a driver load."""
    serial = gpu_serial(state.node, state.profile.name, gpu.index)
    return (
        f"NVRM: GPU at PCI:{pci_text(state, gpu)}: {state.uuid(gpu.index)}",
        f"NVRM: GPU Board Serial Number: {serial}",
    )


def xid_line(state: NodeState, gpu: GpuState, code: int) -> str:
    """The line of Xid `code` on `gpu`; a code without a wording of its own gets three register words."""
    text = _TEXTS.get(code, "00000000 00000000 00000000")
    if not state.profile.row_remap:
        text = _RETIREMENT.get(code, text)
    owner = gpu.processes[0] if gpu.processes and code in _CHANNEL_XIDS else None
    return f"NVRM: Xid (PCI:{pci_text(state, gpu)}): {code}, {_owner(state, owner)}{text}"


def recovery_line(state: NodeState, gpu: GpuState, action: int) -> str:
    """The line of Xid 154 when the recovery action of `gpu` becomes `action`."""
    old, new = gpu.recovery_action, action
    change = f"0x{old:x} ({RECOVERY_WORDS[old]}) to 0x{new:x} ({RECOVERY_WORDS[new]})"
    return f"NVRM: Xid (PCI:{pci_text(state, gpu)}): 154, GPU recovery action changed from {change}"


def pci_text(state: NodeState, gpu: GpuState) -> str:
    """PCI address as the driver prints it: `dddd:bb:00`."""
    domain, bus = pci_address(state.profile, gpu.index)
    return f"{domain:04x}:{bus:02x}:00"


def _owner(state: NodeState, process: SimulatedProcess | None) -> str:
    if process is not None:
        return f"pid={process.pid}, name={process.name[:15]}, "
    return "pid='<unknown>', name=<unknown>, " if state.profile.driver_branch <= UNKNOWN_OWNER_UNTIL else ""
