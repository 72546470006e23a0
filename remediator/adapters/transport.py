"""HTTP to one API server: single requests and endless streams of lines, on urllib3.

Laws:
1. Nothing is retried here except once after a 401 with a freshly read token: our callers' back-off is the only one.
2. Every call has a connect and a read timeout; a stream that stays silent longer than its read timeout raises.
3. `Stream.close()` may be called from any thread and unblocks a reader at once.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError, SSLError

from remediator.adapters.errors import Fatal, Retryable

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
STREAM_READ_TIMEOUT = 80.0
"""Seconds of silence after which a watch counts as dead: the server sends a bookmark every 60 s on a quiet one."""
TOKEN_MAX_AGE = 60.0
"""Projected tokens rotate on disk well before they expire; one minute is what client-go uses."""
POOL_SIZE = 48
"""Evictions (32), taints (4), watches (5) and some room; a connection more is opened and dropped, never waited for."""
_KEEPALIVE_SECONDS = (30, 15, 4)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call; `timeout` is the longest silence accepted, in seconds."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    timeout: float = READ_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """One endless GET."""

    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    read_timeout: float = STREAM_READ_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of any status; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream(Protocol):
    """An open answer whose lines arrive over time."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def lines(self) -> Iterator[bytes]:
        """Complete lines without their newline; ends with the answer; raises Retryable when the line goes bad."""

    def close(self) -> None: ...


class Transport(Protocol):
    """What the rest of the remediator knows of HTTP."""

    def request(self, request: Request) -> Reply: ...

    def stream(self, request: StreamRequest) -> Stream: ...


class TokenSource(Protocol):
    """Where the bearer token comes from; `refresh` is called after the server refused the current one."""

    def current(self) -> str | None: ...

    def refresh(self) -> None: ...


class StaticToken:
    """A token that never changes, or none at all."""

    def __init__(self, token: str | None) -> None:
        self._token = token.strip() if token else None

    def current(self) -> str | None:
        return self._token

    def refresh(self) -> None:
        """Nothing newer is to be had."""


class FileToken:
    """A token file that somebody else rotates; unreadable for a moment = the last good token goes on."""

    def __init__(self, path: Path, max_age: float = TOKEN_MAX_AGE) -> None:
        self._path = path
        self._max_age = max_age
        self._lock = threading.Lock()
        self._token: str | None = None
        self._read_at = float("-inf")

    def current(self) -> str | None:
        with self._lock:
            if time.monotonic() - self._read_at > self._max_age:
                self._read()
            return self._token

    def refresh(self) -> None:
        with self._lock:
            self._read()

    def _read(self) -> None:
        try:
            # A trailing newline is common in hand-made secrets and no valid header value.
            self._token = self._path.read_text(encoding="utf-8").strip() or self._token
        except OSError:
            if self._token is None:
                raise
        self._read_at = time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the API server is and how we show who we are and know who it is."""

    url: str
    """`https://host:port`, or `http://` for the embedded cluster on loopback."""
    ca_file: str | None = None
    """None = the system's own authorities."""
    verify: bool = True
    token: TokenSource = field(default_factory=lambda: StaticToken(None))
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None


