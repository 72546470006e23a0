"""The subjects of a sweep: each reads a few related values of one GPU and says them in base units.

A subject is a function from `Calls` to fields of `GpuReadings`; what it could not read it leaves None. The order of
`SUBJECTS` is the order of asking: what judges health first, so that a GPU too slow to finish still tells it.
"""

from collections.abc import Callable
from ctypes import byref, c_uint
from typing import Any

import pynvml

from exporter.readers.nvml_calls import Calls, known
from exporter.readers.nvml_identity import mig_uuids
from exporter.readers.nvml_samples import samples
from exporter.readings import MODES, ClockReading, EccCount, NvLinkState, PcieLink, RowRemap

Values = dict[str, Any]
Subject = Callable[[Calls], Values]

MEMORY_TEMPERATURE_FIELD = 82
NVLINK_COUNT_FIELD = 91
RECOVERY_ACTION_FIELD = 230
FIELDS = (
    (RECOVERY_ACTION_FIELD, "recovery-action"),
    (MEMORY_TEMPERATURE_FIELD, "memory-temperature"),
)
UNKNOWN_PSTATE = 32
CLOCK_DOMAINS = (
    ("graphics", pynvml.NVML_CLOCK_GRAPHICS),
    ("sm", pynvml.NVML_CLOCK_SM),
    ("memory", pynvml.NVML_CLOCK_MEM),
    ("video", pynvml.NVML_CLOCK_VIDEO),
)
# One call with room for 64 processes, not a size query first: saves a call, and a library that answers the size query
# with SUCCESS would look idle. 4,096 is beyond any GPU's limit of contexts.
FIRST_PROCESS_BUFFER = 64
LAST_PROCESS_BUFFER = 4096


def from_milli(value: int | None) -> float | None:
    """Base units from thousandths, by division: 10274 mW are 10.274 W and not 10.274000000000001."""
    return None if value is None else value / 1000


def hertz(megahertz: int | None) -> float | None:
    """NVML says megahertz; None stays None."""
    return None if megahertz is None else megahertz * 1e6


def real(value: int | None) -> float | None:
    """A number that is already in base units; None stays None."""
    return None if value is None else float(value)


def flag(value: int | None) -> bool | None:
    """An NVML enable state; None stays None."""
    return None if value is None else bool(value)


def ratio(percent: int) -> float | None:
    """0..1; None for the impossible percentages that drivers have been seen to say."""
    return percent / 100 if 0 <= percent <= 100 else None


def fields(calls: Calls) -> Values:
    """What only the field interface tells."""
    values = calls.fields(FIELDS)
    action = values.get(RECOVERY_ACTION_FIELD)
    # GPUs without a memory sensor say 0, and no memory at work is at freezing point.
    celsius = values.get(MEMORY_TEMPERATURE_FIELD) or None
    return {
        "recovery_action": None if action is None else int(action),
        "memory_temperature_celsius": None if celsius is None else float(celsius),
    }


