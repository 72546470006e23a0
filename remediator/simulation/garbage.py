"""What goes when its owner goes: dependents of deleted objects, contents of deleted namespaces."""

from collections.abc import Iterable

from remediator.simulation.client import Client
from remediator.simulation.resources import Registry, Resource
from remediator.simulation.status_errors import ApiError, Obj
from remediator.simulation.store import Change, Key, Store, key_of


def object_path(resource: Resource, key: Key) -> str:
    """URL path of one object."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    middle = f"/namespaces/{key[0]}" if resource.namespaced else ""
    return f"{root}{middle}/{resource.plural}/{key[1]}"


def remove(client: Client, path: str, uid: str) -> None:
    """Deletes exactly that object; it may be gone already."""
    try:
        client.request("DELETE", path, {"preconditions": {"uid": uid}, "propagationPolicy": "Background"})
    except ApiError as error:
        if error.code not in (404, 409):
            raise


class GarbageCollector:
    """Keys are uids of owners that are gone, as ("", uid)."""

    def __init__(self, store: Store, registry: Registry, client: Client) -> None:
        self._store = store
        self._registry = registry
        self._client = client
        self.watched = frozenset(resource.id for resource in registry if resource.id != "events")
        self._dependents: dict[str, set[tuple[str, Key]]] = {}
        self._alive: dict[str, tuple[str, Key]] = {}

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The object's own uid when it goes or waits for its dependents; its owners when it appears."""
        obj, place = change.object, (resource, key_of(change.object))
        uid = obj["metadata"]["uid"]
        owners = [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or () if self._known(owner)]
        if change.type == "DELETED":
            self._alive.pop(uid, None)
            for owner in owners:
                self._dependents.get(owner, set()).discard(place)
            return [("", uid), *(("", owner) for owner in owners if owner in self._alive)]
        self._alive[uid] = place
        for owner in owners:
            self._dependents.setdefault(owner, set()).add(place)
        waits = "deletionTimestamp" in obj["metadata"] and obj["metadata"].get("finalizers")
        return [("", uid)] if waits else [("", owner) for owner in owners if change.type == "ADDED"]

    def _known(self, owner: Obj) -> bool:
        """Whether this collector would have seen the owner; nobody is an orphan for want of looking."""
        resource = self._registry.by_kind(owner["apiVersion"], owner["kind"])
        return resource is not None and resource.id in self.watched

    def reconcile(self, key: Key) -> float | None:
        """Deletes the dependents of an owner that is gone, or settles the propagation finalizer of one that goes."""
        uid = key[1]
        place = self._alive.get(uid)
        owner = self._store.get(*place) if place else None
        if owner is None:
            for resource, dependent in sorted(self._dependents.pop(uid, ())):
                self._release(resource, dependent, uid)
            return None
        finalizers = owner["metadata"].get("finalizers") or []
        if "deletionTimestamp" not in owner["metadata"] or place is None:
            return None
        if "orphan" in finalizers:
            for resource, dependent in sorted(self._dependents.pop(uid, ())):
                self._disown(resource, dependent, uid)
            self._drop(place, owner, "orphan")
        elif "foregroundDeletion" in finalizers:
            left = sorted(self._dependents.get(uid, ()))
            for resource, dependent in left:
                self._release(resource, dependent, uid)
            if not left:
                self._drop(place, owner, "foregroundDeletion")
        return None

    def _resource(self, resource_id: str) -> Resource | None:
        return next((resource for resource in self._registry if resource.id == resource_id), None)

    def _release(self, resource_id: str, key: Key, uid: str) -> None:
        """Deletes a dependent unless another owner lives; then only the reference goes."""
        obj, resource = self._store.get(resource_id, key), self._resource(resource_id)
        if obj is None or resource is None:
            return
        others = [o for o in obj["metadata"].get("ownerReferences") or () if o["uid"] != uid]
        if any(other["uid"] in self._alive for other in others):
            self._disown(resource_id, key, uid)
        elif "deletionTimestamp" not in obj["metadata"]:
            remove(self._client, object_path(resource, key), obj["metadata"]["uid"])

    def _disown(self, resource_id: str, key: Key, uid: str) -> None:
        obj, resource = self._store.get(resource_id, key), self._resource(resource_id)
        if obj is not None and resource is not None:
            rest = [o for o in obj["metadata"].get("ownerReferences") or () if o["uid"] != uid]
            self._client.request("PATCH", object_path(resource, key), {"metadata": {"ownerReferences": rest or None}})

    def _drop(self, place: tuple[str, Key], owner: Obj, finalizer: str) -> None:
        resource = self._resource(place[0])
        if resource is not None:
            rest = [name for name in owner["metadata"]["finalizers"] if name != finalizer]
            self._client.request("PATCH", object_path(resource, place[1]), {"metadata": {"finalizers": rest or None}})


class Namespaces:
    """Empties a terminating namespace, then lets it go."""

    def __init__(self, store: Store, registry: Registry, client: Client) -> None:
        self._store = store
        self._registry = registry
        self._client = client
        self.watched = frozenset({"namespaces", *(r.id for r in registry if r.namespaced and r.id != "events")})

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The namespace itself, or that of something that has just gone."""
        if resource == "namespaces":
            return [key_of(change.object)] if "deletionTimestamp" in change.object["metadata"] else []
        return [("", change.object["metadata"]["namespace"])] if change.type == "DELETED" else []

    def reconcile(self, key: Key) -> float | None:
        """See `Reconciler`."""
        namespace = self._store.get("namespaces", key)
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return None
        left = 0
        for resource in self._registry:
            if not resource.namespaced:
                continue
            for obj in self._store.items(resource.id, key[1]):
                left += 1
                if "deletionTimestamp" not in obj["metadata"]:
                    remove(self._client, object_path(resource, key_of(obj)), obj["metadata"]["uid"])
        if left:
            return 0.02
        path = f"/api/v1/namespaces/{key[1]}/finalize"
        metadata = {"name": key[1], "resourceVersion": namespace["metadata"]["resourceVersion"]}
        self._client.request("PUT", path, {"metadata": metadata, "spec": {"finalizers": []}})
        return None
