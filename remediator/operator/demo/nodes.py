"""One simulated node of the demo: a fake kubelet, the state file of its silicon, and the pod-resources socket between.

What the kubelet does not know (what a program does to a GPU, what a reboot Job reboots) is decided here.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from exporter.health import keys
from exporter.readings import PodDevice
from exporter.simulation import location, state
from exporter.simulation.kubelet_socket import KubeletSocket
from remediator.adapters.transport import Endpoint
from remediator.operator.demo.workloads import REPAIR_SECONDS, VALIDATE_SECONDS
from remediator.simulation.client import HttpClient
from remediator.simulation.kubelet import Ending, Holder, Kubelet, Machine
from remediator.simulation.status_errors import Obj

PROFILE = "h100"
GPUS = 8
RESOURCE = "nvidia.com/gpu"
WORKER_MEMORY_BYTES = 60 * 2**30
FIRST_PID = 1000


class SimulatedNode:
    """A node; `running` brings it up for as long as the block lasts."""

    def __init__(self, folder: Path, name: str, annotations: Mapping[str, str]) -> None:
        self.name = name
        self.state_path = location.state_path(name)
        self.socket_path = folder / f"{name}.sock"
        self._annotations = annotations
        self._uuids = tuple(state.gpu_uuid(name, PROFILE, index) for index in range(GPUS))
        self._socket = KubeletSocket(self.socket_path)
        self._kubelet: Kubelet | None = None

    @contextmanager
    def running(self, endpoint: Endpoint) -> Iterator[None]:
        """Registered, with its socket and silicon; everything is gone at the end."""
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        boot_id = state.create(self.state_path, PROFILE, GPUS, self.name).boot_id
        ca_file = Path(endpoint.ca_file) if endpoint.ca_file else None
        client = HttpClient(endpoint.url, endpoint.token.current() or "", ca_file)
        machine = Machine(name=self.name, devices=self._uuids, resource=RESOURCE, annotations=self._annotations)
        with ExitStack() as stack:
            stack.callback(self._remove_state)
            self._socket.start()
            stack.callback(self._socket.stop)
            self._kubelet = Kubelet(client, machine, self, boot_id)
            self.devices_changed(self.name, {})
            stack.callback(self._kubelet.stop)
            self._kubelet.start()
            yield

    def devices_changed(self, node: str, holders: Mapping[str, Holder]) -> None:
        """The socket tells who holds what; a process runs on each held GPU."""
        held = [
            PodDevice(
                namespace=holder.namespace,
                pod=holder.pod,
                container=holder.container,
                resource=holder.resource,
                device_id=device,
            )
            for device, holder in holders.items()
        ]
        self._socket.set_pods(held, [(RESOURCE, uuid) for uuid in self._uuids])
        state.set_processes(
            self.state_path,
            {
                index: [_worker(index, holders[uuid])] if uuid in holders else []
                for index, uuid in enumerate(self._uuids)
            },
        )

    def ending(self, node: str, pod: Obj) -> Ending | None:
        """Repair and validation Jobs end; everything else runs on."""
        step = (pod["metadata"].get("labels") or {}).get(keys.STEP_LABEL)
        if step == "repair":
            threading.Timer(REPAIR_SECONDS, self._reboot).start()
            return Ending(seconds=REPAIR_SECONDS * 10)
        if step == "validate":
            lost = any(gpu.lost or gpu.hung or gpu.missing for gpu in state.load(self.state_path).gpus)
            return Ending(seconds=VALIDATE_SECONDS, exit_code=1 if lost else 0)
        return None

    def _reboot(self) -> None:
        if self._kubelet:
            self._kubelet.reboot(state.reboot(self.state_path).boot_id)

    def _remove_state(self) -> None:
        for path in self.state_path.parent.glob(f"{self.state_path.name}*"):
            path.unlink(missing_ok=True)


def _worker(index: int, holder: Holder) -> state.SimulatedProcess:
    busy = 0.9 if "training" in holder.pod else 0.4
    return state.SimulatedProcess(
        pid=FIRST_PID + index, name="python3", memory_bytes=WORKER_MEMORY_BYTES, utilization_ratio=busy
    )
