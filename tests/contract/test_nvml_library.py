"""What the exporter expects of an NVML library, over the simulator and, when one is named, over a real library.

Set GPUWARD_NVML_LIBRARY to the path of a libnvidia-ml.so.1 (a driver's, or a stand-in's) to run it there too.
"""

import os
import time
from dataclasses import fields
from datetime import datetime
from pathlib import Path

import pytest

from exporter.readings import DriverState, GpuReadings, GpuStatus, Snapshot
from exporter.sampler import Sampler, SamplerSettings
from exporter.simulation import state

VARIABLE = "GPUWARD_NVML_LIBRARY"
LIBRARIES = ["simulated h100", "simulated a100", "simulated t4", VARIABLE]
FIRST_SWEEP_SECONDS = 30.0


def settings_for(library: str, folder: Path) -> SamplerSettings:
    """Settings that make a sampler read this library; skips, saying so, when it is not there."""
    path, simulated = None, None
    if library == VARIABLE:
        path = os.environ.get(VARIABLE)
        if not path:
            pytest.skip(f"{VARIABLE} is not set: the contract was checked on the simulator only")
    else:
        simulated = str(folder / "node.json")
        state.create(Path(simulated), library.removeprefix("simulated "), 4, "n1")
    return SamplerSettings(
        interval_seconds=0.5, probe_timeout_seconds=5.0, node="n1", library_path=path, simulate_state_path=simulated
    )


@pytest.fixture(scope="module", params=LIBRARIES)
def snapshots(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Snapshot]:
    """Three snapshots of one node with all GPUs read."""
    collected: list[Snapshot] = []
    sampler = Sampler(settings_for(str(request.param), tmp_path_factory.mktemp("nvml")), collected.append)
    sampler.start()
    deadline = time.monotonic() + FIRST_SWEEP_SECONDS
    while len(read := [s for s in collected if s.gpus]) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    sampler.stop()
    assert len(read) >= 3, f"no readings: {collected[-1:]}"
    return read


@pytest.fixture
def gpus(snapshots: list[Snapshot]) -> tuple[GpuReadings, ...]:
    return snapshots[-1].gpus


def test_every_gpu_is_up_and_no_subject_fails(snapshots: list[Snapshot], gpus: tuple[GpuReadings, ...]) -> None:
    last = snapshots[-1]
    assert (last.driver_state, last.worker_restarts) == (DriverState.OK, 0)
    assert last.enumerated == len(gpus) > 0
    assert [(gpu.status, gpu.failed) for gpu in gpus] == [(GpuStatus.UP, ())] * len(gpus)


def test_every_gpu_has_a_name_of_its_own(gpus: tuple[GpuReadings, ...]) -> None:
    assert len({gpu.identity.uuid for gpu in gpus}) == len({gpu.identity.pci_bus_id for gpu in gpus}) == len(gpus)
    for gpu in gpus:
        assert gpu.identity.uuid.startswith("GPU-")
        assert gpu.identity.model not in ("", "unknown")
        domain, bus, device = gpu.identity.pci_bus_id.split(":")
        assert (len(domain), len(bus), len(device)) == (8, 2, 4)


def test_the_driver_says_its_version(snapshots: list[Snapshot]) -> None:
    driver = snapshots[-1].driver
    assert driver is not None
    assert driver.driver_version.split(".")[0].isdecimal()


def test_values_are_plausible_in_base_units(gpus: tuple[GpuReadings, ...]) -> None:
    for gpu in gpus:
        assert gpu.memory_total_bytes is not None and 1e9 < gpu.memory_total_bytes < 1e12
        assert gpu.memory_used_bytes is not None and 0 <= gpu.memory_used_bytes <= gpu.memory_total_bytes
        assert gpu.temperature_celsius is not None and 0 < gpu.temperature_celsius < 120
        assert gpu.power_watts is None or 1 < gpu.power_watts < 2000
        assert gpu.utilization_ratio is None or 0 <= gpu.utilization_ratio <= 1
        assert all(1e6 <= clock.current_hertz < 1e10 for clock in gpu.clocks)


def test_no_sentinel_leaves_the_reader(gpus: tuple[GpuReadings, ...]) -> None:
    for gpu in gpus:
        for field in fields(gpu):
            value = getattr(gpu, field.name)
            assert not (isinstance(value, int) and value in (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)), field.name


def test_counters_never_shrink_and_times_move_on(snapshots: list[Snapshot]) -> None:
    times: list[datetime] = [snapshot.gpus[0].taken_at for snapshot in snapshots]
    assert times == sorted(times) and times[0] < times[-1]
    energies = [snapshot.gpus[0].energy_joules for snapshot in snapshots]
    told = [energy for energy in energies if energy is not None]
    assert told == sorted(told)
