"""One eviction in flight per PodDisruptionBudget.

The API server serialises evictions of one budget anyway (a conflict costs 0.5 s inside it, 50/s at best with latencies
of seconds), so asking in parallel only fills its queues and ours.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from remediator.adapters.api import KubeApi, Query
from remediator.adapters.resources import DISRUPTION_BUDGETS
from remediator.adapters.wire import DisruptionBudgetObject

FRESH_SECONDS = 5.0
"""Budgets change rarely, and a missed one costs patience, not safety: the API server enforces them."""


class BudgetLocks:
    """Knows which budgets cover a pod and lets one eviction through at a time."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, tuple[DisruptionBudgetObject, ...]]] = {}
        self._locks: dict[str, threading.Lock] = {}

    def covering(self, namespace: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the budgets that cover a pod with `labels`, sorted (the order in which they are locked)."""
        found = [
            budget.metadata.name
            for budget in self._budgets(namespace)
            if budget.spec.selector is not None and budget.spec.selector.matches(dict(labels))
        ]
        return tuple(f"{namespace}/{name}" for name in sorted(found))

    @contextmanager
    def turn(self, budgets: tuple[str, ...], wait: float) -> Iterator[bool]:
        """True inside when it is our turn for all `budgets`, False when that took longer than `wait` seconds."""
        with ExitStack() as held:
            for name in budgets:
                with self._lock:
                    lock = self._locks.setdefault(name, threading.Lock())
                if not lock.acquire(timeout=wait):
                    yield False
                    return
                held.callback(lock.release)
            yield True

    def _budgets(self, namespace: str) -> tuple[DisruptionBudgetObject, ...]:
        now = time.monotonic()
        with self._lock:
            known = self._known.get(namespace)
        if known is not None and now - known[0] < FRESH_SECONDS:
            return known[1]
        budgets = self._api.list(DISRUPTION_BUDGETS, Query(namespace=namespace, from_cache=True)).items
        with self._lock:
            self._known[namespace] = (now, budgets)
        return budgets
