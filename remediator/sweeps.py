"""Periodic sweeps: the slow housekeeping that no event asks for. The only home of APScheduler.

Laws:
1. A sweep that starts late still runs (`misfire_grace_time=None`), never twice at once, never piles up.
2. Every sweep has a deadline inside; a run that is skipped or fails is counted, because the scheduler only logs it.
3. Sweeps that write run only while we lead; the fence stands behind them.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from remediator.adapters.api import KubeApi
from remediator.adapters.errors import ApiError
from remediator.adapters.resources import GPU_INCIDENTS, JOBS, Ref
from remediator.domain.model import ClusterView

log = logging.getLogger(__name__)

RESYNC_SECONDS = 600
HOUSEKEEPING_SECONDS = 900
DEADLINE_SECONDS = 120.0
FIRST_RUN_SECONDS = 30
"""Not at once: a start is busy enough, and a crash loop must not delete anything at every turn of the loop."""
ORPHAN_SECONDS = 600
"""Age at which a Job without an open incident counts as forgotten."""

_RESULTS = {EVENT_JOB_EXECUTED: "ok", EVENT_JOB_ERROR: "failed", EVENT_JOB_MISSED: "missed"}


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long closed incidents are kept: the audit trail and the memory of repeat offenders."""

    days: float = 30.0
    count: int = 5000


@dataclass(frozen=True, kw_only=True)
class Sweepers:
    """What the sweeps work with."""

    api: KubeApi
    namespace: str
    facts: Callable[[], ClusterView]
    leads: Callable[[], bool]
    resync: Callable[[], None]
    """Have the loop look at everything again."""
    swept: Callable[[str, str], None]
    """Name and result of a run."""


class Sweeps:
    """`start` and `stop`; each sweep may also be called by hand."""

    def __init__(self, parts: Sweepers, retention: Retention) -> None:
        self._parts = parts
        self._retention = retention
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            # One executor each: a slow sweep must not starve the other.
            executors={"default": ThreadPoolExecutor(1), "housekeeping": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )
        events = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES
        self._scheduler.add_listener(self._count, events)
        first = datetime.now(UTC) + timedelta(seconds=FIRST_RUN_SECONDS)
        self._add("resync", parts.resync, RESYNC_SECONDS, first, "default")
        self._add("housekeeping", self.housekeeping, HOUSEKEEPING_SECONDS, first, "housekeeping")

    def start(self) -> None:
        self._scheduler.start()

    def stop(self) -> None:
        """Start no more runs; one under way ends by its deadline."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def housekeeping(self) -> None:
        """Delete incidents past their retention and Jobs that no open incident needs."""
        if not self._parts.leads():
            return
        deadline = time.monotonic() + DEADLINE_SECONDS
        view = self._parts.facts()
        now = datetime.now(UTC)
        refs: list[Ref[Any]] = [Ref(GPU_INCIDENTS, name) for name in expired_incidents(view, self._retention, now)]
        refs += [Ref(JOBS, name, self._parts.namespace) for name in forgotten_jobs(view, now)]
        for ref in refs:
            if time.monotonic() > deadline or not self._parts.leads():
                log.info("housekeeping goes on next time left=%s", ref)
                return
            try:
                self._parts.api.delete(ref)
            except ApiError as error:
                log.info("not deleted what=%s error=%s", ref, error)

    def _add(self, name: str, work: Callable[[], None], seconds: int, first: datetime, executor: str) -> None:
        self._scheduler.add_job(
            work, "interval", seconds=seconds, jitter=seconds // 10, next_run_time=first, id=name, executor=executor
        )

    def _count(self, event: Any) -> None:
        self._parts.swept(event.job_id, _RESULTS.get(event.code, "skipped"))


def expired_incidents(view: ClusterView, keep: Retention, now: datetime) -> tuple[str, ...]:
    """Names of closed incidents that are too old or too many, oldest first."""
    closed = sorted((i for i in view.incidents if i.closed_at is not None), key=lambda i: (i.closed_at or now, i.name))
    too_many = max(0, len(closed) - keep.count)
    oldest = now - timedelta(days=keep.days)
    return tuple(i.name for n, i in enumerate(closed) if n < too_many or (i.closed_at or now) < oldest)


def forgotten_jobs(view: ClusterView, now: datetime) -> tuple[str, ...]:
    """Names of finished Jobs of ours whose incident is closed or gone, finished some time ago."""
    still_open = {incident.name for incident in view.incidents if incident.open}
    before = now - timedelta(seconds=ORPHAN_SECONDS)
    return tuple(
        job.name
        for job in view.jobs
        if job.incident not in still_open and job.finished_at is not None and job.finished_at < before
    )
