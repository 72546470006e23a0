"""Growing waits between attempts."""

import random
from dataclasses import dataclass

JITTER = 0.2
"""Share of the wait that is random: replicas and reflectors must not come back in step after an outage."""


@dataclass(frozen=True, kw_only=True)
class BackoffLimits:
    """Seconds of the first and the longest wait; each is `factor` times the one before."""

    first: float = 0.5
    longest: float = 30.0
    factor: float = 2.0


class Backoff:
    """The wait before the next attempt of one thing; not shared between threads."""

    def __init__(self, limits: BackoffLimits = BackoffLimits()) -> None:
        self._limits = limits
        self.failures = 0

    def next_wait(self) -> float:
        """Seconds to wait now; grows with every call until `reset`."""
        wait = plain_wait(self._limits, self.failures)
        self.failures += 1
        return wait * (1 - JITTER * random.random())

    def reset(self) -> None:
        self.failures = 0


def plain_wait(limits: BackoffLimits, failures: int) -> float:
    """Seconds after `failures` earlier failures, without jitter."""
    # The exponent is bounded because floats are not.
    return min(limits.longest, limits.first * limits.factor ** min(failures, 64))
