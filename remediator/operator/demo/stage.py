"""The stage: a cluster, three nodes of eight simulated H100, one exporter each, the remediator, the workloads."""

import time
from contextlib import ExitStack
from pathlib import Path

import requests
import yaml

from exporter.health import keys
from exporter.simulation import location, state
from remediator.operator.demo import workloads
from remediator.operator.demo.clusters import Cluster, Embedded, Real, annotate, apply, session
from remediator.operator.demo.eyes import Eyes
from remediator.operator.demo.nodes import GPUS, PROFILE, SimulatedNodes
from remediator.operator.demo.programs import Program, ProgramEnded, free_address, program
from remediator.simulation.cluster import crd_manifests

NODES = ("n1", "n2", "n3")
OPTED_OUT = "n3"
OPT_OUT_REASON = "benchmark run of team vision until Friday"
INTERVAL_SECONDS = 1
READY_SECONDS = 30.0


class Stage:
    """Everything that runs; `start` and `stop` once each."""

    def __init__(self, folder: Path, *, real: bool = False) -> None:
        self._folder = folder
        self._cluster: Cluster = Real(folder) if real else Embedded(folder)
        self._stack = ExitStack()
        self._nodes = SimulatedNodes(folder, NODES)
        self._programs: list[Program] = []
        self._exporters: dict[str, str] = {}
        self._remediator = ""
        self.eyes: Eyes

    def start(self) -> None:
        """Return when every program answers that it is ready."""
        self._stack.callback(self._cluster.stop)
        self._cluster.start()
        endpoint = self._cluster.endpoint()
        client = session(endpoint)
        self._stack.callback(client.close)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": keys.NAMESPACE}}
        apply(client, endpoint.url, [*crd_manifests(), namespace])
        credentials = self._credentials()
        self._stack.callback(self._nodes.stop)
        self._nodes.start(endpoint)
        annotate(client, f"{endpoint.url}/api/v1/nodes/{OPTED_OUT}", {keys.OPT_OUT: OPT_OUT_REASON})
        for name in NODES:
            self._exporters[name] = f"http://{self._start_exporter(name, credentials)}"
        self._remediator = f"http://{self._start_remediator(credentials)}"
        apply(client, endpoint.url, workloads.workloads())
        self.eyes = Eyes(endpoint.url, client, self._exporters)
        for url in (*self._exporters.values(), self._remediator):
            self._await_ready(url)

    def stop(self) -> None:
        """End everything in reverse order."""
        for running in reversed(self._programs):
            running.stop()
        self._stack.close()

    def inject(self, node: str, gpu: int, fault: str) -> None:
        """Put a fault on a GPU, as `gpuward inject` does."""
        state.inject(location.state_path(node), gpu, fault)

    def directions(self) -> tuple[str, ...]:
        """Where a reader can look, and what to try."""
        return (
            f"export KUBECONFIG={self._cluster.kubeconfig}",
            "kubectl get nodes,pods,gpunodes,gpuincidents -A",
            *(f"{url}/metrics   exporter of {name}" for name, url in self._exporters.items()),
            f"{self._remediator}/metrics   remediator",
            "gpuward inject --list",
            f"gpuward inject --node {NODES[1]} --gpu 3 --fault xid:48",
        )

    def evidence(self) -> str:
        """The end of every log, for a story that went wrong."""
        tails = []
        for running in self._programs:
            lines = running.log.read_text(errors="replace").splitlines()[-8:]
            tails.append(f"--- {running.log.name}\n" + "\n".join(lines))
        return "\n".join(tails)

    def _credentials(self) -> list[str]:
        """Flags that both programs understand, with which they reach the API server as we do."""
        endpoint = self._cluster.endpoint()
        flags = [f"--kube.api-server={endpoint.url}"]
        if endpoint.ca_file:
            flags.append(f"--kube.ca-file={endpoint.ca_file}")
        token = endpoint.token.current()
        if token:
            path = self._folder / "token"
            path.touch(mode=0o600)
            path.write_text(token)
            flags.append(f"--kube.token-file={path}")
        return flags

    def _start_exporter(self, node: str, credentials: list[str]) -> str:
        address = free_address()
        flags = [
            f"--web.listen-address={address}",
            f"--node.name={node}",
            f"--simulate={PROFILE}x{GPUS}",
            f"--simulate.state-file={self._nodes.state_path(node)}",
            f"--kubelet.pod-resources-socket={self._nodes.socket_path(node)}",
            f"--interval={INTERVAL_SECONDS}",
            f"--expected-gpus={GPUS}",
            "--kube.publish=on",
            *credentials,
        ]
        self._run("gpu-exporter", flags, f"exporter-{node}.log")
        return address

    def _start_remediator(self, credentials: list[str]) -> str:
        policy = self._folder / "policy.yaml"
        policy.write_text(yaml.safe_dump(workloads.policy(), sort_keys=False))
        address = free_address()
        flags = [f"--web.listen-address={address}", f"--config.file={policy}", *credentials]
        self._run("gpu-remediator", flags, "remediator.log")
        return address

    def _run(self, name: str, flags: list[str], log: str) -> None:
        self._programs.append(Program([*program(name), *flags], self._folder / log))

    def _await_ready(self, url: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            for running in self._programs:
                running.check()
            try:
                if requests.get(f"{url}/-/ready", timeout=2).ok:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.1)
        raise ProgramEnded(f"{url}/-/ready was not ok within {READY_SECONDS:.0f} s\n{self.evidence()}")
