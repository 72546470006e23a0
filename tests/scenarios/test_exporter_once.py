"""`gpu-exporter --once`: one exposition of a simulated node that promtool does not complain about, and an end."""

import subprocess
from pathlib import Path

import pytest

from exporter.simulation import location, state
from tests.rig.exporter import LEFT_BEHIND, PROGRAM, Page
from tests.rig.promtool import check_metrics

FAULTS = ("xid:48", "xid:31", "ecc-dbe", "row-remap-pending", "thermal-slowdown", "nvlink-down:3")


def once(folder: Path, hardware: str) -> Page:
    """What it prints; AssertionError on any other status than 0."""
    command = [PROGRAM, "--simulate", hardware, "--once", "--node.name", "n1", "--interval", "1"]
    command += ["--simulate.state-file", str(folder / "node.json"), "--state.file", str(folder / "state.json")]
    command += ["--kubelet.pod-resources-socket", str(folder / "kubelet.sock")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in folder.iterdir()} <= LEFT_BEHIND - {"state.json"}
    return Page(ended.stdout)


@pytest.mark.prometheus
@pytest.mark.parametrize(("hardware", "count"), [("h100x8", 8), ("a100x4", 4), ("t4x2", 2)])
def test_every_profile_is_clean(tmp_path: Path, hardware: str, count: int) -> None:
    page = once(tmp_path, hardware)
    assert [each.value for each in page.series("gpu_up")] == [1.0] * count
    assert page.states("gpu_node_health") == {"Healthy"}
    check_metrics(page.text)


@pytest.mark.prometheus
def test_a_node_full_of_faults_is_clean(tmp_path: Path) -> None:
    silicon = tmp_path / "node.json"
    state.create(silicon, "h100", 8, "n1")
    for index, fault in enumerate(FAULTS):
        state.inject(silicon, index, fault)
    state.inject(silicon, 6, "hang")
    state.inject(silicon, 7, "missing")
    page = once(tmp_path, "h100x8")
    assert page.states("gpu_node_health") <= {"Unhealthy", "Unknown"}
    codes = {each.labels["code"] for each in page.series("gpu_finding")}
    assert codes >= {"xid-48", "xid-31", "row-remap-pending"}
    check_metrics(page.text)


def test_the_sources_are_shown_at_work_and_not_as_it_stops_them(tmp_path: Path) -> None:
    page = once(tmp_path, "t4x2")
    assert page.states("gpuward_exporter_source_state", source="kernel-log") == {"ok"}
    assert page.states("gpuward_exporter_source_state", source="nvml") == {"ok"}


def test_a_look_leaves_a_running_simulation_of_that_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(location.FOLDER_VARIABLE, str(tmp_path))
    running = location.state_path("n1")
    state.create(running, "h100", 8, "n1")
    state.inject(running, 3, "lost")
    before = running.read_bytes()
    command = [PROGRAM, "--simulate", "t4x2", "--once", "--node.name", "n1", "--interval", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert Page(ended.stdout).states("gpu_node_health") == {"Healthy"}
    assert running.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} <= {"n1.json", "n1.json.kmsg", "n1.json.lock"}
