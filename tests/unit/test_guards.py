"""Each brake alone: what refuses, what does not, and in which words."""

from dataclasses import replace
from datetime import timedelta

import pytest

from exporter.health import keys
from exporter.health.vocabulary import Health
from remediator.domain import guards
from remediator.domain.deferrals import Code, Wait, deferral
from remediator.domain.model import ExporterState, GpuTarget, NodeFacts, Taint
from remediator.domain.opt_out import opted_out
from remediator.domain.policy import load_policy
from tests.worlds import NOW, a_node, a_policy, a_report, a_view, ago, an_incident, uuid_of, with_fault


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, None, id="no annotation"),
        pytest.param({"opt-out": "false"}, None, id="false is not opted out"),
        pytest.param({"opt-out": " False "}, None, id="whatever its case"),
        pytest.param({"opt-out": "true"}, "opted out", id="true"),
        pytest.param({"opt-out": ""}, "opted out", id="empty counts"),
        pytest.param({"opt-out": "flase"}, "opted out: flase", id="misspelt counts"),
        pytest.param({"opt-out": "burn-in"}, "opted out: burn-in", id="a reason"),
        pytest.param({"opt-out-until": "2030-01-01T00:00:00Z"}, None, id="an end alone is nothing"),
        pytest.param(
            {"opt-out": "x", "opt-out-until": "2026-03-01T13:00:00Z"},
            "opted out: x (until 2026-03-01T13:00:00Z)",
            id="until later",
        ),
        pytest.param(
            {"opt-out": "x", "opt-out-until": "2026-03-01T14:30:00+02:00"},
            "opted out: x (until 2026-03-01T12:30:00Z)",
            id="until with an offset",
        ),
        pytest.param({"opt-out": "x", "opt-out-until": "2026-03-01T12:00:00Z"}, None, id="expired to the second"),
        pytest.param({"opt-out": "x", "opt-out-until": "next week"}, "opted out: x", id="unreadable end: for good"),
        pytest.param({"opt-out": "x", "opt-out-until": "2020-01-01"}, "opted out: x", id="a date alone is unreadable"),
        pytest.param(
            {"opt-out": "x", "opt-out-until": "2020-01-01T00:00:00"}, "opted out: x", id="no offset: unreadable"
        ),
    ],
)
def test_opt_out(annotations: dict[str, str], expected: str | None) -> None:
    found = opted_out({f"{keys.GROUP}/{key}": value for key, value in annotations.items()}, NOW)
    assert (str(found) if found else None) == expected


@pytest.mark.parametrize(("until", "warns"), [("soon", True), ("2030-01-01T00:00:00Z", False)])
def test_an_unreadable_end_earns_a_warning(until: str, warns: bool) -> None:
    found = opted_out({keys.OPT_OUT: "x", keys.OPT_OUT_UNTIL: until}, NOW)
    assert found is not None and bool(found.warning) is warns


def test_an_opted_out_node_is_looked_at_again_when_it_ends() -> None:
    node = NodeFacts(name="n7", uid="u", annotations={keys.OPT_OUT: "x", keys.OPT_OUT_UNTIL: "2026-03-01T12:00:20Z"})
    wait = guards.node_opted_out(node, NOW)
    assert wait is not None and wait.code is Code.OPTED_OUT
    assert wait.retry_at == NOW + timedelta(seconds=20)
    assert guards.node_opted_out(NodeFacts(name="n7", uid="u"), NOW) is None


def test_pause_by_the_policy_or_from_outside() -> None:
    assert guards.paused(a_view(), load_policy(None)) is None
    by_policy = guards.paused(a_view(), load_policy({"pause": True}))
    outside = guards.paused(a_view(paused="game day"), load_policy(None))
    assert by_policy is not None and outside is not None
    assert outside.message == "remediation is paused: game day"


@pytest.mark.parametrize(
    ("mode", "approve", "code"),
    [
        ("enforce", None, None),
        ("observe", None, Code.OBSERVE),
        ("observe", "go", Code.OBSERVE),
        ("recommend", None, Code.RECOMMEND),
        ("recommend", "go", None),
        ("recommend", "", None),
        ("recommend", "false", Code.RECOMMEND),
    ],
)
def test_mode(mode: str, approve: str | None, code: Code | None) -> None:
    incident = an_incident(annotations={} if approve is None else {keys.APPROVE: approve})
    wait = guards.mode_forbids(a_policy(mode).rules[0], incident)
    assert (wait.code if wait else None) == code


def test_no_rule_means_observe() -> None:
    wait = guards.mode_forbids(None, an_incident())
    assert wait is not None and wait.message == "no rule matches xid-79: observe only"


