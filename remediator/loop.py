"""The loop: something changed or it is time, look at everything, decide, hand the plan over. One sentence per turn.

Laws:
1. Only this thread plans. A change during a turn leads to another turn, many changes to one.
2. Nothing is planned before every watch has been filled; a standby replica watches and plans nothing.
3. A turn that fails is logged, counted and repeated; the loop never ends by itself.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from remediator.adapters.work_queue import WorkQueue
from remediator.domain.actions import OpenIncident, Plan
from remediator.domain.model import ClusterView
from remediator.domain.planner import plan
from remediator.domain.policy import Policy
from remediator.executor import Executor
from remediator.metrics import Metrics
from remediator.observer import Observer

log = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""A turn at least so often: silence (a heartbeat that stops) sends no event."""
FILES_SECONDS = 2.0
"""The policy file is looked at this often."""
SOONEST_SECONDS = 0.25
"""A wait that is due but cannot be served must not make us spin."""
BREATH_FACTOR = 1.0
"""A busy loop rests as long as its last turn took, so that it never takes more than half a core..."""
BREATH_MOST = 0.5
"""...but never longer than this many seconds."""


class Leader(Protocol):
    """What the loop wants to know of the elector."""

    def is_leader(self) -> bool: ...


class Policies(Protocol):
    """Where the policy in force comes from."""

    def current(self) -> Policy: ...

    def refresh(self) -> None:
        """Look whether the file has changed; quick, and called between turns only."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop drives."""

    observer: Observer
    executor: Executor
    leader: Leader
    policies: Policies
    metrics: Metrics
    queue: WorkQueue
    """Names of what changed."""
    now: Callable[[], datetime]


class Loop:
    """One thread; `stop` ends it between turns."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._stopping = threading.Event()
        self._beat = time.monotonic()
        self._said = ""
        self._look_in = 0.0
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        self._stopping.set()
        self._parts.queue.add("stop")
        if self._thread.is_alive():
            self._thread.join(timeout)

    def age(self) -> float:
        """Seconds since the loop last came around."""
        return time.monotonic() - self._beat

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._come_around()
            except Exception:
                log.exception("turn failed")
                self._parts.metrics.failed("loop")
                self._look_in = 1.0
                self._stopping.wait(1.0)

    def _come_around(self) -> None:
        news = self._wait()
        self._beat = time.monotonic()
        parts = self._parts
        parts.policies.refresh()
        synced = parts.observer.synced()
        parts.metrics.watching(synced, {r.kind: r.silence() for r in parts.observer.reflectors})
        parts.metrics.leads(parts.leader.is_leader())
        if not synced:
            self._look_in = 0.2
            return
        if news and not self._stopping.is_set():
            self.turn()

    def _wait(self) -> bool:
        """Wait for a change or the next look; True when a turn is due. Takes everything that is waiting."""
        queue = self._parts.queue
        end = time.monotonic() + self._look_in
        while (left := end - time.monotonic()) > 0:
            first = queue.get(timeout=min(left, FILES_SECONDS))
            if first is None:
                # News of a changed file comes through the queue as well.
                self._parts.policies.refresh()
                continue
            changed = [first]
            while (more := queue.get(timeout=0)) is not None:
                changed.append(more)
            for key in changed:
                queue.done(key)
            # Every key is asked about: being asked is how the observer learns what it has already told.
            news = [key for key in changed if self._parts.observer.is_news(key)]
            if news:
                return True
        return True

    def turn(self) -> Plan:
        """Look, decide, hand over. Public for drills and benchmarks; normally called by the loop's own thread."""
        parts = self._parts
        began = time.monotonic()
        mark = parts.executor.mark()
        policy = parts.policies.current()
        view = parts.observer.view(leader=parts.leader.is_leader(), outcomes=parts.executor.book.all())
        now = parts.now()
        decided = plan(view, policy, now)
        started = parts.executor.submit(decided, policy, mark) if decided.actions else 0
        seconds = time.monotonic() - began
        self._measure(view, policy, decided, seconds)
        self._say(decided, started, seconds)
        self._look_in = min(IDLE_SECONDS, self._next(decided, now))
        self._stopping.wait(min(BREATH_MOST, seconds * BREATH_FACTOR))
        return decided

    def _next(self, decided: Plan, now: datetime) -> float:
        if decided.next_look is None:
            return IDLE_SECONDS
        return max(SOONEST_SECONDS, (decided.next_look - now).total_seconds())

    def _measure(self, view: ClusterView, policy: Policy, decided: Plan, seconds: float) -> None:
        metrics = self._parts.metrics
        metrics.turned(view, policy, seconds)
        metrics.waiting(deferral.code for deferral in decided.deferrals)
        for action in decided.actions:
            if isinstance(action, OpenIncident):
                metrics.opened(view, action.incident)

    def _say(self, decided: Plan, started: int, seconds: float) -> None:
        """One sentence per turn; a sentence that only repeats itself is for debugging."""
        level = logging.INFO if decided.summary != self._said else logging.DEBUG
        self._said = decided.summary
        log.log(level, "turn: %s (%d chains started, %.0f ms)", decided.summary, started, seconds * 1000)
