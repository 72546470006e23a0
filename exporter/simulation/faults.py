"""Faults of a simulated node: what can be broken, what each fault does to the GPU, what a repair heals. Pure.

Laws:
1. A fault does what the hardware does: counters, flags, recovery action, events, kernel-log lines, all from one table.
2. A GPU reset and a node reboot heal what they heal on hardware and nothing more (`after_reset`, `after_reboot`).
3. `heal` is the only wonder: every fault ends; lifetime counters stay all the same.
"""

from dataclasses import dataclass, replace
from typing import Final

from exporter.simulation import kernel_log, physics
from exporter.simulation.node import MAX_EVENTS, GpuState, NodeState, NvmlEvent
from exporter.simulation.profiles import Profile

FAULTS: Final[dict[str, str]] = {
    "xid:N": "Xid N as NVML event and kernel-log line, with what hardware does then (79 loses the GPU, 48 counts ECC)",
    "lost": "the GPU falls off the bus without a word: every call says GPU_IS_LOST; ends by reboot",
    "hang": "every call on the GPU blocks and never returns; ends by reboot",
    "slow:MS": "every call on the GPU takes MS milliseconds longer; ends by reset or reboot",
    "ecc-dbe": "one uncorrectable ECC error more in the counters, and the NVML double-bit event, but no Xid",
    "row-remap-pending": "a row waits for remapping (A100, H100); ends by reset or reboot, the row stays remapped",
    "row-remap-failure": "a row could not be remapped (A100, H100); only a new board ends it",
    "nvlink-down:N": "NVLink N is down (A100, H100); ends by reset or reboot",
    "thermal-slowdown": "the GPU is too hot: hardware slowdown bits, half the clocks; ends by heal",
    "recovery-action:N": "the driver asks for recovery action N, 0 to 7, silently (H100); ends by reset or reboot",
    "missing": "the GPU is not enumerated: the count shrinks; ends by reboot",
    "heal": "every fault ends as if the board and its cooling were new; lifetime counters stay",
}
"""Every fault with one line of help; the part after `:` in the name is an argument."""

XID_EVENT: Final = 0x8
DOUBLE_BIT_EVENT: Final = 0x2
RECOVERY_XID: Final = 154
MAX_XID: Final = 1023
MAX_SLOW_MS: Final = 600_000
RESET, REBOOT = 1, 2
_ENDED_BY_RESET: Final = frozenset({0, 1, 3, 4, 6})
"""Recovery actions that a GPU reset satisfies; node reboot, system reboot and the IMEX domain stay."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault text that was understood."""

    name: str
    argument: int | None = None


@dataclass(frozen=True, kw_only=True)
class XidEffect:
    """What an Xid leaves behind on the GPU, beyond its event and its line."""

    corrected: int = 0
    uncorrected: int = 0
    recovery: int = 0
    lost: bool = False
    remap_pending: bool = False
    remap_failure: bool = False
    link_down: bool = False


XID_EFFECTS: Final[dict[int, XidEffect]] = {
    48: XidEffect(uncorrected=1, recovery=RESET),
    62: XidEffect(recovery=RESET),
    63: XidEffect(remap_pending=True),
    64: XidEffect(uncorrected=1, remap_failure=True),
    74: XidEffect(link_down=True),
    79: XidEffect(lost=True, recovery=REBOOT),
    92: XidEffect(corrected=1000),
    94: XidEffect(uncorrected=1),
    95: XidEffect(uncorrected=1, recovery=RESET),
    110: XidEffect(recovery=REBOOT),
    119: XidEffect(recovery=RESET),
    120: XidEffect(recovery=RESET),
    140: XidEffect(uncorrected=1, recovery=RESET),
    143: XidEffect(recovery=RESET),
}
"""Source: vendor Xid catalogue and the driver's recovery actions; an Xid not listed leaves nothing behind."""


@dataclass(frozen=True, kw_only=True)
class Consequence:
    """A node after a fault, and the kernel-log lines that the fault prints, oldest first."""

    state: NodeState
    lines: tuple[str, ...] = ()


def parse_fault(text: str, profile: Profile) -> Fault:
    """The fault that `text` names on this hardware; raises ValueError that says what is allowed."""
    name, colon, argument = text.partition(":")
    if f"{name}:N" not in FAULTS and f"{name}:MS" not in FAULTS:
        if text not in FAULTS:
            raise ValueError(f"unknown fault {text!r}; there are: {', '.join(FAULTS)}")
        _check_hardware(name, profile)
        return Fault(name=name)
    limits = {"xid": (1, MAX_XID), "slow": (1, MAX_SLOW_MS), "recovery-action": (0, 7)}
    _check_hardware(name, profile)
    low, high = limits.get(name, (0, profile.nvlinks - 1))
    if not colon or not argument.isdecimal() or not low <= int(argument) <= high:
        raise ValueError(f"fault {text!r}: write {name}:N with N from {low} to {high}")
    if text == f"xid:{RECOVERY_XID}":
        _check_hardware("recovery-action", profile)
    return Fault(name=name, argument=int(argument))


def _check_hardware(name: str, profile: Profile) -> None:
    lacking = {
        "row-remap-pending": not profile.row_remap,
        "row-remap-failure": not profile.row_remap,
        "nvlink-down": profile.nvlinks == 0,
        "recovery-action": not profile.has_recovery_action,
    }
    if lacking.get(name, False):
        raise ValueError(f"a {profile.name} with driver {profile.driver_version} cannot have the fault {name}")


