"""The scheduler: pending pods onto nodes with room, in order of priority, or the reason why not.

Knows: resource requests against allocatable (GPUs, cpu, memory, pods), taints, cordons, nodeSelector, required node
affinity. Spreads by free GPUs. What it does not do it says in the pod's condition: preemption, pod affinity, hard
topology spread, resource claims.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from exporter.health.wire import timestamp
from remediator.simulation.client import Client
from remediator.simulation.quantities import quantities, requests_of
from remediator.simulation.selectors import labels_of, matches_expression
from remediator.simulation.status_errors import ApiError, Obj
from remediator.simulation.store import Change, Key, Store, key_of
from remediator.simulation.writes import Clock

ALL: Key = ("", "")
NO_PREEMPTION = "embedded scheduler: preemption is not implemented"
NO_HELP = (
    "no new claims to deallocate, preemption: 0/{n} nodes are available: {n} Preemption is not helpful for scheduling."
)
ENDED = ("Succeeded", "Failed")


class Placed(NamedTuple):
    """What a pod takes from its node, and how urgent it is."""

    requests: dict[str, Decimal]
    priority: int


class Scheduler:
    """A reconciler with one key: the whole queue."""

    watched = frozenset({"pods", "nodes"})

    def __init__(self, store: Store, client: Client, clock: Clock) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._pending: set[Key] = set()
        self._used: dict[str, dict[Key, Placed]] = {}

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """Keeps the books of pending and placed pods."""
        if resource == "nodes":
            return (ALL,) if self._pending else ()
        pod, key = change.object, key_of(change.object)
        node, ended = pod["spec"].get("nodeName"), pod["status"].get("phase") in ENDED
        gone = change.type == "DELETED" or ended
        if node:
            self._pending.discard(key)
            books = self._used.setdefault(node, {})
            if not gone:
                books[key] = Placed(requests_of(pod), pod["spec"].get("priority", 0))
            elif books.pop(key, None) is not None and self._pending:
                return (ALL,)
            return ()
        if gone or "deletionTimestamp" in pod["metadata"] or pod["spec"].get("schedulerName") != "default-scheduler":
            self._pending.discard(key)
            return ()
        self._pending.add(key)
        return (ALL,) if change.type == "ADDED" else ()

    def reconcile(self, key: Key) -> float | None:
        """One pass over everything that waits."""
        nodes = self._store.items("nodes")
        for pod in sorted(self._waiting(), key=_urgency):
            self._place(pod, nodes)
        return None

    def _waiting(self) -> list[Obj]:
        found = [self._store.get("pods", key) for key in self._pending]
        return [pod for pod in found if pod is not None and not pod["spec"].get("nodeName")]

    def _place(self, pod: Obj, nodes: list[Obj]) -> None:
        wanted = requests_of(pod)
        if refusal := unsupported(pod):
            self._say_why(pod, refusal)
            return
        reasons: Counter[str] = Counter()
        fitting: list[tuple[Decimal, str]] = []
        for node in nodes:
            free = self._free(node)
            why = obstacles(pod, node, wanted, free)
            reasons.update(why)
            if not why:
                gpus = sum((amount for name, amount in free.items() if "/" in name), Decimal(0))
                fitting.append((-gpus, node["metadata"]["name"]))
        if not fitting:
            hope = NO_PREEMPTION if self._urgent(pod) else NO_HELP.format(n=len(nodes))
            self._say_why(pod, told(len(nodes), reasons, hope))
            return
        name = min(fitting)[1]
        self._bind(pod, name)
        self._used.setdefault(name, {})[key_of(pod)] = Placed(wanted, pod["spec"].get("priority", 0))

    def _urgent(self, pod: Obj) -> bool:
        """Whether a real scheduler would look for a less urgent pod to put out."""
        if pod["spec"].get("preemptionPolicy") == "Never":
            return False
        own = pod["spec"].get("priority", 0)
        return any(placed.priority < own for books in self._used.values() for placed in books.values())

    def _free(self, node: Obj) -> dict[str, Decimal]:
        free = quantities((node.get("status") or {}).get("allocatable"))
        for placed in self._used.get(node["metadata"]["name"], {}).values():
            for name, amount in placed.requests.items():
                if name in free:
                    free[name] -= amount
        return free

    def _bind(self, pod: Obj, node: str) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._client.request("POST", path, {"apiVersion": "v1", "kind": "Binding", "target": target})
        self._pending.discard(key_of(pod))

    def _say_why(self, pod: Obj, message: str) -> None:
        old = next((c for c in pod["status"].get("conditions") or () if c["type"] == "PodScheduled"), None)
        if old is not None and old.get("message") == message:
            return
        condition = condition_unschedulable(pod, message, self._clock())
        others = [c for c in pod["status"].get("conditions") or () if c["type"] != "PodScheduled"]
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        try:
            self._client.request("PATCH", path, {"status": {"conditions": [*others, condition]}})
        except ApiError as error:
            if error.code != 404:
                raise


def _urgency(pod: Obj) -> tuple[int, str, int]:
    """High priority first, then the older one."""
    metadata = pod["metadata"]
    return -pod["spec"].get("priority", 0), metadata["creationTimestamp"], int(metadata["resourceVersion"])


def condition_unschedulable(pod: Obj, message: str, now: datetime) -> Obj:
    """The pod condition of a pod that fits nowhere."""
    return {
        "type": "PodScheduled",
        "observedGeneration": pod["metadata"].get("generation", 1),
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(now),
    }


def unsupported(pod: Obj) -> str:
    """What the pod asks for and this scheduler does not do; "" when nothing."""
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    for name in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(name) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"embedded scheduler: {name} is not implemented"
    if any(rule.get("whenUnsatisfiable") == "DoNotSchedule" for rule in spec.get("topologySpreadConstraints") or ()):
        return "embedded scheduler: topologySpreadConstraints are not implemented"
    if spec.get("resourceClaims"):
        return "embedded scheduler: resource claims are not implemented"
    return ""


def obstacles(pod: Obj, node: Obj, wanted: dict[str, Decimal], free: dict[str, Decimal]) -> list[str]:
    """Why the pod may not run on the node, in the scheduler's words; the first failing filter speaks alone."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable") and not tolerates(pod, _CORDON):
        return ["node(s) were unschedulable"]
    if first_untolerated(pod, spec.get("taints") or ()):
        return ["node(s) had untolerated taint(s)"]
    if not _selected(pod, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    short = [name for name, amount in wanted.items() if amount > free.get(name, Decimal(0))]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def first_untolerated(pod: Obj, taints: Iterable[Obj]) -> Obj | None:
    """The first taint that keeps the pod away."""
    hard = (taint for taint in taints if taint.get("effect") in ("NoSchedule", "NoExecute"))
    return next((taint for taint in hard if not tolerates(pod, taint)), None)


def tolerates(pod: Obj, taint: Obj) -> bool:
    """Whether one of the pod's tolerations matches the taint."""
    return any(matches_toleration(rule, taint) for rule in pod["spec"].get("tolerations") or ())


def matches_toleration(rule: Obj, taint: Obj) -> bool:
    """Key (empty = all), effect (empty = all), and value unless the operator is Exists."""
    if rule.get("effect") and rule["effect"] != taint.get("effect"):
        return False
    if rule.get("key") and rule["key"] != taint["key"]:
        return False
    exists = rule.get("operator") == "Exists"
    return exists or bool(rule.get("key") and rule.get("value", "") == taint.get("value", ""))


def _selected(pod: Obj, node: Obj) -> bool:
    spec, labels = pod["spec"], labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_term(term, node, labels) for term in required["nodeSelectorTerms"])


def _term(term: Obj, node: Obj, labels: dict[str, str]) -> bool:
    fields = {"metadata.name": node["metadata"]["name"]}
    rules: list[tuple[Any, dict[str, str]]] = [(rule, labels) for rule in term.get("matchExpressions") or ()]
    rules += [(rule, fields) for rule in term.get("matchFields") or ()]
    return bool(rules) and all(matches_expression(rule, values) for rule, values in rules)


def told(count: int, reasons: Counter[str], hope: str) -> str:
    """`0/3 nodes are available: 2 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable. ...`."""
    if not count:
        return "no nodes available to schedule pods"
    parts = ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
    return f"0/{count} nodes are available: {parts}. {hope}"
