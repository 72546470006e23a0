"""Draining: the pods of the bad GPU leave through the Eviction API, visibly, none twice, none by force.

Laws:
1. A pod's record says `Evicting` before the eviction is sent (write-ahead).
2. Held pods (opted out, static, DaemonSet, bare, local storage, safe-to-evict=false) stay, with the reason.
3. A disruption budget in the way is waited for with growing pauses; it is never bypassed.
4. Drained means: pods and mapping are known, and every pod on the GPU is gone or held.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from remediator.domain import guards
from remediator.domain.actions import EvictPod
from remediator.domain.case import Case, Step, later, names
from remediator.domain.deferrals import Code, Wait
from remediator.domain.model import Fate, Incident, PodFacts, PodRecord
from remediator.domain.occupancy import live_pods, unmapped, victims, whole_node
from remediator.domain.opt_out import opted_out
from remediator.domain.outcomes import Blocked, PastOutcome, Refused, Retry
from remediator.domain.states import Signal

BACKOFF_SECONDS = (5.0, 10.0, 20.0, 30.0)
"""Pauses between tries against a disruption budget. Faster only burns the API server: one try costs it 100 ms."""
REFUSED_SECONDS = 60.0
"""Pause after a refusal that only a human can lift (two budgets on one pod): they do lift it, and then it goes on."""
STUCK = 3
"""So many tries in a row that did not get through are worth a reason in the incident."""
MAX_PODS = 256
"""Bound of the CRD."""
LATE_SECONDS = 10
"""A scheduler may still bind to a node shortly after the taint (23 ms measured; clocks differ by seconds). A pod
created later than this tolerates the taint or names the node, and evicting it would go round for ever."""
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def signal(case: Case) -> tuple[Signal, str] | None:
    """DRAINED when nothing is left to wait for."""
    if _not_known(case) is not None:
        return None
    pods = live_pods(case) or ()
    left = [pod for pod in victims(case, pods) if hold_reason(case, pod) is None]
    if left or _unplaced(case, pods):
        return None
    held = victims(case, pods)
    return Signal.DRAINED, f"pods are off {case.where}" + (f"; left in place: {names(held)}" if held else "")


def act(case: Case) -> Step:
    """Records each pod's fate and asks for the evictions that are due."""
    unknown = _not_known(case)
    if unknown is not None:
        return Step(incident=case.incident, wait=unknown)
    pods = live_pods(case) or ()
    records = {record.uid: record for record in case.incident.pods}
    actions: list[EvictPod] = []
    for pod in victims(case, pods):
        record, action = _decide(case, pod, records.get(pod.uid))
        records[pod.uid] = record
        actions += [action] if action else []
    kept = _bounded(records, {pod.uid for pod in pods})
    stored = {record.uid for record in kept}
    return Step(
        incident=replace(case.incident, pods=kept),
        actions=tuple(action for action in actions if action.uid in stored),
        wait=_wait(case, kept, _unplaced(case, pods)),
    )


def _bounded(records: Mapping[str, PodRecord], present: set[str]) -> tuple[PodRecord, ...]:
    """At most MAX_PODS, in their order; the first to be dropped are those of pods that are gone, the oldest first."""
    surplus = len(records) - MAX_PODS
    dropped = [uid for uid in records if uid not in present][: max(0, surplus)]
    return tuple(record for uid, record in records.items() if uid not in dropped)[:MAX_PODS]


def noted(case: Case) -> Incident:
    """The incident with a record of every held pod on the GPU, also of one that came after the draining."""
    known = {record.uid for record in case.incident.pods}
    late = [pod for pod in victims(case, live_pods(case) or ()) if pod.uid not in known and hold_reason(case, pod)]
    records = (*case.incident.pods, *(_decide(case, pod, None)[0] for pod in late))
    return replace(case.incident, pods=records[:MAX_PODS])


def hold_reason(case: Case, pod: PodFacts) -> str | None:
    """Why `pod` is left alone; None = it may be evicted. A pod that is already leaving is never held."""
    if pod.deletion_timestamp is not None:
        return None
    return _protected(case, pod) or _by_kind(case, pod) or _arrived_late(case, pod)


def blocks_repair(pod: PodFacts) -> bool:
    """A held pod must be gone before its GPU is reset; DaemonSet and static pods come back anyway and never block."""
    return not (pod.is_daemonset or pod.is_mirror)


def _protected(case: Case, pod: PodFacts) -> str | None:
    if pod.namespace in case.policy.protected_namespaces:
        return f"namespace {pod.namespace} is protected by the policy"
    own = opted_out(pod.annotations, case.now)
    if own:
        return f"the pod is {own}"
    namespace = case.view.namespaces.get(pod.namespace)
    if namespace is None:
        return f"namespace {pod.namespace} is not known yet, so its opt-out is not either"
    found = opted_out(namespace.annotations, case.now)
    return f"namespace {pod.namespace} is {found}" if found else None


