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
    if name != (wanted := f"{plural}.{spec.get('group', '')}"):
        errors.append(wrong("metadata.name", name, f'must be spec.names.plural+"."+spec.group: {wanted}'))
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


def established(crd: Obj, now: datetime) -> Obj:
    """The definition with the status the server gives it once it is served."""
    spec = crd["spec"]
    names = {"listKind": f"{spec['names']['kind']}List", "singular": spec["names"]["kind"].lower(), **spec["names"]}
    at = timestamp(now)
    conditions = [
        {"type": "NamesAccepted", "status": "True", "lastTransitionTime": at, "reason": "NoConflicts",
         "message": "no conflicts found"},
        {"type": "Established", "status": "True", "lastTransitionTime": at, "reason": "InitialNamesAccepted",
         "message": "the initial names have been accepted"},
    ]  # fmt: skip
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    return {**crd, "status": {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}}


def serve(store: Store, registry: Registry, crd: Obj, now: datetime) -> Obj:
    """Starts serving a stored definition and returns it as it is stored then."""
    with store.lock:
        for resource in resources_of(crd):
            registry.add(resource)
            store.collection(resource.id)
        done = established(crd, now)
        return crd if done["status"].get("acceptedNames") == _accepted(crd) else store.put(DEFINITIONS, done)


def _accepted(crd: Obj) -> object:
    return (crd.get("status") or {}).get("acceptedNames")


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
