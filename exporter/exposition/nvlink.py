"""NVLink: how many links of each GPU are up. Per-link series are left out: 18 links on 8 GPUs are 144 series."""

from collections.abc import Iterator

from exporter.exposition.family import Family, readings
from exporter.readings import GpuReadings


def _links(gpu: GpuReadings) -> Iterator[tuple[str, int]]:
    if gpu.nvlinks is not None:
        active = sum(link.active for link in gpu.nvlinks)
        yield "active", active
        yield "inactive", len(gpu.nvlinks) - active


FAMILIES = (
    Family(
        name="gpu_nvlink_links",
        help="NVLink links of the GPU by state.",
        labels=("gpu", "state"),
        samples=readings(_links),
    ),
)
