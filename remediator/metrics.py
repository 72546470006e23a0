"""The remediator's own metrics (`gpuward_remediator_*`), the only home of prometheus_client here.

Laws:
1. Labels are bounded: phases, deferral codes, action names, kinds; never a pod, an incident or a message.
2. Every method may be called from any thread and is quick.
"""

from collections import Counter as Tally
from collections.abc import Iterable
from datetime import datetime

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from remediator.domain.budgets import ledger
from remediator.domain.deferrals import Code
from remediator.domain.model import ClusterView, Incident, Phase
from remediator.domain.outcomes import Blocked, Done, Refused, Retry
from remediator.domain.policy import Policy

PREFIX = "gpuward_remediator"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DETECTION_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300)
PHASE_BUCKETS = (1, 5, 15, 60, 300, 900, 1800, 3600, 4 * 3600, 24 * 3600)
TURN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """Counters and gauges, told by the other parts; implements their hook protocols."""

    def __init__(self, version: str) -> None:
        # A second series per counter that no rule of ours reads; the function carries no annotations.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._known: dict[str, Incident] = {}
        self._set_up_state(version)
        self._set_up_counters()

    def _set_up_state(self, version: str) -> None:
        self._gauge("build_info", "Version of the remediator; always 1.", "version").labels(version).set(1)
        self._leader = self._gauge("leader", "1 while this replica holds the lease.")
        self._synced = self._gauge("synced", "1 when every watch has been filled once.")
        self._incidents = self._gauge("incidents", "Open incidents by phase.", "phase")
        self._deferrals = self._gauge("deferrals", "Waits of the last turn by reason.", "reason")
        self._out = self._gauge("nodes_out", "GPU nodes out of service by us.")
        self._allowed = self._gauge("nodes_out_allowed", "GPU nodes that the budget allows to be out at once.")
        self._total = self._gauge("gpu_nodes", "GPU nodes known.")
        self._policy_ok = self._gauge("policy_valid", "1 when the policy file on disk is the policy in force.")
        self._policy_rules = self._gauge("policy_rules", "Rules of the policy in force by mode.", "mode")
        self._policy_time = self._gauge(
            "policy_loaded_timestamp_seconds", "Unix time at which the policy in force was taken over."
        )
        self._silence = self._gauge("watch_silence_seconds", "Since the server last told anything, by kind.", "kind")

    def _set_up_counters(self) -> None:
        self._turns = self._counter("turns", "Decisions made.")
        self._turn_seconds = self._histogram(
            "turn_duration_seconds", "From taking the first change to the plan handed over.", TURN_BUCKETS
        )
        self._detection = self._histogram(
            "detection_seconds", "From the exporter's first sight of a fault to its incident.", DETECTION_BUCKETS
        )
        self._phase_seconds = self._histogram("phase_duration_seconds", "Time in each phase.", PHASE_BUCKETS, "phase")
        self._closed = self._counter("incidents_closed", "Incidents that ended, by how.", "outcome")
        self._actions = self._counter("actions", "Actions carried out by kind and outcome.", "action", "outcome")
        self._evictions = self._counter("evictions", "Evictions asked for by result.", "result")
        for outcome in (Done, Retry, Refused, Blocked):
            # From 0 on, so that the first eviction is an increase that a rate can see.
            self._evictions.labels(outcome.__name__.lower())
        self._watch_events = self._counter("watch_events", "Events received, bookmarks included.", "kind")
        self._relists = self._counter("watch_relists", "Times a store was filled from a list.", "kind")
        self._reconnects = self._counter("watch_reconnects", "Streams that ended, by reason.", "kind", "reason")
        self._undecodable = self._counter("undecodable", "Objects that could not be read.", "kind")
        self._errors = self._counter("errors", "Failures inside the remediator by the part that failed.", "part")
        self._api_errors = self._counter(
            "api_errors", "Actions that the API server refused or lost, by error.", "error"
        )
        self._events = self._counter("events", "Kubernetes Events by result.", "result")
        self._sweeps = self._counter("sweeps", "Periodic sweeps by name and result.", "sweep", "result")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, labels, buckets=tuple(buckets), registry=self._registry)

    def page(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    # WatchHooks
    def event(self, kind: str) -> None:
        self._watch_events.labels(kind).inc()

    def relist(self, kind: str) -> None:
        self._relists.labels(kind).inc()

    def reconnect(self, kind: str, reason: str) -> None:
        self._reconnects.labels(kind, reason).inc()

    def undecodable(self, kind: str) -> None:
        self._undecodable.labels(kind).inc()

    # ActionHooks
    def acted(self, action: str, outcome: str) -> None:
        self._actions.labels(action, outcome.lower()).inc()

    def evicted(self, result: str) -> None:
        self._evictions.labels(result).inc()

    def api_error(self, error: str) -> None:
        self._api_errors.labels(error).inc()

    def failed(self, part: str) -> None:
        """Something of ours went wrong in `part`."""
        self._errors.labels(part).inc()

    def told(self, result: str) -> None:
        """A Kubernetes Event was `written`, `failed` or `dropped`."""
        self._events.labels(result).inc()

    def swept(self, sweep: str, result: str) -> None:
        """A sweep ended `ok`, `failed`, `missed` or `skipped`."""
        self._sweeps.labels(sweep, result).inc()

    def leads(self, leader: bool) -> None:
        self._leader.set(leader)

    def policy(self, policy: Policy, *, valid: bool, loaded_at: datetime) -> None:
        """The policy in force, and whether the file says the same."""
        self._policy_ok.set(valid)
        self._policy_time.set(loaded_at.timestamp())
        modes = Tally(rule.mode.value for rule in policy.rules)
        for mode in ("observe", "recommend", "enforce"):
            self._policy_rules.labels(mode).set(modes[mode])

    def watching(self, synced: bool, silence: dict[str, float]) -> None:
        """State of the watches; seconds of silence by kind."""
        self._synced.set(synced)
        for kind, seconds in silence.items():
            self._silence.labels(kind).set(round(seconds, 1))

    def turned(self, view: ClusterView, policy: Policy, seconds: float) -> None:
        """One turn ended; budgets and phases are as `view` shows them."""
        self._turns.inc()
        self._turn_seconds.observe(seconds)
        book = ledger(view, policy.budget)
        self._out.set(len(book.out))
        self._allowed.set(book.allowed)
        self._total.set(book.total)
        phases = Tally(incident.phase for incident in view.incidents if incident.open)
        for phase in Phase:
            self._incidents.labels(phase.value).set(phases[phase])
        self._follow(view)

    def waiting(self, codes: Iterable[str]) -> None:
        """The reasons of the last turn's waits."""
        counts = Tally(str(code) for code in codes)
        for code in Code:
            self._deferrals.labels(code.value).set(counts[code.value])

    def opened(self, view: ClusterView, incident: Incident) -> None:
        """An incident is about to be opened: how long did the fault stand unseen?"""
        node = view.nodes.get(incident.node)
        report = node.exporter.report if node else None
        if report is None:
            return
        findings = [*report.findings, *(finding for gpu in report.gpus for finding in gpu.findings)]
        uuid = incident.gpu.uuid if incident.gpu else None
        first = [f.first_seen for f in findings if f.code == incident.fault and f.gpu in (uuid, None)]
        if first:
            self._detection.observe(max(0.0, (incident.opened_at - min(first)).total_seconds()))

    def _follow(self, view: ClusterView) -> None:
        for incident in view.incidents:
            before = self._known.get(incident.name)
            if before is not None and before.phase is not incident.phase:
                seconds = (incident.phase_since - before.phase_since).total_seconds()
                self._phase_seconds.labels(before.phase.value).observe(max(0.0, seconds))
            if before is not None and before.open and not incident.open:
                self._closed.labels(incident.outcome or "unknown").inc()
        self._known = {incident.name: incident for incident in view.incidents}