def test_hold() -> None:
    assert guards.held(an_incident()) is None
    assert guards.held(an_incident(annotations={keys.HOLD: "false"})) is None
    wait = guards.held(an_incident(annotations={keys.HOLD: "vendor on site"}))
    assert wait is not None and wait.message == "held by an operator: vendor on site"


REPORT = a_report()


@pytest.mark.parametrize(
    ("exporter", "unknown"),
    [
        pytest.param(ExporterState(report=REPORT, heartbeat=ago(30)), False, id="alive"),
        pytest.param(ExporterState(report=REPORT, heartbeat=ago(90)), False, id="90 s is still alive"),
        pytest.param(ExporterState(report=REPORT, heartbeat=ago(91)), True, id="more is stale"),
        pytest.param(ExporterState(report=REPORT, heartbeat=ago(-3600)), False, id="a stamp from the future is alive"),
        pytest.param(ExporterState(report=REPORT, heartbeat=None), True, id="never a heartbeat"),
        pytest.param(ExporterState(report=None, heartbeat=ago(1)), True, id="no report"),
        pytest.param(
            ExporterState(report=replace(REPORT, driver_state="starting"), heartbeat=ago(1)), True, id="driver starting"
        ),
    ],
)
def test_stale_health_is_unknown(exporter: ExporterState, unknown: bool) -> None:
    wait = guards.stale(exporter, NOW, 90)
    assert (wait is not None and wait.code is Code.UNKNOWN_HEALTH) is unknown


def test_the_report_may_call_the_target_unknown() -> None:
    gpus = tuple(replace(gpu, health=Health.UNKNOWN) if gpu.index == 3 else gpu for gpu in REPORT.gpus)
    exporter = ExporterState(report=replace(REPORT, gpus=gpus), heartbeat=ago(1))

    def target(index: int) -> GpuTarget:
        return GpuTarget(uuid=uuid_of("n7", index), index=index)

    assert guards.unknown_target(exporter, target(3)) is not None
    assert guards.unknown_target(exporter, target(4)) is None
    assert guards.unknown_target(exporter, target(99)) is None, "a missing GPU is a fault, not an unknown"
    assert guards.unknown_target(exporter, None) is None
    node_unknown = ExporterState(report=replace(REPORT, health=Health.UNKNOWN))
    assert guards.unknown_target(node_unknown, None) is not None
    assert guards.unknown_target(ExporterState(), None) is not None


def test_an_unknown_mapping_is_never_an_empty_one() -> None:
    assert guards.mapping_unknown(ExporterState(report=REPORT)) is None
    assert guards.mapping_unknown(ExporterState(report=replace(REPORT, mapping_known=False))) is not None
    assert guards.mapping_unknown(ExporterState()) is not None


@pytest.mark.parametrize(("ready", "refused"), [(True, False), (False, True), (None, True)])
def test_readiness(ready: bool | None, refused: bool) -> None:
    assert (guards.node_not_ready(replace(a_node().node, ready=ready)) is not None) is refused


@pytest.mark.parametrize("key", guards.FOREIGN_TAINTS)
def test_foreign_taints_are_respected(key: str) -> None:
    node = a_node(taints=(Taint(key=key, value="", effect="NoSchedule"),)).node
    wait = guards.foreign_controller(node)
    assert wait is not None and wait.code is Code.FOREIGN


def test_foreign_annotations_are_respected_and_ordinary_taints_are_not_foreign() -> None:
    assert guards.foreign_controller(a_node(annotations={"weave.works/kured-reboot-in-progress": "x"}).node)
    taint = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
    assert guards.foreign_controller(with_fault(a_node(taints=(taint,))).node) is None


def test_a_wait_that_goes_on_writes_nothing_new() -> None:
    wait = Wait(code=Code.BUDGET, message="full")
    first = deferral(wait, None, NOW, ("n7", None))
    assert (first.since, first.retry_at) == (NOW, NOW + timedelta(seconds=30))
    assert deferral(wait, first, NOW + timedelta(seconds=29), ("n7", None)) is first
    due = deferral(wait, first, NOW + timedelta(seconds=31), ("n7", None))
    assert due.since == NOW and due.retry_at == NOW + timedelta(seconds=61)
    other = deferral(Wait(code=Code.HELD, message="x"), first, NOW + timedelta(seconds=1), ("n7", None))
    assert other.since == NOW + timedelta(seconds=1)
    sooner = Wait(code=Code.BUDGET, message="full", retry_at=NOW + timedelta(seconds=5))
    assert deferral(sooner, first, NOW + timedelta(seconds=1), ("n7", None)).retry_at == NOW + timedelta(seconds=5)
