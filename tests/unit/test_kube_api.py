"""Answers of the API server and the errors they become; paging; tokens."""

from pathlib import Path
from typing import Any

import pytest

from remediator.adapters.api import Eviction, KubeApi, Query
from remediator.adapters.errors import (
    AlreadyExists,
    ApiError,
    Blocked,
    Conflict,
    Fatal,
    Gone,
    NotFound,
    Refused,
    Retryable,
    Unauthorized,
)
from remediator.adapters.kubeconfig import Connection, find_endpoint
from remediator.adapters.resources import GPU_INCIDENTS, LEASES, NODES, PODS, Ref
from remediator.adapters.transport import Endpoint, FileToken, HttpTransport, StaticToken
from tests.fakes.misbehaving import Answer, Asked, MisbehavingServer, node, node_list, status

PDB = {"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget g needs 1 healthy pods and has 1"}]}
TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
TOO_MANY = "Too many requests, please try again later.\n"


def api_of(server: MisbehavingServer) -> KubeApi:
    return KubeApi(HttpTransport(Endpoint(url=server.url)))


@pytest.mark.parametrize(
    ("code", "body", "headers", "error", "after"),
    [
        pytest.param(401, status(401, "Unauthorized"), {}, Unauthorized, None, id="no credentials"),
        pytest.param(403, status(403, "forbidden"), {}, Refused, None, id="no right"),
        pytest.param(404, status(404, "not found"), {}, NotFound, None, id="missing"),
        pytest.param(404, "404 page not found\n", {}, NotFound, None, id="unknown path, plain text"),
        pytest.param(405, status(405), {}, Fatal, None, id="method"),
        pytest.param(409, status(409, "modified", "Conflict"), {}, Conflict, None, id="conflict"),
        pytest.param(409, status(409, "exists", "AlreadyExists"), {}, AlreadyExists, None, id="already there"),
        pytest.param(410, status(410, "too old", "Expired"), {}, Gone, None, id="gone"),
        pytest.param(415, status(415), {}, Fatal, None, id="media type"),
        pytest.param(422, status(422, "illegal phase"), {}, Refused, None, id="invalid"),
        pytest.param(429, status(429, "no", details=PDB), {}, Blocked, None, id="budget exhausted"),
        pytest.param(429, status(429, "no", details=PDB), {"Retry-After": "10"}, Blocked, 10.0, id="not computed"),
        pytest.param(429, TOO_MANY, {"Retry-After": "1"}, Retryable, 1.0, id="overload, plain text"),
        pytest.param(500, status(500, "boom"), {}, Retryable, None, id="server error"),
        pytest.param(
            500,
            status(500, TWO_BUDGETS),
            {},
            Refused,
            None,
            id="two budgets never heal",
        ),
        pytest.param(504, status(504, details={"retryAfterSeconds": 2}), {}, Retryable, 2.0, id="wish in the body"),
        pytest.param(503, "<html>", {}, Retryable, None, id="proxy"),
    ],
)
def test_every_refusal_says_what_to_do(
    code: int, body: object, headers: dict[str, str], error: type[ApiError], after: float | None
) -> None:
    def answer_so(asked: Asked, answer: Answer) -> None:
        if isinstance(body, str):
            answer.raw(code, body.encode(), headers)
        else:
            answer.json(code, body, headers)

    with MisbehavingServer(answer_so) as server, pytest.raises(ApiError) as caught:
        api_of(server).evict(Eviction(namespace="a", name="p", uid="u"))
    assert type(caught.value) is error
    assert caught.value.after == after
    assert caught.value.status == code


def test_eviction_names_the_uid() -> None:
    with MisbehavingServer(lambda _asked, answer: answer.json(201, status(201))) as server:
        api_of(server).evict(Eviction(namespace="a", name="p", uid="u1", dry_run=True))
    [asked] = server.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/a/pods/p/eviction")
    assert asked.json()["deleteOptions"] == {"preconditions": {"uid": "u1"}, "dryRun": ["All"]}


def test_lists_follow_pages() -> None:
    def pages(asked: Asked, answer: Answer) -> None:
        if "continue" in asked.params:
            answer.json(200, node_list(9, node("n2", 2)))
        else:
            assert asked.params["limit"] == "500"
            answer.json(200, node_list(9, node("n1", 1), more="next"))

    with MisbehavingServer(pages) as server:
        listing = api_of(server).list(NODES)
    assert [item.metadata.name for item in listing.items] == ["n1", "n2"]
    assert listing.resource_version == "9"


