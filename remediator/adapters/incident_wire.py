"""GPUIncident objects to and from the domain's Incident.

Laws:
1. Writing names every field of the status, absent ones as null: a merge patch would otherwise keep the old value.
2. Reading never raises on what another version wrote: a word that is not known makes the object unreadable as a whole
   (`IncidentUnreadable`), because acting on a half-understood incident would be worse than waiting.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from exporter.health import keys
from exporter.health.wire import parse_timestamp, timestamp
from remediator.adapters import wire
from remediator.domain.model import (
    Deferral,
    Fate,
    GpuTarget,
    HistoryEntry,
    Incident,
    IncidentScope,
    Phase,
    PodRecord,
    QuarantineRecord,
    RepairRecord,
    ValidationRecord,
)


class IncidentUnreadable(ValueError):
    """A GPUIncident that this version cannot understand."""


def manifest_of(incident: Incident) -> dict[str, Any]:
    """The object to create; the API server drops a status sent with it, so that is written apart."""
    spec: dict[str, Any] = {
        "nodeName": incident.node,
        "nodeUID": incident.node_uid,
        "scope": incident.scope.value,
        "fault": incident.fault,
        "playbook": incident.playbook,
        "bootID": incident.boot_id,
        "openedAt": timestamp(incident.opened_at),
    }
    if incident.gpu is not None:
        spec["gpu"] = {"uuid": incident.gpu.uuid, "index": incident.gpu.index}
        if incident.gpu.serial is not None:
            spec["gpu"]["serial"] = incident.gpu.serial
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.GPU_INCIDENT_KIND,
        "metadata": {"name": incident.name},
        "spec": spec,
    }


def status_of(incident: Incident) -> dict[str, Any]:
    """The whole status, absent parts as null."""
    return {
        "phase": incident.phase.value,
        "phaseSince": timestamp(incident.phase_since),
        "reason": incident.reason[:512],
        "findings": list(incident.findings[:32]),
        "quarantine": _quarantine(incident.quarantine),
        "repair": _repair(incident.repair),
        "validation": _validation(incident.validation),
        "attempts": dict(incident.attempts),
        "deadline": _time(incident.deadline),
        "deferral": _deferral(incident.deferral),
        "pods": [_pod(record) for record in incident.pods],
        "history": [_history(entry) for entry in incident.history],
        "outcome": incident.outcome or None,
        "closedAt": _time(incident.closed_at),
    }


def incident_of(item: wire.StatusCarrier) -> Incident:
    """The incident stored in `item`; raises IncidentUnreadable. No status yet = just opened."""
    try:
        return _incident(item.metadata, wire.plain(item.spec), wire.plain(item.status))
    except (KeyError, TypeError, ValueError) as error:
        raise IncidentUnreadable(f"GPUIncident {item.metadata.name}: {type(error).__name__}: {error}") from error


def _incident(meta: wire.Metadata, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Incident:
    opened = parse_timestamp(spec["openedAt"])
    gpu = spec.get("gpu")
    node = str(spec["nodeName"])
    target = GpuTarget(uuid=gpu["uuid"], index=int(gpu["index"]), serial=gpu.get("serial")) if gpu else None
    return Incident(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        annotations=meta.annotations,
        node=node,
        node_uid=str(spec["nodeUID"]),
        boot_id=str(spec["bootID"]),
        scope=IncidentScope(spec["scope"]),
        fault=str(spec["fault"]),
        playbook=str(spec.get("playbook", "")),
        opened_at=opened,
        gpu=target,
        phase=Phase(status.get("phase", Phase.SUSPECTED)),
        phase_since=_moment(status.get("phaseSince")) or opened,
        reason=status.get("reason", ""),
        findings=tuple(status.get("findings") or ()),
        quarantine=_quarantine_from(status.get("quarantine")),
        repair=_repair_from(status.get("repair")),
        validation=_validation_from(status.get("validation")),
        attempts={str(step): int(count) for step, count in (status.get("attempts") or {}).items()},
        deadline=_moment(status.get("deadline")),
        deferral=_deferral_from(status.get("deferral"), node, target),
        pods=tuple(_pod_from(record) for record in status.get("pods") or ()),
        history=tuple(_history_from(entry) for entry in status.get("history") or ()),
        outcome=status.get("outcome") or "",
        closed_at=_moment(status.get("closedAt")),
    )


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else timestamp(moment)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_timestamp(text)


def _quarantine(record: QuarantineRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "method": record.method,
        "appliedAt": timestamp(record.applied_at),
        "verified": record.verified,
        "priorCordon": record.prior_cordon,
        "cordoned": record.cordoned,
        "bootID": record.boot_id,
        "detail": record.detail[:256],
    }


def _quarantine_from(raw: Mapping[str, Any] | None) -> QuarantineRecord | None:
    if not raw:
        return None
    return QuarantineRecord(
        method=raw["method"],
        applied_at=parse_timestamp(raw["appliedAt"]),
        verified=bool(raw.get("verified", False)),
        prior_cordon=bool(raw.get("priorCordon", False)),
        cordoned=bool(raw.get("cordoned", False)),
        boot_id=raw.get("bootID", ""),
        detail=raw.get("detail", ""),
    )


def _repair(record: RepairRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "step": record.step,
        "job": record.job,
        "requestedAt": timestamp(record.requested_at),
        "bootIDBefore": record.boot_id_before,
        "outcome": record.outcome[:256],
    }


def _repair_from(raw: Mapping[str, Any] | None) -> RepairRecord | None:
    if not raw:
        return None
    return RepairRecord(
        step=raw["step"],
        job=raw.get("job", ""),
        requested_at=parse_timestamp(raw["requestedAt"]),
        boot_id_before=raw.get("bootIDBefore", ""),
        outcome=raw.get("outcome", ""),
    )


def _validation(record: ValidationRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {"job": record.job, "requestedAt": timestamp(record.requested_at), "outcome": record.outcome[:256]}


def _validation_from(raw: Mapping[str, Any] | None) -> ValidationRecord | None:
    if not raw:
        return None
    return ValidationRecord(
        job=raw.get("job", ""), requested_at=parse_timestamp(raw["requestedAt"]), outcome=raw.get("outcome", "")
    )


def _deferral(wait: Deferral | None) -> dict[str, Any] | None:
    if wait is None:
        return None
    return {
        "code": str(wait.code),
        "message": wait.message[:512],
        "since": timestamp(wait.since),
        "retryAt": timestamp(wait.retry_at),
    }


def _deferral_from(raw: Mapping[str, Any] | None, node: str, gpu: GpuTarget | None) -> Deferral | None:
    if not raw:
        return None
    return Deferral(
        code=raw["code"],
        message=raw.get("message", ""),
        since=parse_timestamp(raw["since"]),
        retry_at=parse_timestamp(raw["retryAt"]),
        node=node,
        gpu=gpu.uuid if gpu else None,
    )


def _pod(record: PodRecord) -> dict[str, Any]:
    out: dict[str, Any] = {
        "namespace": record.namespace,
        "name": record.name,
        "uid": record.uid,
        "owner": record.owner,
        "ownerUID": record.owner_uid,
        "fate": record.fate.value,
        "reason": record.reason[:256],
    }
    optional = {
        "evictedAt": _time(record.evicted_at),
        "replacement": record.replacement,
        "replacementUID": record.replacement_uid,
        "replacementNode": record.replacement_node,
        "replacedAt": _time(record.replaced_at),
    }
    # Items of an atomic list are replaced whole, so what is absent can simply be left out.
    return out | {key: value for key, value in optional.items() if value is not None}


def _pod_from(raw: Mapping[str, Any]) -> PodRecord:
    return PodRecord(
        namespace=raw["namespace"],
        name=raw["name"],
        uid=raw["uid"],
        fate=Fate(raw["fate"]),
        owner=raw.get("owner", ""),
        owner_uid=raw.get("ownerUID", ""),
        reason=raw.get("reason", ""),
        evicted_at=_moment(raw.get("evictedAt")),
        replacement=raw.get("replacement"),
        replacement_uid=raw.get("replacementUID"),
        replacement_node=raw.get("replacementNode"),
        replaced_at=_moment(raw.get("replacedAt")),
    )


def _history(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "time": timestamp(entry.time),
        "from": entry.source,
        "to": entry.to,
        "sentence": entry.sentence[:512],
    }


def _history_from(raw: Mapping[str, Any]) -> HistoryEntry:
    return HistoryEntry(
        time=parse_timestamp(raw["time"]), source=raw.get("from", ""), to=raw["to"], sentence=raw["sentence"]
    )
