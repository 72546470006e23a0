"""One incident in one turn: the facts that concern it, looked up once, and the guards in their order.

Lives here: `Case` (what a phase handler sees) and `Step` (what it answers).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from exporter.health.vocabulary import DeviceReport, HealthReport
from remediator.domain import guards
from remediator.domain.actions import Action
from remediator.domain.budgets import Ledger
from remediator.domain.deferrals import Wait
from remediator.domain.faults import Fault, on_target, standing
from remediator.domain.model import ClusterView, Incident, IncidentScope, NodeView, PodFacts
from remediator.domain.outcomes import Done, PastOutcome
from remediator.domain.policy import Playbook, Policy, Rule

SETTLE_SECONDS = 10.0
"""How long a finished action may stay invisible in our watches before it is repeated: watch lag is well below a
second, but a relist after a broken watch takes several."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One incident with everything one turn knows about it."""

    view: ClusterView
    policy: Policy
    now: datetime
    incident: Incident
    siblings: tuple[Incident, ...] = ()
    """Other open incidents on the same node, as this turn leaves them so far."""
    ledger: Ledger

    @property
    def node(self) -> NodeView | None:
        """The incident's own node; None when it is gone, or another node has come under its name."""
        found = self.view.nodes.get(self.incident.node)
        return found if found and found.node.uid == self.incident.node_uid else None

    @property
    def report(self) -> HealthReport | None:
        return self.node.exporter.report if self.node else None

    @property
    def device(self) -> DeviceReport | None:
        """The incident's GPU in the report; None for a node incident or a GPU that is not enumerated."""
        gpu, report = self.incident.gpu, self.report
        if gpu is None or report is None:
            return None
        return next((device for device in report.gpus if device.uuid == gpu.uuid), None)

    @property
    def rule(self) -> Rule | None:
        """The rule in force now, not the one at opening; that one counts only while the GPU's model is not known."""
        if self.node is None:
            return self.policy.rule_named(self.incident.playbook)
        if self.incident.scope is IncidentScope.GPU and self.device is None:
            return self.policy.rule_named(self.incident.playbook)
        model = self.device.model if self.device else node_model(self.report)
        return self.policy.rule_for(self.node.node.labels, model, self.incident.fault)

    @property
    def playbook(self) -> Playbook:
        return self.rule.playbook if self.rule else Playbook()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What stands on the target now; only meaningful when no guard says that health is unknown."""
        return on_target(standing(self.report), self.incident) if self.report else ()

    @property
    def where(self) -> str:
        """The target in words: `n7 GPU 3` or `n7`."""
        if self.incident.scope is IncidentScope.GPU and self.incident.gpu:
            return f"{self.incident.node} GPU {self.incident.gpu.index}"
        return self.incident.node

    def at(self, incident: Incident) -> "Case":
        """The same case with the incident moved on."""
        return replace(self, incident=incident)

    def past(self, key: str) -> PastOutcome | None:
        return self.view.outcomes.get(key)

    def just_done(self, key: str) -> bool:
        """The action was finished so recently that our watches may not show it yet."""
        return settling(self.past(key), self.now)

    def since(self, moment: datetime) -> float:
        """Seconds from `moment` to now, never negative: a stamp from the future counts as now."""
        return max(0.0, (self.now - moment).total_seconds())

    def last_word(self, key: str) -> str:
        """`: <reason>` when the latest try of the action did not work, for the end of a sentence; else empty."""
        past = self.past(key)
        return f": {past.outcome.reason}" if past is not None and not isinstance(past.outcome, Done) else ""

    def attempts(self, step: str) -> int:
        return self.incident.attempts.get(step, 0)

    def refusal(self) -> Wait | None:
        """The first brake that forbids going on with this incident now; None = go on."""
        node = self.node
        if node is None:
            return None
        facts, exporter = node.node, node.exporter
        target = self.incident.gpu if self.incident.scope is IncidentScope.GPU else None
        return (
            guards.paused(self.view, self.policy)
            or guards.node_opted_out(facts, self.now)
            or guards.held(self.incident)
            or guards.foreign_controller(facts)
            or guards.node_not_ready(facts)
            or guards.stale(exporter, self.now, self.policy.heartbeat_stale_seconds)
            or guards.unknown_target(exporter, target)
            or guards.mode_forbids(self.rule, self.incident)
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one phase does in one turn: the incident with the intent in it, then the actions, and what it waits for."""

    incident: Incident
    actions: tuple[Action, ...] = ()
    wait: Wait | None = None
    ledger: Ledger | None = None
    """Set when the step charged the budget."""


def settling(past: PastOutcome | None, now: datetime) -> bool:
    """An action was finished so recently that our watches may not show it yet."""
    return past is not None and isinstance(past.outcome, Done) and (now - past.at).total_seconds() < SETTLE_SECONDS


def node_model(report: HealthReport | None) -> str | None:
    """Model that stands for a whole node: that of its first GPU."""
    return report.gpus[0].model if report and report.gpus else None


def later(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def names(pods: Sequence[PodFacts], limit: int = 5) -> str:
    """Pod names for a sentence, cut with a count."""
    shown = ", ".join(pod.full_name for pod in pods[:limit])
    return shown if len(pods) <= limit else f"{shown} and {len(pods) - limit} more"
