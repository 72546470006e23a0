"""Where the sources leave what they found, and the poller of the pod mapping.

Sources run in threads of their own and never wait for the loop; the loop takes everything at once. Bounded: a source
that floods loses its oldest events, and the loss is counted.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from exporter.readings import KernelNotice, PodMapping, Snapshot, XidEvent

STOP_SECONDS: Final = 1.0
EVENTS_KEPT: Final = 4096
"""Events between two turns; a kernel that prints more in that time prints the same line again and again."""


@dataclass(frozen=True, kw_only=True)
class News:
    """What came since the last turn."""

    snapshot: Snapshot | None
    """The newest one, without events: those of every snapshot are in `xids` and `notices`; None = none came."""
    xids: tuple[XidEvent, ...]
    notices: tuple[KernelNotice, ...]


NOTHING: Final = News(snapshot=None, xids=(), notices=())


def joined(earlier: News, later: News) -> News:
    """Both, in order; the newest events that fit."""
    return News(
        snapshot=later.snapshot or earlier.snapshot,
        xids=(*earlier.xids, *later.xids)[-EVENTS_KEPT:],
        notices=(*earlier.notices, *later.notices)[-EVENTS_KEPT:],
    )


class Inbox:
    """Takes from any thread, gives to one."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._xids: deque[XidEvent] = deque(maxlen=EVENTS_KEPT)
        self._notices: deque[KernelNotice] = deque(maxlen=EVENTS_KEPT)
        self._rung = False
        self._mapping = PodMapping(known=False, reason="starting")
        self.lost = 0
        """Events pushed out by newer ones."""

    def snapshot(self, snapshot: Snapshot) -> None:
        """A new snapshot from the sampler."""
        with self._wake:
            self._snapshot = snapshot
            for event in snapshot.xids:
                self._keep(event)
            for notice in snapshot.notices:
                self._keep_notice(notice)
            self._ring()

    def kernel_line(self, told: XidEvent | KernelNotice) -> None:
        """What a line of the kernel log told."""
        with self._wake:
            if isinstance(told, XidEvent):
                self._keep(told)
            else:
                self._keep_notice(told)
            self._ring()

    def mapping(self, mapping: PodMapping) -> None:
        """What the kubelet said, or that it said nothing; wakes the loop when the answer is another one."""
        with self._wake:
            before, self._mapping = self._mapping, mapping
            if (before.known, before.devices) != (mapping.known, mapping.devices):
                self._ring()

    def latest_mapping(self) -> PodMapping:
        """The newest mapping."""
        return self._mapping

    def wake(self) -> None:
        """End the present `take` at once."""
        with self._wake:
            self._ring()

    def take(self, timeout: float) -> News:
        """Everything that came; waits up to `timeout` seconds for the first thing."""
        with self._wake:
            if not self._rung:
                self._wake.wait(timeout)
            news = News(snapshot=self._snapshot, xids=tuple(self._xids), notices=tuple(self._notices))
            self._snapshot, self._rung = None, False
            self._xids.clear()
            self._notices.clear()
        return news

    def _ring(self) -> None:
        self._rung = True
        self._wake.notify()

    def _keep(self, event: XidEvent) -> None:
        self.lost += len(self._xids) == EVENTS_KEPT
        self._xids.append(event)

    def _keep_notice(self, notice: KernelNotice) -> None:
        self.lost += len(self._notices) == EVENTS_KEPT
        self._notices.append(notice)


class MappingSource(Protocol):
    """Asks the kubelet once."""

    def read(self, timeout: float) -> PodMapping:
        """The mapping, or an unknown one with its reason; within `timeout` seconds, without raising."""


class MappingPoller:
    """Asks a `MappingSource` every few seconds from a thread of its own: a hung kubelet holds up nobody."""

    def __init__(
        self, source: MappingSource, interval_seconds: float, receive: Callable[[PodMapping, float], None]
    ) -> None:
        self._source = source
        self._interval = interval_seconds
        self._receive = receive
        self._stopping = threading.Event()
        self.first = threading.Event()
        """Set once there has been an answer of any kind."""
        self._thread = threading.Thread(target=self._run, name="pod-mapping", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; returns within a second: the answer of a kubelet that hangs is not waited for."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            mapping = self._source.read(self._interval)
            self._receive(mapping, time.monotonic() - started)
            self.first.set()
            self._stopping.wait(self._interval)
