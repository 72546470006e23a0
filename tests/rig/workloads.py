"""Manifests of the pods that tests put on real nodes, and what the API says of them."""

from collections.abc import Iterable

from tests.rig.api import Api, Object
from tests.rig.image import NAME as IMAGE
from tests.rig.node import RESOURCE

Pods = list[Object]


def container(gpus: int = 1, **environment: str) -> Object:
    """A container that waits for SIGTERM; PAUSE_SLEEP and PAUSE_EXIT make it end."""
    return {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        **({"resources": {"limits": {RESOURCE: gpus}}} if gpus else {}),
    }


def deployment(name: str, replicas: int, spread: bool = True) -> Object:
    """A Deployment of one-GPU pods that stop within a second; `spread` puts equal numbers on each node."""
    labels = {"app": name}
    spec: Object = {"containers": [container()], "terminationGracePeriodSeconds": 1}
    if spread:
        constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        spec["topologySpreadConstraints"] = [{**constraint, "labelSelector": {"matchLabels": labels}}]
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def pods(api: Api, namespace: str, app: str) -> Pods:
    return api.list(f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{app}")


def running(found: Iterable[Object]) -> Pods:
    """Those that run, are ready, and are not on their way out."""
    return [pod for pod in found if _ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def on(found: Iterable[Object], node: str) -> Pods:
    return [pod for pod in found if pod["spec"].get("nodeName") == node]


def name_of(thing: Object) -> str:
    name = thing["metadata"]["name"]
    assert isinstance(name, str)
    return name


def uid_of(thing: Object) -> str:
    uid = thing["metadata"]["uid"]
    assert isinstance(uid, str)
    return uid


def _ready(pod: Object) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
    return pod["status"].get("phase") == "Running" and conditions.get("Ready") == "True"
