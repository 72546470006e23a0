"""The state file of a simulated node: the one place where its hardware lives, shared by any number of processes.

Laws:
1. A change is read, computed and written under an exclusive lock on `<path>.lock`; the file itself appears by rename,
   so that a reader never sees half of it and never waits.
2. Each write has its own modification time, to the nanosecond: an unchanged time means an unchanged state.
3. The kernel log is `<path>.kmsg`, one record a line; it begins anew with each boot (same file, cut to nothing).

Example: `create(path, "h100", 8, "n1")`, then `inject(path, 3, "xid:79")` from any process, then `reboot(path)`.
"""

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from exporter.simulation import faults, kernel_log, load_history, physics
from exporter.simulation.faults import FAULTS
from exporter.simulation.node import (
    GpuState,
    NodeState,
    SimulatedProcess,
    StateError,
    from_json,
    gpu_uuid,
    to_json,
)
from exporter.simulation.profiles import profile_named

__all__ = [
    "FAULTS",
    "GpuState",
    "NodeState",
    "ResetRefused",
    "SimulatedProcess",
    "StateError",
    "create",
    "gpu_uuid",
    "inject",
    "kmsg_path",
    "load",
    "reboot",
    "reset_gpu",
    "set_processes",
]


class ResetRefused(RuntimeError):
    """A GPU reset that hardware would refuse; nothing was changed."""


def kmsg_path(path: Path) -> Path:
    """Where the simulated kernel log of the node with state file `path` is."""
    return path.with_name(path.name + ".kmsg")


def create(path: Path, profile: str, count: int, node: str) -> NodeState:
    """A freshly booted, healthy node in the file `path`, replacing whatever was there.

    `profile` is a name of `profiles.PROFILES` (ValueError lists them); `count` is 1 or more.
    """
    hardware = profile_named(profile)
    if count < 1:
        raise ValueError(f"a simulated node has at least one GPU, not {count}")
    now = time.time()
    gpus = tuple(GpuState(index=index, anchor=physics.cold(hardware, now)) for index in range(count))
    state = NodeState(node=node, profile=hardware, boot_id=str(uuid.uuid4()), boot_at=now, gpus=gpus)
    with _locked(path):
        return _boot_log(path, state)


def load(path: Path) -> NodeState:
    """The state in `path`; raises OSError when there is no file, `StateError` when it is something else."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as wrong:
        raise StateError(f"{path}: not JSON: {wrong}") from wrong


def inject(path: Path, gpu_index: int | None, fault_text: str) -> NodeState:
    """Put a fault of `FAULTS` on one GPU, or on all (None). ValueError says what is allowed; then nothing changed."""
    with _locked(path):
        state = load(path)
        fault = faults.parse_fault(fault_text, state.profile)
        indices = range(len(state.gpus)) if gpu_index is None else (_checked(state, gpu_index),)
        for index in indices:
            consequence = faults.apply(state, index, fault, time.time())
            state = _log(path, consequence.state, consequence.lines)
        return _write(path, state)


def reset_gpu(path: Path, index: int) -> NodeState:
    """Reset one GPU, as `nvidia-smi --gpu-reset` does.

    Raises `ResetRefused`, changing nothing, while processes use the GPU, or when it does not answer (lost, hung or
    missing: a reset cannot reach it, a reboot can).
    """
    with _locked(path):
        state = load(path)
        gpu = state.gpus[_checked(state, index)]
        if gpu.lost or gpu.hung or gpu.missing:
            raise ResetRefused(f"GPU {index} does not answer; only a reboot brings it back")
        if gpu.processes:
            pids = ", ".join(str(process.pid) for process in gpu.processes)
            raise ResetRefused(f"GPU {index} is in use by process {pids}")
        # Whoever resets a real GPU leaves this line: the driver itself says nothing, and the line is the proof.
        said = f"GPU reset executed: {state.uuid(index)}, success: true"
        reset = _log(path, state.with_gpu(faults.after_reset(gpu)), (said,), kernel_log.INFO_PRIORITY)
        return _write(path, reset)


def reboot(path: Path) -> NodeState:
    """Reboot the node: a new boot id, no processes, an empty kernel log, and what a reboot heals is healed."""
    with _locked(path):
        state, now = load(path), time.time()
        gpus = tuple(faults.after_reboot(state.profile, gpu, now) for gpu in state.gpus)
        booted = replace(state, boot_id=str(uuid.uuid4()), boot_at=now, gpus=gpus, events=(), log_lines=0)
        return _boot_log(path, booted)


def set_processes(path: Path, processes: Mapping[int, Iterable[SimulatedProcess]]) -> NodeState:
    """Say which processes run on the named GPUs from now on; GPUs that are not named keep theirs."""
    with _locked(path):
        state, now = load(path), time.time()
        for index, running in processes.items():
            gpu = physics.anchored(state.profile, state.gpus[_checked(state, index)], now)
            loaded = replace(gpu, processes=tuple(running))
            loads = load_history.remembered(gpu, loaded.utilization_ratio, now)
            state = state.with_gpu(replace(loaded, loads=loads))
        return _write(path, state)


def _checked(state: NodeState, index: int) -> int:
    if not 0 <= index < len(state.gpus):
        raise ValueError(f"node {state.node} has GPUs 0 to {len(state.gpus) - 1}, not {index}")
    return index


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, state: NodeState) -> NodeState:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(to_json(state)), encoding="utf-8")
    written_at = time.time_ns()
    os.utime(draft, ns=(written_at, written_at))
    draft.replace(path)
    return state


def _boot_log(path: Path, state: NodeState) -> NodeState:
    kmsg_path(path).write_text("", encoding="utf-8")
    return _write(path, _log(path, state, (kernel_log.boot_line(state),), kernel_log.INFO_PRIORITY))


def _log(path: Path, state: NodeState, lines: Iterable[str], priority: int = kernel_log.ERROR_PRIORITY) -> NodeState:
    uptime = time.time() - state.boot_at
    texts = tuple(lines)
    records = (
        kernel_log.record(state.log_lines + offset, uptime, text, priority) + "\n" for offset, text in enumerate(texts)
    )
    with kmsg_path(path).open("a", encoding="utf-8") as log:
        log.write("".join(records))
    return replace(state, log_lines=state.log_lines + len(texts))
