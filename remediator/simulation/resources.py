"""What the embedded API server serves: one row per resource, and the registry that custom resources join at run time.

A row states the facts in which resources differ on the real server; behaviour that hangs on them lives elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from remediator.simulation.status_errors import Obj, qualified

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One served resource of one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    generation: bool = False
    """False: the server keeps no metadata.generation (Node, Lease, ConfigMap)."""
    generation_at_create: bool = True
    selectable: dict[str, str] = field(default_factory=dict)
    """Field selector -> path, beside metadata.name and metadata.namespace."""
    unconditional_update: bool = True
    """A PUT without resourceVersion overwrites."""
    create_on_update: bool = False
    """A PUT of a missing object creates it."""
    returns_deleted: bool = False
    """DELETE answers with the object instead of a Status."""
    custom: Obj | None = None
    """The CRD version (schema, columns, subresources) of a custom resource."""

    @property
    def id(self) -> str:
        """Key of the resource in the store: `nodes`, `gpunodes.gpuward.io`."""
        return qualified(self.plural, self.group)

    @property
    def api_version(self) -> str:
        """`v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        """Lower-case kind."""
        return self.kind.lower()


def _core(plural: str, kind: str, **facts: Any) -> Resource:
    facts.setdefault("namespaced", True)
    return Resource(group="", version="v1", plural=plural, kind=kind, **facts)


def _workload(plural: str, kind: str, short: str) -> Resource:
    names = (short,) if short else ()
    return Resource(
        group="batch" if kind == "Job" else "apps",
        version="v1",
        plural=plural,
        kind=kind,
        namespaced=True,
        short_names=names,
        categories=("all",),
        subresources=("status",),
        generation=True,
        selectable={"status.successful": "status.succeeded"} if kind == "Job" else {},
    )


_POD_FIELDS = {
    name: name
    for name in (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    )
}
_EVENT_FIELDS = {
    f"involvedObject.{name}": f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
} | {"reason": "reason", "reportingComponent": "reportingComponent", "source": "source.component", "type": "type"}

BUILTINS: tuple[Resource, ...] = (
    _core("namespaces", "Namespace", namespaced=False, short_names=("ns",), subresources=("status", "finalize"),
          selectable={"status.phase": "status.phase"}),
    _core("nodes", "Node", namespaced=False, short_names=("no",), subresources=("status",),
          selectable={"spec.unschedulable": "spec.unschedulable"}),
    _core("pods", "Pod", short_names=("po",), categories=("all",), subresources=("status", "eviction", "binding"),
          generation=True, selectable=_POD_FIELDS, returns_deleted=True),
    _core("events", "Event", short_names=("ev",), selectable=_EVENT_FIELDS, create_on_update=True),
    _core("configmaps", "ConfigMap", short_names=("cm",)),
    _core("serviceaccounts", "ServiceAccount", short_names=("sa",), returns_deleted=True),
    _workload("deployments", "Deployment", "deploy"),
    _workload("replicasets", "ReplicaSet", "rs"),
    _workload("statefulsets", "StatefulSet", "sts"),
    _workload("jobs", "Job", ""),
    Resource(group="policy", version="v1", plural="poddisruptionbudgets", kind="PodDisruptionBudget", namespaced=True,
             short_names=("pdb",), subresources=("status",), generation=True, unconditional_update=False),
    Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True,
             unconditional_update=False, create_on_update=True),
    Resource(group="scheduling.k8s.io", version="v1", plural="priorityclasses", kind="PriorityClass",
             namespaced=False, short_names=("pc",), generation=True),
    Resource(group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions",
             kind="CustomResourceDefinition", namespaced=False, short_names=("crd", "crds"),
             subresources=("status",), generation=True, unconditional_update=False, returns_deleted=True),
)  # fmt: skip


class Registry:
    """All served resources; custom ones come and go with their definitions."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Resource] = {(r.group, r.version, r.plural): r for r in BUILTINS}

    def __iter__(self) -> Iterator[Resource]:
        return iter(tuple(self._rows.values()))

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource or None."""
        return self._rows.get((group, version, plural))

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        """The resource of a manifest, None when it is not served."""
        return next((r for r in self if r.api_version == api_version and r.kind == kind), None)

    def serves_group(self, group: str, version: str) -> bool:
        """True when anything is served under the group and version."""
        return any(r.group == group and r.version == version for r in self)

    def add(self, resource: Resource) -> None:
        """Starts serving (or serving anew) a custom resource."""
        self._rows[(resource.group, resource.version, resource.plural)] = resource

    def discard(self, group: str, plural: str) -> None:
        """Stops serving every version of a custom resource."""
        for key in [key for key in self._rows if key[0] == group and key[2] == plural]:
            del self._rows[key]
