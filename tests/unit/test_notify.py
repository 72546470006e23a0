"""The webhook: what is sent, and that no receiver, however bad, is felt by anybody else."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from remediator.adapters.notify import QUEUE_LIMIT, Webhook
from remediator.adapters.recorder import Told
from tests.fakes.world import eventually

SECRET = "/services/T000/very-secret"


class Receiver(ThreadingHTTPServer):
    """Keeps what it gets; answers with `status` once `open` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        self.open = threading.Event()
        self.open.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{SECRET}"


class _Taking(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, json.loads(body)))
        self.server.open.wait(20)
        self.send_response(self.server.status)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on the test's stderr."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.open.set()
        made.shutdown()
        thread.join()


def told(number: int = 1, *, warning: bool = True) -> Told:
    return Told(kind="GPUIncident", name=f"i{number}", uid="u", reason="Draining", message="why", warning=warning)


def test_a_message_says_what_happened_to_whom(receiver: Receiver) -> None:
    results: list[str] = []
    webhook = Webhook(receiver.url, results.append)
    webhook.start()
    webhook.tell(told(1))
    webhook.tell(told(2, warning=False))
    webhook.stop()
    assert receiver.got == [
        (SECRET, {"text": ":warning: *Draining* GPUIncident i1: why"}),
        (SECRET, {"text": "*Draining* GPUIncident i2: why"}),
    ]
    assert results == ["sent", "sent"], "stopping sends what is queued"


@pytest.mark.parametrize("status", [302, 403, 500])
def test_a_receiver_that_refuses_is_counted_and_the_next_message_sent(receiver: Receiver, status: int) -> None:
    results: list[str] = []
    webhook = Webhook(receiver.url, results.append)
    webhook.start()
    receiver.status = status
    webhook.tell(told(1))
    eventually(lambda: results == ["refused"], what="a redirect is not followed: it would carry the secret elsewhere")
    receiver.status = 200
    webhook.tell(told(2))
    webhook.stop()
    assert results == ["refused", "sent"]


def test_nobody_there_is_counted_and_the_secret_stays_one(caplog: pytest.LogCaptureFixture) -> None:
    results: list[str] = []
    webhook = Webhook(f"http://127.0.0.1:1{SECRET}", results.append)
    webhook.start()
    with caplog.at_level(logging.INFO):
        webhook.tell(told())
        webhook.stop()
    assert results == ["failed"]
    assert "not sent error=ConnectionError" in caplog.text
    assert "very-secret" not in caplog.text


def test_an_address_that_is_none_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    results: list[str] = []
    webhook = Webhook(SECRET, results.append)
    webhook.start()
    webhook.tell(told())
    webhook.stop()
    assert results == ["failed"]
    assert "very-secret" not in caplog.text


def test_telling_never_waits_for_a_receiver_that_hangs(receiver: Receiver) -> None:
    results: list[str] = []
    webhook = Webhook(receiver.url, results.append)
    webhook.start()
    receiver.open.clear()
    webhook.tell(told(0))
    eventually(lambda: receiver.got)
    began = time.monotonic()
    for number in range(QUEUE_LIMIT + 5):
        webhook.tell(told(number))
    assert time.monotonic() - began < 1
    assert results == ["dropped"] * 5
    webhook.stop(timeout=0.1)
    assert time.monotonic() - began < 2
    receiver.open.set()
    eventually(lambda: results.count("sent") == QUEUE_LIMIT + 1)