def ecc(calls: Calls) -> Values:
    """ECC mode and totals."""
    mode = calls.ask(pynvml.nvmlDeviceGetEccMode)
    counts = tuple(
        EccCount(
            type=name,
            aggregate=calls.ask(pynvml.nvmlDeviceGetTotalEccErrors, kind, pynvml.NVML_AGGREGATE_ECC),
            volatile=calls.ask(pynvml.nvmlDeviceGetTotalEccErrors, kind, pynvml.NVML_VOLATILE_ECC),
        )
        for name, kind in (
            ("corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        )
    )
    told = tuple(count for count in counts if count.aggregate is not None or count.volatile is not None)
    return {"ecc_mode": flag(mode[0]) if mode else None, "ecc": told}


def row_remap(calls: Calls) -> Values:
    """Row remapping (Ampere and later)."""
    rows = calls.ask(pynvml.nvmlDeviceGetRemappedRows)
    if rows is None:
        return {}
    corrected, uncorrected, pending, failure = rows
    return {
        "row_remap": RowRemap(
            corrected_rows=corrected, uncorrected_rows=uncorrected, pending=bool(pending), failure=bool(failure)
        )
    }


def temperature(calls: Calls) -> Values:
    """GPU temperature and its thresholds."""
    celsius = calls.ask(pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU)
    if celsius is None and not calls.failing:
        # Drivers before R570 have only the old call.
        celsius = calls.ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
    threshold = pynvml.nvmlDeviceGetTemperatureThreshold
    return {
        "temperature_celsius": real(celsius),
        "slowdown_celsius": real(calls.once(threshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)),
        "shutdown_celsius": real(calls.once(threshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)),
    }


def power(calls: Calls) -> Values:
    """Power draw, limit (NVML: milliwatts) and energy (NVML: millijoules)."""
    return {
        "power_watts": from_milli(calls.ask(pynvml.nvmlDeviceGetPowerUsage)),
        "power_limit_watts": from_milli(calls.ask(pynvml.nvmlDeviceGetEnforcedPowerLimit)),
        "energy_joules": from_milli(calls.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption)),
    }


def utilization(calls: Calls) -> Values:
    """Share of time in which kernels ran and memory was copied; unsupported while MIG is on."""
    rates = calls.ask(pynvml.nvmlDeviceGetUtilizationRates)
    if rates is None:
        return {}
    return {"utilization_ratio": ratio(rates.gpu), "memory_copy_utilization_ratio": ratio(rates.memory)}


def memory(calls: Calls) -> Values:
    """Memory by version 2 of the call: version 1 counts the driver's reserve as used."""
    amounts = calls.ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
    if amounts is not None:
        return {
            "memory_total_bytes": known(amounts.total),
            "memory_used_bytes": known(amounts.used),
            "memory_free_bytes": known(amounts.free),
            "memory_reserved_bytes": known(amounts.reserved),
        }
    old = None if calls.failing else calls.ask(pynvml.nvmlDeviceGetMemoryInfo)
    if old is None:
        return {}
    return {
        "memory_total_bytes": known(old.total),
        "memory_used_bytes": known(old.used),
        "memory_free_bytes": known(old.free),
    }


def clocks(calls: Calls) -> Values:
    """Clocks (NVML: megahertz), the reasons that hold them down, and the performance state."""
    readings: list[ClockReading] = []
    for name, domain in CLOCK_DOMAINS:
        current = calls.ask(pynvml.nvmlDeviceGetClockInfo, domain)
        if current is not None:
            limit = calls.once(pynvml.nvmlDeviceGetMaxClockInfo, domain)
            readings.append(ClockReading(domain=name, current_hertz=current * 1e6, max_hertz=hertz(limit)))
    reasons = calls.ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
    if reasons is None and not calls.failing:
        # The name before R535.
        reasons = calls.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    state = calls.ask(pynvml.nvmlDeviceGetPerformanceState)
    return {
        "clocks": tuple(readings),
        "clock_event_bits": reasons,
        "performance_state": None if state == UNKNOWN_PSTATE else state,
    }


def pcie(calls: Calls) -> Values:
    """PCIe link and replays."""
    link = PcieLink(
        generation=calls.ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
        generation_max=calls.once(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
        width=calls.ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
        width_max=calls.once(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        replays=calls.ask(pynvml.nvmlDeviceGetPcieReplayCounter),
    )
    return {} if link == PcieLink() else {"pcie": link}


def modes(calls: Calls) -> Values:
    """Persistence and MIG; `mig` is read for the reader itself and is no field of the readings."""
    mig = calls.ask(pynvml.nvmlDeviceGetMigMode)
    on = bool(mig and mig[0])
    return {
        "persistence_mode": flag(calls.ask(pynvml.nvmlDeviceGetPersistenceMode)),
        "mig": on,
        "mig_uuids": mig_uuids(calls) if on else (),
    }


def nvlink(calls: Calls) -> Values:
    """State of every NVLink link that the GPU has."""
    count = calls.fields(((NVLINK_COUNT_FIELD, "nvlink"),)).get(NVLINK_COUNT_FIELD, 0)
    links: list[NvLinkState] = []
    for link in range(min(int(count), pynvml.NVML_NVLINK_MAX_LINKS)):
        state = calls.ask(pynvml.nvmlDeviceGetNvLinkState, link)
        if state is not None:
            links.append(NvLinkState(link=link, active=bool(state)))
    return {"nvlinks": tuple(links)} if links else {}


def processes(calls: Calls) -> Values:
    """How many compute processes hold a context on the GPU."""
    return {"compute_processes": calls.ask(count_compute_processes)}


def count_compute_processes(handle: Any) -> int:
    """Number of compute processes, with a preallocated buffer. Raises NVMLError like the binding's own functions."""
    room = FIRST_PROCESS_BUFFER
    while True:
        count = c_uint(room)
        buffer = (pynvml.c_nvmlProcessInfo_v3_t * room)()
        try:
            function = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
        except AttributeError as missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from missing
        code = function(handle, byref(count), buffer)
        if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE and room < LAST_PROCESS_BUFFER:
            room = min(LAST_PROCESS_BUFFER, max(2 * room, count.value))
        elif code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        else:
            return int(count.value)


SUBJECTS: tuple[tuple[str, Subject], ...] = (
    ("fields", fields),
    (MODES, modes),
    ("ecc", ecc),
    ("row-remap", row_remap),
    ("temperature", temperature),
    ("power", power),
    ("utilization", utilization),
    ("samples", samples),
    ("memory", memory),
    ("clocks", clocks),
    ("pcie", pcie),
    ("nvlink", nvlink),
    ("processes", processes),
)
