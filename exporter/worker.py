"""The NVML worker: a child process of the exporter, because a wedged driver call cannot be cancelled, only killed.

`python -m exporter.worker DESCRIPTOR` reads its settings (one JSON line) from standard input, sweeps every GPU at every
interval, and writes messages to the inherited pipe. It says what it is about to do before it does it, so that the
parent knows where it hangs. It ends when there is no driver, when GPUs come or go, and when its parent does.
It imports nothing that reading does not need: this process is paid for on every node.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime

from exporter.messages import (
    Attached,
    CountChanged,
    DriverGone,
    Mark,
    Message,
    SweepDone,
    Swept,
    WorkerSettings,
    XidSeen,
    encode,
    write_all,
)
from exporter.readers.host import loaded_driver_version
from exporter.readers.nvml import SUBJECT_NAMES, DriverDown, GpuReader, Unattached, attach
from exporter.readers.nvml_calls import OutOfTime
from exporter.readers.nvml_events import EventsFailed, XidFeed
from exporter.readers.nvml_library import GpuGone, count_gpus, driver_info, open_nvml
from exporter.readings import DriverState, GpuReadings, XidEvent

PR_SET_PDEATHSIG = 1
# An event ends the wait at once; the limit only bounds how long a broken wait goes unnoticed.
EVENT_WAIT_MILLISECONDS = 1000
# A wait over a lost GPU fails at once, again and again, while the other GPUs' events still come: it must not spin, and
# they must not wait long.
EVENT_PAUSE_SECONDS = 0.05


class Pipe:
    """The way to the parent, shared by the sweep and the event thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Hand over one message; ends the process when the parent is gone, for then there is nobody to read for."""
        content = encode(message)
        try:
            with self._lock:
                write_all(self._descriptor, content)
        except OSError:
            os._exit(0)

    def mark(self, subject: str, gpu_index: int | None = None, planned_seconds: float = 0.0) -> None:
        """Say what comes next, before it can hang."""
        self.send(
            Mark(subject=subject, monotonic=time.monotonic(), gpu_index=gpu_index, planned_seconds=planned_seconds)
        )


class Pace:
    """How long one GPU's sweep may take, and marks within a subject of many calls: slow is not hung."""

    def __init__(self, pipe: Pipe, index: int, timeout_seconds: float) -> None:
        self._pipe = pipe
        self._index = index
        self._timeout_seconds = timeout_seconds
        self._subject = ""
        self._started = self._marked = time.monotonic()

    def begin(self, subject: str) -> None:
        """A subject begins. Raises `OutOfTime`."""
        self._check(time.monotonic())
        self._subject = subject
        self._mark(time.monotonic())

    def before_call(self) -> None:
        """A call follows; a mark is worth its price only when the last one is getting old. Raises `OutOfTime`."""
        now = time.monotonic()
        self._check(now)
        if now - self._marked > self._timeout_seconds / 4:
            self._mark(now)

    def _check(self, now: float) -> None:
        if now - self._started > self._timeout_seconds:
            raise OutOfTime

    def _mark(self, now: float) -> None:
        self._marked = now
        self._pipe.mark(self._subject, self._index)