class HttpTransport:
    """The real transport: one connection pool, safe to use from every thread."""

    def __init__(
        self, endpoint: Endpoint, *, user_agent: str = "gpu-remediator", connect_timeout: float = CONNECT_TIMEOUT
    ) -> None:
        self._token = endpoint.token
        self._agent = user_agent
        self._connect_timeout = connect_timeout
        self._pool = urllib3.connection_from_url(endpoint.url, **_pool_options(endpoint))

    def request(self, request: Request) -> Reply:
        """The answer, whatever its status; raises Retryable (no answer) or Fatal (not to be trusted)."""
        try:
            # `total` bounds connecting and waiting together: the leader fence counts on it.
            answer = self._open(request, self._timeout(request.timeout, total=request.timeout), preload=True)
            return Reply(status=answer.status, headers=_lower(answer), body=answer.data)
        except HTTPError as error:
            raise _translated(request.path, error) from error

    def stream(self, request: StreamRequest) -> Stream:
        """An open stream of any status; raises like `request`."""
        opening = Request(method="GET", path=request.path, params=request.params)
        try:
            answer = self._open(opening, self._timeout(request.read_timeout), preload=False)
        except HTTPError as error:
            raise _translated(request.path, error) from error
        return HttpStream(answer, request.path)

    def close(self) -> None:
        """Drop idle connections; streams are closed by their owners."""
        self._pool.close()

    def _timeout(self, read: float, total: float | None = None) -> urllib3.Timeout:
        return urllib3.Timeout(connect=min(self._connect_timeout, read), read=read, total=total)

    def _open(self, request: Request, timeout: urllib3.Timeout, *, preload: bool) -> urllib3.BaseHTTPResponse:
        answer = self._once(request, timeout, preload=preload)
        if answer.status != 401:
            return answer
        # The refused reply must be read to its end, or its connection is lost to the pool.
        answer.drain_conn()
        try:
            self._token.refresh()
        except OSError as error:
            raise Fatal(f"token cannot be read: {error}") from error
        return self._once(request, timeout, preload=preload)

    def _once(self, request: Request, timeout: urllib3.Timeout, *, preload: bool) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": self._agent}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            token = self._token.current()
        except OSError as error:
            raise Fatal(f"token cannot be read: {error}") from error
        if token:
            headers["Authorization"] = f"Bearer {token}"
        query = f"?{urlencode(request.params)}" if request.params else ""
        return self._pool.urlopen(
            request.method,
            request.path + query,
            body=request.body,
            headers=headers,
            timeout=timeout,
            retries=False,
            redirect=False,
            preload_content=preload,
        )


class HttpStream:
    """Lines of one answer, split by hand: libraries' own line iterators cost ten times as much."""

    def __init__(self, answer: urllib3.BaseHTTPResponse, path: str) -> None:
        self._answer = answer
        self._path = path
        self._closed = False

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return _lower(self._answer)

    def lines(self) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in self._answer.stream(1 << 16, decode_content=False):
                pieces = (rest + chunk).split(b"\n")
                rest = pieces.pop()
                for piece in pieces:
                    if piece:
                        yield piece
        except (HTTPError, OSError, ValueError, AttributeError) as error:
            # ValueError and AttributeError: the file under the reader vanished because close() ran in another thread.
            if self._closed:
                return
            if not isinstance(error, HTTPError | OSError):
                raise
            raise _translated(self._path, error) from error
        if rest and not self._closed:
            yield rest

    def close(self) -> None:
        self._closed = True
        try:
            self._answer.shutdown()
        except (ValueError, OSError, RuntimeError):
            # Already at its end, or the peer was faster.
            pass
        # Only after the shutdown: closing waits for the lock that a blocked reader of the buffered file holds.
        connection = self._answer.connection
        if connection is not None:
            connection.close()


def _pool_options(endpoint: Endpoint) -> dict[str, object]:
    options: dict[str, object] = {"maxsize": POOL_SIZE, "block": False, "socket_options": _socket_options()}
    if not endpoint.url.startswith("https"):
        return options
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        if endpoint.cert_file:
            context.load_cert_chain(endpoint.cert_file, endpoint.key_file)
    except (OSError, ssl.SSLError) as error:
        raise Fatal(f"TLS files cannot be used: {error}") from error
    if not endpoint.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    options["ssl_context"] = context
    if endpoint.server_name:
        options["server_hostname"] = endpoint.server_name
        options["assert_hostname"] = endpoint.server_name
    return options


def _socket_options() -> list[tuple[int, int, int]]:
    idle, interval, count = _KEEPALIVE_SECONDS
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    wishes = (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", count))
    return options + [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in wishes if hasattr(socket, name)
    ]


def _lower(answer: urllib3.BaseHTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def _translated(path: str, error: Exception) -> Fatal | Retryable:
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY" in str(error):
        return Fatal(f"{path}: the server's certificate is not trusted")
    if isinstance(error, ReadTimeoutError):
        return Retryable(f"{path}: no byte within the read timeout", reason="timeout")
    if isinstance(error, NewConnectionError):
        return Retryable(f"{path}: cannot connect", reason="connect")
    return Retryable(f"{path}: {type(error).__name__}", reason="connection")
