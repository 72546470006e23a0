"""The nine faults that every client library fails at least one of, on a real socket, and what our reflector does.

Every fault is followed by a good stream; the reflector must reach it, with the right objects, and without a storm.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from remediator.adapters.backoff import BackoffLimits
from remediator.adapters.reflector import Followed, Reflector, ReflectorOptions
from remediator.adapters.resources import NODES
from remediator.adapters.transport import Endpoint, HttpTransport
from remediator.adapters.wire import NodeObject
from tests.fakes.misbehaving import Answer, Asked, MisbehavingServer, bookmark, node, node_list, status

READ_TIMEOUT = 0.4
QUICK = ReflectorOptions(
    read_timeout=READ_TIMEOUT,
    initial_timeout=1.0,
    old_enough=0.3,
    backoff=BackoffLimits(first=0.02, longest=0.5),
)


@dataclass
class Counts:
    """Hooks that remember."""

    events: int = 0
    relists: int = 0
    bad: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def event(self, kind: str) -> None:
        self.events += 1

    def relist(self, kind: str) -> None:
        self.relists += 1

    def reconnect(self, kind: str, reason: str) -> None:
        self.reasons[reason] += 1

    def undecodable(self, kind: str) -> None:
        self.bad += 1


Step = Callable[[Asked, Answer], None]


class Scripted:
    """One step per watch request, the last one for ever; lists answer n1 and n2 at version 10."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.watches: list[Asked] = []

    def __call__(self, asked: Asked, answer: Answer) -> None:
        if "watch" not in asked.params:
            answer.json(200, node_list(10, node("n1", 1), node("n2", 2)))
            return
        self.watches.append(asked)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        step(asked, answer)


def initial(asked: Asked, answer: Answer) -> None:
    """The streamed list of n1 and n2 up to its end mark; a watch from a version gets no list."""
    answer.start()
    if asked.params.get("sendInitialEvents") == "true":
        answer.event("ADDED", node("n1", 1))
        answer.event("ADDED", node("n2", 2))
        answer.event("BOOKMARK", bookmark(10, end=True))


def good(asked: Asked, answer: Answer) -> None:
    """A healthy watch: n3 appears, then quiet until the test ends."""
    initial(asked, answer)
    answer.event("ADDED", node("n3", 20))
    answer.silence()


class Rig:
    def __init__(self, server: MisbehavingServer, options: ReflectorOptions) -> None:
        self.counts = Counts()
        transport = HttpTransport(Endpoint(url=server.url))
        self.reflector: Reflector[NodeObject] = Reflector(transport, Followed(NODES), self.counts, options)
        self.told: list[tuple[str, str]] = []
        self.reflector.tell(lambda change: self.told.append((change.kind.value, change.key)))
        self.reflector.start()

    def names(self) -> set[str]:
        return set(self.reflector.store.items())


Play = Callable[..., tuple[Rig, Scripted]]


@pytest.fixture
def play() -> Iterator[Play]:
    cleanup: list[Callable[[], None]] = []

    def start(*steps: Step, options: ReflectorOptions = QUICK) -> tuple[Rig, Scripted]:
        script = Scripted(*steps)
        server = MisbehavingServer(script)
        rig = Rig(server, options)
        cleanup.extend([server.kill, rig.reflector.stop])
        return rig, script

    yield start
    for end in reversed(cleanup):
        end()


def eventually(check: Callable[[], bool], within: float = 5.0) -> None:
    end = time.monotonic() + within
    while not check():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


def reaches_the_good_stream(rig: Rig) -> None:
    eventually(lambda: rig.names() == {"n1", "n2", "n3"})


