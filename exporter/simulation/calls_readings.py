"""NVML calls that read memory, load, heat, power and clocks."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from exporter.simulation import physics
from exporter.simulation.driver import Board, Failure, number, put
from exporter.simulation.profiles import Clocks

EVENT_REASONS: Final = 0x1EF
"""Reasons these boards can give: all but the sync boost group of other products."""


def used_bytes(board: Board) -> int:
    """Memory held by processes, at most what the board has beside its reserve."""
    wanted = sum(process.memory_bytes for process in board.gpu.processes)
    return min(wanted, board.profile.memory_bytes - board.profile.memory_reserved_bytes)


def memory(board: Board, info: Any) -> None:
    """nvmlDeviceGetMemoryInfo: the first version counts the reserve as used."""
    used = used_bytes(board) + board.profile.memory_reserved_bytes
    target = info._obj
    target.total, target.used, target.free = board.profile.memory_bytes, used, board.profile.memory_bytes - used


def memory_v2(board: Board, info: Any) -> None:
    """nvmlDeviceGetMemoryInfo_v2: the reserve apart."""
    target = info._obj
    _check_version(target, pynvml.nvmlMemory_v2)
    used, reserved = used_bytes(board), board.profile.memory_reserved_bytes
    target.total, target.reserved, target.used = board.profile.memory_bytes, reserved, used
    target.free = board.profile.memory_bytes - reserved - used


def utilization(board: Board, rates: Any) -> None:
    """nvmlDeviceGetUtilizationRates: memory is the share of time with memory traffic, not memory in use."""
    percent = physics.utilization_percent(board.gpu, board.now)
    rates._obj.gpu, rates._obj.memory = percent, percent * 6 // 10


def temperature(board: Board, sensor: Any, value: Any) -> None:
    """nvmlDeviceGetTemperature."""
    put(value, _core_celsius(board, number(sensor)))


def temperature_v(board: Board, reading: Any) -> None:
    """nvmlDeviceGetTemperatureV."""
    target = reading._obj
    _check_version(target, pynvml.nvmlTemperature_v1)
    target.temperature = _core_celsius(board, number(target.sensorType))


def margin(board: Board, reading: Any) -> None:
    """nvmlDeviceGetMarginTemperature: degrees left until slowdown; Hopper and later."""
    board.require(board.profile.architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER)
    _check_version(reading._obj, pynvml.nvmlMarginTemperature_v1)
    reading._obj.marginTemperature = board.profile.slowdown_celsius - _core_celsius(board, 0)


def threshold(board: Board, kind: Any, value: Any) -> None:
    """nvmlDeviceGetTemperatureThreshold."""
    profile = board.profile
    celsius = {
        pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: profile.shutdown_celsius,
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: profile.slowdown_celsius,
        pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: profile.gpu_max_celsius,
        pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: profile.memory_max_celsius,
    }.get(number(kind))
    if celsius is None:
        if number(kind) >= pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
            raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
    put(value, celsius)


def power(board: Board, milliwatts: Any) -> None:
    """nvmlDeviceGetPowerUsage."""
    put(milliwatts, power_milliwatts(board))


def power_milliwatts(board: Board) -> int:
    """Power draw as NVML counts it."""
    return round(1000 * physics.power_watts(board.profile, board.gpu, board.now))


def power_limit(board: Board, milliwatts: Any) -> None:
    """The enforced, the set and the default limit, which are the same here."""
    put(milliwatts, round(1000 * board.profile.limit_watts))


def power_limits(board: Board, lowest: Any, highest: Any) -> None:
    """nvmlDeviceGetPowerManagementLimitConstraints."""
    put(lowest, round(1000 * board.profile.min_limit_watts))
    put(highest, round(1000 * board.profile.limit_watts))


def energy(board: Board, millijoules: Any) -> None:
    """nvmlDeviceGetTotalEnergyConsumption, since the driver was loaded."""
    put(millijoules, energy_millijoules(board))


def energy_millijoules(board: Board) -> int:
    """Energy as NVML counts it."""
    return int(1000 * physics.energy_joules(board.profile, board.gpu, board.now))


def clock(board: Board, kind: Any, megahertz: Any) -> None:
    """nvmlDeviceGetClockInfo."""
    put(megahertz, physics.clock_mhz(_clocks(board, number(kind)), board.gpu))


def max_clock(board: Board, kind: Any, megahertz: Any) -> None:
    """nvmlDeviceGetMaxClockInfo."""
    put(megahertz, _clocks(board, number(kind)).max)


def event_reasons(board: Board, bits: Any) -> None:
    """nvmlDeviceGetCurrentClocksEventReasons and its older name."""
    put(bits, physics.clock_event_bits(board.gpu))


def supported_event_reasons(board: Board, bits: Any) -> None:
    """nvmlDeviceGetSupportedClocksEventReasons and its older name."""
    put(bits, EVENT_REASONS)


def performance_state(board: Board, value: Any) -> None:
    """nvmlDeviceGetPerformanceState: P0 under load."""
    put(value, 0 if board.gpu.utilization_ratio else board.profile.idle_performance_state)


def _core_celsius(board: Board, sensor: int) -> int:
    if sensor != pynvml.NVML_TEMPERATURE_GPU:
        raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return round(physics.temperature_celsius(board.profile, board.gpu, board.now))


def _clocks(board: Board, kind: int) -> Clocks:
    profile = board.profile
    domains = {0: profile.graphics, 1: profile.graphics, 2: profile.memory, 3: profile.video}
    if kind not in domains:
        raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return domains[kind]


def _check_version(target: Any, version: int) -> None:
    if target.version != version:
        raise Failure(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


DEVICE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetMemoryInfo": memory,
    "nvmlDeviceGetMemoryInfo_v2": memory_v2,
    "nvmlDeviceGetUtilizationRates": utilization,
    "nvmlDeviceGetTemperature": temperature,
    "nvmlDeviceGetTemperatureV": temperature_v,
    "nvmlDeviceGetMarginTemperature": margin,
    "nvmlDeviceGetTemperatureThreshold": threshold,
    "nvmlDeviceGetPowerUsage": power,
    "nvmlDeviceGetEnforcedPowerLimit": power_limit,
    "nvmlDeviceGetPowerManagementLimit": power_limit,
    "nvmlDeviceGetPowerManagementDefaultLimit": power_limit,
    "nvmlDeviceGetPowerManagementLimitConstraints": power_limits,
    "nvmlDeviceGetTotalEnergyConsumption": energy,
    "nvmlDeviceGetClockInfo": clock,
    "nvmlDeviceGetMaxClockInfo": max_clock,
    "nvmlDeviceGetCurrentClocksEventReasons": event_reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": event_reasons,
    "nvmlDeviceGetSupportedClocksEventReasons": supported_event_reasons,
    "nvmlDeviceGetSupportedClocksThrottleReasons": supported_event_reasons,
    "nvmlDeviceGetPerformanceState": performance_state,
}
