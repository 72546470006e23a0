"""What one snapshot says: every rule of judgement as a row."""

from typing import Any

import pytest

from exporter.assess.assess import assess
from exporter.assess.limits import Limits
from exporter.assess.recovery import announced_action, demand
from exporter.health.codes import (
    DRIVER_FAILED,
    GPU_LOST,
    GPU_MISSING,
    PROBE_HUNG,
    RECOVERY_ACTION,
    ROW_REMAP_FAILURE,
    ROW_REMAP_PENDING,
)
from exporter.health.vocabulary import Advice, ClearedBy, HealthEvent, Scope, Severity
from exporter.readings import DriverState, GpuStatus, KernelNotice, NoticeKind, Snapshot, XidFamily
from tests.rig.readings_world import BOOT, NEXT_BOOT, a_gpu, a_remap, a_snapshot, address, an_xid, at, uuid

INFO, WARNING, ERROR, CRITICAL = Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.CRITICAL
APP, GPU, NODE, FABRIC = Scope.APP, Scope.GPU, Scope.NODE, Scope.FABRIC


def judged(snapshot: Snapshot, **limits: Any) -> tuple[HealthEvent, ...]:
    """Events of a snapshot."""
    return assess(snapshot, Limits(**limits))


def bad(snapshot: Snapshot, **limits: Any) -> list[tuple[str, str | None]]:
    """Codes and GPUs of what is there."""
    return [(event.code, event.gpu) for event in judged(snapshot, **limits) if event.present]


def good(snapshot: Snapshot, **limits: Any) -> set[tuple[str, str | None]]:
    """Codes and GPUs of what is not there."""
    return {(event.code, event.gpu) for event in judged(snapshot, **limits) if not event.present}


def the(code: str, snapshot: Snapshot, **limits: Any) -> HealthEvent:
    """The one event of this code."""
    (event,) = (event for event in judged(snapshot, **limits) if event.code == code and event.present)
    return event


def test_a_healthy_node_has_only_good_news() -> None:
    snapshot = a_snapshot(a_gpu(0), a_gpu(1))
    assert bad(snapshot) == []
    each = {GPU_LOST, PROBE_HUNG, RECOVERY_ACTION, ROW_REMAP_PENDING}
    node = {(DRIVER_FAILED, None), (GPU_MISSING, None)}
    assert good(snapshot) == {(code, uuid(index)) for code in each for index in (0, 1)} | node


STATUS_ROWS = [
    pytest.param(GpuStatus.LOST, GPU_LOST, CRITICAL, NODE, Advice.REBOOT_NODE, id="lost: reboot"),
    pytest.param(GpuStatus.MISSING, GPU_LOST, CRITICAL, NODE, Advice.REBOOT_NODE, id="no longer enumerated: reboot"),
    pytest.param(GpuStatus.RESET_REQUIRED, GPU_LOST, CRITICAL, GPU, Advice.RESET_GPU, id="reset required: reset"),
    pytest.param(GpuStatus.HUNG, PROBE_HUNG, CRITICAL, NODE, Advice.REBOOT_NODE, id="hung: nothing but a reboot"),
]


@pytest.mark.parametrize(("status", "code", "severity", "scope", "advice"), STATUS_ROWS)
def test_presence(status: GpuStatus, code: str, severity: Severity, scope: Scope, advice: Advice) -> None:
    event = the(code, a_snapshot(a_gpu(0, status=status, seconds=7)))
    assert (event.severity, event.scope, event.advice) == (severity, scope, advice)
    assert (event.cleared_by, event.gpu, event.observed_at) == (ClearedBy.VALUE, uuid(0), at(7))


@pytest.mark.parametrize("status", [s for s in GpuStatus if s is not GpuStatus.UP], ids=str)
def test_a_gpu_that_does_not_answer_gives_no_good_news(status: GpuStatus) -> None:
    news = good(a_snapshot(a_gpu(0, status=status), a_gpu(1)))
    assert not any(gpu == uuid(0) for _, gpu in news)


def test_a_gpu_of_which_every_call_failed_says_nothing() -> None:
    assert bad(a_snapshot(a_gpu(0, status=GpuStatus.FAILED))) == []


