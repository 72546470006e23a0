"""The watchdog's judgement: what silence means, and what it must never mean."""

import pytest

from exporter.messages import Mark
from exporter.watchdog import State, Watch, attention, judge

TIMEOUT = 5.0


def a_watch(state: str = "S", started: float = 0.0, attentive_since: float = 0.0) -> Watch:
    return Watch(started=started, attentive_since=attentive_since, process_state=state, probe_timeout_seconds=TIMEOUT)


def a_mark(subject: str = "ecc", gpu_index: int | None = 3, planned_seconds: float = 0.0) -> Mark:
    return Mark(subject=subject, monotonic=100.0, gpu_index=gpu_index, planned_seconds=planned_seconds)


@pytest.mark.parametrize(
    ("mark", "watch", "now", "state", "gpu_index"),
    [
        pytest.param(a_mark(), a_watch(), 104.9, State.OK, None, id="a call may take its time"),
        pytest.param(a_mark(), a_watch(), 105.1, State.HUNG_GPU, 3, id="a call that outlasts the deadline hangs"),
        pytest.param(a_mark(), a_watch("D"), 105.1, State.HUNG_GPU, 3, id="uninterruptible sleep is a hang"),
        pytest.param(a_mark(), a_watch("T"), 105.1, State.SILENT, None, id="a stopped worker is no hung GPU"),
        pytest.param(a_mark(), a_watch("t"), 105.1, State.SILENT, None, id="a traced worker is no hung GPU"),
        pytest.param(a_mark(), a_watch("R"), 114.9, State.OK, None, id="a worker without a processor gets more time"),
        pytest.param(a_mark(), a_watch("R"), 115.1, State.HUNG_GPU, 3, id="a call that spins is a hang in the end"),
        pytest.param(a_mark(), a_watch(attentive_since=104.0), 108.9, State.OK, None, id="we slept: no opinion yet"),
        pytest.param(a_mark(), a_watch(attentive_since=104.0), 109.1, State.HUNG_GPU, 3, id="we slept: then a hang"),
        pytest.param(a_mark("idle", None, 10.0), a_watch(), 114.9, State.OK, None, id="planned sleep is no silence"),
        pytest.param(a_mark("idle", None, 10.0), a_watch(), 115.1, State.SILENT, None, id="sleep beyond the plan"),
        pytest.param(a_mark("count", None), a_watch(), 105.1, State.SILENT, None, id="no GPU named, none blamed"),
        pytest.param(a_mark("attach"), a_watch(), 129.0, State.OK, None, id="taking a GPU may take long"),
        pytest.param(a_mark("attach"), a_watch(), 131.0, State.HUNG_GPU, 3, id="taking a GPU for ever is a hang"),
        pytest.param(a_mark("open", None), a_watch(), 131.0, State.SILENT, None, id="initialisation for ever"),
        pytest.param(None, a_watch(started=100.0), 129.0, State.OK, None, id="an interpreter takes time to start"),
        pytest.param(None, a_watch(started=100.0), 131.0, State.SILENT, None, id="never said a word"),
    ],
)
def test_what_silence_means(mark: Mark | None, watch: Watch, now: float, state: State, gpu_index: int | None) -> None:
    verdict = judge(mark, watch, now)
    assert (verdict.state, verdict.gpu_index) == (state, gpu_index)
    assert bool(verdict.sentence) == (state is not State.OK), "a verdict that acts says why"


def test_the_sentence_names_gpu_subject_and_time() -> None:
    assert judge(a_mark(), a_watch(), 107.0).sentence == "GPU 3 has not answered a call about ecc for 7.0 s"


@pytest.mark.parametrize(
    ("previous", "now", "since"),
    [
        pytest.param(50.0, 51.0, 10.0, id="regular looks keep the attention"),
        pytest.param(50.0, 56.0, 56.0, id="a pause starts it anew"),
    ],
)
def test_attention_is_lost_in_a_pause(previous: float, now: float, since: float) -> None:
    assert attention(10.0, previous, now, longest_pause_seconds=5.0) == since
