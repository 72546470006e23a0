"""The simulated driver as one process sees it: cached state, handles, admission of a call to a GPU.

Laws:
1. A call reaches a GPU only through `Driver.admit`: there it hangs, is slow, or learns that the GPU is lost.
2. Nothing about the hardware is kept in the process; only init count, event sets and the parsed state file are.
3. A body reports failure by raising `Failure`; `library` turns it into the return code.
"""

import ctypes
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pynvml

from exporter.simulation import state as node_file
from exporter.simulation.node import GpuState, NodeState
from exporter.simulation.profiles import Profile

STALE_AFTER_SECONDS: Final = 0.02
"""How long a process trusts its view of the state file before it looks at the file's time again."""
_DEVICE_HANDLES: Final = 0x7E00_0000_0000
_EVENT_SET_HANDLES: Final = 0x7D00_0000_0000
_STEP: Final = 0x100
"""Handles look like addresses; slot n is at base + n * step."""


class Failure(Exception):
    """A call ends with an NVML return code other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Board:
    """One GPU at the instant of one call."""

    state: NodeState
    gpu: GpuState
    now: float

    @property
    def profile(self) -> Profile:
        """Hardware of the node."""
        return self.state.profile

    def require(self, supported: bool) -> None:
        """Raises `Failure` NOT_SUPPORTED unless the hardware has what the call asks for."""
        if not supported:
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)


class Driver:
    """Access to the simulated node in `path` for one process; safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._view = node_file.load(path)
        self._written_at = -1
        self._looked_at = 0.0
        self._lock = threading.Lock()
        self.inits = 0

    def state(self) -> NodeState:
        """The node's state, at most 20 ms old; `Failure` DRIVER_NOT_LOADED when the file is gone or broken."""
        if time.monotonic() - self._looked_at < STALE_AFTER_SECONDS:
            return self._view
        with self._lock:
            try:
                written_at = self._path.stat().st_mtime_ns
                if written_at != self._written_at:
                    self._view = node_file.load(self._path)
                    self._written_at = written_at
            except (OSError, node_file.StateError) as gone:
                raise Failure(pynvml.NVML_ERROR_DRIVER_NOT_LOADED) from gone
            self._looked_at = time.monotonic()
            return self._view

    def require_init(self) -> None:
        """Raises `Failure` UNINITIALIZED outside nvmlInit ... nvmlShutdown."""
        if self.inits == 0:
            raise Failure(pynvml.NVML_ERROR_UNINITIALIZED)

    def admit(self, slot: int, *, lost_too: bool = False) -> Board:
        """The GPU in `slot` for one call: blocks for ever when it hangs, waits when slow, `Failure` when lost.

        With `lost_too` a lost GPU is let through: what the kernel driver itself remembers can still be asked.
        """
        state = self.state()
        gpu = state.gpus[slot]
        if gpu.hung:
            threading.Event().wait()
        if gpu.slow_ms:
            time.sleep(gpu.slow_ms / 1000)
        if (gpu.lost or gpu.missing) and not lost_too:
            raise Failure(pynvml.NVML_ERROR_GPU_IS_LOST)
        return Board(state, gpu, time.time())

    def slot_of(self, handle: Any) -> int:
        """The slot that a device handle stands for; `Failure` INVALID_ARGUMENT for anything else."""
        offset, rest = divmod(address(handle) - _DEVICE_HANDLES, _STEP)
        if rest or not 0 <= offset < len(self._view.gpus):
            raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return offset


def device_handle(slot: int) -> int:
    """Address that stands for the GPU in `slot`."""
    return _DEVICE_HANDLES + slot * _STEP


def event_set_handle(number: int) -> int:
    """Address that stands for the event set `number`."""
    return _EVENT_SET_HANDLES + number * _STEP


def address(handle: Any) -> int:
    """The address inside an opaque NVML handle, 0 for a null handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0 if handle is not None else 0


def put_handle(reference: Any, value: int) -> None:
    """Write an opaque handle where `byref` points."""
    target = ctypes.cast(ctypes.pointer(reference._obj), ctypes.POINTER(ctypes.c_void_p))
    target[0] = value


def put(reference: Any, value: int) -> None:
    """Write a number where `byref` points."""
    reference._obj.value = value


def number(argument: Any) -> int:
    """An integer argument, plain or as a C integer."""
    return int(getattr(argument, "value", argument))


def put_text(buffer: Any, size: Any, text: str) -> None:
    """Write a C string into a caller's buffer; `Failure` INSUFFICIENT_SIZE when it does not fit with its zero."""
    if len(text) + 1 > number(size):
        raise Failure(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    buffer.value = text.encode()
