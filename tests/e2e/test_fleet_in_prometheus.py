"""A real Prometheus scrapes two exporters and a remediator: alerts fire, rules evaluate, every panel shows data."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from exporter.health import keys
from exporter.readings import PodDevice
from exporter.simulation import state
from exporter.simulation.kubelet_socket import KubeletSocket
from remediator.simulation.cluster import EmbeddedCluster
from tests.rig.dashboards import empty, panels
from tests.rig.exporter import Exporter
from tests.rig.processes import Process, free_port
from tests.rig.prometheus import Prometheus, Sample, require_prometheus
from tests.rig.waiting import eventually

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("fleet")]

REMEDIATOR = str(Path(sys.executable).with_name("gpu-remediator"))
RULES = Path(__file__).parents[2] / "alerts" / "gpuward.rules.yaml"
EMPTY_UNLESS: dict[str, str] = {}
"""Expression -> what must be the case for it to show data, where this fleet is not enough."""
METRIC = re.compile(r"\b(?:gpu|gpuward)_[a-z_]+\b")


class Fleet(NamedTuple):
    """Two nodes, who watches them, and a remediator that only observes."""

    prometheus: Prometheus
    hopper: Exporter
    turing: Exporter


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Eight H100 and two T4, a pod on each GPU of the first node."""
    require_prometheus()
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster())
        publish = ("--kube.publish", "on", "--kube.api-server", cluster.url)
        hopper = Exporter(tmp_path_factory.mktemp("hopper"), *publish, node="hopper")
        turing = Exporter(tmp_path_factory.mktemp("turing"), *publish, simulate="t4x2", node="turing")
        cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": keys.NAMESPACE}}])
        cluster.apply(a_node(exporter.node) for exporter in (hopper, turing))
        for exporter in (hopper, turing):
            kubelet = stack.enter_context(KubeletSocket(exporter.kubelet_socket))
            gpus = [("nvidia.com/gpu", gpu) for gpu in exporter.uuids()]
            kubelet.set_pods([pod_on(gpu) for _, gpu in gpus] if exporter is hopper else [], gpus)
            stack.enter_context(exporter)
        remediator = f"127.0.0.1:{free_port()}"
        flags = [f"--web.listen-address={remediator}", f"--kube.api-server={cluster.url}", "--no-leader-elect"]
        process = Process([REMEDIATOR, *flags], tmp_path_factory.mktemp("remediator") / "log")
        stack.callback(process.stop)
        targets = {"gpu-exporter": [hopper.target, turing.target], "gpu-remediator": [remediator]}
        yield Fleet(stack.enter_context(Prometheus(targets, [RULES])), hopper, turing)


def a_node(name: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": [ready]}}


def pod_on(gpu: str) -> PodDevice:
    return PodDevice(
        namespace="team-a", pod=f"train-{gpu[4:8]}", container="main", resource="nvidia.com/gpu", device_id=gpu
    )


def test_both_are_scraped(fleet: Fleet) -> None:
    def up() -> dict[str, float]:
        return {each.labels["instance"]: each.value for each in fleet.prometheus.query('up{job="gpu-exporter"}')}

    eventually("both are up", lambda: up() == {fleet.hopper.target: 1.0, fleet.turing.target: 1.0}, 20.0)
    eventually("all GPUs are there", lambda: len(fleet.prometheus.query("gpu_up == 1")) == 10, 20.0)
    names = {each.labels["instance"] for each in fleet.prometheus.query("gpu_info")}
    assert names == {fleet.hopper.target, fleet.turing.target}, "the dashboard's node variable lists them"


def test_an_xid_fires_its_alert_and_every_panel_shows_data(fleet: Fleet) -> None:
    lost = fleet.hopper.uuids()[3]
    state.inject(fleet.hopper.silicon, 3, "xid:79")
    state.inject(fleet.turing.silicon, 1, "missing")
    (fired,) = eventually("the alert fires", lambda: fleet.prometheus.firing("GPUXidCritical"), 20.0)
    assert fired == {
        "alertname": "GPUXidCritical",
        "severity": "critical",
        "instance": fleet.hopper.target,
        "gpu": lost,
        "xid": "79",
    }
    expected = set(EMPTY_UNLESS)
    asked = panels()
    assert len(asked) >= 15
    eventually("every panel shows data", lambda: empty(fleet.prometheus, asked) == expected, 20.0)
    numbers = {"GPUs": 10.0, "Unhealthy": 2.0, "Unknown": 0.0, "Not answering": 2.0, "Blind nodes": 0.0}
    eventually(
        f"the numbers are {numbers}",
        lambda: {title: shown(fleet, title)[0].value for title in numbers} == numbers,
        20.0,
    )
    (hurt,) = shown(fleet, "Pods on GPUs that are not healthy")
    assert (hurt.labels["gpu"], hurt.labels["pod"]) == (lost, f"train-{lost[4:8]}")


def shown(fleet: Fleet, title: str) -> list[Sample]:
    """What the only query of the panel with this title finds."""
    (panel,) = (each for each in panels() if each.title == title)
    return fleet.prometheus.query(panel.expression)


def test_every_rule_evaluates_over_metrics_that_exist(fleet: Fleet) -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    well = {rule["alert"]: "ok" for rule in rules}
    # A group that has not had its first turn yet is "unknown".
    eventually("every rule evaluates", lambda: fleet.prometheus.rules() == well, 20.0)
    names = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    assert len(names) >= 5
    waiting = {"gpu_node_finding", "gpu_xid_last_timestamp_seconds"}
    assert names > waiting, "these wait for a fault"
    eventually("all others are there", lambda: all(fleet.prometheus.query(name) for name in names - waiting), 20.0)
