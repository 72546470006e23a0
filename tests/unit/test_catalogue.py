"""The catalogue says what the vendor says, in our words, for every code."""

import pytest

from exporter.health.catalogue import all_sxids, all_xids, lookup, lookup_sxid
from exporter.health.codes import sxid_code, xid_code
from exporter.health.vocabulary import Advice, Scope, Severity


@pytest.mark.parametrize(
    ("code", "severity", "scope", "advice"),
    [
        pytest.param(13, Severity.WARNING, Scope.APP, Advice.RESTART_APP, id="13 is the application's"),
        pytest.param(31, Severity.WARNING, Scope.APP, Advice.RESTART_APP, id="31 is the application's"),
        pytest.param(43, Severity.WARNING, Scope.APP, Advice.NONE, id="43 is the application's and over"),
        pytest.param(48, Severity.CRITICAL, Scope.GPU, Advice.RESET_GPU, id="48 takes the GPU"),
        pytest.param(63, Severity.WARNING, Scope.GPU, Advice.NONE, id="63 drains nothing but is the GPU's"),
        pytest.param(64, Severity.CRITICAL, Scope.GPU, Advice.RESET_GPU, id="64 takes the GPU"),
        pytest.param(74, Severity.CRITICAL, Scope.NODE, Advice.RESET_GPU, id="74 reaches the node"),
        pytest.param(79, Severity.CRITICAL, Scope.NODE, Advice.REBOOT_NODE, id="79 needs a reboot"),
        pytest.param(94, Severity.ERROR, Scope.APP, Advice.RESTART_APP, id="94 kills the application only"),
        pytest.param(95, Severity.CRITICAL, Scope.GPU, Advice.RESET_GPU, id="95 takes the GPU"),
        pytest.param(119, Severity.CRITICAL, Scope.GPU, Advice.RESET_GPU, id="119 takes the GPU"),
        pytest.param(144, Severity.ERROR, Scope.GPU, Advice.CONTACT_SUPPORT, id="cables are a human's work"),
    ],
)
def test_xid(code: int, severity: Severity, scope: Scope, advice: Advice) -> None:
    entry = lookup(code)
    assert (entry.severity, entry.scope, entry.advice, entry.known) == (severity, scope, advice, True)
    assert entry.code == code
    assert entry.mnemonic
    assert entry.description


def test_an_unknown_xid_is_a_warning_without_an_action() -> None:
    entry = lookup(400)
    assert (entry.severity, entry.scope, entry.advice) == (Severity.WARNING, Scope.GPU, Advice.UNKNOWN)
    assert entry.description == "unknown Xid 400"
    assert not entry.known


def test_an_unknown_sxid_is_a_warning_of_the_fabric() -> None:
    entry = lookup_sxid(77777)
    assert (entry.severity, entry.scope, entry.known) == (Severity.WARNING, Scope.FABRIC, False)


def test_an_sxid_reaches_through_the_fabric() -> None:
    entry = lookup_sxid(20034)
    assert entry.scope is Scope.FABRIC
    assert entry.origin == "switch"
    assert entry.known


def test_every_row_is_read_once_and_in_order() -> None:
    codes = [entry.code for entry in all_xids()]
    assert len(codes) == 177
    assert codes == sorted(set(codes))
    switches = [entry.code for entry in all_sxids()]
    assert len(switches) == 261
    assert switches == sorted(set(switches))


def test_nothing_that_is_the_applications_advises_a_reset_or_reboot() -> None:
    drastic = {Advice.RESET_GPU, Advice.REBOOT_NODE}
    assert [entry.code for entry in all_xids() if entry.scope is Scope.APP and entry.advice in drastic] == []


def test_codes_are_spelled_once() -> None:
    assert xid_code(79) == "xid-79"
    assert sxid_code(20034) == "sxid-20034"
