"""Reading of the opt-out annotations on a Node, Namespace or Pod. Monitoring is never affected.

Laws: any value but "false" opts out ("" included: unclear counts as opt-out); an expired `until` ends it; an `until`
that cannot be read opts out for good and earns a warning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from exporter.health import keys


@dataclass(frozen=True, kw_only=True)
class OptOut:
    """An opt-out in force."""

    reason: str
    """The annotation's words, or empty when it gave none."""
    until: datetime | None = None
    """None = for good."""
    warning: str = ""
    """What is wrong with the annotation, for an Event; empty = nothing."""

    def __str__(self) -> str:
        words = f"opted out: {self.reason}" if self.reason else "opted out"
        return f"{words} (until {self.until:%Y-%m-%dT%H:%M:%SZ})" if self.until else words


def opted_out(annotations: Mapping[str, str], now: datetime) -> OptOut | None:
    """The opt-out in force at `now`, or None."""
    value = annotations.get(keys.OPT_OUT)
    if value is None or value.strip().lower() == "false":
        return None
    reason = "" if value.strip().lower() in ("", "true") else value.strip()
    until_text = annotations.get(keys.OPT_OUT_UNTIL)
    if until_text is None:
        return OptOut(reason=reason)
    until = _moment(until_text)
    if until is None:
        warning = f"{keys.OPT_OUT_UNTIL} is {until_text[:64]!r}, not an RFC 3339 time: opted out for good"
        return OptOut(reason=reason, warning=warning)
    return OptOut(reason=reason, until=until) if now < until else None


def _moment(text: str) -> datetime | None:
    """RFC 3339 has date, time and offset; a date alone or a time without offset is unclear and does not count."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else None
