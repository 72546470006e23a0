"""One line of the ledger: a finding and what is known of its way out; and how a new event changes it."""

from dataclasses import dataclass, replace
from datetime import datetime

from exporter.assess.observations import POLLED
from exporter.health.vocabulary import SEVERITY_ORDER, Finding, HealthEvent

Key = tuple[str, str]
"""GPU ("" for the node) and fault code."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A standing finding and the state of its clearing."""

    finding: Finding
    quiet_since: datetime
    """Since when nothing was heard of it while somebody watched."""
    good_reads: int = 0
    """Good readings in a row."""
    good_since: datetime | None = None
    """Time of the first of them."""
    good_at: datetime | None = None
    """Time of the newest of them: one reading judged twice is one reading."""

    @property
    def key(self) -> Key:
        """Where it stands in the ledger."""
        return self.finding.gpu or "", self.finding.code

    @property
    def polled(self) -> bool:
        """Its witness says the same again in every sweep."""
        return self.finding.source in POLLED


def key_of(event: HealthEvent) -> Key:
    """Where `event` belongs."""
    return event.gpu or "", event.code


def opened(event: HealthEvent) -> Entry:
    """The first sighting of a fault."""
    return Entry(
        finding=Finding(
            code=event.code,
            gpu=event.gpu,
            severity=event.severity,
            scope=event.scope,
            advice=event.advice,
            cleared_by=event.cleared_by,
            count=1,
            first_seen=event.observed_at,
            last_seen=event.observed_at,
            message=event.message,
            source=event.source,
            boot_id=event.boot_id,
        ),
        quiet_since=event.observed_at,
    )


def read_again(entry: Entry, event: HealthEvent) -> Entry:
    """A polled condition is still, or again, bad: its newest words hold; it counts again only after a good reading."""
    if entry.good_reads == 0 and entry.finding.boot_id == event.boot_id and _same_words(entry.finding, event):
        return entry
    finding = _reworded(entry.finding, event)
    return replace(
        entry,
        finding=replace(
            finding,
            count=finding.count + (1 if entry.good_reads else 0),
            last_seen=max(finding.last_seen, event.observed_at),
        ),
        quiet_since=max(entry.quiet_since, event.observed_at),
        good_reads=0,
        good_since=None,
        good_at=None,
    )


def happened_again(entry: Entry, event: HealthEvent) -> Entry:
    """Another occurrence: counted, and the worse of the two grades stays."""
    worse = confirmed(entry, event)
    return replace(
        worse,
        finding=replace(worse.finding, count=worse.finding.count + 1),
        good_reads=0,
        good_since=None,
        good_at=None,
    )


def confirmed(entry: Entry, event: HealthEvent) -> Entry:
    """The second witness of a counted occurrence: it may know more (the line's own words), it never counts."""
    old = entry.finding
    finding = _reworded(old, event) if _rank(event) > SEVERITY_ORDER.index(old.severity) else old
    return replace(
        entry,
        finding=replace(
            finding,
            first_seen=min(old.first_seen, event.observed_at),
            last_seen=max(old.last_seen, event.observed_at),
        ),
        quiet_since=max(entry.quiet_since, event.observed_at),
    )


def read_good(entry: Entry, event: HealthEvent) -> Entry:
    """One more good reading in a row, if it is a newer one."""
    if entry.good_at is not None and event.observed_at <= entry.good_at:
        return entry
    return replace(
        entry,
        good_reads=entry.good_reads + 1,
        good_since=entry.good_since or event.observed_at,
        good_at=event.observed_at,
    )


def _rank(event: HealthEvent) -> int:
    return SEVERITY_ORDER.index(event.severity)


def _same_words(finding: Finding, event: HealthEvent) -> bool:
    return (
        finding.severity is event.severity
        and finding.scope is event.scope
        and finding.advice is event.advice
        and finding.source == event.source
        and finding.message == event.message
    )


def _reworded(finding: Finding, event: HealthEvent) -> Finding:
    return replace(
        finding,
        severity=event.severity,
        scope=event.scope,
        advice=event.advice,
        cleared_by=event.cleared_by,
        message=event.message,
        source=event.source,
        boot_id=event.boot_id,
    )
