"""Small memories of the observer: conversions done once per object version, and what is newer than the watch."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from remediator.adapters.wire import HasMetadata

T = TypeVar("T", bound=HasMetadata)
V = TypeVar("V")

MISSING_SECONDS = 10.0
"""How long a write of ours may be missing in the store before we believe that it was deleted: a relist after a broken
watch takes several seconds."""
LAG_SECONDS = 1.0
"""What a watch tells so soon after a write may be older than the write."""


class Converted(Generic[T, V]):
    """`convert(item)` for each object of a store, done again only when the object is another one.

    Used by one thread at a time per call; a lock keeps turns and live checks apart.
    """

    def __init__(self, convert: Callable[[T], V]) -> None:
        self._convert = convert
        self._lock = threading.Lock()
        self._known: dict[str, tuple[T, V]] = {}

    def all(self, items: Mapping[str, T]) -> dict[str, V]:
        """Converted values by key."""
        with self._lock:
            before, self._known = self._known, {}
            for key, item in items.items():
                known = before.get(key)
                # Identity is enough: stores hold immutable objects and replace them whole.
                self._known[key] = known if known and known[0] is item else (item, self._convert(item))
            return {key: value for key, (_, value) in self._known.items()}


class Newest(Generic[T]):
    """Objects that we know to be newer than what the watch has shown, until it has caught up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, T]] = {}

    def note(self, item: T) -> None:
        """The object as the server has it: the answer to a write of ours, or a consistent read."""
        with self._lock:
            before = self._known.get(item.metadata.name)
            if before is None or _is_newer(item, before[1]):
                self._known[item.metadata.name] = (self._clock(), item)

    def forget(self, name: str) -> None:
        """The watch has told that the object was deleted."""
        with self._lock:
            self._known.pop(name, None)

    def merged(self, stored: Mapping[str, T], silence: float = 0.0) -> dict[str, T]:
        """The store's objects with ours where ours are newer; `silence`: seconds since the watch told anything."""
        now = self._clock()
        out = dict(stored)
        with self._lock:
            for name, (at, item) in list(self._known.items()):
                seen = stored.get(name)
                # A watch that has said nothing since then may be a dead line: no proof that the object is gone.
                gone = now - at > MISSING_SECONDS and now - silence > at + LAG_SECONDS
                if _is_newer(seen, item) if seen else gone:
                    del self._known[name]
                else:
                    out[name] = item
        return out


def _is_newer(seen: HasMetadata, ours: HasMetadata) -> bool:
    """The watch shows our version or a later one. Versions of one kind are comparable numbers (promised since 1.35,
    true in every release before); where they are not numbers the watch is believed."""
    left, right = seen.metadata.resource_version, ours.metadata.resource_version
    if seen.metadata.uid != ours.metadata.uid:
        return True
    return int(left) >= int(right) if left.isdigit() and right.isdigit() else True