@pytest.mark.parametrize(
    ("action", "severity", "scope", "advice"),
    [
        pytest.param(1, CRITICAL, GPU, Advice.RESET_GPU, id="1 reset"),
        pytest.param(2, CRITICAL, NODE, Advice.REBOOT_NODE, id="2 reboot"),
        pytest.param(3, ERROR, GPU, Advice.RESTART_APP, id="3 drain the peers"),
        pytest.param(4, CRITICAL, GPU, Advice.RESET_GPU, id="4 drain and reset"),
        pytest.param(5, ERROR, FABRIC, Advice.CONTACT_SUPPORT, id="5 IMEX"),
        pytest.param(6, CRITICAL, GPU, Advice.RESET_GPU, id="6 bus reset"),
        pytest.param(7, CRITICAL, NODE, Advice.REBOOT_NODE, id="7 system reboot"),
        pytest.param(99, CRITICAL, GPU, Advice.CONTACT_SUPPORT, id="unknown: stop and ask"),
    ],
)
def test_recovery_action(action: int, severity: Severity, scope: Scope, advice: Advice) -> None:
    event = the(RECOVERY_ACTION, a_snapshot(a_gpu(0, recovery_action=action)))
    assert (event.severity, event.scope, event.advice) == (severity, scope, advice)
    assert event.cleared_by is ClearedBy.VALUE


def test_readings_that_are_not_supported_say_nothing() -> None:
    snapshot = a_snapshot(a_gpu(0, recovery_action=None, row_remap=None))
    assert bad(snapshot) == []
    assert {code for code, gpu in good(snapshot) if gpu} == {GPU_LOST, PROBE_HUNG}


@pytest.mark.parametrize(
    ("pending", "failure", "found"),
    [
        pytest.param(False, False, [], id="clean"),
        pytest.param(True, False, [ROW_REMAP_PENDING], id="pending"),
        pytest.param(False, True, [ROW_REMAP_FAILURE], id="failure"),
        pytest.param(True, True, [ROW_REMAP_PENDING, ROW_REMAP_FAILURE], id="both"),
    ],
)
def test_row_remap(pending: bool, failure: bool, found: list[str]) -> None:
    snapshot = a_snapshot(a_gpu(0, row_remap=a_remap(pending=pending, failure=failure)))
    assert [code for code, _ in bad(snapshot)] == found
    assert ((ROW_REMAP_PENDING, uuid(0)) in good(snapshot)) is not pending
    assert (ROW_REMAP_FAILURE, uuid(0)) not in good(snapshot), "the flag lives in the board"


def test_row_remap_grades() -> None:
    snapshot = a_snapshot(a_gpu(0, row_remap=a_remap(pending=True, failure=True)))
    pending, failure = the(ROW_REMAP_PENDING, snapshot), the(ROW_REMAP_FAILURE, snapshot)
    assert (pending.severity, pending.advice, pending.cleared_by) == (WARNING, Advice.RESET_GPU, ClearedBy.VALUE)
    assert (failure.severity, failure.advice) == (CRITICAL, Advice.CONTACT_SUPPORT)
    assert failure.cleared_by is ClearedBy.REPLACEMENT


@pytest.mark.parametrize(
    ("state", "gpus", "enumerated", "expected", "found"),
    [
        pytest.param(DriverState.OK, 2, 2, None, None, id="all there"),
        pytest.param(DriverState.OK, 2, 2, 2, None, id="as many as expected"),
        pytest.param(DriverState.OK, 2, 2, 1, None, id="more than expected is no fault"),
        pytest.param(DriverState.OK, 2, 2, 3, GPU_MISSING, id="one expected and never seen"),
        pytest.param(DriverState.OK, 2, 1, None, GPU_MISSING, id="one seen in this boot and gone"),
        pytest.param(DriverState.OK, 2, 3, None, GPU_MISSING, id="one is enumerated and never said its name"),
        pytest.param(DriverState.OK, 2, 0, None, None, id="a sweep that counted nothing says nothing"),
        pytest.param(DriverState.NO_GPU, 0, 0, 2, GPU_MISSING, id="a driver without any GPU"),
        pytest.param(DriverState.NO_GPU, 0, 0, None, None, id="a node without GPUs"),
        pytest.param(DriverState.NO_DRIVER, 2, 0, None, DRIVER_FAILED, id="the driver went away"),
        pytest.param(DriverState.LIBRARY_MISSING, 0, 0, 2, DRIVER_FAILED, id="GPUs expected, no library"),
        pytest.param(DriverState.NO_DRIVER, 0, 0, None, None, id="a node that never had a driver"),
        pytest.param(DriverState.STARTING, 2, 0, 2, None, id="starting is no fault"),
    ],
)
def test_node(state: DriverState, gpus: int, enumerated: int, expected: int | None, found: str | None) -> None:
    seen = tuple(a_gpu(index) for index in range(gpus))
    snapshot = Snapshot(
        node="n1", boot_id=BOOT, taken_at=at(0), driver_state=state, driver=None, gpus=seen, enumerated=enumerated
    )
    assert bad(snapshot, expected_gpus=expected) == ([] if found is None else [(found, None)])


