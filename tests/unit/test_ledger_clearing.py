"""What ends a finding: every pair of finding and clearing event, and everything that must not end one."""

import pytest

from exporter.assess.ledger import Ledger
from exporter.assess.limits import Limits
from exporter.health.codes import GPU_LOST, PROBE_HUNG, RECOVERY_ACTION, ROW_REMAP_PENDING
from exporter.health.vocabulary import Advice, ClearedBy, Scope, Severity
from tests.rig.ledger_world import a_fault, a_replacement, a_reset, codes, folded, good, polled, watched
from tests.rig.readings_world import BOOT, NEXT_BOOT, at, uuid

CODE = "some-fault"

ENDINGS = ("good-value", "one-good-value", "quiet", "reset", "reboot", "replacement", "silence-unwatched")


def after(ending: str, ledger: Ledger) -> Ledger:
    """`ledger` after one clearing event, well after the fault at second 0."""
    match ending:
        case "good-value":
            return folded(good(CODE, seconds=30), good(CODE, seconds=40), ledger=ledger, seconds=40)
        case "one-good-value":
            return folded(good(CODE, seconds=30), ledger=ledger, seconds=40)
        case "quiet":
            return watched(ledger, until=3600)
        case "reset":
            return folded(a_reset(seconds=30), ledger=ledger, seconds=40)
        case "reboot":
            return folded(ledger=ledger, boot=NEXT_BOOT, seconds=40)
        case "replacement":
            return folded(a_replacement(seconds=30), ledger=ledger, seconds=40)
        case "silence-unwatched":
            return folded(ledger=ledger, seconds=30 * 24 * 3600)
        case _:
            raise AssertionError(ending)


