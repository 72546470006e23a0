"""nvidia-ml-py over a running simulated node: what changes while it runs is seen, and seen once."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from exporter.simulation import state
from exporter.simulation.driver import STALE_AFTER_SECONDS
from exporter.simulation.library import install
from exporter.simulation.state import SimulatedProcess
from tests.rig.simulated_nvml import address_of, code_of, nvml_over_node

GIB = 1 << 30


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """An h100x4 node with pynvml initialised over it."""
    path = tmp_path / "n1.json"
    state.create(path, "h100", 4, "n1")
    with nvml_over_node(path):
        yield path


def seen() -> None:
    """Wait until a change of the state file must be seen."""
    time.sleep(STALE_AFTER_SECONDS * 1.5)


def in_another_process(program: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process over the simulated node that prints what it sees."""
    head = (
        "import sys, pynvml; from exporter.simulation.library import install; install(sys.argv[1]); pynvml.nvmlInit()\n"
    )
    command = [sys.executable, "-u", "-c", head + program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_readings_follow_the_processes(node: Path) -> None:
    gpu, other = pynvml.nvmlDeviceGetHandleByIndex(1), pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    state.set_processes(
        node,
        {
            1: [
                SimulatedProcess(77, "train", 10 * GIB, 0.6),
                SimulatedProcess(78, "eval", 2 * GIB, 0.2),
                SimulatedProcess(79, "xorg", GIB, 0.0, "graphics"),
            ]
        },
    )
    seen()
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert [(each.pid, each.usedGpuMemory) for each in listed] == [(77, 10 * GIB), (78, 2 * GIB)]
    assert [each.pid for each in pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)] == [79]
    assert pynvml.nvmlSystemGetProcessName(78) == "eval"
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used == 13 * GIB
    assert 75 <= pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu <= 85
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 1980
    assert pynvml.nvmlDeviceGetUtilizationRates(other).gpu == 0
    state.set_processes(node, {1: []})
    seen()
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used == 0


def test_preallocated_process_buffer_needs_one_call(node: Path) -> None:
    state.set_processes(node, {0: [SimulatedProcess(5, "a", GIB)]})
    seen()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    buffer, count = (pynvml.c_nvmlProcessInfo_v3_t * 64)(), pynvml.c_uint(64)
    ask = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
    assert ask(gpu, pynvml.byref(count), buffer) == pynvml.NVML_SUCCESS
    assert (count.value, buffer[0].pid) == (1, 5)
    count.value = 0
    assert ask(gpu, pynvml.byref(count), None) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 1


def test_memory_never_exceeds_the_board(node: Path) -> None:
    state.set_processes(node, {0: [SimulatedProcess(5, "a", 500 * GIB)]})
    seen()
    info = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlMemory_v2)
    assert (info.free, info.used + info.reserved) == (0, info.total)


def test_energy_agrees_between_processes_and_grows(node: Path) -> None:
    state.set_processes(node, {0: [SimulatedProcess(5, "a", GIB, 1.0)]})
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    program = "print(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0)))"
    told, _ = in_another_process(program, node).communicate(timeout=30)
    assert before <= int(told) <= pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)


def test_counters_never_fall_while_the_load_changes(node: Path) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    last = 0
    for turn in range(40):
        state.set_processes(node, {0: [SimulatedProcess(5, "a", GIB, turn % 2)]})
        deadline = time.monotonic() + 0.03
        while time.monotonic() < deadline:
            energy = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
            assert energy >= last
            last = energy


def test_injection_from_another_process_is_seen(node: Path) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(3)
    program = "from pathlib import Path; from exporter.simulation import state; import sys\n"
    program += "state.inject(Path(sys.argv[1]), 3, 'lost')"
    subprocess.run([sys.executable, "-c", program, str(node)], check=True)
    seen()
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, gpu) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetHandleByIndex(2)) == pynvml.NVML_SUCCESS


