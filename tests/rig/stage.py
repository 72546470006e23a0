"""The product on two real nodes: an exporter process per node, Prometheus, and remediator processes as a test wants.

Exporters and remediator use the shipped CRDs and RBAC and real service-account tokens, exporters those of a pod on
their node. The exporter runs beside the node instead of in a pod: its image would need a registry.
"""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import urllib3
import yaml
from prometheus_client.parser import text_string_to_metric_families

from exporter.health import keys
from tests.rig import workloads
from tests.rig.api import Object
from tests.rig.node import Node
from tests.rig.nodes import Cluster
from tests.rig.processes import Process, free_port
from tests.rig.prometheus import Prometheus
from tests.rig.waiting import eventually

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "manifests"
RULES = ROOT / "alerts" / "gpuward.rules.yaml"
# Workloads of ours are left out: their image is not in any registry here, and they run as processes instead.
WORKLOADS = {"DaemonSet", "Deployment"}
NODES = "/api/v1/nodes"
GPU_NODES = f"/apis/{keys.API_VERSION}/gpunodes"
INCIDENTS = f"/apis/{keys.API_VERSION}/gpuincidents"


def scraped(url: str, name: str, labels: Mapping[str, str]) -> float | None:
    """Return the value of the first series with these labels, None when there is none or no answer yet."""
    try:
        answer = urllib3.request("GET", f"{url}/metrics", timeout=5.0, retries=False)
    except urllib3.exceptions.HTTPError:
        return None
    for family in text_string_to_metric_families(answer.data.decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


@dataclass
class Exporter:
    """One exporter process; `token` speaks for its node only."""

    node: Node
    url: str
    command: list[str]
    log: Path
    process: Process = field(init=False)

    def start(self) -> None:
        self.process = Process(self.command, self.log)

    def stop(self) -> None:
        self.process.stop()

    def sample(self, name: str, **labels: str) -> float | None:
        return scraped(self.url, name, labels)


class Stage:
    """Everything but the remediator runs while the `with` block does."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.api = cluster.plane.api
        self.folder = folder
        self.exporters: dict[str, Exporter] = {}
        self.audit_mark = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._install()
        for node in self.cluster.nodes:
            exporter = self.exporters[node.name] = self._exporter(node)
            exporter.start()
            self._stack.callback(exporter.stop)
        targets = [exporter.url.removeprefix("http://") for exporter in self.exporters.values()]
        self.prometheus = self._stack.enter_context(Prometheus({"gpu-exporter": targets}, [RULES]))
        for node in self.cluster.nodes:
            self.await_healthy(node)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def reboot(self, node: Node) -> None:
        """Reboot the machine: kubelet, containers and exporter go down and come back."""
        exporter = self.exporters[node.name]
        exporter.process.kill()
        node.reboot()
        exporter.start()

    def clear(self) -> None:
        """Make everything as new for the next story: no incident, no Job of ours, no mark on a node, healthy GPUs."""
        jobs = f"/apis/batch/v1/namespaces/{keys.NAMESPACE}/jobs"
        for collection in (INCIDENTS, jobs):
            self.api.delete(collection, {"propagationPolicy": "Background"})
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases/{keys.CONTROLLER}"
        if self.api.find(lease):
            self.api.delete(lease)
        for node in self.cluster.nodes:
            address = f"{NODES}/{node.name}"
            found = self.api.get(address)
            foreign = [taint for taint in found["spec"].get("taints", []) if taint["key"] != keys.UNHEALTHY_TAINT]
            self.api.merge(address, {"metadata": {"annotations": {keys.OPT_OUT: None}}, "spec": {"taints": foreign}})
            if any(gpu["health"] != "Healthy" for gpu in self.gpu_node(node).get("gpus", [])):
                self.reboot(node)
        for node in self.cluster.nodes:
            self.await_healthy(node)
        eventually("no Job of ours is left", lambda: not self.api.list(jobs), 30.0)
        self.audit_mark = self.cluster.audit.mark()

    def await_healthy(self, node: Node) -> None:
        """Return when the node is Ready and its exporter's fresh report in the API calls every GPU healthy."""

        def healthy() -> bool:
            report = self.gpu_node(node)
            gpus = report.get("gpus", [])
            fresh = report.get("bootID") == node.boot_id and len(gpus) == len(node.gpus)
            return fresh and all(gpu["health"] == "Healthy" for gpu in gpus)

        eventually(f"{node.name} is Ready", node.ready, 90.0)
        try:
            eventually(f"{node.name} reports healthy GPUs", healthy, 60.0)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.exporters[node.name].process.tail()}") from error

    def gpu_node(self, node: Node) -> Object:
        """Return the status of the GPUNode, {} when there is none."""
        found = self.api.find(f"{GPU_NODES}/{node.name}")
        status = (found or {}).get("status", {})
        assert isinstance(status, dict)
        return status

    def findings(self, node: Node, gpu: str) -> set[str]:
        """Return the codes that the exporter reports for one GPU in the API."""
        gpus = [each for each in self.gpu_node(node).get("gpus", []) if each["uuid"] == gpu]
        return {finding["code"] for each in gpus for finding in each.get("findings", [])}

    def taint(self, node: Node) -> str | None:
        """Return our taint as "value:effect", None when the node has none."""
        taints = self.api.get(f"{NODES}/{node.name}")["spec"].get("taints", [])
        ours = [
            f"{taint.get('value', '')}:{taint['effect']}" for taint in taints if taint["key"] == keys.UNHEALTHY_TAINT
        ]
        return ours[0] if ours else None

    def incidents(self, node: Node) -> list[Object]:
        return [each for each in self.api.list(INCIDENTS) if each["spec"]["nodeName"] == node.name]

    def phase(self, node: Node) -> str | None:
        """Return the phase of the node's only incident, None before there is one."""
        found = self.incidents(node)
        assert len(found) < 2, f"one fault, one incident: {[workloads.name_of(each) for each in found]}"
        return found[0].get("status", {}).get("phase") if found else None

    def remediator(self, policy: Mapping[str, object], server: str | None = None) -> "Remediator":
        """Return a remediator (not started) with this policy, talking to `server` (default: the API server itself)."""
        plane = self.cluster.plane
        (self.folder / "policy.yaml").write_text(yaml.safe_dump(dict(policy)))
        (self.folder / "remediator.token").write_text(plane.service_account_token(keys.NAMESPACE, "remediator"))
        port = free_port()
        command = [
            *(_program("gpu-remediator"), "--config.file", str(self.folder / "policy.yaml"), "--identity", "e2e"),
            *("--web.listen-address", f"127.0.0.1:{port}", "--kube.api-server", server or plane.url),
            *("--kube.token-file", str(self.folder / "remediator.token"), "--kube.ca-file", str(plane.ca_file)),
        ]
        return Remediator(command, f"http://127.0.0.1:{port}", self.folder / "remediator.log")

    def _install(self) -> None:
        plane = self.cluster.plane
        for path in sorted(MANIFESTS.glob("*.yaml")):
            documents = [
                each for each in yaml.safe_load_all(path.read_text()) if each and each["kind"] not in WORKLOADS
            ]
            if documents:
                plane.apply(yaml.safe_dump_all(documents))

    def _exporter(self, node: Node) -> Exporter:
        pods, name = f"/api/v1/namespaces/{keys.NAMESPACE}/pods", f"exporter-{node.name}"
        spec = {"serviceAccountName": "exporter", "nodeName": node.name, "containers": [workloads.container(gpus=0)]}
        if self.api.find(f"{pods}/{name}") is None:
            self.api.create(pods, {"metadata": {"name": name}, "spec": spec})
        token = self.folder / f"{name}.token"
        token.write_text(self.cluster.plane.service_account_token(keys.NAMESPACE, "exporter", pod=name))
        port = free_port()
        profile, count = node.hardware
        command = [
            *(_program("gpu-exporter"), "--simulate", f"{profile}x{count}", "--simulate.state-file", str(node.silicon)),
            *("--node.name", node.name, "--kubelet.pod-resources-socket", str(node.pod_resources_socket)),
            *("--kube.publish", "on", "--kube.api-server", self.cluster.plane.url, "--kube.token-file", str(token)),
            *("--kube.ca-file", str(self.cluster.plane.ca_file), "--state.file", str(self.folder / f"{name}.json")),
            *("--web.listen-address", f"127.0.0.1:{port}", "--interval", "1"),
        ]
        return Exporter(node, f"http://127.0.0.1:{port}", command, self.folder / f"{name}.log")


@dataclass
class Remediator:
    """A remediator that can be started again after it was stopped or killed."""

    command: list[str]
    url: str
    log: Path
    process: Process | None = None

    def start(self) -> None:
        self.process = Process(self.command, self.log)

    def running(self) -> bool:
        return self.process is not None and self.process.running()

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    def stop(self) -> int:
        """Return the exit status after SIGTERM."""
        return self.process.stop(30.0) if self.process else 0

    def sample(self, name: str, **labels: str) -> float | None:
        return scraped(self.url, f"gpuward_remediator_{name}", labels)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _program(name: str) -> str:
    """Return a console script of the environment that runs the tests."""
    return str(Path(sys.executable).with_name(name))
