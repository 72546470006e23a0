"""Who is on this node: every GPU ever seen in this boot, and the last that is known of each.

Laws:
1. A GPU is never forgotten within a boot: one that is no longer enumerated is MISSING, not absent.
2. When a GPU stops answering, its readings go and its identity stays.
3. The time of a silence is when it was noticed, and does not move while it lasts.
4. No clock here: every statement comes with its time.
5. The MIG instances of a GPU that cannot list them now are those it listed last: whose pods run on a faulty GPU is
   asked by their UUIDs.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime

from exporter.messages import Attached
from exporter.readings import MODES, DriverInfo, DriverState, GpuIdentity, GpuReadings, GpuStatus
from exporter.sampler_integrals import DEFAULT_INTERVAL_SECONDS, Integrals

DRIVER_SUBJECT = "driver"
RELEASED_SUBJECT = "released"


class Roster:
    """The GPUs of one node in one boot."""

    def __init__(self, known: Iterable[GpuIdentity], now: datetime, integrals: Integrals | None = None) -> None:
        self._gpus: dict[str, GpuReadings] = {}
        self.integrals = integrals or Integrals(DEFAULT_INTERVAL_SECONDS)
        self.failures: Counter[tuple[str, str]] = Counter()
        """Failed sweeps by (uuid, subject)."""
        self.count = 0
        """What NVML enumerated last."""
        self.driver: DriverInfo | None = None
        self.driver_state = DriverState.STARTING
        self.details = ""
        self._nameless: dict[int, GpuStatus] = {}
        for identity in known:
            self._silence(identity, GpuStatus.FAILED, now)

    @property
    def gpus(self) -> tuple[GpuReadings, ...]:
        """All of them, in index order."""
        return tuple(sorted(self._gpus.values(), key=lambda gpu: (gpu.identity.index, gpu.identity.uuid)))

    def index_of(self, uuid: str) -> int | None:
        """NVML index of a GPU that is still enumerated; None = unknown or missing."""
        gpu = self._gpus.get(uuid)
        return None if gpu is None or gpu.status is GpuStatus.MISSING else gpu.identity.index

    @property
    def anyone_gone(self) -> bool:
        """Whether some GPU might be seen again by a new NVML session: a session never sees a repaired GPU."""
        gone = (GpuStatus.LOST, GpuStatus.RESET_REQUIRED, GpuStatus.MISSING)
        return bool(self._nameless) or any(gpu.status in gone for gpu in self._gpus.values())

    def sentence(self) -> str:
        """What a human should know beyond the readings; empty when there is nothing."""
        nameless = [f"GPU {index} ({status.value})" for index, status in sorted(self._nameless.items())]
        unnamed = f"enumerated but never identified in this boot: {', '.join(nameless)}" if nameless else ""
        return "; ".join(filter(None, (self.details, unnamed)))

    def attached(self, attached: Attached, untouched: Collection[int], now: datetime) -> None:
        """A worker has taken the GPUs, except the indices in `untouched`."""
        self.driver, self.driver_state, self.count = attached.driver, DriverState.OK, attached.count
        self.details = ""
        present = {identity.uuid for identity in attached.identities}
        for identity in attached.identities:
            known = self._gpus.get(identity.uuid)
            if known is None or known.identity.index != identity.index:
                self._silence(self._with_instances(identity), GpuStatus.FAILED, now)
        unattached = dict(attached.unattached)
        for gpu in self.gpus:
            index = gpu.identity.index
            if gpu.identity.uuid in present or (index in untouched and index < attached.count):
                continue
            self._silence(gpu.identity, unattached.pop(index, GpuStatus.MISSING), now)
        hidden = {index: status for index, status in self._nameless.items() if index in untouched}
        self._nameless = unattached | hidden

    def swept(self, readings: GpuReadings) -> None:
        """A worker has read this GPU."""
        if readings.status is not GpuStatus.UP or MODES in readings.failed:
            readings = replace(readings, identity=self._with_instances(readings.identity))
        self._gpus[readings.identity.uuid] = self.integrals.added(readings)
        for subject in readings.failed:
            self.failures[readings.identity.uuid, subject] += 1

    def silent(self, index: int, status: GpuStatus, now: datetime) -> None:
        """The GPU at this index does not answer; a GPU that was never identified is only mentioned."""
        for gpu in self.gpus:
            if gpu.identity.index == index and gpu.status is not GpuStatus.MISSING:
                self._silence(gpu.identity, status, now)
                return
        self._nameless[index] = status

    def released(self, uuid: str, now: datetime) -> None:
        """NVML is kept off this GPU on request: its health is unknown meanwhile."""
        gpu = self._gpus.get(uuid)
        if gpu is not None:
            self._silence(gpu.identity, GpuStatus.FAILED, now, (RELEASED_SUBJECT,))

    def driver_gone(self, state: DriverState, details: str, now: datetime) -> None:
        """There is nothing to ask: with no GPU they are missing, without a driver nothing is known of them."""
        self.driver_state, self.details, self.count = state, details, 0
        status = GpuStatus.MISSING if state is DriverState.NO_GPU else GpuStatus.FAILED
        for gpu in self.gpus:
            self._silence(gpu.identity, status, now, () if status is GpuStatus.MISSING else (DRIVER_SUBJECT,))

    def _with_instances(self, identity: GpuIdentity) -> GpuIdentity:
        known = self._gpus.get(identity.uuid)
        if identity.mig_uuids or known is None:
            return identity
        return replace(identity, mig_uuids=known.identity.mig_uuids)

    def _silence(self, identity: GpuIdentity, status: GpuStatus, now: datetime, failed: tuple[str, ...] = ()) -> None:
        before = self._gpus.get(identity.uuid)
        noticed = before.taken_at if before is not None and before.status is status else now
        self._gpus[identity.uuid] = GpuReadings(identity=identity, status=status, taken_at=noticed, failed=failed)
