"""What every quarantine method can do; narrower methods than the node taint fit the same three lines."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from remediator.adapters.wire import NodeObject
from remediator.domain.actions import LiftQuarantine, Quarantine
from remediator.domain.outcomes import Outcome

StillAllowed: TypeAlias = Callable[[NodeObject], Outcome | None]
"""Asked with the node as just read, right before the write; an Outcome is a refusal."""


class QuarantineMethod(Protocol):
    """One way to keep new work off a bad GPU. Both calls are idempotent and raise only `errors.ApiError`."""

    @property
    def name(self) -> str:
        """Word in `GPUIncident.status.quarantine.method`."""

    def apply(self, order: Quarantine, still_allowed: StillAllowed) -> Outcome:
        """Done only when the hold was seen in the cluster."""

    def undo(self, order: LiftQuarantine) -> Outcome:
        """Done when nothing of ours is left."""
