"""A sampler over a simulated node, and everything it handed on, for tests that look at it over time."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from exporter.readings import GpuReadings, GpuStatus, Snapshot
from exporter.sampler import Sampler, SamplerSettings
from exporter.simulation import state

INTERVAL_SECONDS = 0.5
# A machine that runs other tests beside this one may let a worker wait; what is promised in intervals is asserted in
# intervals, everything else only has to happen in the end.
PATIENCE_SECONDS = 20.0


@dataclass
class Sampling:
    """One running sampler with its history: (monotonic time of arrival, snapshot)."""

    path: Path
    sampler: Sampler
    history: list[tuple[float, Snapshot]] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def record(self, snapshot: Snapshot) -> None:
        """The sampler's receiver."""
        with self.arrived:
            self.history.append((time.monotonic(), snapshot))
            if self.sampler.worker_pid is not None:
                self.pids.add(self.sampler.worker_pid)
            self.arrived.notify_all()

    def wait_for(self, wanted: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot from now on that is as wanted."""
        with self.arrived:
            seen = len(self.history)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                for _, snapshot in self.history[seen:]:
                    if wanted(snapshot):
                        return snapshot
                seen = len(self.history)
                if not self.arrived.wait(deadline - time.monotonic()):
                    raise AssertionError(f"waited in vain; last: {self._summary()}")

    def _summary(self) -> str:
        if not self.history:
            return "nothing at all"
        last = self.history[-1][1]
        statuses = [found.status.value for found in last.gpus]
        return f"{last.driver_state} {statuses} restarts={last.worker_restarts} {last.details}"

    def inject(self, index: int, fault: str) -> float:
        """Break one GPU now; returns the monotonic time."""
        state.inject(self.path, index, fault)
        return time.monotonic()

    def since(self, moment: float) -> list[tuple[float, Snapshot]]:
        """What arrived after a moment."""
        with self.arrived:
            return [(at, snapshot) for at, snapshot in self.history if at > moment]

    def xids(self) -> list[tuple[str | None, int]]:
        """(GPU, code) of every Xid so far."""
        with self.arrived:
            return [(xid.gpu, xid.code) for _, snapshot in self.history for xid in snapshot.xids]


def gpu(snapshot: Snapshot, index: int) -> GpuReadings:
    """The GPU that is or was at an index."""
    return next(found for found in snapshot.gpus if found.identity.index == index)


def all_up(snapshot: Snapshot, but: tuple[int, ...] = ()) -> bool:
    """Whether every GPU answers, except the named indices."""
    others = [found for found in snapshot.gpus if found.identity.index not in but]
    return bool(others) and all(found.status is GpuStatus.UP for found in others)


def age_seconds(snapshot: Snapshot, index: int) -> float:
    """How old one GPU's readings were when they were handed on."""
    return (snapshot.taken_at - gpu(snapshot, index).taken_at).total_seconds()


def start_sampling(path: Path, settings: SamplerSettings) -> Sampling:
    """Start a sampler whose snapshots are recorded."""
    sampling: Sampling
    sampler = Sampler(settings, lambda snapshot: sampling.record(snapshot))  # noqa: PLW0108 (bound later)
    sampling = Sampling(path=path, sampler=sampler)
    sampler.start()
    return sampling
