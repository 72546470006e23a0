"""Validating and Probation: what passes, what fails, and how a GPU comes back."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.health.vocabulary import Health
from remediator.domain.actions import CloseIncident, DeleteJob, LiftQuarantine, Plan, RunJob
from remediator.domain.model import (
    ClusterView,
    Incident,
    JobFacts,
    NodeView,
    Phase,
    ValidationRecord,
)
from remediator.domain.outcomes import Done, PastOutcome
from remediator.domain.planner import plan
from remediator.domain.policy import Policy
from tests.worlds import (
    NOW,
    a_job,
    a_node,
    a_policy,
    a_view,
    ago,
    an_incident,
    report_of,
    reporting,
    silent,
    tainted,
    with_fault,
)

CLEAN = tainted(a_node())
FAULTY = tainted(with_fault(a_node()))
REBOOTED = reporting(CLEAN, boot_id="boot-2")
REBOOT = [{"name": "reboot", "job": a_job("reboot"), "needs": "node"}]
PASSED = JobFacts(name="v", succeeded=True)


def jobs(decided: Plan) -> list[RunJob]:
    return [action for action in decided.actions if isinstance(action, RunJob)]


def validating(**changes: Any) -> Incident:
    asked = {"repair": 1, "validate": 1} if changes.get("validation") else {"repair": 1}
    return an_incident(Phase.VALIDATING, **{"attempts": asked, **changes})


TESTED = ValidationRecord(job="v", requested_at=ago(30))
UNSEEN = reporting(CLEAN, gpus=report_of(CLEAN).gpus[:3], seen_gpus=3)
JOBLESS = a_policy(validate={})

VALIDATES: list[tuple[str, NodeView, Incident, JobFacts | None, Policy, Phase, str]] = [
    ("asks for the Job", CLEAN, validating(), None, a_policy(), Phase.VALIDATING, "RunJob"),
    ("waits for it", CLEAN, validating(validation=TESTED), JobFacts(name="v"), a_policy(), Phase.VALIDATING, ""),
    (
        "asks again when it is not there",
        CLEAN,
        validating(validation=TESTED),
        None,
        a_policy(),
        Phase.VALIDATING,
        "RunJob",
    ),
    (
        "passed",
        CLEAN,
        validating(validation=TESTED),
        PASSED,
        a_policy(),
        Phase.PROBATION,
        "",
    ),
    (
        "failed",
        CLEAN,
        validating(validation=TESTED),
        JobFacts(name="v", failed=True),
        a_policy(),
        Phase.REPAIRING,
        "RunJob",
    ),
    (
        "passed but the fault stands",
        FAULTY,
        validating(validation=TESTED),
        PASSED,
        a_policy(),
        Phase.REPAIRING,
        "RunJob",
    ),
    (
        "passed but unknown",
        silent(CLEAN),
        validating(validation=TESTED),
        PASSED,
        a_policy(),
        Phase.VALIDATING,
        "",
    ),
    (
        "gone",
        CLEAN,
        validating(validation=replace(TESTED, requested_at=ago(61))),
        None,
        a_policy(),
        Phase.REPAIRING,
        "RunJob",
    ),
    (
        "out of time",
        CLEAN,
        validating(validation=TESTED, deadline=NOW),
        JobFacts(name="v"),
        a_policy(),
        Phase.REPAIRING,
        "RunJob",
    ),
    (
        "a finding from before the reboot is no verdict",
        with_fault(REBOOTED, code="gpu-lost", boot_id="boot-1"),
        validating(validation=TESTED),
        PASSED,
        a_policy(),
        Phase.VALIDATING,
        "",
    ),
    (
        "a fault seen since the reboot fails it",
        with_fault(REBOOTED, code="gpu-lost", boot_id="boot-2"),
        validating(validation=TESTED),
        PASSED,
        a_policy(),
        Phase.REPAIRING,
        "RunJob",
    ),
    ("no Job: a clean report is the test", CLEAN, validating(), None, JOBLESS, Phase.PROBATION, ""),
    ("no Job, unknown: no verdict", silent(CLEAN), validating(), None, JOBLESS, Phase.VALIDATING, ""),
    ("no Job, GPU not seen: no verdict", UNSEEN, validating(), None, JOBLESS, Phase.VALIDATING, ""),
    (
        "Job passed, GPU not seen: no verdict",
        UNSEEN,
        validating(validation=TESTED),
        PASSED,
        a_policy(),
        Phase.VALIDATING,
        "",
    ),
    (
        "failed at the cap",
        CLEAN,
        validating(validation=TESTED, attempts={"repair": 2, "validate": 2}),
        JobFacts(name="v", failed=True),
        a_policy(),
        Phase.ESCALATED,
        "",
    ),
]


@pytest.mark.parametrize(
    ("node", "incident", "job", "policy", "phase", "action"),
    [row[1:] for row in VALIDATES],
    ids=[row[0] for row in VALIDATES],
)
def test_validation(
    node: NodeView, incident: Incident, job: JobFacts | None, policy: Policy, phase: Phase, action: str
) -> None:
    decided = plan(a_view(node, incidents=[incident], jobs=(job,) if job else ()), policy, NOW)
    assert decided.incidents[0].phase is phase
    assert bool(jobs(decided)) is (action == "RunJob")


def test_a_failed_validation_is_not_undone_by_a_clean_report() -> None:
    """Otherwise a GPU that fails its test without a finding would be tested for ever and never repaired."""
    failed = JobFacts(name="v", failed=True, message="3 of 4 tests")
    view = a_view(CLEAN, incidents=[validating(validation=TESTED)], jobs=(failed,))
    decided = plan(view, a_policy(), NOW)
    (found,) = decided.incidents
    assert [entry.to for entry in found.history] == ["Draining", "Repairing"]
    assert found.history[0].sentence == "the validation failed: 3 of 4 tests"
    assert found.attempts == {"repair": 2, "validate": 1} and len(jobs(decided)) == 1


PROBATION: list[tuple[str, NodeView, float, list[Incident], Phase]] = [
    ("not served", CLEAN, 59, [], Phase.PROBATION),
    ("served", CLEAN, 60, [], Phase.RESOLVED),
    ("served but unknown", silent(CLEAN), 600, [], Phase.PROBATION),
    ("served but the GPU is not seen", UNSEEN, 600, [], Phase.PROBATION),
    ("fault is back", FAULTY, 10, [], Phase.REPAIRING),
    ("flapping: longer", CLEAN, 119, [an_incident(Phase.RESOLVED, name="old", closed_at=ago(3600))], Phase.PROBATION),
    (
        "flapping: longer, served",
        CLEAN,
        120,
        [an_incident(Phase.RESOLVED, name="old", closed_at=ago(3600))],
        Phase.RESOLVED,
    ),
    (
        "two days ago is forgotten",
        CLEAN,
        60,
        [an_incident(Phase.RESOLVED, name="old", closed_at=ago(200_000))],
        Phase.RESOLVED,
    ),
]


@pytest.mark.parametrize(
    ("node", "seconds", "earlier", "phase"), [row[1:] for row in PROBATION], ids=[row[0] for row in PROBATION]
)
def test_probation(node: NodeView, seconds: float, earlier: list[Incident], phase: Phase) -> None:
    incident = an_incident(Phase.PROBATION, phase_since=ago(seconds), attempts={"repair": 1})
    (found,) = plan(a_view(node, incidents=[incident, *earlier]), a_policy(), NOW).incidents
    assert found.phase is phase


def closing(node: NodeView, incident: Incident, **changes: Any) -> tuple[ClusterView, Plan]:
    view = a_view(node, incidents=[incident], **changes)
    return view, plan(view, a_policy(), NOW)


def test_the_mark_comes_off_and_then_the_incident_closes_and_leaves_no_job() -> None:
    resolved = an_incident(Phase.RESOLVED, outcome="healed")
    view, decided = closing(CLEAN, resolved)
    (lift,) = [a for a in decided.actions if isinstance(a, LiftQuarantine)]
    assert not lift.uncordon and decided.incidents[0].open
    done = {lift.key: PastOutcome(key=lift.key, outcome=Done(), at=ago(1))}
    assert plan(replace(view, outcomes=done), a_policy(), NOW).incidents[0].open, "still seen: wait"
    view, decided = closing(a_node(), resolved, outcomes=done, jobs=(JobFacts(name="j", incident=resolved.name),))
    closed, delete = decided.actions
    assert isinstance(closed, CloseIncident) and isinstance(delete, DeleteJob)
    assert closed.incident.closed_at == NOW and closed.incident.outcome == "healed"
    assert decided.incidents == ()


def test_only_our_own_cordon_is_lifted() -> None:
    ours = an_incident(Phase.RESOLVED)
    assert ours.quarantine is not None
    cordoned = replace(ours, quarantine=replace(ours.quarantine, cordoned=True))
    (lift,) = [a for a in closing(CLEAN, cordoned)[1].actions if isinstance(a, LiftQuarantine)]
    assert lift.uncordon


def test_a_mark_that_a_sibling_needs_stays() -> None:
    sibling = an_incident(Phase.DRAINING, index=2)
    view = a_view(with_fault(FAULTY, 2), incidents=[an_incident(Phase.RESOLVED), sibling])
    decided = plan(view, a_policy(), NOW)
    assert not [a for a in decided.actions if isinstance(a, LiftQuarantine)]
    assert [a.incident.name for a in decided.actions if isinstance(a, CloseIncident)] == ["n7-gpu3-aaaa"]


def test_a_replaced_gpu_is_validated_and_a_missing_one_is_not_healed() -> None:
    others = tuple(gpu for gpu in report_of(CLEAN).gpus if gpu.index != 3)
    new = replace(report_of(CLEAN).gpus[3], uuid="GPU-new", serial="S-new", health=Health.HEALTHY)
    swapped = reporting(CLEAN, gpus=(*others, new), boot_id="boot-2")
    missing = reporting(CLEAN, gpus=others, seen_gpus=7, boot_id="boot-1")
    human = a_policy(repair=["ask-human"])
    asked = an_incident(Phase.REPAIRING)
    assert plan(a_view(swapped, incidents=[asked]), human, NOW).incidents[0].phase is Phase.VALIDATING
    assert plan(a_view(missing, incidents=[asked]), human, NOW).incidents[0].phase is Phase.REPAIRING
