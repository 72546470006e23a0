"""A watch misses nothing between its acceptance and its first line, and no bookmark overtakes a change."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from remediator.simulation.calls import Call
from remediator.simulation.cluster import EmbeddedCluster
from remediator.simulation.watching import Watch

NODES = "/api/v1/nodes"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


def opened(cluster: EmbeddedCluster, **query: str) -> Watch:
    asked = {"watch": "true", "allowWatchBookmarks": "true", **query}
    watch = cluster.api.answer(Call(method="GET", path=NODES, query=asked, headers={}))
    assert isinstance(watch, Watch)
    return watch


def make(cluster: EmbeddedCluster, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    assert cluster.request("POST", NODES, body).code == 201


def told(lines: list[bytes]) -> list[tuple[str, str]]:
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


@pytest.mark.parametrize(
    "query",
    [{"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}, {"resourceVersion": "0"}],
    ids=["streamed list", "any version"],
)
def test_a_change_before_the_first_line_is_in_the_first_lines(cluster: EmbeddedCluster, query: dict[str, str]) -> None:
    make(cluster, "a")
    watch = opened(cluster, **query)
    make(cluster, "b")
    assert told(watch.lines()) == [("ADDED", "a"), ("BOOKMARK", ""), ("ADDED", "b")]
    assert watch.lines() == []


def test_a_bookmark_comes_after_all_that_it_vouches_for(cluster: EmbeddedCluster) -> None:
    watch = opened(cluster, resourceVersion=str(cluster.store.revision))
    assert watch.lines() == []
    make(cluster, "a")
    lines = watch.bookmark()
    assert told(lines) == [("ADDED", "a"), ("BOOKMARK", "")]
    assert json.loads(lines[-1])["object"]["metadata"]["resourceVersion"] == str(cluster.store.revision)
    assert watch.lines() == []
