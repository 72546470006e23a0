"""The control loop of an embedded cluster: scheduler and controllers, each a reconciler of its own."""

from dataclasses import dataclass

from remediator.simulation.api import Api
from remediator.simulation.client import DirectClient
from remediator.simulation.control_loop import ControlLoop
from remediator.simulation.disruption import Budgets
from remediator.simulation.garbage import GarbageCollector, Namespaces
from remediator.simulation.jobs import BACKOFF_SECONDS, Jobs
from remediator.simulation.node_lifecycle import GRACE_SECONDS, NodeLifecycle, TaintEviction
from remediator.simulation.scheduler import Scheduler
from remediator.simulation.workloads import Deployments, ReplicaSets, StatefulSets


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Waits of the controllers, in seconds; the defaults are those of a real cluster."""

    job_backoff_seconds: float = BACKOFF_SECONDS
    node_grace_seconds: float = GRACE_SECONDS


def control_loop(api: Api, token: str, pace: Pace) -> ControlLoop:
    """A loop over everything this cluster runs; not started yet."""
    store, client, clock = api.store, DirectClient(api, token), api.clock
    return ControlLoop(
        store,
        (
            Deployments(store, client),
            ReplicaSets(store, client),
            StatefulSets(store, client),
            Jobs(store, client, clock, pace.job_backoff_seconds),
            Scheduler(store, client, clock),
            Budgets(store, client, clock),
            NodeLifecycle(store, client, clock, pace.node_grace_seconds),
            TaintEviction(store, client),
            GarbageCollector(store, api.registry, client),
            Namespaces(store, api.registry, client),
        ),
    )
