"""Following each evicted pod until its controller's replacement runs on a healthy GPU.

Laws:
1. Pods are tracked by UID: a StatefulSet pod of the same name elsewhere is the replacement, not the victim.
2. One replacement counts for one evicted pod.
3. Following never acts and never blocks a repair: where there is no room, the repair is what makes room.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from exporter.health.vocabulary import Health
from remediator.domain.case import Case
from remediator.domain.model import Fate, Incident, PodFacts, PodRecord

UNPLACED_SECONDS = 30
"""A scheduler with room needs about a second; after this long the lack of a place is worth saying."""
CLOCK_SLACK = timedelta(seconds=1)
"""creationTimestamp has whole seconds and the API server's clock is not ours. Pods of the quarantined node itself get
no slack: a sibling started just before the fault is not a replacement."""

PRESENT = (Fate.PENDING, Fate.EVICTING, Fate.BLOCKED, Fate.HELD)
SOUGHT = (Fate.GONE, Fate.UNPLACED)


def follow(case: Case) -> Incident:
    """The incident with the fate of each recorded pod brought up to date."""
    if case.node is None or case.node.pods is None or not case.incident.pods:
        return case.incident
    present = {pod.uid for pod in case.node.pods if not pod.terminal}
    taken = {record.replacement_uid for record in _others(case) if record.replacement_uid}
    known = {record.uid for record in case.incident.pods}
    records = []
    for record in case.incident.pods:
        left = _left(record, case.now) if record.fate in PRESENT and record.uid not in present else record
        moved = _seek(case, left, taken, known) if left.fate in SOUGHT else left
        if moved.replacement_uid:
            taken.add(moved.replacement_uid)
        records.append(moved)
    return replace(case.incident, pods=tuple(records))


def _others(case: Case) -> Iterable[PodRecord]:
    own = (record for record in case.incident.pods if record.fate is Fate.REPLACED)
    theirs = (pod for other in case.view.incidents if other.name != case.incident.name for pod in other.pods)
    return (*own, *theirs)


def _left(record: PodRecord, now: datetime) -> PodRecord:
    """The pod object is gone, by us or by others."""
    if not record.owner_uid:
        return replace(record, fate=Fate.NO_CONTROLLER, reason="gone; nobody starts it again")
    return replace(record, fate=Fate.GONE, reason="", evicted_at=record.evicted_at or now)


def _seek(case: Case, record: PodRecord, taken: set[str], known: set[str]) -> PodRecord:
    candidates = [
        pod
        for pod in case.view.pods_by_owner.get(record.owner_uid, ())
        if pod.uid not in known
        and pod.uid not in taken
        and not pod.terminal
        and pod.deletion_timestamp is None
        and _after_eviction(case, record, pod)
    ]
    ranked = sorted(candidates, key=lambda pod: (_doubt(case, pod) is not None, pod.node is None, pod.name))
    if not ranked:
        return _unplaced(case, record, "its controller has started no replacement yet")
    best = ranked[0]
    doubt = _doubt(case, best)
    if doubt is not None:
        return _unplaced(case, record, f"{best.name}: {doubt}")
    return replace(
        record,
        fate=Fate.REPLACED,
        reason=f"{best.name} runs on {best.node}",
        replacement=best.name,
        replacement_uid=best.uid,
        replacement_node=best.node,
        replaced_at=case.now,
    )


def _after_eviction(case: Case, record: PodRecord, pod: PodFacts) -> bool:
    since = (record.evicted_at or case.now).replace(microsecond=0)
    slack = timedelta() if pod.node == case.incident.node else CLOCK_SLACK
    return pod.created_at is None or pod.created_at >= since - slack


def _unplaced(case: Case, record: PodRecord, reason: str) -> PodRecord:
    if record.evicted_at is not None and case.since(record.evicted_at) < UNPLACED_SECONDS:
        return record
    return replace(record, fate=Fate.UNPLACED, reason=reason[:256])


def _doubt(case: Case, pod: PodFacts) -> str | None:
    """Why `pod` is no proven replacement yet; None = it runs and is ready on a GPU that is not bad or unknown."""
    if pod.node is None:
        return f"not placed: {pod.message}" if pod.message else "not placed"
    if pod.phase != "Running" or not pod.ready:
        return f"{pod.phase}, not ready on {pod.node}" + (f": {pod.message}" if pod.message else "")
    if pod.gpus == 0:
        return None
    view = case.view.nodes.get(pod.node)
    report = view.exporter.report if view else None
    devices = (
        [d for d in report.gpus for p in d.pods if (p.namespace, p.name) == (pod.namespace, pod.name)] if report else []
    )
    if not devices:
        return f"runs on {pod.node}, its GPU is not known yet"
    bad = [device for device in devices if device.health in (Health.UNHEALTHY, Health.UNKNOWN)]
    return f"runs on {pod.node} GPU {bad[0].index}, which is {bad[0].health}" if bad else None
