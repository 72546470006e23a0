"""The driver's own utilization samples: what happened between two sweeps, which no sweep sees.

The driver keeps a ring of about 120 samples, some six a second; each is the share of time since the one before.
"""

from typing import Any

import pynvml

from exporter.readers.nvml_calls import Calls

Samples = tuple[tuple[int, float], ...]
PERCENT = 100


def samples(calls: Calls) -> dict[str, Any]:
    """Utilization samples newer than those of the last sweep, as (microseconds since the epoch, ratio)."""
    since = calls.sampled_until

    # One name without the timestamp: what is unsupported is remembered by name and arguments.
    def utilization_samples(handle: Any) -> Samples:
        return newer_samples(handle, since)

    found = calls.ask(utilization_samples)
    if found:
        calls.sampled_until = max(at for at, _ in found)
    return {} if found is None else {"utilization_samples": found}


def newer_samples(handle: Any, since: int) -> Samples:
    """Samples after `since` (microseconds, 0 = all there are). Raises NVMLError as the binding does."""
    try:
        _, entries = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:
            return ()  # nothing new yet
        raise
    # Slots that were never filled have the time 0, and drivers have been seen to say impossible percentages.
    return tuple(
        (int(entry.timeStamp), entry.sampleValue.uiVal / PERCENT)
        for entry in entries
        if entry.timeStamp > since and entry.sampleValue.uiVal <= PERCENT
    )
