"""One turn after the other, driven by hand with times of the test's own world."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.assess.limits import Limits
from exporter.exposition.family import Facts, Family, Sample
from exporter.exposition.own import OwnMetrics
from exporter.health.vocabulary import Health, HealthReport
from exporter.loop import Loop, LoopSettings, Outlets
from exporter.loop_inbox import EVENTS_KEPT, NOTHING, Inbox, MappingPoller, News, joined
from exporter.readers.kmsg import KmsgStatus, LogPosition
from exporter.readings import (
    DriverState,
    GpuStatus,
    KernelNotice,
    NoticeKind,
    PodDevice,
    PodMapping,
    Snapshot,
    XidEvent,
)
from exporter.server import Board
from exporter.state_file import Kept, StateFile
from tests.rig.readings_world import BOOT, NEXT_BOOT, T0, a_gpu, a_snapshot, an_xid, at, uuid
from tests.rig.waiting import eventually

LIMITS = Limits()


class Log:
    """A kernel log reader that is where the test says."""

    def __init__(self) -> None:
        self.status = KmsgStatus(word="ok")
        self.position: LogPosition | None = None


class Sink:
    """Keeps every report."""

    def __init__(self) -> None:
        self.reports: list[HealthReport] = []

    def offer(self, report: HealthReport) -> None:
        self.reports.append(report)


class World:
    """A loop, everything it writes to, and turns on demand."""

    def __init__(self, state_path: Path) -> None:
        self.inbox = Inbox()
        self.board = Board()
        self.own = OwnMetrics("1")
        self.sink = Sink()
        self.log = Log()
        self.state_path = state_path
        self.restart()

    def restart(self, boot: str = BOOT) -> None:
        self.board.page = self.board.status = None
        file = StateFile(self.state_path, LIMITS)
        outlets = Outlets(board=self.board, own=self.own, state_file=file, sink=self.sink)
        kept = file.load()
        self.kept_at_start: Kept = kept.of_boot(kept.ledger.boot) if kept.ledger.boot == boot else kept
        settings = LoopSettings(interval_seconds=10, version="1")
        self.loop = Loop(settings, self.inbox, outlets, self.kept_at_start, self.log)

    def turn(self, snapshot: Snapshot | None = None, *xids: XidEvent, seconds: float = 0) -> None:
        if snapshot is not None:
            self.inbox.snapshot(snapshot)
        for event in xids:
            self.inbox.kernel_line(event)
        self.loop.turn(self.inbox.take(0), at(seconds))

    def value(self, series: str) -> float | None:
        assert self.board.page is not None
        for line in self.board.page.plain.decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return None

    def xids(self, code: int, gpu: int = 0) -> float | None:
        return self.value(f'gpu_xid_errors_total{{gpu="{uuid(gpu)}",xid="{code}"}}')


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state.json")


def test_before_the_first_snapshot_the_page_speaks_of_the_exporter_only(world: World) -> None:
    world.turn()
    assert world.board.page is not None and b"gpuward_exporter_build_info" in world.board.page.plain
    assert b"gpu_up" not in world.board.page.plain
    assert world.board.status is None and world.sink.reports == []


def test_a_snapshot_becomes_a_page_a_status_and_a_report(world: World) -> None:
    world.turn(a_snapshot())
    assert world.board.page is not None and world.board.status is not None
    assert gzip.decompress(world.board.page.zipped) == world.board.page.plain
    assert world.value(f'gpu_up{{gpu="{uuid(0)}"}}') == 1
    assert json.loads(world.board.status)["health"] == "Healthy"
    assert [report.health for report in world.sink.reports] == [Health.HEALTHY]


def test_a_sampler_that_fell_silent_leaves_nothing_healthy_and_no_old_reading(world: World) -> None:
    """The loop turns without it, and would go on to tell the last good minute for ever."""
    world.turn(a_snapshot(a_gpu(0, power_watts=100.0), a_gpu(1, status=GpuStatus.LOST)))
    world.turn(seconds=59)
    power, up = f'gpu_power_watts{{gpu="{uuid(0)}"}}', f'gpu_up{{gpu="{uuid(0)}"}}'
    assert (world.value(power), world.value(up)) == (100, 1)
    world.turn(seconds=61)
    assert (world.value(power), world.value(up)) == (None, 0)
    assert [gpu.health for gpu in world.sink.reports[-1].gpus] == [Health.UNKNOWN, Health.UNHEALTHY]
    assert world.sink.reports[-1].observed_at == at(0)
    world.turn(a_snapshot(a_gpu(0, power_watts=90.0, seconds=70), seconds=70), seconds=70)
    assert (world.value(power), world.value(up)) == (90, 1)


def test_ages_grow_when_nothing_comes(world: World) -> None:
    world.turn(a_snapshot())
    world.turn(seconds=25)
    assert world.value(f'gpu_snapshot_age_seconds{{gpu="{uuid(0)}"}}') == 25
    assert world.value("gpuward_exporter_snapshot_age_seconds") == 25


def test_an_xid_of_the_kernel_log_is_judged_with_the_last_snapshot(world: World) -> None:
    world.turn(a_snapshot())
    world.turn(None, an_xid(79, seconds=1, gpu=None, pci_bus_id="00000000:10:00.0"), seconds=1)
    assert world.xids(79) == 1
    assert world.value(f'gpu_finding{{gpu="{uuid(0)}",code="xid-79",severity="critical"}}') == 1
    assert world.sink.reports[-1].health is Health.UNHEALTHY


def test_two_witnesses_count_once(world: World) -> None:
    world.turn(a_snapshot())
    seen = an_xid(79, seconds=1, source="nvml-event")
    world.turn(a_snapshot(seconds=1, xids=(seen,)), an_xid(79, seconds=1), seconds=1)
    assert world.xids(79) == 1


def test_no_event_is_lost_between_two_turns(world: World) -> None:
    world.inbox.snapshot(a_snapshot(xids=(an_xid(31, source="nvml-event"),)))
    world.inbox.snapshot(a_snapshot(seconds=20, xids=(an_xid(31, seconds=20, source="nvml-event"),)))
    world.loop.turn(world.inbox.take(0), at(20))
    assert world.xids(31) == 2


def test_kernel_lines_from_before_the_first_sweep_wait_for_the_names(world: World) -> None:
    line = an_xid(79, gpu=None, pci_bus_id="00000000:10:00.0")
    world.turn(None, line)
    world.turn(a_snapshot(driver_state=DriverState.STARTING, driver=None, enumerated=0))
    assert world.board.status is None and world.sink.reports == []
    world.turn(a_snapshot(seconds=2), seconds=2)
    assert world.xids(79) == 1


def test_a_driver_that_never_opens_is_told_after_a_minute(world: World) -> None:
    starting = a_snapshot(driver_state=DriverState.STARTING, driver=None, enumerated=0)
    world.turn(starting)
    world.turn(starting, seconds=30)
    assert world.sink.reports == []
    world.turn(starting, seconds=61)
    assert [report.health for report in world.sink.reports] == [Health.UNKNOWN]


def test_no_driver_is_shown_and_published(world: World) -> None:
    nothing = replace(a_snapshot(driver_state=DriverState.LIBRARY_MISSING, driver=None, enumerated=0), gpus=())
    world.turn(nothing)
    assert world.value('gpu_driver_state{state="library-missing"}') == 1
    assert world.sink.reports[-1].health is Health.UNKNOWN


class TestMapping:
    def mapping(self, seconds: float = 0) -> PodMapping:
        held = PodDevice(namespace="ml", pod="p", container="c", resource="nvidia.com/gpu", device_id=uuid(0))
        return PodMapping(known=True, devices=(held,), taken_at=at(seconds))

    def test_pods_show_in_metrics_and_report(self, world: World) -> None:
        world.inbox.mapping(self.mapping())
        world.turn(a_snapshot())
        assert world.value("gpu_mapping_known") == 1
        assert [pod.name for pod in world.sink.reports[-1].gpus[0].pods] == ["p"]

    def test_until_the_kubelet_spoke_it_is_unknown(self, world: World) -> None:
        world.turn(a_snapshot())
        assert world.value("gpu_mapping_known") == 0
        assert world.sink.reports[-1].mapping_known is False

    def test_a_stuck_poller_is_an_unknown_mapping(self, world: World) -> None:
        world.inbox.mapping(self.mapping())
        world.turn(a_snapshot(seconds=31), seconds=31)
        assert world.value("gpu_mapping_known") == 0
        assert world.value('gpuward_exporter_source_state{source="pod-resources",state="stale"}') == 1
        assert world.sink.reports[-1].gpus[0].pods == ()

    def test_a_poller_hands_on_each_answer_and_ends(self) -> None:
        class Kubelet:
            def read(self, timeout_seconds: float) -> PodMapping:
                return PodMapping(known=False, reason="absent")

        got: list[PodMapping] = []
        poller = MappingPoller(Kubelet(), 0.01, lambda mapping, seconds: got.append(mapping))
        poller.start()
        eventually("three answers", lambda: len(got) >= 3, 5, 0.01)
        poller.stop()
        assert got[0].reason == "absent" and poller.first.is_set()


class TestRestart:
    def test_counters_and_findings_survive(self, world: World) -> None:
        world.turn(a_snapshot())
        world.turn(None, an_xid(79, seconds=1), seconds=1)
        world.restart()
        world.turn(a_snapshot(seconds=5), seconds=5)
        assert world.xids(79) == 1
        assert world.sink.reports[-1].health is Health.UNHEALTHY

    def test_a_reboot_starts_the_counters_again(self, world: World) -> None:
        world.turn(a_snapshot())
        world.turn(None, an_xid(79, seconds=1), seconds=1)
        world.restart(NEXT_BOOT)
        world.turn(a_snapshot(seconds=99, boot_id=NEXT_BOOT), seconds=99)
        assert world.xids(79) is None
        assert world.sink.reports[-1].health is Health.HEALTHY

    def test_the_place_in_the_log_is_kept_with_what_its_lines_told(self, world: World) -> None:
        world.turn(a_snapshot())
        # The reader moves its position on just after it told the line: the turn that judged may still see the old one.
        world.log.position = LogPosition(boot_id=BOOT, sequence=6)
        world.turn(None, an_xid(79, seconds=1), seconds=1)
        world.log.position = LogPosition(boot_id=BOOT, sequence=7)
        world.turn(seconds=2)
        world.log.position = LogPosition(boot_id=BOOT, sequence=900)  # lines that told nothing
        world.turn(seconds=3)
        world.restart()
        assert world.kept_at_start.kernel_log == LogPosition(boot_id=BOOT, sequence=7)

    def test_the_boards_of_this_boot_are_kept(self, world: World) -> None:
        world.turn(a_snapshot(a_gpu(0), a_gpu(1)))
        world.restart()
        assert [gpu.uuid for gpu in world.kept_at_start.gpus] == [uuid(0), uuid(1)]


class TestFailures:
    def broken(self, facts: Facts) -> Iterator[Sample]:
        raise ZeroDivisionError

    def test_a_section_that_fails_leaves_the_others(self, world: World) -> None:
        broken = Family(name="gpu_broken", help="Fails.", samples=self.broken)
        facts_seen = world.loop._section("broken", (broken,), None)  # type: ignore[arg-type]  # it fails before it looks
        assert facts_seen == ""
        world.turn(a_snapshot())
        assert world.value('gpuward_exporter_errors_total{part="section-broken"}') == 1
        assert world.value(f'gpu_up{{gpu="{uuid(0)}"}}') == 1

    def test_a_step_that_fails_is_counted_and_the_turn_goes_on(self, world: World) -> None:
        # A snapshot that no sampler makes: judging it fails, showing it does not.
        odd = a_snapshot(a_gpu(0, row_remap="odd"))
        world.turn(odd)
        assert world.value('gpuward_exporter_errors_total{part="health"}') == 1
        assert world.value('gpuward_exporter_collector_success{collector="health"}') == 0
        assert world.value(f'gpu_up{{gpu="{uuid(0)}"}}') == 1
        world.turn(a_snapshot(seconds=10), seconds=10)
        assert world.value('gpuward_exporter_collector_success{collector="health"}') == 1

    def test_a_disk_that_refuses_is_counted(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        world = World(tmp_path / "file" / "state.json")
        world.turn(a_snapshot())
        world.turn(a_snapshot(seconds=10), seconds=10)
        assert world.value('gpuward_exporter_errors_total{part="state-file"}') == 2
        assert world.sink.reports[-1].health is Health.HEALTHY

    def test_the_board_is_beaten_after_a_failed_turn_too(self, world: World) -> None:
        world.board.beat = 0.0
        world.loop.turn(None, T0)  # type: ignore[arg-type]  # a turn that must fail
        assert time.monotonic() - world.board.beat < 5


class TestInbox:
    def test_a_flood_keeps_the_newest_and_counts_the_rest(self) -> None:
        inbox = Inbox()
        for number in range(EVENTS_KEPT + 10):
            inbox.kernel_line(an_xid(31, seconds=number))
        news = inbox.take(0)
        assert (len(news.xids), news.xids[-1].observed_at, inbox.lost) == (EVENTS_KEPT, at(EVENTS_KEPT + 9), 10)

    def test_notices_travel_beside_xids(self) -> None:
        inbox = Inbox()
        notice = KernelNotice(kind=NoticeKind.RESET_DONE, gpu=uuid(0), pci_bus_id=None, observed_at=T0)
        inbox.kernel_line(notice)
        assert inbox.take(0) == News(snapshot=None, xids=(), notices=(notice,))

    def test_news_wakes_at_once_and_silence_ends_in_time(self) -> None:
        inbox = Inbox()
        threading.Timer(0.05, inbox.kernel_line, (an_xid(79),)).start()
        started = time.monotonic()
        assert len(inbox.take(10).xids) == 1
        assert time.monotonic() - started < 5
        assert inbox.take(0.01) == NOTHING

    def test_a_mapping_wakes_only_when_it_is_another(self) -> None:
        inbox = Inbox()
        inbox.mapping(PodMapping(known=True, taken_at=T0))
        inbox.take(0)
        started = time.monotonic()
        inbox.mapping(PodMapping(known=True, taken_at=at(5)))
        inbox.take(0.1)
        assert time.monotonic() - started >= 0.1

    def test_joined_keeps_order_and_the_newest_snapshot(self) -> None:
        one, two = a_snapshot(), a_snapshot(seconds=1)
        both = joined(
            News(snapshot=one, xids=(an_xid(31),), notices=()), News(snapshot=two, xids=(an_xid(79),), notices=())
        )
        assert (both.snapshot, [xid.code for xid in both.xids]) == (two, [31, 79])
        assert joined(both, NOTHING).snapshot == two


def test_the_running_loop_turns_and_keeps_what_came_last(world: World) -> None:
    before = threading.active_count()
    world.loop.start()
    world.inbox.snapshot(a_snapshot(a_gpu(0, status=GpuStatus.LOST)))
    eventually("a status", lambda: world.board.status, 5, 0.01)
    world.inbox.kernel_line(an_xid(79, seconds=1))
    world.loop.stop()
    assert threading.active_count() == before
    world.restart()
    assert [count.code for count in world.kept_at_start.xids.counts] == [79]
