"""The objects of one kind as the server last told us: immutable values under one lock.

Laws:
1. Readers get whole objects or a whole copy of the table; nobody holds the lock while working.
2. A relist replaces the table at once and is then told as the difference, so that nothing is missed or told twice.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from remediator.adapters.wire import HasMetadata

T = TypeVar("T", bound=HasMetadata)


class ChangeKind(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True)
class Change:
    """One key that is different now."""

    kind: ChangeKind
    key: str


def key_of(item: HasMetadata) -> str:
    """`namespace/name`, or `name` alone where there is no namespace."""
    meta = item.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class Store(Generic[T]):
    """Written by one reflector, read by everybody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        with self._lock:
            return self._items.get(key)

    def items(self) -> dict[str, T]:
        """A copy of the table."""
        with self._lock:
            return dict(self._items)

    def __len__(self) -> int:
        with self._lock:
            return len(self._items)

    def put(self, item: T) -> Change | None:
        """Take one object in; None when we have that very version already."""
        key = key_of(item)
        with self._lock:
            known = self._items.get(key)
            if known is not None and _same(known, item):
                return None
            self._items[key] = item
        return Change(ChangeKind.ADDED if known is None else ChangeKind.MODIFIED, key)

    def drop(self, key: str) -> Change | None:
        """Forget one object; None when it is not known."""
        with self._lock:
            known = self._items.pop(key, None)
        return None if known is None else Change(ChangeKind.DELETED, key)

    def replace(self, items: Mapping[str, T]) -> tuple[Change, ...]:
        """Swap the whole table and tell the difference."""
        with self._lock:
            before, self._items = self._items, dict(items)
        changes = [Change(ChangeKind.DELETED, key) for key in before if key not in items]
        for key, item in items.items():
            known = before.get(key)
            if known is None:
                changes.append(Change(ChangeKind.ADDED, key))
            elif not _same(known, item):
                changes.append(Change(ChangeKind.MODIFIED, key))
        return tuple(changes)


def _same(one: HasMetadata, other: HasMetadata) -> bool:
    # The UID too: an object deleted and made again within one gap is another object.
    return (
        one.metadata.resource_version == other.metadata.resource_version
        and one.metadata.uid == other.metadata.uid
        and bool(one.metadata.resource_version)
    )
