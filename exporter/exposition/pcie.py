"""PCIe link of each GPU. The generation falls when the GPU is idle; the width never should."""

from collections.abc import Iterator

from exporter.exposition.family import Family, Kind, reading, readings
from exporter.readings import GpuReadings


def _generation(gpu: GpuReadings) -> Iterator[tuple[str, int | None]]:
    if gpu.pcie is not None:
        yield "current", gpu.pcie.generation
        yield "max", gpu.pcie.generation_max


def _width(gpu: GpuReadings) -> Iterator[tuple[str, int | None]]:
    if gpu.pcie is not None:
        yield "current", gpu.pcie.width
        yield "max", gpu.pcie.width_max


FAMILIES = (
    Family(
        name="gpu_pcie_link_generation",
        help="PCIe generation of the link now, and the highest that GPU and slot can do.",
        labels=("gpu", "state"),
        samples=readings(_generation),
    ),
    Family(
        name="gpu_pcie_link_width_lanes",
        help="PCIe lanes of the link now, and the most that GPU and slot can do.",
        labels=("gpu", "state"),
        samples=readings(_width),
    ),
    Family(
        name="gpu_pcie_replays_total",
        help="PCIe packets sent again.",
        kind=Kind.COUNTER,
        samples=reading(lambda gpu: None if gpu.pcie is None else gpu.pcie.replays),
    ),
)
