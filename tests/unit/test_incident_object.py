"""Incident <-> GPUIncident: what is written is what is read, whatever another version wrote is survived."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.adapters import wire
from remediator.domain.incident_object import STATUS_FIELDS, to_object, to_status, to_status_patch
from remediator.domain.incident_reading import IncidentError, from_object
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
from remediator.observer import incident_of
from tests.worlds import NOW, an_incident

LATE = NOW.replace(microsecond=999_999)
CRD = Path(__file__).parents[2] / "remediator/domain/crds/gpuincidents.gpuward.io.yaml"

moments = st.datetimes(min_value=NOW.replace(tzinfo=None, year=2000)).map(lambda m: m.replace(tzinfo=NOW.tzinfo))
words = st.text(max_size=60)

gpus = st.builds(GpuTarget, uuid=words, index=st.integers(0, 63), serial=st.none() | words)
quarantines = st.builds(
    QuarantineRecord,
    method=words,
    applied_at=moments,
    verified=st.booleans(),
    prior_cordon=st.booleans(),
    prior_taint=st.booleans(),
    cordoned=st.booleans(),
    boot_id=words,
    detail=words,
)
repairs = st.builds(RepairRecord, step=words, job=words, requested_at=moments, boot_id_before=words, outcome=words)
validations = st.builds(ValidationRecord, job=words, requested_at=moments, outcome=words)
pods = st.builds(
    PodRecord,
    namespace=words,
    name=words,
    uid=words,
    fate=st.sampled_from(Fate),
    owner=words,
    owner_uid=words,
    reason=words,
    evicted_at=st.none() | moments,
    replacement=st.none() | words,
    replacement_uid=st.none() | words,
    replacement_node=st.none() | words,
    replaced_at=st.none() | moments,
)
entries = st.builds(HistoryEntry, time=moments, source=words, to=words, sentence=words)
waits = st.builds(Deferral, code=words, message=words, since=moments, retry_at=moments)


@st.composite
def incidents(draw: st.DrawFn) -> Incident:
    gpu = draw(st.none() | gpus)
    deferral = draw(st.none() | waits)
    node = draw(words)
    return Incident(
        name=draw(words),
        node=node,
        node_uid=draw(words),
        boot_id=draw(words),
        scope=draw(st.sampled_from(IncidentScope)),
        fault=draw(words),
        opened_at=draw(moments),
        gpu=gpu,
        playbook=draw(words),
        phase=draw(st.sampled_from(Phase)),
        phase_since=draw(moments),
        reason=draw(words),
        findings=tuple(draw(st.lists(words, max_size=4))),
        quarantine=draw(st.none() | quarantines),
        repair=draw(st.none() | repairs),
        validation=draw(st.none() | validations),
        attempts=draw(st.dictionaries(words, st.integers(0, 9), max_size=3)),
        deadline=draw(st.none() | moments),
        deferral=None if deferral is None else replace(deferral, node=node, gpu=(gpu.uuid or None) if gpu else None),
        pods=tuple(draw(st.lists(pods, max_size=3))),
        history=tuple(draw(st.lists(entries, max_size=3))),
        outcome=draw(words),
        closed_at=draw(st.none() | moments),
    )


@settings(max_examples=40, deadline=None)
@given(incidents())
def test_what_is_written_is_what_is_read(incident: Incident) -> None:
    assert from_object(json.loads(json.dumps(to_object(incident)))) == incident


def test_what_the_server_adds_is_read_as_well() -> None:
    incident = an_incident(Phase.DRAINING, uid="u1", resource_version="7", annotations={"a": "b"}, opened_at=LATE)
    raw = to_object(incident)
    raw["metadata"] |= {"uid": "u1", "resourceVersion": "7", "annotations": {"a": "b"}}
    assert incident_of(wire.decode(json.dumps(raw).encode(), wire.StatusCarrier)) == incident


def full() -> Incident:
    return replace(
        an_incident(Phase.DRAINING),
        reason="x" * 2000,
        findings=tuple(f"xid-{number}" for number in range(99)),
        pods=tuple(
            PodRecord(namespace="n", name=str(i), uid=str(i), fate=Fate.GONE, reason="y" * 999) for i in range(999)
        ),
        history=tuple(HistoryEntry(time=NOW, source="", to="x", sentence="z" * 999) for _ in range(999)),
        attempts={str(number): 1 for number in range(99)},
        repair=RepairRecord(step="reset", job="j", requested_at=NOW, boot_id_before="b", outcome="o" * 999),
        validation=ValidationRecord(job="j", requested_at=NOW, outcome="o" * 999),
        deferral=Deferral(code="budget", message="m" * 999, since=NOW, retry_at=NOW),
    )


def conforms(value: Any, schema: dict[str, Any], path: str) -> None:
    """The part of structural schemas that the CRD uses; the API server would drop or refuse the rest."""
    match schema.get("type"):
        case "object":
            assert isinstance(value, dict), path
            assert set(schema.get("required", ())) <= set(value), path
            assert len(value) <= schema.get("maxProperties", 999), path
            for key, item in value.items():
                inner = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
                assert inner, f"{path}.{key} is not in the CRD and would be dropped"
                conforms(item, inner, f"{path}.{key}")
        case "array":
            assert isinstance(value, list) and len(value) <= schema["maxItems"], path
            for item in value:
                conforms(item, schema["items"], f"{path}[]")
        case "string":
            assert isinstance(value, str) and len(value) <= schema.get("maxLength", 99), path
            assert value in schema.get("enum", [value]), path
        case "integer":
            assert isinstance(value, int) and value >= schema.get("minimum", value), path
        case "boolean":
            assert isinstance(value, bool), path


@pytest.mark.parametrize("incident", [an_incident(), full()], ids=["small", "everything over its bound"])
def test_the_object_fits_the_crd(incident: Incident) -> None:
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    written = to_object(incident)
    conforms(written["spec"], schema["spec"], "spec")
    conforms(written["status"], schema["status"], "status")
    assert set(schema["status"]["properties"]) == set(STATUS_FIELDS)


def test_a_merge_patch_takes_old_fields_away() -> None:
    patch = to_status_patch(an_incident())
    assert set(patch) == set(STATUS_FIELDS)
    assert patch["repair"] is None and patch["deadline"] is None
    assert {key: value for key, value in patch.items() if value is not None} == to_status(an_incident())


def test_an_object_without_status_is_suspected_since_its_opening() -> None:
    raw = to_object(an_incident(Phase.DRAINING))
    del raw["status"]
    found = from_object(raw)
    assert (found.phase, found.phase_since, found.quarantine) == (Phase.SUSPECTED, found.opened_at, None)
    assert [entry.to for entry in found.history] == ["Suspected"]


def test_what_another_version_wrote_is_read_with_care() -> None:
    raw = to_object(full())
    raw["status"] |= {
        "phase": "Teleporting",
        "attempts": {"repair": "many", "validate": 1},
        "quarantine": {"method": "x"},
        "repair": 7,
        "deadline": "tomorrow",
        "history": [{"to": "x"}, "nonsense", {"time": "2026-03-01T12:00:00Z", "to": "y"}],
        "pods": [{"namespace": "a", "name": "b", "uid": "c", "fate": "Beamed"}, {"name": "d"}],
        "newField": {"a": 1},
    }
    found = from_object(raw)
    assert found.phase is Phase.ESCALATED, "a phase of the future: a human holds it"
    assert found.attempts == {"validate": 1}
    assert (found.quarantine, found.repair, found.deadline) == (None, None, None)
    assert [entry.to for entry in found.history] == ["y"]
    assert [(pod.name, pod.fate) for pod in found.pods] == [("b", Fate.HELD)]


@pytest.mark.parametrize("field", ["nodeName", "nodeUID", "fault", "scope", "openedAt"])
def test_without_an_identity_it_is_an_error_that_names_the_field(field: str) -> None:
    raw = to_object(an_incident())
    del raw["spec"][field]
    with pytest.raises(IncidentError, match=field):
        from_object(raw)


@pytest.mark.parametrize("raw", [{}, {"spec": {"openedAt": 3}}, {"spec": None}], ids=["empty", "wrong type", "null"])
def test_garbage_is_an_error_and_never_a_crash(raw: dict[str, Any]) -> None:
    with pytest.raises(IncidentError):
        from_object(raw)
