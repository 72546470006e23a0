"""Standing findings: what `fold` makes of events, and the only ways in which a finding ends.

Laws:
1. A finding ends by a proof only: its value read good (`good_reads` times in a row), its quiet time while somebody
   watched, a reset of that GPU, a new boot id, another board in the slot. `ENDED_BY` says which proof ends which.
   Silence, a dead exporter, a hung probe or a failed reading end nothing.
2. A reset is proven by: the kernel line "GPU reset executed: <uuid>, success: true"; the driver's demand for a reset
   taken back; a pending row remap no longer pending; a GPU that refused work until a reset and answers again. A lost
   GPU that answers again is not lost any more, but proves no reset. A fallen ECC counter proves none: it can be cleared
   by hand.
3. What happened before a reset or in another boot never becomes a finding after it.
4. One fault told by two witnesses counts once; a polled condition counts once however long it is read bad, and its
   `last_seen` is the last change, so that a standing fault does not rewrite the GPUNode in every sweep.
5. Bounded: `Limits.max_findings`; what has no room is counted, never swapped against a standing finding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from exporter.assess.entries import Entry, Key, confirmed, happened_again, key_of, opened, read_again, read_good
from exporter.assess.limits import Limits
from exporter.assess.observations import POLLED
from exporter.assess.witness import Sighting, Subject, Unpaired, forget, pair
from exporter.health.codes import GPU_LOST, RECOVERY_ACTION, ROW_REMAP_PENDING, xid_code
from exporter.health.vocabulary import Advice, BootId, ClearedBy, Finding, HealthEvent, Severity

ENDED_BY: Mapping[ClearedBy, frozenset[ClearedBy]] = MappingProxyType(
    {
        ClearedBy.GPU_RESET: frozenset({ClearedBy.WORKLOAD_END, ClearedBy.GPU_RESET}),
        ClearedBy.REBOOT: frozenset({ClearedBy.WORKLOAD_END, ClearedBy.GPU_RESET, ClearedBy.REBOOT}),
        ClearedBy.REPLACEMENT: frozenset(ClearedBy),
    }
)
"""Proof -> the findings it ends, by their `cleared_by`. A value is believed only when it is read again."""

PROVES_RESET = frozenset({RECOVERY_ACTION, ROW_REMAP_PENDING, GPU_LOST})
"""Findings with the advice reset-gpu whose good value only a reset can bring."""

ECC_UNCORRECTED = xid_code(48)
ECC_CONTAINED = xid_code(94)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The board that was last seen at one PCI address."""

    pci_bus_id: str
    uuid: str
    serial: str | None


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Every standing finding of one node and what is needed to end them."""

    limits: Limits = field(default_factory=Limits)
    boot: BootId | None = None
    entries: tuple[Entry, ...] = ()
    """Sorted by GPU and code."""
    resets: Mapping[str, datetime] = field(default_factory=dict)
    """Last proven reset of each GPU in this boot."""
    slots: tuple[Slot, ...] = ()
    unpaired: Unpaired = field(default_factory=dict)
    watched_at: datetime | None = None
    """Time of the last fold."""
    dropped: int = 0
    """Faults that had no room."""
    most_seen: int = 0
    """Most GPUs this node ever enumerated, earlier boots included: a GPU that does not come back after a reboot is
    missing. `--expected-gpus` overrides it where a board was taken out for good."""

    @property
    def expectation(self) -> Limits:
        """The limits, with the number of GPUs to expect where nobody has said it."""
        if self.limits.expected_gpus is not None or not self.most_seen:
            return self.limits
        return replace(self.limits, expected_gpus=self.most_seen)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The standing findings, sorted by GPU and code."""
        return tuple(entry.finding for entry in self.entries)


def fold(ledger: Ledger, events: Iterable[HealthEvent], boot: BootId, now: datetime) -> Ledger:
    """`ledger` after `events`; `boot` is the boot id now, `now` ends quiet times."""
    draft = _Draft(ledger)
    if ledger.boot not in (None, boot):
        draft.rebooted()
    if ledger.watched_at is not None and now - ledger.watched_at > ledger.limits.longest_absence:
        draft.unwatched_until(now)
    current = [_placed(event, boot, now) for event in events if event.boot_id in (None, boot)]
    for event in sorted(current, key=lambda each: each.observed_at):
        draft.take(event)
    draft.end_quiet(now)
    forget(draft.unpaired, now, ledger.limits.duplicate_window)
    return replace(
        ledger,
        boot=boot,
        entries=tuple(draft.entries[key] for key in sorted(draft.entries)),
        resets=draft.resets,
        unpaired=draft.unpaired,
        watched_at=now,
        dropped=draft.dropped,
    )