def test_lost_gpu_answers_nothing_but_the_drivers_own_memory(node: Path) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
    state.inject(node, 1, "xid:79")
    seen()
    for call in (
        pynvml.nvmlDeviceGetName,
        pynvml.nvmlDeviceGetUUID,
        pynvml.nvmlDeviceGetIndex,
        pynvml.nvmlDeviceGetMemoryInfo,
        pynvml.nvmlDeviceGetPersistenceMode,
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetSupportedEventTypes,
    ):
        assert code_of(call, gpu) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 1) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert pynvml.nvmlDeviceGetCount() == 4
    energy, recovery = pynvml.nvmlDeviceGetFieldValues(gpu, [83, 230])
    assert energy.nvmlReturn == pynvml.NVML_ERROR_GPU_IS_LOST
    assert (recovery.nvmlReturn, recovery.value.uiVal) == (pynvml.NVML_SUCCESS, 2)
    state.reboot(node)
    seen()
    assert pynvml.nvmlDeviceGetUUID(gpu) == state.gpu_uuid("n1", "h100", 1)


def test_missing_gpu_shrinks_the_count_and_moves_indices(node: Path) -> None:
    second, third = (pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in (1, 2))
    gone = pynvml.nvmlDeviceGetHandleByIndex(1)
    state.inject(node, 1, "missing")
    seen()
    assert pynvml.nvmlDeviceGetCount() == 3
    moved = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetUUID(moved) == third
    assert (pynvml.nvmlDeviceGetIndex(moved), pynvml.nvmlDeviceGetMinorNumber(moved)) == (1, 2)
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 3) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, second.encode()) == pynvml.NVML_ERROR_NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetName, gone) == pynvml.NVML_ERROR_GPU_IS_LOST


def test_slow_gpu_is_slow_alone(node: Path) -> None:
    state.inject(node, 2, "slow:600")
    seen()
    started = time.monotonic()
    pynvml.nvmlDeviceGetHandleByIndex(1)
    assert time.monotonic() - started < 0.5
    pynvml.nvmlDeviceGetHandleByIndex(2)
    assert time.monotonic() - started >= 0.6


