"""The Job controller: pods until enough have succeeded, or too many have failed, or time is up."""

from collections.abc import Iterable
from datetime import datetime

from exporter.health.wire import parse_timestamp, timestamp
from remediator.simulation.client import Client
from remediator.simulation.eviction import is_ready
from remediator.simulation.owners import OwnedPods, is_active, owner_key, suffix
from remediator.simulation.status_errors import Obj
from remediator.simulation.store import Change, Key, Store, key_of
from remediator.simulation.workloads import pod_from, pods_path, put_status
from remediator.simulation.writes import Clock

BACKOFF_SECONDS = 10.0
"""Wait after the first failure of a Job's pod, doubled with each further one, as the real controller does."""
BACKOFF_LIMIT = 600.0


class Jobs:
    """See the module; Job pods carry no tracking finalizer here."""

    watched = frozenset({"jobs.batch", "pods"})

    def __init__(self, store: Store, client: Client, clock: Clock, backoff_seconds: float = BACKOFF_SECONDS) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._backoff_seconds = backoff_seconds
        self._pods = OwnedPods(store, "pods")

    def keys(self, resource: str, change: Change) -> Iterable[Key]:
        """The Job itself, or the Job that owns a pod."""
        if resource != "pods":
            return [key_of(change.object)]
        self._pods.note(change.object, deleted=change.type == "DELETED")
        return owner_key(change.object, "Job")

    def reconcile(self, key: Key) -> float | None:
        """See `Reconciler`."""
        job = self._store.get("jobs.batch", key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return None
        if verdict_of(job):
            return self._expire(job)
        now = self._clock()
        pods = self._pods.of(job)
        active = [pod for pod in pods if is_active(pod)]
        succeeded = self._count(job, pods, "Succeeded")
        failed = self._count(job, pods, "Failed")
        ended = self._ended(job, succeeded, failed, now)
        wait: float | None = None
        if ended or job["spec"].get("suspend"):
            self._delete(key, active)
            active = []
        else:
            wait = self._fill(job, len(active), succeeded, pods)
        self._tell(job, active, succeeded, failed, ended)
        return self._deadline(job, now) if wait is None else wait

    def _count(self, job: Obj, pods: list[Obj], phase: str) -> int:
        """Ended pods; those deleted meanwhile stay counted through the status."""
        seen = sum(1 for pod in pods if pod["status"].get("phase") == phase)
        before = (job.get("status") or {}).get(phase.lower(), 0)
        return max(seen, int(before))

    def _ended(self, job: Obj, succeeded: int, failed: int, now: datetime) -> tuple[str, str, str] | None:
        spec = job["spec"]
        if succeeded >= spec.get("completions", 1):
            return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        if failed > spec["backoffLimit"]:
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        left = self._deadline(job, now)
        if left is not None and left <= 0:
            return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
        return None

    def _deadline(self, job: Obj, now: datetime) -> float | None:
        """Seconds until activeDeadlineSeconds is over."""
        allowed, started = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
        if allowed is None or started is None:
            return None if allowed is None else float(allowed)
        return float(allowed) - (now - parse_timestamp(started)).total_seconds()

    def _fill(self, job: Obj, active: int, succeeded: int, pods: list[Obj]) -> float | None:
        """Starts pods up to the parallelism; seconds to wait after a failure."""
        spec = job["spec"]
        wanted = min(spec["parallelism"], spec.get("completions", 1) - succeeded) - active
        if wanted <= 0:
            return None
        if (wait := self._backoff(pods)) > 0:
            return wait
        key = key_of(job)
        for _ in range(wanted):
            pod = pod_from(spec["template"], job, f"{key[1]}-{suffix()}")
            self._client.request("POST", pods_path(key[0]), pod)
        return None

    def _backoff(self, pods: list[Obj]) -> float:
        failures = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
        if not failures:
            return 0.0
        last = max(finished_at(pod) for pod in failures)
        pause: float = min(BACKOFF_LIMIT, self._backoff_seconds * 2 ** (len(failures) - 1))
        return pause - (self._clock() - last).total_seconds()

    def _delete(self, key: Key, pods: list[Obj]) -> None:
        for pod in pods:
            self._client.request("DELETE", f"{pods_path(key[0])}/{pod['metadata']['name']}")

    def _tell(
        self, job: Obj, active: list[Obj], succeeded: int, failed: int, ended: tuple[str, str, str] | None
    ) -> None:
        now = timestamp(self._clock())
        old = job.get("status") or {}
        status: Obj = {"startTime": old.get("startTime", now), "terminating": 0}
        counts = {"active": len(active), "succeeded": succeeded, "failed": failed}
        status |= {name: count for name, count in counts.items() if count}
        status["ready"] = sum(1 for pod in active if is_ready(pod))
        if ended:
            first = "SuccessCriteriaMet" if ended[0] == "Complete" else "FailureTarget"
            status["conditions"] = [_condition(kind, ended, now) for kind in (first, ended[0])]
            if ended[0] == "Complete":
                status["completionTime"] = now
        put_status(self._client, f"/apis/batch/v1/namespaces/{key_of(job)[0]}/jobs", job, status)

    def _expire(self, job: Obj) -> float | None:
        """ttlSecondsAfterFinished."""
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return None
        ended = next(c for c in job["status"]["conditions"] if c["type"] in ("Complete", "Failed"))
        left = float(ttl) - (self._clock() - parse_timestamp(ended["lastTransitionTime"])).total_seconds()
        if left > 0:
            return left
        namespace, name = key_of(job)
        self._client.request(
            "DELETE", f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", {"propagationPolicy": "Background"}
        )
        return None


def _condition(kind: str, ended: tuple[str, str, str], at: str) -> Obj:
    _, reason, message = ended
    times = {"lastProbeTime": at, "lastTransitionTime": at}
    return {"type": kind, "status": "True", **times, "reason": reason, "message": message}


def verdict_of(job: Obj) -> str:
    """`Complete`, `Failed` or ""."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c["type"] for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"), "")


def finished_at(pod: Obj) -> datetime:
    """When the last container ended; the pod's creation when nothing says so."""
    states = [c.get("state", {}).get("terminated") or {} for c in pod["status"].get("containerStatuses") or ()]
    times = [state["finishedAt"] for state in states if state.get("finishedAt")]
    return parse_timestamp(max(times, default=pod["metadata"]["creationTimestamp"]))
