"""What must hold before a write goes through, and what a delete leaves to wait for."""

from typing import Any

from remediator.simulation.calls import Call, Target
from remediator.simulation.custom import check_head
from remediator.simulation.status_errors import Obj, bad_request, conflict, invalid, wrong


def is_kept(obj: Obj) -> bool:
    """A Namespace stays until its own finalizers are gone."""
    return obj["kind"] == "Namespace" and bool((obj.get("spec") or {}).get("finalizers"))


def is_finished(obj: Obj) -> bool:
    """A marked object that nothing holds any more."""
    metadata = obj["metadata"]
    held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds") or is_kept(obj)
    return "deletionTimestamp" in metadata and not held


def raised_generation(obj: Obj) -> Obj:
    """The object with the next generation."""
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "generation": metadata.get("generation", 0) + 1}}


def object_of(patched: Any) -> Obj:
    """The patched document when it still is an object."""
    if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
        raise bad_request("embedded API server: the patched document is no longer an object with metadata")
    return patched


def registry_path(target: Target) -> str:
    """Where etcd keeps the object; it shows up in one message."""
    resource = target.resource
    plural = "minions" if resource.id == "nodes" else resource.plural
    parts = (resource.group if resource.custom is not None else "", plural, target.namespace, target.name)
    return "/".join(part for part in parts if part)


def check_kind(target: Target, body: Obj) -> None:
    """400 when the body says it is something else."""
    resource = target.resource
    if resource.custom is not None:
        check_head(resource, body)
        return
    wanted = (resource.api_version, resource.kind)
    given = (body.get("apiVersion") or wanted[0], body.get("kind") or wanted[1])
    if given != wanted:
        version = given[0].rpartition("/")[2]
        told = f'{given[1]} in version "{version}" cannot be handled as a {wanted[1]}'
        group = resource.group.split(".")[0] or "core"
        raise bad_request(f"{told}: converting ({version}.{given[1]}) to ({group}.{wanted[1]}): unknown conversion")


def check_identity(target: Target, old: Obj, new: Obj) -> None:
    """Name and uid must not change, and a given version must be the stored one."""
    resource, metadata = target.resource, new.get("metadata") or {}
    if (name := metadata.get("name", "")) != target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
    if (uid := metadata.get("uid") or old["metadata"]["uid"]) != old["metadata"]["uid"]:
        what = wrong("metadata.uid", uid, "field is immutable")
        raise invalid(resource.kind, resource.group, target.name, [what, what])
    if (version := metadata.get("resourceVersion")) and version != old["metadata"]["resourceVersion"]:
        raise conflict(resource.plural, resource.group, target.name)


def check_preconditions(target: Target, obj: Obj, wanted: Obj) -> None:
    """409 when the object is another one, or another version, than the caller means."""
    resource, metadata = target.resource, obj["metadata"]
    if (uid := wanted.get("uid")) and uid != metadata["uid"]:
        why = f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']})."
        why += " The object might have been deleted and then recreated"
        raise conflict(resource.kind, resource.group, target.name, why)
    version = wanted.get("resourceVersion")
    if version and version != metadata["resourceVersion"]:
        why = f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
        why += f"({metadata['resourceVersion']}). The object might have been modified"
        raise conflict(resource.kind, resource.group, target.name, why)


def finalizers_for(obj: Obj, policy: str | None, orphan: bool | None) -> list[str]:
    """The finalizers after the propagation policy has added or removed its own."""
    finalizers = [name for name in obj["metadata"].get("finalizers") or [] if name not in _POLICIES.values()]
    if orphan:
        policy = "Orphan"
    if policy in _POLICIES:
        return [*finalizers, _POLICIES[policy]]
    kept = [name for name in obj["metadata"].get("finalizers") or [] if policy is None and name in _POLICIES.values()]
    return [*finalizers, *kept]


_POLICIES = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


def grace_of(target: Target, obj: Obj, options: Obj, call: Call) -> int:
    """Seconds a pod has to end; everything else, unbound pods and ended pods go at once."""
    if target.resource.id != "pods":
        return 0
    given = options.get("gracePeriodSeconds")
    if given is None and "gracePeriodSeconds" in call.query:
        given = int(call.query["gracePeriodSeconds"])
    bound = obj["spec"].get("nodeName")
    ended = obj.get("status", {}).get("phase") in ("Failed", "Succeeded")
    if not bound or ended:
        return 0
    asked = obj["spec"].get("terminationGracePeriodSeconds", 30) if given is None else int(given)
    return max(0, int(asked))
