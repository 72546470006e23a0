"""Sums over time: what a gauge cannot tell between two scrapes, for cost and for the share of time used."""

from exporter.exposition.family import Family, Kind, reading

FAMILIES = (
    Family(
        name="gpu_busy_seconds_total",
        help="Time in which a kernel ran, summed since the exporter started; gaps add nothing.",
        kind=Kind.COUNTER,
        unit="seconds",
        samples=reading(lambda gpu: None if gpu.integrals is None else gpu.integrals.busy_seconds),
    ),
    Family(
        name="gpu_memory_byte_seconds_total",
        help="Memory in use times the time it was in use, since the exporter started; gaps add nothing.",
        kind=Kind.COUNTER,
        unit="seconds",
        samples=reading(lambda gpu: None if gpu.integrals is None else gpu.integrals.memory_byte_seconds),
    ),
    Family(
        name="gpu_unobserved_seconds_total",
        help="Time without readings, which the sums of busy time or of memory leave out; added when the gap ends.",
        kind=Kind.COUNTER,
        unit="seconds",
        samples=reading(lambda gpu: None if gpu.integrals is None else gpu.integrals.unobserved_seconds),
    ),
)
