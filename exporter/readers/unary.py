"""One unary gRPC call over a Unix socket: connect, ask, read one message, close. HTTP/2 by h2, nothing else.

Laws:
1. One deadline for everything; `CallFailed` is the only exception, with one word for the metric.
2. A new connection per call: a restarted kubelet needs no reconnect logic (a connect costs about one millisecond).
3. Never more than `limit_bytes` of reply are held, and never more than one message.
4. `:authority` is `localhost`: strict servers refuse the percent-encoded socket path that gRPC itself would send.
"""

import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

LIMIT_BYTES: Final = 16 << 20
"""The kubelet's own limit for pod-resources messages."""
WINDOW_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 16
FRAME_HEAD: Final = struct.Struct(">BI")
"""gRPC message: compressed flag, length."""


class CallFailed(Exception):
    """The call gave no answer; `word` says why in one word, for metrics."""

    def __init__(self, word: str, sentence: str) -> None:
        super().__init__(sentence)
        self.word = word
        """`absent`, `refused`, `timeout`, `garbled`, `too-large`, `exhausted`, `unimplemented`, `failed`."""


STATUS_WORDS: Final[Mapping[str, str]] = {
    "4": "timeout",
    "7": "refused",
    "8": "exhausted",
    "12": "unimplemented",
    "14": "refused",
    "16": "refused",
}
"""gRPC status -> word; any other one is `failed`."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """What to call, where."""

    socket_path: Path
    path: str
    """`/package.Service/Method`."""
    limit_bytes: int = LIMIT_BYTES


@dataclass(kw_only=True)
class _Reply:
    """What has come so far."""

    limit_bytes: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False


def call(method: Method, request: bytes, timeout_seconds: float) -> bytes:
    """The reply message to `request`. Raises `CallFailed`."""
    deadline = time.monotonic() + timeout_seconds
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
            _connect(wire, method.socket_path, deadline)
            reply = _exchange(wire, method, request, deadline)
    except TimeoutError as late:
        raise CallFailed("timeout", f"no answer within {timeout_seconds:g} s") from late
    except H2Error as broken:
        raise CallFailed("garbled", f"not HTTP/2: {type(broken).__name__}") from broken
    except OSError as error:
        raise CallFailed("failed", f"connection broke: {error.strerror or error}") from error
    return _message(reply)


def _connect(wire: socket.socket, path: Path, deadline: float) -> None:
    wire.settimeout(_left(deadline))
    try:
        wire.connect(str(path))
    except FileNotFoundError as absent:
        raise CallFailed("absent", f"{path} does not exist") from absent
    except (ConnectionRefusedError, PermissionError) as refused:
        raise CallFailed("refused", f"{path}: {refused.strerror}") from refused
    except BlockingIOError as full:
        # A Unix socket whose backlog is full: its server hangs.
        raise CallFailed("timeout", f"{path}: the server takes no connection") from full


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _exchange(wire: socket.socket, method: Method, request: bytes, deadline: float) -> _Reply:
    connection = H2Connection(config=H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    connection.increment_flow_control_window(WINDOW_BYTES)
    stream = connection.get_next_available_stream_id()
    connection.send_headers(stream, _request_headers(method.path))
    connection.send_data(stream, FRAME_HEAD.pack(0, len(request)) + request, end_stream=True)
    reply = _Reply(limit_bytes=method.limit_bytes)
    while not reply.ended:
        _send(wire, connection.data_to_send(), deadline)
        wire.settimeout(_left(deadline))
        piece = wire.recv(READ_BYTES)
        if not piece:
            raise CallFailed("failed", "the server closed the connection without an answer")
        for event in connection.receive_data(piece):
            _take(connection, stream, event, reply)
    return reply


def _request_headers(path: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]


def _send(wire: socket.socket, content: bytes, deadline: float) -> None:
    if content:
        wire.settimeout(_left(deadline))
        wire.sendall(content)


def _take(connection: H2Connection, stream: int, event: Event, reply: _Reply) -> None:
    match event:
        case ResponseReceived() | TrailersReceived():
            reply.headers.update({_text(name): _text(value) for name, value in event.headers})
        case DataReceived():
            reply.body += event.data
            if len(reply.body) > reply.limit_bytes + FRAME_HEAD.size:
                raise CallFailed("too-large", f"the reply has more than {reply.limit_bytes} bytes")
            connection.acknowledge_received_data(event.flow_controlled_length or 0, stream)
        case StreamEnded():
            reply.ended = True
        case StreamReset():
            raise CallFailed("failed", f"the server reset the call (HTTP/2 error {event.error_code})")
        case ConnectionTerminated() if not reply.ended:
            raise CallFailed("failed", f"the server ended the connection (HTTP/2 error {event.error_code})")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _message(reply: _Reply) -> bytes:
    status = reply.headers.get("grpc-status")
    if status is None:
        raise CallFailed("garbled", f"no gRPC status (HTTP {reply.headers.get(':status', 'unknown')})")
    if status != "0":
        said = reply.headers.get("grpc-message", "")[:200]
        raise CallFailed(STATUS_WORDS.get(status, "failed"), f"gRPC status {status[:10]}: {said}")
    if len(reply.body) < FRAME_HEAD.size:
        raise CallFailed("garbled", "the reply holds no message")
    compressed, length = FRAME_HEAD.unpack_from(reply.body)
    if compressed or length != len(reply.body) - FRAME_HEAD.size:
        raise CallFailed("garbled", "the reply is not one plain message")
    return bytes(reply.body[FRAME_HEAD.size :])
