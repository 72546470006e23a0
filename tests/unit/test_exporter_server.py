"""The HTTP server over real sockets."""

import gzip
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from exporter.exposition.renderer import page
from exporter.server import Board, Server, ServerSettings, accepts_gzip, loopback

Answer = tuple[int, dict[str, str], bytes]


class Served:
    """A running server, its board, and what it was asked to release."""

    def __init__(self) -> None:
        self.board = Board()
        self.released: list[str] = []
        settings = ServerSettings(host="127.0.0.1", port=0, stalled_seconds=0.5)
        self.server = Server(settings, self.board, self._release)

    def _release(self, uuid: str) -> bool:
        self.released.append(uuid)
        return uuid == "GPU-1"

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=5)
        try:
            connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            reply = connection.getresponse()
            return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
        finally:
            connection.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    made.server.start()
    yield made
    made.server.stop()


class TestMetrics:
    def test_before_the_first_page_it_says_that_there_is_none(self, served: Served) -> None:
        assert served.ask("/metrics")[0] == 503

    def test_plain_by_default(self, served: Served) -> None:
        served.board.page = page(["gpu_up 1\n"])
        status, headers, body = served.ask("/metrics")
        assert (status, body) == (200, b"gpu_up 1\n")
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert headers["vary"] == "Accept-Encoding"

    def test_gzip_for_who_accepts_it(self, served: Served) -> None:
        served.board.page = page(["gpu_up 1\n"])
        status, headers, body = served.ask("/metrics", Accept_Encoding="gzip")
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert gzip.decompress(body) == b"gpu_up 1\n"
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"

    def test_a_new_page_shows_at_once_and_scrapes_are_counted(self, served: Served) -> None:
        for text in ("a 1\n", "a 2\n"):
            served.board.page = page([text])
            assert served.ask("/metrics")[2] == text.encode()
        assert served.board.scrapes == 2

    def test_a_hundred_idle_clients_hold_up_nobody(self, served: Served) -> None:
        served.board.page = page(["gpu_up 1\n"])
        idle = [socket.create_connection(("127.0.0.1", served.server.port)) for _ in range(100)]
        try:
            started = time.monotonic()
            assert served.ask("/metrics")[0] == 200
            assert time.monotonic() - started < 1
        finally:
            for connection in idle:
                connection.close()

    def test_kept_connections_do_not_wait_for_acks(self, served: Served) -> None:
        served.board.page = page(["gpu_up 1\n" * 5000])
        connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=5)
        took: list[float] = []
        for _ in range(15):
            started = time.monotonic()
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            took.append(time.monotonic() - started)
        connection.close()
        # A delayed ACK costs 40 ms each time; the median leaves room for a busy machine.
        assert sorted(took)[7] < 0.035


class TestHealth:
    def test_alive_while_the_loop_turns(self, served: Served) -> None:
        served.board.beat = time.monotonic()
        assert served.ask("/-/healthy")[0] == 200

    def test_dead_when_the_loop_stalls(self, served: Served) -> None:
        served.board.beat = time.monotonic() - 60
        status, _, body = served.ask("/-/healthy")
        assert status == 503 and b"60 s" in body

    def test_broken_when_a_part_has_died(self, served: Served) -> None:
        served.board.beat = time.monotonic()
        served.board.dead_part = "publisher"
        status, _, body = served.ask("/-/healthy")
        assert status == 503 and b"publisher has died" in body

    @pytest.mark.parametrize("path", ["/-/ready", "/health"])
    def test_ready_with_the_first_snapshot(self, served: Served, path: str) -> None:
        assert served.ask(path)[0] == 503
        served.board.status = b'{"health": "Healthy"}'
        assert served.ask(path)[0] == 200

    def test_health_is_the_status_as_json(self, served: Served) -> None:
        served.board.status = b'{"health": "Healthy"}'
        _, headers, body = served.ask("/health")
        assert (headers["content-type"], body) == ("application/json", b'{"health": "Healthy"}')

    def test_the_landing_page_links_to_the_metrics(self, served: Served) -> None:
        assert re.search(rb'href="/metrics"', served.ask("/")[2])

    def test_other_paths_are_not_found(self, served: Served) -> None:
        assert served.ask("/metrics/x")[0] == 404


class TestRelease:
    def test_loopback_may_ask(self, served: Served) -> None:
        assert served.ask("/-/release?gpu=GPU-1", "POST")[0] == 200
        assert served.released == ["GPU-1"]

    def test_what_cannot_be_released_is_said(self, served: Served) -> None:
        assert served.ask("/-/release?gpu=GPU-9", "POST")[0] == 409

    def test_it_must_say_which(self, served: Served) -> None:
        assert served.ask("/-/release", "POST")[0] == 400
        assert served.released == []

    def test_reading_releases_nothing(self, served: Served) -> None:
        assert served.ask("/-/release?gpu=GPU-1")[0] == 405
        assert served.released == []

    def test_another_machine_is_refused_whatever_it_claims(self) -> None:
        address = own_address()
        if address is None:
            pytest.skip("this machine has no address but loopback")
        board = Board()
        released: list[str] = []

        def release(uuid: str) -> bool:
            released.append(uuid)
            return True

        server = Server(ServerSettings(host="", port=0), board, release)
        server.start()
        try:
            connection = http.client.HTTPConnection(address, server.port, timeout=5)
            connection.request("POST", "/-/release?gpu=GPU-1", headers={"X-Forwarded-For": "127.0.0.1"})
            assert connection.getresponse().status == 403
            connection.close()
        finally:
            server.stop()
        assert released == []


def own_address() -> str | None:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


class TestLife:
    def test_it_leaves_neither_thread_nor_port(self) -> None:
        served = Served()
        before = threading.active_count()
        served.server.start()
        port = served.server.port
        served.server.stop()
        assert threading.active_count() == before
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)

    def test_a_taken_port_is_an_error_at_start(self, served: Served) -> None:
        second = Server(ServerSettings(host="127.0.0.1", port=served.server.port), Board(), bool)
        with pytest.raises(OSError, match="in use"):
            second.start()

    def test_it_stops_while_a_client_keeps_its_connection(self) -> None:
        served = Served()
        served.server.start()
        connection = socket.create_connection(("127.0.0.1", served.server.port))
        started = time.monotonic()
        served.server.stop()
        connection.close()
        assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        pytest.param("", False, id="nothing asked"),
        pytest.param("gzip", True, id="gzip"),
        pytest.param("deflate, GZIP;q=0.5", True, id="with quality, any case"),
        pytest.param("*", True, id="anything"),
        pytest.param("gzip;q=0", False, id="refused"),
        pytest.param("gzip; q=0.000", False, id="refused at length"),
        pytest.param("identity", False, id="another coding"),
        pytest.param("xgzip", False, id="part of a word"),
    ],
)
def test_accept_encoding(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("testclient", False),
    ],
)
def test_loopback(host: str, local: bool) -> None:
    assert loopback(host) is local
