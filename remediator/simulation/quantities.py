"""Kubernetes quantities (`500m`, `16Gi`, `8`) as exact numbers, and what a pod asks for."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from remediator.simulation.status_errors import Obj

_SUFFIX = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


def quantity(text: Any) -> Decimal:
    """The number; raises ValueError for what is no quantity."""
    whole = str(text).strip()
    number = whole.rstrip("numkKMGTPi")
    suffix = whole[len(number) :]
    if suffix not in _SUFFIX:
        raise ValueError(f"not a quantity: {text}")
    return Decimal(number) * _SUFFIX[suffix]


def quantities(amounts: Mapping[str, Any] | None) -> dict[str, Decimal]:
    """Every amount as a number."""
    return {name: quantity(amount) for name, amount in (amounts or {}).items()}


def requests_of(pod: Obj) -> dict[str, Decimal]:
    """What the pod asks for: the sum of its containers, at least the largest init container; and one pod place."""
    total: dict[str, Decimal] = {"pods": Decimal(1)}
    for container in pod["spec"].get("containers") or ():
        for name, amount in _requested(container).items():
            total[name] = total.get(name, Decimal(0)) + amount
    for container in pod["spec"].get("initContainers") or ():
        for name, amount in _requested(container).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _requested(container: Obj) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    return quantities({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
