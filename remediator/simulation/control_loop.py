"""One thread that drives scheduler and controllers: store changes become keys, keys are reconciled, waits are a heap.

A reconciler reads the store and writes through the API; it must be able to run again at any time with the same
result. A refusal (a conflict, an object just gone) means: look again in a moment.
"""

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from remediator.simulation.status_errors import ApiError
from remediator.simulation.store import Change, Key, Store

RETRY_SECONDS = 0.05


class Reconciler(Protocol):
    """A scheduler or controller."""

    watched: frozenset[str]
    """Resources whose changes it wants to see."""

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """What a change asks to be looked at; called in order, for every change since the start."""
        ...

    def reconcile(self, key: Key) -> float | None:
        """Brings one key closer to what it should be; seconds until it wants another look, None = no need."""
        ...


class ControlLoop:
    """Runs reconcilers over one store."""

    def __init__(self, store: Store, reconcilers: Iterable[Reconciler]) -> None:
        self._store = store
        self._reconcilers = tuple(reconcilers)
        self._news: deque[tuple[str, Change]] = deque()
        self._wake = threading.Condition()
        self._due: list[tuple[float, int, int, Key]] = []
        self._serial = itertools.count()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="embedded-controllers", daemon=True)
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Takes what is stored already as news."""
        resources = {name for reconciler in self._reconcilers for name in reconciler.watched}
        with self._store.lock:
            for resource in sorted(resources):
                for obj in self._store.items(resource):
                    self._news.append((resource, Change(self._store.revision, "ADDED", obj, None)))
            self._unsubscribe = self._store.subscribe(self._hear)
        self._thread.start()

    def stop(self) -> None:
        """Ends after the key at hand."""
        self._unsubscribe()
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _hear(self, resource: str, change: Change) -> None:
        with self._wake:
            self._news.append((resource, change))
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._stopping and not self._news:
                    self._wake.wait(self._patience())
                if self._ended():
                    return
                news = list(self._news)
                self._news.clear()
            for number, key in (*self._asked(news), *self._overdue()):
                if self._ended():
                    return
                self._reconcile(number, key)

    def _ended(self) -> bool:
        return self._stopping

    def _patience(self) -> float | None:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def _asked(self, news: list[tuple[str, Change]]) -> list[tuple[int, Key]]:
        """Keys asked for by news, each once, in order."""
        found: dict[tuple[int, Key], None] = {}
        for resource, change in news:
            for number, reconciler in enumerate(self._reconcilers):
                if resource in reconciler.watched:
                    found.update(dict.fromkeys((number, key) for key in reconciler.keys(resource, change)))
        return list(found)

    def _overdue(self) -> list[tuple[int, Key]]:
        found = []
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, number, key = heapq.heappop(self._due)
            found.append((number, key))
        return found

    def _reconcile(self, number: int, key: Key) -> None:
        try:
            again = self._reconcilers[number].reconcile(key)
        except ApiError:
            again = RETRY_SECONDS
        if again is not None:
            heapq.heappush(self._due, (time.monotonic() + again, next(self._serial), number, key))
