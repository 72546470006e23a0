"""How many GPU nodes may be out of service by us at once.

Laws:
1. The smaller bound wins; at least one, never all; a bound that makes no sense allows nothing (fail closed).
2. A node counts once, however many incidents hold it; giving back never needs budget.
3. The last GPU node in service stays in service unless the policy says `lastNode: take`, whoever took the others out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor, isfinite

from exporter.health import keys
from remediator.domain.model import ClusterView, Incident, NodeView, Phase
from remediator.domain.policy import Budget

NOT_OUT = (Phase.SUSPECTED,)
"""Open phases in which nothing has been applied yet."""


def allowance(budget: Budget, total: int) -> int:
    """Nodes of `total` GPU nodes that may be out at once."""
    if total < 1:
        return 0
    bounds = []
    if budget.nodes is not None:
        bounds.append(budget.nodes)
    if budget.percent is not None:
        if not isfinite(budget.percent) or not 0 < budget.percent <= 100:
            return 0
        bounds.append(max(1, floor(total * budget.percent / 100)))
    ceiling = total if budget.last_node == "take" else total - 1
    return max(0, min([*(bounds or [1]), ceiling]))


def holds_node(incident: Incident) -> bool:
    """The incident keeps its node out of service, or may do so any moment (the intent counts)."""
    return incident.open and incident.quarantine is not None and incident.phase not in NOT_OUT


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Who is out at this point of the turn; each grant of the turn is charged at once."""

    out: frozenset[str]
    """UIDs of GPU nodes that are out by us."""
    in_service: frozenset[str]
    """UIDs of GPU nodes that take work: Ready, not cordoned, not out by us."""
    allowed: int
    total: int
    take_last: bool

    def refusal(self, node_uid: str) -> str | None:
        """Why `node_uid` may not be taken out now, or None when it may (or is out already)."""
        if node_uid in self.out:
            return None
        if len(self.out) >= self.allowed:
            return (
                f"{len(self.out)} of {self.total} GPU nodes are out of service by us, the budget allows {self.allowed}"
            )
        if not self.take_last and not self.in_service - {node_uid}:
            return "it is the last GPU node in service"
        return None

    def charge(self, node_uid: str) -> "Ledger":
        """The ledger with `node_uid` taken out."""
        return replace(self, out=self.out | {node_uid}, in_service=self.in_service - {node_uid})


def ledger(view: ClusterView, budget: Budget) -> Ledger:
    """The state of the budget as the cluster shows it: open incidents and taints of ours, orphaned ones included."""
    gpu_nodes = {name: node for name, node in view.nodes.items() if node.has_gpus}
    out = {i.node_uid for i in view.incidents if holds_node(i)} & {node.node.uid for node in view.nodes.values()}
    out |= {view_.node.uid for view_ in view.nodes.values() if tainted(view_)}
    return Ledger(
        out=frozenset(out),
        in_service=_in_service(gpu_nodes) - out,
        allowed=allowance(budget, len(gpu_nodes)),
        total=len(gpu_nodes),
        take_last=budget.last_node == "take",
    )


def tainted(view: NodeView) -> bool:
    """Our taint key is on the node, with our effect: any other is a foreign taint."""
    return mark(view) is not None


def mark(view: NodeView) -> str | None:
    """Value of the taint with our key and effect; None = there is none."""
    ours = (t for t in view.node.taints if (t.key, t.effect) == (keys.UNHEALTHY_TAINT, keys.NO_SCHEDULE))
    return next((taint.value for taint in ours), None)


def _in_service(nodes: Mapping[str, NodeView]) -> frozenset[str]:
    return frozenset(
        view.node.uid for view in nodes.values() if view.node.ready is True and not view.node.unschedulable
    )
