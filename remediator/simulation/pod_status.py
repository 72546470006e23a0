"""Pod statuses as a kubelet 1.36 writes them, built from plain facts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from exporter.health.wire import timestamp
from remediator.simulation.status_errors import Obj

Devices = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Container -> resource -> device ids."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a status is made of."""

    pod: Obj
    devices: Devices
    unhealthy: frozenset[str]
    """Device ids that the device plugin calls Unhealthy."""
    now: datetime
    restarts: int = 0


def starting(at: Situation) -> Obj:
    """Devices are allocated, containers are being made."""
    return _status(at, "Pending", {"waiting": {"reason": "ContainerCreating"}}, ready=False)


def running(at: Situation, address: str) -> Obj:
    """All containers run and are ready."""
    state = {"running": {"startedAt": timestamp(at.now)}}
    where = {"podIP": address, "podIPs": [{"ip": address}]}
    return _status(at, "Running", state, ready=True) | where


def finished(at: Situation, exit_code: int, reason: str = "") -> Obj:
    """All containers have ended for good."""
    phase = "Failed" if exit_code else "Succeeded"
    return _status(at, phase, {"terminated": terminated(at, exit_code, reason)}, ready=False)


def terminated(at: Situation, exit_code: int, reason: str = "") -> Obj:
    """The state of an ended container."""
    ended = timestamp(at.now)
    word = reason or ("Error" if exit_code else "Completed")
    return {"exitCode": exit_code, "reason": word, "startedAt": ended, "finishedAt": ended}


def rejected(now: datetime, reason: str, message: str) -> Obj:
    """The kubelet did not admit the pod; nothing of it ever ran."""
    told = {"phase": "Failed", "reason": reason, "message": message, "startTime": timestamp(now)}
    return told | {"containerStatuses": None}


def no_devices(resource: str, asked: int, available: int) -> str:
    """The message of a pod for which the device manager had too few devices."""
    told = f"requested number of devices unavailable for {resource}. Requested: {asked}, Available: {available}"
    return f"Pod was rejected: Allocate failed due to {told}, which is unexpected"


def no_healthy_devices(resource: str) -> str:
    """The message after a reboot, before the device plugin has registered again."""
    told = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
    return f"Pod was rejected: Allocate failed due to {told}, which is unexpected"


def _status(at: Situation, phase: str, state: Obj, *, ready: bool) -> Obj:
    containers = [_container(at, container, state, ready=ready) for container in at.pod["spec"]["containers"]]
    started = at.pod["status"].get("startTime") or timestamp(at.now)
    conditions = _conditions(at, ready=ready, ended=phase in ("Succeeded", "Failed"))
    return {"phase": phase, "startTime": started, "conditions": conditions, "containerStatuses": containers}


def _container(at: Situation, container: Obj, state: Obj, *, ready: bool) -> Obj:
    name = container["name"]
    status: Obj = {
        "name": name,
        "image": container["image"],
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": at.restarts,
        "state": state,
        "lastState": {},
    }
    if held := at.devices.get(name):
        status["allocatedResourcesStatus"] = [
            {"name": resource, "resources": list(_healths(ids, at.unhealthy))} for resource, ids in held.items()
        ]
    return status


def _healths(ids: Iterable[str], unhealthy: frozenset[str]) -> Iterable[Obj]:
    for device in ids:
        yield {"resourceID": device, "health": "Unhealthy" if device in unhealthy else "Healthy"}


def _conditions(at: Situation, *, ready: bool, ended: bool) -> list[Obj]:
    """For a strategic patch: the server merges them by type with what it has."""
    old = {c["type"]: c for c in at.pod["status"].get("conditions") or ()}
    why = {} if ready else {"reason": "PodCompleted" if ended else "ContainersNotReady"}
    wanted = {
        "PodReadyToStartContainers": (not ended, {}),
        "Initialized": (True, {"reason": "PodCompleted"} if ended else {}),
        "Ready": (ready, why),
        "ContainersReady": (ready, why),
    }
    out = []
    for kind, (true, reason) in wanted.items():
        status = "True" if true else "False"
        same = kind in old and old[kind]["status"] == status
        since = old[kind].get("lastTransitionTime") if same else None
        times: Obj = {"lastProbeTime": None, "lastTransitionTime": since or timestamp(at.now)}
        out.append({"type": kind, "status": status, **times, **reason})
    return out