def test_fault_1_silent_stream_is_reopened_from_the_last_version(play: Play) -> None:
    def silent(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.silence()

    rig, script = play(silent, good)
    reaches_the_good_stream(rig)
    assert script.watches[1].params["resourceVersion"] == "10"
    assert rig.counts.reasons["timeout"] == 1
    assert rig.counts.relists == 1


def test_fault_2_error_410_in_the_stream_lists_again_and_tells_what_was_missed(play: Play) -> None:
    def expired(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.event("ADDED", node("gone-meanwhile", 12))
        answer.event("ERROR", status(410, "too old resource version: 1 (249)", "Expired"))
        answer.end()

    rig, script = play(expired, good)
    reaches_the_good_stream(rig)
    assert "resourceVersion" not in script.watches[1].params
    assert rig.told == [
        ("ADDED", "n1"),
        ("ADDED", "n2"),
        ("ADDED", "gone-meanwhile"),
        ("DELETED", "gone-meanwhile"),
        ("ADDED", "n3"),
    ]


def test_fault_3_error_500_in_the_stream_backs_off_and_keeps_the_version(play: Play) -> None:
    def broken(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.event("ERROR", status(500, "etcd is unhappy", "InternalError"))
        answer.end()

    rig, script = play(broken, broken, broken, good)
    reaches_the_good_stream(rig)
    assert [w.params.get("resourceVersion") for w in script.watches[:4]] == [None, "10", "10", "10"]
    assert rig.counts.reasons["http-500"] == 3


def test_fault_4_http_500_at_watch_start_does_not_become_a_storm(play: Play) -> None:
    def refused(asked: Asked, answer: Answer) -> None:
        answer.json(500, status(500, "no", "InternalError"))

    rig, script = play(refused)
    time.sleep(1.5)
    # 20 + 40 + 80 + ... ms: at most a dozen attempts, where client libraries here made a thousand.
    assert 3 <= len(script.watches) <= 12
    script.steps = [good]
    reaches_the_good_stream(rig)


@pytest.mark.parametrize("json_body", [True, False], ids=["json", "plain text"])
def test_fault_5_http_429_at_watch_start_honours_retry_after(play: Play, json_body: bool) -> None:
    def overloaded(asked: Asked, answer: Answer) -> None:
        if json_body:
            answer.json(429, status(429, "storage is (re)initializing", "TooManyRequests"), {"Retry-After": "1"})
        else:
            answer.raw(429, b"Too many requests, please try again later.\n", {"Retry-After": "1"})

    begin = time.monotonic()
    rig, script = play(overloaded, good)
    reaches_the_good_stream(rig)
    assert time.monotonic() - begin >= 1.0
    assert len(script.watches) == 2
    assert "sendInitialEvents" in script.watches[1].params, "a 429 says nothing about streamed lists"


def test_fault_6_connection_reset_reconnects_from_the_last_version(play: Play) -> None:
    def reset(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.event("MODIFIED", node("n1", 15))
        time.sleep(0.05)
        answer.reset()

    rig, script = play(reset, good)
    reaches_the_good_stream(rig)
    assert script.watches[1].params["resourceVersion"] == "15"


def test_fault_7_server_down_is_survived_and_found_again_on_the_same_port() -> None:
    first = MisbehavingServer(Scripted(good))
    rig = Rig(first, QUICK)
    try:
        reaches_the_good_stream(rig)
        first.kill()
        eventually(lambda: rig.counts.reasons["connect"] >= 2)
        attempts = sum(rig.counts.reasons.values())
        assert attempts < 12

        def later(asked: Asked, answer: Answer) -> None:
            initial(asked, answer)
            answer.event("ADDED", node("n4", 30))
            answer.silence()

        script = Scripted(later)
        with MisbehavingServer(script, first.port):
            eventually(lambda: "n4" in rig.names())
            assert script.watches[0].params["resourceVersion"] == "20"
            rig.reflector.stop()
    finally:
        rig.reflector.stop()
        first.kill()


def test_fault_8_orderly_end_resumes_and_instant_ends_back_off(play: Play) -> None:
    def ends(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.end()

    rig, script = play(ends)
    time.sleep(1.2)
    assert 3 <= len(script.watches) <= 12
    assert rig.counts.relists == 1
    script.steps = [good]
    reaches_the_good_stream(rig)


@pytest.mark.parametrize(
    "bytes_sent",
    [b'{"type":"ADDED","object":\n', b"<html>proxy says no</html>\n", b'{"type":"ADDED","obj'],
    ids=["broken json", "html", "cut in the middle"],
)
def test_fault_9_garbled_bytes_are_never_believed(play: Play, bytes_sent: bytes) -> None:
    def garbled(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.send(bytes_sent)
        answer.end()

    rig, script = play(garbled, good)
    reaches_the_good_stream(rig)
    assert script.watches[1].params["resourceVersion"] == "10"


def test_slow_bytes_are_put_together(play: Play) -> None:
    def slow(asked: Asked, answer: Answer) -> None:
        answer.start()
        line = b'{"type":"ADDED","object":{"metadata":{"name":"n1","resourceVersion":"1"}}}\n'
        for index in range(len(line)):
            answer.send(line[index : index + 1])
        answer.event("BOOKMARK", bookmark(10, end=True))
        answer.silence()

    rig, _ = play(slow)
    eventually(lambda: rig.names() == {"n1"})


def test_stopping_wakes_a_reader_at_once(play: Play) -> None:
    def silent(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.silence()

    rig, _ = play(silent, options=ReflectorOptions(read_timeout=60))
    eventually(rig.reflector.synced.is_set)
    begin = time.monotonic()
    rig.reflector.stop()
    assert time.monotonic() - begin < 0.5


@pytest.mark.parametrize("code", [400, 422])
def test_a_server_that_refuses_streamed_lists_is_asked_for_pages_from_then_on(play: Play, code: int) -> None:
    def pages_only(asked: Asked, answer: Answer) -> None:
        if "sendInitialEvents" in asked.params:
            answer.json(code, status(code, "sendInitialEvents is forbidden", "Invalid"))
            return
        assert asked.params["resourceVersion"] == "10"
        good(asked, answer)

    rig, script = play(pages_only)
    reaches_the_good_stream(rig)
    assert sum("sendInitialEvents" in w.params for w in script.watches) == 1


def test_a_server_that_does_not_know_its_roles_yet_is_asked_again(play: Play) -> None:
    def forbidden(asked: Asked, answer: Answer) -> None:
        answer.json(403, status(403, "nodes is forbidden", "Forbidden"))

    rig, script = play(forbidden, forbidden, good)
    reaches_the_good_stream(rig)
    assert "sendInitialEvents" in script.watches[2].params


def test_a_server_that_ignores_streamed_lists_is_noticed_by_time(play: Play) -> None:
    def ignores(asked: Asked, answer: Answer) -> None:
        if "sendInitialEvents" not in asked.params:
            good(asked, answer)
        answer.start()
        for version in range(100, 200):
            answer.event("MODIFIED", node("n1", version))
            time.sleep(0.05)

    rig, _ = play(ignores)
    reaches_the_good_stream(rig)


def test_an_object_that_cannot_be_read_is_kept_as_it_was_known(play: Play) -> None:
    def strange(asked: Asked, answer: Answer) -> None:
        initial(asked, answer)
        answer.event("MODIFIED", node("n1", 11) | {"spec": {"taints": "many"}})
        answer.event("ADDED", node("n3", 20))
        answer.silence()

    rig, script = play(strange)
    reaches_the_good_stream(rig)
    known = rig.reflector.store.get("n1")
    assert known is not None
    assert known.metadata.resource_version == "1"
    assert rig.counts.bad == 1
    assert len(script.watches) == 1
