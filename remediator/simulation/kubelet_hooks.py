"""How long imagined things take on a fake node, and what the world around it decides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from remediator.simulation.node_devices import Holder
from remediator.simulation.status_errors import Obj


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long imagined things take, in seconds."""

    start_seconds: float = 0.1
    """From the bind to Running."""
    stop_seconds: float = 0.2
    """From the deletion to the end of the process, if its grace is not shorter."""
    reboot_seconds: float = 1.0
    heartbeat_seconds: float = 10.0
    """Between renewals of the node Lease, as a kubelet does."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """How the process of a pod ends."""

    exit_code: int = 0
    seconds: float = 0.5


class KubeletHooks(Protocol):
    """What the world around the kubelets does; called from the kubelets' worker thread."""

    def on_devices_changed(self, node: str, holders: Mapping[str, Holder]) -> None:
        """Who holds which device of the node now."""
        ...

    def run_pod(self, node: str, pod: Obj, devices: tuple[str, ...]) -> Run | None:
        """How the pod's process will end; None = it runs until it is told to stop."""
        ...


class NoHooks:
    """Pods of Jobs succeed after half a second, all others run on."""

    def on_devices_changed(self, node: str, holders: Mapping[str, Holder]) -> None:
        """Nobody looks."""

    def run_pod(self, node: str, pod: Obj, devices: tuple[str, ...]) -> Run | None:
        """See the class."""
        owners = pod["metadata"].get("ownerReferences") or ()
        return Run() if any(owner["kind"] == "Job" for owner in owners) else None
