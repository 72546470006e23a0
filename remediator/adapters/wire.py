"""Kubernetes objects as they come over the wire: only the fields we use, decoded by msgspec.

Laws:
1. Structs are frozen: a store hands the same object to every thread.
2. Every field but a name has a default: a server may leave out what is empty.
3. A status that another module owns stays raw bytes until somebody asks (5,000 GPUNodes as dicts cost 100 MB).
"""

from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Time: TypeAlias = str | None
"""RFC 3339 text. Go writes a time that is not set as null, other empty fields it leaves out."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Slim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base: camelCase on the wire, unknown fields skipped, never part of a reference cycle."""


class OwnerReference(Slim, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(Slim, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time = None
    deletion_timestamp: Time = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    def controller(self) -> OwnerReference | None:
        """The owner that would make a replacement, if any."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class HasMetadata(Protocol):
    """What stores and reflectors need to know of an object."""

    @property
    def metadata(self) -> Metadata: ...


class PartialObject(Slim, frozen=True):
    metadata: Metadata = Metadata()


class Taint(Slim, frozen=True):
    key: str
    effect: str = ""
    value: str = ""
    time_added: Time = None


class NodeSpec(Slim, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class Condition(Slim, frozen=True):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: Time = None


class NodeSystemInfo(Slim, frozen=True):
    boot_i_d: str = msgspec.field(default="", name="bootID")


class NodeStatus(Slim, frozen=True):
    conditions: tuple[Condition, ...] = ()
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    node_info: NodeSystemInfo = NodeSystemInfo()


class NodeObject(Slim, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ResourceNeeds(Slim, frozen=True):
    limits: dict[str, msgspec.Raw] = {}
    requests: dict[str, msgspec.Raw] = {}


class VolumeMount(Slim, frozen=True):
    name: str = ""
    read_only: bool = False


class Container(Slim, frozen=True):
    name: str = ""
    resources: ResourceNeeds = ResourceNeeds()
    volume_mounts: tuple[VolumeMount, ...] = ()


class HostPath(Slim, frozen=True):
    path: str = ""


class Volume(Slim, frozen=True):
    name: str = ""
    host_path: HostPath | None = None


class PodSpec(Slim, frozen=True):
    node_name: str = ""
    priority: int = 0
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class Waiting(Slim, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(Slim, frozen=True):
    waiting: Waiting | None = None


class ContainerStatus(Slim, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(Slim, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    start_time: Time = None


class PodObject(Slim, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class LeaseSpec(Slim, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: Time = None
    renew_time: Time = None
    lease_transitions: int = 0


class LeaseObject(Slim, frozen=True):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class StatusCarrier(Slim, frozen=True):
    """A custom resource of ours (GPUNode, GPUIncident): spec and status stay raw."""

    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class NamespaceObject(Slim, frozen=True):
    metadata: Metadata


class JobStatus(Slim, frozen=True):
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()
    start_time: Time = None
    completion_time: Time = None


class JobObject(Slim, frozen=True):
    metadata: Metadata
    status: JobStatus = JobStatus()


class LabelRequirement(Slim, frozen=True):
    key: str
    operator: str = "In"
    values: tuple[str, ...] = ()


class LabelSelector(Slim, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Kubernetes' own rule: all requirements hold; an empty selector matches everything."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(_holds(requirement, labels) for requirement in self.match_expressions)


class BudgetSpec(Slim, frozen=True):
    selector: LabelSelector | None = None


class DisruptionBudgetObject(Slim, frozen=True):
    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()


class WatchEvent(Slim, frozen=True):
    """The envelope: decoded first, because the object may be a Status, a bookmark or ours."""

    type: str
    object: msgspec.Raw


class ListMeta(Slim, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListEnvelope(Slim, frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[msgspec.Raw, ...] | None = None


class StatusCause(Slim, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Slim, frozen=True):
    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: float = 0


class Status(Slim, frozen=True):
    """The error object of Kubernetes."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class Garbled(ValueError):
    """Bytes that are not the JSON we asked for."""


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """One object; raises Garbled when the bytes are not JSON or have other types than Kubernetes promises."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbled(f"not a {kind.__name__}: {error}") from error


def plain(data: bytes | msgspec.Raw) -> dict[str, Any]:
    """An object as plain dicts and lists; raises Garbled."""
    return decode(data, dict[str, Any])


def encode(value: object) -> bytes:
    """JSON of dicts, lists and our structs."""
    return msgspec.json.encode(value)


def to_plain(value: object) -> Any:
    """A struct as plain dicts and lists, in wire spelling."""
    return msgspec.to_builtins(value)


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime: six decimals, always."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holds(requirement: LabelRequirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
