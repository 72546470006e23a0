"""MIG devices: the id is the UUID of the instance, and NVML knows its parent.

Ids: `MIG-<uuid>`, with replicas `MIG-<uuid>::<n>`; drivers before 470 wrote `MIG-GPU-<uuid>/<gi>/<ci>`, which names the
parent itself.
"""

from exporter.attribution.naming import Names, Share
from exporter.attribution.whole import REPLICA

OLD_FORM = "MIG-GPU-"


def mig_device(device_id: str, names: Names) -> Share | None:
    """The GPU whose instance `device_id` names."""
    uuid, _replica, _number = device_id.partition(REPLICA)
    parent = names.mig_parent(uuid)
    if parent is None and uuid.startswith(OLD_FORM):
        parent = names.gpu(uuid.removeprefix("MIG-").partition("/")[0])
    return None if parent is None else Share(gpu=parent, kind="mig")
