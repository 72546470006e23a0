"""Asking a kubelet which container holds which device, through grpcio: independent of the product's own reader."""

from collections.abc import Mapping
from pathlib import Path

import grpc

from exporter.readers import podresources_pb2 as messages
from tests.rig.node import RESOURCE

METHOD = "/v1.PodResourcesLister/List"


def devices(socket: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the GPU ids by pod, as "namespace/name"; ConnectionError when the kubelet does not answer."""
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            METHOD,
            request_serializer=messages.ListPodResourcesRequest.SerializeToString,
            response_deserializer=messages.ListPodResourcesResponse.FromString,
        )
        try:
            answer = call(messages.ListPodResourcesRequest(), timeout=5)
        except grpc.RpcError as error:
            raise ConnectionError(str(error)) from error
    found: dict[str, tuple[str, ...]] = {}
    for pod in answer.pod_resources:
        held = [
            device for container in pod.containers for device in container.devices if device.resource_name == RESOURCE
        ]
        found[f"{pod.namespace}/{pod.name}"] = tuple(sorted(name for device in held for name in device.device_ids))
    return found
