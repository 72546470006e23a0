"""One turn: what the sources found becomes health, bytes for `/metrics`, and a report for the API server.

Laws:
1. A turn reads no device and no socket; everything comes through the `Inbox`, everything leaves through the `Board`
   and the publisher, which never hold it up.
2. One failing step (judging, one section of the page, the state file) is counted and spoils nothing else.
3. The board is beaten after every turn, also after one in which a step failed; a loop that is stuck stops beating.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from exporter.assess.judge import judge
from exporter.assess.report import believable, report
from exporter.assess.xids import count, located
from exporter.attribution.devices import holders
from exporter.exposition import SECTIONS
from exporter.exposition.family import Facts, Family
from exporter.exposition.own import OwnMetrics, Totals
from exporter.exposition.renderer import Renderer, page
from exporter.health.vocabulary import HealthReport
from exporter.health.wire import report_to_status
from exporter.logs import fields
from exporter.loop_inbox import NOTHING, Inbox, News, joined
from exporter.readers.kmsg import KmsgStatus, LogPosition
from exporter.readings import DriverState, PodMapping, Snapshot
from exporter.server import Board
from exporter.state_file import Kept, StateFile

log = logging.getLogger(__name__)

KERNEL_LOG: Final = "kernel-log"
STARTING_GRACE: Final = timedelta(seconds=60)
"""A worker that still opens the driver says nothing about health; after a minute its silence is the news."""
FOLLOW_UP_SECONDS: Final = 0.5
"""After kernel lines: the reader moves its position on after it has told a line, so the next turn keeps that."""
STOP_SECONDS: Final = 5.0
MAPPING_LIFE: Final = timedelta(seconds=30)
"""An older mapping is as good as none: its poller is stuck or dead."""


class ReportSink(Protocol):
    """Takes the newest report."""

    def offer(self, report: HealthReport) -> None:
        """Never blocks."""


class KernelLog(Protocol):
    """How the kernel log's reader is doing."""

    @property
    def status(self) -> KmsgStatus:
        """In one word and one sentence."""

    @property
    def position(self) -> LogPosition | None:
        """How far it has told the log."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How the loop turns."""

    interval_seconds: float
    version: str


@dataclass(frozen=True, kw_only=True)
class Outlets:
    """Where a turn's results go."""

    board: Board
    own: OwnMetrics
    state_file: StateFile
    sink: ReportSink | None
    """None = nothing is published."""


