"""The status of a GPUNode: what is written is read back, what another version wrote is read as far as it can be."""

import json
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from exporter.health.vocabulary import (
    Advice,
    BootId,
    ClearedBy,
    DevicePod,
    DeviceReport,
    Finding,
    Health,
    HealthReport,
    Scope,
    Severity,
)
from exporter.health.wire import (
    MAX_FINDINGS,
    MAX_GPUS,
    MAX_MESSAGE,
    MAX_PODS,
    WireError,
    parse_timestamp,
    report_from_status,
    report_to_status,
)

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
LIMIT_BYTES = 256 * 1024
"""What design and etcd allow one GPUNode."""


def a_finding(gpu: str | None, code: str = "xid-79", **changed: Any) -> Finding:
    facts: dict[str, Any] = {
        "severity": Severity.CRITICAL,
        "scope": Scope.NODE,
        "advice": Advice.REBOOT_NODE,
        "cleared_by": ClearedBy.REBOOT,
        "count": 2,
        "first_seen": NOW,
        "last_seen": NOW,
        "message": "GPU has fallen off the bus",
        "source": "kernel-log",
        "boot_id": BootId("boot-1"),
        "pod": "team-a/train-1",
    }
    return Finding(code=code, gpu=gpu, **{**facts, **changed})


def a_device(index: int = 0, **changed: Any) -> DeviceReport:
    uuid = f"GPU-{index}"
    pod = DevicePod(namespace="team-a", name="train-1", uid="", container="main", resource="nvidia.com/gpu")
    facts: dict[str, Any] = {
        "uuid": uuid,
        "index": index,
        "minor": index,
        "pci_bus_id": "00000000:3b:00.0",
        "serial": "165",
        "model": "NVIDIA H100 80GB HBM3",
        "health": Health.UNHEALTHY,
        "findings": (a_finding(uuid),),
        "pods": (pod,),
        "mig": ("MIG-1",),
    }
    return DeviceReport(**{**facts, **changed})


def a_report(**changed: Any) -> HealthReport:
    facts: dict[str, Any] = {
        "node": "n7",
        "boot_id": BootId("boot-1"),
        "observed_at": NOW,
        "driver_version": "570.124.06",
        "exporter_version": "0.1.0",
        "expected_gpus": 8,
        "seen_gpus": 7,
        "health": Health.UNHEALTHY,
        "gpus": (a_device(),),
        "findings": (a_finding(None, "gpu-missing"),),
    }
    return HealthReport(**{**facts, **changed})


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(a_report(), id="everything said"),
        pytest.param(a_report(gpus=(), findings=(), driver_version=None, driver_state="no-driver"), id="no driver"),
        pytest.param(a_report(gpus=(a_device(minor=None, serial=None, mig=(), pods=(), findings=()),)), id="gaps"),
        pytest.param(a_report(mapping_known=False), id="mapping unknown"),
    ],
)
def test_what_is_written_is_read_back(report: HealthReport) -> None:
    through_json = json.loads(json.dumps(report_to_status(report)))
    assert report_from_status(report.node, through_json) == report


def test_equal_reports_make_equal_statuses() -> None:
    """ "Compare before writing" is a comparison of these."""
    assert json.dumps(report_to_status(a_report())) == json.dumps(report_to_status(a_report()))


def status_with(change: dict[str, Any], *path: Any) -> dict[str, Any]:
    status = deepcopy(report_to_status(a_report()))
    target: Any = status
    for step in path:
        target = target[step]
    target.update(change)
    return status


@pytest.mark.parametrize(
    ("status", "node", "device"),
    [
        pytest.param(status_with({"health": "Dubious"}), Health.UNKNOWN, Health.UNHEALTHY, id="of the node"),
        pytest.param(status_with({"health": "Fine"}, "gpus", 0), Health.UNHEALTHY, Health.UNKNOWN, id="of a GPU"),
        pytest.param(
            status_with({"severity": "fatal"}, "gpus", 0, "findings", 0),
            Health.UNHEALTHY,
            Health.UNKNOWN,
            id="a severity on a GPU",
        ),
        pytest.param(
            status_with({"severity": "fatal"}, "findings", 0),
            Health.UNKNOWN,
            Health.UNHEALTHY,
            id="a severity on the node",
        ),
    ],
)
def test_an_unknown_word_is_unknown_health_and_never_a_good_one(
    status: dict[str, Any], node: Health, device: Health
) -> None:
    report = report_from_status("n7", status)
    assert (report.health, report.gpus[0].health) == (node, device)


def test_other_unknown_words_keep_the_rest() -> None:
    change = {"advice": "pray", "scope": "rack", "clearedBy": "miracle"}
    finding = report_from_status("n7", status_with(change, "gpus", 0, "findings", 0)).gpus[0].findings[0]
    assert finding == replace(
        a_finding("GPU-0"), advice=Advice.UNKNOWN, scope=Scope.GPU, cleared_by=ClearedBy.REPLACEMENT
    )


@pytest.mark.parametrize("missing", ["bootID", "observedAt"])
def test_a_missing_mandatory_field_is_named(missing: str) -> None:
    status = report_to_status(a_report())
    del status[missing]
    with pytest.raises(WireError, match=missing):
        report_from_status("n7", status)


@pytest.mark.parametrize(("field", "value"), [("observedAt", "yesterday"), ("seenGPUs", "many"), ("gpus", [7])])
def test_nonsense_is_a_wire_error(field: str, value: object) -> None:
    with pytest.raises(WireError):
        report_from_status("n7", {**report_to_status(a_report()), field: value})


def test_a_full_report_is_cut_and_says_how_much() -> None:
    findings = tuple(a_finding("GPU-0", f"xid-{code}", message="x" * 999) for code in range(MAX_FINDINGS + 3))
    pods = tuple(replace(a_device().pods[0], name=f"p{number}") for number in range(MAX_PODS + 5))
    status = report_to_status(a_report(gpus=tuple(a_device(i, findings=findings, pods=pods) for i in range(8))))
    device = status["gpus"][0]
    assert (len(device["findings"]), len(device["pods"]), device["cut"]) == (MAX_FINDINGS, MAX_PODS, 8)
    assert len(device["findings"][0]["message"]) == MAX_MESSAGE
    assert len(json.dumps(status)) <= LIMIT_BYTES
    many = report_to_status(a_report(gpus=tuple(a_device(i) for i in range(MAX_GPUS + 2))))
    assert (len(many["gpus"]), many["cut"]) == (MAX_GPUS, 2)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_timestamp("2026-11-20T03:00:00") == NOW == parse_timestamp("2026-11-20T04:00:00.000+01:00")
