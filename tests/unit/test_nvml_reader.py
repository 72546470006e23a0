"""The NVML reader over the simulated library: the real nvidia-ml-py runs, and every law of the readings holds."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml
import pytest

from exporter.readers.nvml import REASK_SWEEPS, GpuReader, Unattached, attach, read_gpu
from exporter.readers.nvml_events import EventsFailed, XidFeed, pointer_of
from exporter.readers.nvml_library import DriverDown, count_gpus, driver_info, open_nvml
from exporter.readings import DriverState, GpuReadings, GpuStatus, NvLinkState
from exporter.simulation import library, state
from exporter.simulation.driver import Failure

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NOTICED_SECONDS = 2.0
AMPERE_READINGS = {"row_remap", "nvlinks", "memory_temperature_celsius"}


@dataclass
class Node:
    """A simulated node whose library is installed in this process."""

    path: Path

    def readers(self) -> list[GpuReader]:
        taken = [attach(index) for index in range(count_gpus())]
        return [reader for reader in taken if isinstance(reader, GpuReader)]

    def inject(self, index: int, fault: str) -> None:
        state.inject(self.path, index, fault)


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Callable[[str, int], Node]]:
    def create(profile: str, count: int) -> Node:
        path = tmp_path / "node.json"
        state.create(path, profile, count, "n1")
        library.install(path)
        open_nvml(None)
        return Node(path)

    yield create
    pynvml.nvmlShutdown()


def read(reader: GpuReader) -> GpuReadings:
    return read_gpu(reader, lambda: NOW)


def read_until(reader: GpuReader, wanted: Callable[[GpuReadings], bool]) -> GpuReadings:
    """The first sweep that shows it: the simulated driver notices a change of its state file after a moment."""
    deadline = time.monotonic() + NOTICED_SECONDS
    while True:
        readings = read(reader)
        if wanted(readings) or time.monotonic() > deadline:
            return readings
        time.sleep(0.01)


def test_an_h100_tells_everything_in_base_units(boot: Callable[[str, int], Node]) -> None:
    node = boot("h100", 2)
    gpu = read(node.readers()[1])
    assert (gpu.status, gpu.failed, gpu.taken_at) == (GpuStatus.UP, (), NOW)
    identity = gpu.identity
    assert identity.uuid == state.gpu_uuid("n1", "h100", 1)
    assert (identity.index, identity.architecture, identity.compute_capability) == (1, "hopper", "9.0")
    assert len(identity.pci_bus_id) == 16 and identity.pci_bus_id == identity.pci_bus_id.lower()
    assert gpu.memory_total_bytes is not None and gpu.memory_total_bytes > 80e9
    assert gpu.memory_reserved_bytes is not None and gpu.memory_reserved_bytes > 0
    assert gpu.memory_used_bytes == 0, "the driver's reserve is not used memory"
    assert gpu.power_watts is not None and 30 < gpu.power_watts < 200
    assert gpu.power_limit_watts == 700
    assert gpu.temperature_celsius is not None and 20 < gpu.temperature_celsius < 60
    assert {clock.domain: clock.max_hertz for clock in gpu.clocks}["sm"] == 1.98e9
    assert gpu.nvlinks is not None and len(gpu.nvlinks) == 18 and all(link.active for link in gpu.nvlinks)
    assert (gpu.recovery_action, gpu.ecc_mode, gpu.utilization_ratio) == (0, True, 0.0)
    assert gpu.row_remap is not None and not gpu.row_remap.pending
    assert gpu.pcie is not None and (gpu.pcie.width, gpu.pcie.width_max) == (16, 16)


@pytest.mark.parametrize(
    ("profile", "absent", "present"),
    [
        pytest.param(
            "h100", set(), {"recovery_action", "row_remap", "nvlinks", "memory_temperature_celsius"}, id="h100"
        ),
        pytest.param("a100", {"recovery_action"}, {"row_remap", "nvlinks", "memory_temperature_celsius"}, id="a100"),
        pytest.param(
            "t4", {"recovery_action", "row_remap", "nvlinks", "memory_temperature_celsius"}, {"power_watts"}, id="t4"
        ),
    ],
)
def test_what_a_generation_lacks_is_none_and_never_zero_or_failed(
    boot: Callable[[str, int], Node], profile: str, absent: set[str], present: set[str]
) -> None:
    gpu = read(boot(profile, 1).readers()[0])
    names = {field.name for field in fields(gpu)}
    assert absent | present <= names
    assert {name for name in absent | present if getattr(gpu, name) is None} == absent
    assert gpu.failed == ()


def test_the_driver_names_its_versions(boot: Callable[[str, int], Node]) -> None:
    boot("t4", 2)
    info = driver_info()
    assert (info.driver_version, info.cuda_version, count_gpus()) == ("535.183.01", "12.2", 2)


@pytest.mark.parametrize(
    ("fault", "shows"),
    [
        pytest.param(
            "row-remap-pending", lambda g: g.row_remap is not None and g.row_remap.pending, id="remap pending"
        ),
        pytest.param(
            "row-remap-failure", lambda g: g.row_remap is not None and g.row_remap.failure, id="remap failure"
        ),
        pytest.param("recovery-action:1", lambda g: g.recovery_action == 1, id="recovery action"),
        pytest.param("ecc-dbe", lambda g: g.ecc and g.ecc[1].volatile == 1 and g.ecc[1].aggregate == 1, id="ecc"),
        pytest.param("thermal-slowdown", lambda g: (g.clock_event_bits or 0) & 0x48, id="thermal slowdown"),
        pytest.param("nvlink-down:5", lambda g: NvLinkState(link=5, active=False) in (g.nvlinks or ()), id="nvlink"),
    ],
)
def test_a_fault_shows_on_its_gpu_and_on_no_other(
    boot: Callable[[str, int], Node], fault: str, shows: Callable[[GpuReadings], bool]
) -> None:
    node = boot("h100", 2)
    sound, faulty = node.readers()
    assert not shows(read(faulty))
    node.inject(1, fault)
    assert shows(read_until(faulty, shows))
    assert not shows(read(sound))


def test_processes_are_counted_and_make_the_gpu_busy(boot: Callable[[str, int], Node]) -> None:
    node = boot("h100", 1)
    running = [
        state.SimulatedProcess(pid=1000 + number, name="python", memory_bytes=1 << 20, utilization_ratio=0.005)
        for number in range(100)
    ]
    state.set_processes(node.path, {0: running})
    gpu = read_until(node.readers()[0], lambda readings: readings.compute_processes == 100)
    assert gpu.compute_processes == 100, "more than the first buffer holds"
    assert gpu.utilization_ratio == pytest.approx(0.5, abs=0.05)


def test_a_process_count_that_is_not_available_is_not_an_idle_gpu(boot: Callable[[str, int], Node]) -> None:
    reader = boot("h100", 1).readers()[0]

    def unavailable(_handle: object, count: Any, _buffer: object) -> None:
        count._obj.value = 0xFFFFFFFF

    pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3 = library.Function(unavailable)
    assert read(reader).compute_processes is None


def test_what_was_not_supported_once_is_not_given_up_for_ever(boot: Callable[[str, int], Node]) -> None:
    """A driver that is still waking a board says "not supported" too; months without row remapping would follow."""
    reader = boot("h100", 1).readers()[0]
    awake = pynvml.nvmlLib.nvmlDeviceGetRemappedRows
    pynvml.nvmlLib.nvmlDeviceGetRemappedRows = library.Function(unsupported)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert read(reader).row_remap is None
    pynvml.nvmlLib.nvmlDeviceGetRemappedRows = awake
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert read(reader).row_remap is None, "not asked in every sweep"
    for _ in range(REASK_SWEEPS):
        reader.begin()
    assert read(reader).row_remap is not None


def unsupported(*_: object) -> None:
    raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_gpu_that_spoils_the_event_set_leaves_the_others_theirs(boot: Callable[[str, int], Node]) -> None:
    node = boot("h100", 2)
    readers = node.readers()
    register = pynvml.nvmlLib.nvmlDeviceRegisterEvents

    def refuse(handle: Any, *arguments: Any) -> None:
        if pointer_of(handle) == pointer_of(readers[0].handle) or register(handle, *arguments):
            raise Failure(pynvml.NVML_ERROR_UNKNOWN)

    pynvml.nvmlLib.nvmlDeviceRegisterEvents = library.Function(refuse)
    pynvml.nvmlLib.nvmlEventSetFree = library.Function(unsupported)
    feed = XidFeed(readers)
    feed.open()
    assert feed.listening and feed.without_events == (readers[0].identity.uuid,)


def test_a_lost_gpu_keeps_its_identity_and_no_reading(boot: Callable[[str, int], Node]) -> None:
    node = boot("h100", 2)
    sound, lost = node.readers()
    before = read(lost)
    node.inject(1, "lost")
    after = read_until(lost, lambda readings: readings.status is GpuStatus.LOST)
    assert after == GpuReadings(identity=before.identity, status=GpuStatus.LOST, taken_at=NOW)
    assert read(sound).status is GpuStatus.UP


def test_a_gpu_that_is_lost_before_it_is_taken_has_no_identity(boot: Callable[[str, int], Node]) -> None:
    node = boot("h100", 2)
    node.inject(1, "lost")
    time.sleep(0.1)
    assert attach(1) == Unattached(index=1, status=GpuStatus.LOST)
    assert count_gpus() == 2


def test_an_xid_names_its_gpu_even_when_that_gpu_is_gone(boot: Callable[[str, int], Node]) -> None:
    node = boot("h100", 2)
    feed = XidFeed(node.readers())
    feed.open()
    assert feed.listening and feed.without_events == ()
    assert feed.wait(10) is None
    node.inject(1, "xid:79")
    raised = feed.wait(2000)
    assert raised is not None and raised.gpu is not None
    assert (raised.code, raised.gpu.uuid, raised.gpu_instance) == (79, state.gpu_uuid("n1", "h100", 1), None)
    while (following := answer_of(feed)) is not None and following != "failed":
        pass  # the driver's own recovery Xid follows
    assert following == "failed", "a set with a lost GPU fails, and the failure is told from silence"


def answer_of(feed: XidFeed) -> object:
    try:
        return feed.wait(100)
    except EventsFailed:
        return "failed"


def test_an_ecc_event_is_no_xid(boot: Callable[[str, int], Node]) -> None:
    node = boot("h100", 1)
    feed = XidFeed(node.readers())
    feed.open()
    node.inject(0, "ecc-dbe")
    assert feed.wait(200) is None


@pytest.mark.parametrize("path", ["/nonexistent/libnvidia-ml.so.1", __file__])
def test_a_library_that_cannot_be_loaded_is_said_with_its_path(path: str) -> None:
    with pytest.raises(DriverDown, match=path) as down:
        open_nvml(path)
    assert down.value.state is DriverState.LIBRARY_MISSING
