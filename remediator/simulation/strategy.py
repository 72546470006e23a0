"""What is true of one kind when an object is created or updated: defaults, validation, what a client may not set.

Built-in kinds have no schema here: fields are stored as sent (the answer carries a warning when strict validation was
asked for). Custom resources are pruned and validated by their schema.
"""

import re
from collections.abc import Callable
from typing import Any

from remediator.simulation import schema
from remediator.simulation.resources import Resource
from remediator.simulation.status_errors import (
    FieldError,
    Obj,
    duplicate,
    forbidden_field,
    not_supported,
    required,
    wrong,
)

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def defaulted(resource: Resource, obj: Obj) -> Obj:
    """The object with the defaults of its kind, at create and at every update."""
    if resource.custom is not None:
        filled: Obj = schema.with_defaults(_schema(resource), obj)
        return filled
    found = _DEFAULTS.get(resource.id)
    return found(obj) if found else obj


def at_create(resource: Resource, obj: Obj) -> Obj:
    """What admission and the kind's own rules add or drop in a POST."""
    if "status" in resource.subresources and resource.id not in ("nodes", "pods"):
        obj = {key: value for key, value in obj.items() if key != "status"}
    found = _AT_CREATE.get(resource.id)
    return found(obj) if found else obj


def errors_of(resource: Resource, obj: Obj, old: Obj | None) -> list[FieldError]:
    """Everything wrong with the object; `old` is None at create."""
    errors = [] if old is not None else _name_errors(obj["metadata"].get("name"))
    if resource.custom is not None:
        definition = _schema(resource)
        errors += schema.validate(definition, obj)
        if not errors and old is not None:
            errors += schema.transition_errors(definition, old, obj)
        return errors
    if check := _CHECKS.get(resource.id):
        errors += check(obj, old)
    return errors


def pruned(resource: Resource, obj: Obj) -> tuple[Obj, list[str]]:
    """A custom object without unknown fields, and their paths; built-in kinds come back as they are."""
    if resource.custom is None:
        return obj, []
    kept, dropped = schema.prune(_schema(resource), obj)
    return kept, dropped


def _schema(resource: Resource) -> Obj:
    version: Obj = resource.custom or {}
    found: Obj = version["schema"]["openAPIV3Schema"]
    return found


def _name_errors(name: str | None) -> list[FieldError]:
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    if len(name) > 253 or not _SUBDOMAIN.match(name):
        return [wrong("metadata.name", name, _SUBDOMAIN_RULE)]
    return []


def _pod_defaults(pod: Obj) -> Obj:
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        **(pod.get("spec") or {}),
    }
    spec["containers"] = [_container_defaults(container) for container in spec.get("containers") or ()]
    return {**pod, "spec": spec}


def _container_defaults(container: Obj) -> Obj:
    resources = container.get("resources") or {}
    if limits := resources.get("limits"):
        resources = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    defaults = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    return {**defaults, **container, "resources": resources}


def _new_pod(pod: Obj) -> Obj:
    spec = dict(pod["spec"])
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *_lost_node_tolerations(spec)]
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    return {**pod, "spec": spec, "status": {"phase": "Pending", "qosClass": _quality(spec)}}


def _lost_node_tolerations(spec: Obj) -> list[Obj]:
    """Admission plugin DefaultTolerationSeconds: 300 s on nodes that are not ready or unreachable."""
    own = spec.get("tolerations") or ()
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in (NOT_READY, UNREACHABLE)
        if not any(t.get("key", "") in ("", key) and t.get("effect", "") in ("", "NoExecute") for t in own)
    ]


def _quality(spec: Obj) -> str:
    """QoS class by cpu and memory only, as the kubelet counts it."""
    both = ("cpu", "memory")
    asked = [container["resources"] for container in spec["containers"]]
    sums = [(r.get("requests") or {}, r.get("limits") or {}) for r in asked]
    if not any(name in requests or name in limits for requests, limits in sums for name in both):
        return "BestEffort"
    whole = all(name in limits and requests.get(name) == limits[name] for requests, limits in sums for name in both)
    return "Guaranteed" if whole else "Burstable"


