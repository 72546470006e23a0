"""Clocks, performance state, and what holds the clocks down at this moment."""

from collections.abc import Iterator

from exporter.exposition.family import Family, reading, readings
from exporter.readings import GpuReadings

# Bits of nvmlClocksEventReasons (nvml.h); the words are ours and stay when the vendor renames.
CLOCK_EVENT_BITS: tuple[tuple[int, str], ...] = (
    (0x001, "idle"),
    (0x002, "applications_clocks"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal"),
    (0x040, "hw_thermal"),
    (0x080, "hw_power_brake"),
    (0x100, "display"),
)


def _events(gpu: GpuReadings) -> Iterator[tuple[str, int]]:
    if gpu.clock_event_bits is not None:
        for bit, reason in CLOCK_EVENT_BITS:
            yield reason, int(bool(gpu.clock_event_bits & bit))


FAMILIES = (
    Family(
        name="gpu_clock_hertz",
        help="Current clock of each domain.",
        unit="hertz",
        labels=("gpu", "domain"),
        samples=readings(lambda gpu: ((clock.domain, clock.current_hertz) for clock in gpu.clocks)),
    ),
    Family(
        name="gpu_clock_max_hertz",
        help="Highest clock of each domain.",
        unit="hertz",
        labels=("gpu", "domain"),
        samples=readings(lambda gpu: ((clock.domain, clock.max_hertz) for clock in gpu.clocks)),
    ),
    Family(
        name="gpu_performance_state",
        help="Performance state; 0 is the fastest, 15 the slowest.",
        samples=reading(lambda gpu: gpu.performance_state),
    ),
    Family(
        name="gpu_clock_event_active",
        help="1 while this reason holds the clocks below their maximum.",
        labels=("gpu", "reason"),
        samples=readings(_events),
    ),
)
