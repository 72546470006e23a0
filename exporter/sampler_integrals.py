"""Utilization and memory summed over time, for each GPU as long as the exporter lives.

Laws:
1. Time is counted once: only what is newer than the last counted instant adds, so that a new worker that hands over the
   driver's whole sample buffer again neither loses nor doubles anything.
2. A gap adds nothing to a sum; it is counted as unobserved when the GPU is heard again.
3. What was before the first reading is not ours to count.
4. No clock here: the driver's samples and the sweeps bring their times. A clock that stepped back adds nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from exporter.readings import GpuIntegrals, GpuReadings

SAMPLE_GAP_SECONDS = 3.0
"""The driver samples every sixth of a second to every second, by product; three missing in a row are a gap."""
SWEEP_GAP_INTERVALS = 3.0
DEFAULT_INTERVAL_SECONDS = 10.0
SAMPLES = "samples"
"""Subject of the driver's sample buffer; while it fails, the buffer keeps what the next sweep will count."""


@dataclass
class Track:
    """One quantity summed over time; `total` is in units of the quantity times seconds."""

    total: float = 0.0
    unobserved_seconds: float = 0.0
    at: float | None = None
    value: float = 0.0

    def averaged(self, at: float, value: float, gap_seconds: float) -> None:
        """`value` is the mean since the sample before `at`."""
        self._extend(at, value, value, gap_seconds)

    def instant(self, at: float, value: float, gap_seconds: float) -> None:
        """`value` held at `at`; a straight line is drawn from the instant before."""
        self._extend(at, value, (self.value + value) / 2, gap_seconds)

    def _extend(self, at: float, value: float, mean: float, gap_seconds: float) -> None:
        if self.at is not None and at > self.at:
            seconds = at - self.at
            if seconds > gap_seconds:
                self.unobserved_seconds += seconds
            else:
                self.total += mean * seconds
        # A step back of the clock (beyond the reach of a repeated buffer) begins anew from there.
        if self.at is None or at > self.at or at < self.at - REPEATED_SECONDS:
            self.at, self.value = at, value


REPEATED_SECONDS = 300.0
"""A sample buffer reaches back some 20 seconds to two minutes; what is older than this means that the clock stepped."""


class Integrals:
    """The sums of every GPU of one node."""

    def __init__(self, interval_seconds: float) -> None:
        self._sweep_gap = SWEEP_GAP_INTERVALS * max(1.0, interval_seconds)
        self._tracks: dict[str, tuple[Track, Track]] = {}

    def added(self, gpu: GpuReadings) -> GpuReadings:
        """`gpu` with its sums in place of the raw samples."""
        busy, memory = self._tracks.setdefault(gpu.identity.uuid, (Track(), Track()))
        at = gpu.taken_at.timestamp()
        if gpu.utilization_samples is not None:
            self._sampled(busy, gpu.utilization_samples)
        elif gpu.utilization_ratio is not None and SAMPLES not in gpu.failed:
            busy.instant(at, gpu.utilization_ratio, self._sweep_gap)
        if gpu.memory_used_bytes is not None:
            memory.instant(at, float(gpu.memory_used_bytes), self._sweep_gap)
        integrals = GpuIntegrals(
            busy_seconds=None if busy.at is None else busy.total,
            memory_byte_seconds=None if memory.at is None else memory.total,
            unobserved_seconds=max(busy.unobserved_seconds, memory.unobserved_seconds),
        )
        return replace(gpu, utilization_samples=None, integrals=integrals)

    def _sampled(self, busy: Track, samples: Iterable[tuple[int, float]]) -> None:
        ordered = sorted(samples)
        if busy.at is None:
            # The buffer holds what was before the exporter's time; only its end matters.
            ordered = ordered[-1:]
        for microseconds, ratio in ordered:
            busy.averaged(microseconds / 1e6, ratio, SAMPLE_GAP_SECONDS)
