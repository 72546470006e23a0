"""NVML: every GPU of the node, read subject by subject.

Lives here: taking handles and reading one GPU. The reader has no clock and no thread: whoever drives it (the worker)
says when a subject is read, and may stop between two subjects when a GPU is too slow.
One process holds one session: a library cannot be exchanged, and a GPU that was reset cannot be seen again, without
a new process.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pynvml

from exporter.readers.nvml_calls import Calls, unpaced
from exporter.readers.nvml_identity import identify
from exporter.readers.nvml_library import GONE, DriverDown, GpuGone, driver_down
from exporter.readers.nvml_subjects import SUBJECTS, Values
from exporter.readings import MODES, GpuIdentity, GpuReadings, GpuStatus

SUBJECT_NAMES: tuple[str, ...] = tuple(name for name, _ in SUBJECTS)
_SUBJECT = dict(SUBJECTS)

REASK_SWEEPS = 360
"""What was not supported is asked again after so many sweeps: a driver that wakes a board may say so once."""


@dataclass(frozen=True, kw_only=True)
class Unattached:
    """A GPU that NVML enumerates and that could not be taken: no identity, only what is wrong."""

    index: int
    status: GpuStatus


class GpuReader:
    """One GPU of this session."""

    def __init__(self, handle: Any, calls: Calls, identity: GpuIdentity) -> None:
        self.handle = handle
        self.identity = identity
        self._calls = calls
        self._values: Values = {}
        self._mig = False
        self._sweeps = 0
        self._modes: tuple[object, ...] | None = None

    def begin(self, pace: Callable[[], None] = unpaced) -> None:
        """Start a sweep of this GPU; `pace` is asked before each call and ends the subject by raising `OutOfTime`."""
        self._sweeps += 1
        if self._sweeps % REASK_SWEEPS == 0:
            self._calls.forget()
        self._calls.begin()
        self._calls.pace = pace
        self._values = {}

    def read(self, subject: str) -> None:
        """Read one of `SUBJECT_NAMES`. Raises `GpuGone`, `DriverDown`, `OutOfTime`; may block for ever."""
        self._calls.subject = subject
        self._values |= _SUBJECT[subject](self._calls)

    def skip(self, subject: str) -> None:
        """Leave a subject out for want of time: its values are absent and it counts as failed."""
        self._calls.failed.add(subject)

    def finish(self, now: datetime, seconds: float) -> GpuReadings:
        """What this sweep read; `seconds` is what it took."""
        values = dict(self._values)
        failed = self._calls.failed
        mig, instances = values.pop("mig", None), values.pop("mig_uuids", ())
        # Without an answer the mode is the last one: a GPU does not leave MIG by failing a call.
        if MODES not in failed and mig is not None:
            self._mig = mig
            self.identity = replace(self.identity, mig_uuids=instances)
        if self._mig:
            # NVML calls every link down while MIG is on; that is no statement about the links.
            values.pop("nvlinks", None)
        self._notice_modes((self._mig, self.identity.mig_uuids, values.get("ecc_mode")))
        status = GpuStatus.FAILED if failed and not self._calls.answered else GpuStatus.UP
        return GpuReadings(
            identity=self.identity,
            status=status,
            taken_at=now,
            failed=tuple(sorted(failed)),
            sweep_seconds=seconds,
            **values,
        )

    def gone(self, status: GpuStatus, now: datetime, seconds: float) -> GpuReadings:
        """Identity and status of a GPU that was lost in this sweep; every reading is void."""
        return GpuReadings(identity=self.identity, status=status, taken_at=now, sweep_seconds=seconds)

    def _notice_modes(self, modes: tuple[object, ...]) -> None:
        """A GPU that went into or out of MIG or ECC, or whose instances changed, supports other calls than before."""
        if self._modes is not None and modes != self._modes:
            self._calls.forget()
        self._modes = modes


def attach(index: int) -> GpuReader | Unattached:
    """Take the GPU with this NVML index. Raises `DriverDown`; a GPU that cannot be taken is a value, not an error."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise driver_down(error) from error
        return Unattached(index=index, status=GONE.get(error.value, GpuStatus.FAILED))
    calls = Calls(handle)
    try:
        identity = identify(calls, index)
    except GpuGone as gone:
        return Unattached(index=index, status=gone.status)
    if identity is None:
        return Unattached(index=index, status=GpuStatus.FAILED)
    return GpuReader(handle, calls, identity)


def read_gpu(reader: GpuReader, now: Callable[[], datetime]) -> GpuReadings:
    """One whole sweep of one GPU, for callers without a deadline. Raises `DriverDown`."""
    reader.begin()
    try:
        for subject in SUBJECT_NAMES:
            reader.read(subject)
    except GpuGone as gone:
        return reader.gone(gone.status, now(), 0.0)
    return reader.finish(now(), 0.0)


__all__ = ["SUBJECT_NAMES", "DriverDown", "GpuReader", "Unattached", "attach", "read_gpu"]
