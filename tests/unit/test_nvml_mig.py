"""MIG as real drivers answer it, over the simulated library with four of its functions replaced."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml
import pytest

from exporter.readers.nvml import GpuReader, attach, read_gpu
from exporter.readers.nvml_library import open_nvml
from exporter.readings import GpuReadings, GpuStatus
from exporter.simulation import library, state
from exporter.simulation.driver import Failure, address, number, put, put_handle, put_text

NOW = datetime(2026, 11, 1, tzinfo=UTC)
INSTANCES = 0x7000_0000


@dataclass
class Mig:
    """The MIG side of one driver: instances by slot, and the code that each function fails with."""

    instances: dict[int, str] = field(default_factory=dict)
    fails: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)

    def call(self, name: str) -> None:
        """One call of `name`."""
        self.asked[name] = self.asked.get(name, 0) + 1
        if name in self.fails:
            raise Failure(self.fails[name])

    def mode(self, _: Any, current: Any, pending: Any) -> None:
        self.call("mode")
        put(current, 1)
        put(pending, 1)

    def handle(self, _: Any, index: Any, handle: Any) -> None:
        self.call("handle")
        if number(index) not in self.instances:
            raise Failure(pynvml.NVML_ERROR_NOT_FOUND)
        put_handle(handle, INSTANCES + number(index))

    def uuid(self, handle: Any, buffer: Any, size: Any) -> None:
        slot = address(handle) - INSTANCES
        put_text(buffer, size, self.instances.get(slot, "GPU-parent"))

    def rows(self, _: Any, *values: Any) -> None:
        self.call("rows")
        if self.instances:  # nvml.h: not supported while instances exist
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        for value in values:
            put(value, 0)


@pytest.fixture
def mig(tmp_path: Path) -> Iterator[Mig]:
    state.create(tmp_path / "node.json", "h100", 1, "n1")
    library.install(tmp_path / "node.json")
    made = Mig(instances={1: "MIG-a", 4: "MIG-b"})
    for name, body in (
        ("nvmlDeviceGetMigMode", made.mode),
        ("nvmlDeviceGetMigDeviceHandleByIndex", made.handle),
        ("nvmlDeviceGetUUID", made.uuid),
        ("nvmlDeviceGetRemappedRows", made.rows),
    ):
        setattr(pynvml.nvmlLib, name, library.Function(body))
    open_nvml(None)
    yield made
    pynvml.nvmlShutdown()


@pytest.fixture
def reader(mig: Mig) -> GpuReader:
    taken = attach(0)
    assert isinstance(taken, GpuReader)
    return taken


def read(reader: GpuReader) -> GpuReadings:
    return read_gpu(reader, lambda: NOW)


def test_instances_are_listed_and_links_are_not_shown(reader: GpuReader) -> None:
    gpu = read(reader)
    assert (gpu.identity.mig_uuids, gpu.nvlinks, gpu.failed) == (("MIG-a", "MIG-b"), None, ())


@pytest.mark.parametrize("name", ["mode", "handle"])
def test_a_mode_that_cannot_be_read_is_still_the_last_one(mig: Mig, reader: GpuReader, name: str) -> None:
    read(reader)
    mig.fails[name] = pynvml.NVML_ERROR_UNKNOWN
    gpu = read(reader)
    assert gpu.failed == ("modes",)
    assert (gpu.identity.mig_uuids, gpu.nvlinks) == (("MIG-a", "MIG-b"), None)


def test_a_gpu_without_time_for_its_modes_keeps_the_last_ones(reader: GpuReader) -> None:
    read(reader)
    reader.begin()
    reader.skip("modes")
    reader.read("nvlink")
    gpu = reader.finish(NOW, 0.0)
    assert (gpu.identity.mig_uuids, gpu.nvlinks) == (("MIG-a", "MIG-b"), None)


def test_a_gpu_that_is_lost_keeps_its_instances(reader: GpuReader) -> None:
    read(reader)
    assert reader.gone(GpuStatus.LOST, NOW, 0.0).identity.mig_uuids == ("MIG-a", "MIG-b")


def test_a_loss_that_only_an_instance_tells_is_a_loss(mig: Mig, reader: GpuReader) -> None:
    read(reader)
    mig.fails["handle"] = pynvml.NVML_ERROR_GPU_IS_LOST
    gpu = read(reader)
    assert (gpu.status, gpu.power_watts) == (GpuStatus.LOST, None)


def test_what_instances_hid_is_asked_again_without_them(mig: Mig, reader: GpuReader) -> None:
    assert [read(reader).row_remap, read(reader).row_remap] == [None, None]
    assert mig.asked["rows"] == 1
    mig.instances.clear()
    read(reader)
    gpu = read(reader)
    assert gpu.identity.mig_uuids == () and gpu.row_remap is not None
