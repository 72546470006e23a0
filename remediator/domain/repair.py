"""Repairing: one step of the ladder at a time, asked for once, believed only with proof.

Laws:
1. A repair is recorded with the boot id before it is asked for.
2. Proof of a reboot is another boot id in a fresh report; proof of a reset is a succeeded Job and no fault left.
3. The GPU (or the node) must be free of running GPU pods before an automatic repair; a human decides that alone.
4. One repair per node at a time; a reboot repairs the siblings too, as their findings clear.
"""

from dataclasses import replace

from remediator.domain.actions import Action, RunJob
from remediator.domain.case import SETTLE_SECONDS, Case, Step, later, names
from remediator.domain.deferrals import Code, Wait
from remediator.domain.drain import blocks_repair, hold_reason, noted
from remediator.domain.guards import mapping_unknown
from remediator.domain.jobs import REPAIR, find, job_name, manifest
from remediator.domain.model import Incident, Phase, RepairRecord
from remediator.domain.occupancy import live_pods, on_device, unmapped, with_gpus
from remediator.domain.outcomes import Refused
from remediator.domain.policy import AskHuman, JobRepair
from remediator.domain.states import Signal

APPEAR_SECONDS = 60.0
"""A recorded Job that is not there is asked for again so long (we died in between); later it counts as failed,
because it may have run and been deleted, and a second reboot must never be an accident."""
PROOF_GRACE_SECONDS = 120.0
"""A reboot kills its own Job; the new boot id arrives when the node is back and its exporter has written."""


def signal(case: Case) -> tuple[Signal, str] | None:
    """CLEARED, REPAIRED, or REPAIR_FAILED / EXHAUSTED for the step under way."""
    incident, record = case.incident, case.incident.repair
    if record is None:
        return cleared(case)
    # For a reset a new boot counts as well: a reboot resets every GPU.
    if case.report and case.report.boot_id not in ("", record.boot_id_before):
        return Signal.REPAIRED, f"{incident.node} has rebooted"
    if not record.job:
        return cleared(case)
    job = find(case, record.job)
    if job and job.succeeded and not _needs_boot(case) and not case.faults:
        return Signal.REPAIRED, f"{record.step} done, the fault is gone"
    failure = _failure(case, record)
    return failed(case, Signal.REPAIR_FAILED, failure) if failure else None


def cleared(case: Case) -> tuple[Signal, str] | None:
    """CLEARED: the fault went away without us (somebody rebooted, a sibling's repair). Believed only while nothing
    has failed yet: after a failed validation a clean report alone proves nothing."""
    if case.faults or case.report is None or case.attempts("validate") > 0 or not enumerated(case):
        return None
    return Signal.CLEARED, f"the fault no longer stands on {case.where}"


def failed(case: Case, signal: Signal, why: str) -> tuple[Signal, str]:
    """`signal`, or EXHAUSTED when the repairs of the playbook are used up."""
    cap = case.playbook.attempts
    if case.attempts(REPAIR) >= cap:
        return Signal.EXHAUSTED, f"{why}; {case.attempts(REPAIR)} of {cap} repairs are used up: a human is needed"
    return signal, why


def act(case: Case) -> Step:
    """Asks for the next repair, once it may; or waits for the one under way."""
    record = case.incident.repair
    if record is None:
        return _begin(case)
    if not record.job:
        return Step(incident=case.incident, wait=_waiting_for_human(case))
    wait = Wait(code=Code.REPAIR_RUNNING, message=f"{record.step} runs as Job {record.job}")
    step = case.playbook.repair_step(case.attempts(REPAIR))
    missing = find(case, record.job) is None and not case.just_done(f"job/{record.job}")
    if missing and isinstance(step, JobRepair):
        return Step(incident=case.incident, actions=(_run(case, step, record.job),), wait=wait)
    return Step(incident=case.incident, wait=wait)


def _begin(case: Case) -> Step:
    attempt = case.attempts(REPAIR) + 1
    step = case.playbook.repair_step(attempt)
    busy = _sibling(case) or (_in_use(case, step) if isinstance(step, JobRepair) else None)
    if busy is not None:
        return Step(incident=noted(case), wait=busy)
    name = job_name(case.incident, REPAIR, attempt) if isinstance(step, JobRepair) else ""
    boot = str(case.report.boot_id) if case.report else case.incident.boot_id
    record = RepairRecord(step=step.name, job=name, requested_at=case.now, boot_id_before=boot)
    asked = replace(case.incident, repair=record, attempts={**case.incident.attempts, REPAIR: attempt})
    if isinstance(step, AskHuman):
        return Step(incident=asked, wait=_waiting_for_human(case.at(asked)))
    asked = replace(asked, deadline=later(case.now, step.timeout_seconds))
    actions: tuple[Action, ...] = (_run(case, step, name),)
    return Step(
        incident=asked, actions=actions, wait=Wait(code=Code.REPAIR_RUNNING, message=f"{step.name} runs as Job {name}")
    )


