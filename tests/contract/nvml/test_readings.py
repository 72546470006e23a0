"""What every NVML must answer about load, memory, heat, power, clocks, errors, links, processes and events."""

import time

import pynvml
import pytest

from exporter.simulation import state
from tests.contract.nvml.conftest import Nvml
from tests.rig.simulated_nvml import code_of

ANSWERED = {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
"""What a call on a healthy GPU may answer: a value, or that there is none on this generation or driver."""


def test_memory_adds_up(nvml: Nvml) -> None:
    for handle in nvml.handles():
        old, new = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
        assert old.total == new.total > 0
        assert new.used + new.free + new.reserved <= new.total
        assert old.used + old.free <= old.total


def test_load_heat_and_power_are_in_range(nvml: Nvml) -> None:
    for handle in nvml.handles():
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        assert 0 <= rates.gpu <= 100
        assert 0 <= rates.memory <= 100
        celsius = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        slowdown, shutdown = (pynvml.nvmlDeviceGetTemperatureThreshold(handle, kind) for kind in (1, 0))
        assert 0 < celsius < shutdown
        assert slowdown <= shutdown
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        assert 0 < pynvml.nvmlDeviceGetPowerUsage(handle) <= 1.3 * limit
        assert 0 <= pynvml.nvmlDeviceGetPerformanceState(handle) <= 15


def test_newer_temperature_call_agrees_or_is_absent(nvml: Nvml) -> None:
    for handle in nvml.handles():
        code = code_of(pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU)
        assert code in ANSWERED
        if code == pynvml.NVML_SUCCESS:
            old = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            assert abs(pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU) - old) <= 2


def test_energy_never_falls(nvml: Nvml) -> None:
    for handle in nvml.handles():
        first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        time.sleep(0.05)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) >= first


@pytest.mark.parametrize("domain", [0, 1, 2, 3], ids=["graphics", "sm", "memory", "video"])
def test_clock_is_at_most_its_maximum(nvml: Nvml, domain: int) -> None:
    for handle in nvml.handles():
        assert 0 < pynvml.nvmlDeviceGetClockInfo(handle, domain) <= pynvml.nvmlDeviceGetMaxClockInfo(handle, domain)


def test_current_event_reasons_are_among_the_supported(nvml: Nvml) -> None:
    for handle in nvml.handles():
        current = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        assert current == pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        assert not current & ~pynvml.nvmlDeviceGetSupportedClocksThrottleReasons(handle)


def test_aggregate_ecc_is_at_least_volatile(nvml: Nvml) -> None:
    for handle in nvml.handles():
        code = code_of(pynvml.nvmlDeviceGetEccMode, handle)
        assert code in ANSWERED
        if code != pynvml.NVML_SUCCESS or not pynvml.nvmlDeviceGetEccMode(handle)[0]:
            continue
        for kind in (0, 1):
            volatile, aggregate = (pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, scope) for scope in (0, 1))
            assert 0 <= volatile <= aggregate


def test_row_remap_call_and_fields_agree(nvml: Nvml) -> None:
    for handle in nvml.handles():
        code = code_of(pynvml.nvmlDeviceGetRemappedRows, handle)
        fields = pynvml.nvmlDeviceGetFieldValues(handle, [142, 143, 144, 145])
        assert code in ANSWERED
        if code == pynvml.NVML_SUCCESS:
            assert tuple(field.value.uiVal for field in fields) == pynvml.nvmlDeviceGetRemappedRows(handle)
        else:
            assert all(field.nvmlReturn != pynvml.NVML_SUCCESS for field in fields)


def test_pcie_link_is_at_most_its_maximum(nvml: Nvml) -> None:
    for handle in nvml.handles():
        assert 1 <= pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle) <= pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        generation = pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
        assert 1 <= generation <= pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        assert pynvml.nvmlDeviceGetPcieReplayCounter(handle) >= 0


def test_nvlinks_answer_up_to_their_count(nvml: Nvml) -> None:
    for handle in nvml.handles():
        (count,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])
        links = count.value.uiVal if count.nvmlReturn == pynvml.NVML_SUCCESS else 0
        for link in range(links):
            assert pynvml.nvmlDeviceGetNvLinkState(handle, link) in (0, 1)


def test_field_batch_succeeds_although_a_field_fails(nvml: Nvml) -> None:
    for handle in nvml.handles():
        energy, nonsense = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 9999])
        assert energy.nvmlReturn == pynvml.NVML_SUCCESS
        assert energy.value.ullVal <= pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        assert nonsense.nvmlReturn != pynvml.NVML_SUCCESS


def test_process_lists_and_mig_mode_answer(nvml: Nvml) -> None:
    for handle in nvml.handles():
        assert isinstance(pynvml.nvmlDeviceGetComputeRunningProcesses(handle), list)
        assert isinstance(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), list)
        assert code_of(pynvml.nvmlDeviceGetMigMode, handle) in ANSWERED


