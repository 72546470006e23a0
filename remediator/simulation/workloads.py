"""Deployment, ReplicaSet and StatefulSet controllers: keep the wished number of pods, and say how far they are."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from remediator.simulation.client import Client
from remediator.simulation.eviction import is_ready
from remediator.simulation.owners import OwnedPods, is_active, owner_key, reference_to, suffix
from remediator.simulation.status_errors import ApiError, Obj
from remediator.simulation.store import Change, Key, Store, key_of

HASH = "pod-template-hash"


def pod_from(template: Obj, owner: Obj, name: str) -> Obj:
    """A pod of `template` controlled by `owner`."""
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if key != "name"}
    metadata |= {"name": name, "namespace": owner["metadata"]["namespace"], "ownerReferences": [reference_to(owner)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def put_status(client: Client, path: str, old: Obj, status: Obj) -> None:
    """Writes a status when it says something new."""
    before = old.get("status") or {}
    changed = {key: value for key, value in status.items() if before.get(key) != value}
    gone = {key: None for key in before if key not in status}
    if changed or gone:
        client.request("PATCH", f"{path}/{old['metadata']['name']}/status", {"status": changed | gone})


def pods_path(namespace: str) -> str:
    """Collection of the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


class ReplicaSets:
    """As many active pods as wished; surplus ones go, unready and young ones first."""

    watched = frozenset({"replicasets.apps", "pods"})

    def __init__(self, store: Store, client: Client) -> None:
        self._store = store
        self._client = client
        self._pods = OwnedPods(store, "pods")

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The set itself, or the set that owns a pod."""
        if resource != "pods":
            return [key_of(change.object)]
        self._pods.note(change.object, deleted=change.type == "DELETED")
        return owner_key(change.object, "ReplicaSet")

    def reconcile(self, key: Key) -> float | None:
        """See `Reconciler`."""
        found = self._store.get("replicasets.apps", key)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return None
        pods = self._pods.of(found)
        active = [pod for pod in pods if is_active(pod)]
        wanted = found["spec"]["replicas"]
        for _ in range(wanted - len(active)):
            name = f"{found['metadata']['name']}-{suffix()}"
            self._client.request("POST", pods_path(key[0]), pod_from(found["spec"]["template"], found, name))
        surplus = sorted(active, key=lambda pod: (is_ready(pod), not pod["spec"].get("nodeName")))
        for pod in surplus[: max(0, len(active) - wanted)]:
            self._client.request("DELETE", f"{pods_path(key[0])}/{pod['metadata']['name']}")
        ready = sum(1 for pod in active if is_ready(pod))
        status: Obj = {"replicas": len(active), "observedGeneration": found["metadata"]["generation"]}
        if ready:
            status |= {"readyReplicas": ready, "availableReplicas": ready}
        if active:
            status["fullyLabeledReplicas"] = len(active)
        put_status(self._client, f"/apis/apps/v1/namespaces/{key[0]}/replicasets", found, status)
        return None


class Deployments:
    """One ReplicaSet per template; an old one shrinks as the new one becomes ready (no surge limits kept)."""

    watched = frozenset({"deployments.apps", "replicasets.apps"})

    def __init__(self, store: Store, client: Client) -> None:
        self._store = store
        self._client = client
        self._sets = OwnedPods(store, "replicasets.apps")

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The deployment itself, or the one that owns a set."""
        if resource == "deployments.apps":
            return [key_of(change.object)]
        self._sets.note(change.object, deleted=change.type == "DELETED")
        return owner_key(change.object, "Deployment")

    def reconcile(self, key: Key) -> float | None:
        """See `Reconciler`."""
        found = self._store.get("deployments.apps", key)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return None
        name = f"{key[1]}-{template_hash(found['spec']['template'])}"
        sets = self._sets.of(found)
        current = next((one for one in sets if one["metadata"]["name"] == name), None)
        if current is None:
            current = self._client.request("POST", self._path(key), self._new_set(found, name))
        else:
            self._scale(key, current, found["spec"]["replicas"])
        ready = (current.get("status") or {}).get("readyReplicas", 0)
        for old in sets:
            if old["metadata"]["name"] != name and old["spec"]["replicas"]:
                self._scale(key, old, max(0, found["spec"]["replicas"] - ready))
        self._tell(key, found, [one for one in sets if one["metadata"]["name"] != name], current)
        return None

    def _path(self, key: Key) -> str:
        return f"/apis/apps/v1/namespaces/{key[0]}/replicasets"

    def _scale(self, key: Key, one: Obj, replicas: int) -> None:
        if one["spec"]["replicas"] != replicas:
            path = f"{self._path(key)}/{one['metadata']['name']}"
            self._client.request("PATCH", path, {"spec": {"replicas": replicas}})

    def _new_set(self, deployment: Obj, name: str) -> Obj:
        spec = deployment["spec"]
        mark = {HASH: name.rpartition("-")[2]}
        template = spec["template"]
        above = template.get("metadata") or {}
        labels = {**(above.get("labels") or {}), **mark}
        chosen = spec["selector"]
        selector = {**chosen, "matchLabels": {**(chosen.get("matchLabels") or {}), **mark}}
        metadata = {"name": name, "labels": labels, "ownerReferences": [reference_to(deployment)]}
        template = {**template, "metadata": {**above, "labels": labels}}
        return {
            "metadata": metadata,
            "spec": {"replicas": spec["replicas"], "selector": selector, "template": template},
        }

    def _tell(self, key: Key, deployment: Obj, old: list[Obj], current: Obj) -> None:
        every = [one.get("status") or {} for one in (*old, current)]
        ready = sum(one.get("readyReplicas", 0) for one in every)
        wanted = deployment["spec"]["replicas"]
        status: Obj = {"observedGeneration": deployment["metadata"]["generation"]}
        counts: dict[str, int] = {
            "replicas": sum(one.get("replicas", 0) for one in every),
            "updatedReplicas": (current.get("status") or {}).get("replicas", 0),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
        }
        put_status(
            self._client,
            f"/apis/apps/v1/namespaces/{key[0]}/deployments",
            deployment,
            status | {name: count for name, count in counts.items() if count},
        )


