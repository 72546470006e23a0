"""How findings are counted, graded and bounded."""

import pytest

from exporter.assess.ledger import Ledger
from exporter.assess.limits import Limits
from exporter.health.codes import GPU_LOST, RECOVERY_ACTION
from exporter.health.vocabulary import Advice, ClearedBy, Finding, Scope, Severity
from tests.rig.ledger_world import a_fault, codes, folded, good, polled
from tests.rig.readings_world import BOOT, at, uuid


def only(ledger: Ledger) -> Finding:
    """The one standing finding."""
    (finding,) = ledger.findings
    return finding


def test_a_first_sighting_is_a_finding_with_its_own_words() -> None:
    finding = only(folded(a_fault("xid-48", seconds=5, boot_id=BOOT), seconds=6))
    assert finding == Finding(
        code="xid-48",
        gpu=uuid(0),
        severity=Severity.CRITICAL,
        scope=Scope.GPU,
        advice=Advice.RESET_GPU,
        cleared_by=ClearedBy.GPU_RESET,
        count=1,
        first_seen=at(5),
        last_seen=at(5),
        message="xid-48 happened",
        source="kernel-log",
        boot_id=BOOT,
    )


@pytest.mark.parametrize(
    ("sightings", "count"),
    [
        pytest.param([("kernel-log", 0), ("nvml-event", 1)], 1, id="two witnesses, one fault"),
        pytest.param([("nvml-event", 0), ("kernel-log", 5)], 1, id="either witness may be first, 5 s apart"),
        pytest.param([("nvml-event", 0), ("kernel-log", 5.1)], 2, id="further apart they are two faults"),
        pytest.param([("kernel-log", 0), ("kernel-log", 1)], 2, id="one witness twice is two faults"),
        pytest.param(
            [("kernel-log", 0), ("nvml-event", 0), ("kernel-log", 1), ("nvml-event", 1)], 2, id="two pairs, two faults"
        ),
        pytest.param(
            [("kernel-log", 0), ("kernel-log", 1), ("nvml-event", 1), ("nvml-event", 2)], 2, id="pairs in any order"
        ),
        pytest.param(
            [("kernel-log", 0), ("nvml-event", 1), ("nvml-event", 2)], 2, id="a witness pairs once and not again"
        ),
    ],
)
@pytest.mark.parametrize("apart", [True, False], ids=["a fold each", "in one fold"])
def test_duplicates(sightings: list[tuple[str, float]], count: int, apart: bool) -> None:
    events = [a_fault("xid-31", source=source, seconds=seconds) for source, seconds in sightings]
    if apart:
        ledger = Ledger()
        for event, (_, seconds) in zip(events, sightings, strict=True):
            ledger = folded(event, ledger=ledger, seconds=seconds)
    else:
        ledger = folded(*events, seconds=20)
    assert only(ledger).count == count
    assert only(ledger).last_seen == at(max(seconds for _, seconds in sightings))


def test_the_second_witness_may_know_worse() -> None:
    """NVML tells Xid 94 without text; the line of the log says that the GPU must be reset."""
    mild = a_fault("xid-94", source="nvml-event", severity=Severity.ERROR, scope=Scope.APP, advice=Advice.RESTART_APP)
    ledger = folded(mild, a_fault("xid-94", seconds=1), seconds=2)
    finding = only(ledger)
    assert (finding.count, finding.severity, finding.advice) == (1, Severity.CRITICAL, Advice.RESET_GPU)


def test_the_second_witness_does_not_weaken() -> None:
    mild = a_fault("xid-94", seconds=1, source="nvml-event", severity=Severity.ERROR, scope=Scope.APP)
    assert only(folded(a_fault("xid-94"), mild, seconds=2)).severity is Severity.CRITICAL


def test_the_second_witness_does_not_raise_the_dead() -> None:
    """The first witness found no room in a full ledger; the second one is no new fault either."""
    full = folded(a_fault("xid-79"), ledger=Ledger(limits=Limits(max_findings=1)))
    ledger = folded(a_fault("xid-95"), a_fault("xid-95", seconds=1, source="nvml-event"), ledger=full, seconds=2)
    assert codes(ledger) == ["xid-79"]
    assert ledger.dropped == 1


def test_a_repetition_keeps_the_worse_grade_and_counts() -> None:
    ledger = folded(a_fault("xid-94", severity=Severity.ERROR), a_fault("xid-94", seconds=60), seconds=60)
    ledger = folded(a_fault("xid-94", seconds=120, severity=Severity.ERROR), ledger=ledger, seconds=120)
    finding = only(ledger)
    assert (finding.count, finding.severity) == (3, Severity.CRITICAL)
    assert (finding.first_seen, finding.last_seen) == (at(0), at(120))


