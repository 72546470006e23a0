"""The API server over one kept connection: JSON in, JSON out, errors named by what the caller must do.

Laws:
1. Every request ends within its timeout; nothing here retries by itself except once after a stale connection or a 401.
2. The token file is read again every minute and after a 401; a token is never logged.
3. Plain http is for the embedded cluster on loopback only: a token never travels unencrypted to another machine.

Why not `kubernetes`: it costs every GPU node 60 MB for one PATCH and one heartbeat.
"""

import http.client
import ipaddress
import json
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_LIFETIME_SECONDS: Final = 60.0
"""Kubelet renews the file long before the token ends; a minute follows it closely enough."""
REQUEST_TIMEOUT_SECONDS: Final = 10.0
CONNECTION_SECONDS: Final = (600.0, 1200.0)
"""A kept connection is dropped after a random time in between, so that nodes spread over API server replicas again."""
REPLY_LIMIT_BYTES: Final = 4 << 20
"""No reply that we ask for comes near; a broken proxy must not fill our memory."""
MERGE_PATCH: Final = "application/merge-patch+json"


class ApiError(Exception):
    """Root of the tree: `Retryable` | `Absent` | `Conflict` | `Refused`."""


class Retryable(ApiError):
    """Try again later: network, 429, 5xx, missing token. `after` is what the server asked for, in seconds, or None."""

    def __init__(self, message: str, kind: str, after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        """Short word for logs and deduplication: `network`, `http-503`, `token`."""
        self.after = after


class Absent(ApiError):
    """404: the object is not there."""


class Conflict(ApiError):
    """409: it exists already, or somebody else wrote in between."""


class Refused(ApiError):
    """Any other 4xx: trying the same again gives the same answer until a human changes something."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the API server is and how to prove who we are."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.url!r} is not an API server address; allowed: https://HOST[:PORT]")
        if parts.scheme == "http" and not _loopback(parts.hostname):
            raise ValueError(f"{self.url!r}: plain http is allowed on loopback only; use https")


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def in_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Endpoint | None:
    """The endpoint every pod is given, or None when this process is not in a pod (or has no token mounted)."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = service_account / "token"
    if not host or not token.exists():
        return None
    name = f"[{host}]" if ":" in host else host
    return Endpoint(url=f"https://{name}:{port}", token_file=token, ca_file=service_account / "ca.crt")


class ApiServer:
    """JSON requests to one API server. Used by one thread at a time."""

    def __init__(self, endpoint: Endpoint, user_agent: str, timeout: float = REQUEST_TIMEOUT_SECONDS) -> None:
        self._endpoint = endpoint
        self._base = urlsplit(endpoint.url)
        self._user_agent = user_agent
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None
        self._drop_at = 0.0
        self._token: str | None = None
        self._token_until = 0.0

    def get(self, path: str) -> dict[str, Any]:
        """The object at `path`."""
        return self._request("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST `body`; an existing object raises `Conflict`."""
        return self._request("POST", path, body, "application/json")

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge patch; a missing object raises `Absent`."""
        return self._request("PATCH", path, body, MERGE_PATCH)

    def close(self) -> None:
        """Drop the kept connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content_type: str | None = None
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        if content_type is not None:
            headers["Content-Type"] = content_type
        status, reply, raw = self._send(method, path, data, headers)
        if status == HTTPStatus.UNAUTHORIZED and self._endpoint.token_file is not None:
            self._token_until = 0.0
            status, reply, raw = self._send(method, path, data, headers)
        return _judge(status, reply, raw)

    def _send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, http.client.HTTPResponse, bytes]:
        token = self._bearer()
        if token is not None:
            headers = {**headers, "Authorization": f"Bearer {token}"}
        kept = self._connection is not None and time.monotonic() < self._drop_at
        try:
            return self._exchange(method, path, data, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as gone:
            self.close()
            if not kept:
                raise Retryable(f"{self._base.netloc} hung up: {gone}", "network") from gone
        except (OSError, http.client.HTTPException) as failed:
            raise self._unreachable(failed) from failed
        try:  # the server had closed the kept connection while it was idle
            return self._exchange(method, path, data, headers)
        except (OSError, http.client.HTTPException) as failed:
            raise self._unreachable(failed) from failed

    def _unreachable(self, failed: Exception) -> Retryable:
        self.close()
        return Retryable(f"{self._base.netloc} cannot be reached: {failed or type(failed).__name__}", "network")

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, http.client.HTTPResponse, bytes]:
        connection = self._connect()
        connection.request(method, self._base.path.rstrip("/") + path, body=data, headers=headers)
        reply = connection.getresponse()
        raw = _read(reply, time.monotonic() + self._timeout)
        if reply.will_close:
            self.close()
        return reply.status, reply, raw

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is not None and time.monotonic() >= self._drop_at:
            self.close()
        if self._connection is None:
            host, port = self._base.hostname or "", self._base.port
            if self._base.scheme == "https":
                context = ssl.create_default_context(cafile=self._endpoint.ca_file)
                self._connection = http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
            self._drop_at = time.monotonic() + random.uniform(*CONNECTION_SECONDS)
        return self._connection

    def _bearer(self) -> str | None:
        if self._endpoint.token_file is None:
            return None
        if time.monotonic() >= self._token_until:
            try:
                # A trailing newline is not a valid header value.
                token = self._endpoint.token_file.read_text().strip()
            except OSError as failed:
                raise Retryable(f"token file cannot be read: {failed}", "token") from failed
            except UnicodeDecodeError:  # its message would hold the token
                raise Retryable(f"token file {self._endpoint.token_file} holds no token", "token") from None
            if not token or not token.isascii() or not token.isprintable():
                raise Retryable(f"token file {self._endpoint.token_file} holds no token", "token")
            self._token = token
            self._token_until = time.monotonic() + TOKEN_LIFETIME_SECONDS
        return self._token


def _read(reply: http.client.HTTPResponse, deadline: float) -> bytes:
    """The whole body. The socket timeout holds per read; the deadline also ends a body that trickles."""
    raw = bytearray()
    while chunk := reply.read1(1 << 16):
        raw += chunk
        if len(raw) > REPLY_LIMIT_BYTES:
            raise http.client.HTTPException(f"reply of more than {REPLY_LIMIT_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the reply takes too long")
    if reply.length:
        raise http.client.IncompleteRead(bytes(raw), reply.length)
    reply.close()  # read1 does not close a reply of known length at its end, and the connection would take no request
    return bytes(raw)


def _judge(status: int, reply: http.client.HTTPResponse, raw: bytes) -> dict[str, Any]:
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return _object(raw)
    message = f"HTTP {status}: {_said(raw)}"
    if status == HTTPStatus.NOT_FOUND:
        raise Absent(message)
    if status == HTTPStatus.CONFLICT:
        raise Conflict(message)
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT) or status >= 500:
        raise Retryable(message, f"http-{status}", _retry_after(reply))
    raise Refused(message, status)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(raw)
    except (ValueError, RecursionError) as garbled:
        raise Retryable(f"reply is not JSON: {garbled}", "garbled") from garbled
    if not isinstance(decoded, dict):
        raise Retryable("reply is not a JSON object", "garbled")
    return decoded


def _said(raw: bytes) -> str:
    """The server's own words, short: a Status message, else the text (flow control answers in plain text)."""
    try:
        text = str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = raw.decode(errors="replace").strip()
    return text[:256]


def _retry_after(reply: http.client.HTTPResponse) -> float | None:
    try:
        return max(0.0, float(reply.headers["Retry-After"]))
    except (KeyError, TypeError, ValueError):
        return None
