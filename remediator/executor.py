"""The hands: carries out a plan, chain by chain, and says what became of each action.

Laws:
1. One chain per incident is under way at a time; a newer plan for it waits for the end of the older chain.
2. In a chain the actions run in order; a gating action that is not Done ends it (write-ahead).
3. Before each destructive call the brakes are asked again (executor_brakes.py); the fence checks leadership below us.
4. Every action is answered with an Outcome; an exception of ours is a Retry that is counted, never a dead thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from exporter.health import keys
from exporter.health.wire import timestamp
from remediator.adapters import wire
from remediator.adapters.api import Eviction, KubeApi
from remediator.adapters.disruption import BudgetLocks
from remediator.adapters.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
)
from remediator.adapters.quarantine.method import QuarantineMethod
from remediator.adapters.recorder import Told
from remediator.adapters.repair import JobRunner
from remediator.adapters.resources import GPU_INCIDENTS, NODES, PODS, Ref
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
from remediator.domain.incident_object import to_object, to_status, to_status_patch
from remediator.domain.model import Incident
from remediator.domain.outcomes import Blocked, Done, Outcome, Refused, Retry
from remediator.domain.policy import Policy
from remediator.executor_brakes import Brakes, Sources
from remediator.executor_outcomes import CONFLICT_RETRY, OutcomeBook, outcome_of
from remediator.executor_rest import Resting, rest_after
from remediator.executor_stored import ADVICE, complaint, lacking

log = logging.getLogger(__name__)

CHAIN_WORKERS = 8
"""The API server reaches most of its write rate at four connections; more only adds latency."""
EVICTION_WORKERS = 32
"""Each eviction waits up to 100 ms inside the API server: 32 in flight make 300/s, one makes 10/s."""
BUDGET_WAIT = 0.25
"""Seconds an eviction waits for its turn at a shared budget before it gives its worker back."""
ENDED_KEPT = 4096
"""Ends remembered: more than any one turn can have chains of which it is too old to know."""
"""A conflict means that our view is old; the watch is on its way."""


class ActionHooks(Protocol):
    """What the metrics want to know."""

    def acted(self, action: str, outcome: str) -> None: ...

    def evicted(self, result: str) -> None: ...

    def api_error(self, error: str) -> None: ...

    def failed(self, part: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Hands:
    """The adapters that touch the world; `api` writes through the leader fence."""

    api: KubeApi
    methods: Mapping[str, QuarantineMethod]
    jobs: JobRunner
    budgets: BudgetLocks
    tell: Callable[[Told], None]
    """Passes an event on to whoever writes and sends them; never blocks."""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who is told what; all must be quick."""

    hooks: ActionHooks
    written: Callable[[wire.StatusCarrier], None]
    """An incident as the server stored it: newer than our watch."""
    finished: Callable[[str, float | None], None]
    """A chain ended; seconds after which it is worth another look, None = no wish."""


