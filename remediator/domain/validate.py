"""Validating and Probation: a repaired GPU proves itself before it gets work.

Laws:
1. Unknown is no proof: while a guard says that health is unknown nothing is concluded, neither good nor bad.
2. A fault seen since the last boot fails the validation at once, whatever the Job says; one carried over from before
   the reboot holds it open.
3. Probation grows with the number of recent incidents on the same target, so that a flapping GPU stays out.
"""

from dataclasses import replace
from datetime import timedelta

from remediator.domain.actions import RunJob
from remediator.domain.case import Case, Step, later
from remediator.domain.deferrals import Code, Wait
from remediator.domain.faults import Fault
from remediator.domain.jobs import VALIDATE, find, job_name, manifest
from remediator.domain.model import Phase, ValidationRecord
from remediator.domain.outcomes import Refused
from remediator.domain.repair import APPEAR_SECONDS, enumerated, failed
from remediator.domain.states import Signal

FLAP_MEMORY = timedelta(hours=24)
MAX_PROBATION_FACTOR = 8


def signal(case: Case) -> tuple[Signal, str] | None:
    """VALIDATED, VALIDATION_FAILED or EXHAUSTED."""
    seen = [fault for fault in case.faults if since_boot(case, fault)]
    if seen:
        return failed(case, Signal.VALIDATION_FAILED, f"{seen[0].code} still stands on {case.where}")
    record = case.incident.validation
    if case.incident.deadline is not None and case.now >= case.incident.deadline:
        return failed(case, Signal.VALIDATION_FAILED, "the validation did not finish in time")
    if not enumerated(case) or case.faults:
        return None
    if record is None:
        # Without a Job the clean report of a living exporter is the test, and it was just read.
        return None if case.playbook.validate_.job else (Signal.VALIDATED, f"{case.where} reports no fault")
    if not record.job:
        return Signal.VALIDATED, f"{case.where} reports no fault"
    job = find(case, record.job)
    if job and job.succeeded:
        return Signal.VALIDATED, f"validation passed on {case.where}"
    failure = _failure(case, record)
    return failed(case, Signal.VALIDATION_FAILED, failure) if failure else None


def since_boot(case: Case, fault: Fault) -> bool:
    """Seen since the node's last boot. A finding carried over from the boot before waits for good readings of its GPU:
    that proves neither that the repair failed nor that it worked, and a second reboot must never be an accident."""
    boot = fault.finding.boot_id
    return boot is None or case.report is None or boot == case.report.boot_id


def act(case: Case) -> Step:
    """Asks for the validation Job, or waits for it."""
    template = case.playbook.validate_.job
    record = case.incident.validation
    deadline = later(case.now, case.playbook.validate_.timeout_seconds)
    if template is None:
        waiting = replace(case.incident, deadline=case.incident.deadline or deadline)
        message = f"waits until {case.where} is seen again, without a fault"
        return Step(incident=waiting, wait=Wait(code=Code.VALIDATION_RUNNING, message=message))
    if record is not None:
        wait = Wait(code=Code.VALIDATION_RUNNING, message=f"validation runs as Job {record.job}")
        missing = find(case, record.job) is None and not case.just_done(f"job/{record.job}")
        return Step(incident=case.incident, actions=(_run(case, record.job),) if missing else (), wait=wait)
    attempt = case.attempts(VALIDATE) + 1
    name = job_name(case.incident, VALIDATE, attempt)
    asked = replace(
        case.incident,
        validation=ValidationRecord(job=name, requested_at=case.now),
        attempts={**case.incident.attempts, VALIDATE: attempt},
        deadline=deadline,
    )
    wait = Wait(code=Code.VALIDATION_RUNNING, message=f"validation runs as Job {name}")
    return Step(incident=asked, actions=(_run(case, name),), wait=wait)


def _run(case: Case, name: str) -> RunJob:
    body = manifest(case, VALIDATE, name, case.playbook.validate_.job or {})
    return RunJob(incident=case.incident.name, step=VALIDATE, node=case.incident.node, name=name, manifest=body)


def _failure(case: Case, record: ValidationRecord) -> str | None:
    refused = case.past(f"job/{record.job}")
    if refused is not None and isinstance(refused.outcome, Refused) and refused.at >= record.requested_at:
        return f"the API server refused the validation Job: {refused.outcome.reason}"
    job = find(case, record.job)
    if job is None:
        gone = case.since(record.requested_at) >= APPEAR_SECONDS
        never = case.last_word(f"job/{record.job}")
        why = f"the validation Job could not be made{never}" if never else "the validation Job is gone"
        return why if gone else None
    if job.failed:
        return "the validation failed" + (f": {job.message}" if job.message else "")
    return None


def probation_signal(case: Case) -> tuple[Signal, str] | None:
    """PROBATION_SERVED, FAULT_RETURNED or EXHAUSTED."""
    if case.faults:
        return failed(case, Signal.FAULT_RETURNED, f"{case.faults[0].code} is back on {case.where}")
    served = enumerated(case) and case.since(case.incident.phase_since) >= probation_seconds(case)
    return (Signal.PROBATION_SERVED, f"{case.where} was good for its probation") if served else None


def probation_act(case: Case) -> Step:
    end = later(case.incident.phase_since, probation_seconds(case))
    wait = Wait(code=Code.PROBATION, message="validated; watched before it gets work again", retry_at=end)
    shown = case.incident.deadline
    # Stored times may have lost their fractions; a second is no reason to write.
    close = shown is not None and abs((shown - end).total_seconds()) < 1
    return Step(incident=replace(case.incident, deadline=shown if close else end), wait=wait)


def probation_seconds(case: Case) -> float:
    """The playbook's probation, doubled for each incident that was resolved on this target within a day."""
    recent = [
        other
        for other in case.view.incidents
        if other.phase is Phase.RESOLVED
        and other.target == case.incident.target
        and other.name != case.incident.name
        and other.closed_at is not None
        and case.now - other.closed_at < FLAP_MEMORY
    ]
    return case.playbook.probation_seconds * min(1 << len(recent), MAX_PROBATION_FACTOR)
