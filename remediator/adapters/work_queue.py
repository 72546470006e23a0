"""Keys waiting to be worked on.

Laws (client-go's, because every controller's users expect them):
1. A key is handled by one worker at a time; added again meanwhile, it comes back exactly once after `done`.
2. A key added twice before anybody takes it is taken once.
3. Time is monotonic: a stepped wall clock moves nothing.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable

from remediator.adapters.backoff import BackoffLimits, plain_wait

KEY_BACKOFF = BackoffLimits(first=0.005, longest=300.0)
"""5 ms to 5 min per key: the first repeats cost nothing, a hopeless key almost nothing."""


class WorkQueue:
    """Dirty and processing sets, a heap of delayed keys, per-key back-off; safe to use from every thread."""

    def __init__(self, limits: BackoffLimits = KEY_BACKOFF, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._condition = threading.Condition()
        self._order: deque[str] = deque()
        self._dirty: set[str] = set()
        self._processing: set[str] = set()
        self._delayed: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._closed = False

    def add(self, key: str) -> None:
        """Have `key` handled as soon as a worker is free."""
        with self._condition:
            self._add(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Have `key` handled in `seconds`; an earlier wish for the same key wins."""
        if seconds <= 0:
            self.add(key)
            return
        with self._condition:
            due = self._clock() + seconds
            if self._closed or self._due.get(key, float("inf")) <= due:
                return
            self._due[key] = due
            heapq.heappush(self._delayed, (due, key))
            self._condition.notify()

    def add_backoff(self, key: str) -> float:
        """Have `key` handled after its own growing wait; returns the seconds."""
        with self._condition:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
        wait = plain_wait(self._limits, failures)
        self.add_after(key, wait)
        return wait

    def forget(self, key: str) -> None:
        """`key` went well: its next back-off starts anew."""
        with self._condition:
            self._failures.pop(key, None)

    def get(self, timeout: float | None = None) -> str | None:
        """The next key, to be given back with `done`; None after `timeout` seconds or when the queue is closed."""
        end = None if timeout is None else self._clock() + timeout
        with self._condition:
            while True:
                wait = self._ripen()
                if self._order:
                    key = self._order.popleft()
                    self._dirty.discard(key)
                    self._processing.add(key)
                    return key
                if self._closed:
                    return None
                if end is not None:
                    left = end - self._clock()
                    if left <= 0:
                        return None
                    wait = left if wait is None else min(wait, left)
                self._condition.wait(wait)

    def done(self, key: str) -> None:
        """The worker has finished with `key`; when it was added meanwhile, it is next in line again."""
        with self._condition:
            self._processing.discard(key)
            if key in self._dirty:
                self._order.append(key)
                self._condition.notify()

    def close(self) -> None:
        """Wake every worker; nothing is accepted any more, what is queued is still handed out."""
        with self._condition:
            self._closed = True
            self._delayed.clear()
            self._due.clear()
            self._condition.notify_all()

    def __len__(self) -> int:
        """Keys waiting now, delayed ones not counted."""
        with self._condition:
            return len(self._order)

    def _add(self, key: str) -> None:
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._order.append(key)
            self._condition.notify()

    def _ripen(self) -> float | None:
        """Move due keys over; seconds until the next one, None when there is none."""
        now = self._clock()
        while self._delayed:
            due, key = self._delayed[0]
            if self._due.get(key) != due:
                heapq.heappop(self._delayed)
                continue
            if due > now:
                return due - now
            heapq.heappop(self._delayed)
            del self._due[key]
            self._add(key)
        return None