@dataclass
class _Chain:
    name: str
    brakes: Brakes
    left: deque[Action]
    look_again: float | None = None
    rest: float | None = None
    evictions: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Executor:
    """Two thread pools; `submit` returns at once."""

    def __init__(self, hands: Hands, sources: Sources, listeners: Listeners) -> None:
        self.book = OutcomeBook()
        self._hands = hands
        self._sources = sources
        self._listeners = listeners
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._ended: dict[str, int] = {}
        self._endings = 0
        self._resting = Resting()
        self._stopping = False
        self._chains = ThreadPoolExecutor(CHAIN_WORKERS, thread_name_prefix="chain")
        self._evictions = ThreadPoolExecutor(EVICTION_WORKERS, thread_name_prefix="evict")

    def mark(self) -> int:
        """Take it before building a view: a chain that ends later makes that view too old for this chain."""
        with self._lock:
            return self._endings

    def submit(self, plan: Plan, policy: Policy, mark: int) -> int:
        """Start the chains of `plan` that neither are under way, nor rest, nor ended since `mark`; returns how many."""
        started = 0
        brakes = Brakes(self._sources, policy)
        for actions in plan.chains():
            name = actions[0].chain
            with self._lock:
                if self._stopping:
                    return started
                if name in self._busy or self._ended.get(name, 0) > mark or self._resting.rests(name):
                    continue
                self._busy.add(name)
                self._chains.submit(self._advance, _Chain(name, brakes, deque(actions)))
            started += 1
        return started

    def busy(self) -> frozenset[str]:
        """Chains under way."""
        with self._lock:
            return frozenset(self._busy)

    def stop(self) -> None:
        """Start nothing more and wait for the calls under way, which end by their own timeouts."""
        with self._lock:
            self._stopping = True
        self._chains.shutdown(wait=True, cancel_futures=True)
        self._evictions.shutdown(wait=True, cancel_futures=True)

    def _advance(self, chain: _Chain) -> None:
        while chain.left:
            if isinstance(chain.left[0], EvictPod):
                self._evict_batch(chain)
                return
            action = chain.left.popleft()
            outcome = self._run(action, chain)
            if self._stopping:
                return
            if action.gates and not isinstance(outcome, Done):
                chain.left.clear()
        self._resting.ended(chain.name, chain.rest)
        with self._lock:
            self._busy.discard(chain.name)
            self._endings += 1
            self._ended[chain.name] = self._endings
            if len(self._ended) > ENDED_KEPT:
                del self._ended[next(iter(self._ended))]
        self._listeners.finished(chain.name, chain.look_again)

    def _evict_batch(self, chain: _Chain) -> None:
        """Evictions that follow each other run side by side; the chain goes on when the last one has ended."""
        batch: list[EvictPod] = []
        while chain.left and isinstance(action := chain.left[0], EvictPod):
            batch.append(action)
            chain.left.popleft()
        chain.evictions = len(batch)
        with self._lock:
            if self._stopping:
                return
            for action in batch:
                self._evictions.submit(self._evict_one, action, chain)

    def _evict_one(self, action: EvictPod, chain: _Chain) -> None:
        outcome = self._run(action, chain)
        self._listeners.hooks.evicted(type(outcome).__name__.lower())
        with chain.lock:
            chain.evictions -= 1
            last = chain.evictions == 0
        with self._lock:
            if last and not self._stopping:
                self._chains.submit(self._advance, chain)

    def _run(self, action: Action, chain: _Chain) -> Outcome:
        what = type(action).__name__
        try:
            outcome = self.execute(action, chain.brakes)
        except ApiError as error:
            self._listeners.hooks.api_error(type(error).__name__)
            outcome = outcome_of(error)
        except Exception as error:
            log.exception("action failed action=%s key=%s", what, action.key)
            self._listeners.hooks.failed("executor")
            outcome = Retry(after_seconds=30.0, reason=f"internal error: {type(error).__name__}")
        past = self.book.note(action.key, outcome, self._sources.now())
        self._listeners.hooks.acted(what, type(outcome).__name__)
        if not isinstance(outcome, Done):
            log.info("action=%s key=%s outcome=%s", what, action.key, outcome)
            with chain.lock:
                chain.rest = rest_after(action, past) or chain.rest
                chain.look_again = _sooner(_sooner(chain.look_again, _wish(outcome)), chain.rest)
        else:
            log.debug("action=%s key=%s done note=%s", what, action.key, outcome.note)
        return outcome

    def execute(self, action: Action, brakes: Brakes) -> Outcome:
        """Carry out one action; raises ApiError for what the server said, `outcome_of` turns it into an outcome."""
        match action:
            case OpenIncident(incident=incident):
                return self._open(incident)
            case SaveIncident(incident=incident) | CloseIncident(incident=incident):
                return self._save(incident)
            case Quarantine():
                return self._quarantine(action, brakes)
            case LiftQuarantine():
                method = self._hands.methods.get(action.method)
                return method.undo(action) if method else _unknown_method(action.method)
            case EvictPod():
                return self._evict(action, brakes)
            case RunJob():
                return self._run_job(action, brakes)
            case DeleteJob(name=name):
                return Done(note="" if self._hands.jobs.delete(name) else "was gone")
            case MirrorCondition():
                return self._mirror(action)
            case TellEvent():
                self._hands.tell(_told(action))
                return Done()
            case _:
                assert_never(action)

    def _open(self, incident: Incident) -> Outcome:
        try:
            created = self._hands.api.create(GPU_INCIDENTS, to_object(incident))
        except AlreadyExists:
            return Retry(after_seconds=CONFLICT_RETRY, reason="the incident is there already: look again")
        return self._store(incident, created.metadata.resource_version)

    def _save(self, incident: Incident) -> Outcome:
        return self._store(incident, incident.resource_version)

    def _store(self, incident: Incident, version: str) -> Outcome:
        ref = Ref(GPU_INCIDENTS, incident.name)
        stored = self._hands.api.patch_status(ref, to_status_patch(incident), version)
        self._listeners.written(stored)
        missing = lacking(to_status(incident), wire.plain(stored.status))
        if missing is None:
            return Done()
        self._listeners.hooks.failed("crd")
        self._hands.tell(complaint(stored, missing))
        return Refused(reason=f"the API server dropped {missing}: {ADVICE}")

    def _quarantine(self, order: Quarantine, brakes: Brakes) -> Outcome:
        method = self._hands.methods.get(order.method)
        if method is None:
            return _unknown_method(order.method)
        return method.apply(order, lambda node: brakes.incident(order.incident) or brakes.quarantine(node))

    def _evict(self, order: EvictPod, brakes: Brakes) -> Outcome:
        try:
            pod = self._hands.api.get(Ref(PODS, order.name, order.namespace))
        except NotFound:
            return Done(note="was gone")
        if pod.metadata.uid != order.uid:
            return Done(note="another pod has the name now")
        if pod.metadata.deletion_timestamp:
            return Done(note="is leaving already")
        covering = self._hands.budgets.covering(order.namespace, pod.metadata.labels)
        with self._hands.budgets.turn(covering, BUDGET_WAIT) as ours:
            if not ours:
                return Retry(after_seconds=BUDGET_WAIT, reason="another eviction of the same disruption budget runs")
            # Asked after the wait for our turn, so that nothing lies between the look and the call.
            refused = brakes.incident(order.incident) or brakes.eviction(order.node, pod)
            return refused or self._evict_now(order)

    def _evict_now(self, order: EvictPod) -> Outcome:
        eviction = Eviction(
            namespace=order.namespace, name=order.name, uid=order.uid, grace_seconds=order.grace_seconds
        )
        try:
            self._hands.api.evict(eviction)
        except NotFound:
            return Done(note="was gone")
        except Conflict:
            return Done(note="another pod has the name now")
        return Done()

    def _run_job(self, order: RunJob, brakes: Brakes) -> Outcome:
        refused = (brakes.incident(order.incident) or brakes.on_node(order.node)) if order.destructive else None
        if refused is not None:
            return refused
        return Done(note="" if self._hands.jobs.create(order.manifest) else "was there")

    def _mirror(self, order: MirrorCondition) -> Outcome:
        now = timestamp(self._sources.now())
        condition = {
            "type": keys.GPU_HEALTHY_CONDITION,
            "status": order.status,
            "reason": order.reason,
            "message": order.message,
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        self._hands.api.patch_condition(Ref(NODES, order.node), condition)
        return Done()


def _unknown_method(name: str) -> Outcome:
    return Refused(reason=f"this version knows no quarantine method {name!r}")


def _wish(outcome: Outcome) -> float | None:
    return outcome.after_seconds if isinstance(outcome, Retry | Blocked) else None


def _sooner(one: float | None, other: float | None) -> float | None:
    known = [seconds for seconds in (one, other) if seconds is not None]
    return min(known, default=None)


def _told(event: TellEvent) -> Told:
    incident = event.kind == keys.GPU_INCIDENT_KIND
    return Told(
        kind=event.kind,
        name=event.name,
        uid=event.uid,
        reason=event.reason,
        message=event.message,
        warning=event.warning,
        dedupe=event.dedupe,
        api_version=keys.API_VERSION if incident else "v1",
    )
