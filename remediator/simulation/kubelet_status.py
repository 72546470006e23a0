"""What a kubelet writes: the status of its node and pods, and its heartbeat Lease. Pure but for `renew_lease`."""

from datetime import datetime
from typing import Any

from exporter.health.wire import timestamp
from remediator.simulation.client import Client
from remediator.simulation.status_errors import ApiError, Obj

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
VERSION = "v1.36.3"


def node(resource: str, devices: int, boot_id: str, now: datetime) -> Obj:
    """Status of a Ready node with `devices` of `resource`."""
    amounts = {"cpu": "96", "memory": "1024Gi", "pods": "110", resource: str(devices)}
    conditions = [
        _node_condition("MemoryPressure", "False", "KubeletHasSufficientMemory", now),
        _node_condition("DiskPressure", "False", "KubeletHasNoDiskPressure", now),
        _node_condition("PIDPressure", "False", "KubeletHasSufficientPID", now),
        _node_condition("Ready", "True", "KubeletReady", now),
    ]
    info = {
        "bootID": boot_id,
        "machineID": "simulated",
        "systemUUID": "simulated",
        "kernelVersion": "simulated",
        "osImage": "gpuward simulation",
        "operatingSystem": "linux",
        "architecture": "amd64",
        "containerRuntimeVersion": "simulated://1",
        "kubeletVersion": VERSION,
        "kubeProxyVersion": "",
    }
    return {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "nodeInfo": info}


def _node_condition(kind: str, value: str, reason: str, now: datetime) -> dict[str, Any]:
    at = timestamp(now)
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": reason,
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }


def _pod_conditions(ready: bool, now: datetime, reason: str = "") -> list[dict[str, Any]]:
    at = timestamp(now)
    values = {"Initialized": True, "ContainersReady": ready, "Ready": ready, "PodScheduled": True}
    why = {"reason": reason} if reason else {}
    return [
        {"type": kind, "status": str(value), "lastTransitionTime": at, **({} if value else why)}
        for kind, value in values.items()
    ]


def running(pod: Obj, now: datetime, restarts: int) -> Obj:
    """Status of a pod whose containers all run and are ready."""
    at = timestamp(now)
    containers = [
        {
            **_container(pod, spec),
            "ready": True,
            "started": True,
            "restartCount": restarts,
            "state": {"running": {"startedAt": at}},
        }
        for spec in pod["spec"]["containers"]
    ]
    begun = pod.get("status", {}).get("startTime") or at
    return {
        "phase": "Running",
        "startTime": begun,
        "podIP": "10.0.0.1",
        "hostIP": "127.0.0.1",
        "conditions": _pod_conditions(True, now),
        "containerStatuses": containers,
    }


def ended(pod: Obj, now: datetime, exit_code: int) -> Obj:
    """Status of a pod whose containers have all ended."""
    reason = "Completed" if exit_code == 0 else "Error"
    state = {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": timestamp(now)}}
    containers = [
        {**_container(pod, spec), "ready": False, "started": False, "restartCount": 0, "state": state}
        for spec in pod["spec"]["containers"]
    ]
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "conditions": _pod_conditions(False, now, "PodCompleted"),
        "containerStatuses": containers,
    }


def refused(resource: str) -> Obj:
    """Status of a pod that the device manager refused, in the real kubelet's words."""
    message = f"Pod was rejected: Allocate failed due to requested number of devices unavailable for {resource}"
    return {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}


def _container(pod: Obj, spec: Obj) -> dict[str, Any]:
    name, image = spec["name"], spec.get("image", "")
    return {
        "name": name,
        "image": image,
        "imageID": f"simulated://{image}",
        "containerID": f"simulated://{pod['metadata']['uid']}/{name}",
    }


def renew_lease(client: Client, name: str, now: datetime) -> None:
    """The node's heartbeat, created at the first time."""
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": 40,
        "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    try:
        client.request("PATCH", f"{LEASES}/{name}", {"spec": spec})
    except ApiError as error:
        if error.code != 404:
            raise
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        client.request("POST", LEASES, lease)
