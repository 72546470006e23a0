"""The workers of one node: the one that sweeps, the one that probes a GPU that hung, and those that cannot be ended.

Laws:
1. There is at most one sweeping worker and one probe.
2. Nothing here waits for a worker longer than a second: what cannot be ended is left behind and counted, and at a
   limit no further worker is started, for each would get stuck in the same driver.
3. A worker that dies is replaced at once, one that keeps dying ever more slowly.
4. Owned by one thread, which must live as long as the workers do.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from exporter.messages import (
    Attached,
    BrokenStream,
    CountChanged,
    DriverGone,
    Mark,
    Message,
    SweepDone,
    Swept,
    WorkerSettings,
    XidSeen,
)
from exporter.readings import GpuStatus, XidEvent
from exporter.sampler_exclusions import Exclusions, back_off
from exporter.sampler_hand import Hand, Probe, Process, Start
from exporter.sampler_roster import Roster
from exporter.watchdog import FINE, State

LOG = logging.getLogger(__name__)

# Each is a process stuck in the kernel: they cost a little memory, and more of them mean that the driver is dead.
MOST_STUCK_WORKERS = 4
LONGEST_RESTART_SECONDS = 30.0
# A driver that is not there may be installed at any time (GPU operator); a minute late is early enough.
LONGEST_DRIVER_WAIT_SECONDS = 60.0
# Twice may be chance: a worker killed for memory dies somewhere, too.
CRASHES_OF_ONE_GPU = 3
# A worker that lived this long and dies is an accident, not a series.
SERIES_SECONDS = 60.0
# A new session for the sake of a lost GPU: after three sweeps, then ever more rarely.
RENEWAL_SWEEPS = 3
LONGEST_RENEWAL_SECONDS = 300.0


@dataclass
class Turn:
    """What one look at the workers brought."""

    fresh: bool = False
    """There is something that should be shown now."""
    xids: list[XidEvent] = field(default_factory=list)


class Crew:
    """Starts, hears, watches and ends the workers; what they say of the GPUs goes into the roster."""

    def __init__(self, settings: WorkerSettings, retry_seconds: float, roster: Roster, start: Start) -> None:
        self.roster = roster
        self.exclusions = Exclusions(retry_seconds)
        self.restarts = 0
        """Workers that were replaced because they died, hung or fell silent."""
        self.sweeper: Hand | None = None
        self._settings = settings
        self._counted = 0
        """How many GPUs NVML enumerated when the excluded indices got their meaning; 0 = no worker has attached yet."""
        self._start = start
        self._probe: Probe | None = None
        self._stuck: list[Process] = []
        self._start_at = 0.0
        self._deaths = 0
        self._crashes: Counter[int] = Counter()
        self._xids: list[XidEvent] = []
        self._driver_waits = 0
        self._renewals = 0
        self._renew_at: float | None = None

    def descriptors(self) -> list[int]:
        """What to wait for."""
        return [hand.process.descriptor for hand in (self.sweeper, self._probe) if hand is not None]

    def next_look(self, now: float) -> float:
        """When there is something to do even if no worker says a word."""
        times = [now + self._settings.probe_timeout_seconds / 4]
        if self.sweeper is None:
            times.append(max(now, self._start_at))
        return min(times)

    def turn(self, now: float, attentive_since: float) -> Turn:
        """Hear, judge, and put right; never blocks for longer than it takes to end a worker."""
        turn = Turn()
        self._hear_sweeper(turn, now)
        self._judge_sweeper(turn, now, attentive_since)
        self._mind_probe(turn, now, attentive_since)
        self._stuck = [process for process in self._stuck if not process.is_gone()]
        self._man(now)
        turn.xids, self._xids = self._xids, []
        return turn

    def release(self, uuid: str, until: float, now: float) -> bool:
        """Keep NVML off one GPU; True = nobody of ours holds it any more."""
        index = self.roster.index_of(uuid)
        if index is None:
            return any(gpu.identity.uuid == uuid for gpu in self.roster.gpus)
        self.exclusions.released(index, until)
        self._dismiss_probe()
        self._dismiss_sweeper(now)
        self.roster.released(uuid, datetime.now(UTC))
        return not self._stuck

    def new_boot(self, roster: Roster, now: float) -> None:
        """The node has booted under us (a simulated one can): nothing known holds any more."""
        self.roster = roster
        self.exclusions.forget()
        self._counted = 0
        self._dismiss_probe()
        self._dismiss_sweeper(now)

    def dismiss_all(self) -> None:
        """End everything that can be ended."""
        self._dismiss_probe()
        self._dismiss_sweeper(0.0)
        self._stuck = [process for process in self._stuck if not process.is_gone()]

    def _hear_sweeper(self, turn: Turn, now: float) -> None:
        if self.sweeper is None:
            return
        try:
            messages = self.sweeper.process.receive()
        except BrokenStream as broken:
            self._replace(f"the worker's messages are garbled: {broken}", now)
            return
        if messages is None:
            self._died(now)
            return
        for message in messages:
            # A message may have ended the worker; what it still had to say of GPUs is void, its Xids are not.
            if self._manned() or isinstance(message, XidSeen):
                self._take(message, turn, now)

    def _manned(self) -> bool:
        return self.sweeper is not None

    def _died(self, now: float) -> None:
        """The worker ended unasked; one that keeps dying at the same GPU is tried without it."""
        sweeper = self.sweeper
        if sweeper is None:
            return
        index = sweeper.mark.gpu_index if sweeper.mark is not None else None
        if index is not None:
            self._crashes[index] += 1
            if self._crashes[index] >= CRASHES_OF_ONE_GPU:
                self.exclusions.hung(index, now)
                self.roster.silent(index, GpuStatus.FAILED, datetime.now(UTC))
        self._replace(f"it ended unasked ({sweeper.process.exit_sentence()})", now)

    def _take(self, message: Message, turn: Turn, now: float) -> None:
        match message:
            case Mark():
                if self.sweeper is not None:
                    self.sweeper.mark = message
            case Attached():
                self._attached(message, now)
            case Swept(readings=readings):
                self.roster.swept(readings)
            case SweepDone():
                turn.fresh = True
                self._swept_all(now)
            case CountChanged(count=count):
                LOG.warning("NVML enumerates %d GPUs now, %d before", count, self.roster.count)
                self.exclusions.forget()
                self._dismiss_sweeper(now)
            case DriverGone(state=state, details=details):
                turn.fresh = True
                self.roster.driver_gone(state, details, datetime.now(UTC))
                self._dismiss_sweeper(now + back_off(self._driver_waits, 1.0, LONGEST_DRIVER_WAIT_SECONDS))
                self._driver_waits += 1
            case XidSeen(event=event):
                self._xids.append(event)

    def _attached(self, attached: Attached, now: float) -> None:
        self._driver_waits = 0
        if self.exclusions and self._counted not in (0, attached.count):
            # An index names another GPU now; which one hung can only be found out anew.
            self.exclusions.forget()
            self._dismiss_sweeper(now)
            return
        self._counted = attached.count
        if attached.without_events:
            LOG.warning("NVML delivers no Xid events for %s", ", ".join(attached.without_events))
        self.roster.attached(attached, self.exclusions.indices, datetime.now(UTC))

    def _swept_all(self, now: float) -> None:
        """After a sweep: a GPU that is gone can only come back in a new NVML session, so there is one now and then."""
        self._crashes.clear()
        if not self.roster.anyone_gone:
            self._renew_at, self._renewals = None, 0
            return
        if self._renew_at is None or now >= self._renew_at:
            due = self._renew_at is not None
            base = RENEWAL_SWEEPS * self._settings.interval_seconds
            self._renew_at = now + back_off(self._renewals, base, LONGEST_RENEWAL_SECONDS)
            self._renewals += 1
            if due:
                self._dismiss_sweeper(now)

    def _judge_sweeper(self, turn: Turn, now: float, attentive_since: float) -> None:
        if self.sweeper is None:
            return
        verdict = self.sweeper.verdict(attentive_since, now)
        if verdict is FINE:
            return
        turn.fresh = True
        if verdict.state is State.HUNG_GPU and verdict.gpu_index is not None:
            self._exclude(verdict.gpu_index, now)
            self._deaths = 0
        else:
            self.roster.details = verdict.sentence
        self._replace(verdict.sentence, now)

    def _exclude(self, index: int, now: float) -> None:
        self.exclusions.hung(index, now)
        self.roster.silent(index, GpuStatus.HUNG, datetime.now(UTC))

    def _mind_probe(self, turn: Turn, now: float, attentive_since: float) -> None:
        if self._probe is None:
            self._start_probe(now)
            return
        index = self._probe.process.settings.only
        answer = self._probe.answered(attentive_since, now)
        if answer is None or index is None:
            return
        hung = self._probe.hung
        self._dismiss_probe()
        if answer:
            LOG.warning("GPU %d answers again", index)
            self.exclusions.answered(index)
            self._dismiss_sweeper(now)
        elif hung:
            self._exclude(index, now)
            turn.fresh = True
        else:
            self.exclusions.hung(index, now)

    def _start_probe(self, now: float) -> None:
        index = self.exclusions.due(now)
        # One place among the stuck stays free for the sweeping worker: seven good GPUs matter more than this answer.
        if index is None or self.sweeper is None or len(self._stuck) >= MOST_STUCK_WORKERS - 1:
            return
        self._probe = Probe(self._start(replace(self._settings, only=index), now))

    def _man(self, now: float) -> None:
        """See to it that there is a sweeping worker."""
        if self.sweeper is not None or now < self._start_at:
            return
        if len(self._stuck) >= MOST_STUCK_WORKERS:
            self.roster.details = f"{len(self._stuck)} workers are stuck in the driver for good; only a reboot helps"
            return
        self.sweeper = Hand(self._start(replace(self._settings, without=self.exclusions.indices), now))

    def _replace(self, reason: str, now: float) -> None:
        """The sweeping worker is no good any more."""
        lived = now - self.sweeper.process.started if self.sweeper is not None else 0.0
        self._deaths = 1 if lived >= SERIES_SECONDS else self._deaths + 1
        delay = 0.0 if self._deaths <= 1 else back_off(self._deaths - 2, 1.0, LONGEST_RESTART_SECONDS)
        self.restarts += 1
        LOG.warning("replacing the NVML worker in %.0f s: %s", delay, reason)
        self._dismiss_sweeper(now + delay)

    def _dismiss_sweeper(self, start_at: float) -> None:
        if self.sweeper is not None:
            process, self.sweeper = self.sweeper.process, None
            self._end(process)
            self._xids += [message.event for message in process.last_words if isinstance(message, XidSeen)]
        self._start_at = start_at

    def _dismiss_probe(self) -> None:
        if self._probe is not None:
            self._end(self._probe.process)
            self._probe = None

    def _end(self, process: Process) -> None:
        if not process.end():
            self._stuck.append(process)
