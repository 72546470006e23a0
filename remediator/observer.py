"""The eyes: watches what is watched, lists what is listed, and builds one ClusterView per turn.

Laws:
1. A view is built from immutable objects and handed over whole.
2. We read our own writes: an incident as the server stored it counts until our watch is as new; and the writes of
   a leader before us: nodes and incidents are read once, consistently, before the first view of a reign.
3. A heartbeat is the moment *we* saw it change; no node's clock is believed.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from exporter.health import keys
from exporter.health.vocabulary import HealthReport
from exporter.health.wire import WireError, parse_timestamp, report_from_status
from remediator.adapters import wire
from remediator.adapters.api import KubeApi, Query
from remediator.adapters.errors import ApiError
from remediator.adapters.facts import job_facts, node_facts
from remediator.adapters.reflector import Followed, Reflector, ReflectorOptions, WatchHooks
from remediator.adapters.resources import GPU_INCIDENTS, GPU_NODES, JOBS, LEASES, NODES
from remediator.adapters.store import Change, ChangeKind
from remediator.adapters.transport import Transport
from remediator.domain.attention import AWAITING_REPLACEMENT, attention
from remediator.domain.incident_reading import IncidentError, from_object
from remediator.domain.model import (
    ClusterView,
    ExporterState,
    Incident,
    NodeFacts,
    NodeView,
    Phase,
    PodFacts,
)
from remediator.domain.outcomes import PastOutcome
from remediator.observer_cache import Converted, Newest
from remediator.observer_pods import PodLister

log = logging.getLogger(__name__)

SILENT = timedelta(seconds=60)
"""A heartbeat after so long a silence is news; the others (one per node and 30 s) would only make us turn."""


@dataclass(frozen=True, kw_only=True)
class ObserverSettings:
    namespace: str = keys.NAMESPACE
    watches: ReflectorOptions = field(default_factory=ReflectorOptions)


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who is told what; all must be quick."""

    hooks: WatchHooks
    changed: Callable[[str], None]
    """`kind/key` of an object that is different now."""
    failed: Callable[[str], None]
    """The part that could not be read."""