def _run(case: Case, step: JobRepair, name: str) -> RunJob:
    body = manifest(case, REPAIR, name, step.job)
    return RunJob(incident=case.incident.name, step=REPAIR, node=case.incident.node, name=name, manifest=body)


def _waiting_for_human(case: Case) -> Wait:
    advice = case.faults[0].finding.advice.value if case.faults else "unknown"
    message = (
        f"repair {case.where} by hand (advice for {case.incident.fault}: {advice}); "
        f"a reboot of {case.incident.node} or the end of the fault is noticed by itself"
    )
    return Wait(code=Code.WAITING_FOR_HUMAN, message=message)


def _sibling(case: Case) -> Wait | None:
    """Another incident of this node is being repaired."""
    for other in case.siblings:
        if other.phase is Phase.REPAIRING and other.repair is not None and other.repair.job:
            return Wait(code=Code.SIBLING_REPAIR, message=f"{other.name} is repairing the node")
    return None


def _in_use(case: Case, step: JobRepair) -> Wait | None:
    """Running pods that an automatic repair would kill."""
    pods = live_pods(case)
    if pods is None or case.node is None:
        return Wait(code=Code.PODS_UNKNOWN, message="the pods of the node are not listed yet")
    if step.needs == "node":
        users = [pod for pod in with_gpus(case, pods) if blocks_repair(pod)]
        code = Code.NODE_IN_USE
    else:
        unknown = mapping_unknown(case.node.exporter)
        if unknown:
            return unknown
        users = [pod for pod in (*on_device(case, pods), *unmapped(case, pods)) if blocks_repair(pod)]
        code = Code.PODS_HELD
    if not users:
        return _still_mapped(case, step)
    held = {reason for pod in users if (reason := hold_reason(case, pod))}
    why = f" ({'; '.join(sorted(held)[:3])})" if held else ""
    return Wait(code=code, message=f"{step.name} waits until these pods are gone: {names(users)}{why}")


def _still_mapped(case: Case, step: JobRepair) -> Wait | None:
    """The API object is gone but the kubelet still counts the device as taken."""
    if case.device is None or step.needs == "node":
        return None
    api = {(pod.namespace, pod.name) for pod in (case.node.pods if case.node and case.node.pods else ())}
    ghosts = [pod for pod in case.device.pods if (pod.namespace, pod.name) not in api]
    if not ghosts:
        return None
    message = f"the kubelet still counts {ghosts[0].namespace}/{ghosts[0].name} on {case.where}"
    return Wait(code=Code.MAPPING_INCOMPLETE, message=message)


def _needs_boot(case: Case) -> bool:
    step = case.playbook.repair_step(case.attempts(REPAIR))
    return isinstance(step, JobRepair) and step.proven_by == "boot-id"


def _failure(case: Case, record: RepairRecord) -> str | None:
    refused = case.past(f"job/{record.job}")
    if refused is not None and isinstance(refused.outcome, Refused) and refused.at >= record.requested_at:
        return f"the API server refused the Job of {record.step}: {refused.outcome.reason}"
    if case.incident.deadline and case.now >= case.incident.deadline:
        return f"{record.step} showed no proof in time"
    job = find(case, record.job)
    if job is None:
        gone = case.since(record.requested_at) >= APPEAR_SECONDS
        never = case.last_word(f"job/{record.job}")
        why = f"the Job of {record.step} could not be made{never}" if never else f"the Job of {record.step} is gone"
        return why if gone else None
    if not job.failed:
        return None
    grace = PROOF_GRACE_SECONDS if _needs_boot(case) else SETTLE_SECONDS
    if case.since(job.finished_at or record.requested_at) < grace:
        return None
    return f"{record.step} failed" + (f": {job.message}" if job.message else "")


def enumerated(case: Case) -> bool:
    """The GPU is in the report, or its slot is filled again (replaced); a GPU that is simply missing is not healed."""
    if case.device is not None or case.incident.gpu is None or case.report is None:
        return True
    return case.report.seen_gpus >= case.report.expected_gpus > 0 and case.report.boot_id != case.incident.boot_id


def fresh_round(incident: Incident) -> Incident:
    """The incident on its way to a new round: what the last round asked for is history."""
    return replace(incident, repair=None, validation=None, deadline=None)
