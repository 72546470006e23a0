"""Pods and namespaces, listed where the domain wants to look (`attention`), never watched cluster-wide.

Laws:
1. A list that failed is "not known" (None, or missing), never "empty".
2. Where an incident drains, the list is a consistent one: a drain is not called complete on a cached answer.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from remediator.adapters.api import KubeApi, Query
from remediator.adapters.errors import ApiError, NotFound
from remediator.adapters.facts import namespace_facts, pod_facts
from remediator.adapters.resources import NAMESPACES, PODS, Ref
from remediator.domain.model import NamespaceFacts, PodFacts

log = logging.getLogger(__name__)

WORKERS = 8
"""A consistent list waits up to 100 ms inside the API server; eight nodes can drain at the pace of one."""
NAMESPACE_FRESH = 2.0
"""Seconds; the executor reads the namespace again before each eviction."""
IDLE_FRESH = 5.0
"""Seconds for nodes that only show a fault: nothing is decided on their pods before an incident is open."""
OWNERS_REST = 20.0
"""A namespace is listed again after so many times as long as its list took: one of thousands of pods costs the API
server half a second, and a replacement is waited for every second."""

K = TypeVar("K")
V = TypeVar("V")


class PodLister:
    """Reads in parallel, one thread of the loop at a time."""

    def __init__(self, api: KubeApi, failed: Callable[[str], None]) -> None:
        self._api = api
        self._failed = failed
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pods")
        self._namespaces: dict[str, tuple[float, NamespaceFacts | None]] = {}
        self._idle: dict[str, tuple[float, tuple[PodFacts, ...]]] = {}
        self._around: dict[str, tuple[float, tuple[PodFacts, ...]]] = {}
        """Pods by namespace, and until when they are fresh enough."""

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def of_nodes(self, nodes: Mapping[str, str]) -> dict[str, tuple[PodFacts, ...]]:
        """Pods by node; `nodes` says per name how: `idle`, `cached` or `consistent`. A failed node is missing."""
        now = time.monotonic()
        known = {
            name: self._idle[name][1]
            for name, how in nodes.items()
            if how == "idle" and name in self._idle and now - self._idle[name][0] < IDLE_FRESH
        }
        wanted = [name for name in nodes if name not in known]
        listed = self._each(wanted, lambda name: self._of_node(name, from_cache=nodes[name] != "consistent"))
        self._idle = {name: entry for name, entry in self._idle.items() if name in nodes}
        self._idle |= {name: (now, pods) for name, pods in listed.items()}
        return known | listed

    def by_owner(self, namespaces: Iterable[str], owners: frozenset[str]) -> dict[str, tuple[PodFacts, ...]]:
        """Pods of `namespaces` whose controller is one of `owners`, by the controller's UID."""
        found: dict[str, list[PodFacts]] = {}
        names, now = sorted(namespaces), time.monotonic()
        known = {name: self._around[name] for name in names if name in self._around and now < self._around[name][0]}
        self._around = known | self._each([name for name in names if name not in known], self._of_namespace)
        for _, pods in self._around.values():
            for pod in pods:
                if pod.owner_uid in owners and pod.owner_uid is not None:
                    found.setdefault(pod.owner_uid, []).append(pod)
        return {owner: tuple(pods) for owner, pods in found.items()}

    def namespaces(self, names: Iterable[str]) -> dict[str, NamespaceFacts]:
        """Facts by name; one that is gone or cannot be read is missing."""
        now = time.monotonic()
        wanted = sorted(set(names))
        old = [n for n in wanted if n not in self._namespaces or now - self._namespaces[n][0] > NAMESPACE_FRESH]
        read = self._each(old, self._namespace)
        # A failed read must not leave the old answer standing: an opt-out may have come in between.
        kept = {name: entry for name, entry in self._namespaces.items() if name in wanted and name not in old}
        self._namespaces = kept | {name: (now, facts) for name, facts in read.items()}
        return {name: facts for name, (_, facts) in self._namespaces.items() if facts is not None}

    def _of_node(self, name: str, *, from_cache: bool) -> tuple[PodFacts, ...]:
        return self._list(Query(field_selector=f"spec.nodeName={name}", from_cache=from_cache))

    def _of_namespace(self, name: str) -> tuple[float, tuple[PodFacts, ...]]:
        began = time.monotonic()
        pods = self._list(Query(namespace=name, from_cache=True))
        ended = time.monotonic()
        return ended + (ended - began) * OWNERS_REST, pods

    def _list(self, query: Query) -> tuple[PodFacts, ...]:
        listing = self._api.list(PODS, query)
        if listing.undecodable:
            # A pod that we cannot read is still a pod: the list as a whole is not known.
            raise ApiError(f"pods cannot be read: {', '.join(listing.undecodable[:5])}")
        return tuple(pod_facts(item) for item in listing.items)

    def _namespace(self, name: str) -> NamespaceFacts | None:
        try:
            return namespace_facts(self._api.get(Ref(NAMESPACES, name)))
        except NotFound:
            return None

    def _each(self, keys: list[K], read: Callable[[K], V]) -> dict[K, V]:
        futures = {key: self._pool.submit(read, key) for key in keys}
        out: dict[K, V] = {}
        for key, future in futures.items():
            try:
                out[key] = future.result()
            except ApiError as error:
                log.warning("cannot list what=%s error=%s", key, error)
                self._failed("pods")
        return out
