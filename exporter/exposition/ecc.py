"""Memory errors: ECC counts and row remapping."""

from collections.abc import Iterator

from exporter.exposition.family import Family, Kind, reading, readings
from exporter.readings import GpuReadings


def _remapped(gpu: GpuReadings) -> Iterator[tuple[str, int]]:
    if gpu.row_remap is not None:
        yield "corrected", gpu.row_remap.corrected_rows
        yield "uncorrected", gpu.row_remap.uncorrected_rows


FAMILIES = (
    Family(
        name="gpu_ecc_mode",
        help="1 = ECC is on.",
        labels=("gpu", "state"),
        samples=readings(lambda gpu: (("current", gpu.ecc_mode),)),
    ),
    Family(
        name="gpu_ecc_errors_total",
        help="ECC errors over the life of the board; an operator may clear the count.",
        kind=Kind.COUNTER,
        labels=("gpu", "type"),
        samples=readings(lambda gpu: ((count.type, count.aggregate) for count in gpu.ecc)),
    ),
    Family(
        name="gpu_ecc_volatile_errors",
        help="ECC errors since the driver was loaded; read it as a level, not as a rate.",
        labels=("gpu", "type"),
        samples=readings(lambda gpu: ((count.type, count.volatile) for count in gpu.ecc)),
    ),
    Family(
        name="gpu_remapped_rows",
        help="Memory rows replaced by spare ones, by the kind of error that caused it.",
        labels=("gpu", "type"),
        samples=readings(_remapped),
    ),
    Family(
        name="gpu_row_remap_pending",
        help="1 = a row waits for a GPU reset to be replaced.",
        samples=reading(lambda gpu: None if gpu.row_remap is None else gpu.row_remap.pending),
    ),
    Family(
        name="gpu_row_remap_failure",
        help="1 = a row could not be replaced: the board is worn out.",
        samples=reading(lambda gpu: None if gpu.row_remap is None else gpu.row_remap.failure),
    ),
)
