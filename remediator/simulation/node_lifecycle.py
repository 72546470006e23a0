"""The node lifecycle and taint eviction controllers: what a cluster does when a node falls silent or is tainted.

A stale node Lease turns Ready to Unknown; Ready that is not True brings the not-ready or unreachable taints; a pod on
a node with a NoExecute taint that it does not tolerate is deleted, one that tolerates it for a time is deleted then.
"""

import time
from collections.abc import Iterable

from exporter.health.wire import parse_timestamp, timestamp
from remediator.simulation.client import Client
from remediator.simulation.garbage import remove
from remediator.simulation.scheduler import matches_toleration
from remediator.simulation.status_errors import Obj
from remediator.simulation.store import Change, Key, Store, key_of
from remediator.simulation.writes import Clock

LEASES = "leases.coordination.k8s.io"
NODE_LEASES = "kube-node-lease"
GRACE_SECONDS = 50.0
"""--node-monitor-grace-period of 1.36: a node without a fresh Lease for this long is Unknown."""
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
CORDONED = "node.kubernetes.io/unschedulable"
OWN_TAINTS = (NOT_READY, UNREACHABLE, CORDONED)


def ready_status(node: Obj) -> str:
    """`True`, `False`, `Unknown`, or "" when the node never said."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")


class NodeLifecycle:
    """Keys are nodes."""

    watched = frozenset({"nodes", LEASES})

    def __init__(self, store: Store, client: Client, clock: Clock, grace_seconds: float = GRACE_SECONDS) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._grace_seconds = grace_seconds

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The node, also when its Lease appears."""
        if resource == "nodes":
            return [key_of(change.object)]
        namespace, name = key_of(change.object)
        return [("", name)] if namespace == NODE_LEASES and change.type == "ADDED" else []

    def reconcile(self, key: Key) -> float | None:
        """See `Reconciler`."""
        node = self._store.get("nodes", key)
        if node is None:
            return None
        again = self._silence(node)
        self._taint(node)
        return again

    def _silence(self, node: Obj) -> float | None:
        """Ready becomes Unknown when the Lease is stale; seconds until it would be."""
        name = node["metadata"]["name"]
        lease = self._store.get(LEASES, (NODE_LEASES, name))
        if lease is None or not lease["spec"].get("renewTime"):
            return None
        age = (self._clock() - parse_timestamp(lease["spec"]["renewTime"])).total_seconds()
        if age <= self._grace_seconds:
            return max(0.05, self._grace_seconds - age + 0.01)
        if ready_status(node) not in ("", "Unknown"):
            condition = {
                "type": "Ready",
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": timestamp(self._clock()),
            }
            others = [c for c in node["status"]["conditions"] if c["type"] != "Ready"]
            self._client.request(
                "PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [*others, condition]}}
            )
        return self._grace_seconds

    def _taint(self, node: Obj) -> None:
        spec = node.get("spec") or {}
        taints = spec.get("taints") or []
        wanted = [] if not spec.get("unschedulable") else [(CORDONED, "NoSchedule")]
        match ready_status(node):
            case "False":
                wanted += [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]
            case "Unknown":
                wanted += [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
            case "":
                return
        has = [(t["key"], t["effect"]) for t in taints if t["key"] in OWN_TAINTS]
        if sorted(has) == sorted(wanted):
            return
        kept = [t for t in taints if t["key"] not in OWN_TAINTS or (t["key"], t["effect"]) in wanted]
        added = [{"key": key, "effect": effect} for key, effect in wanted if (key, effect) not in has]
        metadata = {"resourceVersion": node["metadata"]["resourceVersion"]}
        body = {"metadata": metadata, "spec": {"taints": [*kept, *added]}}
        self._client.request("PATCH", f"/api/v1/nodes/{node['metadata']['name']}", body)


class TaintEviction:
    """Keys are pods."""

    watched = frozenset({"nodes", "pods"})

    def __init__(self, store: Store, client: Client) -> None:
        self._store = store
        self._client = client
        self._on_node: dict[str, set[Key]] = {}
        self._deadlines: dict[Key, float] = {}

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """A bound pod, or every pod of a node whose NoExecute taints changed."""
        if resource == "pods":
            return self._of_pod(change)
        before = _no_execute(change.previous) if change.previous else []
        if _no_execute(change.object) == before:
            return ()
        return tuple(self._on_node.get(change.object["metadata"]["name"], ()))

    def _of_pod(self, change: Change) -> Iterable[Key]:
        key, node = key_of(change.object), change.object["spec"].get("nodeName", "")
        if change.type == "DELETED":
            self._on_node.get(node, set()).discard(key)
            self._deadlines.pop(key, None)
            return ()
        self._on_node.setdefault(node, set()).add(key)
        bound_now = not (change.previous and change.previous["spec"].get("nodeName"))
        return (key,) if node and bound_now else ()

    def reconcile(self, key: Key) -> float | None:
        """Deletes the pod now, later, or not at all."""
        pod = self._store.get("pods", key)
        node = self._store.get("nodes", ("", pod["spec"].get("nodeName", ""))) if pod else None
        if pod is None or node is None or "deletionTimestamp" in pod["metadata"]:
            return None
        allowed = tolerated_seconds(pod, _no_execute(node))
        if allowed is None:
            self._deadlines.pop(key, None)
            return None
        now = time.monotonic()
        deadline = self._deadlines.setdefault(key, now + allowed)
        if deadline > now:
            return deadline - now
        self._deadlines.pop(key, None)
        path = f"/api/v1/namespaces/{key[0]}/pods/{key[1]}"
        remove(self._client, path, pod["metadata"]["uid"])
        return None


def _no_execute(node: Obj) -> list[Obj]:
    return [t for t in (node.get("spec") or {}).get("taints") or () if t["effect"] == "NoExecute"]


def tolerated_seconds(pod: Obj, taints: list[Obj]) -> float | None:
    """How long the pod may stay under the taints; None = for good."""
    longest: list[float] = []
    for taint in taints:
        rules = [rule for rule in pod["spec"].get("tolerations") or () if matches_toleration(rule, taint)]
        if not rules:
            return 0.0
        limits = [float(rule["tolerationSeconds"]) for rule in rules if "tolerationSeconds" in rule]
        if limits:
            longest.append(min(limits))
    return min(longest, default=None)
