"""The remediator put together: every part made once, started in order, stopped in the reverse one."""

import logging
import time
from datetime import UTC, datetime

from exporter.health import keys
from remediator.adapters.api import KubeApi
from remediator.adapters.disruption import BudgetLocks
from remediator.adapters.elector import AlwaysLeader, Elector, LeaseTimes, Reign
from remediator.adapters.fence import FencedTransport
from remediator.adapters.kubeconfig import Connection, find_endpoint
from remediator.adapters.notify import Webhook
from remediator.adapters.quarantine import METHODS
from remediator.adapters.recorder import Recorder, Told
from remediator.adapters.repair import JobRunner
from remediator.adapters.resources import LEASES, Ref
from remediator.adapters.transport import HttpTransport
from remediator.adapters.work_queue import WorkQueue
from remediator.executor import Executor, Hands
from remediator.executor import Listeners as ExecutorListeners
from remediator.executor_brakes import Sources
from remediator.executor_budget import BudgetGate
from remediator.health_server import HealthServer, Pages
from remediator.loop import Loop, Parts
from remediator.metrics import CONTENT_TYPE, Metrics
from remediator.observer import Listeners as ObserverListeners
from remediator.observer import Observer, ObserverSettings
from remediator.settings import Settings
from remediator.settings_policy import PolicyFile, PolicyNews
from remediator.sweeps import Retention, Sweepers, Sweeps

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 10.0
"""Seconds for a write; the leader fence must hold for as long."""
STALLED_SECONDS = 60.0
"""Six missed turns: the loop hangs."""
DEAF_SECONDS = 300.0
"""No byte on a watch for so long, although bookmarks come every minute: only a restart can help."""


