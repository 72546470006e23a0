"""The ledger against a model: whatever happens in whatever order, nothing ends without cause, nothing counts twice."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.assess.ledger import ENDED_BY, Ledger, fold
from exporter.assess.limits import Limits
from exporter.health.codes import GPU_LOST, RECOVERY_ACTION, ROW_REMAP_PENDING
from exporter.health.vocabulary import BootId, ClearedBy, HealthEvent
from tests.rig.ledger_world import a_fault, a_replacement, a_reset, good, polled
from tests.rig.readings_world import BOOT, NEXT_BOOT, at, uuid

GPUS = (uuid(0), uuid(1))
PROVING = (RECOVERY_ACTION, ROW_REMAP_PENDING, GPU_LOST)
FAULTS = {
    "xid-31": ClearedBy.WORKLOAD_END,
    "xid-95": ClearedBy.GPU_RESET,
    "xid-79": ClearedBy.REBOOT,
    "xid-64": ClearedBy.REPLACEMENT,
}

gpus = st.sampled_from(GPUS)
events = st.one_of(
    st.builds(
        lambda code, gpu, source: a_fault(code, gpu=gpu, source=source, cleared_by=FAULTS[code]),
        st.sampled_from(sorted(FAULTS)),
        gpus,
        st.sampled_from(["kernel-log", "nvml-event"]),
    ),
    st.builds(lambda code, gpu: polled(code, gpu=gpu), st.sampled_from(PROVING), gpus),
    st.builds(lambda code, gpu: good(code, gpu=gpu), st.sampled_from((*PROVING, *FAULTS)), gpus),
    st.builds(lambda gpu: a_reset(seconds=0, gpu=gpu), gpus),
    st.builds(lambda gpu: a_replacement(seconds=0, gpu=gpu), gpus),
)
# Seconds that pass, whether the node rebooted in them, and what was seen at their end.
steps = st.lists(
    st.tuples(st.integers(1, 1500), st.booleans() | st.just(False), st.lists(events, max_size=4)), max_size=25
)


def cause_of_end(
    cleared_by: ClearedBy, gpu: str, code: str, seen: list[HealthEvent], rebooted: bool, idle_seconds: float
) -> bool:
    """Whether anything in this step may end such a finding."""
    proofs = {event.cleared_by for event in seen if not event.present and event.gpu == gpu}
    reset = ClearedBy.GPU_RESET in proofs or any(e.code in PROVING and not e.present and e.gpu == gpu for e in seen)
    return (
        ClearedBy.REPLACEMENT in proofs
        or (rebooted and cleared_by in ENDED_BY[ClearedBy.REBOOT])
        or (reset and cleared_by in ENDED_BY[ClearedBy.GPU_RESET])
        or (cleared_by is ClearedBy.WORKLOAD_END and idle_seconds >= Limits().app_quiet.total_seconds())
        or (
            (cleared_by is ClearedBy.VALUE or code == RECOVERY_ACTION)
            and any(e.code == code and e.gpu == gpu and not e.present for e in seen)
        )
    )


@settings(max_examples=300, deadline=None)
@given(steps)
def test_nothing_ends_without_cause(story: list[tuple[int, bool, list[HealthEvent]]]) -> None:
    ledger, now, boot = Ledger(), 0, BOOT
    for passed, rebooted, raw in story:
        now += passed
        boot = _other(boot) if rebooted else boot
        seen = [replace(event, observed_at=at(now)) for event in raw]
        before = ledger
        ledger = fold(before, seen, boot, at(now))
        standing = {entry.key for entry in ledger.entries}
        for entry in before.entries:
            if entry.key not in standing:
                finding = entry.finding
                idle = (at(now) - finding.last_seen).total_seconds()
                assert cause_of_end(finding.cleared_by, finding.gpu or "", finding.code, seen, rebooted, idle), (
                    f"{finding.code} of {finding.gpu} ended by nothing in {seen}"
                )


@settings(max_examples=300, deadline=None)
@given(steps)
def test_an_empty_step_ends_only_by_quiet_or_reboot(story: list[tuple[int, bool, list[HealthEvent]]]) -> None:
    ledger, now = Ledger(), 0
    for passed, _, raw in story:
        now += passed
        ledger = fold(ledger, [replace(event, observed_at=at(now)) for event in raw], BOOT, at(now))
    later = fold(ledger, (), BOOT, at(now + 10**7))
    assert later.findings == ledger.findings, "nobody watched, so no quiet time passed"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["kernel-log", "nvml-event"]), st.integers(0, 60)), min_size=1, max_size=40),
    st.integers(1, 8),
)
def test_nothing_counts_twice_and_nothing_is_lost(sightings: list[tuple[str, int]], chunk: int) -> None:
    """n lines of the log and m NVML events count at least max(n, m), at most n + m, however they are cut into folds."""
    ordered = sorted(sightings, key=lambda sighting: sighting[1])
    ledger = Ledger()
    for start in range(0, len(ordered), chunk):
        part = ordered[start : start + chunk]
        told = [a_fault("xid-95", source=source, seconds=seconds) for source, seconds in part]
        ledger = fold(ledger, told, BOOT, at(part[-1][1]))
    log = sum(source == "kernel-log" for source, _ in sightings)
    nvml = len(sightings) - log
    (finding,) = ledger.findings
    assert max(log, nvml) <= finding.count <= log + nvml
    alone = fold(
        Ledger(), [a_fault("xid-95", seconds=s) for source, s in ordered if source == "kernel-log"], BOOT, at(60)
    )
    assert sum(f.count for f in alone.findings) == log


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=30))
def test_perfect_pairs_count_once_each(moments: list[int]) -> None:
    """Every fault told by both witnesses at once counts exactly once."""
    both = [
        a_fault("xid-95", source=source, seconds=moment)
        for moment in moments
        for source in ("nvml-event", "kernel-log")
    ]
    ledger = fold(Ledger(), both, BOOT, at(200))
    assert sum(finding.count for finding in ledger.findings) == len(moments)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=30), st.integers(1, 5))
def test_a_ledger_is_bounded(raw: list[HealthEvent], room: int) -> None:
    ledger = fold(Ledger(limits=Limits(max_findings=room)), raw, BOOT, at(0))
    assert len(ledger.entries) <= room


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=20))
def test_lines_of_another_boot_change_nothing(raw: list[HealthEvent]) -> None:
    old = [replace(event, boot_id=NEXT_BOOT) for event in raw]
    assert fold(Ledger(), old, BOOT, at(0)).findings == ()


def _other(boot: BootId) -> BootId:
    return NEXT_BOOT if boot == BOOT else BOOT
