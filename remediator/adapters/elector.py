"""Leadership by Lease, safe when the API server dies, hangs or lies about the time.

Laws:
1. We lead only until `last success + renew_deadline`, on the monotonic clock, counted from before the request was
   sent. Others wait `lease_duration` (longer) from when they saw the last renewal: the gap keeps leaders apart.
2. A watchdog thread ends our reign; it waits for no HTTP call.
3. Every writer asks `is_leader_until()` for the time its own request may take: the fence.
4. Another's lease counts as dead when *we* saw it unchanged for its whole duration; clocks are never compared.
Source: client-go's leaderelection, minus its trust in the caller to stop in time.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from remediator.adapters.api import KubeApi
from remediator.adapters.errors import AlreadyExists, ApiError, Conflict, NotFound
from remediator.adapters.guarded import survive
from remediator.adapters.resources import LEASES, Ref
from remediator.adapters.transport import Transport
from remediator.adapters.wire import LeaseObject, micro_time

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LeaseTimes:
    """Seconds; `duration > renew_deadline > retry`, as in every controller of Kubernetes.

    Twice client-go's 15/10/2: the fence must outlast an eviction (15 s), so `renew_deadline - retry` must be longer.
    """

    duration: float = 30.0
    renew_deadline: float = 24.0
    retry: float = 4.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry > 0:
            raise ValueError(f"need duration > renew_deadline > retry > 0, got {self}")


@dataclass(frozen=True, kw_only=True)
class Reign:
    """What happens when leadership comes and goes; both must return soon."""

    started: Callable[[], None]
    stopped: Callable[[], None]


class Elector:
    """Two threads: one that asks for the lease, one that ends the reign in time."""

    def __init__(
        self, transport: Transport, lease: Ref[LeaseObject], identity: str, reign: Reign, times: LeaseTimes
    ) -> None:
        self._api = KubeApi(transport, timeout=times.renew_deadline / 3)
        self._lease = lease
        self._identity = identity
        self._reign = reign
        self._times = times
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._leading = False
        self._may_hold = False
        """We have asked for the lease at least once; the server may think that we have it."""
        self._last_success = float("-inf")
        self._seen: tuple[str, str | None] = ("", None)
        """(holder, renewTime) last seen, and since when we saw it unchanged."""
        self._seen_at = time.monotonic()
        self._threads = [
            threading.Thread(target=self._ask, name="elector", daemon=True),
            threading.Thread(target=self._watch, name="elector-watchdog", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def is_leader(self) -> bool:
        return self.is_leader_until() > time.monotonic()

    def is_leader_until(self) -> float:
        """Monotonic time up to which nobody else can lead; -inf when we do not."""
        with self._lock:
            return self._last_success + self._times.renew_deadline if self._leading else float("-inf")

    def stop(self, release: bool = True) -> None:
        """Stop leading at once; with `release`, tell the others so that they need not wait."""
        self._stopping.set()
        self._step_down("stopping")
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(self._times.renew_deadline)
        # Not only when leading: the reply to a successful request may still have been on its way.
        if release and self._may_hold:
            survive("release lease", self._release_or_leave)

    def _ask(self) -> None:
        while not self._stopping.is_set():
            survive("elect", self._once)
            self._stopping.wait(self._times.retry)

    def _once(self) -> None:
        try:
            self._acquire_or_renew()
        except NotFound:
            log.warning("cannot lead: namespace of %s is missing", self._lease)
        except ApiError as error:
            log.warning("lease not renewed lease=%s error=%s", self._lease, error)

    def _acquire_or_renew(self) -> None:
        # Taken before the request: the reply may be late, the server's record is not younger than this.
        asked_at = time.monotonic()
        try:
            lease = self._api.get(self._lease)
        except NotFound:
            self._create(asked_at)
            return
        self._observe(lease)
        holder = lease.spec.holder_identity
        if holder not in ("", self._identity) and not self._expired(lease):
            if self.is_leader():
                self._step_down(f"lease is held by {holder}")
            return
        self._write(lease, asked_at)

    def _observe(self, lease: LeaseObject) -> None:
        seen = (lease.spec.holder_identity, lease.spec.renew_time)
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()

    def _expired(self, lease: LeaseObject) -> bool:
        duration = max(float(lease.spec.lease_duration_seconds), self._times.duration)
        return time.monotonic() - self._seen_at > duration

    def _create(self, asked_at: float) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._lease.name, "namespace": self._lease.namespace},
            "spec": self._spec(acquired=True, transitions=0),
        }
        self._may_hold = True
        try:
            self._api.create(LEASES, body, self._lease.namespace)
        except AlreadyExists:
            return
        self._won(asked_at)

    def _write(self, lease: LeaseObject, asked_at: float) -> None:
        ours = lease.spec.holder_identity == self._identity
        transitions = lease.spec.lease_transitions + (0 if ours else 1)
        body = {
            "metadata": {"resourceVersion": lease.metadata.resource_version},
            "spec": self._spec(acquired=not ours, transitions=transitions),
        }
        self._may_hold = True
        try:
            self._api.merge_patch(self._lease, body)
        except Conflict:
            log.info("another candidate was faster lease=%s", self._lease)
            return
        self._won(asked_at)

    def _spec(self, *, acquired: bool, transitions: int) -> dict[str, Any]:
        now = micro_time(datetime.now(UTC))
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._times.duration)),
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        return spec | ({"acquireTime": now} if acquired else {})

    def _won(self, asked_at: float) -> None:
        with self._lock:
            # A reply that comes after the deadline it would have extended must not bring the reign back to life.
            if self._stopping.is_set() or time.monotonic() - asked_at > self._times.renew_deadline:
                return
            first = not self._leading
            self._leading = True
            self._last_success = asked_at
        if first:
            log.info("leading identity=%s lease=%s", self._identity, self._lease)
            survive("start leading", self._reign.started)

    def _watch(self) -> None:
        pause = min(self._times.retry, self._times.renew_deadline / 10)
        while not self._stopping.wait(pause):
            if self._leading and not self.is_leader():
                self._step_down("not renewed in time")

    def _step_down(self, why: str) -> None:
        with self._lock:
            if not self._leading:
                return
            self._leading = False
        log.warning("no longer leading identity=%s reason=%s", self._identity, why)
        survive("stop leading", self._reign.stopped)

    def _release_or_leave(self) -> None:
        try:
            self._release()
        except ApiError as error:
            # Nothing is lost but time: the others wait until it expires.
            log.warning("lease not released lease=%s error=%s", self._lease, error)

    def _release(self) -> None:
        lease = self._api.get(self._lease)
        if lease.spec.holder_identity != self._identity:
            return
        body = {
            "metadata": {"resourceVersion": lease.metadata.resource_version},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time(datetime.now(UTC))},
        }
        self._api.merge_patch(self._lease, body)


class AlwaysLeader:
    """Leader election switched off: one replica, by the user's word."""

    def __init__(self, reign: Reign) -> None:
        self._reign = reign
        self._stopped = False

    def start(self) -> None:
        self._reign.started()

    def is_leader(self) -> bool:
        return not self._stopped

    def is_leader_until(self) -> float:
        return float("-inf") if self._stopped else float("inf")

    def stop(self, release: bool = True) -> None:
        """Stop leading; there is nothing to release."""
        del release
        self._stopped = True
        self._reign.stopped()
