"""Admission that looks at other objects: the namespace must live, the priority class must exist."""

from remediator.simulation.calls import Target
from remediator.simulation.status_errors import ApiError, Obj, details_of, not_found, qualified
from remediator.simulation.store import Store

PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"


def admitted(store: Store, target: Target, obj: Obj) -> Obj:
    """The object as admission lets it in; 403 or 404 when it does not."""
    if target.resource.namespaced:
        _check_namespace(store, target, obj)
    return _with_priority(store, target, obj) if target.resource.id == "pods" else obj


def forbidden(target: Target, name: str, why: str) -> ApiError:
    """403 by an admission plugin."""
    resource = target.resource
    shown = f'{qualified(resource.plural, resource.group)} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", shown, details_of(resource.group, name, resource.plural))


def _check_namespace(store: Store, target: Target, obj: Obj) -> None:
    namespace = store.get("namespaces", ("", target.namespace))
    if namespace is None:
        raise not_found("namespaces", "", target.namespace)
    if "deletionTimestamp" in namespace["metadata"]:
        why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
        error = forbidden(target, obj["metadata"].get("name", ""), why)
        cause = {"reason": "NamespaceTerminating", "message": f"namespace {target.namespace} is being terminated"}
        error.details = {**(error.details or {}), "causes": [cause | {"field": "metadata.namespace"}]}
        raise error


def _with_priority(store: Store, target: Target, pod: Obj) -> Obj:
    """Admission plugin Priority: class name to number, the global default, else 0."""
    spec = pod["spec"]
    name = spec.get("priorityClassName")
    if name:
        found = store.get(PRIORITY_CLASSES, ("", name))
        if found is None:
            why = f"no PriorityClass with name {name} was found"
            raise forbidden(target, pod["metadata"].get("name", ""), why)
    else:
        found = next((c for c in store.items(PRIORITY_CLASSES) if c.get("globalDefault")), None)
    value = found["value"] if found else 0
    policy = (found or {}).get("preemptionPolicy", "PreemptLowerPriority")
    return {**pod, "spec": {**spec, "priority": value, "preemptionPolicy": spec.get("preemptionPolicy", policy)}}
