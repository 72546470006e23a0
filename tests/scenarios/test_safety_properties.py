"""The safety properties S1 to S7 under random histories: faults, humans, silence, crashes, in any order.

Each history is a list of events; between two events the remediator takes a turn and a few seconds pass. The properties
are checked on every action at the moment it is executed, against the state of the cluster at that moment.
"""

from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.health import keys
from remediator.domain.actions import Action, EvictPod, LiftQuarantine, MirrorCondition, Quarantine, RunJob
from remediator.domain.model import Fate, NamespaceFacts, Phase, Taint
from remediator.domain.opt_out import opted_out
from remediator.domain.outcomes import Outcome
from tests.tiny_cluster import TinyCluster
from tests.worlds import a_policy

NODES = ("n1", "n2", "n3", "n4")
LIMIT = 2
FOREIGN = Taint(key="team/reserved", value="x", effect="NoSchedule")


class Watched(TinyCluster):
    """A tiny cluster that checks the safety properties on every action."""

    def _execute(self, action: Action) -> Outcome:
        if isinstance(action, Quarantine | EvictPod | RunJob | LiftQuarantine | MirrorCondition):
            self._check(action)
        outcome = super()._execute(action)
        assert len(self.our_taints()) <= LIMIT, "S1: more nodes out than the budget allows"
        return outcome

    def _check(self, action: Quarantine | EvictPod | RunJob | LiftQuarantine | MirrorCondition) -> None:
        host = self.hosts[action.node]
        assert self.leader, "S7: only the leader writes"
        if isinstance(action, LiftQuarantine):
            return
        assert not opted_out(host.facts.annotations, self.now), "S2: an opted-out node is touched"
        if isinstance(action, MirrorCondition):
            return
        heartbeat = host.exporter.heartbeat
        assert heartbeat is not None and self.now - heartbeat <= timedelta(seconds=90), "S3: acted on unknown health"
        (stored,) = [incident for incident in self.stored() if incident.name == action.incident]
        match action:
            case EvictPod():
                self._check_pod(action)
                fate = next(pod.fate for pod in stored.pods if pod.uid == action.uid)
                assert fate in (Fate.EVICTING, Fate.BLOCKED), "S5"
                assert stored.phase is Phase.DRAINING
            case RunJob(step="repair"):
                assert stored.repair is not None and stored.repair.job == action.name, "S5"
                assert stored.phase is Phase.REPAIRING
            case Quarantine():
                assert stored.quarantine is not None, "S5"
            case _:
                assert stored.phase is Phase.VALIDATING

    def _check_pod(self, action: EvictPod) -> None:
        pod, _ = self.pods.get(action.uid, (None, None))
        namespace = self.namespaces[action.namespace]
        assert not opted_out(namespace.annotations, self.now), "S2: an opted-out namespace"
        assert pod is None or not opted_out(pod.annotations, self.now), "S2: an opted-out pod"
        assert pod is None or pod.owner_uid, "a bare pod is held"


def fault(cluster: TinyCluster, node: str) -> None:
    cluster.fault(node, 0)


def heal(cluster: TinyCluster, node: str) -> None:
    cluster.heal(node)


def second_fault(cluster: TinyCluster, node: str) -> None:
    cluster.fault(node, 1, "xid-48")


def reboot(cluster: TinyCluster, node: str) -> None:
    cluster.reboot(node, f"boot-{cluster.now:%H%M%S}")


def opt_out(cluster: TinyCluster, node: str) -> None:
    cluster.annotate_node(node, keys.OPT_OUT, "x")


def opt_in(cluster: TinyCluster, node: str) -> None:
    cluster.annotate_node(node, keys.OPT_OUT, None)


def namespace_out(cluster: TinyCluster, node: str) -> None:
    cluster.namespaces["team-a"] = NamespaceFacts(name="team-a", annotations={keys.OPT_OUT: node})


def namespace_in(cluster: TinyCluster, node: str) -> None:
    cluster.namespaces["team-a"] = NamespaceFacts(name="team-a")


def exporter_dies(cluster: TinyCluster, node: str) -> None:
    cluster.hosts[node].alive = False


def exporter_lives(cluster: TinyCluster, node: str) -> None:
    cluster.hosts[node].alive = True


def untaint(cluster: TinyCluster, node: str) -> None:
    cluster.untaint(node)


def cancel(cluster: TinyCluster, node: str) -> None:
    cluster.annotate_incident(keys.CANCEL, node)


def crash_soon(cluster: TinyCluster, node: str) -> None:
    cluster.crash_after = cluster.writes + 1 + len(node)


def crash_now(cluster: TinyCluster, node: str) -> None:
    cluster.crash_after = cluster.writes + 1


def jobs_break(cluster: TinyCluster, node: str) -> None:
    cluster.job_works = lambda step: False


def jobs_work(cluster: TinyCluster, node: str) -> None:
    cluster.job_works = lambda step: True


def budget_shut(cluster: TinyCluster, node: str) -> None:
    cluster.blocked = lambda pod: True


def budget_open(cluster: TinyCluster, node: str) -> None:
    cluster.blocked = lambda pod: False


def minutes(cluster: TinyCluster, node: str) -> None:
    cluster.tick(120)


EVENTS = (
    *(fault, fault, fault, second_fault, heal, reboot, opt_out, opt_in, namespace_out, namespace_in, exporter_dies),
    *(exporter_lives, untaint, cancel, crash_soon, crash_now, jobs_break, jobs_work, budget_shut, budget_open, minutes),
)
histories = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from(NODES), st.integers(1, 12)), min_size=3, max_size=25
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories)
def test_no_history_breaks_a_safety_property(history: list[tuple[object, str, int]]) -> None:
    cluster = Watched.of(*NODES, policy=a_policy(budget={"nodes": LIMIT}))
    for host in cluster.hosts.values():
        host.facts = replace(host.facts, unschedulable=host.facts.name == "n4")
    cluster.deploy(6)
    cluster.tick(5)
    for event, node, seconds in history:
        assert callable(event)
        event(cluster, node)
        for _ in range(seconds):
            cluster.turn()
            cluster.tick()
        assert cluster.hosts["n4"].facts.unschedulable, "S4: a cordon that was there before us stays"
        for incident in cluster.open_incidents():
            recent = incident.opened_at >= cluster.now - timedelta(seconds=2)
            assert incident.deferral is not None or recent or cluster.outcomes == {}, (
                f"S6: {incident.phase} waits in silence"
            )
    evicted = cluster.evicted()
    assert len(evicted) == len(set(evicted)), "no pod is evicted twice"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories)
def test_when_the_storm_is_over_everything_ends_or_a_human_holds_it(history: list[tuple[object, str, int]]) -> None:
    cluster = Watched.of(*NODES, policy=a_policy(budget={"nodes": LIMIT}))
    cluster.deploy(6)
    cluster.tick(5)
    for event, node, seconds in history:
        assert callable(event)
        event(cluster, node)
        for _ in range(seconds):
            cluster.turn()
            cluster.tick()
    cluster.crash_after = None
    jobs_work(cluster, "")
    budget_open(cluster, "")
    namespace_in(cluster, "")
    for node in NODES:
        opt_in(cluster, node)
        exporter_lives(cluster, node)
        cluster.heal(node)
    for _ in range(120):
        cluster.turn()
        cluster.tick(10)
    assert {incident.phase for incident in cluster.open_incidents()} <= {Phase.ESCALATED}
    held = {incident.node for incident in cluster.open_incidents()}
    assert set(cluster.our_taints()) <= held, "S4: no mark of ours is left behind"
