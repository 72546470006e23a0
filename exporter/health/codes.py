"""Fault codes in our spelling; they appear in metrics, GPUNode findings, taints and policies, so they never change."""

from typing import Final

GPU_LOST: Final = "gpu-lost"
"""NVML says lost, not found or reset required; or the kernel said so without an Xid."""
PROBE_HUNG: Final = "probe-hung"
"""A driver call did not return; the worker was killed."""
GPU_MISSING: Final = "gpu-missing"
"""Node finding: fewer GPUs enumerated than expected."""
ROW_REMAP_PENDING: Final = "row-remap-pending"
ROW_REMAP_FAILURE: Final = "row-remap-failure"
RECOVERY_ACTION: Final = "recovery-action"
"""The driver itself asks for something (field 230, or Xid 154 in the log)."""
DRIVER_FAILED: Final = "driver-failed"
"""Node finding: the driver was there in this boot, or GPUs are expected, and it does not answer now."""


def xid_code(number: int) -> str:
    """`xid-79` for 79."""
    return f"xid-{number}"


def sxid_code(number: int) -> str:
    """`sxid-20034` for 20034."""
    return f"sxid-{number}"
