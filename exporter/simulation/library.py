"""The simulated `libnvidia-ml.so.1`: an object whose attributes are the C functions, put where nvidia-ml-py keeps it.

`install(path)` before `pynvml.nvmlInit()`, and every line of the real nvidia-ml-py runs over the simulated node.
A function that the node's driver version does not export is absent, as in a real library of that version.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pynvml

from exporter.simulation import calls_faults, calls_identity, calls_processes, calls_readings, calls_samples, fields
from exporter.simulation.driver import Driver, Failure
from exporter.simulation.events import EventSets

DEVICE_CALLS: Final[dict[str, Callable[..., None]]] = {
    **calls_identity.DEVICE,
    **calls_readings.DEVICE,
    **calls_faults.DEVICE,
    **calls_processes.DEVICE,
    **calls_samples.DEVICE,
}


class Function:
    """A C function: callable, returning an NVML code, and open to attributes such as `restype`."""

    def __init__(self, body: Callable[..., None]) -> None:
        self._body = body

    def __call__(self, *arguments: Any) -> int:
        """Run the body; its `Failure` becomes the return code."""
        try:
            self._body(*arguments)
        except Failure as failed:
            return failed.code
        return int(pynvml.NVML_SUCCESS)


class ErrorString(Function):
    """nvmlErrorString, the one function that returns a string."""

    def __init__(self) -> None:
        super().__init__(lambda code: None)

    def __call__(self, *arguments: Any) -> Any:
        """The text of a code as bytes, as ctypes gives a `const char *`."""
        known = pynvml.NVMLError._errcode_to_string
        return str(known.get(int(arguments[0]), "Unknown Error")).encode()


class Library:
    """One simulated node's NVML in one process."""

    def __init__(self, path: Path) -> None:
        self._driver = Driver(path)
        self._sets = EventSets(self._driver)
        bodies: dict[str, Callable[..., None]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlInit_v2": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetFieldValues": partial(self._ready, self._field_values),
        }
        bodies |= {name: partial(self._ready, body) for name, body in self._sets.calls().items()}
        bodies |= {name: partial(self._system, body) for name, body in calls_identity.SYSTEM.items()}
        bodies |= {name: partial(self._device, body) for name, body in DEVICE_CALLS.items()}
        profile = self._driver.state().profile
        self.__dict__.update({name: Function(body) for name, body in bodies.items() if profile.has_symbol(name)})
        self.__dict__["nvmlErrorString"] = ErrorString()

    def _init(self, flags: Any = 0) -> None:
        self._driver.state()
        self._driver.inits += 1

    def _shutdown(self) -> None:
        self._driver.require_init()
        self._driver.inits -= 1
        if self._driver.inits == 0:
            self._sets.forget()

    def _ready(self, body: Callable[..., None], *arguments: Any) -> None:
        self._driver.require_init()
        body(*arguments)

    def _system(self, body: Callable[..., None], *arguments: Any) -> None:
        self._driver.require_init()
        body(self._driver, *arguments)

    def _device(self, body: Callable[..., None], handle: Any, *arguments: Any) -> None:
        self._driver.require_init()
        body(self._driver.admit(self._driver.slot_of(handle)), *arguments)

    def _field_values(self, handle: Any, count: Any, values: Any) -> None:
        board = self._driver.admit(self._driver.slot_of(handle), lost_too=True)
        fields.field_values(board, count, values)


def install(state_path: Path | str) -> None:
    """Make nvidia-ml-py in this process talk to the simulated node in `state_path`, before `nvmlInit`.

    Raises OSError when there is no such file, `StateError` when it is not a node's state. A second call moves the
    process to another node: nothing of the first one stays.
    """
    library = Library(Path(state_path))
    pynvml.nvmlLib = library
    # nvidia-ml-py remembers functions by name; those of a library from before must go.
    pynvml._nvmlGetFunctionPointer_cache.clear()