def test_a_driver_that_does_not_answer_takes_nothing_back() -> None:
    snapshot = Snapshot(
        node="n1", boot_id=BOOT, taken_at=at(0), driver_state=DriverState.NO_DRIVER, driver=None, gpus=()
    )
    assert judged(snapshot) == ()


def test_node_grades() -> None:
    missing = the(GPU_MISSING, a_snapshot(), expected_gpus=2)
    assert (missing.severity, missing.scope, missing.advice) == (CRITICAL, NODE, Advice.REBOOT_NODE)
    nameless = the(GPU_MISSING, a_snapshot(enumerated=2))
    assert (nameless.severity, nameless.scope, nameless.advice) == (WARNING, NODE, Advice.UNKNOWN)
    failed = the(DRIVER_FAILED, a_snapshot(driver_state=DriverState.NO_DRIVER))
    assert (failed.severity, failed.scope, failed.advice) == (WARNING, NODE, Advice.UNKNOWN)


XID_ROWS = [
    pytest.param(13, "", WARNING, APP, Advice.RESTART_APP, ClearedBy.WORKLOAD_END, id="13"),
    pytest.param(31, "", WARNING, APP, Advice.RESTART_APP, ClearedBy.WORKLOAD_END, id="31"),
    pytest.param(43, "", WARNING, APP, Advice.NONE, ClearedBy.WORKLOAD_END, id="43"),
    pytest.param(45, "", INFO, APP, Advice.NONE, ClearedBy.WORKLOAD_END, id="45 is clean-up after another"),
    pytest.param(48, "", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="48"),
    pytest.param(63, "", WARNING, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="63 works from the next reset on"),
    pytest.param(64, "", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="64: one reset is the trial"),
    pytest.param(74, "", CRITICAL, NODE, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="74"),
    pytest.param(79, "", CRITICAL, NODE, Advice.REBOOT_NODE, ClearedBy.REBOOT, id="79"),
    pytest.param(92, "", WARNING, GPU, Advice.NONE, ClearedBy.GPU_RESET, id="92"),
    pytest.param(
        94, "RST: No, D-RST: No", ERROR, APP, Advice.RESTART_APP, ClearedBy.GPU_RESET, id="94 kills one process"
    ),
    pytest.param(
        94, "RST: No, D-RST: Yes", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="94 asks for a drain"
    ),
    pytest.param(95, "RST: Yes, D-RST: No", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="95"),
    pytest.param(95, "no flags at all", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="95 without flags"),
    pytest.param(110, "", CRITICAL, GPU, Advice.REBOOT_NODE, ClearedBy.REBOOT, id="110: a reset does not help"),
    pytest.param(119, "", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="119"),
    pytest.param(120, "", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="120"),
    pytest.param(137, "", WARNING, GPU, Advice.NONE, ClearedBy.WORKLOAD_END, id="137 is mostly an application's"),
    pytest.param(140, "", CRITICAL, GPU, Advice.RESET_GPU, ClearedBy.GPU_RESET, id="140"),
    pytest.param(165, "", ERROR, GPU, Advice.CONTACT_SUPPORT, ClearedBy.REPLACEMENT, id="165 is wear"),
    pytest.param(167, "", CRITICAL, NODE, Advice.REBOOT_NODE, ClearedBy.REBOOT, id="167"),
    pytest.param(171, "", INFO, GPU, Advice.NONE, ClearedBy.WORKLOAD_END, id="171 is a detail of 48"),
    pytest.param(400, "", WARNING, GPU, Advice.UNKNOWN, ClearedBy.GPU_RESET, id="unknown"),
]


