"""NVML calls that hand out the driver's sample buffers, with NVML's size protocol."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from exporter.simulation import load_history
from exporter.simulation.driver import Board, Failure, number, put


def samples(board: Board, kind: Any, since: Any, *results: Any) -> None:
    """nvmlDeviceGetSamples of GPU utilization; without a buffer it says how large one must be."""
    if number(kind) != pynvml.NVML_GPU_UTILIZATION_SAMPLES:
        raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
    value_type, count, buffer = results
    put(value_type, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    if buffer is None:
        put(count, load_history.RING)
        return
    found = load_history.samples(board.gpu, number(since), board.state.boot_at, board.now)
    if not found:
        raise Failure(pynvml.NVML_ERROR_NOT_FOUND)
    if count._obj.value < len(found):
        raise Failure(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    put(count, len(found))
    for place, (microseconds, percent) in enumerate(found):
        buffer[place].timeStamp = microseconds
        buffer[place].sampleValue.uiVal = percent


DEVICE: Final[dict[str, Callable[..., None]]] = {"nvmlDeviceGetSamples": samples}
