"""`gpu-exporter --once`: one exposition on standard output, and nothing of a running exporter is touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.simulation import state
from tests.rig.promtool import check_metrics

PROGRAM = str(Path(sys.executable).with_name("gpu-exporter"))


def once(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [PROGRAM, "--once", "--node.name", "n1", "--kubelet.pod-resources-socket", str(folder / "none.sock")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPU_EXPORTER_")}
    environ["GPUWARD_SIMULATION_FOLDER"] = str(folder / "simulation")
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=environ
    )


@pytest.mark.prometheus
@pytest.mark.parametrize("hardware", ["h100x8", "a100x4", "t4x2"])
def test_promtool_has_no_complaint(tmp_path: Path, hardware: str) -> None:
    done = once(tmp_path, "--simulate", hardware)
    assert done.returncode == 0, done.stderr
    check_metrics(done.stdout)
    count = int(hardware.partition("x")[2])
    assert sum(line.startswith("gpu_up{") and line.endswith(" 1") for line in done.stdout.splitlines()) == count


def test_it_tells_what_stands_in_the_kernel_log_and_keeps_nothing(tmp_path: Path) -> None:
    node = tmp_path / "node.json"
    state.create(node, "h100", 2, "n1")
    state.inject(node, 1, "xid:48")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = once(tmp_path, "--simulate", "h100x2", "--simulate.state-file", str(node))
    assert 'xid="48"} 1' in done.stdout and 'code="xid-48"' in done.stdout
    assert "gpu_mapping_known 0" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_without_a_driver_it_says_so_and_succeeds(tmp_path: Path) -> None:
    done = once(tmp_path, "--nvml.library", str(tmp_path / "libnvidia-ml.so.1"), "--kmsg.path", str(tmp_path / "kmsg"))
    assert done.returncode == 0, done.stderr
    assert 'gpu_driver_state{state="library-missing"} 1' in done.stdout
    assert 'gpuward_exporter_source_state{source="kernel-log",state="absent"} 1' in done.stdout


def test_version() -> None:
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "gpu-exporter")


def test_an_unknown_profile_is_told_which_there_are(tmp_path: Path) -> None:
    done = once(tmp_path, "--simulate", "b9000x8")
    assert done.returncode == 2
    assert "--simulate" in done.stderr and "h100" in done.stderr
