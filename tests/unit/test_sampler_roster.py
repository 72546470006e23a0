"""The roster never forgets a GPU within a boot and never keeps a reading of one that does not answer."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from exporter.messages import Attached
from exporter.readings import DriverInfo, DriverState, GpuIdentity, GpuReadings, GpuStatus
from exporter.sampler_exclusions import LONGEST_RETRY_SECONDS, Exclusions, back_off
from exporter.sampler_roster import Roster

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=10)


def a_gpu(index: int, name: str | None = None) -> GpuIdentity:
    return GpuIdentity(uuid=f"GPU-{name or index}", index=index, minor=index, pci_bus_id="", serial=None, model="X")


def up(gpu: GpuIdentity, *failed: str) -> GpuReadings:
    return GpuReadings(identity=gpu, status=GpuStatus.UP, taken_at=NOW, power_watts=100.0, failed=failed)


def attached(*gpus: GpuIdentity, count: int | None = None, lost: tuple[int, ...] = ()) -> Attached:
    return Attached(
        driver=DriverInfo(driver_version="550.1"),
        count=len(gpus) if count is None else count,
        identities=gpus,
        unattached=tuple((index, GpuStatus.LOST) for index in lost),
    )


def a_roster(gpus: int = 3) -> Roster:
    roster = Roster((), NOW)
    identities = [a_gpu(index) for index in range(gpus)]
    roster.attached(attached(*identities), (), NOW)
    for identity in identities:
        roster.swept(up(identity))
    return roster


def statuses(roster: Roster) -> list[tuple[str, GpuStatus]]:
    return [(gpu.identity.uuid, gpu.status) for gpu in roster.gpus]


def test_a_gpu_that_is_attached_and_not_yet_read_is_unknown() -> None:
    roster = Roster((), NOW)
    before = roster.driver_state
    roster.attached(attached(a_gpu(0)), (), NOW)
    assert statuses(roster) == [("GPU-0", GpuStatus.FAILED)]
    assert (before, roster.driver_state) == (DriverState.STARTING, DriverState.OK)


def test_a_hung_gpu_loses_its_readings_keeps_its_name_and_the_moment_it_was_noticed() -> None:
    roster = a_roster()
    roster.silent(1, GpuStatus.HUNG, NOW)
    roster.silent(1, GpuStatus.HUNG, LATER)
    gpu = roster.gpus[1]
    assert (gpu.identity, gpu.status, gpu.taken_at, gpu.power_watts) == (a_gpu(1), GpuStatus.HUNG, NOW, None)
    assert roster.gpus[0].power_watts == 100.0


def test_a_new_worker_that_leaves_a_hung_gpu_alone_does_not_make_it_missing() -> None:
    roster = a_roster()
    roster.silent(1, GpuStatus.HUNG, NOW)
    roster.attached(attached(a_gpu(0), a_gpu(2), count=3), (1,), LATER)
    assert [status for _, status in statuses(roster)] == [GpuStatus.UP, GpuStatus.HUNG, GpuStatus.UP]


def test_a_gpu_that_is_no_longer_enumerated_is_missing_and_its_followers_move_up() -> None:
    roster = a_roster()
    roster.attached(attached(a_gpu(0), a_gpu(1, "2")), (), LATER)
    roster.swept(up(a_gpu(1, "2")))
    assert statuses(roster) == [
        ("GPU-0", GpuStatus.UP),
        ("GPU-1", GpuStatus.MISSING),
        ("GPU-2", GpuStatus.UP),
    ]
    assert roster.index_of("GPU-1") is None and roster.index_of("GPU-2") == 1
    assert roster.anyone_gone


def test_a_gpu_that_was_lost_when_the_worker_came_keeps_its_identity() -> None:
    roster = a_roster()
    roster.attached(attached(a_gpu(0), a_gpu(2), count=3, lost=(1,)), (), LATER)
    assert statuses(roster)[1] == ("GPU-1", GpuStatus.LOST)
    assert roster.sentence() == ""


def test_a_gpu_that_was_lost_before_anybody_saw_it_is_told_in_words() -> None:
    roster = Roster((), NOW)
    roster.attached(attached(a_gpu(0), count=2, lost=(1,)), (), NOW)
    assert statuses(roster) == [("GPU-0", GpuStatus.FAILED)]
    assert "GPU 1 (lost)" in roster.sentence() and roster.count == 2


def test_a_gpu_known_from_before_the_start_gives_a_lost_one_its_name() -> None:
    roster = Roster((a_gpu(0), a_gpu(1)), NOW)
    roster.attached(attached(a_gpu(0), count=2, lost=(1,)), (), LATER)
    assert statuses(roster)[1] == ("GPU-1", GpuStatus.LOST)


@pytest.mark.parametrize(
    "silence",
    [
        pytest.param(lambda r, gpu: r.silent(0, GpuStatus.HUNG, LATER), id="it hangs"),
        pytest.param(lambda r, gpu: r.swept(replace(up(gpu), status=GpuStatus.LOST)), id="it is lost in a sweep"),
        pytest.param(lambda r, gpu: r.swept(up(gpu, "modes")), id="its instances cannot be listed"),
        pytest.param(lambda r, gpu: r.attached(attached(a_gpu(1, "0"), count=2), (), LATER), id="its index moves"),
    ],
)
def test_instances_of_a_gpu_that_cannot_list_them_stay_known(
    silence: Callable[[Roster, GpuIdentity], None],
) -> None:
    """Whose pods run on a faulty GPU is asked by the UUIDs of its MIG instances: never more than when it is lost."""
    roster = Roster((), NOW)
    roster.attached(attached(a_gpu(0)), (), NOW)
    roster.swept(up(replace(a_gpu(0), mig_uuids=("MIG-a", "MIG-b"))))
    silence(roster, a_gpu(0))
    assert roster.gpus[0].identity.mig_uuids == ("MIG-a", "MIG-b")


def test_instances_that_were_removed_are_gone() -> None:
    roster = Roster((replace(a_gpu(0), mig_uuids=("MIG-a",)),), NOW)
    roster.swept(up(a_gpu(0)))
    assert roster.gpus[0].identity.mig_uuids == ()


def test_without_a_driver_nothing_is_known_of_any_gpu() -> None:
    roster = a_roster(2)
    roster.driver_gone(DriverState.NO_DRIVER, "gone", LATER)
    assert {gpu.status for gpu in roster.gpus} == {GpuStatus.FAILED}
    assert all(gpu.power_watts is None for gpu in roster.gpus)
    assert roster.sentence() == "gone" and roster.count == 0


def test_a_driver_that_sees_no_gpu_makes_the_known_ones_missing() -> None:
    roster = a_roster(2)
    roster.driver_gone(DriverState.NO_GPU, "none", LATER)
    assert {gpu.status for gpu in roster.gpus} == {GpuStatus.MISSING}


def test_failures_are_counted_per_gpu_and_subject() -> None:
    roster = a_roster(1)
    roster.swept(up(a_gpu(0), "ecc", "power"))
    roster.swept(up(a_gpu(0), "ecc"))
    assert dict(roster.failures) == {("GPU-0", "ecc"): 2, ("GPU-0", "power"): 1}


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 60.0), (1, 120.0), (2, 240.0), (9, 900.0), (10**6, 900.0)])
def test_retries_double_up_to_a_limit(attempt: int, seconds: float) -> None:
    assert back_off(attempt, 60.0, LONGEST_RETRY_SECONDS) == seconds


def test_a_gpu_that_flaps_is_tried_ever_more_rarely() -> None:
    exclusions = Exclusions(60.0)
    exclusions.hung(3, now=0.0)
    assert (exclusions.due(59.0), exclusions.due(60.0), exclusions.indices) == (None, 3, (3,))
    exclusions.answered(3)
    assert not exclusions
    exclusions.hung(3, now=100.0)
    assert (exclusions.due(219.0), exclusions.due(220.0)) == (None, 3)


def test_a_release_ends_by_its_own_time() -> None:
    exclusions = Exclusions(60.0)
    exclusions.released(2, until=500.0)
    assert (exclusions.due(499.0), exclusions.due(500.0)) == (None, 2)
