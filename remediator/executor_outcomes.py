"""The memory of what became of actions: back-off for the planner, nothing that a restart would miss."""

import threading
from datetime import datetime, timedelta

from remediator.domain.outcomes import Outcome, PastOutcome

KEPT = timedelta(hours=2)
"""Longer than the longest repeat the planner asks about (Events, one hour)."""
SWEEP_AT = 20_000


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
