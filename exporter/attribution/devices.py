"""Pods per GPU, from the kubelet's mapping and the identities of the GPUs.

Laws:
1. Only ids that a system of `SYSTEMS` understands are joined to a GPU; the others are counted by `strangers`, never
   guessed.
2. A container appears once per GPU and kind of share, however many ids it holds there.
3. An unknown mapping has no holders; `HealthReport.mapping_known` says that this means nothing.
"""

from collections.abc import Iterable, Iterator

from exporter.attribution import SYSTEMS
from exporter.attribution.naming import Names, Share
from exporter.health.vocabulary import DevicePod
from exporter.readings import GpuReadings, PodDevice, PodMapping

SOURCE = "pod-resources"


def holders(mapping: PodMapping, gpus: Iterable[GpuReadings]) -> dict[str, tuple[DevicePod, ...]]:
    """GPU UUID -> the containers that hold it or a part of it, sorted by namespace, pod and container."""
    found: dict[str, dict[DevicePod, None]] = {}
    for device, share in _shares(mapping, gpus):
        if share is not None:
            found.setdefault(share.gpu, {})[_pod(device, share)] = None
    return {gpu: tuple(sorted(pods, key=_order)) for gpu, pods in found.items()}


def strangers(mapping: PodMapping, gpus: Iterable[GpuReadings], prefix: str) -> int:
    """Devices whose resource name begins with `prefix` and whose id no system understands."""
    return sum(share is None and device.resource.startswith(prefix) for device, share in _shares(mapping, gpus))


def _shares(mapping: PodMapping, gpus: Iterable[GpuReadings]) -> Iterator[tuple[PodDevice, Share | None]]:
    if not mapping.known:
        return
    names = Names(gpu.identity for gpu in gpus)
    for device in mapping.devices:
        known = (system(device.device_id, names) for system in SYSTEMS)
        yield device, next((share for share in known if share is not None), None)


def _pod(device: PodDevice, share: Share) -> DevicePod:
    return DevicePod(
        namespace=device.namespace,
        name=device.pod,
        uid="",
        container=device.container,
        resource=device.resource,
        share=share.kind,
        source=SOURCE,
    )


def _order(pod: DevicePod) -> tuple[str, str, str, str, str]:
    return pod.namespace, pod.name, pod.container, pod.resource, pod.share
