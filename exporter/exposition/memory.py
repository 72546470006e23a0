"""Memory: the frame buffer of each GPU, in bytes. Reserved memory belongs to the driver and is not in used."""

from exporter.exposition.family import Family, reading

FAMILIES = (
    Family(
        name="gpu_memory_total_bytes",
        help="Memory on the GPU.",
        unit="bytes",
        samples=reading(lambda gpu: gpu.memory_total_bytes),
    ),
    Family(
        name="gpu_memory_used_bytes",
        help="Memory allocated by processes.",
        unit="bytes",
        samples=reading(lambda gpu: gpu.memory_used_bytes),
    ),
    Family(
        name="gpu_memory_free_bytes",
        help="Memory that is neither used nor reserved.",
        unit="bytes",
        samples=reading(lambda gpu: gpu.memory_free_bytes),
    ),
    Family(
        name="gpu_memory_reserved_bytes",
        help="Memory that the driver and firmware keep for themselves.",
        unit="bytes",
        samples=reading(lambda gpu: gpu.memory_reserved_bytes),
    ),
)
