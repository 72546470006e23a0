"""Who a GPU is: read once when a handle is taken, because a lost GPU cannot say its name any more."""

from typing import Any

import pynvml

from exporter.readers.nvml_calls import UNSUPPORTED, Calls
from exporter.readings import GpuIdentity

# Words of our own for NVML's numbers; a newer number is no name rather than a wrong one.
BRANDS: dict[int, str] = {
    pynvml.NVML_BRAND_QUADRO: "quadro",
    pynvml.NVML_BRAND_TESLA: "tesla",
    pynvml.NVML_BRAND_NVS: "nvs",
    pynvml.NVML_BRAND_GRID: "grid",
    pynvml.NVML_BRAND_GEFORCE: "geforce",
    pynvml.NVML_BRAND_TITAN: "titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "nvidia-vapps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "nvidia-vpc",
    pynvml.NVML_BRAND_NVIDIA_VCS: "nvidia-vcs",
    pynvml.NVML_BRAND_NVIDIA_VWS: "nvidia-vws",
    pynvml.NVML_BRAND_QUADRO_RTX: "quadro-rtx",
    pynvml.NVML_BRAND_NVIDIA_RTX: "nvidia-rtx",
    pynvml.NVML_BRAND_NVIDIA: "nvidia",
}
ARCHITECTURES: dict[int, str] = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "ada",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "blackwell",
    13: "rubin",  # NVML_DEVICE_ARCH_RUBIN, a name that older bindings in our range do not have
}


def identify(calls: Calls, index: int) -> GpuIdentity | None:
    """Identity of the GPU behind a fresh handle; None = it has no UUID to tell. Raises `GpuGone`, `DriverDown`."""
    calls.subject = "identity"
    uuid = calls.ask(pynvml.nvmlDeviceGetUUID)
    if not uuid:
        return None
    capability = calls.ask(pynvml.nvmlDeviceGetCudaComputeCapability)
    return GpuIdentity(
        uuid=uuid,
        index=index,
        minor=calls.ask(pynvml.nvmlDeviceGetMinorNumber),
        pci_bus_id=pci_bus_id(calls.ask(pynvml.nvmlDeviceGetPciInfo)),
        serial=calls.ask(pynvml.nvmlDeviceGetSerial) or None,
        model=calls.ask(pynvml.nvmlDeviceGetName) or "unknown",
        brand=BRANDS.get(calls.ask(pynvml.nvmlDeviceGetBrand) or 0),
        architecture=ARCHITECTURES.get(calls.ask(pynvml.nvmlDeviceGetArchitecture) or 0),
        vbios=calls.ask(pynvml.nvmlDeviceGetVbiosVersion) or None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
    )


def pci_bus_id(pci: Any) -> str:
    """`dddddddd:bb:dd.f` in lower case; empty when NVML did not tell it."""
    if pci is None:
        return ""
    text = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    return text.lower()


def mig_uuids(calls: Calls) -> tuple[str, ...]:
    """UUIDs of the MIG devices that exist now, in slot order; slots are sparse. Raises `GpuGone`, `DriverDown`."""
    found: list[str] = []
    for slot in range(calls.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
        # An empty slot answers NOT_FOUND, which is a fact here and not a failure, so `ask` does not fit.
        try:
            found.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(calls.handle, slot))))
        except pynvml.NVMLError as error:
            if error.value not in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                calls.judge(error.value, ("mig", slot), UNSUPPORTED)
    return tuple(found)
