"""No two leaders, whatever the API server does: killed, hanging, slow, resetting, lying."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from remediator.adapters.elector import AlwaysLeader, Elector, LeaseTimes, Reign
from remediator.adapters.resources import LEASES, Ref
from remediator.adapters.transport import Endpoint, HttpTransport
from tests.fakes.misbehaving import Answer, Asked, MisbehavingServer, status

TIMES = LeaseTimes(duration=0.9, renew_deadline=0.6, retry=0.1)
LEASE = Ref(LEASES, "gpuward-remediator", "gpuward")


class LeaseServer:
    """One Lease with resourceVersions, and a mode in which it does not answer."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.mode = "ok"
        self.hanging: set[str] = set()
        """Identities whose calls hang (told by User-Agent)."""
        self.lock = threading.Lock()

    def __call__(self, asked: Asked, answer: Answer) -> None:
        if self.mode == "hang" or asked.headers["user-agent"] in self.hanging:
            answer.silence()
        if self.mode == "reset":
            answer.reset()
        if self.mode == "apply-then-hang" and asked.method == "PATCH":
            with self.lock:
                self.apply(asked)
            answer.silence()
        with self.lock:
            code, body = self.apply(asked)
        answer.json(code, body)

    def apply(self, asked: Asked) -> tuple[int, dict[str, Any]]:
        if asked.method == "GET":
            return (200, self.lease) if self.lease else (404, status(404))
        if asked.method == "POST" and self.lease:
            return 409, status(409, reason="AlreadyExists")
        body = asked.json()
        known = self.lease or {"metadata": {"name": "x"}, "spec": {}}
        wanted = body["metadata"].get("resourceVersion")
        if wanted is not None and wanted != str(self.version):
            return 409, status(409, reason="Conflict")
        self.version += 1
        meta = known["metadata"] | {"resourceVersion": str(self.version)}
        self.lease = {"metadata": meta, "spec": known["spec"] | body["spec"]}
        return (201 if asked.method == "POST" else 200), self.lease

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec


@dataclass
class Candidate:
    elector: Elector
    calls: list[str] = field(default_factory=list)

    @property
    def leads(self) -> bool:
        return self.elector.is_leader()


class Cluster:
    def __init__(self) -> None:
        self.state = LeaseServer()
        self.server = MisbehavingServer(self.state)
        self.candidates: list[Candidate] = []

    def candidate(self, identity: str) -> Candidate:
        calls: list[str] = []
        reign = Reign(started=lambda: calls.append("started"), stopped=lambda: calls.append("stopped"))
        transport = HttpTransport(Endpoint(url=self.server.url), user_agent=identity)
        one = Candidate(Elector(transport, LEASE, identity, reign, TIMES), calls)
        self.candidates.append(one)
        one.elector.start()
        return one

    def leaders(self) -> int:
        """How many may write at one and the same instant: claims are read first, the clock after them."""
        claims = [one.elector.is_leader_until() for one in self.candidates]
        now = time.monotonic()
        return sum(until > now for until in claims)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.server.kill()
    for one in made.candidates:
        one.elector.stop(release=False)


def eventually(check: Callable[[], bool], within: float = 5.0) -> None:
    end = time.monotonic() + within
    while not check():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


def watch_for_two(cluster: Cluster, seconds: float) -> int:
    """The most leaders seen at once during `seconds`."""
    end, most = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        most = max(most, cluster.leaders())
        time.sleep(0.002)
    return most


def test_one_of_three_leads_and_keeps_leading(cluster: Cluster) -> None:
    for name in "abc":
        cluster.candidate(name)
    eventually(lambda: cluster.leaders() == 1)
    assert watch_for_two(cluster, 2 * TIMES.duration) == 1
    assert cluster.state.spec["leaseTransitions"] == 0
    assert sum(len(one.calls) for one in cluster.candidates) == 1


