"""Which NVML is asked, and what it means when there is none.

Lives here: loading, initialising and naming the library, and the tree of errors that leave the NVML readers:

    DriverDown      there is nothing to ask (any more); carries the state and a sentence; try later, in a new process
    GpuGone         this GPU does not answer calls; carries LOST or RESET_REQUIRED; its readings are void

Any other failure of a call is not an error of ours: the reading is absent and its subject is counted.
"""

import ctypes

import pynvml

from exporter.readings import DriverInfo, DriverState, GpuStatus

SONAME = "libnvidia-ml.so.1"


class DriverDown(Exception):
    """There is no driver, library or GPU to ask; `details` is one sentence for a human."""

    def __init__(self, state: DriverState, details: str) -> None:
        super().__init__(details)
        self.state = state
        self.details = details


class GpuGone(Exception):
    """A call said that this GPU is lost or must be reset first."""

    def __init__(self, status: GpuStatus) -> None:
        super().__init__(status.value)
        self.status = status


GONE: dict[int, GpuStatus] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuStatus.LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: GpuStatus.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: GpuStatus.RESET_REQUIRED,
}

DOWN: dict[int, tuple[DriverState, str]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: (DriverState.NO_DRIVER, "NVML was shut down under us"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (DriverState.NO_DRIVER, "the NVIDIA kernel driver is not loaded"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        DriverState.NO_DRIVER,
        "the NVML library and the loaded kernel driver have different versions; reload the driver or reboot",
    ),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        DriverState.LIBRARY_MISSING,
        f"{SONAME} was not found; is the driver installed and visible in this container?",
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (DriverState.LIBRARY_MISSING, "the library that was loaded is not NVML"),
}
"""Return codes after which no call on any GPU makes sense in this process."""


def open_nvml(library_path: str | None) -> None:
    """Load (from `library_path`, else by soname, else what is already installed in pynvml) and initialise NVML.

    Raises `DriverDown`.
    """
    if library_path is not None:
        try:
            pynvml.nvmlLib = ctypes.CDLL(library_path)
        except OSError as error:
            raise DriverDown(DriverState.LIBRARY_MISSING, f"cannot load {library_path}: {error}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise driver_down(error) from error


def driver_down(error: pynvml.NVMLError) -> DriverDown:
    """What a failed initialisation means."""
    state, sentence = DOWN.get(error.value, (DriverState.NO_DRIVER, f"NVML cannot be initialised: {error}"))
    return DriverDown(state, sentence)


def count_gpus() -> int:
    """How many GPUs NVML enumerates; a lost one still counts, a removed one does not. Raises `DriverDown`."""
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise driver_down(error) from error


def driver_info() -> DriverInfo:
    """Versions of driver, NVML and CUDA; what cannot be read is None. Raises `DriverDown`."""
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        raise driver_down(error) from error
    return DriverInfo(driver_version=driver, nvml_version=_nvml_version(), cuda_version=_cuda_version())


def _nvml_version() -> str | None:
    try:
        return str(pynvml.nvmlSystemGetNVMLVersion())
    except pynvml.NVMLError:
        return None


def _cuda_version() -> str | None:
    """NVML packs 12.4 as 12040."""
    try:
        packed = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return None
    return f"{packed // 1000}.{packed % 1000 // 10}"
