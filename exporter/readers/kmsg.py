"""The kernel log as a witness: one thread that turns its lines into Xid events and notices.

Laws:
1. A line counts once: the position (boot id and sequence number, or time since boot where there is none) is kept by
   the caller over restarts and given back as `resume`.
2. A line of an earlier boot is never told. Without a sequence number or time since boot, only lines that arrive while
   we watch are told, for nobody knows the age of the others.
3. No log, no permission: said in one word and one sentence (`status`), tried again, never an exception.
4. `clock` may raise OSError or ValueError, which reads as "failed".
5. `stop` returns within a second; a flood of lines cannot prevent it.
"""

import logging
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from exporter.health.vocabulary import BootId
from exporter.readers.kernel_story import KernelStory, When
from exporter.readers.kmsg_record import Backlog, Record, parse_record
from exporter.readers.kmsg_sources import FileSource, Source, SourceFailed, open_source
from exporter.readings import KernelNotice, XidEvent

LOG = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between two tries to open a log that cannot be read."""
STOP_SECONDS: Final = 5.0
CLOCK_SLACK: Final = timedelta(minutes=1)
"""A line from further in the future than clocks drift was written in another, longer boot."""
LONGEST_UPTIME_MICROSECONDS: Final = 10**15
"""30 years: more is a broken line, and would not fit a date."""


@dataclass(frozen=True, kw_only=True)
class BootClock:
    """When this boot began: what turns the log's time since boot into wall time."""

    boot_id: BootId
    booted_at: datetime


@dataclass(frozen=True, kw_only=True)
class LogPosition:
    """How far the log was told."""

    boot_id: BootId
    sequence: int | None = None
    microseconds: int | None = None


@dataclass(frozen=True, kw_only=True)
class KmsgStatus:
    """What the reader says about itself."""

    word: str = "starting"
    """`starting`, `ok`, `absent`, `refused`, `failed`, `stopped`."""
    sentence: str = ""
    records: int = 0
    overruns: int = 0
    """Times that the kernel overwrote lines before we read them."""


class KmsgReader:
    """Reads one kernel log; `on_event` is called in the reader's own thread, with each event once: be quick there."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], BootClock],
        on_event: Callable[[XidEvent | KernelNotice], None],
        resume: LogPosition | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._on_event = on_event
        self._position = resume
        self._status = KmsgStatus()
        self._source: Source | None = None
        self._story = KernelStory()
        self._backlog: Backlog | None = None
        self._told_until: LogPosition | None = None
        self._lost_before = 0
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="kernel-log", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and release the log; harmless when it never started or was stopped before."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.write(self._wake_write, b"x")
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)
        self._status = replace(self._status, word="stopped", sentence="")

    @property
    def status(self) -> KmsgStatus:
        """Whether the log can be read, and what was read."""
        return self._status

    @property
    def position(self) -> LogPosition | None:
        """How far the log was told; None = nothing yet. Keep it, and give it back as `resume`."""
        return self._position

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._turn()
            except SourceFailed as failure:
                self._let_go()
                self._say(failure.word, failure.sentence)
                pause = RETRY_SECONDS
            self._wait(pause)
        self._let_go()

    def _turn(self) -> float:
        """Read once; returns how long to wait for more."""
        source = self._source
        if source is None:
            source = self._source = open_source(self._path)
            self._begin_history()
        lines = source.read()
        boot = self._boot()
        if source.begun_anew() or (self._position is not None and self._position.boot_id != boot.boot_id):
            lines = self._begin_anew(source, lines)
        records = [record for line in lines if (record := parse_record(line)) is not None]
        self._status = replace(
            self._status,
            records=self._status.records + len(records),
            overruns=self._lost_before + source.overruns,
        )
        self._say("ok", f"reading {source.name}")
        if self._backlog is None:
            self._tell_live(records, boot)
        else:
            self._backlog.add(records)
            if source.drained:
                self._tell_history(self._backlog, source, boot)
                self._backlog = None
        if lines:
            return 0.0
        return RETRY_SECONDS if source.descriptor() is not None else source.pause_seconds

    def _boot(self) -> BootClock:
        try:
            return self._clock()
        except (OSError, ValueError) as error:
            raise SourceFailed("failed", f"the boot of the log is unknown: {error}") from error

    def _begin_history(self) -> None:
        """What a source holds when it is opened was written before: told as far as it is news, with its own time."""
        self._backlog = Backlog()
        self._told_until = self._position

    def _begin_anew(self, source: Source, lines: tuple[str, ...]) -> tuple[str, ...]:
        """A new boot, or a log that was cut: nothing of what was remembered holds."""
        self._position = self._told_until = None
        self._story = KernelStory()
        if self._backlog is not None:
            self._backlog = Backlog()
        if not isinstance(source, FileSource):
            return lines
        source.rewind()
        return source.read()

    def _tell_live(self, records: list[Record], boot: BootClock) -> None:
        now = datetime.now(UTC)
        for record in records:
            self._tell(record, When(at=now, boot_id=boot.boot_id))
            self._remember(record, boot)

    def _tell_history(self, backlog: Backlog, source: Source, boot: BootClock) -> None:
        now = datetime.now(UTC)
        if isinstance(source, FileSource) and source.modified_at() < boot.booted_at.timestamp():
            return
        for record in backlog.records:
            at = _wall_time(record, boot)
            # The kernel's ring holds this boot only, and its clock drifts by minutes in months.
            possible = at is not None and (at - now < CLOCK_SLACK or not isinstance(source, FileSource))
            if at is not None and possible and _is_news(record, self._told_until):
                self._tell(record, When(at=min(at, now), boot_id=boot.boot_id))
        if backlog.last is not None:
            self._remember(backlog.last, boot)

    def _tell(self, record: Record, when: When) -> None:
        for event in self._story.read(record.text, when):
            self._on_event(event)

    def _remember(self, record: Record, boot: BootClock) -> None:
        old = self._position or LogPosition(boot_id=boot.boot_id)
        self._position = LogPosition(
            boot_id=boot.boot_id,
            sequence=record.sequence if record.sequence is not None else old.sequence,
            microseconds=record.microseconds if record.microseconds is not None else old.microseconds,
        )

    def _say(self, word: str, sentence: str) -> None:
        if word != self._status.word:
            LOG.info("kernel log: state=%s reason=%r", word, sentence)
        self._status = replace(self._status, word=word, sentence=sentence)

    def _let_go(self) -> None:
        if self._source is not None:
            self._lost_before += self._source.overruns
            self._source.close()
            self._source = None

    def _wait(self, seconds: float) -> None:
        watch = select.poll()
        watch.register(self._wake_read, select.POLLIN)
        descriptor = self._source.descriptor() if self._source is not None else None
        if descriptor is not None:
            watch.register(descriptor, select.POLLIN)
        watch.poll(seconds * 1000)


def _is_news(record: Record, told_until: LogPosition | None) -> bool:
    if told_until is None:
        return True
    if record.sequence is not None:
        return told_until.sequence is None or record.sequence > told_until.sequence
    return told_until.microseconds is None or (record.microseconds or 0) > told_until.microseconds


def _wall_time(record: Record, boot: BootClock) -> datetime | None:
    """None = nobody knows when it was written."""
    if record.microseconds is None:
        return None
    return boot.booted_at + timedelta(microseconds=min(record.microseconds, LONGEST_UPTIME_MICROSECONDS))
