"""Watches: where they start, what they show of a selection, and how they end."""

import time

import pytest

from tests.contract.api.asking import Object, Server, told
from tests.contract.api.world import CONFIG_MAPS, GPU_NODES, INCIDENTS, NODES, World, a_gpu_node

PHASE = "fieldSelector=status.phase%3DDraining"


def list_version(server: Server, path: str) -> str:
    found = server.get(path)["metadata"]["resourceVersion"]
    assert isinstance(found, str)
    return found


def test_changes_after_a_version_in_order(world: World, server: Server) -> None:
    since = list_version(server, GPU_NODES)
    path = f"{GPU_NODES}/{world.name}"
    world.gpu_node({"health": "Healthy"})
    last = server.merge(path, {"metadata": {"labels": {"a": "b"}}})
    server.must("DELETE", path)
    query = f"{GPU_NODES}?watch=1&resourceVersion={since}&fieldSelector=metadata.name%3D{world.name}"
    with server.watch(query) as watching:
        events = [watching.must_next() for _ in range(4)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert events[2]["object"] == last
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions)), "the deletion has a version of its own"
    assert events[3]["object"]["metadata"]["labels"] == {"a": "b"}


def test_a_live_watch_sees_a_write_at_once(world: World, server: Server) -> None:
    query = f"{GPU_NODES}?watch=1&resourceVersion={list_version(server, GPU_NODES)}"
    with server.watch(f"{query}&fieldSelector=metadata.name%3D{world.name}") as watching:
        assert watching.silent_for(0.2)
        world.gpu_node()
        assert told(watching.must_next()) == ("ADDED", world.name)


def test_entering_and_leaving_a_selection(world: World, server: Server) -> None:
    world.incident()
    since = list_version(server, INCIDENTS)
    path = f"{INCIDENTS}/{world.name}/status"
    with server.watch(f"{INCIDENTS}?watch=1&resourceVersion={since}&{PHASE}") as watching:
        server.merge(path, {"status": {"phase": "Quarantined"}})
        server.merge(path, {"status": {"phase": "Draining"}})
        entered = watching.must_next()
        left_by = server.merge(path, {"status": {"phase": "Repairing"}})
        left = watching.must_next()
    assert told(entered) == ("ADDED", world.name)
    assert told(left) == ("DELETED", world.name)
    assert left["object"]["status"]["phase"] == "Draining", "the last matching state"
    assert left["object"]["metadata"]["resourceVersion"] == left_by["metadata"]["resourceVersion"]


def test_a_namespace_is_a_selection(world: World, server: Server) -> None:
    since = list_version(server, "/api/v1/configmaps")
    elsewhere = CONFIG_MAPS.replace("default", "kube-system")
    with server.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion={since}") as watching:
        world.make(elsewhere, {"metadata": {"name": world.name}})
        world.make(CONFIG_MAPS, {"metadata": {"name": f"{world.name}-b"}})
        assert told(watching.must_next()) == ("ADDED", f"{world.name}-b")


@pytest.mark.parametrize("version", ["", "0"], ids=["unset", "zero"])
def test_without_a_version_the_present_state_comes_first(version: str, world: World, server: Server) -> None:
    world.gpu_node()
    query = f"{GPU_NODES}?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3D{world.name}"
    with server.watch(query) as watching:
        assert told(watching.must_next()) == ("ADDED", world.name)
        server.must("DELETE", f"{GPU_NODES}/{world.name}")
        assert told(watching.must_next()) == ("DELETED", world.name)


def test_watch_list(world: World, server: Server) -> None:
    names = [f"{world.name}-{place}" for place in "cab"]
    for name in names:
        body = a_gpu_node(name)
        body["metadata"]["labels"] = {"test": world.name}
        world.make(GPU_NODES, body)
    query = (
        f"{GPU_NODES}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        f"&labelSelector=test%3D{world.name}"
    )
    with server.watch(query) as watching:
        events = [watching.must_next() for _ in range(4)]
        assert [told(event) for event in events[:3]] == [("ADDED", name) for name in sorted(names)]
        mark: Object = events[3]
        assert mark["type"] == "BOOKMARK"
        assert (mark["object"]["kind"], mark["object"]["apiVersion"]) == ("GPUNode", "gpuward.io/v1alpha1")
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(mark["object"]["metadata"]["resourceVersion"]) > 0
        server.merge(f"{GPU_NODES}/{names[0]}", {"metadata": {"labels": {"a": "b"}}})
        assert told(watching.must_next()) == ("MODIFIED", names[0])


def test_the_end_of_the_time_is_a_clean_end(server: Server) -> None:
    since = list_version(server, GPU_NODES)
    started = time.monotonic()
    with server.watch(f"{GPU_NODES}?watch=1&resourceVersion={since}&timeoutSeconds=1") as watching:
        assert watching.until_end() == []
    assert 0.9 < time.monotonic() - started < 5.0


def test_a_version_of_the_future_is_silence(world: World, server: Server) -> None:
    with server.watch(f"{GPU_NODES}?watch=1&resourceVersion=99999999&timeoutSeconds=1") as watching:
        world.gpu_node()
        assert watching.until_end() == []


def test_a_version_too_old_is_one_error_line(server: Server) -> None:
    with server.watch(f"{GPU_NODES}?watch=1&resourceVersion=1") as watching:
        events = watching.until_end()
    assert [event["type"] for event in events] == ["ERROR"]
    status = events[0]["object"]
    assert (status["kind"], status["reason"], status["code"]) == ("Status", "Expired", 410)
    assert status["message"].startswith("too old resource version: 1 (")


def test_one_counter_for_all_resources(world: World, server: Server) -> None:
    before = int(list_version(server, NODES))
    world.make(CONFIG_MAPS, {"metadata": {"name": world.name}})
    assert int(list_version(server, NODES)) > before


def test_a_watch_as_kubectl_asks_for_it(world: World, server: Server) -> None:
    since = list_version(server, GPU_NODES)
    world.gpu_node()
    query = f"{GPU_NODES}?watch=1&resourceVersion={since}&fieldSelector=metadata.name%3D{world.name}"
    with server.watch(query, accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json") as watching:
        event = watching.must_next()
    assert (event["type"], event["object"]["kind"]) == ("ADDED", "Table")
    assert event["object"]["rows"][0]["cells"][0] == world.name
