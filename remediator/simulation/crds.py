"""From a CustomResourceDefinition to served resources, and back out when it goes."""

from datetime import datetime

from exporter.health.wire import timestamp
from remediator.simulation.resources import Registry, Resource
from remediator.simulation.schema import check_supported
from remediator.simulation.status_errors import FieldError, Obj, invalid, not_done_here, required, wrong
from remediator.simulation.store import Store

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def check(crd: Obj) -> None:
    """Refuses a definition that is wrong (422) or that says more than this server enforces (501)."""
    spec, name = crd.get("spec") or {}, crd["metadata"].get("name", "")
    plural = (spec.get("names") or {}).get("plural", "")
    errors: list[FieldError] = []
    if name != f"{plural}.{spec.get('group', '')}":
        errors.append(wrong("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if not (spec.get("names") or {}).get("kind"):
        errors.append(required("spec.names.kind"))
    if errors:
        raise invalid("CustomResourceDefinition", "apiextensions.k8s.io", name, errors)
    if spec.get("conversion", {}).get("strategy", "None") != "None":
        raise not_done_here("conversion by webhook")
    for version in spec["versions"]:
        if "scale" in (version.get("subresources") or {}):
            raise not_done_here("the scale subresource of a custom resource")
        check_supported(version["schema"]["openAPIV3Schema"])


def resources_of(crd: Obj) -> list[Resource]:
    """The resources a definition makes the server serve."""
    spec = crd["spec"]
    names = spec["names"]
    return [
        Resource(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=("status",) if "status" in (version.get("subresources") or {}) else (),
            generation=True,
            selectable={
                (path := field["jsonPath"].lstrip(".")): path for field in version.get("selectableFields") or ()
            },
            unconditional_update=False,
            custom=version,
        )
        for version in spec["versions"]
        if version.get("served")
    ]


def defaulted(crd: Obj) -> Obj:
    """The definition with the defaults of its type and an empty status, as it is answered to the POST."""
    spec = crd["spec"]
    names = {**spec["names"]}
    names.setdefault("listKind", f"{names['kind']}List")
    names.setdefault("singular", names["kind"].lower())
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    status = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored}
    return {**crd, "spec": {"conversion": {"strategy": "None"}, **spec, "names": names}, "status": status}


def serve(store: Store, registry: Registry, name: str, now: datetime) -> None:
    """Starts serving a stored definition; its conditions say so afterwards."""
    with store.lock:
        crd = store.get(DEFINITIONS, ("", name))
        if crd is None:
            return
        for resource in resources_of(crd):
            registry.add(resource)
            store.collection(resource.id)
        old = crd.get("status") or {}
        if old.get("acceptedNames") != crd["spec"]["names"]:
            at = timestamp(now)
            conditions = [
                _condition("NamesAccepted", at, "NoConflicts", "no conflicts found"),
                _condition("Established", at, "InitialNamesAccepted", "the initial names have been accepted"),
            ]
            status = {**old, "conditions": conditions, "acceptedNames": crd["spec"]["names"]}
            store.put(DEFINITIONS, {**crd, "status": status})


def _condition(kind: str, at: str, reason: str, message: str) -> Obj:
    return {"type": kind, "status": "True", "lastTransitionTime": at, "reason": reason, "message": message}


def terminating(crd: Obj, now: datetime) -> Obj:
    """The definition as the answer to its DELETE shows it; its objects and it are gone right after."""
    at = timestamp(now)
    told = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
    conditions = [*crd["status"]["conditions"], _condition("Terminating", at, "InstanceDeletionPending", told)]
    metadata = {**crd["metadata"], "deletionTimestamp": at, "finalizers": [CLEANUP]}
    return {**crd, "metadata": metadata, "status": {**crd["status"], "conditions": conditions}}


def withdraw(store: Store, registry: Registry, crd: Obj) -> None:
    """Deletes every object of the definition and stops serving it."""
    spec = crd["spec"]
    plural, group = spec["names"]["plural"], spec["group"]
    with store.lock:
        resource_id = f"{plural}.{group}"
        for obj in store.items(resource_id):
            store.remove(resource_id, obj)
        registry.discard(group, plural)
        store.forget(resource_id)
