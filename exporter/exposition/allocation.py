"""Allocation: which container holds which device. An unknown mapping is said, never shown as an empty one."""

from collections import Counter
from collections.abc import Iterator

from exporter.attribution import SYSTEMS
from exporter.attribution.naming import Names
from exporter.exposition.family import Facts, Family, Sample
from exporter.health.keys import GPU_RESOURCE_PREFIX


def _allocations(facts: Facts) -> Iterator[Sample]:
    if not facts.mapping.known:
        return
    names = Names(gpu.identity for gpu in facts.snapshot.gpus)
    for held in facts.mapping.devices:
        shares = (system(held.device_id, names) for system in SYSTEMS)
        share = next((share for share in shares if share is not None), None)
        if share is None and not held.resource.startswith(GPU_RESOURCE_PREFIX):
            continue  # a network card or another vendor's device
        gpu = share.gpu if share else ""
        yield (gpu, held.namespace, held.pod, held.container, held.resource, held.device_id), 1


def _known(facts: Facts) -> Iterator[Sample]:
    yield (), int(facts.mapping.known)


def _allocatable(facts: Facts) -> Iterator[Sample]:
    if facts.mapping.known:
        counts = Counter(
            resource for resource, _ in facts.mapping.allocatable if resource.startswith(GPU_RESOURCE_PREFIX)
        )
        for resource, count in sorted(counts.items()):
            yield (resource,), count


FAMILIES = (
    Family(
        name="gpu_allocation_info",
        help="One series per device held by a container; an empty gpu means that the device id names no GPU seen here.",
        labels=("gpu", "namespace", "pod", "container", "resource", "device"),
        samples=_allocations,
    ),
    Family(
        name="gpu_mapping_known",
        help="1 = the kubelet said which container holds which device; 0 = nobody knows, and allocation is absent.",
        labels=(),
        samples=_known,
    ),
    Family(
        name="gpu_allocatable",
        help="Healthy devices that the kubelet may give out.",
        labels=("resource",),
        samples=_allocatable,
    ),
)
