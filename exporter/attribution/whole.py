"""Whole GPUs of the stock device plugin, and its replicas (time-slicing, MPS): the id is the GPU's UUID.

Ids: `GPU-<uuid>`; with replicas `GPU-<uuid>::<n>`, several of which may be held by one container.
"""

from exporter.attribution.naming import Names, Share

REPLICA = "::"


def whole_gpu(device_id: str, names: Names) -> Share | None:
    """The GPU that `device_id` names by its UUID."""
    uuid, replica, _number = device_id.partition(REPLICA)
    gpu = names.gpu(uuid)
    if gpu is None:
        return None
    return Share(gpu=gpu, kind="replica" if replica else "whole")
