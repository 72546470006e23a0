"""The story: what happens, in plain words with times, each step believed only when it was seen.

Law: a step counts when the API server or `/metrics` shows it. The narrator injects faults and looks; it never helps.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests

from exporter.health import keys
from remediator.operator.demo.eyes import Eyes
from remediator.operator.demo.workloads import NAMESPACE, PODS

POLL_SECONDS = 0.1
OPT_OUT_WATCH_SECONDS = 4.0
"""How long the opted-out node is watched for a write that must not come: several turns of the remediator."""


class NotSeenError(Exception):
    """A step did not happen in its time; the message says what was awaited and what was seen instead."""


@dataclass(frozen=True, kw_only=True)
class Victim:
    """The GPU that gets the fault, and the pod on it."""

    node: str
    index: int
    uuid: str
    pod: str
    uid: str


@dataclass(kw_only=True)
class Narrator:
    """Says what happens, with seconds since the fault, and waits for what must be seen."""

    say: Callable[[str], None]
    leave: threading.Event
    """Set when the reader wants to go."""
    clock: Callable[[], float] = time.monotonic
    began: float = field(default=0.0)

    def begin(self) -> None:
        """Zero the clock: the fault happens now."""
        self.began = self.clock()

    def tell(self, text: str) -> None:
        self.say(f"  {self.clock() - self.began:6.2f} s  {text}")

    def wait(self, what: str, seen: Callable[[], bool], seconds: float) -> float:
        """Seconds since `begin` when `seen` first held; raises NotSeenError after `seconds`."""
        deadline = self.clock() + seconds
        trouble = ""
        while self.clock() < deadline:
            try:
                if seen():
                    return self.clock() - self.began
            except requests.RequestException as error:
                trouble = f" (last error: {error})"
            if self.leave.wait(POLL_SECONDS):
                raise NotSeenError(f"left before it happened: {what}")
        raise NotSeenError(f"not seen within {seconds:.0f} s: {what}{trouble}")


class Story:
    """Two chapters: a GPU that heals, and a node whose owner said no."""

    def __init__(self, eyes: Eyes, narrator: Narrator, inject: Callable[[str, int, str], None]) -> None:
        self._eyes = eyes
        self._narrator = narrator
        self._inject = inject

    def opening(self, nodes: tuple[str, ...], gpus: int) -> None:
        """Everything is healthy and every pod runs."""
        narrator = self._narrator
        narrator.begin()

        def healthy() -> bool:
            states = [self._eyes.gpu_node(name) for name in nodes]
            return all(
                state.get("health") == "Healthy" and state.get("seenGPUs") == gpus and state.get("mappingKnown")
                for state in states
            )

        narrator.wait("every GPUNode healthy with its GPUs and pods known", healthy, 40)
        narrator.wait("every pod Running and mapped to its GPU", lambda: self._all_placed(nodes), 40)
        pods = self._eyes.pods(NAMESPACE)
        narrator.tell(f"{len(nodes)} nodes x {gpus} GPUs, all Healthy; {len(pods)} pods run on them.")

    def healing(self, node: str) -> None:
        """Chapter one: Xid 79 under a training pod."""
        victim = self._victim(node, "training")
        others = self._uids_elsewhere(victim)
        self._narrator.say("")
        self._narrator.say(
            f"GPU {victim.index} of {node} runs pod {victim.pod}. It falls off the bus (Xid 79) ... now."
        )
        self._narrator.begin()
        self._inject(node, victim.index, "xid:79")
        self._seen(victim)
        self._quarantined(victim)
        self._moved(victim)
        self._repaired_and_back(victim)
        self._tell_incident(node)
        hurt = others - {pod["metadata"]["uid"] for pod in self._eyes.pods(NAMESPACE)}
        if hurt:
            raise NotSeenError(f"pods on healthy nodes must go on undisturbed, but {len(hurt)} are gone")
        self._narrator.tell(f"{len(others)} pods on the other nodes never noticed.")

    def opted_out(self, node: str, reason: str) -> None:
        """Chapter two: the same fault where the owner said no."""
        victim = self._victim(node, None)
        self._narrator.say("")
        self._narrator.say(
            f"The same fault on GPU {victim.index} of {node}, annotated {keys.OPT_OUT}={reason!r} ... now."
        )
        before = self._fingerprint(node)
        self._narrator.begin()
        self._inject(node, victim.index, "xid:79")
        self._seen(victim)
        told = self._narrator.wait("an Event that says why nothing is done", lambda: bool(self._refusal(node)), 20)
        self._narrator.tell(f"left alone: {self._refusal(node)} (said after {told:.1f} s)")
        end = time.monotonic() + OPT_OUT_WATCH_SECONDS
        while time.monotonic() < end:
            if self._fingerprint(node) != before:
                raise NotSeenError(f"{node} is opted out, yet its taints or pods changed")
            time.sleep(POLL_SECONDS)
        self._narrator.tell(f"no taint, no eviction: {node} and its pods are as they were.")

    def _seen(self, victim: Victim) -> None:
        labels = {"gpu": victim.uuid, "xid": "79"}

        def in_metrics() -> bool:
            return bool(self._eyes.metric(victim.node, "gpu_xid_errors_total", **labels))

        metrics = self._narrator.wait("the Xid in /metrics", in_metrics, 20)
        stored = self._narrator.wait(
            "the finding in the GPUNode", lambda: self._device(victim)["health"] == "Unhealthy", 20
        )
        self._narrator.tell(f"seen: in /metrics after {metrics:.2f} s, in the GPUNode after {stored:.2f} s.")

    def _quarantined(self, victim: Victim) -> None:
        narrator = self._narrator
        after = narrator.wait("our taint on the node", lambda: self._eyes.taint(victim.node) is not None, 20)
        taint = f"{keys.UNHEALTHY_TAINT}={self._eyes.taint(victim.node)}"
        narrator.tell(f"quarantined after {after:.2f} s: {victim.node} has the taint {taint}:NoSchedule.")

    def _moved(self, victim: Victim) -> None:
        def gone() -> bool:
            return victim.uid not in {pod["metadata"]["uid"] for pod in self._eyes.pods(NAMESPACE)}

        self._narrator.wait(f"pod {victim.pod} gone", gone, 30)
        after = self._narrator.wait(
            "its replacement on a healthy GPU", lambda: self._fate(victim).get("fate") == "Replaced", 30
        )
        fate = self._fate(victim)
        where = f"{fate.get('replacement')} on {fate.get('replacementNode')}"
        self._narrator.tell(f"pod {victim.pod} runs elsewhere after {after:.2f} s: {where}.")

    def _repaired_and_back(self, victim: Victim) -> None:
        narrator = self._narrator
        boot = self._eyes.incidents(victim.node)[-1]["spec"]["bootID"]

        def repaired() -> bool:
            status = self._eyes.gpu_node(victim.node)
            return status.get("bootID") not in (None, boot) and self._device(victim)["health"] == "Healthy"

        after = narrator.wait("a new boot id and a healthy GPU", repaired, 60)
        narrator.tell(f"repaired after {after:.2f} s: the node was rebooted (new boot id) and the GPU answers.")
        after = narrator.wait("validation", lambda: self._phase(victim.node) in ("Probation", "Resolved"), 40)
        narrator.tell(f"validated after {after:.2f} s: the check Job passed and the report is clean.")
        back = narrator.wait("the taint gone", lambda: self._eyes.taint(victim.node) is None, 40)
        narrator.wait("the incident Resolved", lambda: self._phase(victim.node) == "Resolved", 20)
        narrator.tell(f"back in service after {back:.2f} s: probation served, the taint is gone.")

    def _tell_incident(self, node: str) -> None:
        incident = self._eyes.incidents(node)[-1]
        self._narrator.say(f"           kubectl get gpuincident {incident['metadata']['name']} tells it so:")
        for entry in incident["status"].get("history", []):
            self._narrator.say(f"             {entry['to']:<12} {entry['sentence']}")

    def _victim(self, node: str, app: str | None) -> Victim:
        for gpu in self._eyes.gpu_node(node)["gpus"]:
            for pod in gpu["pods"]:
                if pod["namespace"] == NAMESPACE and (app is None or pod["name"].startswith(app)):
                    found = self._eyes.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['name']}")
                    uid = str(found["metadata"]["uid"])
                    return Victim(node=node, index=gpu["index"], uuid=gpu["uuid"], pod=pod["name"], uid=uid)
        raise NotSeenError(f"no pod {app or ''} on a GPU of {node}")

    def _all_placed(self, nodes: tuple[str, ...]) -> bool:
        pods = {pod["metadata"]["name"] for pod in self._eyes.pods(NAMESPACE)}
        mapped = {
            pod["name"]
            for name in nodes
            for gpu in self._eyes.gpu_node(name).get("gpus", [])
            for pod in gpu["pods"]
            if pod["namespace"] == NAMESPACE
        }
        return len(pods) == PODS and pods == mapped

    def _device(self, victim: Victim) -> dict[str, Any]:
        gpus = self._eyes.gpu_node(victim.node).get("gpus", [])
        return next((dict(gpu) for gpu in gpus if gpu["uuid"] == victim.uuid), {"health": "Unknown"})

    def _fate(self, victim: Victim) -> dict[str, Any]:
        incidents = self._eyes.incidents(victim.node)
        pods = incidents[-1].get("status", {}).get("pods", []) if incidents else []
        return next((dict(pod) for pod in pods if pod["uid"] == victim.uid), {})

    def _phase(self, node: str) -> str:
        incidents = self._eyes.incidents(node)
        return str(incidents[-1].get("status", {}).get("phase", "")) if incidents else ""

    def _uids_elsewhere(self, victim: Victim) -> set[str]:
        pods = self._eyes.pods(NAMESPACE)
        return {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") != victim.node}

    def _fingerprint(self, node: str) -> tuple[object, ...]:
        pods = self._eyes.pods(NAMESPACE)
        mine = sorted(pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") == node)
        spec = self._eyes.node(node)["spec"]
        return (str(spec.get("taints")), bool(spec.get("unschedulable")), tuple(mine))

    def _refusal(self, node: str) -> str:
        told = [event for event in self._eyes.events(node) if "opt" in event.get("reason", "").lower()]
        return str(told[-1].get("message", "")) if told else ""
