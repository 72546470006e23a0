"""Who holds which device, as the kubelet's pod-resources socket tells it.

Laws:
1. Whatever goes wrong, the mapping is unknown with a reason, never empty: "nobody uses this GPU" must be said by a
   kubelet that knows its devices.
2. A kubelet that names neither a pod with devices nor an allocatable device has just started: unknown (`starting`).
3. Every entry once: kubelets repeat a device per NUMA node.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from exporter.readers.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from exporter.readers.unary import CallFailed, Method, call
from exporter.readings import PodDevice, PodMapping

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
SERVICE: Final = "/v1.PodResourcesLister"
RETRY_SECONDS: Final = 0.2
"""Pause after `exhausted`: the kubelet lets each client ask 100 times a second, and all its clients share that."""
MAX_DEVICES: Final = 65536
"""Devices kept of one answer; 110 pods with 64 shares each are a tenth of that."""

R = TypeVar("R", bound=Message)


class PodResourcesClient:
    """Asks one kubelet; holds no connection between two questions."""

    def __init__(self, socket_path: Path = SOCKET) -> None:
        self._socket_path = socket_path

    def read(self, timeout_seconds: float) -> PodMapping:
        """The mapping now, or an unknown one with its reason; returns within `timeout_seconds` and never raises."""
        now = datetime.now(UTC)
        deadline = time.monotonic() + timeout_seconds
        try:
            listed = self._ask("List", ListPodResourcesRequest(), ListPodResourcesResponse(), deadline)
            allocatable = self._allocatable(deadline)
        except CallFailed as failed:
            return PodMapping(known=False, reason=failed.word, taken_at=now)
        return _mapping(listed, allocatable, now)

    def _allocatable(self, deadline: float) -> AllocatableResourcesResponse:
        """Empty where the kubelet does not offer the call (before 1.23 by default)."""
        reply = AllocatableResourcesResponse()
        try:
            return self._ask("GetAllocatableResources", AllocatableResourcesRequest(), reply, deadline)
        except CallFailed as failed:
            if failed.word == "unimplemented":
                return AllocatableResourcesResponse()
            raise

    def _ask(self, name: str, request: Message, reply: R, deadline: float) -> R:
        method = Method(socket_path=self._socket_path, path=f"{SERVICE}/{name}")
        question = request.SerializeToString()
        try:
            answer = call(method, question, deadline - time.monotonic())
        except CallFailed as failed:
            if failed.word != "exhausted" or deadline - time.monotonic() <= RETRY_SECONDS:
                raise
            time.sleep(RETRY_SECONDS)
            answer = call(method, question, deadline - time.monotonic())
        try:
            reply.ParseFromString(answer)
        except DecodeError as broken:
            raise CallFailed("garbled", f"{name}: not the message it should be") from broken
        return reply


def _mapping(listed: ListPodResourcesResponse, allocatable: AllocatableResourcesResponse, now: datetime) -> PodMapping:
    devices = tuple(dict.fromkeys(_devices(listed)))
    offered = tuple(
        dict.fromkeys((entry.resource_name, each) for entry in allocatable.devices for each in entry.device_ids)
    )
    if not devices and not offered:
        return PodMapping(known=False, reason="starting", taken_at=now)
    if len(devices) > MAX_DEVICES or len(offered) > MAX_DEVICES:
        return PodMapping(known=False, reason="too-large", taken_at=now)
    return PodMapping(known=True, devices=devices, allocatable=offered, taken_at=now)


def _devices(listed: ListPodResourcesResponse) -> Iterator[PodDevice]:
    for pod in listed.pod_resources:
        for container in pod.containers:
            for entry in container.devices:
                for device_id in entry.device_ids:
                    yield PodDevice(
                        namespace=pod.namespace,
                        pod=pod.name,
                        container=container.name,
                        resource=entry.resource_name,
                        device_id=device_id,
                    )
