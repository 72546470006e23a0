"""The state file: one truth for many processes, never half-written, identity that everybody computes alike."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.simulation import state
from exporter.simulation.node import MAX_EVENTS, SimulatedProcess, from_json, gpu_serial, gpu_uuid, to_json


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A healthy h100x8 node."""
    path = tmp_path / "n1.json"
    state.create(path, "h100", 8, "n1")
    return path


def test_state_survives_the_file(node: Path) -> None:
    state.set_processes(node, {1: [SimulatedProcess(9, "train", 1 << 30, 0.5)]})
    state.inject(node, 1, "nvlink-down:3")
    written = state.inject(node, 3, "xid:48")
    assert state.load(node) == written == from_json(json.loads(json.dumps(to_json(written))))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": 99}', "not json", '{"schema": 1, "profile": "h100", "gpus": [{}]}']
)
def test_foreign_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(state.StateError):
        state.load(path)


def test_no_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        state.load(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        state.inject(tmp_path / "none.json", 0, "lost")


@pytest.mark.parametrize("index", [-1, 8])
def test_gpu_that_is_not_there(node: Path, index: int) -> None:
    with pytest.raises(ValueError, match="GPUs 0 to 7"):
        state.inject(node, index, "lost")
    with pytest.raises(ValueError, match="GPUs 0 to 7"):
        state.reset_gpu(node, index)
    with pytest.raises(ValueError, match="GPUs 0 to 7"):
        state.set_processes(node, {index: []})


def test_create_refuses_an_empty_or_unknown_node(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        state.create(tmp_path / "a", "h100", 0, "n")
    with pytest.raises(ValueError, match="h100, a100, t4"):
        state.create(tmp_path / "a", "v100", 1, "n")


def test_identity_is_the_same_everywhere_and_distinct() -> None:
    assert gpu_uuid("n2", "h100", 3) == "GPU-a750a44a-d45d-5118-8b99-7fb8ee300f27"
    everyone = {(node, profile, index) for node in ("n1", "n2") for profile in ("h100", "t4") for index in range(16)}
    assert len({gpu_uuid(*who) for who in everyone}) == len({gpu_serial(*who) for who in everyone}) == len(everyone)
    assert all(len(gpu_serial(*who)) == 13 for who in everyone)


def test_reboot_gives_a_new_boot_id_and_ends_processes(node: Path) -> None:
    state.set_processes(node, {0: [SimulatedProcess(9, "train", 1 << 30, 0.5)]})
    state.inject(node, 5, "xid:13")
    before = state.load(node)
    after = state.reboot(node)
    assert after.boot_id != before.boot_id
    assert after.boot_at > before.boot_at
    assert all(not gpu.processes for gpu in after.gpus)
    assert after.events == ()
    assert after.last_event == before.last_event
    assert [after.uuid(i) for i in range(8)] == [before.uuid(i) for i in range(8)]


def test_reset_keeps_the_boot_and_needs_an_idle_gpu(node: Path) -> None:
    boot_id = state.load(node).boot_id
    state.set_processes(node, {0: [SimulatedProcess(9, "train", 1 << 30, 0.5)]})
    with pytest.raises(state.ResetRefused, match="in use by process 9"):
        state.reset_gpu(node, 0)
    state.set_processes(node, {0: []})
    assert state.reset_gpu(node, 0).boot_id == boot_id


def test_set_processes_leaves_other_gpus_alone(node: Path) -> None:
    state.set_processes(node, {0: [SimulatedProcess(1, "a", 1)], 1: [SimulatedProcess(2, "b", 1)]})
    state.set_processes(node, {1: []})
    gpus = state.load(node).gpus
    assert [len(gpu.processes) for gpu in gpus[:2]] == [1, 0]


def test_every_write_has_its_own_time(node: Path) -> None:
    times = []
    for _ in range(50):
        state.inject(node, 0, "ecc-dbe")
        times.append(node.stat().st_mtime_ns)
    assert times == sorted(set(times))


def test_processes_that_change_one_node_at_once_lose_nothing(node: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from exporter.simulation import state\n"
        "for _ in range(25): state.inject(Path(sys.argv[1]), int(sys.argv[2]), 'xid:31')\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(node), str(index)]) for index in range(4)]
    while any(writer.poll() is None for writer in writers):
        state.load(node)  # never half a file
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    after = state.load(node)
    assert after.last_event == 100 < MAX_EVENTS
    assert [event.number for event in after.events] == list(range(1, 101))
    lines = state.kmsg_path(node).read_text().splitlines()
    assert sum(": 31, " in line for line in lines) == 100
    assert [int(line.split(",")[1]) for line in lines] == list(range(len(lines)))
    assert not list(node.parent.glob("*.new"))
