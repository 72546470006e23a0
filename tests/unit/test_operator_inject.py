"""`gpuward inject`: one line for success, a clear refusal otherwise, and nothing changed then."""

import argparse
from pathlib import Path

import pytest

from exporter.simulation import location, state
from remediator.operator import inject


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(location.FOLDER_VARIABLE, str(tmp_path))
    path = location.state_path("n2")
    state.create(path, "h100", 4, "n2")
    return path


def gpuward(*arguments: str) -> int:
    top = argparse.ArgumentParser()
    inject.add_parser(top.add_subparsers())
    parsed = top.parse_args(["inject", *arguments])
    return inject.run(parsed)


def test_list_names_every_fault_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpuward("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(state.FAULTS)


def test_a_fault_reaches_the_named_gpu_only(node: Path) -> None:
    assert gpuward("--node", "n2", "--gpu", "3", "--fault", "xid:79") == 0
    assert [gpu.lost for gpu in state.load(node).gpus] == [False, False, False, True]


def test_the_only_simulated_node_needs_no_name(node: Path) -> None:
    assert gpuward("--fault", "lost") == 0
    assert all(gpu.lost for gpu in state.load(node).gpus)


def test_a_reboot_gives_a_new_boot_id_and_brings_the_gpu_back(node: Path) -> None:
    before = state.inject(node, 1, "xid:79").boot_id
    assert gpuward("--node", "n2", "--reboot") == 0
    after = state.load(node)
    assert after.boot_id != before
    assert not after.gpus[1].lost


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("--node", "n2", "--fault", "xid:none"), "xid:N", id="a malformed fault says what is allowed"),
        pytest.param(("--node", "n2", "--fault", "melt"), "unknown fault", id="an unknown fault lists the known ones"),
        pytest.param(
            ("--node", "n9", "--fault", "lost"), "simulated nodes: n2", id="an unknown node lists the known ones"
        ),
        pytest.param(("--node", "n2", "--gpu", "9", "--fault", "lost"), "GPUs 0 to 3", id="a GPU that is not there"),
        pytest.param(("--node", "n2", "--reset"), "--gpu", id="a reset of no GPU in particular"),
        pytest.param(
            ("--node", "n2", "--gpu", "0", "--reset"), "does not answer", id="a reset of a lost GPU is refused"
        ),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    node: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    state.inject(node, 0, "lost")
    before = node.read_bytes()
    assert gpuward(*arguments) == 2
    assert said in capsys.readouterr().err
    assert node.read_bytes() == before
