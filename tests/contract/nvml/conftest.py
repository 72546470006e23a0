"""The NVML that a contract case asks: each simulated profile, and the real library that GPUWARD_NVML_LIBRARY names."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from exporter.simulation import state
from exporter.simulation.profiles import PROFILES, Profile
from tests.rig.simulated_nvml import nvml_over_library, nvml_over_node

LIBRARY_VARIABLE = "GPUWARD_NVML_LIBRARY"


@dataclass(frozen=True)
class Nvml:
    """What a case may know about the NVML under test; `profile` and `state_path` are None on a real library."""

    profile: Profile | None
    state_path: Path | None

    def handles(self) -> list[Any]:
        """A handle of every enumerated GPU."""
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _simulated(profile: Profile, folder: Path) -> Iterator[Nvml]:
    path = folder / "node.json"
    state.create(path, profile.name, 2, "contract")
    with nvml_over_node(path):
        yield Nvml(profile, path)


@pytest.fixture(params=[*(profile.name for profile in PROFILES), "library"])
def nvml(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nvml]:
    """An initialised NVML: three simulated profiles, and a real library when one is named."""
    if request.param != "library":
        yield from _simulated(next(each for each in PROFILES if each.name == request.param), tmp_path)
        return
    library = os.environ.get(LIBRARY_VARIABLE)
    if not library:
        pytest.skip(f"{LIBRARY_VARIABLE} names no library (a real driver's libnvidia-ml.so.1)")
    with nvml_over_library(library):
        yield Nvml(None, None)


@pytest.fixture(params=[profile.name for profile in PROFILES])
def simulated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nvml]:
    """An initialised NVML over a simulated node, for answers that only hold of a known generation."""
    yield from _simulated(next(each for each in PROFILES if each.name == request.param), tmp_path)
