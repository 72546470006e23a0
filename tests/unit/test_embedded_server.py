"""The embedded API server by itself: what it refuses, what tests may provoke, and what it leaves behind."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3

from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import ClusterError, EmbeddedCluster
from remediator.simulation.http import Behaviour
from tests.contract.api.asking import Ask, Server, told
from tests.contract.api.world import CONFIG_MAPS, NODES, PODS, a_pod

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(behaviour=Behaviour(history=5, bookmark_seconds=0.1)) as found:
        yield found


@pytest.fixture
def server(cluster: EmbeddedCluster) -> Iterator[Server]:
    found = Server("embedded", cluster.url, None, "")
    yield found
    found.close()


def config_map(server: Server, name: str) -> None:
    server.must("POST", CONFIG_MAPS, {"metadata": {"name": name}})


def test_it_starts_at_once_and_leaves_nothing_behind() -> None:
    before = set(threading.enumerate())
    started = time.monotonic()
    cluster = EmbeddedCluster()
    cluster.start()
    assert time.monotonic() - started < 1.0
    server = Server("embedded", cluster.url, None, "")
    watching = server.watch(f"{NODES}?watch=1")
    cluster.stop()
    assert watching.until_end() == [], "an open watch ends cleanly"
    watching.__exit__()
    with pytest.raises(urllib3.exceptions.NewConnectionError):
        server.get(NODES)
    assert set(threading.enumerate()) == before
    cluster.stop()


def a_definition(**schema: Any) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object"} | schema},
    }
    names = {"plural": "foos", "kind": "Foo"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]},
    }


CEL = {"properties": {"spec": {"type": "object", "x-kubernetes-validations": [{"rule": "self.a == self.b"}]}}}
APPLY = "application/apply-patch+yaml"


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        pytest.param(Ask(method="PATCH", path=f"{NODES}/a", kind=APPLY, body={}), "server-side apply", id="apply"),
        pytest.param(Ask(method="GET", path=f"{PODS}/a/log"), "pods/log", id="log"),
        pytest.param(Ask(method="POST", path=f"{PODS}/a/exec"), "pods/exec", id="exec"),
        pytest.param(
            Ask(method="POST", path="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body={}),
            "RBAC is not enforced",
            id="access review",
        ),
        pytest.param(
            Ask(method="POST", path=NODES, kind="application/vnd.kubernetes.protobuf", raw=b"k8s"),
            "a body of type application/vnd.kubernetes.protobuf",
            id="protobuf",
        ),
        pytest.param(Ask(method="POST", path=DEFINITIONS, body=a_definition(oneOf=[])), "oneOf", id="schema word"),
        pytest.param(Ask(method="POST", path=DEFINITIONS, body=a_definition(**CEL)), "CEL rule", id="CEL"),
        pytest.param(
            Ask(method="GET", path=f"{NODES}?resourceVersion=1&resourceVersionMatch=Exact"), "exact", id="old list"
        ),
    ],
)
def test_what_it_does_not_do_it_refuses(ask: Ask, told: str, server: Server) -> None:
    answer = server.ask(ask)
    assert (answer.status, answer.body["reason"]) == (501, "NotImplemented")
    assert answer.body["message"].startswith("embedded API server: ") and told in answer.body["message"]


def test_a_job_with_a_failure_policy_is_refused(server: Server) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}
    body = {"metadata": {"name": "a"}, "spec": {"template": template, "podFailurePolicy": {"rules": []}}}
    answer = server.ask(Ask(method="POST", path="/apis/batch/v1/namespaces/default/jobs", body=body))
    assert answer.status == 501 and "podFailurePolicy" in answer.body["message"]


def test_history_is_bounded_and_older_watches_get_410(server: Server) -> None:
    since = server.get(CONFIG_MAPS)["metadata"]["resourceVersion"]
    for number in range(10):
        config_map(server, f"a{number}")
    with server.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion={since}") as watching:
        (event,) = watching.until_end()
    assert event["type"] == "ERROR" and event["object"]["code"] == 410


def test_expired_history_ends_continue_tokens_and_watches_from_the_past(
    cluster: EmbeddedCluster, server: Server
) -> None:
    for name in "abc":
        config_map(server, name)
    page = server.get(f"{CONFIG_MAPS}?limit=1")["metadata"]
    cluster.expire_history()
    answer = server.ask(Ask(method="GET", path=f"{CONFIG_MAPS}?limit=1&continue={page['continue']}"))
    assert (answer.status, answer.body["reason"]) == (410, "Expired")
    config_map(server, "d")
    with server.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion={page['resourceVersion']}") as watching:
        config_map(server, "e")
        # The version of the list is the newest at that time, so only what came after it is missing, and it is there.
        assert [told(watching.must_next()) for _ in "de"] == [("ADDED", "d"), ("ADDED", "e")]
    with server.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion={int(page['resourceVersion']) - 1}") as watching:
        assert [event["type"] for event in watching.until_end()] == ["ERROR"]


def test_bookmarks_come_when_asked_for(server: Server) -> None:
    since = server.get(CONFIG_MAPS)["metadata"]["resourceVersion"]
    query = f"{CONFIG_MAPS}?watch=1&resourceVersion={since}&timeoutSeconds=1"
    with server.watch(query) as watching:
        assert watching.until_end() == []
    with server.watch(f"{query}&allowWatchBookmarks=true") as watching:
        server.must("POST", NODES, {"metadata": {"name": "a"}})
        events = watching.until_end()
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert int(events[-1]["object"]["metadata"]["resourceVersion"]) > int(since), "other resources move the counter"


def test_a_test_may_answer_in_its_place(cluster: EmbeddedCluster, server: Server) -> None:
    def overloaded(call: Call) -> Reply | None:
        if call.method != "GET":
            return None
        text = "Too many requests, please try again later.\n"
        return Reply(code=429, body=text, headers={"Retry-After": "1"})

    cluster.intercept(overloaded)
    answer = server.ask(Ask(method="GET", path=NODES))
    assert (answer.status, answer.body) == (429, "Too many requests, please try again later.\n")
    assert answer.headers["Retry-After"] == "1" and answer.headers["Content-Type"].startswith("text/plain")
    assert server.ask(Ask(method="POST", path=NODES, body={"metadata": {"name": "a"}})).status == 201
    cluster.intercept(None)
    assert server.ask(Ask(method="GET", path=NODES)).status == 200


def test_strict_validation_of_a_built_in_kind_warns_that_there_is_none(server: Server) -> None:
    answer = server.ask(Ask(method="POST", path=f"{NODES}?fieldValidation=Strict", body={"metadata": {"name": "a"}}))
    assert answer.status == 201 and "not checked against a schema" in answer.headers["Warning"]


def test_without_a_fleet_nothing_is_scheduled(cluster: EmbeddedCluster, server: Server) -> None:
    server.must("POST", PODS, a_pod("a"))
    time.sleep(0.1)
    assert server.get(f"{PODS}/a")["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    with pytest.raises(ClusterError, match="without a fleet"):
        cluster.add_node("n1")


def test_apply_creates_then_patches_and_writes_the_status(cluster: EmbeddedCluster) -> None:
    node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
    cluster.apply([node])
    (stored,) = cluster.apply([node | {"metadata": {"name": "a", "labels": {"b": "c"}}, "status": {"phase": "x"}}])
    assert stored["metadata"]["labels"] == {"b": "c"} and stored["status"]["phase"] == "x"
    with pytest.raises(ClusterError, match="not served"):
        cluster.apply([{"apiVersion": "v1", "kind": "Nonsense", "metadata": {"name": "a"}}])


def test_a_definition_is_served_until_it_is_deleted(server: Server) -> None:
    server.must("POST", DEFINITIONS, a_definition())
    foos = "/apis/example.com/v1/foos"
    foo = {"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"}}
    server.must("POST", foos, foo)
    deleted = server.must("DELETE", f"{DEFINITIONS}/foos.example.com")
    assert deleted["status"]["conditions"][-1]["type"] == "Terminating"
    assert server.ask(Ask(method="GET", path=f"{foos}/a")).status == 404
    server.must("POST", DEFINITIONS, a_definition())
    assert server.get(foos)["items"] == []
