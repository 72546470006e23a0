"""Stories over several snapshots: faults that come, stay and are really over; boards that are exchanged."""

import json
from dataclasses import replace
from typing import Any

import pytest

from exporter.assess.judge import judge
from exporter.assess.ledger import Ledger
from exporter.assess.limits import Limits
from exporter.assess.memory import BadMemory, decode, encode
from exporter.assess.xids import XidCounts, count
from exporter.health.codes import GPU_LOST, GPU_MISSING, PROBE_HUNG, RECOVERY_ACTION, ROW_REMAP_FAILURE
from exporter.readings import GpuReadings, GpuStatus, KernelNotice, NoticeKind
from tests.rig.ledger_world import a_fault, codes, folded, good
from tests.rig.readings_world import (
    BOOT,
    NEXT_BOOT,
    a_gpu,
    a_remap,
    a_snapshot,
    address,
    an_identity,
    an_xid,
    at,
    uuid,
)


def told(ledger: Ledger, seconds: float, *gpus: GpuReadings, **changed: Any) -> Ledger:
    """`ledger` after a snapshot at `seconds`; GPUs as given, else one healthy GPU."""
    seen = gpus or (a_gpu(0, seconds=seconds),)
    return judge(ledger, a_snapshot(*seen, seconds=seconds, **changed), at(seconds))


def test_a_gpu_falls_off_the_bus_and_a_reboot_brings_it_back() -> None:
    ledger = told(Ledger(), 0)
    ledger = told(ledger, 10, a_gpu(0, status=GpuStatus.LOST, seconds=10), xids=(an_xid(79, seconds=9),))
    assert codes(ledger) == [GPU_LOST, "xid-79"]
    ledger = told(ledger, 20, a_gpu(0, seconds=20))
    ledger = told(ledger, 30, a_gpu(0, seconds=30))
    assert codes(ledger) == ["xid-79"], "an answer alone does not take back what the kernel said"
    ledger = told(ledger, 300, boot_id=NEXT_BOOT)
    assert codes(ledger) == []


def test_a_hung_probe_is_over_when_the_gpu_has_answered_twice() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, status=GpuStatus.HUNG))
    ledger = told(ledger, 10, a_gpu(0, status=GpuStatus.FAILED, seconds=10))
    assert codes(ledger) == [PROBE_HUNG]
    ledger = told(ledger, 20)
    assert codes(ledger) == [PROBE_HUNG]
    assert codes(told(ledger, 30)) == []


def test_a_snapshot_judged_again_for_a_kernel_line_is_no_second_reading() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, status=GpuStatus.HUNG))
    once = a_snapshot(a_gpu(0, seconds=10), seconds=10)
    for second in (10, 11, 12):
        ledger = judge(ledger, once, at(second))
    assert codes(ledger) == [PROBE_HUNG]


def test_an_uncontained_error_is_over_after_the_reset_that_the_driver_asked_for() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, recovery_action=1), xids=(an_xid(95),))
    assert codes(ledger) == [RECOVERY_ACTION, "xid-95"]
    ledger = told(ledger, 60)
    assert codes(ledger) == [RECOVERY_ACTION, "xid-95"]
    assert codes(told(ledger, 70)) == []


def test_a_reset_notice_ends_a_fault_that_the_driver_said_nothing_about() -> None:
    ledger = told(Ledger(), 0, xids=(an_xid(74),))
    notice = KernelNotice(kind=NoticeKind.RESET_DONE, gpu=uuid(0), pci_bus_id=None, observed_at=at(50))
    assert codes(told(ledger, 60, notices=(notice,))) == []


def test_an_application_fault_ends_by_watched_quiet_on_a_gpu_that_answers() -> None:
    hung = told(Ledger(), 0, xids=(an_xid(31),))
    fine = hung
    for second in range(60, 901, 60):
        fine = told(fine, second)
        hung = told(hung, second, a_gpu(0, status=GpuStatus.FAILED, seconds=second))
    assert codes(fine) == []
    assert codes(hung) == ["xid-31"]


