"""The parent's side of reading GPUs: one thread that keeps a worker going and hands on what is known, always in time.

Laws:
1. A snapshot is handed on once per interval whatever the driver does; its readings carry their own times.
2. It is handed on at once when an Xid arrives or a GPU stops answering.
3. Each Xid event is handed on once, in the order of arrival; a receiver that fails does not get it again, for it would
   fail again.
4. A receiver that fails is counted and never stops the thread.
"""

import logging
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from exporter.health.vocabulary import BootId
from exporter.messages import WorkerSettings
from exporter.readers.host import BOOT_ID_PATH, HostUnreadable, read_boot_id
from exporter.readings import GpuIdentity, Snapshot
from exporter.sampler_crew import Crew, Turn
from exporter.sampler_integrals import Integrals
from exporter.sampler_roster import Roster
from exporter.watchdog import attention
from exporter.worker_process import WorkerProcess

LOG = logging.getLogger(__name__)

# A sweep that ends a little late replaces the regular snapshot instead of following it by a moment.
LATE_SWEEP_FACTOR = 1.25
STOP_SECONDS = 10.0
RELEASE_WAIT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """What the sampler needs to know."""

    interval_seconds: float
    """Time between two sweeps, and the longest time between two snapshots."""
    probe_timeout_seconds: float
    """How long one subject of one GPU may take. Too short takes a good GPU out of service."""
    node: str
    library_path: str | None = None
    """NVML library by path; None = by soname."""
    simulate_state_path: str | None = None
    """State file of a simulated node; None = real hardware."""
    boot_id_path: str = str(BOOT_ID_PATH)
    """Ignored in simulation: a simulated node has its own boot id."""
    hung_retry_seconds: float = 60.0
    """First pause before a GPU that hung is tried again; doubles up to a quarter of an hour."""
    known_gpus: tuple[GpuIdentity, ...] = ()
    """GPUs that an earlier exporter saw in this boot: a GPU lost before our start cannot say its name."""


@dataclass(frozen=True)
class _Release:
    uuid: str
    seconds: float
    answer: "queue.Queue[bool]"


