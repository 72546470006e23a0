"""The exporter's own metrics (`gpuward_exporter_*`): does each source work, what does it cost, does publishing work.

The only home of prometheus_client. Collected once per turn with the device series, never by a scrape.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from exporter.exposition.family import Facts, Family, Kind, Sample

PREFIX = "gpuward_exporter"


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What other parts count for themselves, since the start."""

    scrapes: int = 0
    dropped: int = 0
    lost: int = 0


class OwnMetrics:
    """What the parts of the exporter say about themselves; every method may be called from any thread."""

    def __init__(self, version: str) -> None:
        # A second series per counter that no rule of ours reads; the function carries no annotations.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._success = self._gauge("collector_success", "1 = the last run of this collector succeeded.", "collector")
        self._duration = self._gauge(
            "collector_duration_seconds", "How long the last run of this collector took.", "collector"
        )
        self._state = self._gauge("source_state", "1 for the state that each source of facts is in.", "source", "state")
        self._states: dict[str, str] = {}
        self._states_lock = threading.Lock()
        self._errors = self._counter("errors", "Failures inside the exporter, by the part that failed.", "part")
        self._published = self._counter("publish", "Writes to the API server, by result.", "object", "result")
        self._scrapes = self._counter("scrapes", "Answered scrapes.")
        self._dropped = self._counter("samples_dropped", "Samples left out: a repeated label set, or no finite number.")
        self._lost = self._counter("events_lost", "Events pushed out by newer ones before they could be judged.")
        self._shown = Totals()
        self._age = self._gauge("snapshot_age_seconds", "Age of the newest snapshot when this page was rendered.")
        self._rendered = self._gauge("render_timestamp_seconds", "Unix time at which this page was rendered.")
        self._gauge("build_info", "Version of the exporter; always 1.", "version").labels(version).set(1)
        # Born at 0: `increase()` misses the first event of a series that is born with it.
        for part in ("turn", "health", "exposition", "state-file"):
            self._errors.labels(part)
        for target in ("status", "lease"):
            for result in ("written", "unchanged", "failed"):
                self._published.labels(target, result)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self._registry)

    def collected(self, collector: str, seconds: float, ok: bool) -> None:
        """One run of `collector` ended."""
        self._success.labels(collector).set(ok)
        self._duration.labels(collector).set(seconds)

    def state(self, source: str, state: str) -> None:
        """`source` is in `state`; its former state shows 0 from now on."""
        with self._states_lock:
            former = self._states.get(source)
            if former == state:
                return
            self._states[source] = state
        if former is not None:
            self._state.labels(source, former).set(0)
        self._state.labels(source, state).set(1)

    def failed(self, part: str) -> None:
        """Something went wrong in `part` and the exporter went on."""
        self._errors.labels(part).inc()

    def published(self, target: str, result: str) -> None:
        """A write of `target` (`status`, `lease`) ended with `result` (`written`, `unchanged`, `failed`...)."""
        self._published.labels(target, result).inc()

    def rendering(self, *, now: float, age: float | None, totals: Totals) -> None:
        """Facts about the page under way; `age` is None before the first snapshot (and shown as NaN)."""
        self._rendered.set(now)
        self._age.set(float("nan") if age is None else age)
        self._scrapes.inc(totals.scrapes - self._shown.scrapes)
        self._dropped.inc(totals.dropped - self._shown.dropped)
        self._lost.inc(totals.lost - self._shown.lost)
        self._shown = totals

    def text(self) -> str:
        """All own metrics in Prometheus text."""
        return generate_latest(self._registry).decode()


def _restarts(facts: Facts) -> Iterator[Sample]:
    yield (), facts.snapshot.worker_restarts


def _sweeps(facts: Facts) -> Iterator[Sample]:
    for gpu in facts.snapshot.gpus:
        if gpu.sweep_seconds > 0:  # 0 = this GPU was not swept
            yield (gpu.identity.uuid,), gpu.sweep_seconds


def _failed_reads(facts: Facts) -> Iterator[Sample]:
    for uuid, subject, count in facts.snapshot.failed_reads:
        yield (uuid, subject), count


FAMILIES = (
    Family(
        name=f"{PREFIX}_worker_restarts_total",
        help="Restarts of the process that talks to the driver.",
        kind=Kind.COUNTER,
        labels=(),
        samples=_restarts,
    ),
    Family(
        name=f"{PREFIX}_sweep_duration_seconds",
        help="How long the last sweep of each GPU took.",
        unit="seconds",
        samples=_sweeps,
    ),
    Family(
        name=f"{PREFIX}_read_failures_total",
        help="Readings that failed, other than by not being supported.",
        kind=Kind.COUNTER,
        labels=("gpu", "subject"),
        samples=_failed_reads,
    ),
)
