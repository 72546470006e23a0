"""Utilization: how busy each GPU is. Sampled by the driver over its own short window (1/6 s to 1 s)."""

from exporter.exposition.family import Family, ratio, reading, readings

FAMILIES = (
    Family(
        name="gpu_utilization_ratio",
        help="Share of the driver's last sample window in which a kernel ran on the GPU.",
        unit="ratio",
        samples=reading(lambda gpu: ratio(gpu.utilization_ratio)),
    ),
    Family(
        name="gpu_memory_copy_utilization_ratio",
        help="Share of the driver's last sample window in which GPU memory was read or written.",
        unit="ratio",
        samples=reading(lambda gpu: ratio(gpu.memory_copy_utilization_ratio)),
    ),
    Family(
        name="gpu_processes",
        help="Processes that hold a context on the GPU.",
        labels=("gpu", "type"),
        samples=readings(lambda gpu: (("compute", gpu.compute_processes),)),
    ),
    Family(
        name="gpu_persistence_mode",
        help="1 = the driver stays loaded while nobody uses the GPU.",
        samples=reading(lambda gpu: gpu.persistence_mode),
    ),
)
