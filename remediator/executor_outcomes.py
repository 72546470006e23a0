"""What became of actions: a server's refusal as an outcome, and the memory of outcomes.

The memory serves the planner's back-off; a restart misses nothing by losing it.
"""

import threading
from datetime import datetime, timedelta

from remediator.adapters.errors import ApiError, Conflict, Fatal, Retryable, Unauthorized
from remediator.adapters.errors import Blocked as BlockedError
from remediator.adapters.errors import Refused as RefusedError
from remediator.domain.outcomes import Blocked, Outcome, PastOutcome, Refused, Retry

KEPT = timedelta(hours=2)
"""Longer than the longest repeat the planner asks about (Events, one hour)."""
SWEEP_AT = 20_000
DEFAULT_RETRY = 2.0
FORBIDDEN_RETRY = 15.0
CONFLICT_RETRY = 0.2


def outcome_of(error: ApiError) -> Outcome:
    """What the caller of an action is told about a server's refusal."""
    reason = str(error)
    if error.status == 403:
        # A restarted API server forbids everything until it has read its roles; a missing role is mended by hand.
        return Retry(after_seconds=FORBIDDEN_RETRY, reason=reason)
    match error:
        case BlockedError():
            return Blocked(reason=reason, after_seconds=error.after)
        case Conflict():
            return Retry(after_seconds=CONFLICT_RETRY, reason=reason)
        case RefusedError() | Fatal():
            return Refused(reason=reason)
        case Retryable() | Unauthorized():
            return Retry(after_seconds=error.after or DEFAULT_RETRY, reason=reason)
        case _:
            return Retry(after_seconds=DEFAULT_RETRY, reason=reason)


class OutcomeBook:
    """The latest outcome per action key; safe to use from every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._past: dict[str, PastOutcome] = {}

    def note(self, key: str, outcome: Outcome, now: datetime) -> PastOutcome:
        """Remember `outcome`; the same kind again in a row raises the streak."""
        with self._lock:
            before = self._past.get(key)
            again = before is not None and type(before.outcome) is type(outcome)
            streak = before.streak + 1 if before is not None and again else 1
            noted = self._past[key] = PastOutcome(key=key, outcome=outcome, at=now, streak=streak)
            if len(self._past) > SWEEP_AT:
                self._past = {k: past for k, past in self._past.items() if now - past.at < KEPT}
            return noted

    def all(self) -> dict[str, PastOutcome]:
        """A copy, for the next view."""
        with self._lock:
            return dict(self._past)
