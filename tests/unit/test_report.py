"""Health of a GPU and of a node, and whose advice counts."""

import pytest

from exporter.assess.report import gpu_health, node_health, report
from exporter.health.codes import PROBE_HUNG, RECOVERY_ACTION
from exporter.health.vocabulary import Advice, DevicePod, Finding, Health, Scope, Severity
from exporter.readings import DriverState, GpuStatus, PodMapping, Snapshot
from tests.rig.ledger_world import a_fault, folded
from tests.rig.readings_world import BOOT, a_gpu, a_snapshot, an_identity, at, uuid

KNOWN = PodMapping(known=True)
HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = Health.HEALTHY, Health.DEGRADED, Health.UNHEALTHY, Health.UNKNOWN


def finding(severity: Severity, scope: Scope = Scope.GPU, code: str = "xid-1") -> Finding:
    """A standing finding of this grade."""
    (found,) = folded(a_fault(code, severity=severity, scope=scope)).findings
    return found


CRITICAL = finding(Severity.CRITICAL)
APP_CRITICAL = finding(Severity.CRITICAL, Scope.APP)
ERROR = finding(Severity.ERROR)
WARNING = finding(Severity.WARNING)
INFO = finding(Severity.INFO)
HUNG = finding(Severity.CRITICAL, Scope.NODE, PROBE_HUNG)


@pytest.mark.parametrize(
    ("standing", "status", "driver_answers", "health"),
    [
        pytest.param([], GpuStatus.UP, True, HEALTHY, id="nothing stands"),
        pytest.param([INFO], GpuStatus.UP, True, HEALTHY, id="info is counted only"),
        pytest.param([WARNING], GpuStatus.UP, True, DEGRADED, id="a warning degrades"),
        pytest.param([ERROR], GpuStatus.UP, True, DEGRADED, id="an error degrades: the GPU may go on"),
        pytest.param([CRITICAL], GpuStatus.UP, True, UNHEALTHY, id="critical is unhealthy"),
        pytest.param([APP_CRITICAL], GpuStatus.UP, True, DEGRADED, id="what an application did never condemns"),
        pytest.param([WARNING, CRITICAL], GpuStatus.UP, True, UNHEALTHY, id="the worst counts"),
        pytest.param([], GpuStatus.HUNG, True, UNKNOWN, id="a hang is unknown"),
        pytest.param([HUNG], GpuStatus.HUNG, True, UNKNOWN, id="a hang with its finding is unknown"),
        pytest.param([HUNG], GpuStatus.UP, True, UNKNOWN, id="a GPU that has just answered again is not trusted yet"),
        pytest.param([HUNG, CRITICAL], GpuStatus.HUNG, True, UNHEALTHY, id="what is proven stands during a hang"),
        pytest.param([WARNING], GpuStatus.HUNG, True, UNKNOWN, id="a warning is no proof during a hang"),
        pytest.param([], GpuStatus.FAILED, True, UNKNOWN, id="failed calls are unknown"),
        pytest.param([CRITICAL], GpuStatus.FAILED, True, UNHEALTHY, id="failed calls clear nothing"),
        pytest.param([], GpuStatus.UP, False, UNKNOWN, id="no driver is unknown"),
        pytest.param([WARNING], GpuStatus.UP, False, UNKNOWN, id="no driver hides a warning"),
        pytest.param([CRITICAL], GpuStatus.UP, False, UNHEALTHY, id="no driver clears nothing"),
        pytest.param([], GpuStatus.LOST, True, UNHEALTHY, id="lost"),
        pytest.param([], GpuStatus.MISSING, True, UNHEALTHY, id="missing"),
        pytest.param([], GpuStatus.RESET_REQUIRED, True, UNHEALTHY, id="reset required"),
        pytest.param([], GpuStatus.LOST, False, UNKNOWN, id="lost, as an absent driver says, is unknown"),
    ],
)
def test_gpu_health(standing: list[Finding], status: GpuStatus, driver_answers: bool, health: Health) -> None:
    assert gpu_health(standing, status, driver_answers) is health


@pytest.mark.parametrize(
    ("gpus", "standing", "doubtful", "health"),
    [
        pytest.param([HEALTHY, HEALTHY], [], False, HEALTHY, id="all well"),
        pytest.param([], [], False, HEALTHY, id="nothing to judge"),
        pytest.param([HEALTHY, DEGRADED], [], False, DEGRADED, id="the worst GPU"),
        pytest.param([DEGRADED, UNKNOWN], [], False, UNKNOWN, id="unknown is worse than degraded"),
        pytest.param([UNHEALTHY, UNKNOWN], [], False, UNHEALTHY, id="unhealthy is worse than unknown"),
        pytest.param([HEALTHY], [CRITICAL], False, UNHEALTHY, id="a critical finding of the node"),
        pytest.param([HEALTHY], [WARNING], False, DEGRADED, id="a warning of the node"),
        pytest.param([HEALTHY], [INFO], False, HEALTHY, id="info of the node"),
        pytest.param([HEALTHY], [WARNING], True, UNKNOWN, id="doubt is worse than a warning"),
        pytest.param([], [CRITICAL], True, UNHEALTHY, id="what is proven stands in doubt"),
        pytest.param([], [], True, UNKNOWN, id="doubt alone"),
    ],
)
def test_node_health(gpus: list[Health], standing: list[Finding], doubtful: bool, health: Health) -> None:
    assert node_health(gpus, standing, doubtful=doubtful) is health


