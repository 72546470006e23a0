"""What became of an action: the words the executor answers with and the planner reads back.

Laws:
1. Waiting is a value, never an error: a disruption budget in the way is `Blocked`, a busy server `Retry`.
2. Outcomes are a memory of convenience (back-off, no repeat within seconds). Losing them in a restart must change
   nothing but timing.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class Done:
    """The world is as the action wanted it, by us or already before us."""

    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Not now (conflict, overload, timeout): look again after so many seconds."""

    after_seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The server says no and will say so again (403, 422, two disruption budgets on one pod): a human must look."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A disruption budget allows no eviction at present. `after_seconds`: the server's Retry-After, else None."""

    reason: str
    after_seconds: float | None = None


Outcome: TypeAlias = Done | Retry | Refused | Blocked


@dataclass(frozen=True, kw_only=True)
class PastOutcome:
    """The latest outcome of one action key and how often in a row it was of that kind."""

    key: str
    """`Action.key` of the action it belongs to."""
    outcome: Outcome
    at: datetime
    streak: int = 1
    """Consecutive outcomes of the same class, for back-off."""
