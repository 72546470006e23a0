"""Built-in kinds: defaults, what admission does to a new one, and the few validations that our clients can meet."""

from collections.abc import Callable
from typing import Any

from remediator.simulation import crds, pods
from remediator.simulation.resources import Resource
from remediator.simulation.status_errors import (
    FieldError,
    Obj,
    duplicate,
    not_done_here,
    not_supported,
    required,
    wrong,
)

NOT_READY = "node.kubernetes.io/not-ready"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NODE_INFO = (
    "machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion "
    "operatingSystem architecture"
)


def defaulted(resource: Resource, obj: Obj) -> Obj:
    """The object with the defaults of its kind, at create and at every update."""
    found = _DEFAULTS.get(resource.id)
    return found(obj) if found else obj


def at_create(resource: Resource, obj: Obj) -> Obj:
    """What admission adds to a new object."""
    found = _AT_CREATE.get(resource.id)
    return found(obj) if found else obj


def errors_of(resource: Resource, obj: Obj, old: Obj | None) -> list[FieldError]:
    """Everything wrong with the kind's own fields."""
    check = _CHECKS.get(resource.id)
    return check(obj, old) if check else []


def _node_defaults(node: Obj) -> Obj:
    """Zero values that the Node type always writes, and the ones it never does."""
    spec = dict(node.get("spec") or {})
    if not spec.get("unschedulable"):
        spec.pop("unschedulable", None)
    status = dict(node.get("status") or {})
    if "capacity" in status:
        status.setdefault("allocatable", status["capacity"])
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = dict.fromkeys(_NODE_INFO.split(), "") | (status.get("nodeInfo") or {})
    if conditions := status.get("conditions"):
        times = {"lastHeartbeatTime": None, "lastTransitionTime": None}
        status["conditions"] = [times | condition for condition in conditions]
    return {**node, "spec": spec, "status": status}


def _new_node(node: Obj) -> Obj:
    """Admission plugin TaintNodesByCondition: every posted Node starts not ready."""
    spec = node.get("spec") or {}
    taints = [t for t in spec.get("taints") or () if t.get("key") != NOT_READY]
    return {**node, "spec": {**spec, "taints": [*taints, {"key": NOT_READY, "effect": "NoSchedule"}]}}


def _taint_errors(node: Obj, old: Obj | None) -> list[FieldError]:
    """The server names these fields below `metadata`, not `spec`, and twice on an update; and so do we."""
    errors: list[FieldError] = []
    seen: set[tuple[Any, Any]] = set()
    for place, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        at, effect = f"metadata.taints[{place}]", taint.get("effect")
        if not effect:
            errors.append(required(f"{at}.effect"))
        elif effect not in _EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, _EFFECTS))
        if (pair := (taint.get("key"), effect)) in seen:
            shown = {"Key": taint.get("key"), "Value": taint.get("value", ""), "Effect": effect, "TimeAdded": None}
            errors.append(duplicate(at, shown, "taints must be unique by key and effect pair"))
        seen.add(pair)
    return errors if old is None else 2 * errors


