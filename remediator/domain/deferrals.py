"""Why we wait: the words of deferral codes, and how a wait becomes a Deferral that does not churn.

The codes are metric labels and part of what users read in `kubectl get gpuincidents`: bounded, stable, spelled once.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from remediator.domain.model import Deferral


class Code(StrEnum):
    """Reason of a wait, and how soon (seconds) it is worth another look when nothing tells us earlier."""

    look_again_seconds: float

    def __new__(cls, word: str, look_again_seconds: float) -> "Code":
        member = str.__new__(cls, word)
        member._value_ = word
        member.look_again_seconds = look_again_seconds
        return member

    # The mode and the humans.
    OBSERVE = "observe", 600
    RECOMMEND = "recommend", 600
    OPTED_OUT = "opted-out", 60
    PAUSED = "paused", 60
    HELD = "held-by-human", 60
    CANCELLED_BEFORE = "cancelled-by-human", 600
    WAITING_FOR_HUMAN = "waiting-for-human", 600
    ESCALATED = "escalated", 600
    APPLICATION = "application-fault", 600
    # Doubt and brakes.
    SUSPICION = "suspicion", 5
    DEBOUNCE = "opt-out-ended", 5
    BUDGET = "budget", 30
    UNKNOWN_HEALTH = "unknown-health", 15
    NODE_NOT_READY = "node-not-ready", 15
    FOREIGN = "foreign-controller", 30
    # Steps under way.
    QUARANTINE = "quarantine-pending", 5
    PODS_UNKNOWN = "pods-unknown", 5
    MAPPING_UNKNOWN = "mapping-unknown", 15
    MAPPING_INCOMPLETE = "mapping-incomplete", 5
    PODS_LEAVING = "pods-leaving", 15
    EVICTION_BLOCKED = "eviction-blocked", 5
    PODS_HELD = "pods-held", 60
    NODE_IN_USE = "node-in-use", 30
    SIBLING_REPAIR = "sibling-repair", 15
    REPAIR_RUNNING = "repair-running", 30
    VALIDATION_RUNNING = "validation-running", 15
    PROBATION = "probation", 30
    LIFTING = "lifting", 5


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A wait just found: its code, one sentence without moving numbers, and when to look again."""

    code: Code
    message: str
    retry_at: datetime | None = None
    """None = the code's own interval."""


def deferral(wait: Wait, old: Deferral | None, now: datetime, place: tuple[str, str | None]) -> Deferral:
    """`wait` as a Deferral at `place` (node, gpu); `since` lasts as long as the code does, and an unchanged wait that
    is not due yet returns `old` itself, so that waiting writes nothing."""
    retry_at = wait.retry_at or now + timedelta(seconds=wait.code.look_again_seconds)
    fresh = Deferral(
        code=wait.code, message=wait.message[:512], since=now, retry_at=retry_at, node=place[0], gpu=place[1]
    )
    if old is None or old.code != wait.code.value:
        return fresh
    if old.message == fresh.message and now < old.retry_at <= retry_at:
        return old
    return replace(fresh, since=old.since)