def _by_kind(case: Case, pod: PodFacts) -> str | None:
    options = case.playbook.drain
    if pod.is_mirror:
        return "static pod: the kubelet owns it"
    if pod.is_daemonset:
        return "DaemonSet pod: it would come back at once"
    if pod.annotations.get(SAFE_TO_EVICT) == "false":
        return f"annotation {SAFE_TO_EVICT}=false"
    if pod.owner_uid is None and options.bare_pods == "hold":
        return "no controller would start it again (drain.barePods: hold)"
    if pod.has_local_storage and options.local_storage == "hold":
        return "its data is on this node (drain.localStorage: hold)"
    return None


def _arrived_late(case: Case, pod: PodFacts) -> str | None:
    quarantine = case.incident.quarantine
    if quarantine is None or pod.created_at is None:
        return None
    if pod.created_at > quarantine.applied_at + timedelta(seconds=LATE_SECONDS):
        return "came after the quarantine (toleration or nodeName): evicting it would go round for ever"
    return None


def _not_known(case: Case) -> Wait | None:
    if live_pods(case) is None:
        return Wait(code=Code.PODS_UNKNOWN, message="the pods of the node are not listed yet")
    if case.node and not whole_node(case):
        return guards.mapping_unknown(case.node.exporter)
    return None


def _unplaced(case: Case, pods: tuple[PodFacts, ...]) -> tuple[PodFacts, ...]:
    """Pods whose GPU is unknown, where it matters; static and DaemonSet pods never hold us up."""
    if whole_node(case):
        return ()
    return tuple(pod for pod in unmapped(case, pods) if blocks_repair(pod))


def _decide(case: Case, pod: PodFacts, old: PodRecord | None) -> tuple[PodRecord, EvictPod | None]:
    owner = f"{pod.owner_kind}/{pod.owner_name}" if pod.owner_kind else ""
    record = old or PodRecord(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        fate=Fate.PENDING,
        owner=owner,
        owner_uid=pod.owner_uid or "",
    )
    if pod.deletion_timestamp is not None:
        return replace(record, fate=Fate.EVICTING, reason="terminating", evicted_at=record.evicted_at or case.now), None
    held = hold_reason(case, pod)
    if held is not None:
        return replace(record, fate=Fate.HELD, reason=held), None
    return _evict(case, pod, record)


def _evict(case: Case, pod: PodFacts, record: PodRecord) -> tuple[PodRecord, EvictPod | None]:
    action = EvictPod(
        incident=case.incident.name,
        node=case.incident.node,
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        grace_seconds=case.playbook.drain.grace_seconds,
    )
    due = action if case.now >= retry_at(case, action.key) else None
    refused = _refused(case.past(action.key))
    if refused is not None:
        return replace(record, fate=Fate.BLOCKED, reason=refused[:256]), due
    evicting = replace(record, fate=Fate.EVICTING, reason="", evicted_at=record.evicted_at or case.now)
    return evicting, None if case.just_done(action.key) else due


def _refused(past: PastOutcome | None) -> str | None:
    """Why the eviction does not get through, as far as it is worth saying."""
    match past.outcome if past else None:
        case Refused(reason=reason) | Blocked(reason=reason):
            return reason
        case Retry(reason=reason, after_seconds=after) if past and past.streak >= STUCK and after >= 1:
            return reason
        case _:
            return None


def retry_at(case: Case, key: str) -> datetime:
    """When the action `key` may be tried again; now, when nothing speaks against it."""
    past = case.past(key)
    match past.outcome if past else None:
        case Blocked(after_seconds=after) if past:
            pause = BACKOFF_SECONDS[min(past.streak, len(BACKOFF_SECONDS)) - 1]
            return later(past.at, max(pause, after or 0.0))
        case Retry(after_seconds=after) if past:
            return later(past.at, after)
        case Refused() if past:
            return later(past.at, REFUSED_SECONDS)
        case _:
            return case.now


def _wait(case: Case, records: tuple[PodRecord, ...], unplaced: tuple[PodFacts, ...]) -> Wait | None:
    blocked = [record for record in records if record.fate is Fate.BLOCKED]
    if blocked:
        times = [retry_at(case, f"evict/{r.namespace}/{r.name}/{r.uid}") for r in blocked]
        message = f"{len(blocked)} evictions are refused, first {blocked[0].full_name}: {blocked[0].reason}"
        return Wait(code=Code.EVICTION_BLOCKED, message=message, retry_at=max(min(times), later(case.now, 1)))
    leaving = [record for record in records if record.fate is Fate.EVICTING]
    if leaving:
        shown = ", ".join(record.full_name for record in leaving[:5])
        return Wait(code=Code.PODS_LEAVING, message=f"{len(leaving)} pods are leaving: {shown}")
    if unplaced:
        return Wait(code=Code.MAPPING_INCOMPLETE, message=f"it is not known yet which GPU holds {names(unplaced)}")
    return None