class Sampler:
    """Reads the GPUs of one node for ever; `on_snapshot` is called in the sampler's own thread: be quick there."""

    def __init__(self, settings: SamplerSettings, on_snapshot: Callable[[Snapshot], None]) -> None:
        self._settings = settings
        self._on_snapshot = on_snapshot
        self._latest: Snapshot | None = None
        self._stopping = threading.Event()
        self._requests: queue.Queue[_Release] = queue.Queue()
        self._wake_read, self._wake_write = -1, -1
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._boot_id = BootId("")
        self._crew: Crew | None = None
        self.failed_deliveries = 0
        """Snapshots whose receiver raised."""
        self.failed_turns = 0
        """Turns of the thread that failed for a reason we did not foresee."""

    def start(self) -> None:
        """Begin. Raises `HostUnreadable` when there is no boot id, for nothing could be judged without."""
        self._boot_id = self._read_boot_id()
        integrals = Integrals(self._settings.interval_seconds)
        roster = Roster(self._settings.known_gpus, datetime.now(UTC), integrals)
        self._crew = Crew(self._worker_settings(), self._settings.hung_retry_seconds, roster, WorkerProcess)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._thread.start()

    def stop(self) -> None:
        """End the workers and the thread; returns when they are gone, or after ten seconds."""
        self._stopping.set()
        if self._thread.is_alive():
            self._wake()
            self._thread.join(STOP_SECONDS)
        if self._wake_write >= 0 and not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1

    def latest(self) -> Snapshot | None:
        """The last snapshot that was handed on; None = there has not been one."""
        return self._latest

    def release(self, gpu_uuid: str, seconds: float = 120.0) -> bool:
        """End our NVML use of one GPU so that it can be reset, and keep off it for `seconds`; then a probe tries it.

        True = no process of ours holds that GPU any more. False = unknown GPU, or a worker is stuck in the driver.
        """
        answer: queue.Queue[bool] = queue.Queue()
        self._requests.put(_Release(gpu_uuid, seconds, answer))
        self._wake()
        try:
            return answer.get(timeout=RELEASE_WAIT_SECONDS)
        except queue.Empty:
            return False

    @property
    def worker_restarts(self) -> int:
        """Workers that were replaced because they died, hung or fell silent."""
        return self._crew.restarts if self._crew is not None else 0

    @property
    def worker_pid(self) -> int | None:
        """Process id of the sweeping worker; None = there is none at the moment."""
        sweeper = self._crew.sweeper if self._crew is not None else None
        return sweeper.process.pid if sweeper is not None else None

    def _worker_settings(self) -> WorkerSettings:
        return WorkerSettings(
            interval_seconds=self._settings.interval_seconds,
            probe_timeout_seconds=self._settings.probe_timeout_seconds,
            library_path=self._settings.library_path,
            simulate_state_path=self._settings.simulate_state_path,
        )

    def _run(self) -> None:
        crew = self._crew
        if crew is None:
            return
        previous = attentive_since = time.monotonic()
        due = previous + self._settings.interval_seconds * LATE_SWEEP_FACTOR
        while not self._stopping.is_set():
            try:
                self._wait(crew, min(due, crew.next_look(time.monotonic())))
                now = time.monotonic()
                attentive_since = attention(attentive_since, previous, now, self._settings.probe_timeout_seconds)
                previous = now
                self._answer_requests(crew, now)
                turn = crew.turn(now, attentive_since)
                if turn.fresh or turn.xids or now >= due:
                    # Without news the next one is due an interval from now, with a sweep's news a little later.
                    late = LATE_SWEEP_FACTOR if turn.fresh else 1.0
                    due = now + self._settings.interval_seconds * late
                    self._hand_on(crew, turn, now)
            except Exception:
                self.failed_turns += 1
                LOG.exception("a turn of the sampler failed")
                # Whatever it was, it must not become a busy loop.
                self._stopping.wait(min(1.0, self._settings.interval_seconds))
        crew.dismiss_all()

    def _wait(self, crew: Crew, until: float) -> None:
        """Until a worker speaks, somebody asks, or the time has come."""
        # Descriptors change with every worker; poll needs no system call to be told of them.
        poll = select.poll()
        for descriptor in (self._wake_read, *crew.descriptors()):
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, until - time.monotonic()) * 1000)
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass

    def _wake(self) -> None:
        if self._wake_write >= 0:
            os.write(self._wake_write, b"\0")

    def _answer_requests(self, crew: Crew, now: float) -> None:
        while True:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return
            request.answer.put(crew.release(request.uuid, now + request.seconds, now))

    def _hand_on(self, crew: Crew, turn: Turn, now: float) -> None:
        self._notice_reboot(crew, now)
        roster = crew.roster
        snapshot = Snapshot(
            node=self._settings.node,
            boot_id=self._boot_id,
            taken_at=datetime.now(UTC),
            driver_state=roster.driver_state,
            driver=roster.driver,
            gpus=roster.gpus,
            xids=tuple(turn.xids),
            enumerated=roster.count,
            worker_restarts=crew.restarts,
            details=roster.sentence(),
            failed_reads=tuple((*key, number) for key, number in sorted(roster.failures.items())),
        )
        self._latest = snapshot
        try:
            self._on_snapshot(snapshot)
        except Exception:
            self.failed_deliveries += 1
            LOG.exception("the receiver of a snapshot failed")

    def _notice_reboot(self, crew: Crew, now: float) -> None:
        """Only a simulated node can boot without ending us."""
        if self._settings.simulate_state_path is None:
            return
        try:
            boot_id = self._read_boot_id()
        except HostUnreadable:
            return
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            crew.new_boot(Roster((), datetime.now(UTC), crew.roster.integrals), now)

    def _read_boot_id(self) -> BootId:
        if self._settings.simulate_state_path is None:
            return read_boot_id(Path(self._settings.boot_id_path))
        # The simulator is imported only where it is used: production pays nothing for it.
        from exporter.simulation.state import load

        try:
            return BootId(load(Path(self._settings.simulate_state_path)).boot_id)
        except (OSError, ValueError) as error:
            raise HostUnreadable(f"boot id of the simulated node: {error}") from error
