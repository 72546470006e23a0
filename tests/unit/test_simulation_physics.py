"""Readings of a simulated GPU hang together: power follows load, heat follows power, energy is power's integral."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.simulation import physics
from exporter.simulation.node import GpuState, SimulatedProcess
from exporter.simulation.profiles import PROFILES, Profile

START = 1_800_000_000.0
profiles = pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)


def idle_gpu(profile: Profile, index: int = 0) -> GpuState:
    return GpuState(index=index, anchor=physics.cold(profile, START))


def loaded(profile: Profile, gpu: GpuState, ratio: float, now: float) -> GpuState:
    running = (SimulatedProcess(1, "train", 1 << 30, ratio),) if ratio else ()
    return replace(physics.anchored(profile, gpu, now), processes=running)


@profiles
def test_idle_gpu_stays_at_its_idle_values(profile: Profile) -> None:
    gpu = idle_gpu(profile)
    for elapsed in (0, 1, 100, 100_000):
        power = physics.power_watts(profile, gpu, START + elapsed)
        assert abs(power - profile.idle_watts) <= 0.01 * profile.limit_watts
        assert physics.temperature_celsius(profile, gpu, START + elapsed) < 40
    assert physics.clock_event_bits(gpu) == physics.GPU_IDLE
    assert physics.utilization_percent(gpu, START) == 0
    assert physics.clock_mhz(profile.graphics, gpu) == profile.graphics.idle


@profiles
def test_load_raises_power_then_heat_and_its_end_lowers_them(profile: Profile) -> None:
    busy = loaded(profile, idle_gpu(profile), 1.0, START)
    powers = [physics.power_watts(profile, busy, START + at) for at in (0, 1, 3, 60)]
    heats = [physics.temperature_celsius(profile, busy, START + at) for at in (0, 3, 10, 120)]
    assert powers == sorted(powers)
    assert heats == sorted(heats)
    assert 0.9 * profile.limit_watts < powers[-1] <= profile.limit_watts
    assert 55 < heats[-1] < profile.slowdown_celsius
    rested = loaded(profile, busy, 0.0, START + 60)
    assert physics.power_watts(profile, rested, START + 90) == pytest.approx(
        profile.idle_watts, abs=0.01 * profile.limit_watts
    )
    assert physics.temperature_celsius(profile, rested, START + 240) < 40


@profiles
def test_energy_is_the_integral_of_power(profile: Profile) -> None:
    gpu = loaded(profile, idle_gpu(profile), 0.7, START)
    begin, step = gpu.anchor.at, 0.01
    grown = physics.energy_joules(profile, gpu, begin + 20) - physics.energy_joules(profile, gpu, begin)
    summed = sum(physics.power_watts(profile, gpu, begin + (i + 0.5) * step) * step for i in range(2000))
    assert grown == pytest.approx(summed, rel=1e-5)


@given(
    changes=st.lists(st.tuples(st.floats(0.001, 30.0), st.floats(0.0, 1.0)), min_size=1, max_size=12),
    profile=st.sampled_from(PROFILES),
)
@settings(max_examples=60, deadline=None)
def test_energy_only_grows_whatever_the_load_does(changes: list[tuple[float, float]], profile: Profile) -> None:
    gpu, now, last = idle_gpu(profile), START, 0.0
    for pause, ratio in changes:
        for _ in range(4):
            now += pause / 4
            energy = physics.energy_joules(profile, gpu, now)
            assert energy >= last - 1e-6
            last = energy
        gpu = loaded(profile, gpu, ratio, now)


@profiles
def test_change_of_load_never_shows_less_energy_than_the_old_view(profile: Profile) -> None:
    old = loaded(profile, idle_gpu(profile), 1.0, START)
    changed_at = START + 30
    new = loaded(profile, old, 0.0, changed_at)
    stale = physics.energy_joules(profile, old, changed_at + physics.EFFECT_DELAY_SECONDS)
    assert physics.energy_joules(profile, new, changed_at) >= stale - 1e-6


def test_clock_that_steps_back_moves_nothing() -> None:
    profile = PROFILES[0]
    gpu = idle_gpu(profile)
    assert physics.energy_joules(profile, gpu, START - 100) == 0.0
    assert physics.power_watts(profile, gpu, START - 100) > 0


@profiles
def test_thermal_slowdown_heats_slows_and_says_why(profile: Profile) -> None:
    busy = loaded(profile, idle_gpu(profile), 1.0, START)
    hot = replace(physics.anchored(profile, busy, START + 60), thermal_slowdown=True)
    assert physics.clock_event_bits(hot) == 0x40 | 0x8
    assert physics.clock_mhz(profile.graphics, hot) <= profile.graphics.max // 2
    assert physics.temperature_celsius(profile, hot, START + 300) > profile.slowdown_celsius
    assert physics.power_watts(profile, hot, START + 300) < physics.power_watts(profile, busy, START + 300)


def test_utilization_adds_up_and_is_cut() -> None:
    gpu = idle_gpu(PROFILES[0])
    both = (SimulatedProcess(1, "a", 1, 0.6), SimulatedProcess(2, "b", 1, 0.7))
    assert replace(gpu, processes=both).utilization_ratio == 1.0
    assert replace(gpu, processes=both[:1]).utilization_ratio == 0.6
    assert 1 <= physics.utilization_percent(replace(gpu, processes=(SimulatedProcess(1, "a", 1, 0.001),)), START) <= 3
