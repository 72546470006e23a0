"""The Eviction and Binding subresources of pods.

Eviction asks the one PodDisruptionBudget that selects the pod; pods that are ending, ended or still pending are not
asked for. Three refusals share the code 429: budget exhausted (no Retry-After), budget not yet observed (Retry-After
10), and the server's own flow control (plain text, not made here).
"""

from exporter.health.wire import timestamp
from remediator.simulation.calls import Call, Reply, Target
from remediator.simulation.conditions import check_preconditions
from remediator.simulation.selectors import labels_of, selects
from remediator.simulation.status_errors import ApiError, Obj, bad_request, conflict, not_done_here, not_found, success
from remediator.simulation.store import Store
from remediator.simulation.writes import Clock, Writes

BUDGETS = "poddisruptionbudgets.policy"
VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
DISRUPTED_LIMIT = 2000


class PodActions:
    """POST to pods/eviction and pods/binding."""

    def __init__(self, store: Store, writes: Writes, clock: Clock) -> None:
        self._store = store
        self._writes = writes
        self._clock = clock

    def evict(self, target: Target, body: Obj, call: Call) -> Reply:
        """201 Success, or why not."""
        check_body(body, "policy/v1", "Eviction")
        if (body.get("metadata") or {}).get("name") != target.name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = body.get("deleteOptions") or {}
        dry = call.dry_run or "All" in (options.get("dryRun") or ())
        with self._store.lock:
            pod = self._store.get("pods", target.key)
            if pod is None:
                raise not_found("pods", "", target.name)
            check_preconditions(target, pod, options.get("preconditions") or {})
            ignored = "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] in (
                "Pending",
                "Succeeded",
                "Failed",
            )
            if not ignored:
                self._ask_budget(pod, dry=dry)
            if not dry:
                self._delete(target, pod, options, call)
        return Reply(code=201, body=success(code=201))

    def _ask_budget(self, pod: Obj, *, dry: bool) -> None:
        budgets = [
            budget
            for budget in self._store.items(BUDGETS, pod["metadata"]["namespace"])
            if selects(budget["spec"].get("selector"), labels_of(pod))
        ]
        if len(budgets) > 1:
            raise ApiError(500, "", TWO_BUDGETS)
        if budgets and not _spared(pod, budgets[0]):
            self._take(budgets[0], pod["metadata"]["name"], dry=dry)

    def _take(self, budget: Obj, pod_name: str, *, dry: bool) -> None:
        """One disruption off the budget, or 429."""
        name, status = budget["metadata"]["name"], budget.get("status") or {}
        if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
            error = _too_many(f"The disruption budget {name} is still being processed by the server.")
            error.details = {**(error.details or {}), "retryAfterSeconds": 10}
            error.headers["Retry-After"] = "10"
            raise error
        if len(status.get("disruptedPods") or {}) > DISRUPTED_LIMIT:
            raise not_done_here(f"more than {DISRUPTED_LIMIT} disrupted pods in one budget")
        allowed = status.get("disruptionsAllowed", 0)
        if allowed <= 0:
            needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
            raise _too_many(f"The disruption budget {name} needs {needs} healthy pods and has {has} currently")
        if dry:
            return
        disrupted = {**(status.get("disruptedPods") or {}), pod_name: timestamp(self._clock())}
        status = {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
        self._store.put(BUDGETS, {**budget, "status": status})

    def _delete(self, target: Target, pod: Obj, options: Obj, call: Call) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            condition = {
                "type": "DisruptionTarget",
                "lastProbeTime": None,
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastTransitionTime": timestamp(self._clock()),
            }
            status = pod["status"]
            others = [c for c in status.get("conditions") or () if c["type"] != "DisruptionTarget"]
            self._store.put("pods", {**pod, "status": {**status, "conditions": [*others, condition]}})
        self._writes.delete(target, {key: options[key] for key in options if key != "preconditions"}, call)

    def bind(self, target: Target, body: Obj, call: Call) -> Reply:
        """Puts a pod on a node, as a scheduler does."""
        check_body(body, "v1", "Binding")
        node = (body.get("target") or {}).get("name", "")
        with self._store.lock:
            pod = self._store.get("pods", target.key)
            if pod is None:
                raise not_found("pods", "", target.name)
            if current := pod["spec"].get("nodeName"):
                why = f'pod {target.name} is already assigned to node "{current}"'
                raise conflict("pods/binding", "", target.name, why)
            if call.dry_run:
                return Reply(code=201, body=success(code=201))
            self._store.put("pods", bound(pod, node, timestamp(self._clock())))
        return Reply(code=201, body=success(code=201))


def check_body(body: Obj, api_version: str, kind: str) -> None:
    """400 when the body says it is something else."""
    given = (body.get("apiVersion") or api_version, body.get("kind") or kind)
    if given != (api_version, kind):
        version, group = given[0].rpartition("/")[2], api_version.partition("/")[0] if "/" in api_version else "core"
        told = f'{given[1]} in version "{version}" cannot be handled as a {kind}'
        raise bad_request(f"{told}: converting ({version}.{given[1]}) to ({group}.{kind}): unknown conversion")


def bound(pod: Obj, node: str, at: str) -> Obj:
    """The pod on its node with PodScheduled true."""
    condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": at}
    others = [c for c in pod["status"].get("conditions") or () if c["type"] != "PodScheduled"]
    status = {**pod["status"], "conditions": [*others, condition]}
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status}


def _too_many(cause: str) -> ApiError:
    return ApiError(429, "TooManyRequests", VIOLATES, {"causes": [{"reason": "DisruptionBudget", "message": cause}]})


def _spared(pod: Obj, budget: Obj) -> bool:
    """An unready running pod may go without cost: always, or while the budget is healthy (the default policy)."""
    if is_ready(pod):
        return False
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    return bool(status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0)


def is_ready(pod: Obj) -> bool:
    """Condition Ready is True."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())
