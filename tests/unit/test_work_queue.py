"""The queue's promises, against a model and with real threads."""

import threading
import time
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remediator.adapters.backoff import BackoffLimits
from remediator.adapters.work_queue import WorkQueue

KEYS = st.sampled_from("abc")


class QueueModel(RuleBasedStateMachine):
    """The queue against sets and a list of due times; the clock is ours."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = WorkQueue(BackoffLimits(first=1, longest=8), clock=lambda: self.now)
        self.wanted: set[str] = set()
        self.working: set[str] = set()
        self.delayed: dict[str, float] = {}
        self.failures: Counter[str] = Counter()

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.wanted.add(key)

    @rule(key=KEYS, seconds=st.integers(1, 5))
    def add_after(self, key: str, seconds: int) -> None:
        self.queue.add_after(key, seconds)
        self.delayed[key] = min(self.delayed.get(key, float("inf")), self.now + seconds)

    @rule(key=KEYS)
    def add_backoff(self, key: str) -> None:
        expected = min(8, 2 ** self.failures[key])
        assert self.queue.add_backoff(key) == expected
        self.failures[key] += 1
        self.delayed[key] = min(self.delayed.get(key, float("inf")), self.now + expected)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures[key] = 0

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def get(self) -> None:
        for key, due in list(self.delayed.items()):
            if due <= self.now:
                del self.delayed[key]
                self.wanted.add(key)
        free = self.wanted - self.working
        taken = self.queue.get(timeout=0)
        if not free:
            assert taken is None
            return
        assert taken in free
        self.wanted.discard(taken)
        self.working.add(taken)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.queue.done(key)
        self.working.discard(key)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.queue) <= len(self.wanted | set(self.delayed))


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_key_is_never_handled_twice_at_once() -> None:
    queue = WorkQueue()
    busy: Counter[str] = Counter()
    worst: Counter[str] = Counter()
    handled: Counter[str] = Counter()
    lock = threading.Lock()

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                busy[key] += 1
                worst[key] = max(worst[key], busy[key])
            time.sleep(0.0005)
            with lock:
                busy[key] -= 1
                handled[key] += 1
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for round_number in range(100):
        queue.add(f"k{round_number % 5}")
        time.sleep(0.0002)
    queue.close()
    for worker in workers:
        worker.join(5)
        assert not worker.is_alive()
    assert set(worst.values()) == {1}
    assert set(handled) == {f"k{n}" for n in range(5)}


def test_a_waiting_worker_wakes_for_a_delayed_key_and_for_the_end() -> None:
    queue = WorkQueue()
    queue.add_after("late", 0.05)
    begin = time.monotonic()
    assert queue.get(timeout=5) == "late"
    assert 0.04 < time.monotonic() - begin < 1
    threading.Timer(0.05, queue.close).start()
    assert queue.get(timeout=5) is None
