"""Owner references: who made an object, and the names that controllers give to what they make."""

import secrets
from collections.abc import Iterable

from remediator.simulation.status_errors import Obj
from remediator.simulation.store import Key, Store

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def suffix(length: int = 5) -> str:
    """The random end of a generated name, in the alphabet of the real generator."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def controller_of(obj: Obj) -> Obj | None:
    """The owner reference with `controller: true`."""
    return next((o for o in obj["metadata"].get("ownerReferences") or () if o.get("controller")), None)


def reference_to(owner: Obj) -> Obj:
    """A controlling reference to `owner`."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owner_key(obj: Obj, kind: str) -> Iterable[Key]:
    """Key of the controller of `obj` when it is of `kind`."""
    owner = controller_of(obj)
    return [(obj["metadata"].get("namespace", ""), owner["name"])] if owner and owner["kind"] == kind else []


class OwnedPods:
    """The pods of each controller, kept from changes so that no pass looks at every pod."""

    def __init__(self, store: Store, resource: str) -> None:
        self._store = store
        self._resource = resource
        self._by_owner: dict[str, set[Key]] = {}

    def note(self, obj: Obj, *, deleted: bool) -> None:
        """Learns of one change."""
        owner = controller_of(obj)
        if owner is None:
            return
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        keys = self._by_owner.setdefault(owner["uid"], set())
        if deleted:
            keys.discard(key)
        else:
            keys.add(key)

    def of(self, owner: Obj) -> list[Obj]:
        """What `owner` controls now, oldest first."""
        keys = sorted(self._by_owner.get(owner["metadata"]["uid"], ()))
        found = [obj for key in keys if (obj := self._store.get(self._resource, key)) is not None]
        return sorted(found, key=lambda obj: (obj["metadata"]["creationTimestamp"], obj["metadata"]["name"]))


def is_active(pod: Obj) -> bool:
    """Neither ended nor on its way out."""
    return pod["status"].get("phase") not in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]