class Observer:
    """Five watches, and lists of pods where an incident is."""

    def __init__(
        self, transport: Transport, settings: ObserverSettings, listeners: Listeners, now: Callable[[], datetime]
    ) -> None:
        def follow(followed: Followed[Any]) -> Reflector[Any]:
            return Reflector(transport, followed, listeners.hooks, settings.watches)

        ours = Query(namespace=settings.namespace)
        jobs = Query(namespace=settings.namespace, label_selector=keys.INCIDENT_LABEL)
        self.nodes: Reflector[wire.NodeObject] = follow(Followed(NODES))
        self.gpu_nodes: Reflector[wire.StatusCarrier] = follow(Followed(GPU_NODES))
        self.leases: Reflector[wire.LeaseObject] = follow(Followed(LEASES, ours))
        self.incidents: Reflector[wire.StatusCarrier] = follow(Followed(GPU_INCIDENTS))
        self.jobs: Reflector[wire.JobObject] = follow(Followed(JOBS, jobs))
        self._listeners = listeners
        self._now = now
        self._lister = PodLister(KubeApi(transport), listeners.failed)
        self._facts = Converted(node_facts)
        self._reports: Converted[wire.StatusCarrier, HealthReport | None] = Converted(self._report)
        self._read: Converted[wire.StatusCarrier, Incident | None] = Converted(self._incident)
        self._api = KubeApi(transport)
        self._own: Newest[wire.StatusCarrier] = Newest()
        self._newest_nodes: Newest[wire.NodeObject] = Newest()
        self._distrusted = threading.Event()
        self._distrusted.set()
        self._beats: dict[str, tuple[wire.Time, datetime]] = {}
        self._beats_lock = threading.Lock()
        self._last_facts: dict[str, NodeFacts | None] = {}
        for reflector in self.reflectors:
            reflector.tell(self._teller(reflector.kind))

    @property
    def reflectors(self) -> tuple[Reflector[Any], ...]:
        return (self.nodes, self.gpu_nodes, self.leases, self.incidents, self.jobs)

    def start(self) -> None:
        for reflector in self.reflectors:
            reflector.start()

    def stop(self) -> None:
        for reflector in self.reflectors:
            reflector.stop()
        self._lister.stop()

    def synced(self) -> bool:
        """Every store has been filled once; before that nothing may be decided."""
        return all(reflector.synced.is_set() for reflector in self.reflectors)

    def written(self, item: wire.StatusCarrier) -> None:
        """An incident as the server stored it for us."""
        self._own.note(item)

    def distrust(self) -> None:
        """Leadership has changed: what another leader wrote last may not have reached our watches."""
        self._distrusted.set()

    def _caught_up(self) -> bool:
        """Read nodes and incidents once, consistently; False = not possible now, so nothing may be decided."""
        if not self._distrusted.is_set():
            return True
        self._distrusted.clear()
        try:
            for node in self._api.list(NODES).items:
                self._newest_nodes.note(node)
            for incident in self._api.list(GPU_INCIDENTS).items:
                self._own.note(incident)
        except ApiError as error:
            log.warning("cannot catch up with the leader before us error=%s", error)
            self._listeners.failed("catch-up")
            self._distrusted.set()
            return False
        return True

    def is_news(self, changed: str) -> bool:
        """Whether a change that was told can matter to a plan: a Node's own heartbeats do not."""
        kind, _, key = changed.partition("/")
        if kind != self.nodes.kind:
            return True
        item = self.nodes.store.get(key)
        facts = _without_version(node_facts(item)) if item else None
        if key in self._last_facts and self._last_facts[key] == facts:
            return False
        self._last_facts[key] = facts
        return True

    def facts(self) -> ClusterView:
        """All but pods: what needs no request."""
        reports = self._all_reports()
        incidents = self._all_incidents()
        named = {incident.node for incident in incidents if incident.open}
        nodes = {
            name: NodeView(
                node=facts, exporter=ExporterState(report=reports.get(name), heartbeat=self._heartbeat(name))
            )
            for name, facts in self._facts.all(self._all_nodes()).items()
        }
        return ClusterView(
            nodes={name: node for name, node in nodes.items() if node.has_gpus or name in named or name in reports},
            incidents=incidents,
            jobs=tuple(job_facts(item) for item in self.jobs.store.items().values()),
        )

    def view(self, *, leader: bool, outcomes: Mapping[str, PastOutcome]) -> ClusterView:
        """Everything one turn may know; lists pods where `attention` asks for them."""
        leader = leader and self._caught_up()
        bare = self.facts()
        reports = {name: node.exporter.report for name, node in bare.nodes.items()}
        if not leader:
            # A standby decides nothing, so it need not look at pods either.
            return replace(bare, outcomes=outcomes)
        wanted = attention({n: r for n, r in reports.items() if r is not None}, bare.incidents)
        pods = self._lister.of_nodes(_how_to_list(wanted.nodes & bare.nodes.keys(), bare.incidents))
        around = {pod.namespace for listed in pods.values() for pod in listed if pod.gpus or _recorded(pod, bare)}
        return ClusterView(
            nodes={
                name: NodeView(node=node.node, exporter=node.exporter, pods=pods.get(name))
                for name, node in bare.nodes.items()
            },
            incidents=bare.incidents,
            jobs=bare.jobs,
            namespaces=self._lister.namespaces(wanted.namespaces | around),
            pods_by_owner=self._lister.by_owner(wanted.namespaces, _owners(bare.incidents)),
            leader=leader,
            outcomes=outcomes,
        )

    def _teller(self, kind: str) -> Callable[[Change], None]:
        forget = {self.incidents.kind: self._own.forget, self.nodes.kind: self._newest_nodes.forget}.get(kind)

        def told(change: Change) -> None:
            if forget is not None and change.kind is ChangeKind.DELETED:
                forget(change.key)
            self._listeners.changed(f"{kind}/{change.key}")

        return self._beat if kind == self.leases.kind else told

    def _beat(self, change: Change) -> None:
        """A Lease changed: note the moment, and tell only what is news."""
        item = self.leases.store.get(change.key) if change.kind is not ChangeKind.DELETED else None
        name = change.key.rpartition("/")[2]
        now = self._now()
        with self._beats_lock:
            known = self._beats.get(name)
            if item is None:
                self._beats.pop(name, None)
            elif known is None:
                self._beats[name] = (item.spec.renew_time, min(_moment(item.spec.renew_time, now), now))
            elif known[0] != item.spec.renew_time:
                self._beats[name] = (item.spec.renew_time, now)
        if item is None or known is None or now - known[1] > SILENT:
            self._listeners.changed(f"{self.leases.kind}/{change.key}")

    def _heartbeat(self, name: str) -> datetime | None:
        with self._beats_lock:
            beat = self._beats.get(name)
        return beat[1] if beat else None

    def _all_reports(self) -> dict[str, HealthReport]:
        found = self._reports.all(self.gpu_nodes.store.items())
        return {name: report for name, report in found.items() if report is not None}

    def _all_nodes(self) -> dict[str, wire.NodeObject]:
        return self._newest_nodes.merged(self.nodes.store.items(), self.nodes.silence())

    def _all_incidents(self) -> tuple[Incident, ...]:
        stored = self._own.merged(self.incidents.store.items(), self.incidents.silence())
        return tuple(found for found in self._read.all(stored).values() if found is not None)

    def _report(self, item: wire.StatusCarrier) -> HealthReport | None:
        try:
            return report_from_status(item.metadata.name, wire.plain(item.status))
        except (WireError, wire.Garbled) as error:
            log.warning("report cannot be read node=%s error=%s", item.metadata.name, error)
            self._listeners.failed("reports")
            return None

    def _incident(self, item: wire.StatusCarrier) -> Incident | None:
        try:
            return incident_of(item)
        except (IncidentError, wire.Garbled) as error:
            log.error("incident cannot be read, nothing is done for it name=%s error=%s", item.metadata.name, error)
            self._listeners.failed("incidents")
            return None


