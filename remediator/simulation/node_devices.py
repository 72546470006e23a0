"""Which pod holds which device of a node: the kubelet's device manager, without a plugin."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from remediator.simulation.pod_status import no_devices
from remediator.simulation.quantities import quantity
from remediator.simulation.status_errors import Obj


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The container that holds a device."""

    namespace: str
    name: str
    uid: str
    container: str
    resource: str


class Refused(Exception):
    """The pod asks for devices that are not there; the text is the status message."""


@dataclass
class DeviceBook:
    """Devices of one node by resource name, and who holds them; the lowest free one is given out first."""

    devices: Mapping[str, tuple[str, ...]]
    unhealthy: set[str] = field(default_factory=set)
    holders: dict[str, Holder] = field(default_factory=dict)

    def allocate(self, pod: Obj) -> dict[str, dict[str, tuple[str, ...]]]:
        """Container -> resource -> ids; raises `Refused` and changes nothing when there are too few."""
        given: dict[str, dict[str, tuple[str, ...]]] = {}
        taken: dict[str, Holder] = {}
        for container in pod["spec"]["containers"]:
            limits = (container.get("resources") or {}).get("limits") or {}
            for resource in self.devices.keys() & limits.keys():
                count = int(quantity(limits[resource]))
                free = [d for d in self.free(resource) if d not in taken]
                if count > len(free):
                    raise Refused(no_devices(resource, count, len(free)))
                holder = holder_of(pod, container["name"], resource)
                taken |= dict.fromkeys(free[:count], holder)
                given.setdefault(container["name"], {})[resource] = tuple(free[:count])
        self.holders |= taken
        return given

    def free(self, resource: str) -> list[str]:
        """Healthy devices that nobody holds."""
        return [d for d in self.devices[resource] if d not in self.holders and d not in self.unhealthy]

    def release(self, uid: str) -> bool:
        """Takes back every device of a pod; False when it held none."""
        mine = [device for device, holder in self.holders.items() if holder.uid == uid]
        for device in mine:
            del self.holders[device]
        return bool(mine)

    def asked(self, pod: Obj) -> str:
        """The first of our resources that the pod asks for, "" when none."""
        for container in pod["spec"]["containers"]:
            for resource in (container.get("resources") or {}).get("limits") or {}:
                if resource in self.devices:
                    return str(resource)
        return ""

    def capacity(self) -> dict[str, str]:
        """Number of devices per resource."""
        return {resource: str(len(ids)) for resource, ids in self.devices.items()}

    def allocatable(self) -> dict[str, str]:
        """Number of healthy devices per resource."""
        return {resource: str(sum(i not in self.unhealthy for i in ids)) for resource, ids in self.devices.items()}


def holder_of(pod: Obj, container: str, resource: str) -> Holder:
    """The holder that a container of a pod is."""
    metadata = pod["metadata"]
    return Holder(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        container=container,
        resource=resource,
    )
