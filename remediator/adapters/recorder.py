"""Kubernetes Events: told once, counted when repeated, never in anybody's way.

Laws:
1. `record` never blocks and never raises: a full queue drops the event and counts the drop.
2. The same dedupe key within the memory is one Event object whose count grows.
3. Events of cluster-scoped objects live in the namespace `default`, where kubectl looks for them.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from exporter.health import keys
from exporter.health.wire import timestamp
from remediator.adapters.api import KubeApi
from remediator.adapters.errors import ApiError, NotFound
from remediator.adapters.outbox import Outbox
from remediator.adapters.resources import EVENTS, Ref

log = logging.getLogger(__name__)

QUEUE_LIMIT = 1000
MEMORY_LIMIT = 4096
MEMORY_SECONDS = 3600.0
"""The API server forgets Events after an hour by default; patching a forgotten one would be a 404."""
MESSAGE_LIMIT = 1024
"""The API server's own limit of an Event message."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """One event about one object."""

    kind: str
    name: str
    uid: str
    reason: str
    message: str
    warning: bool = False
    dedupe: str = ""
    namespace: str = ""
    api_version: str = "v1"


@dataclass
class _Known:
    name: str
    count: int
    at: float


class Recorder:
    """One thread that writes what the others tell."""

    def __init__(self, api: KubeApi, *, instance: str, on_result: Callable[[str], None] = lambda _result: None) -> None:
        self._api = api
        self._instance = instance
        self._on_result = on_result
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._outbox: Outbox[Told] = Outbox("events", QUEUE_LIMIT, self._write, on_result)

    def start(self) -> None:
        self._outbox.start()

    def stop(self, timeout: float = 3.0) -> None:
        """Write what is queued, at most `timeout` seconds long."""
        self._outbox.stop(timeout)

    def record(self, told: Told) -> None:
        """Have it written soon; counts `dropped` when too much is waiting."""
        self._outbox.put(told)

    def _write(self, told: Told) -> None:
        key = told.dedupe or f"{told.kind}/{told.name}/{told.reason}/{told.message}"
        try:
            known = self._known.get(key)
            if known is not None and time.monotonic() - known.at < MEMORY_SECONDS:
                self._repeat(told, known)
            else:
                self._first(told, key)
            self._on_result("written")
        except ApiError as error:
            log.info("event not written reason=%s error=%s", told.reason, error)
            self._on_result("failed")

    def _first(self, told: Told, key: str) -> None:
        body = _event(told, self._instance, datetime.now(UTC))
        self._api.create(EVENTS, body, body["metadata"]["namespace"])
        self._known[key] = _Known(body["metadata"]["name"], 1, time.monotonic())
        self._known.move_to_end(key)
        while len(self._known) > MEMORY_LIMIT:
            self._known.popitem(last=False)

    def _repeat(self, told: Told, known: _Known) -> None:
        patch = {"count": known.count + 1, "lastTimestamp": timestamp(datetime.now(UTC)), "message": _cut(told.message)}
        ref = Ref(EVENTS, known.name, told.namespace or "default")
        try:
            self._api.merge_patch(ref, patch)
        except NotFound:
            # Somebody cleaned up: begin again.
            self._first(told, told.dedupe or f"{told.kind}/{told.name}/{told.reason}/{told.message}")
            return
        known.count += 1


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else f"{message[: MESSAGE_LIMIT - 1]}…"


def _event(told: Told, instance: str, now: datetime) -> dict[str, Any]:
    namespace = told.namespace or "default"
    moment = timestamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{told.name[:200]}.{time.time_ns():x}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": told.api_version,
            "kind": told.kind,
            "name": told.name,
            "uid": told.uid,
            **({"namespace": told.namespace} if told.namespace else {}),
        },
        "reason": told.reason,
        "message": _cut(told.message),
        "type": "Warning" if told.warning else "Normal",
        "source": {"component": keys.CONTROLLER},
        "reportingComponent": keys.CONTROLLER,
        "reportingInstance": instance,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