def incident_of(item: wire.StatusCarrier) -> Incident:
    """The incident stored in `item`; raises IncidentError, Garbled."""
    parts = {"spec": wire.plain(item.spec), "status": wire.plain(item.status)}
    return from_object({"metadata": wire.to_plain(item.metadata), **parts})


def _how_to_list(nodes: frozenset[str], incidents: tuple[Incident, ...]) -> dict[str, str]:
    how = dict.fromkeys(nodes, "idle")
    for incident in incidents:
        if not incident.open or incident.node not in how:
            continue
        draining = incident.phase in (Phase.QUARANTINED, Phase.DRAINING)
        if draining or how[incident.node] == "idle":
            how[incident.node] = "consistent" if draining else "cached"
    return how


def _recorded(pod: PodFacts, view: ClusterView) -> bool:
    return any(record.uid == pod.uid for incident in view.incidents if incident.open for record in incident.pods)


def _owners(incidents: tuple[Incident, ...]) -> frozenset[str]:
    return frozenset(
        record.owner_uid
        for incident in incidents
        if incident.open
        for record in incident.pods
        if record.fate in AWAITING_REPLACEMENT and record.owner_uid
    )


def _moment(text: wire.Time, otherwise: datetime) -> datetime:
    try:
        return parse_timestamp(text) if text else otherwise
    except ValueError:
        return otherwise


def _without_version(facts: NodeFacts) -> NodeFacts:
    return replace(facts, resource_version="")