def test_another_board_in_the_slot_ends_everything_of_the_old_one() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, row_remap=a_remap(failure=True)), a_gpu(1), xids=(an_xid(79),))
    new = an_identity(0, uuid=uuid(42), serial="new")
    ledger = told(ledger, 500, a_gpu(0, identity=new, seconds=500), a_gpu(1, seconds=500), boot_id=NEXT_BOOT)
    assert codes(ledger) == []
    assert {slot.uuid for slot in ledger.slots} == {uuid(42), uuid(1)}


def test_another_serial_under_the_same_uuid_is_another_board() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, row_remap=a_remap(failure=True)))
    swapped = an_identity(0, serial="another")
    assert codes(told(ledger, 500, a_gpu(0, identity=swapped, seconds=500))) == []


@pytest.mark.parametrize("serial", [None, "1654900000000"])
def test_a_serial_that_was_not_read_is_no_exchange(serial: str | None) -> None:
    ledger = told(Ledger(), 0, a_gpu(0, row_remap=a_remap(failure=True)))
    same = a_gpu(0, identity=an_identity(0, serial=serial), seconds=500)
    assert codes(told(ledger, 500, same)) == [ROW_REMAP_FAILURE]


def test_a_board_that_moved_to_the_address_of_a_lost_one_is_no_exchange() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, row_remap=a_remap(failure=True)), a_gpu(1))
    moved = a_gpu(0, identity=an_identity(1, pci_bus_id=address(0)), seconds=500)
    ledger = told(ledger, 500, moved, boot_id=NEXT_BOOT)
    assert codes(ledger) == [GPU_MISSING, ROW_REMAP_FAILURE]
    assert told(ledger, 510, moved, boot_id=NEXT_BOOT).findings == ledger.findings


def test_two_boards_that_changed_places_are_no_exchange() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, row_remap=a_remap(failure=True)), a_gpu(1))
    here = a_gpu(0, identity=an_identity(0, pci_bus_id=address(1)), seconds=500)
    there = a_gpu(1, identity=an_identity(1, pci_bus_id=address(0)), seconds=500)
    assert codes(told(ledger, 500, here, there, boot_id=NEXT_BOOT)) == [ROW_REMAP_FAILURE]


def test_boards_without_a_pci_address_are_no_exchange_for_each_other() -> None:
    """A driver may refuse the address of every GPU; that is not one slot for all of them."""
    lost = a_gpu(0, identity=an_identity(0, pci_bus_id=""), row_remap=a_remap(failure=True))
    ledger = told(Ledger(), 0, lost)
    gone = a_gpu(0, identity=an_identity(0, pci_bus_id=""), status=GpuStatus.LOST, seconds=500)
    other = a_gpu(1, identity=an_identity(1, pci_bus_id=""), seconds=500)
    assert codes(told(ledger, 500, gone, other)) == [GPU_LOST, ROW_REMAP_FAILURE]


def test_a_board_that_does_not_answer_proves_no_exchange() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, row_remap=a_remap(failure=True)))
    strange = a_gpu(0, identity=an_identity(0, uuid=uuid(42)), status=GpuStatus.FAILED, seconds=10)
    assert codes(told(ledger, 10, strange)) == [ROW_REMAP_FAILURE]


def test_the_slot_of_a_faulty_board_is_remembered_while_it_is_out() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, row_remap=a_remap(failure=True)), a_gpu(1))
    ledger = told(ledger, 500, a_gpu(1, seconds=500), boot_id=NEXT_BOOT)
    assert codes(ledger) == [GPU_MISSING, ROW_REMAP_FAILURE]
    for seconds in (600, 610):
        new = a_gpu(0, identity=an_identity(0, uuid=uuid(42)), seconds=seconds)
        ledger = told(ledger, seconds, new, a_gpu(1, seconds=seconds), boot_id=NEXT_BOOT)
    assert codes(ledger) == []


def test_a_gpu_that_does_not_come_back_after_a_reboot_is_missing() -> None:
    """Else the node would pass as healed with seven GPUs, the eighth dead."""
    ledger = told(Ledger(), 0, a_gpu(0), a_gpu(1))
    assert codes(told(ledger, 500, a_gpu(0, seconds=500), boot_id=NEXT_BOOT)) == [GPU_MISSING]
    taken_out = replace(ledger, limits=Limits(expected_gpus=1))
    assert codes(told(taken_out, 500, a_gpu(0, seconds=500), boot_id=NEXT_BOOT)) == []


