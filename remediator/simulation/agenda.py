"""One worker thread with a clock: things to do now or later, in order of time."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from remediator.simulation.status_errors import ApiError

Task = Callable[[], None]
RETRY_SECONDS = 0.2
GONE = 404
"""The object is not there any more: nothing left to do. A conflict is tried again: a busy server answers so too."""


class Agenda:
    """Runs tasks one at a time; a task that cannot reach the server is tried again."""

    def __init__(self, name: str) -> None:
        self._due: list[tuple[float, int, Task]] = []
        self._serial = itertools.count()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def stop(self) -> None:
        """Drops what is left and joins."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def after(self, seconds: float, task: Task) -> None:
        """Runs `task` in that many seconds; 0 = as soon as possible, in order of arrival."""
        with self._wake:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._serial), task))
            self._wake.notify()

    def call(self, task: Task) -> None:
        """Runs `task` on the worker and waits for it."""
        done = threading.Event()

        def run() -> None:
            try:
                task()
            finally:
                done.set()

        self.after(0, run)
        while not done.wait(0.1):
            if not self._thread.is_alive():
                raise RuntimeError("the worker has ended")

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            except ApiError as error:
                if error.code != GONE:
                    self.after(RETRY_SECONDS, task)
            except OSError:
                self.after(RETRY_SECONDS, task)

    def _next(self) -> Task | None:
        with self._wake:
            while not self._stopping:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._wake.wait(wait)
            return None
