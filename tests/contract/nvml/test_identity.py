"""What every NVML must answer about itself and about which devices there are."""

import re

import pynvml
import pytest

from tests.contract.nvml.conftest import Nvml
from tests.rig.simulated_nvml import address_of, code_of


def test_versions(nvml: Nvml) -> None:
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", pynvml.nvmlSystemGetDriverVersion())
    assert pynvml.nvmlSystemGetNVMLVersion().endswith(pynvml.nvmlSystemGetDriverVersion())
    assert pynvml.nvmlSystemGetCudaDriverVersion() == pynvml.nvmlSystemGetCudaDriverVersion_v2() >= 11000


def test_every_handle_leads_back_to_its_index(nvml: Nvml) -> None:
    handles = nvml.handles()
    assert handles
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in handles] == list(range(len(handles)))
    assert len({address_of(handle) for handle in handles}) == len(handles)


def test_uuid_and_pci_address_name_one_gpu(nvml: Nvml) -> None:
    handles = nvml.handles()
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    assert len(set(uuids)) == len(uuids)
    for handle, uuid in zip(handles, uuids, strict=True):
        assert re.fullmatch(r"GPU(-[0-9a-f]+){5}", uuid)
        assert address_of(pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())) == address_of(handle)
        info = pynvml.nvmlDeviceGetPciInfo(handle)
        assert info.busId.upper() == f"{info.domain:08X}:{info.bus:02X}:{info.device:02X}.0"
        assert address_of(pynvml.nvmlDeviceGetHandleByPciBusId(info.busId)) == address_of(handle)


def test_description(nvml: Nvml) -> None:
    for handle in nvml.handles():
        assert pynvml.nvmlDeviceGetName(handle)
        assert pynvml.nvmlDeviceGetMinorNumber(handle) >= 0
        assert pynvml.nvmlDeviceGetArchitecture(handle) >= pynvml.NVML_DEVICE_ARCH_KEPLER
        assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) >= (3, 0)
        assert re.fullmatch(r"[0-9A-Fa-f.]+", pynvml.nvmlDeviceGetVbiosVersion(handle))
        assert 0 <= pynvml.nvmlDeviceGetBrand(handle) < pynvml.NVML_BRAND_COUNT
        assert pynvml.nvmlDeviceGetPersistenceMode(handle) in (0, 1)


def test_what_is_not_there_is_refused(nvml: Nvml) -> None:
    beyond = pynvml.nvmlDeviceGetCount()
    nobody = b"GPU-00000000-0000-0000-0000-000000000000"
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, beyond) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, nobody) == pynvml.NVML_ERROR_NOT_FOUND


def test_nothing_answers_before_init_and_init_is_counted(nvml: Nvml) -> None:
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_SUCCESS
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    pynvml.nvmlInit()


def test_simulated_identity_is_that_of_the_profile(simulated: Nvml) -> None:
    profile, handle = simulated.profile, simulated.handles()[1]
    assert profile is not None
    assert pynvml.nvmlDeviceGetName(handle) == profile.model
    assert pynvml.nvmlSystemGetDriverVersion() == profile.driver_version
    assert pynvml.nvmlDeviceGetPciInfo(handle).bus == profile.buses[1]
    serial = pynvml.nvmlDeviceGetSerial(handle)
    assert re.fullmatch(r"\d{13}", serial)
    assert address_of(pynvml.nvmlDeviceGetHandleBySerial(serial)) == address_of(handle)
    assert pynvml.nvmlDeviceGetBoardPartNumber(handle) == profile.part_number
    assert pynvml.nvmlDeviceGetNumFans(handle) == 0
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT


@pytest.mark.parametrize("text", ["nonsense", "1:2", "xx:yy:00.0"])
def test_garbled_pci_address_is_an_invalid_argument(simulated: Nvml, text: str) -> None:
    assert code_of(pynvml.nvmlDeviceGetHandleByPciBusId, text) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_foreign_handle_is_an_invalid_argument(simulated: Nvml) -> None:
    assert code_of(pynvml.nvmlDeviceGetName, None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetName, pynvml.c_nvmlDevice_t()) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_error_text_of_an_unlisted_code(simulated: Nvml) -> None:
    assert pynvml.nvmlErrorString(pynvml.NVML_ERROR_GPU_IS_LOST) == "GPU is lost"
    assert str(pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)) == "Unknown Error"
