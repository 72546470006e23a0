"""A cluster small enough to hold in the head: it applies plans, lets time pass, and can die after any write.

Incidents are stored as JSON objects, so every turn reads what a fresh process would read. `outcomes` is the only
memory of the executor, and a crash loses it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from exporter.health import keys
from exporter.health.vocabulary import BootId, DevicePod, Health
from remediator.domain.actions import (
    Action,
    CloseIncident,
    DeleteJob,
    EvictPod,
    LiftQuarantine,
    MirrorCondition,
    OpenIncident,
    Plan,
    Quarantine,
    RunJob,
    SaveIncident,
    TellEvent,
)
from remediator.domain.incident_object import to_object, to_status
from remediator.domain.incident_reading import from_object
from remediator.domain.model import (
    ClusterView,
    ExporterState,
    Incident,
    JobFacts,
    NamespaceFacts,
    NodeFacts,
    NodeView,
    PodFacts,
    Taint,
)
from remediator.domain.outcomes import Blocked, Done, Outcome, PastOutcome, Retry
from remediator.domain.planner import plan
from remediator.domain.policy import Policy
from tests.worlds import NOW, a_node, a_policy, a_report, report_of, with_fault


class Crash(Exception):
    """The remediator died right after a write."""


@dataclass(kw_only=True)
class Host:
    """One node with its exporter."""

    facts: NodeFacts
    exporter: ExporterState
    alive: bool = True
    """The exporter renews its heartbeat."""


@dataclass(kw_only=True)
class Work:
    """One Job: what it is and when it ends."""

    facts: JobFacts
    node: str
    ends: datetime


@dataclass(kw_only=True)
class TinyCluster:
    """Nodes with 4 GPUs each, one Deployment whose pods want one GPU."""

    policy: Policy = field(default_factory=a_policy)
    now: datetime = NOW
    hosts: dict[str, Host] = field(default_factory=dict)
    pods: dict[str, tuple[PodFacts, int | None]] = field(default_factory=dict)
    namespaces: dict[str, NamespaceFacts] = field(default_factory=dict)
    incidents: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, Work] = field(default_factory=dict)
    outcomes: dict[str, PastOutcome] = field(default_factory=dict)
    log: list[Action] = field(default_factory=list)
    writes: int = 0
    crash_after: int | None = None
    blocked: Callable[[PodFacts], bool] = lambda pod: False
    job_works: Callable[[str], bool] = lambda step: True
    grace: float = 3
    wanted: int = 0
    counter: int = 0
    leader: bool = True
    plans: list[Plan] = field(default_factory=list)

    @classmethod
    def of(cls, *names: str, gpus: int = 4, **changes: Any) -> "TinyCluster":
        cluster = cls(**changes)
        for name in names:
            view = a_node(name, gpus=gpus)
            cluster.hosts[name] = Host(facts=view.node, exporter=view.exporter)
        cluster.namespaces["team-a"] = NamespaceFacts(name="team-a")
        return cluster

    # The world's own life.

    def deploy(self, count: int) -> None:
        """The Deployment `web` wants so many pods; they are placed at once."""
        self.wanted = count
        self._reconcile()

    def add(self, pod: PodFacts, gpu: int | None) -> None:
        self.pods[pod.uid] = (pod, gpu)
        self._map()

    def fault(self, node: str, index: int | None, code: str = "xid-79") -> None:
        host = self.hosts[node]
        seen = NodeView(node=host.facts, exporter=host.exporter)
        host.exporter = with_fault(seen, index, code, first_seen=self.now, last_seen=self.now).exporter

    def heal(self, node: str) -> None:
        """The findings of the node end, as a reset makes them end."""
        host = self.hosts[node]
        old = report_of(NodeView(node=host.facts, exporter=host.exporter))
        gpus = tuple(replace(gpu, findings=(), health=Health.HEALTHY) for gpu in old.gpus)
        report = replace(old, gpus=gpus, findings=(), health=Health.HEALTHY)
        host.exporter = replace(host.exporter, report=report)

    def reboot(self, node: str, boot: str, *, heals: bool = True) -> None:
        """A new boot id; the faults end unless the hardware is really broken."""
        if heals:
            self.heal(node)
        host = self.hosts[node]
        report = replace(report_of(NodeView(node=host.facts, exporter=host.exporter)), boot_id=BootId(boot))
        host.exporter = replace(host.exporter, report=report)
        self._map()

    def annotate_node(self, node: str, key: str, value: str | None) -> None:
        facts = self.hosts[node].facts
        kept = {k: v for k, v in facts.annotations.items() if k != key}
        self.hosts[node].facts = replace(facts, annotations=kept if value is None else {**kept, key: value})

    def annotate_incident(self, key: str, value: str) -> None:
        for raw in self.incidents.values():
            raw["metadata"].setdefault("annotations", {})[key] = value

    def untaint(self, node: str) -> None:
        """A human takes our taint off."""
        facts = self.hosts[node].facts
        kept = tuple(taint for taint in facts.taints if taint.key != keys.UNHEALTHY_TAINT)
        self.hosts[node].facts = replace(facts, taints=kept)

    def tick(self, seconds: float = 1) -> None:
        """Time passes: pods end, controllers replace them, Jobs finish, exporters renew."""
        self.now += timedelta(seconds=seconds)
        for host in self.hosts.values():
            if host.alive:
                host.exporter = replace(host.exporter, heartbeat=self.now)
        for uid, (pod, _) in list(self.pods.items()):
            if pod.deletion_timestamp is not None and pod.deletion_timestamp <= self.now and not pod.finalizers:
                del self.pods[uid]
        self._reconcile()
        for work in self.jobs.values():
            if not (work.facts.succeeded or work.facts.failed) and work.ends <= self.now:
                self._finish(work)

    def _finish(self, work: Work) -> None:
        works = self.job_works(work.facts.step)
        work.facts = replace(work.facts, succeeded=works, failed=not works, finished_at=self.now)
        if works and work.facts.step == "repair":
            self.heal(work.node)

    def _reconcile(self) -> None:
        alive = [pod for pod, _ in self.pods.values() if pod.owner_uid == "uid-rs-web" and not pod.deletion_timestamp]
        for _ in range(self.wanted - len(alive)):
            place = self._free()
            self.counter += 1
            name = f"web-{self.counter}"
            node, index = place or (None, None)
            self.pods[f"uid-{name}"] = (
                PodFacts(
                    namespace="team-a",
                    name=name,
                    uid=f"uid-{name}",
                    node=node,
                    phase="Running" if place else "Pending",
                    ready=place is not None,
                    owner_kind="ReplicaSet",
                    owner_name="web",
                    owner_uid="uid-rs-web",
                    gpus=1,
                    created_at=self.now,
                ),
                index,
            )
        self._map()

    def _free(self) -> tuple[str, int] | None:
        taken = {(pod.node, index) for pod, index in self.pods.values()}
        for name, host in self.hosts.items():
            if host.facts.taints or host.facts.unschedulable:
                continue
            for gpu in report_of(NodeView(node=host.facts, exporter=host.exporter)).gpus:
                if (name, gpu.index) not in taken:
                    return name, gpu.index
        return None

    def _map(self) -> None:
        for name, host in self.hosts.items():
            report = host.exporter.report or a_report(name)
            gpus = tuple(
                replace(
                    gpu,
                    pods=tuple(
                        DevicePod(
                            namespace=p.namespace, name=p.name, uid="", container="main", resource="nvidia.com/gpu"
                        )
                        for p, index in self.pods.values()
                        if p.node == name and index == gpu.index
                    ),
                )
                for gpu in report.gpus
            )
            host.exporter = replace(host.exporter, report=replace(report, gpus=gpus))

    # What the remediator sees and does.

    def view(self) -> ClusterView:
        by_owner: dict[str, list[PodFacts]] = {}
        for pod, _ in self.pods.values():
            by_owner.setdefault(pod.owner_uid or "", []).append(pod)
        return ClusterView(
            nodes={
                name: NodeView(
                    node=host.facts,
                    exporter=host.exporter,
                    pods=tuple(pod for pod, _ in self.pods.values() if pod.node == name),
                )
                for name, host in self.hosts.items()
            },
            incidents=tuple(from_object(json.loads(json.dumps(raw))) for raw in self.incidents.values()),
            jobs=tuple(work.facts for work in self.jobs.values()),
            namespaces=dict(self.namespaces),
            pods_by_owner={owner: tuple(pods) for owner, pods in by_owner.items()},
            leader=self.leader,
            outcomes=dict(self.outcomes),
        )

    def turn(self) -> Plan:
        """Look, decide, act once. A crash loses the executor's memory and nothing else."""
        decided = plan(self.view(), self.policy, self.now)
        self.plans.append(decided)
        try:
            for chain in decided.chains():
                self._run(chain)
        except Crash:
            self.outcomes.clear()
        return decided

    def run(self, turns: int = 200) -> None:
        """Turns until nothing of ours is open, one second each."""
        for _ in range(turns):
            self.turn()
            self.tick()
            if self.incidents and not self.open_incidents():
                return

    def run_until(self, wanted: Callable[["TinyCluster"], bool], turns: int = 200) -> None:
        for _ in range(turns):
            if wanted(self):
                return
            self.turn()
            self.tick()
        raise AssertionError(f"not reached; last: {self.plans[-1].summary}")

    def _run(self, chain: tuple[Action, ...]) -> None:
        for action in chain:
            outcome = self._execute(action)
            past = self.outcomes.get(action.key)
            streak = past.streak + 1 if past and type(past.outcome) is type(outcome) else 1
            self.outcomes[action.key] = PastOutcome(key=action.key, outcome=outcome, at=self.now, streak=streak)
            if action.gates and not isinstance(outcome, Done):
                return

    def _wrote(self, action: Action) -> Done:
        self.log.append(action)
        self.writes += 1
        if self.crash_after is not None and self.writes == self.crash_after:
            raise Crash
        return Done()

    def _execute(self, action: Action) -> Outcome:
        match action:
            case OpenIncident():
                return self._open(action)
            case SaveIncident(incident=incident) | CloseIncident(incident=incident):
                return self._save(incident, incident.resource_version, action)
            case Quarantine():
                return self._quarantine(action)
            case LiftQuarantine():
                return self._lift(action)
            case EvictPod():
                return self._evict(action)
            case RunJob():
                return self._job(action)
            case DeleteJob() | MirrorCondition() | TellEvent():
                return self._minor(action)
            case _:
                assert_never(action)

    def _minor(self, action: DeleteJob | MirrorCondition | TellEvent) -> Outcome:
        if isinstance(action, DeleteJob):
            self.jobs.pop(action.name, None)
        if isinstance(action, MirrorCondition):
            host = self.hosts[action.node]
            host.facts = replace(host.facts, gpu_healthy=action.status)
        return self._wrote(action)

    def _open(self, action: OpenIncident) -> Outcome:
        """Two writes, as on a real server: the object without status, then its status."""
        if action.incident.name in self.incidents:
            return Retry(after_seconds=0, reason="AlreadyExists")
        raw = to_object(action.incident)
        del raw["status"]
        raw["metadata"] |= {"uid": f"uid-{action.incident.name}", "resourceVersion": "1"}
        self.incidents[action.incident.name] = raw
        self._wrote(action)
        return self._save(action.incident, "1", action)

    def _save(self, incident: Incident, version: str, action: Action) -> Outcome:
        raw = self.incidents.get(incident.name)
        if raw is None or raw["metadata"]["resourceVersion"] != version:
            return Retry(after_seconds=0, reason="Conflict")
        raw["status"] = json.loads(json.dumps(to_status(incident)))
        raw["metadata"]["resourceVersion"] = str(int(version) + 1)
        return self._wrote(action)

    def _quarantine(self, action: Quarantine) -> Outcome:
        facts = self.hosts[action.node].facts
        if not any(_is_ours(taint) for taint in facts.taints):
            ours = Taint(key=keys.UNHEALTHY_TAINT, value=action.taint_value, effect=keys.NO_SCHEDULE)
            facts = replace(facts, taints=(*facts.taints, ours))
        self.hosts[action.node].facts = replace(facts, unschedulable=facts.unschedulable or action.cordon)
        return self._wrote(action)

    def _lift(self, action: LiftQuarantine) -> Outcome:
        facts = self.hosts[action.node].facts
        kept = tuple(t for t in facts.taints if not (action.untaint and _is_ours(t)))
        cordoned = facts.unschedulable and not action.uncordon
        self.hosts[action.node].facts = replace(facts, taints=kept, unschedulable=cordoned)
        return self._wrote(action)

    def _evict(self, action: EvictPod) -> Outcome:
        pod, gpu = self.pods.get(action.uid, (None, None))
        if pod is None or pod.deletion_timestamp is not None:
            return Done()
        if self.blocked(pod):
            return Blocked(reason="disruption budget web needs 2 healthy pods")
        self.pods[action.uid] = (replace(pod, deletion_timestamp=self.now + timedelta(seconds=self.grace)), gpu)
        return self._wrote(action)

    def _job(self, action: RunJob) -> Outcome:
        if action.name not in self.jobs:
            facts = JobFacts(name=action.name, uid=f"uid-{action.name}", incident=action.incident, step=action.step)
            self.jobs[action.name] = Work(facts=facts, node=action.node, ends=self.now + timedelta(seconds=5))
        return self._wrote(action)

    # What tests ask.

    def stored(self) -> list[Incident]:
        return [from_object(raw) for raw in self.incidents.values()]

    def open_incidents(self) -> list[Incident]:
        return [incident for incident in self.stored() if incident.open]

    def only(self) -> Incident:
        (incident,) = self.stored()
        return incident

    def evicted(self) -> list[str]:
        return [action.name for action in self.log if isinstance(action, EvictPod)]

    def done(self, kind: type[Action]) -> list[Action]:
        return [action for action in self.log if isinstance(action, kind)]

    def our_taints(self) -> list[str]:
        return [
            name for name, host in self.hosts.items() if any(t.key == keys.UNHEALTHY_TAINT for t in host.facts.taints)
        ]

    def running(self) -> list[str]:
        return sorted(f"{pod.node}/{gpu}" for pod, gpu in self.pods.values() if pod.phase == "Running")


def _is_ours(taint: Taint) -> bool:
    return (taint.key, taint.effect) == (keys.UNHEALTHY_TAINT, keys.NO_SCHEDULE)
