"""The names by which devices may be called on this node, looked up once per mapping."""

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.readings import GpuIdentity


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a device id stands for."""

    gpu: str
    """UUID of the GPU."""
    kind: str
    """`whole`, `mig`, `replica`: the words of `DevicePod.share`."""


class Names:
    """UUIDs of GPUs and of their MIG devices."""

    def __init__(self, gpus: Iterable[GpuIdentity]) -> None:
        known = tuple(gpus)
        self._gpus = frozenset(gpu.uuid for gpu in known)
        self._parents = {mig: gpu.uuid for gpu in known for mig in gpu.mig_uuids}

    def gpu(self, uuid: str) -> str | None:
        """`uuid` itself when it is a GPU of this node."""
        return uuid if uuid in self._gpus else None

    def mig_parent(self, uuid: str) -> str | None:
        """The GPU on which the MIG device `uuid` lies."""
        return self._parents.get(uuid)
