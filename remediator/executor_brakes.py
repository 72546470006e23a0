"""The last look before a destructive call: what has changed since the plan was made.

Laws:
1. Asked right before each destructive step, about live objects, never about our store.
2. A brake found here is `Retry`: the next plan sees the same fact and gives it its proper name.
3. Leadership is checked apart, by the fence in front of every write.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from exporter.health import keys
from remediator.adapters import wire
from remediator.adapters.api import KubeApi
from remediator.adapters.errors import NotFound
from remediator.adapters.resources import GPU_INCIDENTS, NAMESPACES, NODES, Ref
from remediator.domain.guards import wished
from remediator.domain.opt_out import opted_out
from remediator.domain.outcomes import Outcome, Retry
from remediator.domain.policy import Policy

LOOK_AGAIN = 1.0


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the live facts come from."""

    api: KubeApi
    policy: Callable[[], Policy]
    """The policy in force at this moment."""
    over_budget: Callable[[Policy, str], str | None]
    """Why the node with this UID may not be taken out as well right now, or None."""
    now: Callable[[], datetime]


class Brakes:
    """The brakes for the actions of one plan, made under one policy."""

    def __init__(self, sources: Sources, planned_under: Policy) -> None:
        self._sources = sources
        self._planned_under = planned_under

    def policy(self) -> Outcome | None:
        """The rules have changed, or everything is paused."""
        current = self._sources.policy()
        if current is not self._planned_under:
            return _again("the policy changed after the plan was made")
        return _again("remediation is paused by the policy") if current.pause else None

    def incident(self, name: str) -> Outcome | None:
        """An operator holds or ends the incident, or has deleted it: then the intent is no longer on record."""
        try:
            found = self._sources.api.get(Ref(GPU_INCIDENTS, name))
        except NotFound:
            return _again(f"incident {name} was deleted")
        for key in (keys.HOLD, keys.CANCEL, keys.RELEASE):
            reason = wished(found.metadata.annotations, key)
            if reason is not None:
                return _again(f"incident {name} has {key}: {reason}")
        return None

    def quarantine(self, node: wire.NodeObject) -> Outcome | None:
        """Before a node is taken out, with the node as just read."""
        over = self._sources.over_budget(self._planned_under, node.metadata.uid)
        return self.policy() or self._opted_out(f"node {node.metadata.name}", node.metadata.annotations) or _maybe(over)

    def on_node(self, name: str) -> Outcome | None:
        """Before anything destructive on a node."""
        refused = self.policy()
        if refused is not None:
            return refused
        try:
            node = self._sources.api.get(Ref(NODES, name))
        except NotFound:
            return _again(f"node {name} is gone")
        return self._opted_out(f"node {name}", node.metadata.annotations)

    def eviction(self, node: str, pod: wire.PodObject) -> Outcome | None:
        """Before a pod is evicted, with the pod as just read."""
        meta = pod.metadata
        own = self._opted_out(f"pod {meta.namespace}/{meta.name}", meta.annotations)
        if own is not None:
            return own
        try:
            namespace = self._sources.api.get(Ref(NAMESPACES, meta.namespace))
        except NotFound:
            return _again(f"namespace {meta.namespace} is gone")
        refused = self._opted_out(f"namespace {meta.namespace}", namespace.metadata.annotations)
        return refused or self.on_node(node)

    def _opted_out(self, what: str, annotations: Mapping[str, str]) -> Outcome | None:
        found = opted_out(annotations, self._sources.now())
        return _again(f"{what} is {found}") if found else None


def _again(reason: str) -> Retry:
    return Retry(after_seconds=LOOK_AGAIN, reason=reason)


def _maybe(reason: str | None) -> Retry | None:
    return None if reason is None else _again(reason)
