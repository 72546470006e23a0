"""The sampler over real worker processes and a simulated node: whatever happens to a worker, the parent answers."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.readings import DriverState, GpuStatus
from exporter.sampler import Sampler, SamplerSettings
from exporter.simulation import state
from tests.fakes.sampling import INTERVAL_SECONDS, Sampling, age_seconds, all_up, gpu, start_sampling

Begin = Callable[..., Sampling]


def alive(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_in_time(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a sampler over a fresh simulated node; afterwards nothing of it may be left."""
    started: list[Sampling] = []

    def start(profile: str = "h100", count: int = 8, **changes: object) -> Sampling:
        path = tmp_path / "node.json"
        state.create(path, profile, count, "n1")
        settings = SamplerSettings(
            interval_seconds=INTERVAL_SECONDS,
            probe_timeout_seconds=INTERVAL_SECONDS,
            node="n1",
            simulate_state_path=str(path),
        )
        started.append(start_sampling(path, replace(settings, **changes)))  # type: ignore[arg-type]  # test shorthand
        return started[-1]

    yield start
    for sampling in started:
        sampling.sampler.stop()
        assert all(gone_in_time(pid) for pid in sampling.pids), "a worker survived its sampler"
        assert sampling.sampler.failed_turns == 0


def test_every_interval_brings_a_snapshot_of_all_gpus(begin: Begin) -> None:
    sampling = begin()
    first = sampling.wait_for(all_up)
    assert (first.node, first.enumerated, len(first.gpus), first.driver_state) == ("n1", 8, 8, DriverState.OK)
    assert first.boot_id == state.load(sampling.path).boot_id
    begun = time.monotonic()
    time.sleep(5 * INTERVAL_SECONDS)
    recent = sampling.since(begun)
    assert 3 <= len(recent) <= 7
    assert all(age_seconds(snapshot, index) < INTERVAL_SECONDS for _, snapshot in recent for index in range(8))
    assert sampling.sampler.latest() is sampling.history[-1][1]


def test_a_hung_gpu_shows_within_three_intervals_while_seven_stay_fresh_and_comes_back(begin: Begin) -> None:
    sampling = begin(hung_retry_seconds=1.0)
    before = sampling.wait_for(all_up)
    hung_at = sampling.inject(3, "hang")
    hung = sampling.wait_for(lambda snapshot: gpu(snapshot, 3).status is GpuStatus.HUNG)
    shown_after = time.monotonic() - hung_at
    assert shown_after <= 3 * INTERVAL_SECONDS
    assert gpu(hung, 3).identity == gpu(before, 3).identity
    assert gpu(hung, 3).power_watts is None
    sampling.wait_for(lambda snapshot: all_up(snapshot, but=(3,)) and age_seconds(snapshot, 0) < INTERVAL_SECONDS)
    calm = time.monotonic()
    time.sleep(6 * INTERVAL_SECONDS)  # long enough for a retry, which must disturb nobody
    for _, snapshot in sampling.since(calm):
        assert gpu(snapshot, 3).status is GpuStatus.HUNG
        assert all(age_seconds(snapshot, index) < 2 * INTERVAL_SECONDS for index in range(8) if index != 3)
    assert sampling.sampler.worker_restarts == 1
    sampling.inject(3, "heal")
    assert gpu(sampling.wait_for(all_up), 3).power_watts is not None


@pytest.mark.parametrize(
    ("number", "restarts"),
    [pytest.param(signal.SIGKILL, 1, id="killed"), pytest.param(signal.SIGSTOP, 1, id="stopped")],
)
def test_a_worker_that_dies_or_stops_is_replaced_and_no_gpu_is_blamed(
    begin: Begin, number: signal.Signals, restarts: int
) -> None:
    sampling = begin()
    sampling.wait_for(all_up)
    pid = sampling.sampler.worker_pid
    assert pid is not None
    os.kill(pid, number)
    struck = time.monotonic()
    sampling.wait_for(
        lambda snapshot: snapshot.worker_restarts == restarts and age_seconds(snapshot, 7) < INTERVAL_SECONDS
    )
    assert sampling.sampler.worker_pid != pid
    assert gone_in_time(pid)
    assert all(all_up(snapshot) for _, snapshot in sampling.since(struck))


def test_snapshots_keep_coming_while_the_worker_stands_still_and_show_the_age(begin: Begin) -> None:
    sampling = begin(probe_timeout_seconds=2.5)
    sampling.wait_for(all_up)
    pid = sampling.sampler.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    time.sleep(4 * INTERVAL_SECONDS)
    recent = sampling.since(stopped)
    assert len(recent) >= 3
    ages = [age_seconds(snapshot, 0) for _, snapshot in recent]
    assert ages == sorted(ages) and ages[-1] > 2 * INTERVAL_SECONDS


def test_an_xid_is_visible_at_once_and_once_even_across_worker_restarts(begin: Begin) -> None:
    sampling = begin(interval_seconds=2.0, probe_timeout_seconds=2.0)
    sampling.wait_for(all_up)
    delays: list[float] = []
    expected: list[tuple[str | None, int]] = []
    for round_number in range(6):
        if round_number == 3:
            pid = sampling.sampler.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            sampling.wait_for(lambda snapshot: snapshot.worker_restarts == 1 and age_seconds(snapshot, 0) < 1.0)
        code = 31 + round_number
        injected_at = sampling.inject(5, f"xid:{code}")
        sampling.wait_for(lambda snapshot, code=code: any(xid.code == code for xid in snapshot.xids))  # type: ignore[misc]  # bound per round
        delays.append(time.monotonic() - injected_at)
        expected.append((state.gpu_uuid("n1", "h100", 5), code))
    time.sleep(0.3)
    assert sampling.xids() == expected
    assert statistics.median(delays) < 0.1


