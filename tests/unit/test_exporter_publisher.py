"""The publisher against the embedded API server, and against one that refuses."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from exporter import publisher as module
from exporter.apiserver import ApiServer, Endpoint, Retryable
from exporter.health.vocabulary import (
    Advice,
    ClearedBy,
    DevicePod,
    DeviceReport,
    Finding,
    Health,
    HealthReport,
    Scope,
    Severity,
)
from exporter.health.wire import parse_timestamp, report_from_status
from exporter.publisher import Publisher, PublisherSettings
from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster
from tests.rig.readings_world import BOOT, T0, uuid
from tests.rig.waiting import eventually

GPU_NODE = "/apis/gpuward.io/v1alpha1/gpunodes/n1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpuward/leases/n1"


class Counts:
    """Counts results as the own metrics do."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()

    def published(self, target: str, result: str) -> None:
        self.seen[target, result] += 1


class World:
    """An API server, a publisher, and every write that went in."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.counts = Counts()
        self.calls: list[tuple[float, str, str]] = []
        self.refuse: Callable[[Call], Reply | None] = lambda call: None
        cluster.intercept(self._note)
        self.settings = PublisherSettings(node="n1", lease_seconds=0.2, stalled_seconds=0.5)
        self.publisher = self.restarted()

    def restarted(self) -> Publisher:
        self.publisher = Publisher(ApiServer(Endpoint(url=self.cluster.url), "test/1", 2), self.settings, self.counts)
        self.publisher.start()
        return self.publisher

    def _note(self, call: Call) -> Reply | None:
        self.calls.append((time.monotonic(), call.method, call.path))
        return self.refuse(call)

    def status_writes(self) -> list[float]:
        return [at for at, method, path in self.calls if (method, path) == ("PATCH", f"{GPU_NODE}/status")]

    def status(self) -> dict[str, Any]:
        found = self.cluster.request("GET", GPU_NODE)
        return found.body.get("status", {}) if found.code == 200 else {}

    def written(self, wanted: HealthReport) -> None:
        def same() -> bool:
            status = self.status()
            return bool(status) and report_from_status("n1", status) == wanted

        eventually("the report is stored", same, 5, 0.01)


@pytest.fixture
def world() -> Iterator[World]:
    with EmbeddedCluster() as cluster:
        cluster.apply(
            [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuward"}},
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
            ]
        )
        made = World(cluster)
        yield made
        made.publisher.stop()


def a_finding(code: str, **changed: Any) -> Finding:
    facts: dict[str, Any] = {
        "code": code,
        "gpu": uuid(0),
        "severity": Severity.CRITICAL,
        "scope": Scope.GPU,
        "advice": Advice.REBOOT_NODE,
        "cleared_by": ClearedBy.REBOOT,
        "count": 1,
        "first_seen": T0,
        "last_seen": T0,
        "message": "fell off the bus",
        "source": "kernel-log",
    }
    return Finding(**{**facts, **changed})


def a_report(*findings: Finding, pods: tuple[DevicePod, ...] = (), **changed: Any) -> HealthReport:
    health = Health.UNHEALTHY if findings else Health.HEALTHY
    gpu = DeviceReport(
        uuid=uuid(0),
        index=0,
        minor=0,
        pci_bus_id="00000000:10:00.0",
        serial=None,
        model="H100",
        health=health,
        findings=findings,
        pods=pods,
    )
    facts: dict[str, Any] = {
        "node": "n1",
        "boot_id": BOOT,
        "observed_at": T0,
        "driver_version": "575",
        "exporter_version": "1",
        "expected_gpus": 1,
        "seen_gpus": 1,
        "health": health,
        "gpus": (gpu,),
    }
    return HealthReport(**{**facts, **changed})


def a_pod(name: str) -> DevicePod:
    return DevicePod(namespace="ml", name=name, uid="", container="main", resource="nvidia.com/gpu")


def test_the_first_report_creates_node_and_lease_owned_by_the_node(world: World) -> None:
    world.publisher.offer(a_report())
    world.written(a_report())
    lease = eventually("lease", lambda: world.cluster.request("GET", LEASE).body.get("spec"), 5)
    owner = world.cluster.request("GET", GPU_NODE).body["metadata"]["ownerReferences"][0]
    node = world.cluster.request("GET", "/api/v1/nodes/n1").body
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n1", node["metadata"]["uid"])
    assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("n1", 1)
    assert parse_timestamp(lease["renewTime"]).tzinfo is not None


def test_without_the_right_to_read_nodes_there_is_no_owner(world: World) -> None:
    world.refuse = lambda call: Reply(code=403, body={"message": "may not"}) if "/nodes/" in call.path else None
    world.publisher.offer(a_report())
    world.written(a_report())
    assert not world.cluster.request("GET", GPU_NODE).body["metadata"].get("ownerReferences")


def test_what_is_the_same_is_not_written_again(world: World) -> None:
    world.publisher.offer(a_report())
    world.written(a_report())
    for second in range(1, 6):
        world.publisher.offer(a_report(observed_at=T0 + timedelta(seconds=second)))
        time.sleep(0.05)
    assert len(world.status_writes()) == 1


def test_a_fault_is_written_at_once(world: World) -> None:
    world.publisher.offer(a_report())
    world.written(a_report())
    time.sleep(module.HEALTH_SECONDS)
    started = time.monotonic()
    world.publisher.offer(a_report(a_finding("xid-79")))
    world.written(a_report(a_finding("xid-79")))
    assert world.status_writes()[-1] - started < 0.25


def test_a_burst_of_faults_becomes_few_writes_and_the_last_one_wins(world: World) -> None:
    world.publisher.offer(a_report())
    world.written(a_report())
    for number in range(50):
        world.publisher.offer(a_report(a_finding(f"xid-{number}")))
        time.sleep(0.01)
    world.written(a_report(a_finding("xid-49")))
    assert len(world.status_writes()) <= 6


def test_pods_alone_wait_for_their_turn(world: World) -> None:
    world.publisher.offer(a_report())
    world.written(a_report())
    for number in range(10):
        world.publisher.offer(a_report(pods=(a_pod(f"p{number}"),)))
        time.sleep(0.02)
    assert len(world.status_writes()) == 1
    # A change of health takes the newest pods along.
    world.publisher.offer(a_report(a_finding("xid-79"), pods=(a_pod("p9"),)))
    world.written(a_report(a_finding("xid-79"), pods=(a_pod("p9"),)))


def test_what_is_gone_is_gone_from_the_object_too(world: World) -> None:
    world.publisher.offer(a_report())
    world.written(a_report())
    world.publisher.offer(a_report(driver_version=None, driver_state="no-driver", health=Health.UNKNOWN))
    eventually("no driver", lambda: world.status().get("driverState") == "no-driver", 5)
    assert "driverVersion" not in world.status()


def test_a_restart_that_finds_its_own_words_writes_nothing(world: World) -> None:
    world.publisher.offer(a_report(a_finding("xid-79")))
    world.written(a_report(a_finding("xid-79")))
    world.publisher.stop()
    world.restarted().offer(a_report(a_finding("xid-79"), observed_at=T0 + timedelta(seconds=5)))
    eventually("unchanged", lambda: world.counts.seen["status", "unchanged"], 5)
    assert len(world.status_writes()) == 1


def test_a_deleted_object_comes_back_with_the_next_change(world: World) -> None:
    world.publisher.offer(a_report())
    world.written(a_report())
    world.cluster.request("DELETE", GPU_NODE)
    world.publisher.offer(a_report(a_finding("xid-79")))
    world.written(a_report(a_finding("xid-79")))


class TestHeartbeat:
    def renewals(self, world: World) -> int:
        return world.counts.seen["lease", "written"]

    def test_it_goes_on_while_reports_come(self, world: World) -> None:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            world.publisher.offer(a_report())
            time.sleep(0.05)
        assert 5 <= self.renewals(world) <= 9

    def test_it_stops_when_the_loop_stops(self, world: World) -> None:
        world.publisher.offer(a_report())
        time.sleep(1.0)  # stalled after 0.5 s
        stopped_at = self.renewals(world)
        assert 1 <= stopped_at <= 4
        time.sleep(0.6)
        assert self.renewals(world) == stopped_at
        world.publisher.offer(a_report())
        eventually("renewed", lambda: self.renewals(world) > stopped_at, 2)


class TestTrouble:
    def test_an_api_server_that_refuses_is_said_once_and_asked_again(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.refuse = lambda call: Reply(code=503, body={"message": "down"})
        with caplog.at_level(logging.INFO):
            started = time.monotonic()
            for _ in range(100):
                world.publisher.offer(a_report())
            assert time.monotonic() - started < 0.2, "the loop is never held up"
            eventually("two tries", lambda: world.counts.seen["status", "failed"] >= 2, 6)
            world.refuse = lambda call: None
            world.written(a_report())
        said = [record for record in caplog.records if record.msg == "publishing failed"]
        assert len(said) == 2, "once for the status, once for the lease"
        assert "publishing works again" in caplog.text

    def test_retry_after_is_obeyed(self, world: World) -> None:
        world.refuse = lambda call: Reply(code=429, body="Too many requests", headers={"Retry-After": "3"})
        world.publisher.offer(a_report())
        eventually("refused", lambda: world.counts.seen["status", "failed"], 5)
        asked = len(world.calls)
        time.sleep(1.5)
        assert len(world.calls) <= asked + 2, "status and lease asked once each"

    def test_it_stops_soon_while_the_server_hangs(self, world: World) -> None:
        def hang(_: Call) -> Reply | None:
            time.sleep(1)
            return None

        world.refuse = hang
        world.publisher.offer(a_report())
        time.sleep(0.1)
        started = time.monotonic()
        world.publisher.stop()
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("asked", [3600.0, float("inf")])
def test_no_server_can_silence_the_heartbeat_for_longer_than_a_lease_lives(asked: float) -> None:
    """A load balancer that says "come back in an hour" must not make every healthy node Unknown."""
    task = module._Task("lease", lambda report: "written")
    task.failed(Retryable("busy", "http-503", asked))
    assert 0 < task.not_before - time.monotonic() <= 45


def test_health_and_pods_are_told_apart() -> None:
    status = {"health": "Healthy", "gpus": [{"uuid": "a", "health": "Healthy", "findings": [], "pods": [1]}]}
    assert module._health_of(status) == module._health_of({**status, "observedAt": "later"})
    other = {**status, "gpus": [{"uuid": "a", "health": "Healthy", "findings": [], "pods": []}]}
    assert module._health_of(status) == module._health_of(other)
    assert module._compared(status) != module._compared(other)
