"""The whole gpu-exporter: its worker dies or stops, GPUs hang or vanish, and who scrapes is told the truth in time."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from exporter.simulation import state
from exporter.simulation.state import SimulatedProcess
from tests.rig.exporter import Exporter, Page, alive, children_of
from tests.rig.waiting import eventually

IDENTITY = {"gpu_info", "gpu_up", "gpu_health", "gpu_finding", "gpu_snapshot_age_seconds"}
"""Device series that a GPU keeps which does not answer."""
GIB = 2**30


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    """An exporter of eight H100 that has read all of them."""
    with Exporter(tmp_path) as running:
        running.until("all eight answer", lambda page: ups(page) == [1.0] * 8, 10.0)
        yield running


def ups(page: Page) -> list[float]:
    return [each.value for each in page.series("gpu_up")]


def restarts(page: Page) -> float | None:
    return page.value("gpuward_exporter_worker_restarts_total")


def fresher(page: Page, before: Page, gpus: list[str], age: float) -> bool:
    """Whether each of these GPUs was read lately, and after `before`."""
    ages, energy = page.by("gpu", "gpu_snapshot_age_seconds"), page.by("gpu", "gpu_energy_joules_total")
    earlier = before.by("gpu", "gpu_energy_joules_total")
    return all(ages[gpu] < age and energy.get(gpu, 0.0) > earlier[gpu] for gpu in gpus)


def read_since(before: Page, gpus: list[str], page: Page) -> bool:
    return fresher(page, before, gpus, 2.0)


def test_a_killed_worker_is_replaced_while_metrics_are_answered(exporter: Exporter) -> None:
    worker, gpus = exporter.worker(), exporter.uuids()
    with exporter.always_answers():
        before = exporter.page()
        os.kill(worker, signal.SIGKILL)
        page = exporter.until("the restart is counted", lambda page: restarts(page) == 1, 10.0)
        exporter.until("readings are fresh again", lambda page: fresher(page, before, gpus, 1.0), 10.0)
        assert ups(page) == [1.0] * 8
    assert exporter.worker() != worker
    assert "killed by signal 9" in exporter.log()


def test_a_stopped_worker_is_replaced_and_no_gpu_is_blamed(exporter: Exporter) -> None:
    worker, gpus = exporter.worker(), exporter.uuids()
    blamed = False

    def replaced(page: Page) -> bool:
        nonlocal blamed
        blamed |= bool(page.series("gpu_finding")) or ups(page) != [1.0] * 8
        return restarts(page) == 1 and fresher(page, before, gpus, 1.0)

    with exporter.always_answers():
        before = exporter.page()
        os.kill(worker, signal.SIGSTOP)
        exporter.until("it is replaced and readings are fresh", replaced, 15.0)
    assert not blamed
    assert exporter.worker() != worker
    assert not alive(worker)


def test_a_hung_gpu_is_named_within_three_intervals_and_the_others_stay_fresh(tmp_path: Path) -> None:
    with Exporter(tmp_path, "--probe.timeout", "0.5", interval=1.0) as exporter:
        gpus = exporter.uuids()
        hung, others = gpus[3], gpus[:3] + gpus[4:]
        with exporter.always_answers():
            before = exporter.page()
            state.inject(exporter.silicon, 3, "hang")
            page = exporter.until("the hung GPU is named", lambda page: page.value("gpu_up", gpu=hung) == 0, 3 + 0.5)
            assert page.states("gpu_health", gpu=hung) == {"Unknown"}
            assert [each.labels["code"] for each in page.series("gpu_finding", gpu=hung)] == ["probe-hung"]
            assert page.of_gpu(hung) == IDENTITY
            for _ in range(3):
                page = exporter.until("the other seven are read", partial(read_since, before, others), 3.0)
                assert page.by("gpu", "gpu_up") == {gpu: float(gpu != hung) for gpu in gpus}
                assert all(page.states("gpu_health", gpu=gpu) == {"Healthy"} for gpu in others)
                before = page
        assert restarts(page) == 1
        assert page.states("gpu_node_health") == {"Unknown"}


def test_a_lost_gpu_keeps_only_its_name_and_no_other_gpu_takes_its_readings(exporter: Exporter) -> None:
    gpus = exporter.uuids()
    loads = {index: [SimulatedProcess(1000 + index, "train", (index + 1) * GIB)] for index in range(8)}
    state.set_processes(exporter.silicon, loads)
    before = exporter.until("each GPU holds memory of its own", lambda page: len(set(memory(page).values())) == 8, 10.0)
    state.inject(exporter.silicon, 2, "lost")
    page = exporter.until("the loss shows", lambda page: page.value("gpu_up", gpu=gpus[2]) == 0, 10.0)
    after = exporter.until("the sweep goes on", lambda page: fresher(page, before, gpus[:2] + gpus[3:], 1.0), 10.0)
    for each in (page, after):
        assert each.states("gpu_health", gpu=gpus[2]) == {"Unhealthy"}
        assert [finding.labels["code"] for finding in each.series("gpu_finding")] == ["gpu-lost"]
        assert each.of_gpu(gpus[2]) == IDENTITY
        assert memory(each) == {gpu: used for gpu, used in memory(before).items() if gpu != gpus[2]}
        assert info(each) == info(before)


def test_a_missing_gpu_is_a_finding_of_the_node_and_nothing_is_mixed_up(exporter: Exporter) -> None:
    gpus = exporter.uuids()
    loads = {index: [SimulatedProcess(1000 + index, "train", (index + 1) * GIB)] for index in range(8)}
    state.set_processes(exporter.silicon, loads)
    before = exporter.until("each GPU holds memory of its own", lambda page: len(set(memory(page).values())) == 8, 10.0)
    state.inject(exporter.silicon, 5, "missing")
    page = exporter.until("the count is wrong", lambda page: page.series("gpu_node_finding", code="gpu-missing"), 10.0)
    assert page.by("kind", "gpu_node_gpus") == {"expected": 8.0, "seen": 7.0}
    page = exporter.until("the others go on", lambda page: fresher(page, before, gpus[:5] + gpus[6:], 1.0), 10.0)
    assert page.by("gpu", "gpu_up") == {gpu: float(gpu != gpus[5]) for gpu in gpus}
    assert page.of_gpu(gpus[5]) == IDENTITY
    # The GPUs behind it have moved up by one index: their memory must have moved along with their names.
    assert memory(page) == {gpu: used for gpu, used in memory(before).items() if gpu != gpus[5]}
    state.reboot(exporter.silicon)
    page = exporter.until("a reboot brings it back", lambda page: ups(page) == [1.0] * 8, 15.0)
    exporter.until("and ends the finding", lambda page: not page.series("gpu_node_finding"), 10.0)
    assert page.by("kind", "gpu_node_gpus") == {"expected": 8.0, "seen": 8.0}


def memory(page: Page) -> dict[str, float]:
    return page.by("gpu", "gpu_memory_used_bytes")


def info(page: Page) -> set[tuple[str, str]]:
    return {(each.labels["gpu"], each.labels["pci_bus_id"]) for each in page.series("gpu_info")}


@pytest.mark.parametrize("fault", ["lost", "hang"])
def test_a_gpu_that_failed_before_the_first_start_leaves_the_node_unknown(tmp_path: Path, fault: str) -> None:
    """It cannot say its name any more; that must not look like a node with one GPU less."""
    exporter = Exporter(tmp_path, simulate="h100x4")
    state.create(exporter.silicon, "h100", 4, exporter.node)
    state.inject(exporter.silicon, 1, fault)
    with exporter:
        page = exporter.until("the others answer", lambda page: ups(page) == [1.0] * 3, 15.0)
        assert page.states("gpu_node_health") == {"Unknown"}
        assert page.by("code", "gpu_node_finding", severity="warning") == {"gpu-missing": 1.0}
        state.reboot(exporter.silicon)
        page = exporter.until("a reboot brings it back", lambda page: ups(page) == [1.0] * 4, 15.0)
        exporter.until("and all is well", lambda page: page.states("gpu_node_health") == {"Healthy"}, 10.0)


def test_sigterm_ends_it_at_once_even_with_a_hung_gpu(exporter: Exporter) -> None:
    state.inject(exporter.silicon, 0, "hang")
    exporter.until("the hung GPU is named", lambda page: 0.0 in ups(page), 10.0)
    asked = time.monotonic()
    assert exporter.stop() == 0
    assert time.monotonic() - asked < 5


def test_the_worker_ends_with_an_exporter_that_is_killed(exporter: Exporter) -> None:
    worker, process = exporter.worker(), exporter.process
    process.kill()
    eventually("the worker is gone", lambda: not alive(worker), 5.0)
    assert children_of(process.pid) == []
    exporter.start()  # on the same files and port
    eventually("the next one is ready", exporter.ready, 15.0)
