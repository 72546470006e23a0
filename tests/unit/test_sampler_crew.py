"""The crew's rules over workers that do as they are told: what cannot be had from a real process on demand."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from exporter.messages import Attached, CountChanged, DriverGone, Mark, SweepDone, Swept, WorkerSettings, XidSeen
from exporter.readings import DriverInfo, DriverState, GpuIdentity, GpuReadings, GpuStatus, XidEvent
from exporter.sampler_crew import CRASHES_OF_ONE_GPU, MOST_STUCK_WORKERS, Crew, Turn
from exporter.sampler_roster import Roster
from tests.fakes.worker_process import FakeProcess, FakeWorkers

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SETTINGS = WorkerSettings(interval_seconds=10.0, probe_timeout_seconds=5.0, library_path=None, simulate_state_path=None)
RETRY_SECONDS = 60.0


def a_gpu(index: int) -> GpuIdentity:
    return GpuIdentity(uuid=f"GPU-{index}", index=index, minor=index, pci_bus_id="", serial=None, model="X")


def up(index: int, status: GpuStatus = GpuStatus.UP) -> Swept:
    return Swept(readings=GpuReadings(identity=a_gpu(index), status=status, taken_at=NOW))


def an_xid(code: int) -> XidSeen:
    return XidSeen(event=XidEvent(code=code, gpu="GPU-0", pci_bus_id=None, observed_at=NOW, source="nvml-event"))


def attached(*indices: int, count: int = 4) -> Attached:
    return Attached(
        driver=DriverInfo(driver_version="550.1"), count=count, identities=tuple(a_gpu(index) for index in indices)
    )


@dataclass
class World:
    """A crew with its fake workers and a clock that only the test moves."""

    now: float = 0.0
    workers: FakeWorkers = field(default_factory=FakeWorkers)

    def __post_init__(self) -> None:
        self.crew = Crew(SETTINGS, RETRY_SECONDS, Roster((), NOW), self.workers)

    def turn(self, seconds: float = 0.0) -> Turn:
        self.now += seconds
        return self.crew.turn(self.now, attentive_since=0.0)

    def begin(self) -> FakeProcess:
        """A worker that has read four GPUs and sleeps."""
        self.turn()
        self.workers.last.said += [attached(0, 1, 2, 3), *(up(index) for index in range(4)), SweepDone(taken_at=NOW)]
        self.idle()
        return self.workers.last

    def idle(self) -> None:
        self.workers.last.said.append(Mark(subject="idle", monotonic=self.now, planned_seconds=1e9))
        self.turn()

    def hang(self, index: int) -> None:
        """The worker stops at this GPU."""
        self.workers.last.said.append(Mark(subject="ecc", monotonic=self.now, gpu_index=index))
        self.turn(5.1)

    def status(self, index: int) -> GpuStatus:
        return self.crew.roster.gpus[index].status


def test_a_hang_replaces_the_worker_by_one_without_that_gpu() -> None:
    world = World()
    first = world.begin()
    world.hang(2)
    assert first.is_gone()
    assert world.workers.last.settings.without == (2,)
    assert [world.status(index) for index in range(4)] == [GpuStatus.UP, GpuStatus.UP, GpuStatus.HUNG, GpuStatus.UP]
    assert world.crew.restarts == 1


def test_a_hung_gpu_is_tried_by_a_probe_of_its_own_until_it_answers() -> None:
    world = World()
    world.begin()
    world.hang(2)
    main = world.workers.last
    world.idle()
    world.turn(RETRY_SECONDS)
    probe = world.workers.last
    assert probe.settings.only == 2 and not main.is_gone()
    probe.said.append(Mark(subject="ecc", monotonic=world.now, gpu_index=2))
    world.turn(5.1)
    assert probe.is_gone() and not main.is_gone()
    world.turn(RETRY_SECONDS)
    assert world.workers.last is probe, "the second pause is longer than the first"
    world.turn(RETRY_SECONDS)
    second = world.workers.last
    assert second is not probe
    second.said.append(up(2))
    world.turn()
    assert main.is_gone() and world.workers.last.settings.without == ()
    assert world.crew.restarts == 1, "what was planned is no restart"


def test_a_probe_that_finds_no_driver_does_not_call_a_released_gpu_hung() -> None:
    """While a GPU is reset the driver may refuse to start, and nothing of that is a call that did not return."""
    world = World()
    world.begin()
    assert world.crew.release("GPU-2", until=30.0, now=world.now)
    world.turn()
    main = world.workers.last
    main.said.append(attached(0, 1, 3))
    world.idle()
    world.turn(31.0)
    probe = world.workers.last
    assert probe.settings.only == 2
    probe.said.append(DriverGone(state=DriverState.NO_DRIVER, details="in reset"))
    world.turn()
    probe.closed = True
    world.turn()
    assert probe.is_gone() and world.status(2) is GpuStatus.FAILED
    world.turn(RETRY_SECONDS)
    assert world.workers.last not in (main, probe), "it is tried again"


def test_workers_that_cannot_be_ended_are_left_behind_up_to_a_limit_and_said() -> None:
    world = World()
    world.workers.shape = lambda process: setattr(process, "unkillable", True)
    for index in range(MOST_STUCK_WORKERS):
        world.turn(31.0)
        world.workers.last.said.append(attached(0, 1, 2, 3))
        world.hang(index)
    for _ in range(5):
        world.turn(60.0)
    assert len(world.workers.started) == MOST_STUCK_WORKERS
    assert "only a reboot helps" in world.crew.roster.sentence()
    world.workers.started[0].ended = True
    world.turn(60.0)
    world.turn(60.0)
    assert len(world.workers.started) == MOST_STUCK_WORKERS + 1, "a place that is free again is used"


def test_a_worker_that_keeps_dying_is_replaced_ever_more_slowly() -> None:
    world = World()
    pauses: list[float] = []
    for _ in range(5):
        world.turn()
        started = len(world.workers.started)
        world.workers.last.closed = True
        died = world.now
        world.turn()
        while len(world.workers.started) == started:
            world.turn(0.5)
        pauses.append(world.now - died)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0]


def test_a_worker_that_always_dies_at_the_same_gpu_goes_on_without_it() -> None:
    world = World()
    world.begin()
    for _ in range(CRASHES_OF_ONE_GPU):
        world.workers.last.said.append(Mark(subject="fields", monotonic=world.now, gpu_index=1))
        world.turn()
        world.workers.last.closed = True
        world.turn()
        world.turn(5.0)
    assert world.workers.last.settings.without == (1,)
    assert world.status(1) is GpuStatus.FAILED


def test_garbled_messages_end_the_worker_that_said_them() -> None:
    world = World()
    first = world.begin()
    first.garbled = True
    world.turn()
    assert first.is_gone() and world.workers.last is not first and world.crew.restarts == 1


def test_an_xid_that_is_said_with_the_last_breath_is_not_lost() -> None:
    world = World()
    first = world.begin()
    first.said += [an_xid(31), CountChanged(count=3), an_xid(43)]
    turn = world.turn()
    assert first.is_gone()
    assert [xid.code for xid in turn.xids] == [31, 43]
    assert world.turn().xids == []


def test_an_xid_in_the_pipe_of_a_worker_that_is_ended_is_not_lost() -> None:
    world = World()
    first = world.begin()
    first.said.append(an_xid(48))
    assert world.crew.release("GPU-1", until=world.now + 10, now=world.now)
    assert [xid.code for xid in world.turn().xids] == [48]


def test_without_a_driver_the_worker_is_tried_again_ever_more_rarely_and_that_is_no_restart() -> None:
    world = World()
    for _ in range(4):
        world.turn(60.0)
        world.workers.last.said.append(DriverGone(state=DriverState.NO_DRIVER, details="no driver"))
        assert world.turn().fresh
    world.turn(7.9)
    assert len(world.workers.started) == 4
    world.turn(0.2)
    assert len(world.workers.started) == 5
    assert (world.crew.restarts, world.crew.roster.sentence()) == (0, "no driver")


def test_when_gpus_come_or_go_an_excluded_index_means_nothing_any_more() -> None:
    world = World()
    world.begin()
    world.hang(2)
    world.workers.last.said.append(attached(0, 1, count=3))
    world.turn()
    world.turn()
    assert world.workers.last.settings.without == ()


def test_a_gpu_that_is_gone_gets_a_new_session_now_and_then() -> None:
    world = World()
    first = world.begin()
    first.said += [up(1, GpuStatus.LOST), SweepDone(taken_at=NOW)]
    world.turn()
    assert not first.is_gone()
    first.said.append(SweepDone(taken_at=NOW))
    world.turn(30.0)
    assert first.is_gone() and world.crew.restarts == 0
    second = world.workers.last
    second.said += [attached(0, 1, 2, 3), up(1, GpuStatus.LOST), SweepDone(taken_at=NOW)]
    world.idle()
    second.said.append(SweepDone(taken_at=NOW))
    world.turn(31.0)
    assert not second.is_gone(), "the second pause is longer than the first"


@pytest.mark.parametrize(("uuid", "released"), [("GPU-1", True), ("GPU-9", False)])
def test_only_a_known_gpu_can_be_released(uuid: str, released: bool) -> None:
    world = World()
    world.begin()
    assert world.crew.release(uuid, until=100.0, now=world.now) is released


def test_a_release_is_not_claimed_while_a_worker_is_stuck_in_the_driver() -> None:
    world = World()
    world.begin().unkillable = True
    assert not world.crew.release("GPU-1", until=100.0, now=world.now)