def test_an_expired_continue_token_starts_the_list_again() -> None:
    expired: list[bool] = []

    def once(asked: Asked, answer: Answer) -> None:
        if "continue" in asked.params and not expired:
            expired.append(True)
            answer.json(410, status(410, "token too old", "Expired"))
        elif "continue" in asked.params:
            answer.json(200, node_list(9, node("n2", 2)))
        else:
            answer.json(200, node_list(9, node("n1", 1), more="next"))

    with MisbehavingServer(once) as server:
        listing = api_of(server).list(NODES)
    assert [item.metadata.name for item in listing.items] == ["n1", "n2"]
    assert len(server.asked) == 4


def test_a_cached_list_asks_for_any_recent_state_of_one_node() -> None:
    with MisbehavingServer(lambda _asked, answer: answer.json(200, node_list(9))) as server:
        api_of(server).list(PODS, Query(field_selector="spec.nodeName=n1", from_cache=True))
    assert server.asked[0].params == {"fieldSelector": "spec.nodeName=n1", "resourceVersion": "0"}


def test_a_read_waits_for_storage_that_starts_and_a_write_does_not() -> None:
    busy = status(429, "storage is (re)initializing", "TooManyRequests", {"retryAfterSeconds": 1})
    answers: list[dict[str, Any]] = [busy]

    def first_busy(asked: Asked, answer: Answer) -> None:
        if asked.method == "GET" and not answers:
            answer.json(200, node("n1", 1))
        else:
            answer.json(429, answers.pop() if answers else busy)

    with MisbehavingServer(first_busy) as server:
        api = api_of(server)
        assert api.get(Ref(NODES, "n1")).metadata.name == "n1"
        with pytest.raises(Retryable):
            api.merge_patch(Ref(NODES, "n1"), {"spec": {}})
    assert [asked.method for asked in server.asked] == ["GET", "GET", "PATCH"]


def test_no_answer_is_retryable_and_named() -> None:
    with MisbehavingServer(lambda _asked, answer: answer.silence()) as server:
        api = KubeApi(HttpTransport(Endpoint(url=server.url)), timeout=0.2)
        with pytest.raises(Retryable) as caught:
            api.get(Ref(NODES, "n1"))
        assert caught.value.reason == "timeout"
    with pytest.raises(Retryable) as caught:
        api.get(Ref(NODES, "n1"))
    assert caught.value.reason == "connect"


def test_a_refused_token_is_read_again_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    def only_new(asked: Asked, answer: Answer) -> None:
        if asked.headers.get("authorization") == "Bearer new":
            answer.json(200, node("n1", 1))
        else:
            token.write_text("new\n")
            answer.json(401, status(401, "Unauthorized"))

    with MisbehavingServer(only_new) as server:
        api = KubeApi(HttpTransport(Endpoint(url=server.url, token=FileToken(token))))
        assert api.get(Ref(NODES, "n1")).metadata.name == "n1"
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer old", "Bearer new"]


def test_paths() -> None:
    assert Ref(LEASES, "n1", "gpuward").path() == "/apis/coordination.k8s.io/v1/namespaces/gpuward/leases/n1"
    assert Ref(GPU_INCIDENTS, "i1").path("status") == "/apis/gpuward.io/v1alpha1/gpuincidents/i1/status"
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a") == "/api/v1/namespaces/a/pods"


def test_the_endpoint_is_found_in_the_promised_order(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], "
        "clusters: [{name: k, cluster: {server: 'http://127.0.0.1:7'}}], users: [{name: u, user: {token: secret}}]}"
    )
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("in-pod\n")
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}

    explicit = find_endpoint(Connection(api_server="http://127.0.0.1:9/", kubeconfig=kubeconfig), inside, account)
    assert explicit.url == "http://127.0.0.1:9"
    from_file = find_endpoint(Connection(kubeconfig=kubeconfig), inside, account)
    assert (from_file.url, from_file.token.current()) == ("http://127.0.0.1:7", "secret")
    in_pod = find_endpoint(Connection(), inside, account)
    assert (in_pod.url, in_pod.token.current()) == ("https://10.0.0.1:443", "in-pod")
    with pytest.raises(Fatal, match="no API server"):
        find_endpoint(Connection(), {"KUBECONFIG": str(tmp_path / "none")}, tmp_path / "none")


def test_static_tokens_are_stripped() -> None:
    assert StaticToken("a\n").current() == "a"
    assert StaticToken(None).current() is None
