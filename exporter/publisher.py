"""Writes this node's GPUNode and its heartbeat Lease, from a thread of its own.

Laws:
1. The loop is never held up: it leaves its newest report here and goes on; a report that was not written in time is
   replaced by the next one.
2. A heartbeat says that the loop turns, not that a thread exists: no fresh report, no renewal.
3. A change of health is written at once; everything else (pods, counts) at most every `PODS_SECONDS`; without any
   change every 10 to 30 minutes, at random, so that 5,000 nodes do not write together.
4. Compared before writing: what the API server already holds is not written again.
5. Every few minutes it looks whether its object is still there and still says what it wrote.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from exporter.apiserver import Absent, ApiError, ApiServer, Conflict, Refused, Retryable
from exporter.health import keys
from exporter.health.vocabulary import HealthReport
from exporter.health.wire import report_to_status
from exporter.logs import fields

log = logging.getLogger(__name__)

HEALTH_SECONDS: Final = 0.25
"""Least time between two writes of a changing health: a burst of faults becomes few writes, and none waits long."""
PODS_SECONDS: Final = 5.0
REFRESH_SECONDS: Final = (600.0, 1800.0)
CHECK_SECONDS: Final = (240.0, 360.0)
"""A deleted GPUNode comes back within this time; at 5,000 nodes it costs 17 GETs a second, 1 % of a core."""
BACK_OFF_SECONDS: Final = (1.0, 30.0)
"""At most a third of the life of a Lease: one API server restart must not make healthy nodes Unknown."""
LONGEST_ASKED_SECONDS: Final = 45.0
"""Retry-After is obeyed up to half the life of a Lease: a proxy that says an hour must not make a node Unknown."""
LEASE_LIVES: Final = 3
"""A Lease is stale after so many missed renewals."""


class PublishCounts(Protocol):
    """Where results are counted."""

    def published(self, target: str, result: str) -> None:
        """A write of `target` ended with `result`."""


@dataclass(frozen=True, kw_only=True)
class PublisherSettings:
    """Whose objects, and how often."""

    node: str
    namespace: str = keys.NAMESPACE
    lease_seconds: float = 30.0
    stalled_seconds: float = 30.0
    """Reports older than this renew no Lease: three intervals of the loop, at least 30 s."""


class _Task:
    """One object that is written: when it is due, how long it backs off, what was last said about it in the log."""

    def __init__(self, name: str, write: Callable[[HealthReport], str]) -> None:
        self.name = name
        self.write = write
        self.not_before = 0.0
        self._failures = 0
        self._said: set[str] = set()

    def succeeded(self) -> None:
        if self._said:
            log.info("publishing works again", extra=fields(object=self.name))
        self._failures = 0
        self._said.clear()

    def failed(self, error: ApiError) -> None:
        first, most = BACK_OFF_SECONDS
        wait = min(most, first * 2**self._failures) * random.uniform(0.8, 1.2)
        asked = (error.after or 0.0) if isinstance(error, Retryable) else 0.0
        self.not_before = time.monotonic() + max(wait, min(asked, LONGEST_ASKED_SECONDS))
        self._failures = min(self._failures + 1, 10)
        kind = _kind(error)
        if kind not in self._said:
            self._said.add(kind)
            log.warning("publishing failed", extra=fields(object=self.name, kind=kind, error=error))


def _kind(error: ApiError) -> str:
    if isinstance(error, Retryable):
        return error.kind
    return f"http-{error.status}" if isinstance(error, Refused) else type(error).__name__.lower()


class Publisher:
    """Publishes the newest report that was offered. `start`, `offer` as often as you like, `stop`."""

    def __init__(self, api: ApiServer, settings: PublisherSettings, counts: PublishCounts) -> None:
        self._api = api
        self._settings = settings
        self._counts = counts
        self._wake = threading.Condition()
        self._stopping = False
        self._report: HealthReport | None = None
        self._offered_at = 0.0
        self._stored: dict[str, Any] | None = None
        """Status that the API server holds; None = unknown or no object there."""
        self._written_at = 0.0
        self._refresh_at = time.monotonic() + random.uniform(*REFRESH_SECONDS)
        self._check_at = 0.0
        self._renew_at = 0.0
        self._owner: list[dict[str, Any]] | None = None
        self._status = _Task("status", self._write_status)
        self._lease = _Task("lease", self._write_lease)
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to publish; the first write comes with the first report."""
        self._thread.start()

    def offer(self, report: HealthReport) -> None:
        """Take `report` as the newest; never blocks longer than a swap of references."""
        with self._wake:
            self._report = report
            self._offered_at = time.monotonic()
            self._wake.notify()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread; a write under way may finish within `timeout` seconds."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._stopping:
                    break
                wait = self._wait()
                if wait is None or wait > 0:
                    self._wake.wait(wait)
                    continue
            self._turn()
        self._api.close()

    def _wait(self) -> float | None:
        """Seconds until something is due; None before the first report."""
        if self._report is None:
            return None
        now = time.monotonic()
        return min(self._status_due(self._report), self._lease_due(now)) - now

    def _turn(self) -> None:
        report = self._report
        if report is None:
            return
        for task, due in ((self._status, self._status_due(report)), (self._lease, self._lease_due(time.monotonic()))):
            if due > time.monotonic():
                continue
            try:
                result = task.write(report)
            except ApiError as error:
                task.failed(error)
                self._counts.published(task.name, "failed")
            else:
                task.succeeded()
                self._counts.published(task.name, result)

    # --- GPUNode -----------------------------------------------------------------------------------------------------

    def _status_due(self, report: HealthReport) -> float:
        if self._stored is None:
            due = 0.0
        else:
            status = report_to_status(report)
            if _health_of(status) != _health_of(self._stored):
                due = self._written_at + HEALTH_SECONDS
            elif _compared(status) != _compared(self._stored):
                due = self._written_at + PODS_SECONDS
            else:
                due = min(self._refresh_at, self._check_at)
        return max(due, self._status.not_before)

    def _write_status(self, report: HealthReport) -> str:
        status = report_to_status(report)
        path = f"/apis/{keys.API_VERSION}/{keys.GPU_NODES}/{self._settings.node}"
        now = time.monotonic()
        if self._stored is None or now >= self._check_at:
            self._stored = self._ensure(path)
            self._check_at = now + random.uniform(*CHECK_SECONDS)
        if _compared(status) == _compared(self._stored) and now < self._refresh_at:
            return "unchanged"
        # A merge patch keeps what it does not name: say what went.
        gone = dict.fromkeys(self._stored.keys() - status.keys())
        try:
            self._api.patch(f"{path}/status", {"status": {**status, **gone}})
        except Absent:
            self._stored = None  # deleted under us: created again at the next try
            raise
        self._stored = status
        self._written_at = time.monotonic()
        self._refresh_at = self._written_at + random.uniform(*REFRESH_SECONDS)
        return "written"

    def _ensure(self, path: str) -> dict[str, Any]:
        """The status that the API server holds, after making sure that there is an object to hold it."""
        try:
            found = self._api.get(path)
        except Absent:
            body = {
                "apiVersion": keys.API_VERSION,
                "kind": keys.GPU_NODE_KIND,
                "metadata": {"name": self._settings.node, "ownerReferences": self._owners()},
            }
            try:
                found = self._api.create(path.rpartition("/")[0], body)
            except Conflict:
                found = self._api.get(path)
        status = found.get("status")
        return status if isinstance(status, dict) else {}

    def _owners(self) -> list[dict[str, Any]]:
        """Our Node as the owner, so that both objects go when it goes; empty when we may not read it."""
        if self._owner is None:
            try:
                uid = self._api.get(f"/api/v1/nodes/{self._settings.node}")["metadata"]["uid"]
            except (Absent, Refused, KeyError, TypeError) as unknown:
                log.info("no owner for our objects", extra=fields(node=self._settings.node, reason=unknown))
                self._owner = []
            else:
                self._owner = [{"apiVersion": "v1", "kind": "Node", "name": self._settings.node, "uid": uid}]
        return self._owner

    # --- Lease -------------------------------------------------------------------------------------------------------

    def _lease_due(self, now: float) -> float:
        due = max(self._renew_at, self._lease.not_before)
        if due <= now and now - self._offered_at > self._settings.stalled_seconds:
            return now + self._settings.lease_seconds  # looked at again when a report comes, which wakes us
        return due

    def _write_lease(self, _report: HealthReport) -> str:
        settings = self._settings
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": settings.node,
            "leaseDurationSeconds": round(LEASE_LIVES * settings.lease_seconds),
            "renewTime": now,
        }
        try:
            self._api.patch(f"{leases}/{settings.node}", {"spec": spec})
        except Absent:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": settings.node, "namespace": settings.namespace, "ownerReferences": self._owners()},
                "spec": {**spec, "acquireTime": now},
            }
            self._api.create(leases, body)
        self._renew_at = time.monotonic() + settings.lease_seconds
        return "written"


def _compared(status: dict[str, Any]) -> dict[str, Any]:
    """What makes a status worth writing: all but the time it was taken at."""
    return {key: value for key, value in status.items() if key != "observedAt"}


def _health_of(status: dict[str, Any]) -> object:
    """What a remediator acts on: changes here are written at once."""
    node = tuple(status.get(key) for key in ("bootID", "driverState", "health", "seenGPUs", "expectedGPUs"))
    gpus = tuple((gpu.get("uuid"), gpu.get("health"), _codes(gpu)) for gpu in status.get("gpus") or ())
    return node, _codes(status), gpus


def _codes(holder: dict[str, Any]) -> tuple[tuple[object, ...], ...]:
    return tuple(
        (finding.get("code"), finding.get("severity"), finding.get("bootID"))
        for finding in holder.get("findings") or ()
    )
