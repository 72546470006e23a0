"""Fake kubelets: API clients over HTTP that register nodes, run bound pods and hand out devices.

They work against the embedded API server and against a real control plane alike. Processes are imagined: a pod starts
after a moment, ends when it is told to, and a pod of a Job ends as `KubeletHooks.run_pod` decides.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from remediator.simulation import pod_status
from remediator.simulation.agenda import Agenda
from remediator.simulation.client import STRATEGIC, HttpClient
from remediator.simulation.kubelet_hooks import KubeletHooks, NoHooks, Timing
from remediator.simulation.node_devices import DeviceBook, Holder, Refused
from remediator.simulation.pod_feed import PodFeed
from remediator.simulation.pod_status import Devices, Situation
from remediator.simulation.registration import NodeSpec, Registration
from remediator.simulation.status_errors import ApiError, Obj

ENDED = ("Succeeded", "Failed")
CONFLICT = 409


@dataclass
class _Pod:
    """One admitted pod."""

    obj: Obj
    devices: Devices
    address: str
    restarts: int = 0
    stopping: bool = False
    ended: bool = False
    life: int = 0
    """Raised with every start and stop, so that a timer of an earlier life does nothing."""


@dataclass
class _Node:
    """One node with its devices and pods (by uid)."""

    spec: NodeSpec
    boot_id: str
    book: DeviceBook
    up: bool = True
    pods: dict[str, _Pod] = field(default_factory=dict)
    seen: dict[str, Obj] = field(default_factory=dict)


class Kubelets:
    """All kubelets of a cluster: one watch, one worker."""

    def __init__(self, client: HttpClient, hooks: KubeletHooks | None = None, timing: Timing | None = None) -> None:
        self._client = client
        self._hooks: KubeletHooks = hooks or NoHooks()
        self._timing = timing or Timing()
        self._registration = Registration(client)
        self._nodes: dict[str, _Node] = {}
        self._agenda = Agenda("fake-kubelets")
        self._feed = PodFeed(client, self._hear)

    def start(self) -> None:
        """Begins to watch pods."""
        self._agenda.start()
        self._feed.start()

    def stop(self) -> None:
        """Ends both threads; nodes fall silent."""
        self._feed.stop()
        self._agenda.stop()

    def add_node(self, spec: NodeSpec, boot_id: str = "") -> None:
        """Registers a node, Ready when this returns."""

        def add() -> None:
            node = _Node(spec=spec, boot_id=boot_id or str(uuid.uuid4()), book=DeviceBook(spec.devices))
            self._nodes[spec.name] = node
            self._registration.register(spec)
            self._announce(node)
            self._beat(spec.name)

        self._agenda.call(add)

    def remove_node(self, name: str) -> None:
        """The machine is gone; its Node object stays until somebody deletes it."""
        self._agenda.call(lambda: void(self._nodes.pop(name, None)))

    def silence(self, name: str, *, up: bool = False) -> None:
        """Stops (or resumes) everything the node says and does, without a reboot."""

        def change() -> None:
            self._nodes[name].up = up
            if up:
                self._registration.renew(name)
                self._resume(name, fresh=False)
                self._announce(self._nodes[name])

        self._agenda.call(change)

    def reboot(self, name: str, boot_id: str = "", *, after_seconds: float = 0.0, plugin_late: bool = True) -> None:
        """Restarts a node under a new boot id; returns at once.

        `plugin_late`: the device plugin registers after the kubelet has looked at its pods, as one that runs as a pod
        always does; every pod with devices is then refused and its devices are free.
        """
        self._agenda.after(after_seconds, partial(self._go_down, name, boot_id or str(uuid.uuid4()), plugin_late))

    def set_device_health(self, name: str, device: str, *, healthy: bool) -> None:
        """The device plugin's own verdict; allocatable follows."""

        def change() -> None:
            node = self._nodes[name]
            (node.book.unhealthy.discard if healthy else node.book.unhealthy.add)(device)
            self._announce(node)
            for pod in node.pods.values():
                if not pod.ended and not pod.stopping:
                    self._say(node, pod, partial(pod_status.running, address=pod.address))

        self._agenda.call(change)

    def holders(self, name: str) -> dict[str, Holder]:
        """Who holds which device of the node."""
        found: dict[str, Holder] = {}
        self._agenda.call(lambda: found.update(self._nodes[name].book.holders))
        return found

    def boot_id(self, name: str) -> str:
        """The node's current boot id."""
        return self._nodes[name].boot_id

    def _hear(self, kind: str, pod: Obj) -> None:
        self._agenda.after(0, partial(self._sync, kind, pod))

    def _beat(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        if node.up:
            self._registration.renew(name)
        self._agenda.after(self._timing.heartbeat_seconds, partial(self._beat, name))

    def _announce(self, node: _Node) -> None:
        self._registration.announce(node.spec, node.boot_id, node.book)
        self._hooks.on_devices_changed(node.spec.name, dict(node.book.holders))

    def _sync(self, kind: str, obj: Obj) -> None:
        """One news of one pod."""
        node = self._nodes.get(obj["spec"].get("nodeName", ""))
        if node is None:
            return
        uid = obj["metadata"]["uid"]
        if kind == "DELETED":
            node.seen.pop(uid, None)
            self._forget(node, uid)
            return
        node.seen[uid] = obj
        if node.up:
            self._look(node, obj)

    def _look(self, node: _Node, obj: Obj) -> None:
        uid = obj["metadata"]["uid"]
        pod = node.pods.get(uid)
        leaving = "deletionTimestamp" in obj["metadata"]
        if pod is None:
            if leaving:
                self._finish_deletion(obj)
            elif obj["status"].get("phase") not in ENDED:
                self._admit(node, obj)
            return
        pod.obj = obj
        if leaving and not pod.stopping:
            pod.stopping, pod.life = True, pod.life + 1
            grace = float(obj["metadata"].get("deletionGracePeriodSeconds", 0))
            wait = 0.0 if pod.ended else min(grace, self._timing.stop_seconds)
            self._agenda.after(wait, partial(self._stop, node, uid))

    def _admit(self, node: _Node, obj: Obj, *, plugin_ready: bool = True, restarts: int = 0) -> None:
        """Devices and a start, or a final no."""
        now = datetime.now(UTC)
        try:
            if not plugin_ready and (resource := node.book.asked(obj)):
                raise Refused(pod_status.no_healthy_devices(resource))
            devices = node.book.allocate(obj)
        except Refused as refusal:
            self._patch(obj, pod_status.rejected(now, "UnexpectedAdmissionError", str(refusal)))
            return
        uid = obj["metadata"]["uid"]
        serial = int(uuid.UUID(uid)) % 65_000
        pod = _Pod(obj=obj, devices=devices, address=f"10.88.{serial // 250}.{serial % 250 + 1}", restarts=restarts)
        node.pods[uid] = pod
        if devices:
            self._hooks.on_devices_changed(node.spec.name, dict(node.book.holders))
        # The start comes first: when the API server does not take the news, it is told again as Running.
        self._agenda.after(self._timing.start_seconds, partial(self._start, node, uid, pod.life))
        self._say(node, pod, pod_status.starting)

    def _start(self, node: _Node, uid: str, life: int) -> None:
        pod = self._living(node, uid, life)
        if pod is None:
            return
        self._say(node, pod, partial(pod_status.running, address=pod.address))
        ids = tuple(device for held in pod.devices.values() for devices in held.values() for device in devices)
        if (run := self._hooks.run_pod(node.spec.name, pod.obj, ids)) is not None:
            self._agenda.after(run.seconds, partial(self._end, node, uid, life, run.exit_code))

    def _living(self, node: _Node, uid: str, life: int) -> _Pod | None:
        pod = node.pods.get(uid)
        return pod if pod is not None and node.up and pod.life == life and not pod.stopping else None

    def _end(self, node: _Node, uid: str, life: int, exit_code: int) -> None:
        """The process has ended by itself: restart it or not, as the pod says."""
        pod = self._living(node, uid, life)
        if pod is None:
            return
        policy = pod.obj["spec"]["restartPolicy"]
        if policy == "Always" or (policy == "OnFailure" and exit_code):
            pod.restarts += 1
            pod.life += 1
            self._agenda.after(self._timing.start_seconds, partial(self._start, node, uid, pod.life))
            return
        self._say(node, pod, partial(pod_status.finished, exit_code=exit_code))
        pod.ended = True
        self._release(node, uid)

    def _stop(self, node: _Node, uid: str) -> None:
        """The process has ended as told: devices are free, the object may go."""
        pod = node.pods.get(uid)
        if pod is None or not node.up:
            return
        self._release(node, uid)
        self._finish_deletion(pod.obj)

    def _finish_deletion(self, obj: Obj) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": obj["metadata"]["uid"]}}
        try:
            self._client.request("DELETE", _path(obj), options)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            # Another pod has come under that name: this one is gone.

    def _forget(self, node: _Node, uid: str) -> None:
        """The object is gone; a force-deleted pod loses its devices at once."""
        node.pods.pop(uid, None)
        self._release(node, uid)

    def _release(self, node: _Node, uid: str) -> None:
        if node.book.release(uid):
            self._hooks.on_devices_changed(node.spec.name, dict(node.book.holders))

    def _say(self, node: _Node, pod: _Pod, status: Callable[[Situation], Obj]) -> None:
        situation = Situation(
            pod=pod.obj,
            devices=pod.devices,
            unhealthy=frozenset(node.book.unhealthy),
            now=datetime.now(UTC),
            restarts=pod.restarts,
        )
        self._patch(pod.obj, status(situation))

    def _patch(self, obj: Obj, status: Obj) -> None:
        body = {"metadata": {"uid": obj["metadata"]["uid"]}, "status": status}
        self._client.request("PATCH", f"{_path(obj)}/status", body, STRATEGIC)

    def _go_down(self, name: str, boot_id: str, plugin_late: bool) -> None:
        node = self._nodes[name]
        node.up, node.boot_id = False, boot_id
        self._agenda.after(self._timing.reboot_seconds, partial(self._come_up, name, plugin_late))

    def _come_up(self, name: str, plugin_late: bool) -> None:
        node = self._nodes[name]
        node.up = True
        self._registration.renew(name)
        self._resume(name, fresh=True, plugin_late=plugin_late)
        self._announce(node)

    def _resume(self, name: str, *, fresh: bool, plugin_late: bool = False) -> None:
        """Looks at every pod again; after a reboot (`fresh`) none of them runs any more."""
        node = self._nodes[name]
        before = dict(node.pods)
        if fresh:
            node.pods.clear()
            node.book.holders.clear()
        for uid, obj in tuple(node.seen.items()):
            old = before.get(uid)
            if fresh and old is not None and not old.ended and "deletionTimestamp" not in obj["metadata"]:
                self._revive(node, old, obj, plugin_late=plugin_late)
            else:
                self._look(node, obj)

    def _revive(self, node: _Node, old: _Pod, obj: Obj, *, plugin_late: bool) -> None:
        """A pod that ran before the reboot: started again, or failed when it must run only once."""
        if obj["spec"]["restartPolicy"] != "Never" or (plugin_late and node.book.asked(obj)):
            self._admit(node, obj, plugin_ready=not plugin_late, restarts=old.restarts + 1)
            return
        lost = _Pod(obj=obj, devices={}, address=old.address, restarts=old.restarts, ended=True)
        node.pods[obj["metadata"]["uid"]] = lost
        self._say(node, lost, partial(pod_status.finished, exit_code=137, reason="ContainerStatusUnknown"))


def void(_: object) -> None:
    """Throws a result away."""


def _path(obj: Obj) -> str:
    return f"/api/v1/namespaces/{obj['metadata']['namespace']}/pods/{obj['metadata']['name']}"
