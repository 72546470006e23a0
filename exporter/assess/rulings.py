"""Judgement of one Xid or SXid: the catalogue's row, what the line itself says, and the few places where we differ.

Laws:
1. The line outranks the row: `RST`/`D-RST` of Xids 94 and 95, and the word Fatal of an SXid.
2. Every difference from the catalogue stands in `RULINGS` with its reason.
3. Xid 154 is no fault of its own but a message of the driver; `recovery` judges it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from exporter.health.catalogue import CatalogueEntry, lookup, lookup_sxid
from exporter.health.codes import sxid_code, xid_code
from exporter.health.vocabulary import Advice, ClearedBy, Scope, Severity
from exporter.readings import XidEvent, XidFamily


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one event means, before it is tied to a GPU and a time."""

    severity: Severity
    scope: Scope
    advice: Advice
    cleared_by: ClearedBy
    message: str


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """Where we differ from the catalogue; None = as the catalogue says."""

    reason: str
    severity: Severity | None = None
    advice: Advice | None = None
    cleared_by: ClearedBy | None = None


RULINGS: Mapping[int, Ruling] = MappingProxyType(
    {
        45: Ruling(reason="clean-up after another fault: counted, never a grade of its own", severity=Severity.INFO),
        63: Ruling(reason="the stored remap starts to work at the next reset", advice=Advice.RESET_GPU),
        54: Ruling(reason="no reset plugs in a cable", cleared_by=ClearedBy.REBOOT),
        94: Ruling(reason="the page stays bad until the reset retires it", cleared_by=ClearedBy.GPU_RESET),
        110: Ruling(
            reason="driver and catalogue text agree that only a cold start clears it",
            advice=Advice.REBOOT_NODE,
            cleared_by=ClearedBy.REBOOT,
        ),
        164: Ruling(reason="wear does not heal", cleared_by=ClearedBy.REPLACEMENT),
        165: Ruling(reason="wear does not heal", cleared_by=ClearedBy.REPLACEMENT),
        171: Ruling(reason="detail of Xid 48, which has the grade", severity=Severity.INFO),
    }
)

CANCELS: Mapping[str, str] = MappingProxyType(
    {
        xid_code(162): xid_code(163),
        sxid_code(10005): sxid_code(10004),
        sxid_code(28002): sxid_code(28001),
    }
)
"""Code that says "over" -> code that it ends."""

_RESET_FLAGS = re.compile(r"\bRST: (Yes|No), D-RST: (Yes|No)", re.IGNORECASE)
_SXID_GRADE = re.compile(r"^(Fatal|Non-fatal|Correctable)\b", re.IGNORECASE)


def fault_code(event: XidEvent) -> str:
    """The fault code of an event: `xid-79`, `sxid-20034`."""
    return xid_code(event.code) if event.family is XidFamily.XID else sxid_code(event.code)


def judge_xid(event: XidEvent) -> Verdict:
    """What an Xid or SXid means."""
    if event.family is XidFamily.SXID:
        return _judge_sxid(event)
    entry = lookup(event.code)
    ruling = RULINGS.get(event.code, Ruling(reason="as the catalogue says"))
    severity = ruling.severity or entry.severity
    advice = ruling.advice or entry.advice
    verdict = Verdict(
        severity=severity,
        scope=entry.scope,
        advice=advice,
        cleared_by=ruling.cleared_by or _cleared_by(entry, severity, advice),
        message=f"Xid {event.code}: {entry.description}",
    )
    return _with_reset_flags(verdict, event.text) if event.code in (94, 95) else verdict


def _cleared_by(entry: CatalogueEntry, severity: Severity, advice: Advice) -> ClearedBy:
    if entry.scope is Scope.APP or severity is Severity.INFO:
        return ClearedBy.WORKLOAD_END
    if advice is Advice.REBOOT_NODE:
        return ClearedBy.REBOOT
    if severity is Severity.WARNING and advice is Advice.NONE and entry.app_may_cause:
        return ClearedBy.WORKLOAD_END
    return ClearedBy.GPU_RESET


def _with_reset_flags(verdict: Verdict, text: str) -> Verdict:
    """`RST: Yes` = reset now, `D-RST: Yes` = drain, then reset: either way nothing new may start on the GPU."""
    flags = _RESET_FLAGS.search(text)
    if flags is None or "yes" not in flags.group(0).lower():
        return verdict
    return replace(verdict, severity=Severity.CRITICAL, scope=Scope.GPU, advice=Advice.RESET_GPU)


def _judge_sxid(event: XidEvent) -> Verdict:
    entry = lookup_sxid(event.code)
    grade = _SXID_GRADE.match(event.text)
    severity, advice = entry.severity, entry.advice
    if grade and grade.group(1).lower() == "fatal":
        severity = Severity.CRITICAL
        # Only a restart of the whole machine resets a switch.
        advice = Advice.REBOOT_NODE
    elif grade and severity is Severity.CRITICAL:
        severity = Severity.WARNING
        advice = Advice.NONE
    return Verdict(
        severity=severity,
        scope=Scope.FABRIC,
        advice=advice,
        cleared_by=ClearedBy.WORKLOAD_END if severity is Severity.INFO else ClearedBy.REBOOT,
        message=f"SXid {event.code} on switch {event.pci_bus_id or 'unknown'}: {entry.description}",
    )