@pytest.mark.parametrize(
    ("code", "severity", "scope", "advice"),
    [
        pytest.param("xid-95", Severity.CRITICAL, Scope.GPU, Advice.REBOOT_NODE, id="driver above catalogue"),
        pytest.param("xid-94", Severity.ERROR, Scope.APP, Advice.REBOOT_NODE, id="also for an error in an application"),
        pytest.param("xid-31", Severity.WARNING, Scope.APP, Advice.RESET_GPU, id="not for an application's warning"),
        pytest.param("xid-45", Severity.INFO, Scope.APP, Advice.RESET_GPU, id="nor for what is only counted"),
    ],
)
def test_the_drivers_word(code: str, severity: Severity, scope: Scope, advice: Advice) -> None:
    ledger = folded(a_fault(code, severity=severity, scope=scope), a_fault(RECOVERY_ACTION, advice=Advice.REBOOT_NODE))
    told = report(ledger, a_snapshot(), KNOWN, {}, "1.0")
    assert {f.code: f.advice for f in told.gpus[0].findings} == {code: advice, RECOVERY_ACTION: Advice.REBOOT_NODE}
    assert {f.code: f.advice for f in ledger.findings}[code] is Advice.RESET_GPU, "the ledger keeps its own advice"


def test_the_drivers_word_is_for_one_gpu() -> None:
    ledger = folded(a_fault("xid-95", gpu=uuid(1)), a_fault(RECOVERY_ACTION, advice=Advice.REBOOT_NODE))
    told = report(ledger, a_snapshot(a_gpu(0), a_gpu(1)), KNOWN, {}, "1.0")
    assert [f.advice for f in told.gpus[1].findings] == [Advice.RESET_GPU]


def test_a_report_tells_everything() -> None:
    pod = DevicePod(namespace="ml", name="train", uid="", container="main", resource="nvidia.com/gpu")
    ledger = folded(
        a_fault("xid-31", severity=Severity.WARNING),
        a_fault("xid-95"),
        a_fault("gpu-missing", gpu=None),
        a_fault("xid-79", gpu=uuid(9)),
    )
    identity = an_identity(1, mig_uuids=("MIG-1",))
    snapshot = a_snapshot(a_gpu(0), a_gpu(1, identity=identity), seconds=4)
    told = report(ledger, snapshot, KNOWN, {uuid(1): (pod,)}, "1.2.3")
    assert (told.node, told.boot_id, told.observed_at) == ("n1", BOOT, at(4))
    assert (told.driver_version, told.exporter_version, told.driver_state) == ("575.57.08", "1.2.3", "ok")
    assert (told.expected_gpus, told.seen_gpus, told.mapping_known) == (2, 2, True)
    assert [gpu.uuid for gpu in told.gpus] == [uuid(0), uuid(1)]
    assert [f.code for f in told.gpus[0].findings] == ["xid-95", "xid-31"], "worst first"
    assert (told.gpus[1].pods, told.gpus[1].mig, told.gpus[1].health) == ((pod,), ("MIG-1",), HEALTHY)
    assert [f.code for f in told.findings] == ["gpu-missing"]
    assert told.health is UNHEALTHY


@pytest.mark.parametrize(
    ("status", "age", "health"),
    [
        pytest.param(GpuStatus.UP, 60, HEALTHY, id="read a minute ago"),
        pytest.param(GpuStatus.UP, 60.1, UNKNOWN, id="nobody has read it for more than a minute"),
        pytest.param(GpuStatus.LOST, 3600, UNHEALTHY, id="lost for an hour is lost"),
        pytest.param(GpuStatus.HUNG, 3600, UNKNOWN, id="hung for an hour is unknown"),
    ],
)
def test_an_old_reading_is_not_believed(status: GpuStatus, age: float, health: Health) -> None:
    told = report(folded(), a_snapshot(a_gpu(0, status=status), seconds=age), KNOWN, {}, "1.0")
    assert told.gpus[0].health is told.health is health


def test_an_old_reading_takes_nothing_back() -> None:
    told = report(folded(a_fault("xid-95")), a_snapshot(a_gpu(0), seconds=3600), KNOWN, {}, "1.0")
    assert told.gpus[0].health is UNHEALTHY


def test_a_gpu_that_never_said_its_name_makes_the_node_unknown() -> None:
    told = report(folded(), a_snapshot(a_gpu(0), enumerated=2), KNOWN, {}, "1.0")
    assert [gpu.health for gpu in told.gpus] == [HEALTHY]
    assert (told.expected_gpus, told.seen_gpus, told.health) == (2, 2, UNKNOWN)


def test_a_fault_of_a_gpu_that_nobody_shows_makes_the_node_unknown() -> None:
    assert report(folded(a_fault("xid-79", gpu=uuid(9))), a_snapshot(a_gpu(0)), KNOWN, {}, "1.0").health is UNKNOWN
    mild = a_fault("xid-31", gpu=uuid(9), severity=Severity.WARNING)
    assert report(folded(mild), a_snapshot(a_gpu(0)), KNOWN, {}, "1.0").health is HEALTHY


def test_a_node_without_a_driver_tells_that() -> None:
    snapshot = Snapshot(
        node="n1", boot_id=BOOT, taken_at=at(0), driver_state=DriverState.NO_DRIVER, driver=None, gpus=()
    )
    told = report(folded(), snapshot, PodMapping(known=False, reason="absent"), {}, "1.0")
    assert (told.driver_version, told.driver_state, told.health) == (None, "no-driver", UNKNOWN)
    assert not told.mapping_known
