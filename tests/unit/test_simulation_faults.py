"""What each fault does to a simulated GPU, and what a reset, a reboot and `heal` take away again."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.simulation import faults, state
from exporter.simulation.node import GpuState, NodeState, SimulatedProcess
from exporter.simulation.profiles import PROFILES, parse_fleet, profile_named

SIGNS = {
    "lost": lambda gpu: gpu.lost,
    "hang": lambda gpu: gpu.hung,
    "slow:50": lambda gpu: gpu.slow_ms == 50,
    "ecc-dbe": lambda gpu: gpu.ecc.uncorrected_volatile == 1,
    "row-remap-pending": lambda gpu: gpu.remap_pending,
    "row-remap-failure": lambda gpu: gpu.remap_failure,
    "nvlink-down:4": lambda gpu: gpu.links_down == (4,),
    "thermal-slowdown": lambda gpu: gpu.thermal_slowdown,
    "recovery-action:1": lambda gpu: gpu.recovery_action == 1,
    "recovery-action:2": lambda gpu: gpu.recovery_action == 2,
    "missing": lambda gpu: gpu.missing,
    "xid:79": lambda gpu: gpu.lost,
    "xid:48": lambda gpu: gpu.recovery_action == 1 and gpu.ecc.uncorrected_volatile == 1,
    "xid:63": lambda gpu: gpu.remap_pending,
    "xid:64": lambda gpu: gpu.remap_failure,
    "xid:74": lambda gpu: gpu.links_down == (0,),
    "xid:92": lambda gpu: gpu.ecc.corrected_volatile == 1000,
}
"""Fault text -> the sign by which it stands."""

SURVIVES = {
    # fault: (survives a reset, survives a reboot); None = hardware refuses the reset
    "lost": (None, False),
    "hang": (None, False),
    "missing": (None, False),
    "xid:79": (None, False),
    "slow:50": (False, False),
    "ecc-dbe": (False, False),
    "row-remap-pending": (False, False),
    "row-remap-failure": (True, True),
    "nvlink-down:4": (False, False),
    "thermal-slowdown": (True, True),
    "recovery-action:1": (False, False),
    "recovery-action:2": (True, False),
    "xid:48": (False, False),
    "xid:63": (False, False),
    "xid:64": (True, True),
    "xid:74": (False, False),
    "xid:92": (False, False),
}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A healthy h100x4 node."""
    path = tmp_path / "n1.json"
    state.create(path, "h100", 4, "n1")
    return path


def gpu(path: Path, index: int = 2) -> GpuState:
    return state.load(path).gpus[index]


def test_every_fault_has_one_line_of_help() -> None:
    for name, text in state.FAULTS.items():
        assert re.fullmatch(r"[a-z-]+(:N|:MS)?", name)
        assert text and "\n" not in text and len(text) <= 110


def test_every_fault_of_the_table_is_tried_here() -> None:
    tried = {text.partition(":")[0] for text in SIGNS} | {"heal"}
    assert tried == {name.partition(":")[0] for name in state.FAULTS}
    assert SIGNS.keys() == SURVIVES.keys()


@pytest.mark.parametrize("text", list(SIGNS))
def test_fault_shows_on_that_gpu_only(node: Path, text: str) -> None:
    before = state.load(node)
    state.inject(node, 2, text)
    after = state.load(node)
    assert SIGNS[text](after.gpus[2])
    assert [after.gpus[i] for i in (0, 1, 3)] == [before.gpus[i] for i in (0, 1, 3)]


@pytest.mark.parametrize("text", list(SURVIVES))
def test_reset_heals_what_hardware_heals(node: Path, text: str) -> None:
    state.inject(node, 2, text)
    survives = SURVIVES[text][0]
    if survives is None:
        before = node.read_bytes()
        with pytest.raises(state.ResetRefused, match="only a reboot"):
            state.reset_gpu(node, 2)
        assert node.read_bytes() == before
    else:
        state.reset_gpu(node, 2)
        assert SIGNS[text](gpu(node)) is survives


@pytest.mark.parametrize("text", list(SURVIVES))
def test_reboot_heals_what_hardware_heals(node: Path, text: str) -> None:
    state.inject(node, 2, text)
    state.reboot(node)
    assert SIGNS[text](gpu(node)) is SURVIVES[text][1]


@pytest.mark.parametrize("text", list(SIGNS))
def test_heal_ends_every_fault_and_keeps_lifetime_counters(node: Path, text: str) -> None:
    state.inject(node, 2, text)
    broken = gpu(node)
    state.inject(node, 2, "heal")
    healed = gpu(node)
    assert not SIGNS[text](healed)
    assert healed.ecc.uncorrected_aggregate == broken.ecc.uncorrected_aggregate
    assert healed.rows_uncorrected == broken.rows_uncorrected


@pytest.mark.parametrize("repair", ["reset", "reboot", "heal"])
def test_lifetime_counters_survive_every_repair(node: Path, repair: str) -> None:
    for text in ("xid:48", "row-remap-pending", "xid:92"):
        state.inject(node, 2, text)
    repairs = {
        "reset": lambda: state.reset_gpu(node, 2),
        "reboot": lambda: state.reboot(node),
        "heal": lambda: state.inject(node, 2, "heal"),
    }
    repairs[repair]()
    after = gpu(node)
    assert (after.ecc.uncorrected_volatile, after.ecc.corrected_volatile) == (0, 0)
    assert (after.ecc.uncorrected_aggregate, after.ecc.corrected_aggregate) == (1, 1000)
    assert (after.rows_uncorrected, after.remap_pending) == (1, False)


