"""The thin API client against servers that behave and servers that do not."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.apiserver import Absent, ApiServer, Conflict, Endpoint, Refused, Retryable, in_cluster
from tests.fakes.misbehaving import Answer, Asked, MisbehavingServer, status


def answer_with(code: int, body: object, headers: dict[str, str] | None = None) -> Callable[[Asked, Answer], None]:
    def handler(_: Asked, answer: Answer) -> None:
        answer.json(code, body, headers)

    return handler


def client(server: MisbehavingServer, token_file: Path | None = None, timeout: float = 1.0) -> ApiServer:
    return ApiServer(Endpoint(url=server.url, token_file=token_file), "test/1", timeout)


def test_verbs_bodies_and_headers() -> None:
    with MisbehavingServer(answer_with(200, {"kind": "X"})) as server:
        api = client(server)
        assert api.get("/a") == api.create("/b", {"x": 1}) == api.patch("/c", {"y": None}) == {"kind": "X"}
        assert [(a.method, a.path, a.headers.get("content-type")) for a in server.asked] == [
            ("GET", "/a", None),
            ("POST", "/b", "application/json"),
            ("PATCH", "/c", "application/merge-patch+json"),
        ]
        assert server.asked[2].json() == {"y": None}
        assert server.asked[0].headers["user-agent"] == "test/1"
        api.close()


@pytest.mark.parametrize(
    ("code", "body", "kind"),
    [
        pytest.param(404, status(404, "gpunodes n1 not found"), Absent, id="404"),
        pytest.param(409, status(409, "exists"), Conflict, id="409"),
        pytest.param(403, status(403, "may not"), Refused, id="403"),
        pytest.param(422, status(422, "wrong"), Refused, id="422"),
        pytest.param(429, status(429, "slow down"), Retryable, id="429"),
        pytest.param(500, status(500, "oops"), Retryable, id="500"),
        pytest.param(503, "not even a Status", Retryable, id="503 without a Status"),
        pytest.param(200, [1], Retryable, id="not an object"),
    ],
)
def test_errors_say_what_to_do(code: int, body: object, kind: type[Exception]) -> None:
    with MisbehavingServer(answer_with(code, body)) as server, pytest.raises(kind):
        client(server).get("/x")


def test_plain_text_of_flow_control_is_understood_with_its_retry_after() -> None:
    def handler(_: Asked, answer: Answer) -> None:
        answer.raw(429, b"Too many requests, please try again later.\n", {"Retry-After": "7"})

    with MisbehavingServer(handler) as server, pytest.raises(Retryable, match="Too many requests") as refused:
        client(server).get("/x")
    assert (refused.value.after, refused.value.kind) == (7, "http-429")


def test_a_hung_server_costs_a_timeout_and_no_more() -> None:
    started = time.monotonic()
    with MisbehavingServer(lambda _, answer: answer.silence()) as server, pytest.raises(Retryable) as refused:
        client(server, timeout=0.3).get("/x")
    assert refused.value.kind == "network" and time.monotonic() - started < 2


def test_a_reply_that_trickles_is_cut() -> None:
    def handler(_: Asked, answer: Answer) -> None:
        answer.start()
        for _each in range(40):
            answer.send(b" ")
            time.sleep(0.05)

    started = time.monotonic()
    with MisbehavingServer(handler) as server, pytest.raises(Retryable):
        client(server, timeout=0.3).get("/x")
    assert time.monotonic() - started < 3


def test_a_reply_that_ends_early_is_no_reply() -> None:
    def handler(_: Asked, answer: Answer) -> None:
        answer.connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"kind": "X"}')
        answer.connection.close()

    with MisbehavingServer(handler) as server, pytest.raises(Retryable):
        client(server).get("/x")


def test_a_reply_without_end_is_refused() -> None:
    def handler(_: Asked, answer: Answer) -> None:
        answer.start()
        while True:
            answer.send(b" " * (1 << 16))

    with MisbehavingServer(handler) as server, pytest.raises(Retryable, match="more than"):
        client(server, timeout=20).get("/x")


@pytest.mark.parametrize(
    "content", [b"not json", b"\xff\xfe", b"[" * 100_000], ids=["text", "no UTF-8", "deeply nested"]
)
def test_garbage_is_retryable(content: bytes) -> None:
    with MisbehavingServer(lambda _, answer: answer.raw(200, content)) as server, pytest.raises(Retryable):
        client(server).get("/x")


def test_a_kept_connection_that_the_server_closed_is_opened_again() -> None:
    def handler(_: Asked, answer: Answer) -> None:
        answer.json(200, {})
        answer.connection.close()

    with MisbehavingServer(handler) as server:
        api = client(server)
        for _ in range(3):
            assert api.get("/x") == {}
        assert len(server.asked) == 3


def test_a_server_that_hangs_up_at_once_is_unreachable() -> None:
    with MisbehavingServer(lambda _, answer: answer.reset()) as server, pytest.raises(Retryable) as refused:
        client(server).get("/x")
    assert refused.value.kind == "network"


def test_nobody_listens() -> None:
    with MisbehavingServer(answer_with(200, {})) as server:
        url = server.url
    with pytest.raises(Retryable, match="cannot be reached"):
        ApiServer(Endpoint(url=url), "test/1", 1).get("/x")


class TestToken:
    def test_it_is_stripped_and_sent(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("secret\n")
        with MisbehavingServer(answer_with(200, {})) as server:
            client(server, token).get("/x")
            assert server.asked[0].headers["authorization"] == "Bearer secret"

    def test_it_is_read_again_after_a_401(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("old")

        def handler(asked: Asked, answer: Answer) -> None:
            if asked.headers["authorization"] == "Bearer new":
                answer.json(200, {"ok": True})
            else:
                token.write_text("new")  # the kubelet renews the file
                answer.json(401, status(401, "Unauthorized"))

        with MisbehavingServer(handler) as server:
            assert client(server, token).get("/x") == {"ok": True}
            assert len(server.asked) == 2

    def test_a_401_that_stays_is_refused_after_one_more_try(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("dead")
        with MisbehavingServer(answer_with(401, status(401, "Unauthorized"))) as server:
            with pytest.raises(Refused) as refused:
                client(server, token).get("/x")
            assert (refused.value.status, len(server.asked)) == (401, 2)

    def test_it_is_not_read_for_every_request(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("first")
        with MisbehavingServer(answer_with(200, {})) as server:
            api = client(server, token)
            api.get("/x")
            token.write_text("second")
            api.get("/x")
            assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer first"}

    @pytest.mark.parametrize(
        "content", [None, "", "two\nlines", "\N{SNOWMAN}"], ids=["absent", "empty", "lines", "text"]
    )
    def test_no_usable_token_is_retryable_and_nothing_is_sent(self, tmp_path: Path, content: str | None) -> None:
        token = tmp_path / "token"
        if content is not None:
            token.write_text(content)
        with MisbehavingServer(answer_with(200, {})) as server:
            with pytest.raises(Retryable) as refused:
                client(server, token).get("/x")
            assert refused.value.kind == "token" and server.asked == []
            assert "two" not in str(refused.value)

    def test_a_token_file_of_other_bytes_is_retryable(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_bytes(b"\xff\xfe")
        with MisbehavingServer(answer_with(200, {})) as server:
            with pytest.raises(Retryable) as refused:
                client(server, token).get("/x")
            assert refused.value.kind == "token" and server.asked == []


class TestEndpoint:
    @pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://10.0.0.1"])
    def test_allowed(self, url: str) -> None:
        assert Endpoint(url=url).url == url

    @pytest.mark.parametrize("url", ["http://10.0.0.1", "http://example.org", "ftp://x", "10.0.0.1:6443", ""])
    def test_refused(self, url: str) -> None:
        with pytest.raises(ValueError, match="allowed"):
            Endpoint(url=url)

    def test_a_pod_is_told_where_and_how(self, tmp_path: Path) -> None:
        environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
        assert in_cluster(environ, tmp_path) is None
        (tmp_path / "token").write_text("x")
        found = in_cluster(environ, tmp_path)
        assert found == Endpoint(
            url="https://[fd00::1]:6443", token_file=tmp_path / "token", ca_file=tmp_path / "ca.crt"
        )
        assert in_cluster({}, tmp_path) is None

    def test_a_missing_authority_is_retryable(self, tmp_path: Path) -> None:
        endpoint = Endpoint(url="https://127.0.0.1:1", ca_file=tmp_path / "ca.crt")
        with pytest.raises(Retryable):
            ApiServer(endpoint, "test/1", 1).get("/x")
