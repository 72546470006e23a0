"""Temperature: of the GPU and of its memory, and where the driver starts to act."""

from exporter.exposition.family import Family, reading, readings

FAMILIES = (
    Family(
        name="gpu_temperature_celsius",
        help="Temperature of the GPU core.",
        unit="celsius",
        samples=reading(lambda gpu: gpu.temperature_celsius),
    ),
    Family(
        name="gpu_memory_temperature_celsius",
        help="Temperature of the GPU memory, where the board measures it.",
        unit="celsius",
        samples=reading(lambda gpu: gpu.memory_temperature_celsius),
    ),
    Family(
        name="gpu_temperature_threshold_celsius",
        help="Core temperature at which the GPU slows down, and at which it shuts down.",
        unit="celsius",
        labels=("gpu", "kind"),
        samples=readings(lambda gpu: (("slowdown", gpu.slowdown_celsius), ("shutdown", gpu.shutdown_celsius))),
    ),
)
