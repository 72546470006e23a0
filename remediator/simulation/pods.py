"""Pods: defaults, what admission adds to a new one, and what may not be changed later."""

from remediator.simulation.status_errors import FieldError, Obj, forbidden_field, required

LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TOLERATED_SECONDS = 300
"""Admission plugin DefaultTolerationSeconds: how long a pod stays on a node that is not ready or unreachable."""
_MUTABLE = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates", "nodeName")
_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def defaulted(pod: Obj) -> Obj:
    """The pod with the defaults of its type."""
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        **(pod.get("spec") or {}),
    }
    for name in ("containers", "initContainers"):
        if name in spec:
            spec[name] = [_container(container) for container in spec[name] or ()]
    return {**pod, "spec": spec, **({"status": _status(pod["status"])} if pod.get("status") else {})}


def _status(status: Obj) -> Obj:
    """Zero values that the type always writes."""
    out = dict(status)
    if conditions := out.get("conditions"):
        times = {"lastProbeTime": None, "lastTransitionTime": None}
        out["conditions"] = [times | condition for condition in conditions]
    if out.get("podIP"):
        out["podIPs"] = [{"ip": out["podIP"]}, *(out.get("podIPs") or ())[1:]]
    return out


def _container(container: Obj) -> Obj:
    resources = container.get("resources") or {}
    if limits := resources.get("limits"):
        resources = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    image = container.get("image") or ""
    untagged = ":" not in image.rsplit("/", 1)[-1] and "@" not in image
    defaults = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if untagged or image.endswith(":latest") else "IfNotPresent",
    }
    return {**defaults, **container, "resources": resources}


def created(pod: Obj) -> Obj:
    """What admission and the registry do to a new pod; its priority is set by `admission`."""
    spec = {"enableServiceLinks": True, **pod["spec"]}
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *_lost_node_tolerations(spec)]
    if not spec["tolerations"]:
        del spec["tolerations"]
    return {**pod, "spec": spec, "status": {"phase": "Pending", "qosClass": _quality(spec)}}


def _lost_node_tolerations(spec: Obj) -> list[Obj]:
    own = spec.get("tolerations") or ()
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_SECONDS}
        for key in LOST_NODE_TAINTS
        if not any(t.get("key", "") in ("", key) and t.get("effect", "") in ("", "NoExecute") for t in own)
    ]


def _quality(spec: Obj) -> str:
    """QoS class, by cpu and memory only."""
    both = ("cpu", "memory")
    asked = [container["resources"] for container in spec.get("containers") or ()]
    sums = [(r.get("requests") or {}, r.get("limits") or {}) for r in asked]
    if not any(name in requests or name in limits for requests, limits in sums for name in both):
        return "BestEffort"
    whole = all(name in limits and requests.get(name) == limits[name] for requests, limits in sums for name in both)
    return "Guaranteed" if whole else "Burstable"


def errors_of(pod: Obj, old: Obj | None) -> list[FieldError]:
    """Missing containers at create, changed fields later."""
    spec = pod["spec"]
    if old is not None:
        return [] if _fixed(spec) == _fixed(old["spec"]) else [forbidden_field("spec", _RULE)]
    if not spec.get("containers"):
        return [required("spec.containers")]
    return [
        required(f"spec.containers[{place}].{key}")
        for place, container in enumerate(spec["containers"])
        for key in ("name", "image")
        if not container.get(key)
    ]


def _fixed(spec: Obj) -> Obj:
    kept = {key: value for key, value in spec.items() if key not in _MUTABLE}
    for name in ("containers", "initContainers"):
        kept[name] = [{k: v for k, v in c.items() if k != "image"} for c in kept.get(name) or ()]
    return kept
