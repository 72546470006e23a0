"""NVML calls about the system, device handles and what a device is."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from exporter.simulation.driver import Board, Driver, Failure, device_handle, number, put, put_handle, put_text
from exporter.simulation.node import GpuState, NodeState, gpu_serial, pci_address

_BRAND_NVIDIA: Final = 14
"""Data-centre boards of every generation call themselves so since driver branch 470."""


def driver_version(driver: Driver, buffer: Any, size: Any) -> None:
    """nvmlSystemGetDriverVersion."""
    put_text(buffer, size, driver.state().profile.driver_version)


def nvml_version(driver: Driver, buffer: Any, size: Any) -> None:
    """nvmlSystemGetNVMLVersion: API major version 12, then the driver's version."""
    put_text(buffer, size, f"12.{driver.state().profile.driver_version}")


def cuda_version(driver: Driver, version: Any) -> None:
    """nvmlSystemGetCudaDriverVersion and its v2."""
    put(version, driver.state().profile.cuda_version)


def process_name(driver: Driver, pid: Any, buffer: Any, size: Any) -> None:
    """nvmlSystemGetProcessName, for the processes on the node's GPUs."""
    for gpu in driver.state().gpus:
        for process in gpu.processes:
            if process.pid == number(pid):
                return put_text(buffer, size, process.name)
    raise Failure(pynvml.NVML_ERROR_NOT_FOUND)


def count(driver: Driver, value: Any) -> None:
    """nvmlDeviceGetCount_v2: the GPUs that are enumerated; a lost GPU still is."""
    put(value, len(driver.state().visible))


def handle_by_index(driver: Driver, index: Any, handle: Any) -> None:
    """nvmlDeviceGetHandleByIndex_v2: touches that GPU only."""
    visible = driver.state().visible
    if not 0 <= number(index) < len(visible):
        raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    _attach(driver, visible[number(index)], handle)


def handle_by_uuid(driver: Driver, uuid: Any, handle: Any) -> None:
    """nvmlDeviceGetHandleByUUID."""
    wanted = (uuid.value or b"").decode()
    _attach(driver, _found(driver, lambda state, gpu: state.uuid(gpu.index) == wanted), handle)


def handle_by_serial(driver: Driver, serial: Any, handle: Any) -> None:
    """nvmlDeviceGetHandleBySerial."""
    wanted = (serial.value or b"").decode()
    _attach(driver, _found(driver, lambda state, gpu: _serial(state, gpu) == wanted), handle)


def handle_by_pci(driver: Driver, bus_id: Any, handle: Any) -> None:
    """nvmlDeviceGetHandleByPciBusId_v2: `dddd:bb:dd.f` or with eight domain digits, in either case."""
    wanted = _parse_pci((bus_id.value or b"").decode())
    _attach(driver, _found(driver, lambda state, gpu: pci_address(state.profile, gpu.index) == wanted), handle)


def _attach(driver: Driver, gpu: GpuState, handle: Any) -> None:
    driver.admit(gpu.index)
    put_handle(handle, device_handle(gpu.index))


def _found(driver: Driver, matches: Callable[[NodeState, GpuState], bool]) -> GpuState:
    state = driver.state()
    for gpu in state.visible:
        if matches(state, gpu):
            return gpu
    raise Failure(pynvml.NVML_ERROR_NOT_FOUND)


def _parse_pci(text: str) -> tuple[int, int]:
    try:
        domain, bus, _device = text.split(":")
        return int(domain, 16), int(bus, 16)
    except ValueError:
        raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT) from None


def _serial(state: NodeState, gpu: GpuState) -> str:
    return gpu_serial(state.node, state.profile.name, gpu.index)


def name(board: Board, buffer: Any, size: Any) -> None:
    """nvmlDeviceGetName."""
    put_text(buffer, size, board.profile.model)


def uuid(board: Board, buffer: Any, size: Any) -> None:
    """nvmlDeviceGetUUID."""
    put_text(buffer, size, board.state.uuid(board.gpu.index))


