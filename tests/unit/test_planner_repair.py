"""Repairing: what proves what, what fails, and when a human takes over."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from exporter.health import keys
from remediator.domain.actions import Plan, RunJob, SaveIncident
from remediator.domain.jobs import job_name
from remediator.domain.model import (
    GpuTarget,
    Incident,
    JobFacts,
    NodeView,
    Phase,
    PodFacts,
    RepairRecord,
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
PASSED = JobFacts(name="v", succeeded=True)
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


def test_a_deadline_that_passed_under_a_brake_is_no_reason_to_spin() -> None:
    incident = an_incident(Phase.REPAIRING, repair=ASKED, attempts={"repair": 1}, deadline=ago(5))
    decided = plan(a_view(silent(tainted(with_fault(a_node()))), incidents=[incident]), a_policy(), NOW)
    assert [waits.code for waits in decided.deferrals] == ["unknown-health"]
    assert decided.next_look is not None and decided.next_look > NOW
