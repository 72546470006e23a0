"""The last look at the budget before a node is taken out, one at a time.

Laws:
1. A node counts against others when it is certain to be out: tainted, verified before, let through here a moment ago,
   or intended earlier than the one that asks. So the oldest intent is never kept waiting by a younger one.
2. A node that was verified out before may always be marked again.
"""

import threading
import time
from collections.abc import Callable
from datetime import datetime

from remediator.domain.budgets import holds_node, ledger, tainted
from remediator.domain.model import ClusterView, Incident
from remediator.domain.policy import Policy

LET_THROUGH_SECONDS = 60.0
"""By then the taint is in every watch, or was never set."""


class BudgetGate:
    """Safe to use from every thread; asked with the newest view there is."""

    def __init__(self, facts: Callable[[], ClusterView]) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._let_through: dict[str, float] = {}

    def refusal(self, policy: Policy, node_uid: str) -> str | None:
        """Why the node with this UID may not be taken out as well right now, or None."""
        with self._lock:
            view = self._facts()
            held = [incident for incident in view.incidents if holds_node(incident)]
            if any(i.quarantine is not None and i.quarantine.verified for i in held if i.node_uid == node_uid):
                return None
            book = ledger(view, policy.budget)
            certain = self._certain(view, held, node_uid) & book.out
            if len(certain) >= book.allowed:
                return f"{len(certain)} other GPU nodes are out, the budget allows {book.allowed}"
            self._let_through[node_uid] = time.monotonic()
            return None

    def _certain(self, view: ClusterView, held: list[Incident], node_uid: str) -> set[str]:
        now = time.monotonic()
        self._let_through = {uid: at for uid, at in self._let_through.items() if now - at < LET_THROUGH_SECONDS}
        ours = min((_intended(incident) for incident in held if incident.node_uid == node_uid), default=None)
        others = [incident for incident in held if incident.node_uid != node_uid]
        certain = {node.node.uid for node in view.nodes.values() if tainted(node)} | set(self._let_through)
        certain |= {i.node_uid for i in others if i.quarantine is not None and i.quarantine.verified}
        certain |= {i.node_uid for i in others if ours is None or _intended(i) < ours}
        return certain - {node_uid}


def _intended(incident: Incident) -> tuple[datetime, str]:
    """When the node was to be taken out, and a name for the case that two were intended in one turn."""
    return (incident.quarantine.applied_at if incident.quarantine else incident.opened_at), incident.node_uid
