"""NVML calls that count memory errors and show links: ECC, row remapping, page retirement, PCIe, NVLink, MIG."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from exporter.simulation.driver import Board, Failure, number, put
from exporter.simulation.node import EccTotals

MAX_MIG_DEVICES: Final = 7


def ecc_mode(board: Board, current: Any, pending: Any) -> None:
    """nvmlDeviceGetEccMode: on, as these boards are shipped."""
    put(current, pynvml.NVML_FEATURE_ENABLED)
    put(pending, pynvml.NVML_FEATURE_ENABLED)


def ecc_total(board: Board, error_type: Any, counter_type: Any, value: Any) -> None:
    """nvmlDeviceGetTotalEccErrors."""
    put(value, ecc_count(board.gpu.ecc, number(error_type), number(counter_type)))


def ecc_at(board: Board, error_type: Any, counter_type: Any, location: Any, value: Any) -> None:
    """nvmlDeviceGetMemoryErrorCounter: every simulated error is in device memory; caches count zero.

    Ampere and later count device memory and SRAM; earlier generations the single caches and register files.
    """
    modern = {pynvml.NVML_MEMORY_LOCATION_SRAM}
    older = {pynvml.NVML_MEMORY_LOCATION_L1_CACHE, pynvml.NVML_MEMORY_LOCATION_L2_CACHE}
    older.add(pynvml.NVML_MEMORY_LOCATION_REGISTER_FILE)
    total = ecc_count(board.gpu.ecc, number(error_type), number(counter_type))
    place = number(location)
    board.require(
        place == pynvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY or place in (modern if board.profile.row_remap else older)
    )
    put(value, total if place == pynvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY else 0)


def ecc_count(ecc: EccTotals, error_type: int, counter_type: int) -> int:
    """One of the four totals; `Failure` INVALID_ARGUMENT for numbers outside the two enumerations."""
    counts = {
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC): ecc.corrected_volatile,
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC): ecc.corrected_aggregate,
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC): ecc.uncorrected_volatile,
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC): ecc.uncorrected_aggregate,
    }
    if (error_type, counter_type) not in counts:
        raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return counts[error_type, counter_type]


def remapped_rows(board: Board, corrected: Any, uncorrected: Any, pending: Any, failure: Any) -> None:
    """nvmlDeviceGetRemappedRows."""
    board.require(board.profile.row_remap)
    put(corrected, board.gpu.rows_corrected)
    put(uncorrected, board.gpu.rows_uncorrected)
    put(pending, int(board.gpu.remap_pending))
    put(failure, int(board.gpu.remap_failure))


def retired_pages(board: Board, cause: Any, count: Any, pages: Any) -> None:
    """nvmlDeviceGetRetiredPages: page addresses by cause; asked for the size first, then with a buffer."""
    board.require(not board.profile.row_remap)
    double_bit = number(cause) == pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
    retired = board.gpu.pages_retired if double_bit else 0
    room = count._obj.value
    put(count, retired)
    if room < retired:
        raise Failure(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for place in range(retired):
        pages[place] = 0x13C8E1000 + place * 0x1000


def retired_pages_pending(board: Board, pending: Any) -> None:
    """nvmlDeviceGetRetiredPagesPendingStatus."""
    board.require(not board.profile.row_remap)
    put(pending, int(board.gpu.pages_pending))


def max_generation(board: Board, value: Any) -> None:
    """nvmlDeviceGetMaxPcieLinkGeneration."""
    put(value, board.profile.pcie_generation)


def max_width(board: Board, value: Any) -> None:
    """nvmlDeviceGetMaxPcieLinkWidth."""
    put(value, board.profile.pcie_width)


def generation(board: Board, value: Any) -> None:
    """nvmlDeviceGetCurrPcieLinkGeneration: some boards lower it while idle to save power."""
    busy = board.gpu.utilization_ratio > 0
    put(value, board.profile.pcie_generation if busy else board.profile.pcie_generation_idle)


def replays(board: Board, value: Any) -> None:
    """nvmlDeviceGetPcieReplayCounter: a sound link."""
    put(value, 0)


def nvlink_state(board: Board, link: Any, active: Any) -> None:
    """nvmlDeviceGetNvLinkState."""
    if not 0 <= number(link) < pynvml.NVML_NVLINK_MAX_LINKS:
        raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    board.require(number(link) < board.profile.nvlinks)
    put(active, int(number(link) not in board.gpu.links_down))


def mig_mode(board: Board, current: Any, pending: Any) -> None:
    """nvmlDeviceGetMigMode: off."""
    board.require(board.profile.mig)
    put(current, pynvml.NVML_DEVICE_MIG_DISABLE)
    put(pending, pynvml.NVML_DEVICE_MIG_DISABLE)


def max_mig_devices(board: Board, value: Any) -> None:
    """nvmlDeviceGetMaxMigDeviceCount: 0 where there is no MIG."""
    put(value, MAX_MIG_DEVICES if board.profile.mig else 0)


def mig_handle(board: Board, index: Any, handle: Any) -> None:
    """nvmlDeviceGetMigDeviceHandleByIndex: no instance exists while MIG is off."""
    board.require(board.profile.mig)
    raise Failure(pynvml.NVML_ERROR_NOT_FOUND)


DEVICE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetEccMode": ecc_mode,
    "nvmlDeviceGetTotalEccErrors": ecc_total,
    "nvmlDeviceGetMemoryErrorCounter": ecc_at,
    "nvmlDeviceGetRemappedRows": remapped_rows,
    "nvmlDeviceGetRetiredPages": retired_pages,
    "nvmlDeviceGetRetiredPagesPendingStatus": retired_pages_pending,
    "nvmlDeviceGetMaxPcieLinkGeneration": max_generation,
    "nvmlDeviceGetMaxPcieLinkWidth": max_width,
    "nvmlDeviceGetCurrPcieLinkGeneration": generation,
    "nvmlDeviceGetCurrPcieLinkWidth": max_width,
    "nvmlDeviceGetPcieReplayCounter": replays,
    "nvmlDeviceGetNvLinkState": nvlink_state,
    "nvmlDeviceGetMigMode": mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": max_mig_devices,
    "nvmlDeviceGetMigDeviceHandleByIndex": mig_handle,
}
