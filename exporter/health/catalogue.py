"""What the vendor says about each Xid and NVSwitch SXid: the package's own CSV files as frozen entries.

Laws:
1. A code that the catalogue does not know is a warning and "unknown Xid": never ignored, never a reason to drain.
2. The catalogue is the third witness: the driver's recovery action and Xid 154 in the log outrank it.
3. Words of the files map to ours in one place each; a word that is not in a map stops the program at import of the
   data, not at the first fault.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from exporter.health.vocabulary import Advice, Scope, Severity

ADVICE: Mapping[str, Advice] = MappingProxyType(
    {
        "none": Advice.NONE,
        "restart_pod": Advice.RESTART_APP,
        "reset_gpu": Advice.RESET_GPU,
        "reboot_node": Advice.REBOOT_NODE,
        "contact_support": Advice.CONTACT_SUPPORT,
        # Cables, cooling, seating and driver versions are a human's work.
        "check_fabric": Advice.CONTACT_SUPPORT,
        "check_mechanicals": Advice.CONTACT_SUPPORT,
        "update_software": Advice.CONTACT_SUPPORT,
    }
)


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One row: what a code means and what the vendor advises."""

    code: int
    mnemonic: str
    description: str
    severity: Severity
    origin: str
    """`app`, `driver`, `firmware`, `memory`, `hardware`, `bus`, `nvlink`, `thermal`; `switch` for an SXid."""
    scope: Scope
    advice: Advice
    app_may_cause: bool
    """An application alone can provoke it."""
    known: bool = True
    """False for a code that is in no catalogue."""


def lookup(code: int) -> CatalogueEntry:
    """The entry of an Xid; an unknown code gives a warning entry named "unknown Xid"."""
    return _xids().get(code) or _unknown(code, "Xid", Scope.GPU)


def lookup_sxid(code: int) -> CatalogueEntry:
    """The entry of an NVSwitch SXid; an unknown code gives a warning entry named "unknown SXid"."""
    return _sxids().get(code) or _unknown(code, "SXid", Scope.FABRIC)


def all_xids() -> tuple[CatalogueEntry, ...]:
    """Every known Xid in order of its code."""
    return tuple(_xids().values())


def all_sxids() -> tuple[CatalogueEntry, ...]:
    """Every known SXid in order of its code."""
    return tuple(_sxids().values())


def _unknown(code: int, family: str, scope: Scope) -> CatalogueEntry:
    return CatalogueEntry(
        code=code,
        mnemonic="UNKNOWN",
        description=f"unknown {family} {code}",
        severity=Severity.WARNING,
        origin="driver",
        scope=scope,
        advice=Advice.UNKNOWN,
        app_may_cause=False,
        known=False,
    )


@cache
def _xids() -> Mapping[int, CatalogueEntry]:
    return MappingProxyType({int(row["xid"]): _xid(row) for row in _rows("xid_catalog.csv")})


@cache
def _sxids() -> Mapping[int, CatalogueEntry]:
    return MappingProxyType({int(row["sxid"]): _sxid(row) for row in _rows("sxid_catalog.csv")})


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("exporter.health") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _xid(row: Mapping[str, str]) -> CatalogueEntry:
    return CatalogueEntry(
        code=int(row["xid"]),
        mnemonic=row["mnemonic"],
        description=row["short_description"],
        severity=Severity(row["severity"]),
        origin=row["origin"],
        scope=_xid_scope(row["drain_scope"], row["origin"]),
        advice=ADVICE[row["default_action"]],
        app_may_cause=row["app_may_cause"] in ("yes", "either"),
    )


def _xid_scope(drain_scope: str, origin: str) -> Scope:
    """How far the fault reaches: what would be drained, and where nothing is drained, where it comes from."""
    if drain_scope == "node":
        return Scope.NODE
    if drain_scope == "gpu":
        return Scope.GPU
    if drain_scope == "pod" or origin == "app":
        return Scope.APP
    return Scope.GPU


def _sxid(row: Mapping[str, str]) -> CatalogueEntry:
    return CatalogueEntry(
        code=int(row["sxid"]),
        mnemonic=row["mnemonic"],
        description=row["short_description"],
        severity=Severity(row["severity"]),
        origin="switch",
        # A switch has no GPU of its own: whatever it does reaches through the fabric.
        scope=Scope.FABRIC,
        advice=ADVICE[row["default_action"]],
        app_may_cause=False,
    )
