"""Watches may lag: what we wrote, and what the leader before us wrote, counts all the same."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from exporter.health import keys
from remediator.adapters import wire
from remediator.adapters.transport import Endpoint, HttpTransport
from remediator.domain.budgets import tainted
from remediator.domain.incident_object import to_object, to_status
from remediator.domain.model import Phase
from remediator.metrics import Metrics
from remediator.observer import Listeners, Observer, ObserverSettings
from remediator.observer_cache import Newest
from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster
from tests.fakes.world import World, eventually
from tests.worlds import an_incident


def an_object(version: str = "5") -> wire.StatusCarrier:
    return wire.StatusCarrier(metadata=wire.Metadata(name="i1", uid="u", resource_version=version))


@pytest.mark.parametrize(
    ("after", "silence", "there"),
    [
        pytest.param(9.0, 0.0, True, id="the watch is given time"),
        pytest.param(11.0, 0.0, False, id="the watch talks and does not show it: deleted"),
        pytest.param(70.0, 70.0, True, id="the watch is dead: nothing is known"),
        pytest.param(70.0, 69.5, True, id="what it told last may be older than the write"),
    ],
)
def test_a_write_of_ours_is_not_taken_for_deleted_by_a_silent_watch(after: float, silence: float, there: bool) -> None:
    clock = [100.0]
    newest: Newest[wire.StatusCarrier] = Newest(lambda: clock[0])
    newest.note(an_object())
    clock[0] += after
    assert ("i1" in newest.merged({}, silence)) is there


def test_an_older_read_does_not_hide_a_newer_write() -> None:
    newest: Newest[wire.StatusCarrier] = Newest()
    newest.note(an_object("6"))
    newest.note(an_object("5"))
    assert newest.merged({"i1": an_object("4")})["i1"].metadata.resource_version == "6"
    assert newest.merged({"i1": an_object("7")})["i1"].metadata.resource_version == "7"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


@pytest.fixture
def observer(cluster: EmbeddedCluster) -> Iterator[Observer]:
    listeners = Listeners(hooks=Metrics("test"), changed=lambda _: None, failed=lambda _: None)
    made = Observer(
        HttpTransport(Endpoint(url=cluster.url)), ObserverSettings(), listeners, now=lambda: datetime.now(UTC)
    )
    made.start()
    yield made
    made.stop()


def test_a_new_leader_sees_what_the_old_one_wrote_last(cluster: EmbeddedCluster, observer: Observer) -> None:
    """Else it takes out one node too many, or believes that somebody took the taint off."""
    world = World(cluster)
    world.add_node("n1")
    eventually(lambda: observer.synced() and "n1" in observer.facts().nodes)
    assert observer.view(leader=True, outcomes={}).leader
    for lagging in (observer.nodes, observer.incidents):
        lagging.stop()
    taint = {"key": keys.UNHEALTHY_TAINT, "value": "xid-79", "effect": keys.NO_SCHEDULE}
    cluster.request("PATCH", "/api/v1/nodes/n1", {"spec": {"taints": [taint]}})
    incident = an_incident(Phase.DRAINING, "n1", 0, node_uid=world.node("n1")["metadata"]["uid"])
    body: dict[str, Any] = to_object(incident)
    cluster.apply([{**body, "status": to_status(incident)}])

    before = observer.view(leader=True, outcomes={})
    assert (before.incidents, tainted(before.nodes["n1"])) == ((), False), "the watches are meant to lag"
    observer.distrust()
    view = observer.view(leader=True, outcomes={})
    assert [found.name for found in view.incidents] == [incident.name]
    assert tainted(view.nodes["n1"])
    assert view.leader


def test_a_deleted_incident_is_gone_at_once(cluster: EmbeddedCluster, observer: Observer) -> None:
    incident = an_incident(Phase.SUSPECTED, "n1", 0)
    eventually(observer.synced)
    [stored] = cluster.apply([to_object(incident)])
    eventually(lambda: observer.facts().incidents)
    observer.written(wire.decode(wire.encode(stored), wire.StatusCarrier))
    cluster.request("DELETE", f"/apis/{keys.API_VERSION}/{keys.GPU_INCIDENTS}/{incident.name}")
    eventually(lambda: not observer.facts().incidents, 2, "a ghost")


def test_nothing_is_decided_until_the_catching_up_has_worked(cluster: EmbeddedCluster, observer: Observer) -> None:
    broken = threading.Event()

    def refuse(call: Call) -> Reply | None:
        lists = call.method == "GET" and call.path.endswith("/gpuincidents") and "watch" not in call.query
        return Reply(code=500, body={"kind": "Status", "code": 500}) if lists and broken.is_set() else None

    eventually(observer.synced)
    cluster.intercept(refuse)
    broken.set()
    observer.distrust()
    assert not observer.view(leader=True, outcomes={}).leader
    broken.clear()
    assert observer.view(leader=True, outcomes={}).leader
