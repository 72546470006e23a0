"""A plain client of a real API server for tests: no retries, no cache, independent of the product's own transport."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

# Any: the JSON of arbitrary Kubernetes objects, as the server sent it.
Object = dict[str, Any]

MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and body; `body` is {} when the server did not send a JSON object."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Object:
        try:
            decoded = json.loads(self.text)
        except ValueError:
            return {}
        return decoded if isinstance(decoded, dict) else {}


class ApiError(AssertionError):
    """The server refused; `reason` is that of its Status."""

    def __init__(self, what: str, answer: Answer) -> None:
        super().__init__(f"{what}: {answer.status} {answer.body.get('message') or answer.text[:300]}")
        self.status = answer.status
        self.reason: str = answer.body.get("reason", "")


class Api:
    """Requests as one identity (`token`) against `url`, TLS checked against `ca_file`."""

    def __init__(self, url: str, ca_file: Path | None, token: str) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._pool = urllib3.PoolManager(ca_certs=str(ca_file) if ca_file else None, retries=False, timeout=60.0)

    def ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Answer:
        """Send one request and return whatever the server said; OSError when it could not be reached."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        try:
            reply = self._pool.request(method, self.url + path, body=data, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(str(error)) from error
        return Answer(reply.status, dict(reply.headers), reply.data.decode(errors="replace"))

    def get(self, path: str) -> Object:
        return self._must("GET", path)

    def find(self, path: str) -> Object | None:
        """Like get, None when the object does not exist."""
        answer = self.ask("GET", path)
        if answer.status == 404:
            return None
        if answer.status >= 300:
            raise ApiError(f"GET {path}", answer)
        return answer.body

    def list(self, path: str) -> list[Object]:
        items = self._must("GET", path)["items"]
        assert isinstance(items, list)
        return items

    def create(self, path: str, body: Object) -> Object:
        return self._must("POST", path, body)

    def merge(self, path: str, body: Object) -> Object:
        return self._must("PATCH", path, body, MERGE)

    def replace(self, path: str, body: Object) -> Object:
        return self._must("PUT", path, body)

    def delete(self, path: str, body: Object | None = None) -> Object:
        return self._must("DELETE", path, body)

    def close(self) -> None:
        self._pool.clear()

    def _must(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Object:
        answer = self.ask(method, path, body, kind)
        if answer.status >= 300:
            raise ApiError(f"{method} {path}", answer)
        return answer.body