def test_a_missing_gpu_is_the_nodes_trouble_until_all_are_there() -> None:
    limits = Limits(expected_gpus=2)
    ledger = told(Ledger(limits=limits), 0)
    assert codes(ledger) == [GPU_MISSING]
    ledger = told(ledger, 10, a_gpu(0, seconds=10), a_gpu(1, seconds=10))
    ledger = told(ledger, 20, a_gpu(0, seconds=20), a_gpu(1, seconds=20))
    assert codes(ledger) == []


def test_what_is_kept_comes_back() -> None:
    ledger = told(Ledger(), 0, a_gpu(0, recovery_action=1), a_gpu(1), xids=(an_xid(95, seconds=0, boot_id=BOOT),))
    ledger = told(ledger, 10, a_gpu(0, seconds=10), a_gpu(1, seconds=10))
    notice = KernelNotice(kind=NoticeKind.RESET_DONE, gpu=uuid(1), pci_bus_id=None, observed_at=at(15))
    ledger = told(ledger, 20, a_gpu(0, status=GpuStatus.FAILED, seconds=20), notices=(notice,))
    counts = count(XidCounts(), (an_xid(95), an_xid(31, gpu=None)), BOOT)
    raw = json.loads(json.dumps(encode(ledger, counts)))
    back, numbers = decode(raw, ledger.limits)
    assert back.findings == ledger.findings
    assert (back.entries, back.resets, back.slots, back.boot) == (
        ledger.entries,
        ledger.resets,
        ledger.slots,
        ledger.boot,
    )
    assert back.watched_at == ledger.watched_at
    assert numbers == counts
    assert back.unpaired == ledger.unpaired


def test_the_second_witness_may_speak_after_a_restart() -> None:
    heard = an_xid(31, source="nvml-event", seconds=1)
    ledger = judge(Ledger(), a_snapshot(xids=(heard,)), at(1))
    counts = count(XidCounts(), (heard,), BOOT)
    ledger, counts = decode(json.loads(json.dumps(encode(ledger, counts))), Limits())
    line = an_xid(31, source="kernel-log", seconds=0.8)
    ledger = judge(ledger, a_snapshot(xids=(line,)), at(2))
    assert [finding.count for finding in ledger.findings] == [1]
    assert [each.count for each in count(counts, (line,), BOOT).counts] == [1]


def test_nothing_kept_comes_back_as_nothing() -> None:
    ledger, counts = decode(json.loads(json.dumps(encode(Ledger(), XidCounts()))), Limits())
    assert ledger == Ledger()
    assert counts == XidCounts()


def test_a_good_reading_before_a_restart_counts_after_it() -> None:
    ledger = folded(good(GPU_LOST, seconds=10), ledger=folded(a_fault(GPU_LOST)), seconds=10)
    back, _ = decode(encode(ledger, XidCounts()), Limits())
    assert back.entries == ledger.entries


def broken(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """A kept state with one thing changed."""
    raw: dict[str, Any] = json.loads(json.dumps(encode(folded(a_fault("xid-79")), XidCounts())))
    place: Any = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({}, id="empty"),
        pytest.param(broken(("format",), 2), id="another format"),
        pytest.param(broken(("ledger",), None), id="no ledger"),
        pytest.param(broken(("ledger", "entries", 0, "severity"), "grave"), id="an unknown word"),
        pytest.param(broken(("ledger", "entries", 0, "firstSeen"), "2026-01-01T00:00:00"), id="a time without zone"),
        pytest.param(broken(("ledger", "entries", 0, "count"), None), id="no number"),
        pytest.param(broken(("ledger", "resets"), []), id="another shape"),
        pytest.param(broken(("xids", "counts"), [["GPU-1", 31]]), id="too short"),
    ],
)
def test_what_cannot_be_read_is_bad_memory(raw: dict[str, Any]) -> None:
    with pytest.raises(BadMemory):
        decode(raw, Limits())
