"""A fake kubelet: registers a node with devices and runs the pods bound to it, as a client of any API server.

Laws:
1. It knows the cluster only through the API (list and watch of its own pods), so it serves the embedded server and a
   real one alike.
2. A device belongs to one pod from admission until the pod's object is gone or the pod has ended.
3. What only silicon or a process could decide is asked of `KubeletHooks`: how a pod that should end ends, and who must
   hear that devices changed hands.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from remediator.simulation import kubelet_status as status
from remediator.simulation.client import HttpClient, WatchStream
from remediator.simulation.quantities import quantity
from remediator.simulation.status_errors import ApiError, Obj

START_SECONDS = 0.2
"""From admission to Running: sandbox, image that is there already, process."""
LONGEST_GRACE_SECONDS = 1.0
"""Processes in the simulation end soon after SIGTERM, whatever grace they are given."""
TICK_SECONDS = 0.05
RETRY_SECONDS = 0.3
LEASE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The container that holds a device."""

    namespace: str
    pod: str
    uid: str
    container: str
    resource: str


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a pod that is not meant to run for ever ends."""

    seconds: float
    exit_code: int = 0


class KubeletHooks(Protocol):
    """What the world outside Kubernetes does."""

    def devices_changed(self, node: str, holders: Mapping[str, Holder]) -> None:
        """Who holds which device now, by device id; called before a pod's status says Running."""

    def ending(self, node: str, pod: Obj) -> Ending | None:
        """How and when this pod ends by itself; None = it runs until it is deleted. Asked once, when it starts."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The node to be."""

    name: str
    devices: tuple[str, ...]
    resource: str = "nvidia.com/gpu"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Running:
    """One pod on this node, as the kubelet's own book has it."""

    uid: str
    devices: dict[str, tuple[str, ...]]
    starts_at: float
    started: bool = False
    ends_at: float | None = None
    exit_code: int = 0
    stops_at: float | None = None
    restarts: int = 0
    ended: bool = False


