"""How readings of a simulated GPU hang together: load, power, heat, energy, clocks. Pure functions of state and time.

Laws:
1. Power follows load, temperature follows power, each with a first-order lag; energy is the exact integral of power.
   All three are closed forms of the anchor, so any two processes that ask at the same time read the same.
2. Power is always above zero, hence energy only grows.
3. The wobble is a sine of absolute time, integrated exactly as well.
4. A change of load takes hold EFFECT_DELAY_SECONDS after it was asked for, longer than any reader keeps an old state:
   otherwise a reader that changes from the old state to the new could see energy step back.
"""

import math
from dataclasses import replace
from typing import Final

from exporter.simulation.node import Anchor, GpuState
from exporter.simulation.profiles import Clocks, Profile

EFFECT_DELAY_SECONDS: Final = 0.25
POWER_LAG_SECONDS: Final = 1.5
HEAT_LAG_SECONDS: Final = 12.0
"""A heat sink answers in tens of seconds; 12 keeps a demonstration short and the curve visible."""
WOBBLE_SHARE: Final = 0.005
"""Amplitude of the power wobble as a share of the power limit; far below idle power on every profile."""
WOBBLE_PERIOD_SECONDS: Final = 7.0
SLOWDOWN_POWER_SHARE: Final = 0.55
SLOWDOWN_CLOCK_SHARE: Final = 0.5
"""Hardware slowdown halves the clock or worse."""
SLOWDOWN_EXCESS_CELSIUS: Final = 2.0

GPU_IDLE: Final = 0x1
HW_SLOWDOWN: Final = 0x8
HW_THERMAL_SLOWDOWN: Final = 0x40


def cold(profile: Profile, now: float) -> Anchor:
    """The anchor of a GPU whose driver was just loaded."""
    idle_celsius = profile.ambient_celsius + profile.celsius_per_watt * profile.idle_watts
    return Anchor(at=now, power_watts=profile.idle_watts, temperature_celsius=idle_celsius, energy_joules=0.0)


def anchored(profile: Profile, gpu: GpuState, now: float) -> GpuState:
    """`gpu` with its anchor moved just past `now` (law 4): call it before a change of load or cooling."""
    now += EFFECT_DELAY_SECONDS
    elapsed = _elapsed(gpu, now)
    anchor = Anchor(
        at=gpu.anchor.at + elapsed,
        power_watts=_smooth_power(profile, gpu, elapsed),
        temperature_celsius=temperature_celsius(profile, gpu, now),
        energy_joules=energy_joules(profile, gpu, now),
    )
    return replace(gpu, anchor=anchor)


def power_watts(profile: Profile, gpu: GpuState, now: float) -> float:
    """Power draw at `now`."""
    elapsed = _elapsed(gpu, now)
    wobble = _wobble_watts(profile) * math.sin(_phase(gpu, gpu.anchor.at + elapsed))
    return _smooth_power(profile, gpu, elapsed) + wobble


def energy_joules(profile: Profile, gpu: GpuState, now: float) -> float:
    """Energy since the driver was loaded: the integral of `power_watts`."""
    elapsed = _elapsed(gpu, now)
    target = _target_watts(profile, gpu)
    lagging = (gpu.anchor.power_watts - target) * POWER_LAG_SECONDS * -math.expm1(-elapsed / POWER_LAG_SECONDS)
    start, end = _phase(gpu, gpu.anchor.at), _phase(gpu, gpu.anchor.at + elapsed)
    turning = _wobble_watts(profile) * WOBBLE_PERIOD_SECONDS / math.tau * (math.cos(start) - math.cos(end))
    return gpu.anchor.energy_joules + target * elapsed + lagging + turning


def temperature_celsius(profile: Profile, gpu: GpuState, now: float) -> float:
    """Core temperature at `now`: the heat lag's answer to the lagging power."""
    elapsed = _elapsed(gpu, now)
    target_watts = _target_watts(profile, gpu)
    settled = profile.ambient_celsius + profile.celsius_per_watt * target_watts
    if gpu.thermal_slowdown:
        settled = profile.slowdown_celsius + SLOWDOWN_EXCESS_CELSIUS
    driven = profile.celsius_per_watt * (gpu.anchor.power_watts - target_watts)
    driven *= POWER_LAG_SECONDS / (POWER_LAG_SECONDS - HEAT_LAG_SECONDS)
    own = gpu.anchor.temperature_celsius - settled - driven
    return settled + driven * math.exp(-elapsed / POWER_LAG_SECONDS) + own * math.exp(-elapsed / HEAT_LAG_SECONDS)


def memory_temperature_celsius(profile: Profile, gpu: GpuState, now: float) -> float:
    """Memory temperature at `now`: stacked memory runs a few degrees above the core, more so when hot."""
    core = temperature_celsius(profile, gpu, now)
    return core + 4.0 + 0.15 * (core - profile.ambient_celsius)


def utilization_percent(gpu: GpuState, now: float) -> int:
    """GPU utilization as NVML counts it, 0..100, with a small wobble while busy; 0 only when idle."""
    return wobbling_percent(gpu, gpu.utilization_ratio, now)


def wobbling_percent(gpu: GpuState, ratio: float, at: float) -> int:
    """A load of `ratio` at `at`, as NVML counts it."""
    if ratio == 0.0:
        return 0
    wobble = 1.5 * math.sin(_phase(gpu, at) * 3)
    return max(1, min(100, round(100 * ratio + wobble)))


def clock_mhz(clocks: Clocks, gpu: GpuState) -> int:
    """Current clock of one domain: idle or boost by load, cut while the hardware slows down."""
    if gpu.utilization_ratio == 0.0:
        return clocks.idle
    return max(clocks.idle, int(clocks.max * SLOWDOWN_CLOCK_SHARE)) if gpu.thermal_slowdown else clocks.max


def clock_event_bits(gpu: GpuState) -> int:
    """Mask of clock event reasons."""
    bits = HW_SLOWDOWN | HW_THERMAL_SLOWDOWN if gpu.thermal_slowdown else 0
    return bits | (GPU_IDLE if gpu.utilization_ratio == 0.0 else 0)


def _elapsed(gpu: GpuState, now: float) -> float:
    return max(0.0, now - gpu.anchor.at)


def _target_watts(profile: Profile, gpu: GpuState) -> float:
    share = gpu.utilization_ratio * (SLOWDOWN_POWER_SHARE if gpu.thermal_slowdown else 0.95)
    return profile.idle_watts + (profile.limit_watts - profile.idle_watts) * share


def _smooth_power(profile: Profile, gpu: GpuState, elapsed: float) -> float:
    target = _target_watts(profile, gpu)
    return target + (gpu.anchor.power_watts - target) * math.exp(-elapsed / POWER_LAG_SECONDS)


def _wobble_watts(profile: Profile) -> float:
    return WOBBLE_SHARE * profile.limit_watts


def _phase(gpu: GpuState, at: float) -> float:
    return math.tau * (at % WOBBLE_PERIOD_SECONDS) / WOBBLE_PERIOD_SECONDS + gpu.index