def _placed(event: HealthEvent, boot: BootId, now: datetime) -> HealthEvent:
    """In this boot, and now at the latest: a witness whose clock runs ahead saw it now.

    The boot tells a finding that was seen since the last reboot from one that only waits to be read good.
    """
    return replace(event, boot_id=boot, observed_at=min(event.observed_at, now))


class _Draft:
    """The ledger while one `fold` works on it; never leaves this module."""

    def __init__(self, ledger: Ledger) -> None:
        self.limits = ledger.limits
        self.entries: dict[Key, Entry] = {entry.key: entry for entry in ledger.entries}
        self.resets: dict[str, datetime] = dict(ledger.resets)
        self.unpaired: dict[Subject, tuple[Sighting, ...]] = dict(ledger.unpaired)
        self.dropped = ledger.dropped

    def rebooted(self) -> None:
        ended = ENDED_BY[ClearedBy.REBOOT]
        self.entries = {key: entry for key, entry in self.entries.items() if entry.finding.cleared_by not in ended}
        self.resets.clear()
        self.unpaired.clear()

    def unwatched_until(self, now: datetime) -> None:
        self.entries = {key: replace(entry, quiet_since=now) for key, entry in self.entries.items()}

    def end_quiet(self, now: datetime) -> None:
        self.entries = {
            key: entry
            for key, entry in self.entries.items()
            if entry.finding.cleared_by is not ClearedBy.WORKLOAD_END or now - entry.quiet_since < self.limits.app_quiet
        }

    def take(self, event: HealthEvent) -> None:
        if event.present:
            self._fault(event)
        elif event.cleared_by is ClearedBy.VALUE:
            self._good(event)
        elif event.gpu is not None:
            self._proof(event.gpu, event.cleared_by, event.observed_at)

    def _proof(self, gpu: str, proof: ClearedBy, at: datetime) -> None:
        ended = ENDED_BY[proof]
        for key, entry in list(self.entries.items()):
            finding = entry.finding
            if finding.gpu == gpu and finding.cleared_by in ended and finding.last_seen <= at:
                del self.entries[key]
        if proof is ClearedBy.GPU_RESET:
            self.resets[gpu] = max(at, self.resets.get(gpu, at))

    def _good(self, event: HealthEvent) -> None:
        entry = self.entries.get(key_of(event))
        if entry is None or event.observed_at < entry.finding.last_seen:
            return
        if event.source in POLLED:
            if entry.finding.cleared_by is not ClearedBy.VALUE and event.code != RECOVERY_ACTION:
                return
            entry = read_good(entry, event)
            if entry.good_reads < self.limits.good_reads:
                self.entries[entry.key] = entry
                return
        elif entry.polled:
            # A line of the log does not outrank a reading that stands.
            return
        del self.entries[entry.key]
        if event.gpu is not None and event.code in PROVES_RESET and entry.finding.advice is Advice.RESET_GPU:
            self._proof(event.gpu, ClearedBy.GPU_RESET, entry.good_since or event.observed_at)

    def _fault(self, event: HealthEvent) -> None:
        if self._before_reset(event):
            return
        event = self._in_sympathy(event)
        key = key_of(event)
        entry = self.entries.get(key)
        if event.source in POLLED:
            self._put(read_again(entry, event) if entry else opened(event))
        elif pair(self.unpaired, key, (event.source, event.observed_at), self.limits.duplicate_window):
            if entry is not None:
                self._put(confirmed(entry, event))
        elif entry is None:
            self._put(opened(event))
        elif not (entry.polled and entry.good_reads == 0 and entry.finding.advice is event.advice):
            self._put(happened_again(entry, event))

    def _put(self, entry: Entry) -> None:
        if entry.key in self.entries or len(self.entries) < self.limits.max_findings:
            self.entries[entry.key] = entry
        else:
            self.dropped += 1

    def _before_reset(self, event: HealthEvent) -> bool:
        """A late line about what a reset has ended since."""
        if event.gpu is None or event.cleared_by not in ENDED_BY[ClearedBy.GPU_RESET]:
            return False
        reset = self.resets.get(event.gpu)
        return reset is not None and event.observed_at < reset

    def _in_sympathy(self, event: HealthEvent) -> HealthEvent:
        """Xid 94 right after Xid 48 is the same fault: it is told, without a grade of its own."""
        cause = self.entries.get((event.gpu or "", ECC_UNCORRECTED))
        if event.code != ECC_CONTAINED or cause is None or event.severity is Severity.CRITICAL:
            return event
        if event.observed_at - cause.finding.last_seen > self.limits.sympathy_window:
            return event
        return replace(event, severity=Severity.INFO)
