"""An incident as GPUIncident object (plain JSON types); the way back is incident_reading.py.

Laws:
1. Encoding is bounded as the CRD is, and deterministic, so that "compare before writing" is a comparison of dicts.
2. Times keep their microseconds: what was written is what is read, or waiting would look like a change.
"""

from datetime import UTC, datetime
from typing import Any

from exporter.health import keys
from remediator.domain.model import (
    Deferral,
    HistoryEntry,
    Incident,
    PodRecord,
    QuarantineRecord,
    RepairRecord,
    ValidationRecord,
)
from remediator.domain.states import bounded

MAX_SENTENCE = 512
MAX_DETAIL = 256
MAX_LIST = {"findings": 32, "pods": 256, "attempts": 16}

STATUS_FIELDS = (
    *("phase", "phaseSince", "reason", "findings", "quarantine", "repair", "validation", "attempts", "deadline"),
    *("deferral", "pods", "history", "outcome", "closedAt"),
)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, without losing fractions."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def to_object(incident: Incident) -> dict[str, Any]:
    """The whole object, for creation; the API server ignores its status there, see `to_status`."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.GPU_INCIDENT_KIND,
        "metadata": {"name": incident.name, "labels": {keys.NODE_LABEL: incident.node[:63].rstrip("-.")}},
        "spec": to_spec(incident),
        "status": to_status(incident),
    }


def to_spec(incident: Incident) -> dict[str, Any]:
    """The immutable identity."""
    spec: dict[str, Any] = {
        "nodeName": incident.node,
        "nodeUID": incident.node_uid,
        "bootID": incident.boot_id,
        "scope": incident.scope.value,
        "fault": incident.fault,
        "playbook": incident.playbook,
        "openedAt": timestamp(incident.opened_at),
    }
    if incident.gpu is not None:
        gpu = incident.gpu
        spec["gpu"] = _present(uuid=gpu.uuid, index=gpu.index, serial=gpu.serial)
    return spec


def to_status(incident: Incident) -> dict[str, Any]:
    """The status without absent fields, for PUT and for comparison."""
    return _present(
        phase=incident.phase.value,
        phaseSince=timestamp(incident.phase_since),
        reason=incident.reason[:MAX_SENTENCE],
        findings=[code[:64] for code in incident.findings[: MAX_LIST["findings"]]],
        quarantine=_quarantine(incident.quarantine),
        repair=_repair(incident.repair),
        validation=_validation(incident.validation),
        attempts=dict(list(incident.attempts.items())[: MAX_LIST["attempts"]]),
        deadline=_time(incident.deadline),
        deferral=_deferral(incident.deferral),
        pods=[_pod(pod) for pod in incident.pods[: MAX_LIST["pods"]]],
        history=[_entry(entry) for entry in bounded(incident.history)],
        outcome=incident.outcome or None,
        closedAt=_time(incident.closed_at),
    )


def to_status_patch(incident: Incident) -> dict[str, Any]:
    """The status for a merge patch: absent fields as null, or the server would keep the old ones."""
    return {**dict.fromkeys(STATUS_FIELDS), **to_status(incident)}


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else timestamp(moment)


def _quarantine(record: QuarantineRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "method": record.method,
        "appliedAt": timestamp(record.applied_at),
        "verified": record.verified,
        "priorCordon": record.prior_cordon,
        "priorTaint": record.prior_taint,
        "cordoned": record.cordoned,
        "bootID": record.boot_id,
        "detail": record.detail[:MAX_DETAIL],
    }


def _repair(record: RepairRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "step": record.step,
        "job": record.job,
        "requestedAt": timestamp(record.requested_at),
        "bootIDBefore": record.boot_id_before,
        "outcome": record.outcome[:MAX_DETAIL],
    }


def _validation(record: ValidationRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "job": record.job,
        "requestedAt": timestamp(record.requested_at),
        "outcome": record.outcome[:MAX_DETAIL],
    }


def _deferral(waits: Deferral | None) -> dict[str, Any] | None:
    if waits is None:
        return None
    return {
        "code": waits.code,
        "message": waits.message[:MAX_SENTENCE],
        "since": timestamp(waits.since),
        "retryAt": timestamp(waits.retry_at),
    }


def _pod(pod: PodRecord) -> dict[str, Any]:
    return _present(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        owner=pod.owner[:320],
        ownerUID=pod.owner_uid,
        fate=pod.fate.value,
        reason=pod.reason[:MAX_DETAIL],
        evictedAt=_time(pod.evicted_at),
        replacement=pod.replacement,
        replacementUID=pod.replacement_uid,
        replacementNode=pod.replacement_node,
        replacedAt=_time(pod.replaced_at),
    )


def _entry(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "time": timestamp(entry.time),
        "from": entry.source,
        "to": entry.to,
        "sentence": entry.sentence[:MAX_SENTENCE],
    }
