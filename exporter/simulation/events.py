"""NVML event sets: what was registered is delivered, each event once per set, nothing from before registration.

Laws:
1. Registering one unsupported type registers nothing (NOT_SUPPORTED).
2. Waiting polls every 20 ms, as the library's own wait does at a longer step, and blocks for its whole timeout.
3. Events come first; once they are delivered, a set with a lost GPU answers GPU_IS_LOST after one poll step.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pynvml

from exporter.simulation.driver import (
    STALE_AFTER_SECONDS,
    Driver,
    Failure,
    address,
    device_handle,
    event_set_handle,
    number,
    put,
    put_handle,
)
from exporter.simulation.node import NodeState, NvmlEvent

NO_INSTANCE: Final = 0xFFFFFFFF


@dataclass
class EventSet:
    """Registered types per GPU slot, and the last event number that each registration has passed."""

    types: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)

    def wants(self, event: NvmlEvent) -> bool:
        """Whether `event` was registered for and not yet delivered."""
        registered = self.types.get(event.gpu_index, 0) & event.type
        return bool(registered) and event.number > self.passed[event.gpu_index]


class EventSets:
    """All event sets of one process."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sets: dict[int, EventSet] = {}
        self._created = 0
        self._lock = threading.Lock()

    def forget(self) -> None:
        """The last nvmlShutdown ends all sets."""
        with self._lock:
            self._sets.clear()

    def create(self, handle: Any) -> None:
        """nvmlEventSetCreate."""
        with self._lock:
            self._created += 1
            self._sets[event_set_handle(self._created)] = EventSet()
            put_handle(handle, event_set_handle(self._created))

    def free(self, handle: Any) -> None:
        """nvmlEventSetFree."""
        with self._lock:
            if self._sets.pop(address(handle), None) is None:
                raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def supported_types(self, device: Any, types: Any) -> None:
        """nvmlDeviceGetSupportedEventTypes."""
        put(types, self._driver.admit(self._driver.slot_of(device)).profile.event_types)

    def register(self, device: Any, types: Any, handle: Any) -> None:
        """nvmlDeviceRegisterEvents."""
        board = self._driver.admit(self._driver.slot_of(device))
        board.require(not number(types) & ~board.profile.event_types)
        with self._lock:
            chosen = self._found(handle)
            slot = board.gpu.index
            chosen.types[slot] = chosen.types.get(slot, 0) | number(types)
            chosen.passed.setdefault(slot, board.state.last_event)

    def wait(self, handle: Any, data: Any, timeout_ms: Any) -> None:
        """nvmlEventSetWait_v2."""
        deadline = time.monotonic() + number(timeout_ms) / 1000
        while True:
            self._driver.require_init()
            state = self._driver.state()
            event = self._next(handle, state)
            if event is not None:
                return _fill(data._obj, event)
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failure(pynvml.NVML_ERROR_TIMEOUT)
            time.sleep(min(left, STALE_AFTER_SECONDS))
            if self._any_lost(handle, state):
                raise Failure(pynvml.NVML_ERROR_GPU_IS_LOST)

    def _next(self, handle: Any, state: NodeState) -> NvmlEvent | None:
        with self._lock:
            chosen = self._found(handle)
            for event in state.events:
                if chosen.wants(event):
                    chosen.passed[event.gpu_index] = event.number
                    return event
        return None

    def _any_lost(self, handle: Any, state: NodeState) -> bool:
        with self._lock:
            registered = self._found(handle).types
            return any(state.gpus[slot].lost or state.gpus[slot].missing for slot in registered)

    def _found(self, handle: Any) -> EventSet:
        chosen = self._sets.get(address(handle))
        if chosen is None:
            raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return chosen

    def calls(self) -> dict[str, Callable[..., None]]:
        """The C functions of this subject."""
        return {
            "nvmlEventSetCreate": self.create,
            "nvmlEventSetFree": self.free,
            "nvmlDeviceGetSupportedEventTypes": self.supported_types,
            "nvmlDeviceRegisterEvents": self.register,
            "nvmlEventSetWait_v2": self.wait,
        }


def _fill(target: Any, event: NvmlEvent) -> None:
    target.device = ctypes.cast(ctypes.c_void_p(device_handle(event.gpu_index)), pynvml.c_nvmlDevice_t)
    target.eventType, target.eventData = event.type, event.data
    target.gpuInstanceId = target.computeInstanceId = NO_INSTANCE