def test_a_polled_condition_counts_once_and_does_not_rewrite_itself() -> None:
    ledger = folded(polled(GPU_LOST))
    for second in range(10, 100, 10):
        again = folded(polled(GPU_LOST, seconds=second), ledger=ledger, seconds=second)
        assert again.findings == ledger.findings
        ledger = again
    assert only(ledger).count == 1


def test_a_condition_that_was_good_and_is_bad_again_counts_again() -> None:
    ledger = folded(polled(GPU_LOST))
    ledger = folded(good(GPU_LOST, seconds=10), ledger=ledger, seconds=10)
    ledger = folded(polled(GPU_LOST, seconds=20), ledger=ledger, seconds=20)
    assert (only(ledger).count, only(ledger).last_seen) == (2, at(20))


def test_the_newest_words_of_a_polled_condition_hold() -> None:
    ledger = folded(polled(RECOVERY_ACTION, advice=Advice.REBOOT_NODE))
    ledger = folded(
        polled(RECOVERY_ACTION, seconds=10, advice=Advice.RESET_GPU, severity=Severity.ERROR), ledger=ledger, seconds=10
    )
    finding = only(ledger)
    assert (finding.count, finding.advice, finding.severity) == (1, Advice.RESET_GPU, Severity.ERROR)
    assert finding.last_seen == at(10)


@pytest.mark.parametrize(
    ("advice", "count"),
    [
        pytest.param(Advice.RESET_GPU, 1, id="the log repeats what a poll says: nothing new"),
        pytest.param(Advice.REBOOT_NODE, 2, id="the log says something else: newer"),
    ],
)
def test_the_log_about_a_polled_condition(advice: Advice, count: int) -> None:
    ledger = folded(polled(RECOVERY_ACTION))
    ledger = folded(a_fault(RECOVERY_ACTION, seconds=10, advice=advice), ledger=ledger, seconds=10)
    assert only(ledger).count == count


@pytest.mark.parametrize(
    ("seconds", "severity", "told"),
    [
        pytest.param(60, Severity.ERROR, Severity.INFO, id="94 after 48 has no grade of its own"),
        pytest.param(181, Severity.ERROR, Severity.ERROR, id="three minutes later it has"),
        pytest.param(60, Severity.CRITICAL, Severity.CRITICAL, id="94 whose line asks for a reset has"),
    ],
)
def test_sympathy(seconds: float, severity: Severity, told: Severity) -> None:
    ledger = folded(a_fault("xid-48"))
    ledger = folded(a_fault("xid-94", seconds=seconds, severity=severity), ledger=ledger, seconds=seconds)
    assert [f.severity for f in ledger.findings if f.code == "xid-94"] == [told]


def test_no_sympathy_across_gpus() -> None:
    ledger = folded(a_fault("xid-48"), a_fault("xid-94", gpu=uuid(1), severity=Severity.ERROR))
    assert [f.severity for f in ledger.findings if f.code == "xid-94"] == [Severity.ERROR]


def test_events_of_one_fold_are_taken_in_the_order_of_time() -> None:
    ledger = folded(a_fault("xid-94", seconds=2, severity=Severity.ERROR), a_fault("xid-48", seconds=1), seconds=5)
    assert [f.severity for f in ledger.findings] == [Severity.CRITICAL, Severity.INFO]


def test_fifty_thousand_events_take_a_bounded_ledger() -> None:
    events = [a_fault(f"xid-{n % 3000}", seconds=n / 1000, gpu=uuid(n % 8)) for n in range(50_000)]
    ledger = folded(*events, seconds=60)
    assert len(ledger.entries) == Limits().max_findings
    assert ledger.dropped > 0
    assert len(ledger.unpaired) == 0, "witnesses of a minute ago wait for nobody"
    storm = folded(*(a_fault("xid-31", seconds=n / 50_000) for n in range(50_000)), seconds=1)
    assert only(storm).count == 50_000
    assert sum(len(open_) for open_ in storm.unpaired.values()) <= 256


def test_findings_are_sorted() -> None:
    ledger = folded(
        a_fault("xid-95"), a_fault("xid-48", gpu=uuid(1)), a_fault("xid-48"), a_fault("gpu-missing", gpu=None)
    )
    assert [(f.gpu, f.code) for f in ledger.findings] == [
        (None, "gpu-missing"),
        (uuid(0), "xid-48"),
        (uuid(0), "xid-95"),
        (uuid(1), "xid-48"),
    ]


def test_fold_changes_nothing_of_what_it_was_given() -> None:
    before = folded(a_fault("xid-48"))
    kept = (before.entries, dict(before.resets), dict(before.unpaired))
    folded(a_fault("xid-48", seconds=10), ledger=before, seconds=10)
    assert (before.entries, dict(before.resets), dict(before.unpaired)) == kept
