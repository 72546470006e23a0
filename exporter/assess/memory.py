"""Ledger and Xid counters to and from plain JSON types: what survives a restart of the exporter.

Laws:
1. Decoding gives back what was encoded, or raises `BadMemory`; it never gives half a ledger.
2. An event whose second witness has not spoken yet is kept: the restart may come between the two.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from exporter.assess.entries import Entry
from exporter.assess.ledger import Ledger, Slot
from exporter.assess.limits import Limits
from exporter.assess.witness import Sighting, Subject, Unpaired
from exporter.assess.xids import XidCount, XidCounts
from exporter.health.vocabulary import Advice, BootId, ClearedBy, Finding, Scope, Severity

FORMAT = 1
UNPAIRED = "unpaired"


class BadMemory(ValueError):
    """What was kept cannot be read; the caller starts with an empty ledger and says so."""


def encode(ledger: Ledger, counts: XidCounts) -> dict[str, Any]:
    """Everything worth keeping, as JSON types."""
    return {
        "format": FORMAT,
        "ledger": {
            "boot": ledger.boot,
            "watchedAt": _text(ledger.watched_at),
            "dropped": ledger.dropped,
            "mostSeen": ledger.most_seen,
            "entries": [_entry(entry) for entry in ledger.entries],
            "resets": {gpu: at.isoformat() for gpu, at in ledger.resets.items()},
            "slots": [[slot.pci_bus_id, slot.uuid, slot.serial] for slot in ledger.slots],
            UNPAIRED: _sightings(ledger.unpaired),
        },
        "xids": {
            "boot": counts.boot,
            "overflow": counts.overflow,
            "counts": [[c.gpu, c.code, c.count, c.last_seen.isoformat()] for c in counts.counts],
            UNPAIRED: _sightings(counts.unpaired),
        },
    }


def decode(raw: Mapping[str, Any], limits: Limits) -> tuple[Ledger, XidCounts]:
    """Inverse of `encode`; `limits` are those of today. Raises `BadMemory`."""
    try:
        if raw["format"] != FORMAT:
            raise BadMemory(f"format {raw['format']!r} is not {FORMAT}")
        return _ledger(raw["ledger"], limits), _counts(raw["xids"], limits)
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise BadMemory(f"kept state cannot be read: {wrong}") from wrong


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _moment(text: str | None) -> datetime | None:
    return None if text is None else _aware(text)


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time without zone: {text}")
    return moment


def _boot(text: str | None) -> BootId | None:
    return None if text is None else BootId(str(text))


def _entry(entry: Entry) -> dict[str, Any]:
    finding = entry.finding
    return {
        "code": finding.code,
        "gpu": finding.gpu,
        "severity": finding.severity.value,
        "scope": finding.scope.value,
        "advice": finding.advice.value,
        "clearedBy": finding.cleared_by.value,
        "count": finding.count,
        "firstSeen": finding.first_seen.isoformat(),
        "lastSeen": finding.last_seen.isoformat(),
        "message": finding.message,
        "source": finding.source,
        "boot": finding.boot_id,
        "pod": finding.pod,
        "quietSince": entry.quiet_since.isoformat(),
        "goodReads": entry.good_reads,
        "goodSince": _text(entry.good_since),
        "goodAt": _text(entry.good_at),
    }


def _entry_from(raw: Mapping[str, Any]) -> Entry:
    return Entry(
        finding=Finding(
            code=str(raw["code"]),
            gpu=raw["gpu"],
            severity=Severity(raw["severity"]),
            scope=Scope(raw["scope"]),
            advice=Advice(raw["advice"]),
            cleared_by=ClearedBy(raw["clearedBy"]),
            count=int(raw["count"]),
            first_seen=_aware(raw["firstSeen"]),
            last_seen=_aware(raw["lastSeen"]),
            message=str(raw["message"]),
            source=str(raw["source"]),
            boot_id=_boot(raw["boot"]),
            pod=raw["pod"],
        ),
        quiet_since=_aware(raw["quietSince"]),
        good_reads=int(raw["goodReads"]),
        good_since=_moment(raw["goodSince"]),
        good_at=_moment(raw["goodAt"]),
    )


def _ledger(raw: Mapping[str, Any], limits: Limits) -> Ledger:
    return Ledger(
        limits=limits,
        boot=_boot(raw["boot"]),
        watched_at=_moment(raw["watchedAt"]),
        dropped=int(raw["dropped"]),
        most_seen=int(raw["mostSeen"]),
        entries=tuple(_entry_from(entry) for entry in raw["entries"]),
        resets={str(gpu): _aware(at) for gpu, at in raw["resets"].items()},
        slots=tuple(Slot(pci_bus_id=str(pci), uuid=str(uuid), serial=serial) for pci, uuid, serial in raw["slots"]),
        unpaired=_unpaired(raw[UNPAIRED]),
    )


def _sightings(unpaired: Unpaired) -> list[list[str]]:
    return [
        [gpu, code, source, at.isoformat()] for (gpu, code), seen in sorted(unpaired.items()) for source, at in seen
    ]


def _unpaired(raw: Iterable[tuple[str, str, str, str]]) -> Unpaired:
    unpaired: dict[Subject, tuple[Sighting, ...]] = {}
    for gpu, code, source, at in raw:
        subject = str(gpu), str(code)
        unpaired[subject] = (*unpaired.get(subject, ()), (str(source), _aware(at)))
    return unpaired


def _counts(raw: Mapping[str, Any], limits: Limits) -> XidCounts:
    return XidCounts(
        boot=_boot(raw["boot"]),
        overflow=int(raw["overflow"]),
        window=limits.duplicate_window,
        counts=tuple(
            XidCount(gpu=gpu, code=int(code), count=int(number), last_seen=_aware(at))
            for gpu, code, number, at in raw["counts"]
        ),
        unpaired=_unpaired(raw[UNPAIRED]),
    )
