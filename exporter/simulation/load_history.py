"""The recent load of a simulated GPU, from which its driver's utilization samples follow. Pure.

Laws:
1. A change of load takes hold EFFECT_DELAY_SECONDS after it was asked for, so that a sample once told never changes.
2. A sample is the mean load since the sample before; sample times are whole sixths of a second of absolute time.
"""

from typing import Final

from exporter.simulation.node import GpuState
from exporter.simulation.physics import EFFECT_DELAY_SECONDS, wobbling_percent

RING: Final = 120
SAMPLES_PER_SECOND: Final = 6
KEPT_SECONDS: Final = 30.0
"""A little longer than the ring reaches."""

Loads = tuple[tuple[float, float], ...]


def remembered(gpu: GpuState, ratio: float, now: float) -> Loads:
    """The load history after the load was set to `ratio` at `now`: (seconds since the epoch, ratio from then on)."""
    before = gpu.loads or ((0.0, gpu.utilization_ratio),)
    old = [entry for entry in before if entry[0] <= now - KEPT_SECONDS]
    recent = [entry for entry in before if entry[0] > now - KEPT_SECONDS]
    return (*old[-1:], *recent, (now + EFFECT_DELAY_SECONDS, ratio))


def mean_ratio(gpu: GpuState, start: float, end: float) -> float:
    """Mean load between two times."""
    loads = gpu.loads or ((0.0, gpu.utilization_ratio),)
    ends = (*(at for at, _ in loads[1:]), float("inf"))
    busy = sum(
        ratio * max(0.0, min(end, until) - max(start, at)) for (at, ratio), until in zip(loads, ends, strict=True)
    )
    return busy / (end - start)


def samples(gpu: GpuState, since_microseconds: int, begin: float, now: float) -> list[tuple[int, int]]:
    """(microseconds, percent) of the samples after `since_microseconds` that the ring holds at `now`.

    `begin`: when the driver was loaded; there is no sample from before.
    """
    last = int(now * SAMPLES_PER_SECOND)
    found = []
    for place in range(last - RING + 1, last + 1):
        at = place / SAMPLES_PER_SECOND
        microseconds = int(at * 1e6)
        if microseconds > since_microseconds and at > begin:
            ratio = mean_ratio(gpu, at - 1 / SAMPLES_PER_SECOND, at)
            found.append((microseconds, wobbling_percent(gpu, ratio, at)))
    return found
