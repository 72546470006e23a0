"""Two small clients with one face: `HttpClient` for kubelets (also on a real server), `DirectClient` in process.

Independent of the product's own transport on purpose: a fake that shared its code would share its mistakes.
"""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from remediator.simulation.api import Api
from remediator.simulation.calls import Call
from remediator.simulation.status_errors import ApiError, Obj
from remediator.simulation.watching import Watch

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
REQUEST_SECONDS = 5.0
WATCH_SILENCE_SECONDS = 6.0
"""Longer than `pod_feed.WATCH_SECONDS`: a stream silent for so long is dead."""


class Client(Protocol):
    """What the fleet needs of an API server."""

    def request(self, method: str, path: str, body: Any = None, patch: str = MERGE) -> Obj:
        """The answered object; `ApiError` for a refusal. `path` may carry a query; `patch` is the type of a PATCH."""
        ...


def headers_for(method: str, token: str, patch: str = MERGE) -> dict[str, str]:
    """Content type by method, and the token when there is one."""
    kind = patch if method == "PATCH" else "application/json"
    return {"content-type": kind, "accept": "application/json"} | (
        {"authorization": f"Bearer {token}"} if token else {}
    )


def error_from(code: int, body: Any) -> ApiError:
    """The refusal in a reply."""
    if isinstance(body, dict):
        return ApiError(code, body.get("reason", ""), body.get("message", ""), body.get("details"))
    return ApiError(code, "", str(body))


class DirectClient:
    """Requests to an `Api` in this process, through the same rules as over HTTP."""

    def __init__(self, api: Api, token: str = "") -> None:
        self._api = api
        self._token = token

    def request(self, method: str, path: str, body: Any = None, patch: str = MERGE) -> Obj:
        """See `Client`."""
        raw = b"" if body is None else json.dumps(body).encode()
        headers = headers_for(method, self._token, patch)
        where = urlsplit(path)
        query = dict(parse_qsl(where.query))
        answer = self._api.answer(Call(method=method, path=where.path, query=query, headers=headers, body=raw))
        if isinstance(answer, Watch):
            raise TypeError("a direct client does not watch")
        if answer.code >= 300:
            raise error_from(answer.code, answer.body)
        found: Obj = answer.body
        return found


class HttpClient:
    """Requests and watches over HTTP or HTTPS; one connection per thread. Raises OSError when there is no answer."""

    def __init__(self, url: str, token: str = "", ca_file: Path | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port
        self._context = ssl.create_default_context(cafile=str(ca_file)) if parts.scheme == "https" else None
        self._token = token
        self._local = threading.local()

    def request(self, method: str, path: str, body: Any = None, patch: str = MERGE) -> Obj:
        """See `Client`; a kept connection that the server has closed is opened anew once."""
        raw = None if body is None else json.dumps(body).encode()
        for attempt in (1, 2):
            fresh = getattr(self._local, "connection", None) is None
            connection = self._local.connection = self._local.connection if not fresh else self._connect()
            try:
                connection.request(method, path, raw, headers_for(method, self._token, patch))
                reply = connection.getresponse()
                text = reply.read()
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if fresh or attempt == 2:
                    raise OSError(f"{method} {path}: {error}") from error
                continue
            return _decoded(reply.status, text)
        raise AssertionError("unreachable")

    def _connect(self, seconds: float = REQUEST_SECONDS) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=seconds)

    def close(self) -> None:
        """Closes this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def watch(self, path: str, query: dict[str, str]) -> "WatchStream":
        """An open watch; `ApiError` when it is refused."""
        connection = self._connect(WATCH_SILENCE_SECONDS)
        connection.request(
            "GET", f"{path}?{urlencode(query | {'watch': 'true'})}", headers=headers_for("GET", self._token)
        )
        reply = connection.getresponse()
        if reply.status != 200:
            text = reply.read()
            connection.close()
            _decoded(reply.status, text)
        return WatchStream(connection, reply)


class WatchStream:
    """Iterate for (type, object); `close` from another thread ends it."""

    def __init__(self, connection: http.client.HTTPConnection, reply: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._reply = reply

    def __iter__(self) -> Iterator[tuple[str, Obj]]:
        while line := self._line():
            event = json.loads(line)
            yield event["type"], event["object"]

    def _line(self) -> bytes:
        try:
            return self._reply.readline()
        except AttributeError as error:
            # http.client trips over its own socket when `close` takes it away while it reads.
            raise OSError("the watch was closed") from error

    def close(self) -> None:
        """Wakes a reader and closes the socket."""
        if self._connection.sock is not None:
            try:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the server was faster
        self._reply.close()
        self._connection.close()


def _decoded(code: int, text: bytes) -> Obj:
    try:
        body: Any = json.loads(text) if text else {}
    except ValueError:
        body = text.decode(errors="replace")
    if code >= 300:
        raise error_from(code, body)
    if not isinstance(body, dict):
        raise ApiError(code, "", f"not an object: {str(body)[:100]}")
    return body
