"""What a metric family is, what it may look at, and the few readers of facts that all subjects share.

Laws:
1. A sample function is pure: it sees `Facts` and nothing else, no clock, no device, no lock.
2. None is absent. No sample function ever yields 0 for a reading that is not there.
3. Label order is fixed by `Family.labels`; `gpu` (UUID) comes first on every device series.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from exporter.assess.xids import XidCount
from exporter.health.vocabulary import HealthReport
from exporter.readings import GpuReadings, GpuStatus, PodMapping, Snapshot

Sample = tuple[tuple[str, ...], float | int]
"""Label values in the order of `Family.labels`, and the value."""


class Kind(StrEnum):
    """Prometheus metric type."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything one exposition is made of; built once per turn."""

    snapshot: Snapshot
    report: HealthReport
    mapping: PodMapping
    xids: tuple[XidCount, ...] = ()
    now: datetime


@dataclass(frozen=True, kw_only=True)
class Family:
    """One metric: its name with base unit, its help sentence, and where its samples come from."""

    name: str
    help: str
    samples: Callable[[Facts], Iterable[Sample]]
    kind: Kind = Kind.GAUGE
    unit: str = ""
    """Base unit as it ends the name (before `_total`); empty for counts, states and info series."""
    labels: tuple[str, ...] = ("gpu",)


ANSWERING = frozenset({GpuStatus.UP, GpuStatus.RESET_REQUIRED})
"""States in which a reading may be shown; a lost, hung or missing GPU keeps identity and health only."""


def answering(facts: Facts) -> Iterator[GpuReadings]:
    """The GPUs whose readings may be shown."""
    return (gpu for gpu in facts.snapshot.gpus if gpu.status in ANSWERING)


def reading(read: Callable[[GpuReadings], float | int | bool | None]) -> Callable[[Facts], Iterator[Sample]]:
    """Samples of one number per GPU; a GPU whose `read` is None has no series."""

    def samples(facts: Facts) -> Iterator[Sample]:
        for gpu in answering(facts):
            value = read(gpu)
            if value is not None:
                yield (gpu.identity.uuid,), value

    return samples


def readings(
    read: Callable[[GpuReadings], Iterable[tuple[str, float | int | bool | None]]],
) -> Callable[[Facts], Iterator[Sample]]:
    """Samples of several numbers per GPU, told apart by one more label; pairs whose number is None are left out."""

    def samples(facts: Facts) -> Iterator[Sample]:
        for gpu in answering(facts):
            for word, value in read(gpu):
                if value is not None:
                    yield (gpu.identity.uuid, word), value

    return samples


def ratio(value: float | None) -> float | None:
    """`value` clamped to 0..1: drivers were seen to say 101 %."""
    return None if value is None else min(1.0, max(0.0, value))