def test_waiting_for_events_takes_its_time(nvml: Nvml) -> None:
    event_set = pynvml.nvmlEventSetCreate()
    for handle in nvml.handles():
        assert pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, event_set)
    started = time.monotonic()
    assert code_of(pynvml.nvmlEventSetWait_v2, event_set, 200) == pynvml.NVML_ERROR_TIMEOUT
    assert 0.19 <= time.monotonic() - started < 2.0
    pynvml.nvmlEventSetFree(event_set)


GENERATIONS = {
    # profile: what it answers to calls that not every generation or driver has
    "h100": {"remap": 0, "retired": 3, "mig": 0, "memory threshold": 0, "temperature v": 0, "margin": 0, "link 0": 0},
    "a100": {"remap": 0, "retired": 3, "mig": 0, "memory threshold": 0, "temperature v": 13, "margin": 13, "link 0": 0},
    "t4": {"remap": 3, "retired": 0, "mig": 3, "memory threshold": 3, "temperature v": 13, "margin": 13, "link 0": 3},
}
FIELDS = {
    # field id: profiles that answer it
    82: {"h100", "a100"},
    83: {"h100", "a100", "t4"},
    91: {"h100", "a100"},
    142: {"h100", "a100"},
    145: {"h100", "a100"},
    30: {"t4"},
    185: {"h100"},
    186: {"h100", "a100", "t4"},
    194: {"h100"},
    230: {"h100"},
    9999: set[str](),
}


def test_what_a_generation_lacks_is_not_supported(simulated: Nvml) -> None:
    assert simulated.profile is not None
    handle = simulated.handles()[0]
    answers = {
        "remap": code_of(pynvml.nvmlDeviceGetRemappedRows, handle),
        "retired": code_of(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle),
        "mig": code_of(pynvml.nvmlDeviceGetMigMode, handle),
        "memory threshold": code_of(pynvml.nvmlDeviceGetTemperatureThreshold, handle, 2),
        "temperature v": code_of(pynvml.nvmlDeviceGetTemperatureV, handle, 0),
        "margin": code_of(pynvml.nvmlDeviceGetMarginTemperature, handle),
        "link 0": code_of(pynvml.nvmlDeviceGetNvLinkState, handle, 0),
    }
    assert answers == GENERATIONS[simulated.profile.name]


def test_fields_that_a_generation_answers(simulated: Nvml) -> None:
    assert simulated.profile is not None
    values = pynvml.nvmlDeviceGetFieldValues(simulated.handles()[0], list(FIELDS))
    codes = {value.fieldId: value.nvmlReturn for value in values}
    name = simulated.profile.name
    assert codes == {field: 0 if name in profiles else 3 for field, profiles in FIELDS.items()}


def test_faults_show_in_their_calls(simulated: Nvml) -> None:
    profile, path, handle = simulated.profile, simulated.state_path, simulated.handles()[0]
    assert profile is not None and path is not None
    state.inject(path, 0, "ecc-dbe")
    state.inject(path, 0, "thermal-slowdown")
    state.inject(path, 0, "xid:63")
    if profile.nvlinks:
        state.inject(path, 0, "nvlink-down:3")
    time.sleep(0.03)
    assert [pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, scope) for scope in (0, 1)] == [1, 1]
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 1, 0, pynvml.NVML_MEMORY_LOCATION_DRAM) == 1
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & 0x48 == 0x48
    if profile.row_remap:
        assert pynvml.nvmlDeviceGetRemappedRows(handle) == (0, 1, 1, 0)
    else:
        assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) == 1
        assert len(pynvml.nvmlDeviceGetRetiredPages(handle, 1)) == 1
        assert pynvml.nvmlDeviceGetRetiredPages(handle, 0) == []
    if profile.nvlinks:
        assert [pynvml.nvmlDeviceGetNvLinkState(handle, link) for link in (2, 3)] == [1, 0]
        (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [(pynvml.NVML_FI_DEV_NVLINK_GET_STATE, 3)])
        assert (field.nvmlReturn, field.value.uiVal) == (0, 0)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (pynvml.nvmlDeviceGetTemperature, (7,)),
        (pynvml.nvmlDeviceGetTemperatureThreshold, (99,)),
        (pynvml.nvmlDeviceGetClockInfo, (9,)),
        (pynvml.nvmlDeviceGetTotalEccErrors, (0, 9)),
        (pynvml.nvmlDeviceGetNvLinkState, (99,)),
    ],
)
def test_argument_outside_its_enumeration_is_invalid(simulated: Nvml, call: object, arguments: tuple[int, ...]) -> None:
    assert callable(call)
    assert code_of(call, simulated.handles()[0], *arguments) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_wrong_struct_version_is_refused(simulated: Nvml) -> None:
    handle = simulated.handles()[0]
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, handle, 0x01000028) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
