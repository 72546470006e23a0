"""The versioned object store: one revision counter, optimistic writes, a bounded history per resource.

Laws:
1. A stored object is never changed in place; every write stores a new dict with a new resourceVersion.
2. One counter for all resources; versions may be compared only within one resource, as on the real server.
3. History is bounded per resource; who asks for more than is kept gets 410 and lists again.
"""

import bisect
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from remediator.simulation.status_errors import Obj, expired

FIRST_REVISION = 100
"""Versions start above the small numbers that tests use to provoke 410."""
HISTORY = 20_000
"""Changes kept per resource; the real watch cache keeps 100 to 102,400."""

Key = tuple[str, str]
"""(namespace or "", name)."""


@dataclass(slots=True)
class Change:
    """One write to one object, as watches see it."""

    revision: int
    type: str
    """`ADDED`, `MODIFIED` or `DELETED`."""
    object: Obj
    """The state after the write; of a deletion the last state with the version of the deletion."""
    previous: Obj | None
    _encoded: bytes | None = None

    def encoded(self) -> bytes:
        """The object as JSON, made once for all watches."""
        if self._encoded is None:
            self._encoded = json.dumps(self.object, separators=(",", ":")).encode()
        return self._encoded


@dataclass(slots=True)
class Collection:
    """The objects and the history of one resource."""

    oldest: int
    """Changes up to this revision are gone."""
    objects: dict[Key, Obj] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)


Listener = Callable[[str, Change], None]


class Store:
    """All objects of the cluster; `lock` is held by whoever reads and then writes."""

    def __init__(self, history: int = HISTORY) -> None:
        self.lock = threading.RLock()
        self.revision = FIRST_REVISION
        self._history = history
        self._collections: dict[str, Collection] = {}
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(resource, change)` under the lock on every write; returns the way to stop it."""
        with self.lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self.lock:
                self._listeners.remove(listener)

        return stop

    def collection(self, resource: str) -> Collection:
        """The collection of `resource` (`pods`, `gpunodes.gpuward.io`), made when it is first named."""
        found = self._collections.get(resource)
        if found is None:
            found = self._collections[resource] = Collection(oldest=self.revision)
        return found

    def get(self, resource: str, key: Key) -> Obj | None:
        """The stored object or None."""
        return self.collection(resource).objects.get(key)

    def items(self, resource: str, namespace: str | None = None) -> list[Obj]:
        """All objects, by namespace and name; None = every namespace."""
        objects = self.collection(resource).objects
        if namespace is None:
            return [objects[key] for key in sorted(objects)]
        return [objects[key] for key in sorted(key for key in objects if key[0] == namespace)]

    def put(self, resource: str, obj: Obj) -> Obj:
        """Stores `obj` under a new version and returns what was stored."""
        with self.lock:
            collection = self.collection(resource)
            key = key_of(obj)
            previous = collection.objects.get(key)
            stored = self._stamped(obj)
            collection.objects[key] = stored
            kind = "ADDED" if previous is None else "MODIFIED"
            self._record(resource, collection, Change(self.revision, kind, stored, previous))
            return stored

    def remove(self, resource: str, obj: Obj) -> Obj:
        """Removes `obj`; returns its last state with the version of the deletion."""
        with self.lock:
            collection = self.collection(resource)
            previous = collection.objects.pop(key_of(obj))
            last = self._stamped(obj)
            self._record(resource, collection, Change(self.revision, "DELETED", last, previous))
            return last

    def _stamped(self, obj: Obj) -> Obj:
        self.revision += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.revision)}}

    def _record(self, resource: str, collection: Collection, change: Change) -> None:
        collection.history.append(change)
        if len(collection.history) >= 2 * self._history:
            self._cut(collection, len(collection.history) - self._history)
        for listener in self._listeners:
            listener(resource, change)

    def _cut(self, collection: Collection, count: int) -> None:
        if count > 0:
            collection.oldest = collection.history[count - 1].revision
            del collection.history[:count]

    def changes(self, resource: str, since: int) -> Iterator[Change]:
        """The changes after revision `since`; 410 when they are no longer all known."""
        with self.lock:
            collection = self.collection(resource)
            if since < collection.oldest:
                raise expired(since, collection.oldest)
            start = bisect.bisect_right(collection.history, since, key=lambda change: change.revision)
            return iter(collection.history[start:])

    def compact(self) -> None:
        """Forgets all history, as a restart of the real server does: every older watch gets 410."""
        with self.lock:
            for collection in self._collections.values():
                collection.history.clear()
                collection.oldest = self.revision

    def forget(self, resource: str) -> None:
        """Drops a resource whose definition was deleted."""
        with self.lock:
            self._collections.pop(resource, None)


def key_of(obj: Obj) -> Key:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
