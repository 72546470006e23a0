"""HealthReport to and from the status of a GPUNode object (plain JSON types).

Laws:
1. Encoding is deterministic, so that "compare before writing" is a comparison of dicts.
2. Decoding never raises on what an older or newer exporter wrote: unknown words become UNKNOWN with the rest kept; a
   finding of an unknown severity makes the health of its GPU (or the node) Unknown, for it may be the worst there is;
   a missing mandatory field raises `WireError` naming it.
3. Bounded: at most MAX_GPUS devices, MAX_PODS pods and MAX_FINDINGS findings per device; what was cut is counted.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

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

MAX_GPUS = 64
MAX_FINDINGS = 32
MAX_PODS = 64
MAX_MESSAGE = 256
"""Characters kept of a message: 8 GPUs with every list full stay below 256 KiB."""

E = TypeVar("E", bound=StrEnum)

_SEVERITIES = frozenset(severity.value for severity in Severity)


class WireError(ValueError):
    """A GPUNode status without a field that every version writes."""


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as Kubernetes writes metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Inverse of `timestamp`; accepts fractions and offsets; raises ValueError on anything else."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def report_to_status(report: HealthReport) -> dict[str, Any]:
    """The status of the GPUNode of `report.node`."""
    status: dict[str, Any] = {
        "observedAt": timestamp(report.observed_at),
        "bootID": report.boot_id,
        "exporterVersion": report.exporter_version,
        "driverState": report.driver_state,
        "expectedGPUs": report.expected_gpus,
        "seenGPUs": report.seen_gpus,
        "health": report.health.value,
        "mappingKnown": report.mapping_known,
        "gpus": [_device(gpu) for gpu in report.gpus[:MAX_GPUS]],
        "findings": [_finding(f) for f in report.findings[:MAX_FINDINGS]],
    }
    if report.driver_version is not None:
        status["driverVersion"] = report.driver_version
    cut = max(0, len(report.gpus) - MAX_GPUS) + max(0, len(report.findings) - MAX_FINDINGS)
    if cut:
        status["cut"] = cut
    return status


def _device(gpu: DeviceReport) -> dict[str, Any]:
    out: dict[str, Any] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "pciBusID": gpu.pci_bus_id,
        "model": gpu.model,
        "health": gpu.health.value,
        "findings": [_finding(f) for f in gpu.findings[:MAX_FINDINGS]],
        "pods": [_pod(p) for p in gpu.pods[:MAX_PODS]],
    }
    if gpu.minor is not None:
        out["minor"] = gpu.minor
    if gpu.serial is not None:
        out["serial"] = gpu.serial
    if gpu.mig:
        out["mig"] = list(gpu.mig)
    cut = max(0, len(gpu.findings) - MAX_FINDINGS) + max(0, len(gpu.pods) - MAX_PODS)
    if cut:
        out["cut"] = cut
    return out


def _finding(finding: Finding) -> dict[str, Any]:
    out: dict[str, Any] = {
        "code": finding.code,
        "severity": finding.severity.value,
        "scope": finding.scope.value,
        "advice": finding.advice.value,
        "clearedBy": finding.cleared_by.value,
        "count": finding.count,
        "firstSeen": timestamp(finding.first_seen),
        "lastSeen": timestamp(finding.last_seen),
        "message": finding.message[:MAX_MESSAGE],
        "source": finding.source,
    }
    if finding.boot_id is not None:
        out["bootID"] = finding.boot_id
    if finding.pod is not None:
        out["pod"] = finding.pod
    return out


def _pod(pod: DevicePod) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "container": pod.container,
        "resource": pod.resource,
        "share": pod.share,
        "source": pod.source,
    }


def report_from_status(node: str, status: Mapping[str, Any]) -> HealthReport:
    """The report stored in a GPUNode named `node`; raises `WireError` when a mandatory field is missing or wrong."""
    try:
        return HealthReport(
            node=node,
            boot_id=BootId(str(status["bootID"])),
            observed_at=parse_timestamp(status["observedAt"]),
            driver_version=status.get("driverVersion"),
            exporter_version=str(status.get("exporterVersion", "")),
            expected_gpus=int(status.get("expectedGPUs", 0)),
            seen_gpus=int(status.get("seenGPUs", 0)),
            health=_health(status),
            gpus=tuple(_device_from(gpu) for gpu in status.get("gpus") or ()),
            findings=tuple(_finding_from(None, f) for f in status.get("findings") or ()),
            mapping_known=bool(status.get("mappingKnown", False)),
            driver_state=str(status.get("driverState", "ok")),
        )
    except KeyError as missing:
        raise WireError(f"GPUNode {node}: status lacks {missing.args[0]}") from missing
    except (TypeError, ValueError) as wrong:
        raise WireError(f"GPUNode {node}: status cannot be read: {wrong}") from wrong


def _word(kind: type[E], text: object, unknown: E) -> E:
    try:
        return kind(str(text))
    except ValueError:
        return unknown


def _health(raw: Mapping[str, Any]) -> Health:
    """The health written beside `findings`, unless one of them is of a severity that we do not know."""
    if any(finding.get("severity") not in _SEVERITIES for finding in raw.get("findings") or ()):
        return Health.UNKNOWN
    return _word(Health, raw.get("health"), Health.UNKNOWN)


def _device_from(raw: Mapping[str, Any]) -> DeviceReport:
    uuid = str(raw["uuid"])
    return DeviceReport(
        uuid=uuid,
        index=int(raw["index"]),
        minor=raw.get("minor"),
        pci_bus_id=str(raw.get("pciBusID", "")),
        serial=raw.get("serial"),
        model=str(raw.get("model", "")),
        health=_health(raw),
        findings=tuple(_finding_from(uuid, f) for f in raw.get("findings") or ()),
        pods=tuple(_pod_from(p) for p in raw.get("pods") or ()),
        mig=tuple(raw.get("mig") or ()),
    )


def _finding_from(gpu: str | None, raw: Mapping[str, Any]) -> Finding:
    boot = raw.get("bootID")
    return Finding(
        code=str(raw["code"]),
        gpu=gpu,
        severity=_word(Severity, raw.get("severity"), Severity.INFO),
        scope=_word(Scope, raw.get("scope"), Scope.GPU),
        advice=_word(Advice, raw.get("advice"), Advice.UNKNOWN),
        cleared_by=_word(ClearedBy, raw.get("clearedBy"), ClearedBy.REPLACEMENT),
        count=int(raw.get("count", 1)),
        first_seen=parse_timestamp(raw["firstSeen"]),
        last_seen=parse_timestamp(raw["lastSeen"]),
        message=str(raw.get("message", "")),
        source=str(raw.get("source", "")),
        boot_id=BootId(boot) if boot else None,
        pod=raw.get("pod"),
    )


def _pod_from(raw: Mapping[str, Any]) -> DevicePod:
    return DevicePod(
        namespace=str(raw["namespace"]),
        name=str(raw["name"]),
        uid=str(raw.get("uid", "")),
        container=str(raw.get("container", "")),
        resource=str(raw.get("resource", "")),
        share=str(raw.get("share", "whole")),
        source=str(raw.get("source", "")),
    )
