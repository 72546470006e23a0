"""Sums over time: nothing twice, nothing lost, and a gap is neither busy nor idle."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from exporter.readers.nvml_samples import newer_samples
from exporter.readings import GpuIntegrals, GpuReadings
from exporter.sampler_integrals import Integrals
from exporter.simulation import load_history, physics, state
from exporter.simulation.load_history import remembered
from exporter.simulation.physics import EFFECT_DELAY_SECONDS
from exporter.simulation.profiles import H100
from exporter.simulation.state import GpuState, SimulatedProcess
from tests.rig.readings_world import T0, a_gpu, at
from tests.rig.simulated_nvml import nvml_over_node

BEGIN = T0.timestamp()
INTERVAL_SECONDS = 10.0
CURVE = ((0, 0.8), (7, 0.0), (19, 1.0), (33, 0.25), (60, 0.55), (101, 0.0), (130, 0.97), (171, 0.1))
"""(second, load): no change falls on a multiple of a scrape interval."""
CURVE_SECONDS = 240


def samples(*each: tuple[float, float]) -> tuple[tuple[int, float], ...]:
    return tuple((round((BEGIN + second) * 1e6), ratio) for second, ratio in each)


def sums(*sweeps: GpuReadings) -> GpuIntegrals:
    integrals = Integrals(INTERVAL_SECONDS)
    shown = [integrals.added(sweep).integrals for sweep in sweeps]
    assert shown[-1] is not None
    return shown[-1]


def sampled(second: float, *each: tuple[float, float]) -> GpuReadings:
    return a_gpu(0, taken_at=at(second), utilization_samples=samples(*each))


def swept(second: float, ratio: float | None, used: int | None = None) -> GpuReadings:
    return a_gpu(0, taken_at=at(second), utilization_ratio=ratio, memory_used_bytes=used)


@pytest.mark.parametrize(
    ("sweeps", "busy", "unobserved"),
    [
        pytest.param([sampled(2, (0, 1.0), (1, 1.0))], 0.0, 0.0, id="before-the-first-reading"),
        pytest.param([sampled(1, (1, 1.0)), sampled(3, (2, 0.5), (3, 1.0))], 1.5, 0.0, id="mean-since-the-one-before"),
        pytest.param([sampled(1, (1, 1.0)), sampled(3, (3, 1.0), (2, 0.5))], 1.5, 0.0, id="any-order"),
        pytest.param(
            [sampled(1, (1, 1.0)), sampled(2, (2, 1.0)), sampled(3, (1, 1.0), (2, 1.0), (3, 1.0))], 2.0, 0.0, id="again"
        ),
        pytest.param([sampled(1, (1, 1.0)), sampled(61, (61, 1.0), (62, 0.5))], 0.5, 60.0, id="gap"),
        pytest.param([sampled(1, (1, 1.0)), sampled(2), sampled(3, (2, 1.0), (3, 1.0))], 2.0, 0.0, id="nothing-new"),
        pytest.param([swept(0, 1.0), swept(10, 0.5), swept(20, 0.5)], 12.5, 0.0, id="sweeps"),
        pytest.param([swept(0, 1.0), swept(10, 1.0), swept(100, 1.0)], 10.0, 90.0, id="gap-of-sweeps"),
        pytest.param([swept(0, 1.0), swept(10, None), swept(20, 1.0)], 20.0, 0.0, id="one-sweep-without"),
        pytest.param([swept(0, 1.0), swept(-5, 1.0), swept(10, 1.0)], 10.0, 0.0, id="clock-wavers"),
        pytest.param([swept(0, 1.0), swept(-4000, 1.0), swept(-3990, 1.0)], 10.0, 0.0, id="clock-stepped-back"),
        pytest.param(
            [sampled(1, (1, 1.0)), replace(swept(11, 0.0), failed=("samples",)), sampled(12, (2, 1.0), (3, 1.0))],
            2.0,
            0.0,
            id="failed-once",
        ),
    ],
)
def test_busy_time(sweeps: list[GpuReadings], busy: float, unobserved: float) -> None:
    shown = sums(*sweeps)
    assert shown.busy_seconds == pytest.approx(busy)
    assert shown.unobserved_seconds == pytest.approx(unobserved)


def test_memory_is_summed_between_sweeps_and_not_over_a_gap() -> None:
    shown = sums(swept(0, None, 100), swept(10, None, 300), swept(500, None, 300), swept(510, None, 300))
    assert (shown.busy_seconds, shown.memory_byte_seconds, shown.unobserved_seconds) == (None, 5000.0, 490.0)


def on_the_curve(make: Callable[[GpuState], GpuState]) -> GpuState:
    """A simulated GPU whose history is the whole curve (a running node keeps its last half minute)."""
    loads = tuple((BEGIN + second, ratio) for second, ratio in CURVE)
    return make(GpuState(index=0, anchor=physics.cold(H100, BEGIN), loads=loads))


@pytest.mark.parametrize("interval", [1, 5, 10, 15, 19])
@pytest.mark.parametrize("restart_every", [1000, 3])
def test_a_known_curve_is_summed_within_one_percent(interval: int, restart_every: int) -> None:
    gpu = on_the_curve(lambda gpu: gpu)
    integrals, since, shown = Integrals(interval), 0, GpuIntegrals()
    totals: list[float] = []
    for number, second in enumerate(range(0, CURVE_SECONDS + 1, interval)):
        if number % restart_every == 0:
            since = 0  # a new worker knows no timestamp and hands over the whole ring
        ring = load_history.samples(gpu, since, BEGIN - 60, BEGIN + second)
        since = ring[-1][0]
        readings = a_gpu(0, utilization_samples=tuple((when, percent / 100) for when, percent in ring))
        shown = integrals.added(readings).integrals or shown
        totals.append(shown.busy_seconds or 0.0)
        end = second
    ends = (*(second for second, _ in CURVE[1:]), end)
    expected = sum(ratio * (min(until, end) - begin) for (begin, ratio), until in zip(CURVE, ends, strict=True))
    assert totals[-1] == pytest.approx(expected, rel=0.01)
    assert totals == sorted(totals)
    assert shown.unobserved_seconds == 0.0


def test_beyond_the_ring_is_a_gap() -> None:
    gpu = on_the_curve(lambda gpu: gpu)
    integrals = Integrals(60)
    for second in (0, 60):
        ring = load_history.samples(gpu, 0, BEGIN - 60, BEGIN + second)
        shown = integrals.added(a_gpu(0, utilization_samples=tuple((when, percent / 100) for when, percent in ring)))
    assert shown.integrals is not None
    assert shown.integrals.unobserved_seconds == pytest.approx(40, abs=0.5)


def test_the_simulated_ring_follows_the_processes(tmp_path: Path) -> None:
    path = tmp_path / "n1.json"
    begun = time.time()
    state.create(path, "h100", 1, "n1")
    with nvml_over_node(path):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        state.set_processes(path, {0: [SimulatedProcess(77, "train", 1, 0.8)]})
        time.sleep(EFFECT_DELAY_SECONDS + 1)
        found = newer_samples(handle, 0)
        assert newer_samples(handle, found[-1][0] + 10**7) == ()
    assert all(begun * 1e6 < when < time.time() * 1e6 for when, _ in found)
    assert 6 <= len(found) <= 12
    assert [ratio for _, ratio in found[-4:]] == pytest.approx([0.8] * 4, abs=0.021)


def test_a_running_node_remembers_what_the_ring_needs() -> None:
    gpu = on_the_curve(lambda gpu: replace(gpu, loads=()))
    for second in range(0, 100, 5):
        gpu = replace(gpu, loads=remembered(gpu, second / 100, BEGIN + second))
    assert len(gpu.loads) <= 8
    assert load_history.mean_ratio(gpu, BEGIN + 80.5, BEGIN + 85) == pytest.approx(0.80)