def test_a_gpu_that_is_no_longer_enumerated_is_missing(begin: Begin) -> None:
    sampling = begin()
    sampling.wait_for(all_up)
    sampling.inject(2, "missing")
    uuid = state.gpu_uuid("n1", "h100", 2)
    shrunk = sampling.wait_for(lambda snapshot: snapshot.enumerated == 7)
    settled = sampling.wait_for(lambda snapshot: sum(found.status is GpuStatus.UP for found in snapshot.gpus) == 7)
    assert len(shrunk.gpus) == len(settled.gpus) == 8
    assert [found.identity.uuid for found in settled.gpus if found.status is GpuStatus.MISSING] == [uuid]
    assert sampling.sampler.worker_restarts == 0, "a planned renewal is no failure"


def test_a_lost_gpu_is_lost_alone_and_is_seen_again_after_repair(begin: Begin) -> None:
    sampling = begin(count=2)
    sampling.wait_for(all_up)
    sampling.inject(1, "lost")
    lost = sampling.wait_for(lambda snapshot: gpu(snapshot, 1).status is GpuStatus.LOST)
    assert gpu(lost, 0).status is GpuStatus.UP
    assert gpu(lost, 1).power_watts is None
    sampling.inject(1, "heal")
    sampling.wait_for(all_up)


def test_a_slow_gpu_loses_readings_and_not_its_neighbours_theirs(begin: Begin) -> None:
    sampling = begin(count=3)
    sampling.wait_for(all_up)
    sampling.inject(1, "slow:60")
    slow = sampling.wait_for(lambda snapshot: bool(gpu(snapshot, 1).failed))
    assert gpu(slow, 1).status is GpuStatus.UP
    assert "processes" in gpu(slow, 1).failed and "fields" not in gpu(slow, 1).failed
    later = sampling.wait_for(lambda snapshot: len(snapshot.failed_reads) > 0 and age_seconds(snapshot, 2) < 1.0)
    assert not gpu(later, 2).failed
    assert {uuid for uuid, _, _ in later.failed_reads} == {state.gpu_uuid("n1", "h100", 1)}


def test_a_released_gpu_is_held_by_nobody_until_a_probe_takes_it_back(begin: Begin) -> None:
    sampling = begin(count=2)
    sampling.wait_for(all_up)
    holder = sampling.sampler.worker_pid
    assert holder is not None
    assert sampling.sampler.release(state.gpu_uuid("n1", "h100", 1), seconds=2.0)
    assert not alive(holder)
    released = sampling.wait_for(lambda snapshot: gpu(snapshot, 0).status is GpuStatus.UP)
    assert (gpu(released, 1).status, gpu(released, 1).failed) == (GpuStatus.FAILED, ("released",))
    sampling.wait_for(all_up)
    assert sampling.sampler.worker_restarts == 0
    assert not sampling.sampler.release("GPU-of-somebody-else")


def test_a_new_boot_forgets_what_was_known(begin: Begin) -> None:
    sampling = begin(count=2)
    old = sampling.wait_for(all_up)
    sampling.inject(1, "hang")
    sampling.wait_for(lambda snapshot: gpu(snapshot, 1).status is GpuStatus.HUNG)
    booted = state.reboot(sampling.path)
    new = sampling.wait_for(lambda snapshot: snapshot.boot_id == booted.boot_id and all_up(snapshot))
    assert new.boot_id != old.boot_id
    assert len(new.gpus) == 2


def test_a_receiver_that_fails_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    state.create(path, "t4", 1, "n1")

    def refuse(_: object) -> None:
        raise RuntimeError("no")

    settings = SamplerSettings(
        interval_seconds=0.1, probe_timeout_seconds=1.0, node="n1", simulate_state_path=str(path)
    )
    sampler = Sampler(settings, refuse)
    sampler.start()
    deadline = time.monotonic() + 10
    while sampler.failed_deliveries < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    sampler.stop()
    assert sampler.failed_deliveries >= 3
    assert sampler.latest() is not None


@pytest.mark.parametrize(
    ("library", "sentence"),
    [
        pytest.param("/nonexistent/libnvidia-ml.so.1", "cannot load /nonexistent/libnvidia-ml.so.1", id="no such file"),
        pytest.param(__file__, "invalid ELF header", id="not a library"),
        pytest.param("libc.so.6", "not NVML", id="another library"),
    ],
)
def test_without_nvml_there_is_one_clear_state_and_no_crash_loop(begin: Begin, library: str, sentence: str) -> None:
    sampling = begin(simulate_state_path=None, library_path=library)
    sampling.wait_for(lambda snapshot: snapshot.driver_state is DriverState.LIBRARY_MISSING)
    time.sleep(1.5)
    last = sampling.sampler.latest()
    assert last is not None
    assert (last.driver_state, last.gpus, last.worker_restarts) == (DriverState.LIBRARY_MISSING, (), 0)
    assert sentence in last.details


def test_the_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    state.create(path, "t4", 1, "n1")
    program = f"""
import time
from exporter.sampler import Sampler, SamplerSettings
settings = SamplerSettings(interval_seconds=0.1, probe_timeout_seconds=5, node="n1", simulate_state_path={str(path)!r})
sampler = Sampler(settings, lambda snapshot: snapshot.gpus and print(sampler.worker_pid, flush=True))
sampler.start()
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert alive(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone_in_time(worker)