def test_hung_gpu_never_answers_and_others_do(node: Path) -> None:
    program = (
        "gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]\n"
        "print('ready'); sys.stdin.readline()\n"
        "print(pynvml.nvmlDeviceGetName(gpus[0])); print(pynvml.nvmlDeviceGetName(gpus[1]))"
    )
    head = (
        "import sys, pynvml; from exporter.simulation.library import install; install(sys.argv[1]); pynvml.nvmlInit()\n"
    )
    asker = subprocess.Popen(
        [sys.executable, "-u", "-c", head + program, str(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asker.stdout is not None and asker.stdin is not None
    assert asker.stdout.readline() == "ready\n"
    state.inject(node, 1, "hang")
    seen()
    asker.stdin.write("go\n")
    asker.stdin.flush()
    assert asker.stdout.readline() == "NVIDIA H100 80GB HBM3\n"
    state.inject(node, 1, "heal")  # a call that hangs stays hung: only the process's end frees it
    with pytest.raises(subprocess.TimeoutExpired):
        asker.wait(timeout=0.5)
    asker.kill()
    assert asker.communicate(timeout=10)[0] == ""


def test_driver_that_goes_away(node: Path) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    node.unlink()
    seen()
    assert code_of(pynvml.nvmlDeviceGetName, gpu) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_install_refuses_what_is_not_a_node(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        install(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(state.StateError):
        install(tmp_path / "x.json")
    assert pynvml.nvmlLib is None


def xid_set(*indices: int) -> pynvml.c_nvmlEventSet_t:
    """An event set registered for Xids of the named GPUs."""
    event_set = pynvml.nvmlEventSetCreate()
    for index in indices:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, event_set)
    return event_set


def drained(event_set: pynvml.c_nvmlEventSet_t) -> list[tuple[int, int | None]]:
    """(Xid, device address) of every event that is there now."""
    found: list[tuple[int, int | None]] = []
    while True:
        try:
            event = pynvml.nvmlEventSetWait_v2(event_set, 60)
        except pynvml.NVMLError_Timeout:
            return found
        found.append((event.eventData, address_of(event.device)))


def test_event_names_the_device_and_comes_once_per_set(node: Path) -> None:
    state.inject(node, 1, "xid:13")  # before registration: never delivered
    seen()
    first, second = xid_set(0, 1), xid_set(1)
    state.inject(node, 1, "xid:31")
    state.inject(node, 2, "xid:43")  # not registered
    state.inject(node, 1, "ecc-dbe")  # another type
    state.inject(node, 0, "xid:45")
    one, zero = (address_of(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in (1, 0))
    assert drained(first) == [(31, one), (45, zero)]
    assert drained(second) == [(31, one)]
    assert drained(first) == []


def test_same_xid_twice_is_two_events(node: Path) -> None:
    waiting = xid_set(0)
    state.inject(node, 0, "xid:31")
    state.inject(node, 0, "xid:31")
    assert [code for code, _ in drained(waiting)] == [31, 31]


def test_each_process_sees_each_event_once(node: Path) -> None:
    program = (
        "s = pynvml.nvmlEventSetCreate()\n"
        "pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), 8, s); print('ready')\n"
        "while True:\n"
        "  code = pynvml.nvmlEventSetWait_v2(s, 20000).eventData; print(code)\n"
        "  if code == 45: break\n"
    )
    watchers = [in_another_process(program, node) for _ in range(2)]
    for watcher in watchers:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
    for code in (13, 31, 13, 45):
        state.inject(node, 0, f"xid:{code}")
    assert [watcher.communicate(timeout=30)[0].split() for watcher in watchers] == [["13", "31", "13", "45"]] * 2


def test_double_bit_event_is_delivered_when_asked_for(node: Path) -> None:
    event_set = pynvml.nvmlEventSetCreate()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeDoubleBitEccError, event_set)
    state.inject(node, 0, "xid:13")
    state.inject(node, 0, "ecc-dbe")
    assert pynvml.nvmlEventSetWait_v2(event_set, 1000).eventType == pynvml.nvmlEventTypeDoubleBitEccError


def test_unsupported_event_type_registers_nothing(node: Path) -> None:
    event_set, gpu = pynvml.nvmlEventSetCreate(), pynvml.nvmlDeviceGetHandleByIndex(0)
    wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeClock
    assert code_of(pynvml.nvmlDeviceRegisterEvents, gpu, wanted, event_set) == pynvml.NVML_ERROR_NOT_SUPPORTED
    state.inject(node, 0, "xid:13")
    assert drained(event_set) == []


def test_wait_ends_soon_after_an_event_and_leaves_the_gil(node: Path) -> None:
    event_set = xid_set(0)
    threading.Timer(0.2, state.inject, (node, 0, "xid:13")).start()
    started = time.monotonic()
    assert pynvml.nvmlEventSetWait_v2(event_set, 10_000).eventData == 13
    assert 0.15 < time.monotonic() - started < 2.0


def test_set_with_a_lost_gpu_delivers_first_and_then_fails(node: Path) -> None:
    event_set = xid_set(0, 1)
    state.inject(node, 1, "xid:79")
    state.inject(node, 0, "xid:31")
    codes = [pynvml.nvmlEventSetWait_v2(event_set, 1000).eventData for _ in range(3)]
    assert codes == [79, 154, 31]
    assert code_of(pynvml.nvmlEventSetWait_v2, event_set, 1000) == pynvml.NVML_ERROR_GPU_IS_LOST
    state.inject(node, 0, "xid:45")
    assert pynvml.nvmlEventSetWait_v2(event_set, 1000).eventData == 45


def test_set_is_gone_after_free_and_after_shutdown(node: Path) -> None:
    first, second = xid_set(0), xid_set(0)
    pynvml.nvmlEventSetFree(first)
    assert code_of(pynvml.nvmlEventSetWait_v2, first, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlEventSetFree, first) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlEventSetWait_v2, second, 0) == pynvml.NVML_ERROR_UNINITIALIZED
    pynvml.nvmlInit()
    assert code_of(pynvml.nvmlEventSetWait_v2, second, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT
