"""Exposition: readings to Prometheus text; families by subject, one file each, and the renderer.

Lives here: metric names, help texts, labels, rendering to bytes. May not live here: reading a device, judging.
May import: `exporter.health`, `exporter.readings`, `exporter.attribution`, the result types of `exporter.assess`;
`prometheus_client` only in `own.py`.
"""

from exporter.exposition import (
    allocation,
    clocks,
    ecc,
    health,
    identity,
    integrals,
    memory,
    nvlink,
    own,
    pcie,
    power,
    temperature,
    utilization,
    xid,
)
from exporter.exposition.family import Family

SECTIONS: tuple[tuple[str, tuple[Family, ...]], ...] = (
    ("identity", identity.FAMILIES),
    ("health", health.FAMILIES),
    ("utilization", utilization.FAMILIES),
    ("memory", memory.FAMILIES),
    ("integrals", integrals.FAMILIES),
    ("temperature", temperature.FAMILIES),
    ("power", power.FAMILIES),
    ("clocks", clocks.FAMILIES),
    ("ecc", ecc.FAMILIES),
    ("pcie", pcie.FAMILIES),
    ("nvlink", nvlink.FAMILIES),
    ("xid", xid.FAMILIES),
    ("allocation", allocation.FAMILIES),
    ("own", own.FAMILIES),
)
"""Every subject in the order in which it is shown; each is rendered by itself, so that one failing leaves the rest."""