# Rows: what the finding waits for; columns: what happens. One True more or less here is another product.
TABLE: dict[ClearedBy, set[str]] = {
    ClearedBy.VALUE: {"good-value", "replacement"},
    ClearedBy.WORKLOAD_END: {"quiet", "reset", "reboot", "replacement"},
    ClearedBy.GPU_RESET: {"reset", "reboot", "replacement"},
    ClearedBy.REBOOT: {"reboot", "replacement"},
    ClearedBy.REPLACEMENT: {"replacement"},
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("cleared_by", list(ClearedBy), ids=str)
def test_every_pair(cleared_by: ClearedBy, ending: str) -> None:
    ledger = folded(a_fault(CODE, cleared_by=cleared_by))
    assert codes(after(ending, ledger)) == ([] if ending in TABLE[cleared_by] else [CODE])


@pytest.mark.parametrize("ending", ["good-value", "reset", "replacement"])
@pytest.mark.parametrize("cleared_by", list(ClearedBy), ids=str)
def test_what_happens_to_another_gpu_ends_nothing_here(cleared_by: ClearedBy, ending: str) -> None:
    ledger = folded(a_fault(CODE, gpu=uuid(1), cleared_by=cleared_by))
    assert codes(after(ending, ledger)) == [CODE]


def test_good_values_count_in_a_row() -> None:
    ledger = folded(polled(CODE))
    ledger = folded(good(CODE, seconds=10), ledger=ledger, seconds=10)
    ledger = folded(polled(CODE, seconds=20), ledger=ledger, seconds=20)
    ledger = folded(good(CODE, seconds=30), ledger=ledger, seconds=30)
    assert codes(ledger) == [CODE]
    assert codes(folded(good(CODE, seconds=40), ledger=ledger, seconds=40)) == []


def test_one_reading_judged_twice_is_one_reading() -> None:
    ledger = folded(polled(CODE))
    for second in (10, 11, 12):
        ledger = folded(good(CODE, seconds=10), ledger=ledger, seconds=second)
    assert codes(ledger) == [CODE]


def test_a_reading_from_before_the_fault_is_no_good_value() -> None:
    ledger = folded(polled(CODE, seconds=50), seconds=50)
    ledger = folded(good(CODE, seconds=30), good(CODE, seconds=40), ledger=ledger, seconds=60)
    assert codes(ledger) == [CODE]


def test_how_many_good_values_is_a_limit() -> None:
    ledger = folded(polled(CODE), ledger=Ledger(limits=Limits(good_reads=1)))
    assert codes(folded(good(CODE, seconds=10), ledger=ledger, seconds=10)) == []


def test_quiet_time_starts_again_with_each_occurrence() -> None:
    app = ClearedBy.WORKLOAD_END
    ledger = watched(folded(a_fault("xid-31", cleared_by=app)), until=800)
    ledger = folded(a_fault("xid-31", seconds=800, cleared_by=app), ledger=ledger, seconds=800)
    ledger = watched(ledger, since=800, until=1690)
    assert codes(ledger) == ["xid-31"]
    assert codes(watched(ledger, since=1690, until=1700)) == []


def test_quiet_time_does_not_pass_while_nobody_watches() -> None:
    ledger = folded(a_fault("xid-31", cleared_by=ClearedBy.WORKLOAD_END))
    back = folded(ledger=ledger, seconds=7200)
    assert codes(back) == ["xid-31"]
    assert codes(watched(back, since=7200, until=7200 + 890)) == ["xid-31"]
    assert codes(watched(back, since=7200, until=7200 + 900)) == []


@pytest.mark.parametrize(
    ("code", "advice", "proves"),
    [
        pytest.param(RECOVERY_ACTION, Advice.RESET_GPU, True, id="the driver took its wish for a reset back"),
        pytest.param(RECOVERY_ACTION, Advice.REBOOT_NODE, False, id="a reboot wish taken back proves no reset"),
        pytest.param(RECOVERY_ACTION, Advice.RESTART_APP, False, id="drained peers are no reset"),
        pytest.param(ROW_REMAP_PENDING, Advice.RESET_GPU, True, id="a pending remap took effect"),
        pytest.param(GPU_LOST, Advice.RESET_GPU, True, id="a GPU that refused work until a reset answers"),
        pytest.param(GPU_LOST, Advice.REBOOT_NODE, False, id="a lost GPU that answers may have come back alone"),
        pytest.param(PROBE_HUNG, Advice.RESET_GPU, False, id="a driver call that returned is no reset"),
    ],
)
def test_what_proves_a_reset(code: str, advice: Advice, proves: bool) -> None:
    ledger = folded(a_fault("xid-95"), a_fault("xid-79", cleared_by=ClearedBy.REBOOT), polled(code, advice=advice))
    ledger = folded(good(code, seconds=10), good(code, seconds=20), ledger=ledger, seconds=20)
    assert codes(ledger) == (["xid-79"] if proves else ["xid-79", "xid-95"])


def test_a_reset_ends_nothing_that_came_after_it() -> None:
    ledger = folded(a_fault("xid-95"), polled(RECOVERY_ACTION))
    ledger = folded(
        good(RECOVERY_ACTION, seconds=10),
        a_fault("xid-48", seconds=15),
        good(RECOVERY_ACTION, seconds=20),
        ledger=ledger,
        seconds=20,
    )
    assert codes(ledger) == ["xid-48"]


def test_a_late_line_about_what_a_reset_has_ended_is_no_finding() -> None:
    ledger = folded(a_reset(seconds=30), seconds=30)
    assert codes(folded(a_fault("xid-95", seconds=29), ledger=ledger, seconds=40)) == []
    assert codes(folded(a_fault("xid-95", seconds=31), ledger=ledger, seconds=40)) == ["xid-95"]
    late_loss = a_fault("xid-79", seconds=29, cleared_by=ClearedBy.REBOOT)
    assert codes(folded(late_loss, ledger=ledger, seconds=40)) == ["xid-79"], "a reset does not end that one"
    other_gpu = a_fault("xid-95", seconds=29, gpu=uuid(1))
    assert codes(folded(other_gpu, ledger=ledger, seconds=40)) == ["xid-95"]
    assert codes(folded(a_fault("xid-95", seconds=29, gpu=None), ledger=ledger, seconds=40)) == ["xid-95"]


def test_resets_are_forgotten_with_the_boot() -> None:
    ledger = folded(ledger=folded(a_reset(seconds=30), seconds=30), boot=NEXT_BOOT, seconds=40)
    assert ledger.resets == {}


def test_the_latest_reset_is_remembered() -> None:
    ledger = folded(a_reset(seconds=30), seconds=30)
    assert folded(a_reset(seconds=20), ledger=ledger, seconds=40).resets == {uuid(0): at(30)}


@pytest.mark.parametrize(
    ("standing", "ends"),
    [
        pytest.param("kernel-log", True, id="what the log said the log takes back"),
        pytest.param("nvml-poll", False, id="the log does not outrank a reading that stands"),
    ],
)
def test_the_log_says_over(standing: str, ends: bool) -> None:
    ledger = folded(a_fault("xid-163", source=standing))
    ledger = folded(good("xid-163", seconds=10, source="kernel-log"), ledger=ledger, seconds=10)
    assert codes(ledger) == ([] if ends else ["xid-163"])


def test_the_field_outranks_the_line() -> None:
    """Recovery action told by Xid 154, then field 230 reads 0: the driver itself says that nothing is needed."""
    ledger = folded(a_fault(RECOVERY_ACTION, cleared_by=ClearedBy.REBOOT))
    ledger = folded(good(RECOVERY_ACTION, seconds=10), good(RECOVERY_ACTION, seconds=20), ledger=ledger, seconds=20)
    assert codes(ledger) == []


@pytest.mark.parametrize("boot", [NEXT_BOOT, BOOT])
def test_a_line_of_another_boot_is_no_finding(boot: str) -> None:
    ledger = folded(a_fault("xid-79", boot_id=boot))
    assert codes(ledger) == (["xid-79"] if boot == BOOT else [])


def test_a_good_value_of_something_that_does_not_stand_is_nothing() -> None:
    assert folded(good(CODE)).entries == ()


def test_a_proof_without_a_gpu_ends_nothing() -> None:
    ledger = folded(a_fault(CODE, gpu=None))
    proof = a_fault("gpu-reset", gpu=None, seconds=10, present=False)
    assert codes(folded(proof, ledger=ledger, seconds=10)) == [CODE]


def test_a_node_finding_ends_by_its_value_and_by_reboot() -> None:
    ledger = folded(a_fault("driver-failed", gpu=None, cleared_by=ClearedBy.REBOOT, scope=Scope.NODE))
    assert codes(ledger) == ["driver-failed"]
    assert codes(folded(ledger=ledger, boot=NEXT_BOOT, seconds=10)) == []


def test_a_witness_whose_clock_runs_ahead_cannot_outlive_a_reset() -> None:
    ledger = folded(a_fault("xid-95", seconds=9999), seconds=10)
    assert ledger.findings[0].last_seen == at(10)
    assert codes(folded(a_reset(seconds=20), ledger=ledger, seconds=20)) == []


def test_severity_says_nothing_about_clearing() -> None:
    for severity in Severity:
        ledger = folded(a_fault(CODE, severity=severity))
        assert codes(watched(ledger, until=3600)) == [CODE]


def test_a_polled_fault_says_in_which_boot_it_was_last_read() -> None:
    """Else nobody could tell a fault of this boot from one that only waits for good readings after the reboot."""
    ledger = folded(polled(GPU_LOST, cleared_by=ClearedBy.VALUE))
    carried = folded(ledger=ledger, boot=NEXT_BOOT, seconds=30)
    assert [finding.boot_id for finding in carried.findings] == [BOOT]
    seen_again = folded(
        polled(GPU_LOST, seconds=40, cleared_by=ClearedBy.VALUE), ledger=carried, boot=NEXT_BOOT, seconds=40
    )
    assert [finding.boot_id for finding in seen_again.findings] == [NEXT_BOOT]
