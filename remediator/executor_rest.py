"""How long a chain is left alone after a step that did not work, so that no refusal is asked for at full speed."""

import threading
import time

from remediator.domain.actions import Action, DeleteJob, EvictPod, TellEvent
from remediator.domain.outcomes import Blocked, PastOutcome, Refused, Retry

REFUSED_SECONDS = (2.0, 5.0, 15.0, 60.0)
"""A refusal seldom ends by itself; when it does (a webhook is mended), a minute is soon enough."""
RETRY_MOST = 5.0
"""A chain may have something new to do: it rests no longer than this for a step that only has to wait."""
APART = (EvictPod, DeleteJob, TellEvent)
"""Steps with a back-off of their own, or none that matters: the rest of the chain need not wait for them."""


def rest_after(action: Action, past: PastOutcome) -> float | None:
    """Seconds for which the chain of `action` should rest after this outcome; None = no reason to."""
    if isinstance(action, APART):
        return None
    match past.outcome:
        case Refused():
            return REFUSED_SECONDS[min(past.streak, len(REFUSED_SECONDS)) - 1]
        case Retry(after_seconds=after):
            return min(after, RETRY_MOST)
        case Blocked(after_seconds=known):
            return min(known or RETRY_MOST, RETRY_MOST)
        case _:
            return None


class Resting:
    """Chains that rest, by name; safe to use from every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def ended(self, chain: str, rest: float | None) -> None:
        """A chain has ended; it rests so many seconds, or not at all."""
        now = time.monotonic()
        with self._lock:
            self._until = {name: until for name, until in self._until.items() if until > now and name != chain}
            if rest is not None:
                self._until[chain] = now + rest

    def rests(self, chain: str) -> bool:
        with self._lock:
            return self._until.get(chain, 0.0) > time.monotonic()
