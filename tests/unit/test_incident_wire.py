"""GPUIncident on the wire: nothing is lost on the way, the CRD knows every key, absent parts are taken back."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any

import pytest
import yaml

from remediator.adapters import wire
from remediator.adapters.incident_wire import IncidentUnreadable, incident_of, manifest_of, status_of
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

T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)

FULL = Incident(
    name="i1",
    uid="u1",
    resource_version="7",
    annotations={"a": "b"},
    node="n1",
    node_uid="nu1",
    boot_id="b1",
    scope=IncidentScope.GPU,
    fault="xid-79",
    opened_at=T0,
    gpu=GpuTarget(uuid="GPU-1", index=3, serial="s1"),
    playbook="lost",
    phase=Phase.DRAINING,
    phase_since=T1,
    reason="because",
    findings=("xid-79", "xid-45"),
    quarantine=QuarantineRecord(
        method="node-taint",
        applied_at=T1,
        verified=True,
        prior_cordon=True,
        cordoned=True,
        boot_id="b1",
        detail="gpuward.io/unhealthy",
    ),
    repair=RepairRecord(step="reboot", job="j1", requested_at=T1, boot_id_before="b0", outcome="asked"),
    validation=ValidationRecord(job="j2", requested_at=T1, outcome="passed"),
    attempts={"repair": 2},
    deadline=T1,
    deferral=Deferral(code="pods-leaving", message="1 pod", since=T0, retry_at=T1, node="n1", gpu="GPU-1"),
    pods=(
        PodRecord(
            namespace="team",
            name="p1",
            uid="pu1",
            fate=Fate.REPLACED,
            owner="ReplicaSet/rs",
            owner_uid="ou1",
            reason="runs again",
            evicted_at=T0,
            replacement="p2",
            replacement_uid="pu2",
            replacement_node="n2",
            replaced_at=T1,
        ),
    ),
    history=(HistoryEntry(time=T0, source="Suspected", to="Quarantined", sentence="stands"),),
    outcome="healed",
    closed_at=T1,
)


def stored(incident: Incident) -> wire.StatusCarrier:
    """As the API server would hand it back."""
    body = manifest_of(incident)
    body["metadata"] |= {
        "uid": incident.uid,
        "resourceVersion": incident.resource_version,
        "annotations": dict(incident.annotations),
    }
    body["status"] = {key: value for key, value in status_of(incident).items() if value is not None}
    return wire.decode(json.dumps(body).encode(), wire.StatusCarrier)


def unset(value: Any, path: str = "") -> Iterator[str]:
    """Fields of the example that have their default: the round trip would not notice if they were lost."""
    for field in fields(value):
        part = getattr(value, field.name)
        if part in ("", None, (), {}, False, 0):
            yield f"{path}.{field.name}"
        for child in part if isinstance(part, tuple) else (part,):
            if is_dataclass(child):
                yield from unset(child, f"{path}.{field.name}")


def test_the_example_sets_every_field() -> None:
    assert list(unset(FULL)) == []


def test_nothing_is_lost_on_the_way() -> None:
    assert incident_of(stored(FULL)) == FULL


def test_absent_parts_are_taken_back_by_null() -> None:
    bare = replace(FULL, quarantine=None, repair=None, validation=None, deadline=None, deferral=None, closed_at=None)
    status = status_of(bare)
    assert {key for key, value in status.items() if value is None} == {
        "quarantine",
        "repair",
        "validation",
        "deadline",
        "deferral",
        "closedAt",
    }
    assert incident_of(stored(bare)) == bare


def test_the_crd_knows_every_key() -> None:
    text = resources.files("remediator.domain").joinpath("crds/gpuincidents.gpuward.io.yaml").read_text()
    schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert list(unknown_keys(status_of(FULL), schema["status"])) == []
    assert list(unknown_keys(manifest_of(FULL)["spec"], schema["spec"])) == []


def unknown_keys(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from unknown_keys(item, schema["items"], path)
    if not isinstance(value, dict) or "additionalProperties" in schema:
        return
    for key, child in value.items():
        known = schema.get("properties", {}).get(key)
        if known is None:
            yield f"{path}.{key}"
        else:
            yield from unknown_keys(child, known, f"{path}.{key}")


def test_an_incident_without_a_status_has_just_been_opened() -> None:
    item = wire.decode(json.dumps(manifest_of(FULL)).encode(), wire.StatusCarrier)
    found = incident_of(item)
    assert (found.phase, found.phase_since, found.open) == (Phase.SUSPECTED, T0, True)


@pytest.mark.parametrize(
    "status",
    [{"phase": "Teleporting"}, {"phaseSince": "yesterday"}, {"quarantine": {"method": "x"}}, {"attempts": {"a": "b"}}],
    ids=["phase of another version", "not a time", "half a record", "not a number"],
)
def test_what_is_not_understood_is_not_half_understood(status: dict[str, Any]) -> None:
    body = manifest_of(FULL) | {"status": status}
    with pytest.raises(IncidentUnreadable, match="i1"):
        incident_of(wire.decode(json.dumps(body).encode(), wire.StatusCarrier))
