"""One real Kubernetes node on this machine: containerd, kubelet and a device plugin in their own namespaces.

Mount and process namespaces make it a machine of its own: it has its own /var/lib/kubelet (the folder that device
plugins cannot choose), its own /run, its own boot id, and whatever runs on it ends with its process 1.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from exporter.simulation import state
from tests.rig import binaries, cgroups, image
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.node_config import containerd_toml, kubelet_yaml, write_cni
from tests.rig.processes import dies_with_parent
from tests.rig.waiting import eventually

RESOURCE = "nvidia.com/gpu"
INIT = Path(__file__).with_name("node_init.py")


class Node:
    """A node `name` of `plane` with simulated GPUs (profile and count), offered as nvidia.com/gpu."""

    def __init__(self, plane: ControlPlane, name: str, folder: Path, hardware: tuple[str, int]) -> None:
        self.name = name
        self.folder = folder
        self.hardware = hardware
        self._plane = plane
        self._group = f"{cgroups.PREFIX}{folder.parent.name.rsplit('-', 1)[-1]}-{name}"
        self._init: subprocess.Popen[str] | None = None
        for part in ("var-lib", "var-log", "containerd"):
            (folder / part).mkdir(parents=True)
        silicon = state.create(self.silicon, *hardware, name)
        self.gpus = [silicon.uuid(index) for index in range(hardware[1])]
        self.boot_id = silicon.boot_id

    @property
    def silicon(self) -> Path:
        """State file of the simulated GPUs, for `gpu-exporter --simulate.state-file` and for injecting faults."""
        return self.folder / "silicon.json"

    @property
    def pod_resources_socket(self) -> Path:
        return self.folder / "var-lib" / "kubelet" / "pod-resources" / "kubelet.sock"

    @property
    def boot_id_file(self) -> Path:
        """Holds what the node's own /proc/sys/kernel/random/boot_id says."""
        return self.folder / "boot_id"

    def boot(self) -> None:
        """Power on; returns when containerd answers and the kubelet is started, before the Node is Ready."""
        self.boot_id_file.write_text(self.boot_id + "\n")
        cgroups.create(self._group)
        self._write_configuration()
        unshare = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=SIGKILL",
            "--mount-proc",
            "--propagation",
            "private",
        ]
        command = [*unshare, sys.executable, "-I", str(INIT), str(self.folder / "spec.json")]
        with (self.folder / "init.log").open("a") as log:
            self._init = subprocess.Popen(
                dies_with_parent(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._answer()
        self.start("containerd")
        eventually(f"containerd answers, log {self.folder / 'containerd.log'}", self._runtime_answers, 30.0)
        if not self._ctr("images", "list", "-q"):
            image.write_archive(Path(binaries.path("pause")), self.folder / "pause.tar")
            self._ctr("images", "import", "--snapshotter", "native", str(self.folder / "pause.tar"))
        self.start("kubelet")
        self.start("device-plugin")

    def power_off(self) -> None:
        """End every process of the node, containers included, and all its mounts."""
        if self._init is None:
            return
        assert self._init.stdin is not None and self._init.stdout is not None
        self._init.stdin.close()
        try:
            self._init.wait(20)
        except subprocess.TimeoutExpired:
            self._init.kill()
            self._init.wait()
        self._init.stdout.close()
        self._init = None
        cgroups.remove(self._group)

    def reboot(self) -> str:
        """Power off and on with a new boot id (returned): disks stay, /run does not, GPUs heal as far as they do."""
        self.power_off()
        self.boot_id = state.reboot(self.silicon).boot_id
        self.boot()
        return self.boot_id

    def start(self, service: str) -> None:
        """Start `containerd`, `kubelet` or `device-plugin`."""
        self._command(f"start {service}")

    def stop(self, service: str) -> None:
        self._command(f"stop {service}")

    def kill(self, service: str) -> None:
        self._command(f"kill {service}")

    def mark_unhealthy(self, *gpus: str) -> None:
        """Let the device plugin call exactly these devices Unhealthy."""
        fresh = self.folder / "unhealthy.new"
        fresh.write_text("\n".join(gpus))
        fresh.rename(self.folder / "unhealthy")

    def read(self) -> Object | None:
        """Return the Node object, None before the kubelet registered it."""
        return self._plane.api.find(f"/api/v1/nodes/{self.name}")

    def ready(self) -> bool:
        """Say whether this boot of the node is Ready and offers all its devices."""
        node = self.read()
        if node is None or node["status"]["nodeInfo"]["bootID"] != self.boot_id:
            return False
        conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
        taints = {taint["key"] for taint in node["spec"].get("taints", [])}
        offered = int(node["status"].get("allocatable", {}).get(RESOURCE, "0"))
        not_ready = any(key.startswith("node.kubernetes.io/") for key in taints)
        return conditions.get("Ready") == "True" and offered == len(self.gpus) and not not_ready

    def log(self, service: str, lines: int = 20) -> str:
        return "\n".join((self.folder / f"{service}.log").read_text(errors="replace").splitlines()[-lines:])

    def _write_configuration(self) -> None:
        write_cni(self.folder / "cni")
        (self.folder / "containerd.toml").write_text(containerd_toml(self.folder))
        (self.folder / "kubelet.yaml").write_text(kubelet_yaml(self.folder, self._group))
        (self.folder / "resolv.conf").write_text("")
        (self.folder / "spec.json").write_text(json.dumps({"mounts": self._mounts(), "services": self._services()}))

    def _mounts(self) -> list[list[str]]:
        return [
            ["--make-rshared", "/"],  # for containers that ask for mount propagation; private towards the host
            ["--bind", str(self.folder / "var-lib"), "/var/lib"],
            ["--bind", str(self.folder / "var-log"), "/var/log"],
            ["-t", "tmpfs", "tmpfs", "/run"],
            ["--bind", str(self.boot_id_file), "/proc/sys/kernel/random/boot_id"],
        ]

    def _services(self) -> dict[str, dict[str, object]]:
        kubelet = [
            *(
                binaries.path("kubelet"),
                "--config",
                str(self.folder / "kubelet.yaml"),
                "--root-dir",
                "/var/lib/kubelet",
            ),
            *("--kubeconfig", str(self._plane.kubeconfig), "--hostname-override", self.name),
        ]
        plugin = [
            *(binaries.path("device-plugin"), "--resource", RESOURCE),
            *("--ids", ",".join(self.gpus), "--control", str(self.folder / "unhealthy")),
        ]
        containerd = [shutil.which("containerd") or "containerd", "--config", str(self.folder / "containerd.toml")]
        commands = {"containerd": containerd, "kubelet": kubelet, "device-plugin": plugin}
        return {name: {"command": line, "log": str(self.folder / f"{name}.log")} for name, line in commands.items()}

    def _runtime_answers(self) -> bool:
        return "Version" in self._ctr("version")

    def _ctr(self, *arguments: str) -> str:
        command = ["ctr", "--address", str(self.folder / "containerd.sock"), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise AssertionError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def _command(self, line: str) -> None:
        assert self._init is not None and self._init.stdin is not None, f"{self.name} is off"
        self._init.stdin.write(line + "\n")
        self._init.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._init is not None and self._init.stdout is not None
        answer = self._init.stdout.readline()
        if not answer.startswith("ok"):
            raise AssertionError(f"{self.name} did not answer: {(self.folder / 'init.log').read_text()}")
