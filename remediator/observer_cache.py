"""Small memories of the observer: conversions done once per object version, and our own newest writes."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from remediator.adapters.wire import HasMetadata, StatusCarrier

T = TypeVar("T", bound=HasMetadata)
V = TypeVar("V")

MISSING_SECONDS = 10.0
"""How long a write of ours may be missing in the store before we believe that it was deleted: a relist after a broken
watch takes several seconds."""


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


class OwnWrites:
    """Incidents as the server answered our writes, until the watch has caught up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[str, tuple[float, StatusCarrier]] = {}

    def note(self, item: StatusCarrier) -> None:
        with self._lock:
            self._written[item.metadata.name] = (time.monotonic(), item)

    def merged(self, stored: Mapping[str, StatusCarrier]) -> dict[str, StatusCarrier]:
        """The store's incidents with ours where ours are newer."""
        now = time.monotonic()
        out = dict(stored)
        with self._lock:
            for name, (at, item) in list(self._written.items()):
                seen = stored.get(name)
                caught_up = _is_newer(seen, item) if seen else now - at > MISSING_SECONDS
                if caught_up:
                    del self._written[name]
                else:
                    out[name] = item
        return out


def _is_newer(seen: StatusCarrier, ours: StatusCarrier) -> bool:
    """The watch shows our write or a later one. Versions of one kind are comparable numbers (promised since 1.35,
    true in every release before); where they are not numbers the watch is believed."""
    left, right = seen.metadata.resource_version, ours.metadata.resource_version
    if seen.metadata.uid != ours.metadata.uid:
        return True
    return int(left) >= int(right) if left.isdigit() and right.isdigit() else True