@pytest.mark.parametrize(("code", "text", "severity", "scope", "advice", "cleared_by"), XID_ROWS)
def test_xids(code: int, text: str, severity: Severity, scope: Scope, advice: Advice, cleared_by: ClearedBy) -> None:
    event = the(f"xid-{code}", a_snapshot(xids=(an_xid(code, text=text, pid=7, seconds=3),)))
    assert (event.severity, event.scope, event.advice, event.cleared_by) == (severity, scope, advice, cleared_by)
    assert (event.gpu, event.pid, event.observed_at, event.source) == (uuid(0), 7, at(3), "kernel-log")


def test_an_address_finds_its_gpu() -> None:
    xid = an_xid(48, gpu=None, pci_bus_id=address(1))
    assert the("xid-48", a_snapshot(a_gpu(0), a_gpu(1), xids=(xid,))).gpu == uuid(1)


def test_a_gpu_that_nobody_can_name_is_the_nodes_trouble_until_reboot() -> None:
    xid = an_xid(95, gpu=None, pci_bus_id=address(7))
    event = the("xid-95", a_snapshot(xids=(xid,)))
    assert (event.gpu, event.cleared_by) == (None, ClearedBy.REBOOT)
    assert address(7) in event.message
    app = the("xid-31", a_snapshot(xids=(an_xid(31, gpu=None),)))
    assert app.cleared_by is ClearedBy.WORKLOAD_END


def test_162_takes_163_back() -> None:
    assert ("xid-163", uuid(0)) in good(a_snapshot(xids=(an_xid(162),)))


ANNOUNCED = "GPU recovery action changed from 0x0 (None) to 0x{:x} (whatever)"


@pytest.mark.parametrize(
    ("field", "text", "advice"),
    [
        pytest.param(None, ANNOUNCED.format(1), Advice.RESET_GPU, id="no field: the line is obeyed"),
        pytest.param(None, ANNOUNCED.format(2), Advice.REBOOT_NODE, id="no field: the line asks for a reboot"),
        pytest.param(None, "", None, id="a line without numbers is nothing to obey"),
        pytest.param(0, ANNOUNCED.format(2), None, id="a field that reads 0 outranks the line"),
        pytest.param(1, ANNOUNCED.format(2), Advice.RESET_GPU, id="a field that asks outranks the line"),
    ],
)
def test_xid_154(field: int | None, text: str, advice: Advice | None) -> None:
    snapshot = a_snapshot(a_gpu(0, recovery_action=field), xids=(an_xid(154, text=text),))
    assert [e.advice for e in judged(snapshot) if e.present] == ([] if advice is None else [advice])


def test_xid_154_may_take_back() -> None:
    text = "GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)"
    snapshot = a_snapshot(a_gpu(0, recovery_action=None), xids=(an_xid(154, text=text),))
    assert (RECOVERY_ACTION, uuid(0)) in good(snapshot)


@pytest.mark.parametrize(
    ("gpu", "action", "cleared_by"),
    [
        pytest.param(0, 1, ClearedBy.GPU_RESET, id="a reset ends the wish for one"),
        pytest.param(0, 2, ClearedBy.REBOOT, id="a reboot ends the wish for one"),
        pytest.param(None, 1, ClearedBy.REBOOT, id="a GPU without a name can show no reset"),
    ],
)
def test_what_ends_an_announced_action(gpu: int | None, action: int, cleared_by: ClearedBy) -> None:
    snapshot = a_snapshot(a_gpu(0, recovery_action=None), xids=(an_xid(154, gpu=gpu, text=ANNOUNCED.format(action)),))
    assert the(RECOVERY_ACTION, snapshot).cleared_by is cleared_by


@pytest.mark.parametrize(
    ("text", "action"),
    [
        pytest.param("GPU recovery action changed from 0x1 (PF FLR) to 0x2 (OS Reboot)", 2, id="words do not count"),
        pytest.param("GPU recovery action changed from 0x0 to 0xA", 10, id="no words at all"),
        pytest.param("GPU recovery action changed from 0x0 (None) to 0x123456789", None, id="too long to be a number"),
        pytest.param("something else", None, id="another text"),
    ],
)
def test_announced_action(text: str, action: int | None) -> None:
    assert announced_action(text) == action


def test_an_unknown_demand_is_told_by_its_number() -> None:
    assert demand(42).words == "unknown action 42"
    assert demand(42).cleared_by is ClearedBy.GPU_RESET