def apply(state: NodeState, index: int, fault: Fault, now: float) -> Consequence:
    """`state` after `fault` on GPU slot `index` at `now` (seconds since the epoch)."""
    gpu = state.gpus[index]
    if fault.name == "xid" and fault.argument is not None:
        return _xid(state, gpu, fault.argument)
    if fault.name == "ecc-dbe":
        changed = replace(gpu, ecc=gpu.ecc.plus(uncorrected=1))
        return Consequence(state=with_event(state.with_gpu(changed), index, DOUBLE_BIT_EVENT, 0))
    return Consequence(state=state.with_gpu(_silently(state.profile, gpu, fault, now)))


def _silently(profile: Profile, gpu: GpuState, fault: Fault, now: float) -> GpuState:
    argument = fault.argument or 0
    match fault.name:
        case "lost":
            return replace(gpu, lost=True)
        case "hang":
            return replace(gpu, hung=True)
        case "slow":
            return replace(gpu, slow_ms=argument)
        case "missing":
            return replace(gpu, missing=True)
        case "thermal-slowdown":
            return replace(physics.anchored(profile, gpu, now), thermal_slowdown=True)
        case "heal":
            return _healed(profile, gpu, now)
        case _:
            return _flagged(gpu, fault.name, argument)


def _flagged(gpu: GpuState, name: str, argument: int) -> GpuState:
    match name:
        case "row-remap-pending":
            return replace(gpu, remap_pending=True, rows_uncorrected=gpu.rows_uncorrected + 1)
        case "row-remap-failure":
            return replace(gpu, remap_failure=True)
        case "nvlink-down":
            return replace(gpu, links_down=tuple(sorted({*gpu.links_down, argument})))
        case "recovery-action":
            return replace(gpu, recovery_action=argument)
        case _:
            raise AssertionError(f"fault {name} is in the table but does nothing")


def _xid(state: NodeState, gpu: GpuState, code: int) -> Consequence:
    lines = () if gpu.announced else kernel_log.announcement(state, gpu)
    recovery = RESET if code == RECOVERY_XID else XID_EFFECTS.get(code, XidEffect()).recovery
    after = replace(_left_behind(state.profile, gpu, code), announced=True)
    if code != RECOVERY_XID:
        lines = (*lines, kernel_log.xid_line(state, gpu, code))
        state = with_event(state, gpu.index, XID_EVENT, code)
    if (recovery > gpu.recovery_action and state.profile.has_recovery_action) or code == RECOVERY_XID:
        lines = (*lines, kernel_log.recovery_line(state, gpu, recovery))
        state = with_event(state, gpu.index, XID_EVENT, RECOVERY_XID)
        after = replace(after, recovery_action=recovery)
    return Consequence(state=state.with_gpu(after), lines=lines)


def _left_behind(profile: Profile, gpu: GpuState, code: int) -> GpuState:
    effect = XID_EFFECTS.get(code, XidEffect())
    gpu = replace(
        gpu,
        ecc=gpu.ecc.plus(corrected=effect.corrected, uncorrected=effect.uncorrected),
        lost=gpu.lost or effect.lost,
    )
    if effect.link_down and profile.nvlinks:
        gpu = replace(gpu, links_down=tuple(sorted({*gpu.links_down, 0})))
    if not profile.row_remap:
        retired = 1 if effect.remap_pending else 0
        return replace(
            gpu, pages_retired=gpu.pages_retired + retired, pages_pending=gpu.pages_pending or effect.remap_pending
        )
    return replace(
        gpu,
        rows_uncorrected=gpu.rows_uncorrected + (1 if effect.remap_pending else 0),
        remap_pending=gpu.remap_pending or effect.remap_pending,
        remap_failure=gpu.remap_failure or effect.remap_failure,
    )


def with_event(state: NodeState, index: int, kind: int, data: int) -> NodeState:
    """`state` with one more event in the driver's queue; the oldest ones fall out of a full queue."""
    event = NvmlEvent(number=state.last_event + 1, gpu_index=index, type=kind, data=data)
    return replace(state, last_event=event.number, events=(*state.events, event)[-MAX_EVENTS:])


def _healed(profile: Profile, gpu: GpuState, now: float) -> GpuState:
    gpu = physics.anchored(profile, gpu, now)
    return replace(
        after_reset(gpu),
        lost=False,
        hung=False,
        missing=False,
        thermal_slowdown=False,
        recovery_action=0,
        remap_failure=False,
    )


def after_reset(gpu: GpuState) -> GpuState:
    """`gpu` after a GPU reset: pending work is done, volatile counters start again, links retrain.

    Lost, hung, missing, thermal trouble and a failed remap are still there; a failed remap needs a new board.
    """
    return replace(
        gpu,
        slow_ms=0,
        recovery_action=0 if gpu.recovery_action in _ENDED_BY_RESET else gpu.recovery_action,
        links_down=(),
        remap_pending=False,
        pages_pending=False,
        ecc=gpu.ecc.reloaded(),
    )


def after_reboot(profile: Profile, gpu: GpuState, now: float) -> GpuState:
    """`gpu` after a node reboot: as a reset, and the GPU answers and is enumerated again, without processes.

    A failed remap and bad cooling are still there.
    """
    return replace(
        after_reset(gpu),
        anchor=physics.cold(profile, now),
        lost=False,
        hung=False,
        missing=False,
        recovery_action=0,
        processes=(),
        loads=(),
        announced=False,
    )