def _new_node(node: Obj) -> Obj:
    """Admission plugin TaintNodesByCondition: every posted Node starts not ready."""
    spec = node.get("spec") or {}
    taints = [t for t in spec.get("taints") or () if t.get("key") != NOT_READY]
    return {**node, "spec": {**spec, "taints": [*taints, {"key": NOT_READY, "effect": "NoSchedule"}]}}


def _new_namespace(namespace: Obj) -> Obj:
    metadata = namespace["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    spec = {"finalizers": ["kubernetes"]}
    return {**namespace, "metadata": {**metadata, "labels": labels}, "spec": spec, "status": {"phase": "Active"}}


def _new_pdb(pdb: Obj) -> Obj:
    """A fresh budget allows nothing until the disruption controller has seen it."""
    zeros = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")
    return {**pdb, "status": dict.fromkeys(zeros, 0)}


def _workload_defaults(replicas: bool) -> Callable[[Obj], Obj]:
    def fill(obj: Obj) -> Obj:
        spec = dict(obj.get("spec") or {})
        if replicas:
            spec.setdefault("replicas", 1)
        if template := spec.get("template"):
            filled = _pod_defaults({"spec": template.get("spec") or {}})["spec"]
            spec["template"] = {**template, "spec": filled}
        return {**obj, "spec": spec}

    return fill


def _deployment_defaults(obj: Obj) -> Obj:
    obj = _workload_defaults(True)(obj)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    facts = {"strategy": rolling, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
    return {**obj, "spec": {**facts, **obj["spec"]}}


def _job_defaults(obj: Obj) -> Obj:
    obj = _workload_defaults(False)(obj)
    given = obj["spec"]
    spec: Obj = {"backoffLimit": 6, "suspend": False, "completionMode": "NonIndexed", **given}
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


def _taint_errors(node: Obj, _: Obj | None) -> list[FieldError]:
    """The server names these fields below `metadata`, not `spec`, and so do we."""
    errors: list[FieldError] = []
    seen: set[tuple[Any, Any]] = set()
    for place, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        at = f"metadata.taints[{place}]"
        if taint.get("effect") not in _EFFECTS:
            errors.append(
                not_supported(f"{at}.effect", taint["effect"], _EFFECTS)
                if taint.get("effect")
                else required(f"{at}.effect")
            )
        if (pair := (taint.get("key"), taint.get("effect"))) in seen:
            errors.append(duplicate(at, taint, "taints must be unique by key and effect pair"))
        seen.add(pair)
    return errors


_POD_MUTABLE = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates")
_POD_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _pod_errors(pod: Obj, old: Obj | None) -> list[FieldError]:
    if old is None:
        errors = [] if pod["spec"]["containers"] else [required("spec.containers")]
        for place, container in enumerate(pod["spec"]["containers"]):
            errors += [
                required(f"spec.containers[{place}].{key}") for key in ("name", "image") if not container.get(key)
            ]
        return errors
    if _fixed(pod["spec"]) != _fixed(old["spec"]):
        return [forbidden_field("spec", _POD_RULE)]
    return []


def _fixed(spec: Obj) -> Obj:
    kept = {key: value for key, value in spec.items() if key not in _POD_MUTABLE}
    for name in ("containers", "initContainers"):
        kept[name] = [{k: v for k, v in c.items() if k != "image"} for c in kept.get(name) or ()]
    return kept


_DEFAULTS: dict[str, Callable[[Obj], Obj]] = {
    "pods": _pod_defaults,
    "deployments.apps": _deployment_defaults,
    "replicasets.apps": _workload_defaults(True),
    "statefulsets.apps": _workload_defaults(True),
    "jobs.batch": _job_defaults,
}
_AT_CREATE: dict[str, Callable[[Obj], Obj]] = {
    "pods": _new_pod,
    "nodes": _new_node,
    "namespaces": _new_namespace,
    "poddisruptionbudgets.policy": _new_pdb,
    "jobs.batch": _new_job,
}
_CHECKS: dict[str, Callable[[Obj, Obj | None], list[FieldError]]] = {"nodes": _taint_errors, "pods": _pod_errors}
