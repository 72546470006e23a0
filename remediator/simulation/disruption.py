"""The disruption controller: keeps the status of every PodDisruptionBudget."""

import math
from collections.abc import Iterable
from datetime import timedelta

from exporter.health.wire import parse_timestamp, timestamp
from remediator.simulation.client import Client
from remediator.simulation.eviction import BUDGETS, is_ready
from remediator.simulation.owners import controller_of, is_active
from remediator.simulation.selectors import labels_of, selects
from remediator.simulation.status_errors import Obj
from remediator.simulation.store import Change, Key, Store, key_of
from remediator.simulation.workloads import put_status
from remediator.simulation.writes import Clock

FORGET_DISRUPTED = timedelta(minutes=2)
"""A pod whose eviction was granted and that is still there after this time counts as healthy again."""
_SCALED = {"ReplicaSet": "replicasets.apps", "StatefulSet": "statefulsets.apps"}


class Budgets:
    """See the module."""

    watched = frozenset({BUDGETS, "pods"})

    def __init__(self, store: Store, client: Client, clock: Clock) -> None:
        self._store = store
        self._client = client
        self._clock = clock

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The budget itself, or those that select the pod."""
        if resource == BUDGETS:
            return [key_of(change.object)]
        labels = labels_of(change.object)
        budgets = self._store.items(BUDGETS, change.object["metadata"]["namespace"])
        return [key_of(budget) for budget in budgets if selects(budget["spec"].get("selector"), labels)]

    def reconcile(self, key: Key) -> float | None:
        """See `Reconciler`."""
        budget = self._store.get(BUDGETS, key)
        if budget is None:
            return None
        pods = [
            pod
            for pod in self._store.items("pods", key[0])
            if selects(budget["spec"].get("selector"), labels_of(pod)) and pod["status"].get("phase") not in _ENDED
        ]
        disrupted = self._disrupted(budget, pods)
        healthy = sum(
            1 for pod in pods if is_active(pod) and is_ready(pod) and pod["metadata"]["name"] not in disrupted
        )
        expected, desired = self._wanted(budget, pods)
        allowed = max(0, healthy - desired) if expected > 0 else 0
        status: Obj = {
            "observedGeneration": budget["metadata"]["generation"],
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
            "conditions": [self._condition(budget, allowed)],
        }
        if disrupted:
            status["disruptedPods"] = disrupted
        put_status(self._client, f"/apis/policy/v1/namespaces/{key[0]}/poddisruptionbudgets", budget, status)
        return FORGET_DISRUPTED.total_seconds() if disrupted else None

    def _disrupted(self, budget: Obj, pods: list[Obj]) -> dict[str, str]:
        """Granted evictions that have not shown up as a deletion yet."""
        waiting = {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
        granted = (budget.get("status") or {}).get("disruptedPods") or {}
        limit = self._clock() - FORGET_DISRUPTED
        return {name: at for name, at in granted.items() if name in waiting and parse_timestamp(at) > limit}

    def _wanted(self, budget: Obj, pods: list[Obj]) -> tuple[int, int]:
        """Expected pods and how many of them must be healthy."""
        spec = budget["spec"]
        if "maxUnavailable" in spec:
            expected = self._scale(pods)
            return expected, max(0, expected - _share(spec["maxUnavailable"], expected))
        least = spec.get("minAvailable", 1)
        if isinstance(least, str):
            expected = self._scale(pods)
            return expected, _share(least, expected)
        return len(pods), int(least)

    def _scale(self, pods: list[Obj]) -> int:
        """Replicas that the pods' controllers are asked to keep; 0 when a pod has none that scales."""
        total = 0
        seen: set[str] = set()
        for pod in pods:
            owner = controller_of(pod)
            resource = _SCALED.get(owner["kind"]) if owner else None
            if owner is None or resource is None:
                return 0
            found = self._store.get(resource, (pod["metadata"]["namespace"], owner["name"]))
            if owner["uid"] not in seen and found is not None:
                seen.add(owner["uid"])
                total += found["spec"]["replicas"]
        return total

    def _condition(self, budget: Obj, allowed: int) -> Obj:
        wanted = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
        old = next(iter((budget.get("status") or {}).get("conditions") or ()), None)
        same = old is not None and old["status"] == wanted[0]
        at = old["lastTransitionTime"] if same and old else timestamp(self._clock())
        return {
            "type": "DisruptionAllowed",
            "status": wanted[0],
            "observedGeneration": budget["metadata"]["generation"],
            "lastTransitionTime": at,
            "reason": wanted[1],
            "message": "",
        }


_ENDED = ("Succeeded", "Failed")


def _share(amount: int | str, whole: int) -> int:
    """`3` or `25%` of `whole`, rounded up."""
    if isinstance(amount, int):
        return amount
    return math.ceil(whole * int(amount.rstrip("%")) / 100)
