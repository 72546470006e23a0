"""The kinds of objects we touch and where the API server keeps them."""

from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from exporter.health import keys
from remediator.adapters import wire
from remediator.adapters.wire import HasMetadata

T_co = TypeVar("T_co", bound=HasMetadata, covariant=True)


@dataclass(frozen=True)
class Resource(Generic[T_co]):
    """One kind: its path and the struct it decodes into."""

    plural: str
    kind: type[T_co]
    group: str = ""
    """Empty = the core group."""
    version: str = "v1"
    namespaced: bool = False

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of a collection (no name; of all namespaces when that is empty too) or of one object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


@dataclass(frozen=True)
class Ref(Generic[T_co]):
    """One object, by name."""

    resource: Resource[T_co]
    name: str
    namespace: str = ""

    def path(self, subresource: str = "") -> str:
        return self.resource.path(self.namespace, self.name, subresource)

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.resource.plural} {where}{self.name}"


NODES = Resource("nodes", wire.NodeObject)
NAMESPACES = Resource("namespaces", wire.NamespaceObject)
PODS = Resource("pods", wire.PodObject, namespaced=True)
EVENTS = Resource("events", wire.PartialObject, namespaced=True)
LEASES = Resource("leases", wire.LeaseObject, group="coordination.k8s.io", namespaced=True)
JOBS = Resource("jobs", wire.JobObject, group="batch", namespaced=True)
DISRUPTION_BUDGETS = Resource("poddisruptionbudgets", wire.DisruptionBudgetObject, group="policy", namespaced=True)
GPU_NODES = Resource(keys.GPU_NODES, wire.StatusCarrier, group=keys.GROUP, version=keys.VERSION)
GPU_INCIDENTS = Resource(keys.GPU_INCIDENTS, wire.StatusCarrier, group=keys.GROUP, version=keys.VERSION)