def test_a_killed_server_ends_the_reign_in_time(cluster: Cluster) -> None:
    one = cluster.candidate("a")
    eventually(lambda: one.leads)
    cluster.server.kill()
    begin = time.monotonic()
    eventually(lambda: one.calls == ["started", "stopped"])
    assert time.monotonic() - begin < TIMES.renew_deadline + 1.0
    assert one.elector.is_leader_until() == float("-inf")


@pytest.mark.parametrize("mode", ["hang", "reset", "apply-then-hang"])
def test_calls_that_do_not_come_back_end_the_reign_and_it_can_begin_again(cluster: Cluster, mode: str) -> None:
    one = cluster.candidate("a")
    eventually(lambda: one.leads)
    cluster.state.mode = mode
    begin = time.monotonic()
    eventually(lambda: not one.leads)
    assert time.monotonic() - begin < TIMES.renew_deadline + 1.0
    eventually(lambda: one.calls == ["started", "stopped"])
    cluster.state.mode = "ok"
    eventually(lambda: one.leads)
    assert one.calls == ["started", "stopped", "started"]


def test_a_cut_off_leader_is_replaced_and_there_are_never_two(cluster: Cluster) -> None:
    first = cluster.candidate("a")
    eventually(lambda: first.leads)
    second = cluster.candidate("b")
    time.sleep(0.2)
    cluster.state.hanging = {"a"}
    assert watch_for_two(cluster, 2.5) == 1
    assert second.leads
    assert not first.leads
    assert cluster.state.spec["leaseTransitions"] == 1
    cluster.state.hanging = set()
    assert watch_for_two(cluster, 1.0) == 1
    assert second.leads


def test_stopping_releases_and_the_next_need_not_wait(cluster: Cluster) -> None:
    first = cluster.candidate("a")
    eventually(lambda: first.leads)
    second = cluster.candidate("b")
    begin = time.monotonic()
    first.elector.stop()
    assert cluster.state.spec["holderIdentity"] in ("", "b")
    eventually(lambda: second.leads)
    assert time.monotonic() - begin < TIMES.duration
    assert first.calls == ["started", "stopped"]


def test_a_lease_that_cannot_be_released_is_left_without_an_alarm(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one = cluster.candidate("a")
    eventually(lambda: one.leads)
    cluster.state.mode = "reset"
    one.elector.stop()
    told = [record for record in caplog.records if record.getMessage().startswith("lease not released")]
    assert len(told) == 1
    assert not any(record.exc_info for record in caplog.records), "a server that is down is no bug of ours"


def test_a_wall_clock_that_is_wrong_changes_nothing(cluster: Cluster) -> None:
    first = cluster.candidate("a")
    eventually(lambda: first.leads)
    cluster.state.spec["renewTime"] = "1999-01-01T00:00:00.000000Z"
    cluster.candidate("b")
    assert watch_for_two(cluster, 1.5) == 1
    assert first.leads


def test_a_lease_taken_by_force_ends_the_reign_at_the_next_look(cluster: Cluster) -> None:
    one = cluster.candidate("a")
    eventually(lambda: one.leads)
    with cluster.state.lock:
        cluster.state.version += 1
        assert cluster.state.lease is not None
        cluster.state.lease["metadata"]["resourceVersion"] = str(cluster.state.version)
        cluster.state.spec["holderIdentity"] = "somebody"
    eventually(lambda: not one.leads, within=TIMES.renew_deadline)


@pytest.mark.parametrize(
    ("duration", "deadline", "retry"), [(10, 10, 2), (15, 2, 2), (15, 10, 0)], ids=["no gap", "one try", "no wait"]
)
def test_times_that_allow_two_leaders_are_refused(duration: float, deadline: float, retry: float) -> None:
    with pytest.raises(ValueError, match="renew_deadline"):
        LeaseTimes(duration=duration, renew_deadline=deadline, retry=retry)


def test_without_election_one_leads_until_stopped() -> None:
    calls: list[str] = []
    leader = AlwaysLeader(Reign(started=lambda: calls.append("on"), stopped=lambda: calls.append("off")))
    leader.start()
    assert leader.is_leader()
    leader.stop()
    assert not leader.is_leader()
    assert calls == ["on", "off"]
