"""The demo's nodes: for each a fake kubelet, the state file of its silicon, and the pod-resources socket between them.

What the kubelet does not know (what a program does to a GPU, what a repair Job reboots) is decided here.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from exporter.health import keys
from exporter.readings import PodDevice
from exporter.simulation import location, state
from exporter.simulation.kubelet_socket import KubeletSocket
from remediator.adapters.transport import Endpoint
from remediator.operator.demo.workloads import REPAIR_SECONDS, VALIDATE_SECONDS
from remediator.simulation.client import HttpClient
from remediator.simulation.kubelet import Kubelets
from remediator.simulation.kubelet_hooks import Run
from remediator.simulation.node_devices import Holder
from remediator.simulation.registration import NodeSpec
from remediator.simulation.status_errors import Obj

PROFILE = "h100"
GPUS = 8
RESOURCE = "nvidia.com/gpu"
WORKER_MEMORY_BYTES = 60 * 2**30
FIRST_PID = 1000


class SimulatedNodes:
    """Several nodes; `start` and `stop` once each."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._uuids = {name: tuple(state.gpu_uuid(name, PROFILE, index) for index in range(GPUS)) for name in names}
        self._sockets = {name: KubeletSocket(folder / f"{name}.sock") for name in names}
        self._kubelets: Kubelets | None = None
        self._timers: list[threading.Timer] = []

    def start(self, endpoint: Endpoint) -> None:
        """Return when every node is registered and Ready."""
        ca_file = Path(endpoint.ca_file) if endpoint.ca_file else None
        kubelets = Kubelets(HttpClient(endpoint.url, endpoint.token.current() or "", ca_file), self)
        self._kubelets = kubelets
        kubelets.start()
        for name in self._names:
            path = self.state_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            boot_id = state.create(path, PROFILE, GPUS, name).boot_id
            self._sockets[name].start()
            kubelets.add_node(NodeSpec(name=name, devices={RESOURCE: self._uuids[name]}), boot_id)

    def stop(self) -> None:
        """Leave no thread, socket or file behind."""
        for timer in self._timers:
            timer.cancel()
        if self._kubelets:
            self._kubelets.stop()
        for name, socket in self._sockets.items():
            socket.stop()
            path = self.state_path(name)
            for leftover in path.parent.glob(f"{path.name}*"):
                leftover.unlink(missing_ok=True)

    def state_path(self, name: str) -> Path:
        """State file of a node's silicon."""
        return location.state_path(name)

    def socket_path(self, name: str) -> Path:
        """Pod-resources socket of a node."""
        return self._sockets[name].path

    def on_devices_changed(self, node: str, holders: Mapping[str, Holder]) -> None:
        """The socket tells who holds what; a process runs on each held GPU."""
        held = [
            PodDevice(
                namespace=holder.namespace,
                pod=holder.name,
                container=holder.container,
                resource=holder.resource,
                device_id=device,
            )
            for device, holder in holders.items()
        ]
        uuids = self._uuids[node]
        self._sockets[node].set_pods(held, [(RESOURCE, uuid) for uuid in uuids])
        processes = {
            index: [_worker(index, holders[uuid])] if uuid in holders else [] for index, uuid in enumerate(uuids)
        }
        state.set_processes(self.state_path(node), processes)

    def run_pod(self, node: str, pod: Obj, devices: tuple[str, ...]) -> Run | None:
        """Repair and validation Jobs end; everything else runs on."""
        step = (pod["metadata"].get("labels") or {}).get(keys.STEP_LABEL)
        if step == "repair":
            return self._repair(node, pod["spec"]["containers"][0])
        if step == "validate":
            broken = any(gpu.lost or gpu.hung or gpu.missing for gpu in state.load(self.state_path(node)).gpus)
            return Run(seconds=VALIDATE_SECONDS, exit_code=1 if broken else 0)
        return None

    def _repair(self, node: str, container: Obj) -> Run:
        if container["name"] == "reset":
            try:
                state.reset_gpu(self.state_path(node), int(container["command"][-1]))
            except state.ResetRefused:
                return Run(seconds=REPAIR_SECONDS, exit_code=1)
            return Run(seconds=REPAIR_SECONDS)
        timer = threading.Timer(REPAIR_SECONDS, self._reboot, [node])
        self._timers.append(timer)
        timer.start()
        # The reboot takes the Job's pod with it long before.
        return Run(seconds=REPAIR_SECONDS * 100)

    def _reboot(self, node: str) -> None:
        if self._kubelets:
            self._kubelets.reboot(node, state.reboot(self.state_path(node)).boot_id)


def _worker(index: int, holder: Holder) -> state.SimulatedProcess:
    busy = 0.9 if "training" in holder.name else 0.4
    return state.SimulatedProcess(
        pid=FIRST_PID + index, name="python3", memory_bytes=WORKER_MEMORY_BYTES, utilization_ratio=busy
    )
