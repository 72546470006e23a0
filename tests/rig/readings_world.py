"""World factories for readings: a healthy GPU, a healthy node; tests name only what differs."""

from datetime import UTC, datetime, timedelta
from typing import Any

from exporter.health.vocabulary import BootId
from exporter.readings import (
    DriverInfo,
    DriverState,
    GpuIdentity,
    GpuReadings,
    GpuStatus,
    RowRemap,
    Snapshot,
    XidEvent,
)

T0 = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
BOOT = BootId("11111111-0000-4000-8000-000000000001")
NEXT_BOOT = BootId("22222222-0000-4000-8000-000000000002")


def at(seconds: float) -> datetime:
    """`seconds` after the beginning of the test's world."""
    return T0 + timedelta(seconds=seconds)


def uuid(index: int) -> str:
    """UUID of GPU `index`."""
    return f"GPU-00000000-0000-4000-8000-{index:012x}"


def address(index: int) -> str:
    """PCI address of GPU `index`."""
    return f"00000000:{0x10 + index:02x}:00.0"


def an_identity(index: int = 0, **changed: Any) -> GpuIdentity:
    """GPU `index` of an eight-GPU board."""
    facts: dict[str, Any] = {
        "uuid": uuid(index),
        "index": index,
        "minor": index,
        "pci_bus_id": address(index),
        "serial": f"16549{index:08d}",
        "model": "NVIDIA H100 80GB HBM3",
    }
    return GpuIdentity(**{**facts, **changed})


def a_gpu(index: int = 0, *, seconds: float = 0, status: GpuStatus = GpuStatus.UP, **changed: Any) -> GpuReadings:
    """A GPU that answers, without any fault."""
    facts: dict[str, Any] = {
        "identity": an_identity(index),
        "status": status,
        "taken_at": at(seconds),
        "recovery_action": 0 if status is GpuStatus.UP else None,
        "row_remap": a_remap() if status is GpuStatus.UP else None,
    }
    return GpuReadings(**{**facts, **changed})


def a_remap(*, pending: bool = False, failure: bool = False) -> RowRemap:
    """Row remapping of a board."""
    return RowRemap(corrected_rows=0, uncorrected_rows=int(pending), pending=pending, failure=failure)


def a_snapshot(*gpus: GpuReadings, seconds: float = 0, **changed: Any) -> Snapshot:
    """A node whose driver answers; one healthy GPU unless told otherwise."""
    seen = gpus or (a_gpu(seconds=seconds),)
    facts: dict[str, Any] = {
        "node": "n1",
        "boot_id": BOOT,
        "taken_at": at(seconds),
        "driver_state": DriverState.OK,
        "driver": DriverInfo(driver_version="575.57.08"),
        "gpus": seen,
        "enumerated": sum(gpu.status is not GpuStatus.MISSING for gpu in seen),
    }
    return Snapshot(**{**facts, **changed})


def an_xid(code: int, *, seconds: float = 0, gpu: int | None = 0, **changed: Any) -> XidEvent:
    """Xid `code` on GPU `gpu`, told by the kernel log."""
    facts: dict[str, Any] = {
        "code": code,
        "gpu": None if gpu is None else uuid(gpu),
        "pci_bus_id": None if gpu is None else address(gpu),
        "observed_at": at(seconds),
        "source": "kernel-log",
    }
    return XidEvent(**{**facts, **changed})