def _new_namespace(namespace: Obj) -> Obj:
    metadata = namespace["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    spec = {"finalizers": ["kubernetes"]}
    return {**namespace, "metadata": {**metadata, "labels": labels}, "spec": spec, "status": {"phase": "Active"}}


def _event_defaults(event: Obj) -> Obj:
    return {"eventTime": None, "reportingComponent": "", "reportingInstance": "", **event}


def _event_errors(event: Obj, _: Obj | None) -> list[FieldError]:
    """An event of a cluster-scoped object lives in `default`, every other one beside its object."""
    involved = (event.get("involvedObject") or {}).get("namespace", "")
    own = event["metadata"]["namespace"]
    if (involved and involved != own) or (not involved and own not in ("default", "kube-system")):
        return [wrong("involvedObject.namespace", involved, "does not match event.namespace")]
    return []


def _lease_errors(lease: Obj, _: Obj | None) -> list[FieldError]:
    spec = lease.get("spec") or {}
    errors: list[FieldError] = []
    if (seconds := spec.get("leaseDurationSeconds")) is not None and seconds <= 0:
        errors.append(wrong("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    if (changes := spec.get("leaseTransitions")) is not None and changes < 0:
        errors.append(wrong("spec.leaseTransitions", changes, "must be greater than or equal to 0"))
    return errors


def _new_budget(budget: Obj) -> Obj:
    """A fresh budget allows nothing until the disruption controller has seen it."""
    zeros = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")
    return {**budget, "status": dict.fromkeys(zeros, 0)}


def _priority_class(found: Obj) -> Obj:
    return {"preemptionPolicy": "PreemptLowerPriority", **found}


def _templated(obj: Obj, *, replicas: bool) -> Obj:
    spec = dict(obj.get("spec") or {})
    if replicas:
        spec.setdefault("replicas", 1)
    if template := spec.get("template"):
        filled = pods.defaulted({"spec": template.get("spec") or {}})["spec"]
        spec["template"] = {**template, "spec": filled}
    return {**obj, "spec": spec}


def _scaled_defaults(obj: Obj) -> Obj:
    return _templated(obj, replicas=True)


def _deployment_defaults(obj: Obj) -> Obj:
    obj = _templated(obj, replicas=True)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    facts = {"strategy": rolling, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
    return {**obj, "spec": {**facts, **obj["spec"]}}


def _workload_errors(obj: Obj, _: Obj | None) -> list[FieldError]:
    spec = obj["spec"]
    errors = [required(f"spec.{name}") for name in ("selector", "template") if not spec.get(name)]
    if errors:
        return errors
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    wanted = spec["selector"].get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return [wrong("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")]
    return []


_JOB_REFUSED = ("podFailurePolicy", "successPolicy", "managedBy", "backoffLimitPerIndex", "maxFailedIndexes")


def _job_defaults(obj: Obj) -> Obj:
    obj = _templated(obj, replicas=False)
    given = obj["spec"]
    for name in _JOB_REFUSED:
        if given.get(name) is not None:
            raise not_done_here(f"spec.{name} of a Job")
    if given.get("completionMode", "NonIndexed") != "NonIndexed":
        raise not_done_here("an indexed Job")
    replacement = {"podReplacementPolicy": "TerminatingOrFailed"}
    spec: Obj = {"backoffLimit": 6, "suspend": False, "completionMode": "NonIndexed", **replacement, **given}
    if "completions" not in given and "parallelism" not in given:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    return {**obj, "spec": spec}


def _new_job(job: Obj) -> Obj:
    """The server makes the selector from the Job's own uid, and labels the template with it."""
    metadata, spec = job["metadata"], job["spec"]
    own = {"batch.kubernetes.io/controller-uid": metadata["uid"], "batch.kubernetes.io/job-name": metadata["name"]}
    old_style = {"controller-uid": metadata["uid"], "job-name": metadata["name"]}
    template = spec["template"]
    above = template.get("metadata") or {}
    labels = {**(above.get("labels") or {}), **own, **old_style}
    selector = {"matchLabels": {"batch.kubernetes.io/controller-uid": metadata["uid"]}}
    template = {**template, "metadata": {**above, "labels": labels}}
    return {**job, "spec": {**spec, "selector": selector, "template": template}, "status": {}}


def _job_errors(job: Obj, _: Obj | None) -> list[FieldError]:
    policy = job["spec"].get("template", {}).get("spec", {}).get("restartPolicy")
    if policy not in ("OnFailure", "Never"):
        allowed = ("OnFailure", "Never")
        return [not_supported("spec.template.spec.restartPolicy", policy, allowed)]
    return []


_DEFAULTS: dict[str, Callable[[Obj], Obj]] = {
    "nodes": _node_defaults,
    "pods": pods.defaulted,
    "events": _event_defaults,
    "deployments.apps": _deployment_defaults,
    "replicasets.apps": _scaled_defaults,
    "statefulsets.apps": _scaled_defaults,
    "jobs.batch": _job_defaults,
    "priorityclasses.scheduling.k8s.io": _priority_class,
}
_AT_CREATE: dict[str, Callable[[Obj], Obj]] = {
    "pods": pods.created,
    "nodes": _new_node,
    "namespaces": _new_namespace,
    "poddisruptionbudgets.policy": _new_budget,
    "jobs.batch": _new_job,
    crds.DEFINITIONS: crds.defaulted,
}
_CHECKS: dict[str, Callable[[Obj, Obj | None], list[FieldError]]] = {
    "nodes": _taint_errors,
    "pods": pods.errors_of,
    "events": _event_errors,
    "leases.coordination.k8s.io": _lease_errors,
    "deployments.apps": _workload_errors,
    "replicasets.apps": _workload_errors,
    "statefulsets.apps": _workload_errors,
    "jobs.batch": _job_errors,
}
