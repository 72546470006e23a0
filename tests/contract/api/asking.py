"""A bare HTTP client for the contract: sends anything, returns everything, follows watches line by line."""

import json
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# Any: the JSON of arbitrary Kubernetes objects.
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `body` is the text when it is not JSON."""

    status: int
    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request; `raw` replaces `body`, `token` None is the admin's and "" is nobody's."""

    method: str
    path: str
    body: Any = None
    kind: str = JSON
    raw: bytes | None = None
    token: str | None = None
    accept: str = JSON


class Server:
    """One of the two servers, as admin."""

    def __init__(self, name: str, url: str, ca_file: Path | None, token: str) -> None:
        self.name = name
        self.url = url
        self.ca_file = ca_file
        self._token = token
        self._pool = urllib3.PoolManager(ca_certs=str(ca_file) if ca_file else None, retries=False, maxsize=16)

    def ask(self, ask: Ask) -> Answer:
        data = ask.raw if ask.raw is not None else None if ask.body is None else json.dumps(ask.body).encode()
        headers = self._headers(ask)
        reply = self._pool.request(ask.method, self.url + ask.path, body=data, headers=headers, timeout=20.0)
        text = reply.data.decode(errors="replace")
        try:
            body = json.loads(text)
        except ValueError:
            body = text
        return Answer(reply.status, body, reply.headers)

    def _headers(self, ask: Ask) -> dict[str, str]:
        token = self._token if ask.token is None else ask.token
        authorization = {"Authorization": f"Bearer {token}"} if token else {}
        return {"Content-Type": ask.kind, "Accept": ask.accept} | authorization

    def must(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Object:
        """The answered object; AssertionError with the server's words when it refuses."""
        answer = self.ask(Ask(method=method, path=path, body=body, kind=kind))
        assert answer.status < 300, f"{self.name}: {method} {path}: {answer.status} {answer.body}"
        found: Object = answer.body
        return found

    def get(self, path: str) -> Object:
        return self.must("GET", path)

    def merge(self, path: str, body: Object) -> Object:
        return self.must("PATCH", path, body, MERGE)

    def watch(self, path: str, accept: str = JSON) -> "Watching":
        """Opens a watch; the answer must be 200."""
        headers = self._headers(Ask(method="GET", path=path, accept=accept))
        reply = self._pool.request(
            "GET", self.url + path, headers=headers, preload_content=False, timeout=urllib3.Timeout(5.0, read=30.0)
        )
        assert reply.status == 200, f"{self.name}: {path}: {reply.status} {reply.data!r}"
        return Watching(reply)

    def close(self) -> None:
        self._pool.clear()


class Watching:
    """A watch being read by a thread; use it as a context manager."""

    def __init__(self, reply: urllib3.BaseHTTPResponse) -> None:
        self._reply = reply
        self._lines: queue.Queue[Object | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Watching":
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            try:
                self._reply.shutdown()
            except (RuntimeError, ValueError):
                pass  # it ended by itself in this moment
        self._thread.join(10.0)
        self._reply.close()

    def _read(self) -> None:
        rest = b""
        try:
            for chunk in self._reply.stream(65_536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._lines.put(json.loads(line))
        except (urllib3.exceptions.HTTPError, ValueError, OSError):
            pass  # closed by us
        self._lines.put(None)

    def next(self, seconds: float = 10.0) -> Object | None:
        """The next event, None at the end of the stream; AssertionError when nothing comes."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"no event within {seconds} s") from None

    def must_next(self, seconds: float = 10.0) -> Object:
        event = self.next(seconds)
        assert event is not None, "the watch has ended"
        return event

    def silent_for(self, seconds: float) -> bool:
        """True when nothing, not even the end, comes for so long."""
        try:
            self._lines.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def until_end(self, seconds: float = 10.0) -> list[Object]:
        """Everything up to the end of the stream."""
        found: list[Object] = []
        end = time.monotonic() + seconds
        while (event := self.next(max(0.01, end - time.monotonic()))) is not None:
            found.append(event)
        return found


def told(event: Object) -> tuple[str, str]:
    """Type and name of an event."""
    return event["type"], event["object"]["metadata"].get("name", "")
