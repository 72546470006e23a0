"""Whether the NVML worker still gets on, judged from its progress marks alone.

Laws:
1. A driver call that does not return is a hung GPU; a worker that does not run is a silent worker. Blaming a GPU for
   the second would take a good GPU out of service, so a stopped worker is never a hung GPU.
2. A watcher that was itself asleep has no right to an opinion: silence counts from the moment it was attentive again.
3. Pure: no clock, no process, no file.
"""

from dataclasses import dataclass
from enum import StrEnum

from exporter.messages import Mark

# Starting an interpreter and loading a driver library on a node that is busy at boot.
START_ALLOWANCE_SECONDS = 30.0
# Taking a GPU without persistence mode initialises the board, which takes seconds (default: half a minute).
ATTACH_FACTOR = 6.0
# A worker that is ready to run and gets no processor looks as silent as one whose driver call spins: it gets more time.
STARVED_FACTOR = 3.0

OPENING = frozenset({"open", "attach"})
STOPPED_STATES = frozenset("Tt")
"""Stopped by a signal, or held by a tracer (proc(5))."""
RUNNABLE_STATE = "R"


class State(StrEnum):
    """What the marks mean."""

    OK = "ok"
    HUNG_GPU = "hung-gpu"
    SILENT = "silent"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A state with its reason."""

    state: State
    gpu_index: int | None = None
    sentence: str = ""


FINE = Verdict(state=State.OK)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What the watcher knows besides the last mark; all times on the machine-wide monotonic clock, seconds."""

    started: float
    """When the worker was started."""
    attentive_since: float
    """Since when the watcher has looked without a pause (see `attention`)."""
    process_state: str
    """One letter as in /proc/PID/stat."""
    probe_timeout_seconds: float


def judge(mark: Mark | None, watch: Watch, now: float) -> Verdict:
    """Whether the worker gets on, hangs in a GPU, or is silent."""
    since = max(watch.started if mark is None else mark.monotonic + mark.planned_seconds, watch.attentive_since)
    silence = now - since
    if silence <= _allowance(mark, watch):
        return FINE
    if mark is None:
        return Verdict(state=State.SILENT, sentence=f"the worker has said nothing for {silence:.1f} s")
    if mark.gpu_index is None or watch.process_state in STOPPED_STATES:
        stopped = " (it is stopped)" if watch.process_state in STOPPED_STATES else ""
        return Verdict(
            state=State.SILENT, sentence=f"the worker is silent for {silence:.1f} s at {mark.subject}{stopped}"
        )
    sentence = f"GPU {mark.gpu_index} has not answered a call about {mark.subject} for {silence:.1f} s"
    return Verdict(state=State.HUNG_GPU, gpu_index=mark.gpu_index, sentence=sentence)


def attention(attentive_since: float, previous_look: float, now: float, longest_pause_seconds: float) -> float:
    """Since when the watcher has been attentive: now, when it has just slept through more than a pause."""
    return now if now - previous_look > longest_pause_seconds else attentive_since


def _allowance(mark: Mark | None, watch: Watch) -> float:
    timeout = watch.probe_timeout_seconds
    if mark is None:
        return max(START_ALLOWANCE_SECONDS, timeout)
    if mark.subject in OPENING:
        timeout *= ATTACH_FACTOR
    return timeout * STARVED_FACTOR if watch.process_state == RUNNABLE_STATE else timeout
