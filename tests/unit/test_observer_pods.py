"""Lists of pods: as often as they are worth it."""

import time
from collections.abc import Iterator

import pytest

from remediator.adapters.api import KubeApi
from remediator.adapters.transport import Endpoint, HttpTransport
from remediator.observer_pods import PodLister
from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster
from tests.fakes.world import World


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


@pytest.mark.parametrize(("seconds", "lists"), [(0.2, 1), (0.0, 3)], ids=["a big namespace", "a small one"])
def test_a_namespace_that_takes_long_to_list_is_not_listed_at_every_turn(
    cluster: EmbeddedCluster, seconds: float, lists: int
) -> None:
    world = World(cluster)
    world.add_node("n1")
    name = world.add_pod("n1", 0, owner="rs")
    owner = world.pods()[name]["metadata"]["ownerReferences"][0]["uid"]
    asked: list[str] = []

    def slow(call: Call) -> Reply | None:
        if call.path == "/api/v1/namespaces/team/pods":
            asked.append(call.path)
            time.sleep(seconds)
        return None

    cluster.intercept(slow)
    lister = PodLister(KubeApi(HttpTransport(Endpoint(url=cluster.url))), failed=lambda _: None)
    try:
        for _ in range(3):
            found = lister.by_owner({"team"}, frozenset({owner}))
            assert [pod.name for pod in found[owner]] == [name]
            time.sleep(0.3)
    finally:
        lister.stop()
    assert len(asked) == lists
