"""Quarantine by node taint: nothing new lands on the node, what runs there runs on. Works on every cluster.

Laws:
1. Taints are one list of many owners: it is written whole, with the resourceVersion it was read at.
2. Done means seen in the server's answer, not sent.
3. Undo removes our key with our effect, and a cordon, each only when told that it is ours.
"""

from datetime import UTC, datetime
from typing import Any

from exporter.health import keys
from exporter.health.wire import timestamp
from remediator.adapters import wire
from remediator.adapters.api import KubeApi
from remediator.adapters.errors import Conflict, NotFound
from remediator.adapters.quarantine.method import StillAllowed
from remediator.adapters.resources import NODES, Ref
from remediator.domain.actions import LiftQuarantine, Quarantine
from remediator.domain.outcomes import Done, Outcome, Retry

ATTEMPTS = 4
"""Writers meet on a Node now and then (kubelet, autoscaler); four lost tries mean a storm: later."""


class NodeTaint:
    """The method `node-taint`."""

    name = "node-taint"

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    def apply(self, order: Quarantine, still_allowed: StillAllowed) -> Outcome:
        """Put the taint (and the cordon, when asked) on; asks `still_allowed` about the node as it is now."""
        ref = Ref(NODES, order.node)
        for _ in range(ATTEMPTS):
            node = self._api.get(ref)
            if node.metadata.uid != order.node_uid:
                return Retry(after_seconds=1.0, reason=f"node {order.node} is another machine now")
            if _holds(node, order.cordon):
                return Done(note="was already there")
            refusal = still_allowed(node)
            if refusal is not None:
                return refusal
            try:
                after = self._api.merge_patch(ref, _with_taint(node, order))
            except Conflict:
                continue
            return Done() if _holds(after, order.cordon) else Retry(after_seconds=1.0, reason="taint did not stay")
        return Retry(after_seconds=1.0, reason="other writers were faster")

    def undo(self, order: LiftQuarantine) -> Outcome:
        """Take off exactly what we put on; a node that is gone or another machine needs nothing."""
        ref = Ref(NODES, order.node)
        for _ in range(ATTEMPTS):
            try:
                node = self._api.get(ref)
            except NotFound:
                return Done(note="the node is gone")
            if node.metadata.uid != order.node_uid:
                return Done(note="the node was replaced")
            kept = [taint for taint in node.spec.taints if not (order.untaint and _ours(taint))]
            uncordon = order.uncordon and node.spec.unschedulable
            if len(kept) == len(node.spec.taints) and not uncordon:
                return Done(note="was already gone")
            spec: dict[str, Any] = {"taints": [wire.to_plain(taint) for taint in kept]}
            if uncordon:
                spec["unschedulable"] = None
            try:
                self._api.merge_patch(ref, _patch(node, spec))
            except Conflict:
                continue
            return Done()
        return Retry(after_seconds=1.0, reason="other writers were faster")


def _ours(taint: wire.Taint) -> bool:
    return taint.key == keys.UNHEALTHY_TAINT and taint.effect == keys.NO_SCHEDULE


def _holds(node: wire.NodeObject, cordon: bool) -> bool:
    return any(_ours(taint) for taint in node.spec.taints) and (node.spec.unschedulable or not cordon)


def _with_taint(node: wire.NodeObject, order: Quarantine) -> dict[str, Any]:
    taints = [wire.to_plain(taint) for taint in node.spec.taints]
    if not any(_ours(taint) for taint in node.spec.taints):
        ours = {"key": keys.UNHEALTHY_TAINT, "value": order.taint_value, "effect": keys.NO_SCHEDULE}
        taints.append(ours | {"timeAdded": timestamp(datetime.now(UTC))})
    spec: dict[str, Any] = {"taints": taints}
    if order.cordon:
        spec["unschedulable"] = True
    return _patch(node, spec)


def _patch(node: wire.NodeObject, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": spec}
