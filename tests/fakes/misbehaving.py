"""A server on a real socket that does exactly what a test tells it to, including everything a server must not do."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Hung(Exception):
    """Ends a connection's thread without an answer."""


@dataclass
class Answer:
    """The server's side of one request."""

    connection: socket.socket
    stopping: threading.Event
    chunked: bool = field(default=False, init=False)

    def json(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        self.raw(status, json.dumps(body).encode(), {"Content-Type": "application/json"} | dict(headers or {}))

    def raw(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def start(self) -> None:
        self.chunked = True
        self.connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def send(self, data: bytes) -> None:
        self.connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, kind: str, item: object) -> None:
        self.send(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    def end(self) -> None:
        self.connection.sendall(b"0\r\n\r\n")

    def reset(self) -> None:
        """RST instead of FIN, as a crashed node or an impatient load balancer does it."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise Hung

    def silence(self) -> None:
        """Say nothing more, close nothing."""
        self.stopping.wait(30)
        raise Hung


Handler = Callable[[Asked, Answer], None]


class MisbehavingServer:
    """Calls `handler` for every request, one thread per connection; remembers what was asked."""

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self.handler = handler
        self.asked: list[Asked] = []
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "MisbehavingServer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        """As SIGKILL does it: listener and connections gone at once."""
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, Hung, ValueError), connection, connection.makefile("rb") as reader:
            while (asked := _read(reader)) is not None:
                self.asked.append(asked)
                self.handler(asked, Answer(connection, self._stopping))


def _read(reader: Any) -> Asked | None:
    first = reader.readline()
    if not first:
        return None
    method, target, _ = first.decode().split(" ")
    headers = {}
    while (line := reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Asked(method, parts.path, dict(parse_qsl(parts.query)), headers, body)


def status(code: int, message: str = "", reason: str = "", details: object = None) -> dict[str, Any]:
    """A Status object."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    return body | {"code": code} | ({"details": details} if details is not None else {})


def node(name: str, version: int, **labels: str) -> dict[str, Any]:
    """A Node, as small as the API allows."""
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta}


def node_list(version: int, *items: object, more: str = "") -> dict[str, Any]:
    return {"kind": "NodeList", "metadata": {"resourceVersion": str(version), "continue": more}, "items": items}


def bookmark(version: int, *, end: bool = False) -> dict[str, Any]:
    meta: dict[str, Any] = {"resourceVersion": str(version)}
    if end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"kind": "Node", "apiVersion": "v1", "metadata": meta}
