"""Xid errors: counted by code, kept over restarts of the exporter, with the time of the last one for alert rules.

`increase()` misses the first event of a series; a rule on the timestamp does not.
"""

from collections.abc import Iterator

from exporter.exposition.family import Facts, Family, Kind, Sample


def _counts(facts: Facts) -> Iterator[Sample]:
    for xid in facts.xids:
        yield (xid.gpu or "", str(xid.code)), xid.count


def _last(facts: Facts) -> Iterator[Sample]:
    for xid in facts.xids:
        yield (xid.gpu or "", str(xid.code)), xid.last_seen.timestamp()


FAMILIES = (
    Family(
        name="gpu_xid_errors_total",
        help="Xid errors in this boot; an empty gpu means that the PCI address matched no GPU.",
        kind=Kind.COUNTER,
        labels=("gpu", "xid"),
        samples=_counts,
    ),
    Family(
        name="gpu_xid_last_timestamp_seconds",
        help="Unix time of the last Xid error of this code.",
        unit="seconds",
        labels=("gpu", "xid"),
        samples=_last,
    ),
)
