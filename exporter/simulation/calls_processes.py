"""NVML calls that list processes, with NVML's size protocol: too small a buffer says how many there are."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from exporter.simulation.driver import Board, Failure, put

NO_INSTANCE: Final = 0xFFFFFFFF
"""GPU and compute instance id of a process outside MIG."""


def _running(board: Board, kind: str, count: Any, buffer: Any) -> None:
    processes = [process for process in board.gpu.processes if process.type == kind]
    room = count._obj.value if buffer is not None else 0
    put(count, len(processes))
    if room < len(processes):
        raise Failure(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    entries = getattr(buffer, "_obj", buffer)
    for place, process in enumerate(processes):
        entries[place].pid = process.pid
        entries[place].usedGpuMemory = process.memory_bytes
        entries[place].gpuInstanceId = NO_INSTANCE
        entries[place].computeInstanceId = NO_INSTANCE


def compute(board: Board, count: Any, buffer: Any) -> None:
    """nvmlDeviceGetComputeRunningProcesses_v3."""
    _running(board, "compute", count, buffer)


def graphics(board: Board, count: Any, buffer: Any) -> None:
    """nvmlDeviceGetGraphicsRunningProcesses_v3."""
    _running(board, "graphics", count, buffer)


DEVICE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetComputeRunningProcesses_v3": compute,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": graphics,
}
