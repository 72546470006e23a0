"""Repairing, Validating, Probation: what proves what, what fails, and when a human takes over."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from exporter.health import keys
from exporter.health.vocabulary import Health
from remediator.domain.actions import CloseIncident, DeleteJob, LiftQuarantine, Plan, RunJob, SaveIncident
from remediator.domain.jobs import job_name
from remediator.domain.model import (
    ClusterView,
    GpuTarget,
    Incident,
    JobFacts,
    NodeView,
    Phase,
    PodFacts,
    RepairRecord,
    ValidationRecord,
)
from remediator.domain.outcomes import Done, PastOutcome, Refused
from remediator.domain.planner import plan
from remediator.domain.policy import Policy
from tests.worlds import (
    BARE,
    NOW,
    a_job,
    a_node,
    a_pod,
    a_policy,
    a_view,
    ago,
    an_incident,
    placed,
    report_of,
    reporting,
    silent,
    tainted,
    uuid_of,
    with_fault,
)

CLEAN = tainted(a_node())
FAULTY = tainted(with_fault(a_node()))
REBOOTED = reporting(CLEAN, boot_id="boot-2")
REBOOT = [{"name": "reboot", "job": a_job("reboot"), "needs": "node"}]
ASKED = RepairRecord(step="reset", job="j", requested_at=ago(30), boot_id_before="boot-1")


def jobs(decided: Plan) -> list[RunJob]:
    return [action for action in decided.actions if isinstance(action, RunJob)]


def repairing(**changes: Any) -> Incident:
    return an_incident(Phase.REPAIRING, **changes)


def under_way(seconds: float = 30, attempt: int = 1, **changes: Any) -> Incident:
    """A repair that was asked for so long ago."""
    incident = repairing()
    record = replace(ASKED, job=job_name(incident, "repair", attempt), requested_at=ago(seconds))
    fields: dict[str, Any] = {"repair": record, "attempts": {"repair": attempt}, "deadline": ago(seconds - 600)}
    return replace(incident, **{**fields, **changes})


def the_job(incident: Incident, **changes: Any) -> JobFacts:
    record = incident.repair or incident.validation
    assert record is not None
    return JobFacts(name=record.job, incident=incident.name, step="repair", **changes)


def test_a_repair_is_recorded_with_its_boot_id_before_it_is_asked_for() -> None:
    decided = plan(a_view(FAULTY, incidents=[repairing()]), a_policy(), NOW)
    (incident,), (run,) = decided.incidents, jobs(decided)
    assert isinstance(decided.actions[0], SaveIncident)
    assert incident.repair == RepairRecord(step="reset", job=run.name, requested_at=NOW, boot_id_before="boot-1")
    assert incident.attempts == {"repair": 1}
    assert incident.deadline == NOW + timedelta(seconds=600)
    assert run.destructive


def test_the_job_is_bound_to_the_node_and_filled_in() -> None:
    (run,) = jobs(plan(a_view(FAULTY, incidents=[repairing()]), a_policy(), NOW))
    manifest = run.manifest
    pod = manifest["spec"]["template"]["spec"]
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Job", run.name)
    assert manifest["metadata"]["labels"][keys.INCIDENT_LABEL] == "n7-gpu3-aaaa"
    assert manifest["spec"]["template"]["metadata"]["labels"][keys.STEP_LABEL] == "repair"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-incident"
    assert (pod["nodeName"], pod["restartPolicy"], manifest["spec"]["backoffLimit"]) == ("n7", "Never", 0)
    assert pod["containers"][0]["command"] == ["reset", uuid_of("n7", 3)]
    assert "namespace" not in manifest["metadata"]
    assert len(run.name) <= 63


def test_a_template_keeps_its_own_words_but_never_deletes_itself() -> None:
    template = a_job()
    template["metadata"] = {"labels": {"team": "sre"}}
    template["spec"] |= {"backoffLimit": 3, "ttlSecondsAfterFinished": 5}
    policy = a_policy(repair=[{"job": template, "needs": "gpu"}])
    bare = replace(repairing(), uid="")
    (run,) = jobs(plan(a_view(FAULTY, incidents=[bare]), policy, NOW))
    assert run.manifest["spec"]["backoffLimit"] == 3
    assert "ttlSecondsAfterFinished" not in run.manifest["spec"]
    assert run.manifest["metadata"]["labels"]["team"] == "sre"
    assert "ownerReferences" not in run.manifest["metadata"]
    assert template["spec"]["ttlSecondsAfterFinished"] == 5, "the policy itself is left as it is"


IN_USE: list[tuple[str, list[tuple[PodFacts, int | None]], list[Any], str | None]] = [
    ("reset: GPU free", [(a_pod("sibling"), 4)], [], None),
    ("reset: a held pod is waited for", [(a_pod("x", **BARE), 3)], [], "pods-held"),
    ("reset: a pod of unknown place is waited for", [(a_pod("x"), None)], [], "pods-held"),
    ("reset: a DaemonSet pod is not", [(a_pod("x", is_daemonset=True), 3)], [], None),
    ("reboot: node free", [(a_pod("cpu", gpus=0), None)], REBOOT, None),
    ("reboot: siblings are waited for", [(a_pod("sibling"), 4)], REBOOT, "node-in-use"),
]


@pytest.mark.parametrize(("pods", "repair", "code"), [row[1:] for row in IN_USE], ids=[row[0] for row in IN_USE])
def test_an_automatic_repair_waits_until_nobody_is_hurt(
    pods: list[tuple[PodFacts, int | None]], repair: list[Any], code: str | None
) -> None:
    policy = a_policy(repair=repair) if repair else a_policy()
    decided = plan(a_view(placed(FAULTY, *pods), incidents=[repairing()]), policy, NOW)
    assert bool(jobs(decided)) is (code is None)
    assert decided.deferrals[0].code == (code or "repair-running")


def test_a_pod_that_the_kubelet_still_counts_is_waited_for() -> None:
    node = replace(placed(FAULTY, (a_pod("ghost"), 3)), pods=())
    decided = plan(a_view(node, incidents=[repairing()]), a_policy(), NOW)
    assert jobs(decided) == [] and decided.deferrals[0].code == "mapping-incomplete"


@pytest.mark.parametrize(
    "node",
    [replace(FAULTY, pods=None), reporting(FAULTY, mapping_known=False)],
    ids=["pods unknown", "mapping unknown"],
)
def test_no_reset_under_doubt(node: NodeView) -> None:
    assert jobs(plan(a_view(node, incidents=[repairing()]), a_policy(), NOW)) == []


def test_a_human_is_asked_and_need_not_wait_for_pods() -> None:
    node = placed(FAULTY, (a_pod("bare", **BARE), 3))
    decided = plan(a_view(node, incidents=[repairing()]), a_policy(repair=["ask-human"]), NOW)
    (incident,) = decided.incidents
    assert jobs(decided) == [] and incident.phase is Phase.REPAIRING and incident.deadline is None
    assert incident.repair is not None and incident.repair.job == ""
    assert decided.deferrals[0].code == "waiting-for-human"
    assert "advice for xid-79: reboot-node" in decided.deferrals[0].message


def test_one_repair_per_node() -> None:
    other = replace(under_way(), name="n7-gpu2-bbbb", gpu=GpuTarget(uuid=uuid_of("n7", 2), index=2))
    view = a_view(with_fault(FAULTY, 2), incidents=[other, repairing()], jobs=(the_job(other),))
    decided = plan(view, a_policy(), NOW)
    assert jobs(decided) == []
    assert sorted(waits.code for waits in decided.deferrals) == ["repair-running", "sibling-repair"]


HUMAN: dict[str, Any] = {"job": "", "step": "ask-human"}
ENDS: list[tuple[str, NodeView, Incident, dict[str, Any], Policy, Phase]] = [
    ("reset: Job done and fault gone", CLEAN, under_way(), {"succeeded": True}, a_policy(), Phase.VALIDATING),
    ("reset: Job done, fault stands", FAULTY, under_way(), {"succeeded": True}, a_policy(), Phase.REPAIRING),
    ("reset: a reboot does as well", REBOOTED, under_way(), {}, a_policy(), Phase.VALIDATING),
    (
        "reboot: done without a new boot id",
        CLEAN,
        under_way(),
        {"succeeded": True},
        a_policy(repair=REBOOT),
        Phase.REPAIRING,
    ),
    ("reboot: new boot id", REBOOTED, under_way(), {}, a_policy(repair=REBOOT), Phase.VALIDATING),
    (
        "reboot: new boot id though the Job died with it",
        REBOOTED,
        under_way(),
        {"failed": True},
        a_policy(repair=REBOOT),
        Phase.VALIDATING,
    ),
    (
        "silent exporter: no proof counts",
        silent(REBOOTED),
        under_way(),
        {"succeeded": True},
        a_policy(),
        Phase.REPAIRING,
    ),
    (
        "human: new boot id",
        REBOOTED,
        under_way(repair=replace(ASKED, **HUMAN)),
        {},
        a_policy(repair=["ask-human"]),
        Phase.VALIDATING,
    ),
    (
        "human: fault gone",
        CLEAN,
        under_way(repair=replace(ASKED, **HUMAN)),
        {},
        a_policy(repair=["ask-human"]),
        Phase.VALIDATING,
    ),
    (
        "human: still waiting",
        FAULTY,
        under_way(repair=replace(ASKED, **HUMAN), deadline=None),
        {},
        a_policy(repair=["ask-human"]),
        Phase.REPAIRING,
    ),
    ("fault gone before anything was asked", CLEAN, repairing(), {}, a_policy(), Phase.VALIDATING),
    (
        "last attempt failed",
        FAULTY,
        under_way(attempt=2),
        {"failed": True, "finished_at": ago(11)},
        a_policy(),
        Phase.ESCALATED,
    ),
    ("last attempt out of time", FAULTY, under_way(601, attempt=2), {}, a_policy(), Phase.ESCALATED),
]


@pytest.mark.parametrize(
    ("node", "incident", "job", "policy", "phase"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS]
)
def test_proof(node: NodeView, incident: Incident, job: dict[str, Any], policy: Policy, phase: Phase) -> None:
    view = a_view(node, incidents=[incident], jobs=(the_job(incident, **job),) if incident.repair else ())
    (found,) = plan(view, policy, NOW).incidents
    assert found.phase is phase


FAILS: list[tuple[str, float, dict[str, Any] | None, list[Any], bool]] = [
    ("running", 30, {}, [], False),
    ("failed and settled", 60, {"failed": True, "finished_at": ago(11), "message": "busy"}, [], True),
    ("failed this moment", 60, {"failed": True, "finished_at": ago(1)}, [], False),
    ("reboot Job failed, the node may be booting", 100, {"failed": True, "finished_at": ago(60)}, REBOOT, False),
    ("reboot Job failed, nothing came of it", 300, {"failed": True, "finished_at": ago(121)}, REBOOT, True),
    ("never appeared", 60, None, [], True),
    ("not visible yet", 20, None, [], False),
    ("out of time", 600, {}, [], True),
]


@pytest.mark.parametrize(
    ("seconds", "job", "repair", "fails"), [row[1:] for row in FAILS], ids=[row[0] for row in FAILS]
)
def test_failure_climbs_to_the_next_attempt(
    seconds: float, job: dict[str, Any] | None, repair: list[Any], fails: bool
) -> None:
    incident = under_way(seconds)
    view = a_view(FAULTY, incidents=[incident], jobs=() if job is None else (the_job(incident, **job),))
    (found,) = plan(view, a_policy(repair=repair) if repair else a_policy(), NOW).incidents
    assert found.phase is Phase.REPAIRING
    assert found.attempts == {"repair": 2 if fails else 1}


def test_a_refused_job_is_a_failed_attempt() -> None:
    incident = under_way(5)
    assert incident.repair is not None
    key = f"job/{incident.repair.job}"
    refused = {key: PastOutcome(key=key, outcome=Refused(reason="quota"), at=ago(1))}
    (found,) = plan(a_view(FAULTY, incidents=[incident], outcomes=refused), a_policy(), NOW).incidents
    assert found.attempts == {"repair": 2}
    assert "quota" in found.history[-1].sentence


def test_a_job_that_we_did_not_live_to_create_is_created_and_not_twice() -> None:
    incident = under_way(5)
    (again,) = jobs(plan(a_view(FAULTY, incidents=[incident]), a_policy(), NOW))
    assert incident.repair is not None and again.name == incident.repair.job
    done = {again.key: PastOutcome(key=again.key, outcome=Done(), at=ago(2))}
    assert jobs(plan(a_view(FAULTY, incidents=[incident], outcomes=done), a_policy(), NOW)) == []


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
        JobFacts(name="v", succeeded=True),
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
        JobFacts(name="v", succeeded=True),
        a_policy(),
        Phase.REPAIRING,
        "RunJob",
    ),
    (
        "passed but unknown",
        silent(CLEAN),
        validating(validation=TESTED),
        JobFacts(name="v", succeeded=True),
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
        JobFacts(name="v", succeeded=True),
        a_policy(),
        Phase.VALIDATING,
        "",
    ),
    (
        "a fault seen since the reboot fails it",
        with_fault(REBOOTED, code="gpu-lost", boot_id="boot-2"),
        validating(validation=TESTED),
        JobFacts(name="v", succeeded=True),
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
        JobFacts(name="v", succeeded=True),
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
    assert plan(a_view(swapped, incidents=[repairing()]), human, NOW).incidents[0].phase is Phase.VALIDATING
    assert plan(a_view(missing, incidents=[repairing()]), human, NOW).incidents[0].phase is Phase.REPAIRING
