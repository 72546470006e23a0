"""A GPUIncident object (plain JSON types) as incident; the way there is incident_object.py.

Laws:
1. Reading never raises on what an older or newer version wrote: unknown words are read as the most careful value,
   broken list entries are skipped; only a missing identity (spec) raises `IncidentError`.
2. An object without status (we died between creating it and writing its status) is a Suspected incident whose
   history begins at its opening.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from exporter.health.wire import parse_timestamp
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

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")


class IncidentError(ValueError):
    """A GPUIncident without the identity that every version writes."""


def from_object(raw: Mapping[str, Any]) -> Incident:
    """The incident in a GPUIncident object; raises `IncidentError` when its identity cannot be read."""
    metadata = _mapping(raw.get("metadata"))
    name = str(metadata.get("name", "?"))
    try:
        spec = _mapping(raw["spec"])
        opened_at = parse_timestamp(spec["openedAt"])
        identity: dict[str, Any] = {
            "node": str(spec["nodeName"]),
            "node_uid": str(spec["nodeUID"]),
            "fault": str(spec["fault"]),
            "scope": IncidentScope(str(spec["scope"])),
        }
    except KeyError as missing:
        raise IncidentError(f"GPUIncident {name}: spec lacks {missing.args[0]}") from missing
    except (TypeError, ValueError) as wrong:
        raise IncidentError(f"GPUIncident {name}: spec cannot be read: {wrong}") from wrong
    status = _mapping(raw.get("status"))
    place = (identity["node"], str(_mapping(spec.get("gpu")).get("uuid", "")) or None)
    return Incident(
        **identity,
        name=name,
        boot_id=str(spec.get("bootID", "")),
        playbook=str(spec.get("playbook", "")),
        opened_at=opened_at,
        gpu=_maybe(_gpu_from, spec.get("gpu")),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        annotations={str(k): str(v) for k, v in _mapping(metadata.get("annotations")).items()},
        **_status_from(status or _at_opening(spec), opened_at, place),
    )


def _at_opening(spec: Mapping[str, Any]) -> dict[str, Any]:
    entry = {"time": spec["openedAt"], "from": "", "to": Phase.SUSPECTED.value, "sentence": f"{spec['fault']} seen"}
    return {"phase": Phase.SUSPECTED.value, "history": [entry]}


def _status_from(status: Mapping[str, Any], opened_at: datetime, place: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "phase": _phase(status),
        "phase_since": _maybe(parse_timestamp, status.get("phaseSince")) or opened_at,
        "reason": str(status.get("reason", "")),
        "findings": tuple(str(code) for code in status.get("findings") or ()),
        "quarantine": _maybe(_quarantine_from, status.get("quarantine")),
        "repair": _maybe(_repair_from, status.get("repair")),
        "validation": _maybe(_validation_from, status.get("validation")),
        "attempts": _counts(status.get("attempts")),
        "deadline": _maybe(parse_timestamp, status.get("deadline")),
        "deferral": _maybe(lambda found: _deferral_from(found, place), status.get("deferral")),
        "pods": _readable(_pod_from, status.get("pods")),
        "history": _readable(_entry_from, status.get("history")),
        "outcome": str(status.get("outcome", "")),
        "closed_at": _maybe(parse_timestamp, status.get("closedAt")),
    }


def _phase(status: Mapping[str, Any]) -> Phase:
    """A phase that we do not know was written by a newer version: a human holds it, nothing is done."""
    return _word(Phase, status.get("phase", Phase.SUSPECTED), Phase.ESCALATED)


def _word(kind: type[E], text: object, unknown: E) -> E:
    try:
        return kind(str(text))
    except ValueError:
        return unknown


def _mapping(raw: object) -> Mapping[str, Any]:
    return raw if isinstance(raw, Mapping) else {}


def _maybe(read: Callable[[Any], T], raw: object) -> T | None:
    """`read(raw)`, or None when it is absent or cannot be read."""
    if raw is None:
        return None
    try:
        return read(raw)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _readable(read: Callable[[Any], T], raw: object) -> tuple[T, ...]:
    entries = raw if isinstance(raw, Iterable) and not isinstance(raw, str | Mapping) else ()
    found = (_maybe(read, entry) for entry in entries)
    return tuple(entry for entry in found if entry is not None)


def _counts(raw: object) -> dict[str, int]:
    return {str(step): count for step, count in _mapping(raw).items() if isinstance(count, int)}


def _gpu_from(raw: Mapping[str, Any]) -> GpuTarget:
    return GpuTarget(uuid=str(raw["uuid"]), index=int(raw.get("index", 0)), serial=raw.get("serial"))


def _quarantine_from(raw: Mapping[str, Any]) -> QuarantineRecord:
    return QuarantineRecord(
        method=str(raw["method"]),
        applied_at=parse_timestamp(raw["appliedAt"]),
        verified=bool(raw.get("verified", False)),
        prior_cordon=bool(raw.get("priorCordon", False)),
        prior_taint=bool(raw.get("priorTaint", False)),
        cordoned=bool(raw.get("cordoned", False)),
        boot_id=str(raw.get("bootID", "")),
        detail=str(raw.get("detail", "")),
    )


def _repair_from(raw: Mapping[str, Any]) -> RepairRecord:
    return RepairRecord(
        step=str(raw["step"]),
        job=str(raw.get("job", "")),
        requested_at=parse_timestamp(raw["requestedAt"]),
        boot_id_before=str(raw.get("bootIDBefore", "")),
        outcome=str(raw.get("outcome", "")),
    )


def _validation_from(raw: Mapping[str, Any]) -> ValidationRecord:
    return ValidationRecord(
        job=str(raw.get("job", "")),
        requested_at=parse_timestamp(raw["requestedAt"]),
        outcome=str(raw.get("outcome", "")),
    )


def _deferral_from(raw: Mapping[str, Any], place: tuple[str, str | None]) -> Deferral:
    return Deferral(
        code=str(raw["code"]),
        message=str(raw.get("message", "")),
        since=parse_timestamp(raw["since"]),
        retry_at=parse_timestamp(raw["retryAt"]),
        node=place[0],
        gpu=place[1],
    )


def _pod_from(raw: Mapping[str, Any]) -> PodRecord:
    return PodRecord(
        namespace=str(raw["namespace"]),
        name=str(raw["name"]),
        uid=str(raw["uid"]),
        fate=_word(Fate, raw.get("fate"), Fate.HELD),
        owner=str(raw.get("owner", "")),
        owner_uid=str(raw.get("ownerUID", "")),
        reason=str(raw.get("reason", "")),
        evicted_at=_maybe(parse_timestamp, raw.get("evictedAt")),
        replacement=raw.get("replacement"),
        replacement_uid=raw.get("replacementUID"),
        replacement_node=raw.get("replacementNode"),
        replaced_at=_maybe(parse_timestamp, raw.get("replacedAt")),
    )


def _entry_from(raw: Mapping[str, Any]) -> HistoryEntry:
    return HistoryEntry(
        time=parse_timestamp(raw["time"]),
        source=str(raw.get("from", "")),
        to=str(raw["to"]),
        sentence=str(raw.get("sentence", "")),
    )