def test_node_wide_fault_hits_every_gpu(node: Path) -> None:
    state.inject(node, None, "lost")
    assert all(each.lost for each in state.load(node).gpus)


@pytest.mark.parametrize(
    ("profile", "text", "says"),
    [
        ("h100", "explode", "there are: xid:N, lost"),
        ("h100", "", "there are:"),
        ("h100", "xid", "N from 1 to 1023"),
        ("h100", "xid:", "N from 1 to 1023"),
        ("h100", "xid:0", "N from 1 to 1023"),
        ("h100", "xid:-5", "N from 1 to 1023"),
        ("h100", "lost:1", "there are:"),
        ("h100", "slow:x", "from 1 to"),
        ("h100", "nvlink-down:18", "from 0 to 17"),
        ("a100", "nvlink-down:12", "from 0 to 11"),
        ("h100", "recovery-action:8", "from 0 to 7"),
        ("t4", "nvlink-down:0", "a t4 .* cannot"),
        ("t4", "row-remap-pending", "a t4 .* cannot"),
        ("t4", "row-remap-failure", "a t4 .* cannot"),
        ("a100", "recovery-action:1", "a a100 with driver 550.* cannot"),
        ("a100", "xid:154", "cannot"),
    ],
)
def test_wrong_fault_says_what_is_allowed_and_changes_nothing(
    tmp_path: Path, profile: str, text: str, says: str
) -> None:
    path = tmp_path / "n.json"
    state.create(path, profile, 1, "n")
    before = path.read_bytes(), state.kmsg_path(path).read_bytes()
    with pytest.raises(ValueError, match=says):
        state.inject(path, 0, text)
    assert (path.read_bytes(), state.kmsg_path(path).read_bytes()) == before


@pytest.mark.parametrize("profile", ["h100", "a100", "t4"])
@pytest.mark.parametrize("code", sorted({13, 31, 43, 45, 109, *faults.XID_EFFECTS}))
def test_every_xid_leaves_one_event_and_one_line(tmp_path: Path, profile: str, code: int) -> None:
    path = tmp_path / "n.json"
    state.create(path, profile, 2, "n")
    state.inject(path, 1, f"xid:{code}")
    events = [event.data for event in state.load(path).events]
    address = {"h100": "0000:43:00", "a100": "0000:0f:00", "t4": "0000:3b:00"}[profile]
    line = rf"^3,\d+,\d+,-;NVRM: Xid \(PCI:{address}\): (\d+), \S"
    printed = [int(number) for number in re.findall(line, state.kmsg_path(path).read_text(), re.MULTILINE)]
    followed = profile == "h100" and faults.XID_EFFECTS.get(code, faults.XidEffect()).recovery > 0
    assert events == printed == ([code, 154] if followed else [code])


def test_kernel_log_names_the_gpu_once_per_boot(node: Path) -> None:
    state.inject(node, 2, "xid:31")
    state.inject(node, 2, "xid:31")
    log = state.kmsg_path(node).read_text()
    assert log.count(f"NVRM: GPU at PCI:0000:52:00: {state.load(node).uuid(2)}") == 1
    sequences = [int(line.split(",")[1]) for line in log.splitlines()]
    assert sequences == list(range(len(sequences)))
    state.reboot(node)
    assert "Xid" not in state.kmsg_path(node).read_text()
    assert state.kmsg_path(node).read_text().startswith("6,0,")


@pytest.mark.parametrize(
    ("profile", "code", "processes", "owner"),
    [
        ("h100", 31, (SimulatedProcess(77, "a-very-long-command", 1),), "31, pid=77, name=a-very-long-com, Ch"),
        ("h100", 31, (), "31, Ch"),
        ("h100", 79, (SimulatedProcess(77, "train", 1),), "79, GPU has"),
        ("a100", 79, (), "79, pid='<unknown>', name=<unknown>, GPU has"),
        ("t4", 63, (), "63, pid='<unknown>', name=<unknown>, Dynamic Page Retirement"),
    ],
    ids=["channel-xid-names-process", "no-process", "bus-xid-names-none", "old-driver-says-unknown", "turing-retires"],
)
def test_owner_in_the_line(
    tmp_path: Path, profile: str, code: int, processes: tuple[SimulatedProcess, ...], owner: str
) -> None:
    path = tmp_path / "n.json"
    state.create(path, profile, 1, "n")
    state.set_processes(path, {0: processes})
    state.inject(path, 0, f"xid:{code}")
    assert owner in state.kmsg_path(path).read_text()


def test_recovery_action_only_rises_by_xid(node: Path) -> None:
    state.inject(node, 2, "xid:79")
    state.inject(node, 2, "xid:48")
    assert gpu(node).recovery_action == faults.REBOOT
    assert "from 0x0 (None) to 0x2 (Node Reboot Required)" in state.kmsg_path(node).read_text()


def test_event_queue_is_bounded_and_numbers_go_on() -> None:
    empty = NodeState(node="n", profile=PROFILES[0], boot_id="b", boot_at=0.0, gpus=())
    full = empty
    for code in range(300):
        full = faults.with_event(full, 0, faults.XID_EVENT, code)
    assert [event.number for event in full.events] == list(range(45, 301))
    assert replace(full, events=()).last_event == 300


@pytest.mark.parametrize("text", ["h100", "x8", "h100x", "h100x0", "h100x65", "b300x8", "h100x-1", ""])
def test_wrong_fleet_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"h100"):
        parse_fleet(text)


def test_fleet_text() -> None:
    assert parse_fleet("a100x4") == (profile_named("a100"), 4)
