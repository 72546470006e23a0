"""A bounded queue with one thread behind it, for what must be told but may never be in anybody's way.

Laws: `put` never blocks and never raises: a full queue drops the item and counts the drop; a failed delivery is
counted and ends nothing.
"""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from remediator.adapters.guarded import survive

T = TypeVar("T")


class Outbox(Generic[T]):
    """Hands each item to `deliver`, one after the other; `on_result` hears `dropped` and `failed`."""

    def __init__(self, name: str, limit: int, deliver: Callable[[T], None], on_result: Callable[[str], None]) -> None:
        self._name = name
        self._deliver = deliver
        self._on_result = on_result
        self._waiting: queue.Queue[T | None] = queue.Queue(limit)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Deliver what is queued, at most `timeout` seconds long."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        if self._thread.is_alive():
            self._thread.join(timeout)

    def put(self, item: T) -> None:
        """Have it delivered soon."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._on_result("dropped")

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._hand_over(item)

    def _hand_over(self, item: T) -> None:
        survive(self._name, lambda: self._deliver(item), lambda _what, _error: self._on_result("failed"))