SXID_ROWS = [
    pytest.param(
        20034, "Fatal, Link 30 LTSSM Fault Up (First)", CRITICAL, Advice.REBOOT_NODE, id="the line says fatal"
    ),
    pytest.param(12028, "Non-fatal, Link 07 egress non-posted PRIV error", None, None, id="the row's own grade"),
    pytest.param(10003, "Non-fatal, unhandled interrupt", WARNING, Advice.NONE, id="the line says it is not fatal"),
    pytest.param(10003, "unhandled interrupt", CRITICAL, Advice.REBOOT_NODE, id="no word: the row"),
    pytest.param(77777, "Correctable, thing", WARNING, Advice.UNKNOWN, id="unknown"),
]


@pytest.mark.parametrize(("code", "text", "severity", "advice"), SXID_ROWS)
def test_sxids(code: int, text: str, severity: Severity | None, advice: Advice | None) -> None:
    xid = an_xid(code, gpu=None, text=text, family=XidFamily.SXID, pci_bus_id="00000000:05:00.0")
    event = the(f"sxid-{code}", a_snapshot(xids=(xid,)))
    assert (event.gpu, event.scope, event.cleared_by) == (None, FABRIC, ClearedBy.REBOOT)
    assert "00000000:05:00.0" in event.message
    if severity is not None:
        assert (event.severity, event.advice) == (severity, advice)


def test_an_sxid_of_severity_info_fades() -> None:
    xid = an_xid(10005, gpu=None, family=XidFamily.SXID, pci_bus_id=address(0))
    snapshot = a_snapshot(xids=(xid,))
    event = the("sxid-10005", snapshot)
    assert (event.severity, event.cleared_by) == (INFO, ClearedBy.WORKLOAD_END)
    assert event.gpu is None, "a switch's address is no GPU's"
    assert ("sxid-10004", None) in good(snapshot)


def notice(kind: NoticeKind, **changed: Any) -> KernelNotice:
    """A notice about GPU 0 by its address."""
    facts: dict[str, Any] = {"kind": kind, "gpu": None, "pci_bus_id": address(0), "observed_at": at(5)}
    return KernelNotice(**{**facts, **changed})


def test_fell_off_the_bus_in_words() -> None:
    event = the(GPU_LOST, a_snapshot(notices=(notice(NoticeKind.FELL_OFF),)))
    assert (event.gpu, event.severity, event.scope, event.advice) == (uuid(0), CRITICAL, NODE, Advice.REBOOT_NODE)
    assert event.cleared_by is ClearedBy.VALUE


def test_fell_off_the_bus_before_anybody_knew_it() -> None:
    event = the(GPU_LOST, a_snapshot(notices=(notice(NoticeKind.FELL_OFF, pci_bus_id=address(7)),)))
    assert (event.gpu, event.cleared_by) == (None, ClearedBy.REBOOT)
    unknown = the(GPU_LOST, a_snapshot(notices=(notice(NoticeKind.FELL_OFF, pci_bus_id=None),)))
    assert "unknown" in unknown.message


@pytest.mark.parametrize(
    ("kind", "gpu", "told"),
    [
        pytest.param(NoticeKind.RESET_DONE, uuid(0), True, id="done"),
        pytest.param(NoticeKind.RESET_FAILED, uuid(0), False, id="failed proves nothing"),
        pytest.param(NoticeKind.RESET_DONE, None, True, id="done, by address"),
    ],
)
def test_reset_notices(kind: NoticeKind, gpu: str | None, told: bool) -> None:
    snapshot = a_snapshot(notices=(notice(kind, gpu=gpu),))
    proofs = [e for e in judged(snapshot) if e.cleared_by is ClearedBy.GPU_RESET and not e.present]
    assert [(e.code, e.gpu, e.observed_at) for e in proofs] == ([("gpu-reset", uuid(0), at(5))] if told else [])


def test_nothing_of_another_boot() -> None:
    old = (an_xid(79, boot_id=NEXT_BOOT),)
    notices = tuple(notice(kind, boot_id=NEXT_BOOT) for kind in NoticeKind)
    assert judged(a_snapshot(xids=old, notices=notices)) == judged(a_snapshot())
    assert ("xid-79", uuid(0)) in bad(a_snapshot(xids=(an_xid(79, boot_id=BOOT),)))