def template_hash(template: Obj) -> str:
    """Ten characters that change with the template; not the real algorithm, nobody may rely on it."""
    text: Any = json.dumps(template, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:10]


class StatefulSets:
    """Pods with fixed names, made in order, each when its predecessor is ready; removed from the end."""

    watched = frozenset({"statefulsets.apps", "pods"})

    def __init__(self, store: Store, client: Client) -> None:
        self._store = store
        self._client = client
        self._pods = OwnedPods(store, "pods")

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The set itself, or the set that owns a pod."""
        if resource != "pods":
            return [key_of(change.object)]
        self._pods.note(change.object, deleted=change.type == "DELETED")
        return owner_key(change.object, "StatefulSet")

    def reconcile(self, key: Key) -> float | None:
        """See `Reconciler`."""
        found = self._store.get("statefulsets.apps", key)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return None
        pods = {pod["metadata"]["name"]: pod for pod in self._pods.of(found)}
        names = [f"{key[1]}-{place}" for place in range(found["spec"]["replicas"])]
        self._grow(found, names, pods)
        for name in sorted(pods.keys() - set(names), reverse=True):
            if is_active(pods[name]):
                self._client.request("DELETE", f"{pods_path(key[0])}/{name}")
        ready = sum(1 for pod in pods.values() if is_ready(pod))
        status: Obj = {"replicas": len(pods), "observedGeneration": found["metadata"]["generation"]}
        status |= {"availableReplicas": ready} | ({"readyReplicas": ready} if ready else {})
        put_status(self._client, f"/apis/apps/v1/namespaces/{key[0]}/statefulsets", found, status)
        return None

    def _grow(self, found: Obj, names: list[str], pods: dict[str, Obj]) -> None:
        ordered = found["spec"].get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        path = pods_path(found["metadata"]["namespace"])
        for name in names:
            pod = pods.get(name)
            if pod is None:
                self._client.request("POST", path, pod_from(found["spec"]["template"], found, name))
            elif pod["status"].get("phase") in ("Succeeded", "Failed"):
                self._remove(f"{path}/{name}")
            if ordered and (pod is None or not is_ready(pod)):
                return

    def _remove(self, path: str) -> None:
        try:
            self._client.request("DELETE", path)
        except ApiError as error:
            if error.code != 404:
                raise