class Program:
    """One replica. `start` returns when everything runs, `stop` when the lease is released."""

    def __init__(self, settings: Settings, version: str) -> None:
        """Raises PolicyError (wrong policy file), Fatal (no API server), OSError (port taken)."""
        self.settings = settings
        self.metrics = Metrics(version)
        self._queue = WorkQueue()
        self._recorder: Recorder | None = None
        self._policies = PolicyFile(settings.config_file, self._policy_news)
        self._transport = HttpTransport(find_endpoint(_connection(settings)), user_agent=f"gpu-remediator/{version}")
        self._elector = self._make_elector()
        self._fenced = FencedTransport(self._transport, self._elector.is_leader_until)
        writer = KubeApi(self._fenced, timeout=WRITE_TIMEOUT)
        self._recorder = Recorder(writer, instance=settings.identity, on_result=self.metrics.told)
        self._webhook = Webhook(settings.notify_webhook_url, self._notified) if settings.notify_webhook_url else None
        self.observer = self._make_observer()
        self.executor = self._make_executor(writer)
        self.loop = self._make_loop()
        self.sweeps = self._make_sweeps(writer)
        self.server = self._make_server()

    def start(self) -> None:
        order = (self.server, self.observer, self._recorder, self._webhook, self._elector, self.loop, self.sweeps)
        for part in order:
            if part is not None:
                part.start()

    def stop(self) -> None:
        """Stop deciding, let calls under way end, and only then give the lease back."""
        order = (self.sweeps, self.loop, self.executor, self._recorder, self._webhook, self._elector, self.observer)
        for part in (*order, self.server):
            if part is not None:
                part.stop()
        self._queue.close()
        self._transport.close()

    def _make_elector(self) -> Elector | AlwaysLeader:
        reign = Reign(started=self._leadership_changed, stopped=self._leadership_changed)
        if not self.settings.leader_elect:
            return AlwaysLeader(reign)
        times = LeaseTimes(
            duration=self.settings.lease_duration,
            renew_deadline=self.settings.lease_renew_deadline,
            retry=self.settings.lease_retry,
        )
        lease = Ref(LEASES, keys.CONTROLLER, self.settings.namespace)
        return Elector(self._transport, lease, self.settings.identity, reign, times)

    def _make_observer(self) -> Observer:
        listeners = ObserverListeners(hooks=self.metrics, changed=self._queue.add, failed=self.metrics.failed)
        return Observer(self._transport, ObserverSettings(namespace=self.settings.namespace), listeners, _now)

    def _make_executor(self, writer: KubeApi) -> Executor:
        hands = Hands(
            api=writer,
            methods={method.name: method(writer) for method in METHODS},
            jobs=JobRunner(writer, self.settings.namespace),
            budgets=BudgetLocks(writer),
            tell=self._tell,
        )
        sources = Sources(
            api=writer, policy=self._policies.current, over_budget=BudgetGate(self.observer.facts).refusal, now=_now
        )
        listeners = ExecutorListeners(hooks=self.metrics, written=self.observer.written, finished=self._chain_finished)
        return Executor(hands, sources, listeners)

    def _make_loop(self) -> Loop:
        return Loop(
            Parts(
                observer=self.observer,
                executor=self.executor,
                leader=self._elector,
                policies=self._policies,
                metrics=self.metrics,
                queue=self._queue,
                now=_now,
            )
        )

    def _make_sweeps(self, writer: KubeApi) -> Sweeps:
        sweepers = Sweepers(
            api=writer,
            namespace=self.settings.namespace,
            facts=self.observer.facts,
            leads=self._elector.is_leader,
            resync=lambda: self._queue.add("resync"),
            swept=self.metrics.swept,
        )
        retention = Retention(days=self.settings.incidents_keep_days, count=self.settings.incidents_keep_count)
        return Sweeps(sweepers, retention)

    def _make_server(self) -> HealthServer:
        host, port = self.settings.listen
        pages = Pages(metrics=self.metrics.page, metrics_type=CONTENT_TYPE, healthy=self.unhealthy, ready=self.unready)
        return HealthServer(host, port, pages)

    def unhealthy(self) -> str | None:
        """Why a restart would help, or None."""
        if self.loop.age() > STALLED_SECONDS:
            return f"stalled: the loop has not turned for {self.loop.age():.0f} s"
        deaf = [r.kind for r in self.observer.reflectors if r.synced.is_set() and r.silence() > DEAF_SECONDS]
        return f"deaf: nothing heard about {', '.join(deaf)} for more than {DEAF_SECONDS:.0f} s" if deaf else None

    def unready(self) -> str | None:
        """What is missing for the first decision, or None."""
        missing = [r.kind for r in self.observer.reflectors if not r.synced.is_set()]
        return f"starting: not listed yet: {', '.join(missing)}" if missing else None

    def _leadership_changed(self) -> None:
        self.observer.distrust()
        self._queue.add("leadership")

    def _chain_finished(self, chain: str, look_again: float | None) -> None:
        self._queue.add_after(f"chain/{chain}", look_again or 0.0)

    def _tell(self, told: Told) -> None:
        if self._recorder is not None:
            self._recorder.record(told)
        if self._webhook is not None:
            self._webhook.tell(told)

    def _notified(self, result: str) -> None:
        if result != "sent":
            self.metrics.failed("notify")

    def _policy_news(self, news: PolicyNews) -> None:
        self.metrics.policy(news.policy, valid=news.valid, loaded_at=news.loaded_at)
        self._queue.add("policy")
        if not news.valid:
            message = f"policy file refused, the last good one stays in force: {'; '.join(news.problems)}"
            self._tell(_about_namespace(self.settings.namespace, "PolicyRefused", message))


def _connection(settings: Settings) -> Connection:
    return Connection(
        api_server=settings.kube_api_server,
        token_file=settings.kube_token_file,
        ca_file=settings.kube_ca_file,
        kubeconfig=settings.kubeconfig,
    )


def _about_namespace(namespace: str, reason: str, message: str) -> Told:
    # The hour in the key: the same wrong file is told again only when it is still wrong an hour later.
    dedupe = f"{namespace}/{reason}/{message}/{int(time.time() // 3600)}"
    return Told(kind="Namespace", name=namespace, uid="", reason=reason, message=message, warning=True, dedupe=dedupe)


def _now() -> datetime:
    return datetime.now(UTC)
