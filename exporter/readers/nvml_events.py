"""Xids as NVML delivers them: one event set over every GPU that supports them.

Laws:
1. Only the intersection of what we want and what a GPU supports is registered: one bit too many refuses all.
2. After a registration that failed for an unknown reason the set is void (nvml.h); it is freed and built anew without
   that GPU.
3. An event names its GPU by handle only, and a lost GPU cannot say its name: handles are mapped beforehand.
4. NVML keeps nothing from before the registration and nothing for a set that is gone.
"""

import contextlib
from collections.abc import Iterable
from ctypes import c_void_p, cast
from dataclasses import dataclass
from typing import Any

import pynvml

from exporter.readers.nvml import GpuReader
from exporter.readers.nvml_library import DOWN, GONE
from exporter.readings import GpuIdentity

WANTED = pynvml.nvmlEventTypeXidCriticalError
NO_INSTANCE = 0xFFFFFFFF


class EventsFailed(Exception):
    """Waiting failed for another reason than silence; wait again after a pause."""


@dataclass(frozen=True, kw_only=True)
class RaisedXid:
    """One Xid event; NVML gives neither time nor text nor process."""

    code: int
    gpu: GpuIdentity | None
    gpu_instance: int | None


def pointer_of(handle: Any) -> int:
    """The address that a handle stands for: the only name of a GPU inside an event."""
    return int(cast(handle, c_void_p).value or 0)


class XidFeed:
    """The event set of this session."""

    def __init__(self, readers: Iterable[GpuReader]) -> None:
        self._gpus = {pointer_of(reader.handle): reader.identity for reader in readers}
        self._handles = [reader.handle for reader in readers]
        self._set: Any = None
        self.without_events: tuple[str, ...] = ()
        """UUIDs of the GPUs that deliver no Xid events (the kernel log is then the only witness)."""

    @property
    def listening(self) -> bool:
        """False = no GPU here delivers Xid events, and there is nothing to wait for."""
        return self._set is not None

    def open(self) -> None:
        """Register every GPU that can deliver."""
        refused: set[int] = set()
        while True:
            candidates = [handle for handle in self._handles if pointer_of(handle) not in refused]
            supporting = [handle for handle in candidates if _supports_xids(handle)]
            culprit = self._register(supporting)
            if culprit is None:
                break
            refused.add(culprit)
        listening = {pointer_of(handle) for handle in supporting} if self._set is not None else set()
        self.without_events = tuple(gpu.uuid for pointer, gpu in self._gpus.items() if pointer not in listening)

    def _register(self, handles: list[Any]) -> int | None:
        """Build the set; returns the pointer of the GPU that spoilt it, or None when it stands (or cannot exist)."""
        if not handles:
            return None
        try:
            event_set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return None
        for handle in handles:
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, WANTED, event_set)
            except pynvml.NVMLError:
                # Whatever freeing says: without a new set no GPU would be read at all.
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlEventSetFree(event_set)
                return pointer_of(handle)
        self._set = event_set
        return None

    def wait(self, timeout_milliseconds: int) -> RaisedXid | None:
        """The next Xid, or None when none came in time. Releases the GIL while waiting. Raises `EventsFailed`."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, timeout_milliseconds)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            reason = GONE.get(error.value) or DOWN.get(error.value) or error
            raise EventsFailed(f"waiting for Xid events: {reason}") from error
        if not event.eventType & WANTED:
            return None
        instance = int(event.gpuInstanceId)
        return RaisedXid(
            code=int(event.eventData),
            gpu=self._gpus.get(pointer_of(event.device)),
            gpu_instance=None if instance == NO_INSTANCE else instance,
        )


def _supports_xids(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetSupportedEventTypes(handle) & WANTED)
    except pynvml.NVMLError:
        return False