class Kubelet:
    """One node; `start` registers it, `stop` ends the threads and leaves the objects as they are."""

    def __init__(self, client: HttpClient, machine: Machine, hooks: KubeletHooks, boot_id: str) -> None:
        self._client = client
        self._machine = machine
        self._hooks = hooks
        self._boot_id = boot_id
        self._next_boot: str | None = None
        self._lock = threading.Lock()
        self._pods: dict[str, Obj] = {}
        self._running: dict[str, _Running] = {}
        self._stopping = threading.Event()
        self._stream: WatchStream | None = None
        self._threads: list[threading.Thread] = []
        self._renew_at = 0.0

    def start(self) -> None:
        """Register the node and begin; raises ApiError or OSError when the server does not take it."""
        self._register()
        for name, target in (("watch", self._follow), ("pods", self._work)):
            thread = threading.Thread(target=target, name=f"kubelet-{self._machine.name}-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the threads; safe to call twice."""
        self._stopping.set()
        if self._stream:
            self._stream.close()
        for thread in self._threads:
            thread.join(5.0)

    def reboot(self, boot_id: str) -> None:
        """The machine went down and came up: containers start again, pods that do not restart have failed."""
        with self._lock:
            self._next_boot = boot_id

    def _come_up(self, boot_id: str, now: float) -> None:
        self._boot_id = boot_id
        for name, running in self._running.items():
            pod = self._pods.get(name)
            if pod is None or running.ended:
                continue
            if pod["spec"].get("restartPolicy") == "Never":
                running.started, running.ends_at, running.exit_code = True, now, 137
            else:
                running.started, running.starts_at = False, now + START_SECONDS
                running.restarts += 1
        self._tell_devices()
        self._say_node()

    def _register(self) -> None:
        machine = self._machine
        labels = {"kubernetes.io/hostname": machine.name, **machine.labels}
        metadata = {"name": machine.name, "labels": labels, "annotations": dict(machine.annotations)}
        try:
            self._client.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        except ApiError as error:
            if error.code != 409:
                raise
        self._say_node()

    def _say_node(self) -> None:
        machine = self._machine
        body = status.node(machine.resource, len(machine.devices), self._boot_id, datetime.now(UTC))
        self._client.request("PATCH", f"/api/v1/nodes/{machine.name}/status", {"status": body})

    def _follow(self) -> None:
        """Keep `_pods` what the API server says; start over after any break."""
        selector = {"fieldSelector": f"spec.nodeName={self._machine.name}"}
        while not self._stopping.is_set():
            try:
                found = self._client.request("GET", "/api/v1/pods", query=selector)
                with self._lock:
                    self._pods = {_name(pod): pod for pod in found["items"]}
                version = found["metadata"]["resourceVersion"]
                self._stream = self._client.watch("/api/v1/pods", {**selector, "resourceVersion": version})
                for kind, pod in self._stream:
                    if kind == "ERROR":
                        break
                    self._hear(kind, pod)
            except (ApiError, OSError, ValueError, AttributeError):
                # AttributeError: http.client's reader when the socket is closed under it by stop().
                self._stopping.wait(RETRY_SECONDS)

    def _hear(self, kind: str, pod: Obj) -> None:
        with self._lock:
            if kind == "DELETED":
                self._pods.pop(_name(pod), None)
            elif kind in ("ADDED", "MODIFIED"):
                self._pods[_name(pod)] = pod

    def _work(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            try:
                self._tick(time.monotonic())
            except (ApiError, OSError):
                # The server was away or somebody was faster: the next tick looks again.
                self._stopping.wait(RETRY_SECONDS)
        self._client.close()

    def _tick(self, now: float) -> None:
        with self._lock:
            pods, boot_id, self._next_boot = dict(self._pods), self._next_boot, None
        if boot_id:
            self._come_up(boot_id, now)
        self._forget_gone(pods)
        for name, pod in pods.items():
            running = self._running.get(name)
            if running is None:
                self._admit(name, pod, now)
            elif "deletionTimestamp" in pod["metadata"]:
                self._terminate(name, pod, running, now)
            elif not running.ended:
                self._advance(pod, running, now)
        if now >= self._renew_at:
            self._renew_at = now + LEASE_SECONDS
            status.renew_lease(self._client, self._machine.name, datetime.now(UTC))

    def _forget_gone(self, pods: Mapping[str, Obj]) -> None:
        """A pod whose object is gone, or is another one of the same name, gives its devices back."""
        gone = [
            name for name, run in self._running.items() if name not in pods or pods[name]["metadata"]["uid"] != run.uid
        ]
        for name in gone:
            del self._running[name]
        if gone:
            self._tell_devices()

    def _admit(self, name: str, pod: Obj, now: float) -> None:
        uid = pod["metadata"]["uid"]
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            self._running[name] = _Running(uid=uid, devices={}, starts_at=now, started=True, ended=True)
            return
        devices = self._allocate(pod)
        if devices is None:
            self._running[name] = _Running(uid=uid, devices={}, starts_at=now, started=True, ended=True)
            self._say(pod, status.refused(self._machine.resource))
            return
        self._running[name] = _Running(uid=uid, devices=devices, starts_at=now + START_SECONDS)
        if devices:
            self._tell_devices()

    def _allocate(self, pod: Obj) -> dict[str, tuple[str, ...]] | None:
        """Device ids by container; None when there are not enough."""
        held = {device for run in self._running.values() for ids in run.devices.values() for device in ids}
        free = [device for device in self._machine.devices if device not in held]
        taken: dict[str, tuple[str, ...]] = {}
        for container in pod["spec"]["containers"]:
            limits = (container.get("resources") or {}).get("limits") or {}
            count = int(quantity(limits.get(self._machine.resource, 0)))
            if count > len(free):
                return None
            if count:
                taken[container["name"]], free = tuple(free[:count]), free[count:]
        return taken

    def _advance(self, pod: Obj, running: _Running, now: float) -> None:
        if not running.started and now >= running.starts_at:
            running.started = True
            ending = self._hooks.ending(self._machine.name, pod)
            if ending is not None:
                running.ends_at, running.exit_code = now + ending.seconds, ending.exit_code
            self._say(pod, status.running(pod, datetime.now(UTC), running.restarts))
        elif running.started and running.ends_at is not None and now >= running.ends_at:
            running.ended, running.devices = True, {}
            self._tell_devices()
            self._say(pod, status.ended(pod, datetime.now(UTC), running.exit_code))

    def _terminate(self, name: str, pod: Obj, running: _Running, now: float) -> None:
        grace = min(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0), LONGEST_GRACE_SECONDS)
        if running.stops_at is None:
            running.stops_at = now + (0.0 if running.ended else grace)
        if now < running.stops_at or (running.ended and not running.started):
            return
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": running.uid}}
        try:
            self._client.request("DELETE", path, body)
        except ApiError as error:
            if error.code != 404:
                raise

    def _tell_devices(self) -> None:
        holders: dict[str, Holder] = {}
        for name, running in self._running.items():
            namespace, _, pod = name.partition("/")
            for container, ids in running.devices.items():
                holder = Holder(
                    namespace=namespace, pod=pod, uid=running.uid, container=container, resource=self._machine.resource
                )
                holders.update(dict.fromkeys(ids, holder))
        self._hooks.devices_changed(self._machine.name, holders)

    def _say(self, pod: Obj, body: Obj) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
        try:
            self._client.request("PATCH", path, {"metadata": {"uid": pod["metadata"]["uid"]}, "status": body})
        except ApiError as error:
            # Gone, or another pod of that name: the watch will tell.
            if error.code not in (404, 409, 422):
                raise


def _name(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