class Loop:
    """Turns from a thread of its own, at every news and at least once per interval."""

    def __init__(
        self, settings: LoopSettings, inbox: Inbox, outlets: Outlets, kept: Kept, kernel_log: KernelLog
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._outlets = outlets
        self._kept = kept
        self._kernel_log = kernel_log
        self._told_before = False
        self._early = NOTHING
        self._renderer = Renderer()
        self._said: set[str] = set()
        self._snapshot: Snapshot | None = None
        self._starting_since: datetime | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self) -> None:
        """Begin to turn."""
        self._thread.start()

    def stop(self) -> None:
        """End after one more turn, which takes and keeps whatever is still in the inbox: stop the sources first."""
        self._stopping.set()
        self._inbox.wake()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        self.turn(NOTHING, datetime.now(UTC))
        while not self._stopping.is_set():
            patience = FOLLOW_UP_SECONDS if self._told_before else self._settings.interval_seconds
            self.turn(self._inbox.take(patience), datetime.now(UTC))
        self.turn(self._inbox.take(0), datetime.now(UTC))

    def turn(self, news: News, now: datetime) -> None:
        """One turn at `now`."""
        try:
            self._turn(news, now)
        except Exception:  # noqa: BLE001 - counted and logged by _failed
            self._failed("turn")
        self._outlets.board.beat = time.monotonic()

    def _turn(self, news: News, now: datetime) -> None:
        if news.snapshot is not None:
            self._snapshot = news.snapshot
        snapshot = self._snapshot
        if snapshot is None:
            self._early = joined(self._early, news)
            self._render(None, now)
            return
        starting = self._is_starting(snapshot, now)
        if starting:
            # Kernel lines name GPUs by address; who that is, the first sweep will say.
            self._early = joined(self._early, news)
        else:
            self._take(snapshot, joined(self._early, news), now)
            self._early = NOTHING
        snapshot = believable(snapshot, now, self._kept.ledger.limits)
        mapping = self._mapping(now)
        pods = holders(mapping, snapshot.gpus)
        told = report(self._kept.ledger, snapshot, mapping, pods, self._settings.version)
        facts = Facts(snapshot=snapshot, report=told, mapping=mapping, xids=self._kept.xids.counts, now=now)
        self._sources(facts)
        self._step("exposition", lambda: self._render(facts, now))
        if not starting:
            self._outlets.board.status = json.dumps(report_to_status(told)).encode()
            if self._outlets.sink is not None:
                self._outlets.sink.offer(told)

    def _is_starting(self, snapshot: Snapshot, now: datetime) -> bool:
        if snapshot.driver_state is not DriverState.STARTING:
            self._starting_since = None
            return False
        self._starting_since = self._starting_since or now
        return now - self._starting_since < STARTING_GRACE

    def _take(self, snapshot: Snapshot, news: News, now: datetime) -> None:
        if news.snapshot is not None or news.xids or news.notices:
            self._step("health", lambda: self._judge(snapshot, news, now))
        self._step("state-file", lambda: self._keep(news))

    def _judge(self, snapshot: Snapshot, news: News, now: datetime) -> None:
        kept = self._kept.of_boot(snapshot.boot_id)
        seen = replace(snapshot, xids=located(news.xids, snapshot.gpus), notices=news.notices)
        gpus = tuple(gpu.identity for gpu in snapshot.gpus) or kept.gpus
        # Counted before judged: an event that judging cannot digest is counted all the same, and once.
        self._kept = replace(kept, xids=count(kept.xids, seen.xids, snapshot.boot_id), gpus=gpus)
        self._kept = replace(self._kept, ledger=judge(kept.ledger, seen, now))

    def _keep(self, news: News) -> None:
        """What is known by now to the state file; the position in the log moves on only when its lines told something.

        Every other line would cost a write, and reading it again tells nothing either.
        """
        told = bool(news.notices) or any(event.source == KERNEL_LOG for event in news.xids)
        if told or self._told_before:
            self._kept = replace(self._kept, kernel_log=self._kernel_log.position)
        self._told_before = told
        if not self._outlets.state_file.save(self._kept):
            self._outlets.own.failed("state-file")

    def _mapping(self, now: datetime) -> PodMapping:
        mapping = self._inbox.latest_mapping()
        if mapping.known and (mapping.taken_at is None or now - mapping.taken_at > MAPPING_LIFE):
            return PodMapping(known=False, reason="stale", taken_at=mapping.taken_at)
        return mapping

    def _sources(self, facts: Facts) -> None:
        own, snapshot = self._outlets.own, facts.snapshot
        sweep = sum(gpu.sweep_seconds for gpu in snapshot.gpus)
        own.collected("nvml", sweep, snapshot.driver_state is DriverState.OK)
        own.state("nvml", snapshot.driver_state.value)
        own.state("pod-resources", "known" if facts.mapping.known else facts.mapping.reason)
        own.state(KERNEL_LOG, self._kernel_log.status.word)

    def _render(self, facts: Facts | None, now: datetime) -> None:
        own, board = self._outlets.own, self._outlets.board
        parts = [] if facts is None else [self._section(name, families, facts) for name, families in SECTIONS]
        age = None if facts is None else max(0.0, (now - facts.snapshot.taken_at).total_seconds())
        totals = Totals(scrapes=board.scrapes, dropped=self._renderer.dropped, lost=self._inbox.lost)
        own.rendering(now=now.timestamp(), age=age, totals=totals)
        board.page = page((*parts, own.text()))

    def _section(self, name: str, families: tuple[Family, ...], facts: Facts) -> str:
        try:
            return self._renderer.render(families, facts)
        except Exception:  # noqa: BLE001 - counted and logged by _failed
            self._failed(f"section-{name}")
            return ""

    def _step(self, name: str, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        worked = True
        try:
            work()
        except Exception:  # noqa: BLE001 - counted and logged by _failed
            self._failed(name)
            worked = False
        self._outlets.own.collected(name, time.perf_counter() - started, worked)

    def _failed(self, part: str) -> None:
        self._outlets.own.failed(part)
        if part not in self._said:
            self._said.add(part)
            log.exception("a part of the turn failed; said once, counted always", extra=fields(part=part))
