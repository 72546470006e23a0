"""The one call of the loop: a snapshot and the ledger to the next ledger."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from exporter.assess.assess import assess
from exporter.assess.ledger import Ledger, Slot, fold
from exporter.assess.observations import GPU_REPLACED, proof
from exporter.health.vocabulary import ClearedBy, HealthEvent
from exporter.readings import GpuReadings, GpuStatus, Snapshot


def judge(ledger: Ledger, snapshot: Snapshot, now: datetime) -> Ledger:
    """`ledger` after everything that `snapshot` says; limits are those of the ledger."""
    events = (*assess(snapshot, ledger.expectation), *replacements(ledger, snapshot))
    return remember(fold(ledger, events, snapshot.boot_id, now), snapshot, now)


def replacements(ledger: Ledger, snapshot: Snapshot) -> Iterator[HealthEvent]:
    """Proofs of exchanged boards: a UUID never seen here at the address of a known one, or another serial number.

    A known board that only moved to another address (PCI numbers shift when a GPU drops out) proves nothing, and
    neither does an address that NVML did not tell.
    """
    known = {slot.uuid: slot for slot in ledger.slots}
    seated = {gpu.identity.uuid for gpu in snapshot.gpus if gpu.status is GpuStatus.UP}
    for gpu in snapshot.gpus:
        identity = gpu.identity
        if gpu.status is not GpuStatus.UP:
            continue
        before = known.get(identity.uuid)
        if before is not None:
            if before.serial and identity.serial and before.serial != identity.serial:
                yield _replaced(identity.uuid, gpu)
            continue
        for gone in ledger.slots:
            if identity.pci_bus_id and gone.pci_bus_id == identity.pci_bus_id and gone.uuid not in seated:
                yield _replaced(gone.uuid, gpu)


def _replaced(uuid: str, gpu: GpuReadings) -> HealthEvent:
    return proof(GPU_REPLACED, uuid, gpu.taken_at, ClearedBy.REPLACEMENT)


def remember(ledger: Ledger, snapshot: Snapshot, now: datetime) -> Ledger:
    """`ledger` with the boards of this snapshot, and with no quiet time for GPUs that nobody could read."""
    present = {gpu.identity.uuid for gpu in snapshot.gpus}
    faulty = {entry.finding.gpu for entry in ledger.entries}
    kept = tuple(slot for slot in ledger.slots if slot.uuid not in present and slot.uuid in faulty)
    slots = tuple(
        Slot(pci_bus_id=gpu.identity.pci_bus_id, uuid=gpu.identity.uuid, serial=gpu.identity.serial)
        for gpu in snapshot.gpus
    )
    unread = {gpu.identity.uuid for gpu in snapshot.gpus if gpu.status is not GpuStatus.UP}
    entries = tuple(
        replace(entry, quiet_since=now) if entry.finding.gpu in unread else entry for entry in ledger.entries
    )
    most_seen = max(ledger.most_seen, snapshot.enumerated)
    return replace(ledger, slots=slots + kept, entries=entries, most_seen=most_seen)
