"""Create, update, patch and delete: the rules every kind shares.

Laws:
1. Optimistic concurrency: a resourceVersion in the body must be the stored one; a write that changes nothing stores
   nothing and keeps the version.
2. The main resource never writes status, the status subresource never writes spec.
3. An object with finalizers is only marked; it goes when the last finalizer does.
"""

import secrets
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from exporter.health.wire import timestamp
from remediator.simulation import strategy
from remediator.simulation.admission import admitted
from remediator.simulation.calls import Call, Reply, Target
from remediator.simulation.conditions import (
    check_identity,
    check_kind,
    check_preconditions,
    finalizers_for,
    grace_of,
    is_finished,
    is_kept,
    object_of,
    raised_generation,
    registry_path,
)
from remediator.simulation.patches import decoded, json_patch, merge, object_patch
from remediator.simulation.patches import strategic as strategic_merge
from remediator.simulation.status_errors import (
    ApiError,
    Obj,
    already_exists,
    bad_request,
    conflict,
    details_of,
    invalid,
    not_done_here,
    not_found,
    success,
    unsupported_media,
    wrong,
)
from remediator.simulation.store import Store

Clock = Callable[[], datetime]
SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


class Writes:
    """The writing half of the server, over one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def create(self, target: Target, body: Obj, call: Call) -> Reply:
        """POST to a collection."""
        resource = target.resource
        body = self._identified(target, body)
        with self._store.lock:
            obj, warnings = strategy.cleaned(target, body, call)
            obj = admitted(self._store, target, strategy.at_create(target, obj))
            name = obj["metadata"].get("name", "")
            if errors := strategy.errors_of(target, obj, None):
                raise invalid(resource.kind, resource.group, name, errors)
            if (existing := self._store.get(resource.id, (target.namespace, name))) is not None:
                terminating = resource.custom is not None and "deletionTimestamp" in existing["metadata"]
                raise already_exists(resource.plural, resource.group, name, terminating=terminating)
            stored = obj if call.dry_run else self._store.put(resource.id, obj)
        return Reply(code=201, body=stored, headers=warnings)

    def _identified(self, target: Target, body: Obj) -> Obj:
        """The body with kind, namespace, name and server-owned metadata."""
        resource = target.resource
        check_kind(target, body)
        metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in SERVER_OWNED}
        if (given := metadata.get("namespace", "")) and given != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if metadata.get("resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        metadata.pop("resourceVersion", None)
        if not metadata.get("name") and (prefix := metadata.get("generateName")):
            metadata["name"] = prefix + "".join(secrets.choice(_SUFFIX) for _ in range(5))
        if resource.namespaced:
            metadata["namespace"] = target.namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp(self._clock())
        if resource.generation:
            metadata["generation"] = 1
        return {"kind": resource.kind, "apiVersion": resource.api_version, **body, "metadata": metadata}

    def replace(self, target: Target, body: Obj, call: Call) -> Reply:
        """PUT."""
        check_kind(target, body)
        metadata = body.get("metadata") or {}
        if (name := metadata.get("name", "")) != target.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
        missing = self._store.get(target.resource.id, target.key) is None
        if missing and target.resource.create_on_update and not target.subresource:
            collection = Target(resource=target.resource, namespace=target.namespace, name="", subresource="")
            return self.create(collection, body, call)
        if not metadata.get("resourceVersion") and not target.resource.unconditional_update:
            what = wrong("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(target.resource.plural, target.resource.group, target.name, [what])
        return self.update(target, lambda old: self._replacement(target, old, body), call)

    def _replacement(self, target: Target, old: Obj, body: Obj) -> Obj:
        """The body of a PUT; another uid in it is a conflict there, told by the storage layer."""
        resource, metadata = target.resource, body["metadata"]
        if (uid := metadata.get("uid") or old["metadata"]["uid"]) != old["metadata"]["uid"]:
            key = f"/registry/{registry_path(target)}"
            told = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
            why = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {told}"
            raise conflict(resource.plural, resource.group, target.name, why)
        return {"kind": resource.kind, "apiVersion": resource.api_version, **body}

    def patch(self, target: Target, call: Call) -> Reply:
        """PATCH of any kind that the resource takes."""
        kind = call.media_type()
        if kind == APPLY_PATCH:
            raise not_done_here("server-side apply")
        custom = target.resource.custom is not None
        if kind not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH):
            raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        if kind == STRATEGIC_PATCH and custom:
            raise unsupported_media((JSON_PATCH, MERGE_PATCH, APPLY_PATCH))
        operations = decoded(call.body)

        def apply(old: Obj) -> Obj:
            if kind == JSON_PATCH:
                patched: Any = json_patch(old, operations)
            elif kind == MERGE_PATCH:
                patched = merge(old, object_patch(operations))
            else:
                patched = strategic_merge(old, object_patch(operations))
            return object_of(patched)

        return self.update(target, apply, call)

    def update(self, target: Target, change: Callable[[Obj], Obj], call: Call) -> Reply:
        """One read, change, check, write; the common path of PUT, PATCH and our own status writers."""
        resource = target.resource
        with self._store.lock:
            old = self._store.get(resource.id, target.key)
            if old is None:
                raise not_found(resource.plural, resource.group, target.name)
            new = change(old)
            check_identity(target, old, new)
            new, warnings = strategy.cleaned(target, new, call)
            new = self._merged(target, old, new)
            if errors := strategy.errors_of(target, new, old):
                raise invalid(resource.kind, resource.group, target.name, errors)
            new = self._with_generation(target, old, new)
            if new == old:
                return Reply(body=old, headers=warnings)
            if call.dry_run:
                return Reply(body=new, headers=warnings)
            if is_finished(new):
                return Reply(body=self._store.remove(resource.id, new), headers=warnings)
            return Reply(body=self._store.put(resource.id, new), headers=warnings)

    def _merged(self, target: Target, old: Obj, new: Obj) -> Obj:
        """The parts of `new` that this path may write, on top of `old`."""
        metadata = {key: value for key, value in (new.get("metadata") or {}).items() if key not in SERVER_OWNED}
        metadata |= {key: value for key, value in old["metadata"].items() if key in (*SERVER_OWNED, "resourceVersion")}
        if target.resource.namespaced:
            metadata["namespace"] = target.namespace
        if target.subresource == "status":
            kept = {key: value for key, value in old.items() if key not in ("status", "metadata")}
            if target.resource.custom is not None:
                metadata = old["metadata"]
            status = {"status": new["status"]} if new.get("status") is not None else {}
            return {**kept, "metadata": metadata, **status}
        if target.subresource == "finalize":
            return {**old, "spec": {"finalizers": (new.get("spec") or {}).get("finalizers") or []}}
        parts = {key: value for key, value in new.items() if key not in ("metadata", "status")}
        if "status" not in target.resource.subresources:
            return {**parts, "metadata": metadata, **({"status": new["status"]} if "status" in new else {})}
        return {**parts, "metadata": metadata, **({"status": old["status"]} if "status" in old else {})}

    def _with_generation(self, target: Target, old: Obj, new: Obj) -> Obj:
        if not target.resource.generation or target.subresource == "status":
            return new
        skipped = ("metadata", "status") if "status" in target.resource.subresources else ("metadata",)
        changed = any(old.get(key) != new.get(key) for key in (old.keys() | new.keys()) - set(skipped))
        return raised_generation(new) if changed else new

    def delete(self, target: Target, options: Obj, call: Call) -> Reply:
        """DELETE of one object, with its grace, finalizers and preconditions."""
        resource = target.resource
        with self._store.lock:
            old = self._store.get(resource.id, target.key)
            if old is None:
                raise not_found(resource.plural, resource.group, target.name)
            check_preconditions(target, old, options.get("preconditions") or {})
            finalizers = finalizers_for(old, options.get("propagationPolicy"), options.get("orphanDependents"))
            grace = grace_of(target, old, options, call)
            if finalizers or grace or is_kept(old):
                marked = self._marked(old, finalizers, grace)
                stored = marked if call.dry_run or marked == old else self._store.put(resource.id, marked)
                return Reply(body=stored)
            if resource.id == "pods":
                old = self._marked(old, [], 0)
            gone = old if call.dry_run else self._store.remove(resource.id, old)
        if resource.returns_deleted:
            return Reply(body=gone)
        details = details_of(resource.group, target.name, resource.plural) | {"uid": old["metadata"]["uid"]}
        return Reply(body=success(details))

    def _marked(self, old: Obj, finalizers: list[str], grace: int) -> Obj:
        """The object on its way out; a second delete may only shorten the grace."""
        metadata = {**old["metadata"]}
        if finalizers:
            metadata["finalizers"] = finalizers
        if "deletionTimestamp" not in metadata or grace < metadata.get("deletionGracePeriodSeconds", 0):
            first = "deletionTimestamp" not in metadata
            metadata["deletionTimestamp"] = timestamp(self._clock() + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
            if first and "generation" in metadata:
                metadata["generation"] += 1
        marked = {**old, "metadata": metadata}
        if is_kept(old):
            del metadata["deletionGracePeriodSeconds"]
            marked["status"] = {**old["status"], "phase": "Terminating"}
        return marked