class Worker:
    """One NVML session and its sweeps."""

    def __init__(self, settings: WorkerSettings, pipe: Pipe) -> None:
        self._settings = settings
        self._pipe = pipe
        self._readers: list[GpuReader] = []
        self._last_seconds: dict[int, float] = {}
        self._count = 0

    def run(self) -> None:
        """Attach and sweep until there is a reason to end."""
        try:
            self._attach()
            if self._settings.only is not None:
                self._sweep()
                return
            self._listen()
            self._sweep_for_ever()
        except DriverDown as down:
            self._pipe.send(DriverGone(state=down.state, details=_explained(down)))

    def _attach(self) -> None:
        self._pipe.mark("open")
        open_nvml(self._settings.library_path)
        self._count = count_gpus()
        driver = driver_info()
        if self._count == 0:
            raise DriverDown(DriverState.NO_GPU, f"driver {driver.driver_version} is loaded and sees no GPU")
        unattached: list[Unattached] = []
        for index in self._wanted():
            self._pipe.mark("attach", index)
            found = attach(index)
            if isinstance(found, Unattached):
                unattached.append(found)
            else:
                self._readers.append(found)
        self._feed = XidFeed(self._readers)
        if self._settings.only is None:
            self._pipe.mark("open")
            self._feed.open()
        self._pipe.send(
            Attached(
                driver=driver,
                count=self._count,
                identities=tuple(reader.identity for reader in self._readers),
                unattached=tuple((gpu.index, gpu.status) for gpu in unattached),
                without_events=self._feed.without_events,
            )
        )

    def _wanted(self) -> list[int]:
        if self._settings.only is not None:
            return [self._settings.only] if self._settings.only < self._count else []
        return [index for index in range(self._count) if index not in self._settings.without]

    def _sweep_for_ever(self) -> None:
        due = time.monotonic()
        while True:
            self._pipe.mark("count")
            count = count_gpus()
            if count != self._count:
                self._pipe.send(CountChanged(count=count))
                return
            self._sweep()
            # A sweep that took longer than the interval is followed by the next one, not by a burst to catch up.
            due = max(due + self._settings.interval_seconds, time.monotonic())
            pause = due - time.monotonic()
            self._pipe.mark("idle", planned_seconds=max(0.0, pause))
            time.sleep(max(0.0, pause))

    def _sweep(self) -> None:
        """Every GPU once, the quick ones first: a slow GPU then makes only itself late."""
        for reader in sorted(self._readers, key=lambda reader: self._last_seconds.get(reader.identity.index, 0.0)):
            readings = self._read(reader)
            self._last_seconds[reader.identity.index] = round(readings.sweep_seconds, 1)
            self._pipe.send(Swept(readings=readings))
        self._pipe.send(SweepDone(taken_at=datetime.now(UTC)))

    def _read(self, reader: GpuReader) -> GpuReadings:
        """One GPU, for at most the probe timeout: what is left by then counts as failed, and the next one starts."""
        started = time.monotonic()
        pace = Pace(self._pipe, reader.identity.index, self._settings.probe_timeout_seconds)
        reader.begin(pace.before_call)
        try:
            for subject in SUBJECT_NAMES:
                try:
                    pace.begin(subject)
                    reader.read(subject)
                except OutOfTime:
                    reader.skip(subject)
        except GpuGone as gone:
            return reader.gone(gone.status, datetime.now(UTC), time.monotonic() - started)
        return reader.finish(datetime.now(UTC), time.monotonic() - started)

    def _listen(self) -> None:
        if self._feed.listening:
            threading.Thread(target=self._pass_on_xids, name="xid-events", daemon=True).start()

    def _pass_on_xids(self) -> None:
        while True:
            try:
                raised = self._feed.wait(EVENT_WAIT_MILLISECONDS)
            except EventsFailed:
                time.sleep(EVENT_PAUSE_SECONDS)
                continue
            if raised is not None:
                self._pipe.send(
                    XidSeen(
                        event=XidEvent(
                            code=raised.code,
                            gpu=raised.gpu.uuid if raised.gpu else None,
                            pci_bus_id=raised.gpu.pci_bus_id if raised.gpu else None,
                            observed_at=datetime.now(UTC),
                            source="nvml-event",
                            gpu_instance=raised.gpu_instance,
                        )
                    )
                )


def _explained(down: DriverDown) -> str:
    """The sentence of the failure, with the one hint that the host itself can give."""
    version = loaded_driver_version()
    if down.state is not DriverState.LIBRARY_MISSING or version is None:
        return down.details
    return f"{down.details} (kernel driver {version} is loaded: only the library is missing here)"


def end_with_parent() -> None:
    """Two ways to notice that the parent is gone: the kernel's signal, and the end of standard input.

    The signal reaches a worker that sits in a driver call with the GIL held; the closed pipe covers a parent that
    died before the signal was asked for.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_exit_at_end_of_input, name="parent-watch", daemon=True).start()


def _exit_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def give_back_memory() -> None:
    """Return to the system what importing left behind: 11 of 27 MB with nvidia-ml-py (measured). Only glibc can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def read_settings() -> WorkerSettings:
    """The first line of standard input, byte by byte so that nothing behind it is swallowed into a buffer."""
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    return WorkerSettings.from_json(json.loads(line))


def main() -> None:
    """Run one worker; the only argument is the number of the inherited pipe."""
    # Ctrl-C reaches the whole process group; when to end is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = read_settings()
    end_with_parent()
    if settings.simulate_state_path is not None:
        # The simulator needs more than reading does, so it is imported only where it is used.
        from exporter.simulation.library import install

        install(settings.simulate_state_path)
    give_back_memory()
    Worker(settings, Pipe(int(sys.argv[1]))).run()
    # Without the destructors of a driver library: they may wait for a GPU that does not answer.
    os._exit(0)


if __name__ == "__main__":
    main()
