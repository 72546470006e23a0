"""NVML in the test's own process: nvidia-ml-py over a simulated node or over a real library, and clean afterwards."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from exporter.simulation.library import install


@contextmanager
def nvml_over_node(state_path: Path) -> Iterator[None]:
    """pynvml initialised over the simulated node in `state_path`."""
    install(state_path)
    with _initialised():
        yield


@contextmanager
def nvml_over_library(path: str) -> Iterator[None]:
    """pynvml initialised over a real shared library."""
    pynvml.nvmlLib = ctypes.CDLL(path)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    with _initialised():
        yield


@contextmanager
def _initialised() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()


def code_of(call: Callable[..., Any], *arguments: Any) -> int:
    """The NVML return code of a call, 0 for success."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return int(pynvml.NVML_SUCCESS)


def address_of(handle: Any) -> int | None:
    """The address inside an opaque handle, to compare handles."""
    return ctypes.cast(handle, ctypes.c_void_p).value