def serial(board: Board, buffer: Any, size: Any) -> None:
    """nvmlDeviceGetSerial."""
    put_text(buffer, size, _serial(board.state, board.gpu))


def index(board: Board, value: Any) -> None:
    """nvmlDeviceGetIndex: the place among the enumerated GPUs, which moves up when one before it is missing."""
    put(value, board.state.visible.index(board.gpu))


def minor(board: Board, value: Any) -> None:
    """nvmlDeviceGetMinorNumber: the N of /dev/nvidiaN, which stays with the slot."""
    put(value, board.gpu.index)


def pci_info(board: Board, info: Any) -> None:
    """nvmlDeviceGetPciInfo_v3."""
    domain, bus = pci_address(board.profile, board.gpu.index)
    target = info._obj
    target.domain, target.bus, target.device = domain, bus, 0
    target.pciDeviceId, target.pciSubSystemId = board.profile.pci_device_id, board.profile.pci_subsystem_id
    target.busId = f"{domain:08X}:{bus:02X}:00.0"
    target.busIdLegacy = f"{domain:04X}:{bus:02X}:00.0"


def brand(board: Board, value: Any) -> None:
    """nvmlDeviceGetBrand."""
    put(value, _BRAND_NVIDIA)


def architecture(board: Board, value: Any) -> None:
    """nvmlDeviceGetArchitecture."""
    put(value, board.profile.architecture)


def compute_capability(board: Board, major: Any, minor: Any) -> None:
    """nvmlDeviceGetCudaComputeCapability."""
    put(major, board.profile.compute_capability[0])
    put(minor, board.profile.compute_capability[1])


def vbios(board: Board, buffer: Any, size: Any) -> None:
    """nvmlDeviceGetVbiosVersion."""
    put_text(buffer, size, board.profile.vbios)


def part_number(board: Board, buffer: Any, size: Any) -> None:
    """nvmlDeviceGetBoardPartNumber."""
    put_text(buffer, size, board.profile.part_number)


def compute_mode(board: Board, value: Any) -> None:
    """nvmlDeviceGetComputeMode: default (shared)."""
    put(value, pynvml.NVML_COMPUTEMODE_DEFAULT)


def persistence_mode(board: Board, value: Any) -> None:
    """nvmlDeviceGetPersistenceMode: on, as the persistence daemon leaves it."""
    put(value, pynvml.NVML_FEATURE_ENABLED)


def fans(board: Board, value: Any) -> None:
    """nvmlDeviceGetNumFans: these boards are cooled by the chassis."""
    put(value, 0)


SYSTEM: Final[dict[str, Callable[..., None]]] = {
    "nvmlSystemGetDriverVersion": driver_version,
    "nvmlSystemGetNVMLVersion": nvml_version,
    "nvmlSystemGetCudaDriverVersion": cuda_version,
    "nvmlSystemGetCudaDriverVersion_v2": cuda_version,
    "nvmlSystemGetProcessName": process_name,
    "nvmlDeviceGetCount_v2": count,
    "nvmlDeviceGetHandleByIndex_v2": handle_by_index,
    "nvmlDeviceGetHandleByUUID": handle_by_uuid,
    "nvmlDeviceGetHandleBySerial": handle_by_serial,
    "nvmlDeviceGetHandleByPciBusId_v2": handle_by_pci,
}
DEVICE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetName": name,
    "nvmlDeviceGetUUID": uuid,
    "nvmlDeviceGetSerial": serial,
    "nvmlDeviceGetIndex": index,
    "nvmlDeviceGetMinorNumber": minor,
    "nvmlDeviceGetPciInfo_v3": pci_info,
    "nvmlDeviceGetBrand": brand,
    "nvmlDeviceGetArchitecture": architecture,
    "nvmlDeviceGetCudaComputeCapability": compute_capability,
    "nvmlDeviceGetVbiosVersion": vbios,
    "nvmlDeviceGetBoardPartNumber": part_number,
    "nvmlDeviceGetComputeMode": compute_mode,
    "nvmlDeviceGetPersistenceMode": persistence_mode,
    "nvmlDeviceGetNumFans": fans,
}
