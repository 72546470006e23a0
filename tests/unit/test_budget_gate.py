"""The last look at the budget: never one node too many, and never everybody waiting for everybody."""

import pytest

from remediator.domain.model import ClusterView, Incident, Phase, QuarantineRecord
from remediator.executor_budget import BudgetGate
from tests.worlds import a_node, a_policy, a_view, ago, an_incident, tainted

ONE = a_policy(budget={"nodes": 1})


def intended(node: str, seconds: float, *, verified: bool = False) -> Incident:
    record = QuarantineRecord(method="node-taint", applied_at=ago(seconds), verified=verified)
    return an_incident(Phase.QUARANTINED, node, quarantine=record)


def gate(view: ClusterView) -> BudgetGate:
    return BudgetGate(lambda: view)


def test_two_intents_for_one_place_do_not_wait_for_each_other() -> None:
    """The budget was lowered, or a hold kept the older one back, between the intents and their taints."""
    asked = gate(a_view(incidents=[intended("n1", 20), intended("n2", 10)]))
    assert asked.refusal(ONE, "uid-n2") == "1 other GPU nodes are out, the budget allows 1"
    assert asked.refusal(ONE, "uid-n1") is None


def test_of_two_intended_at_once_exactly_one_goes_through() -> None:
    asked = gate(a_view(incidents=[intended("n1", 10), intended("n2", 10)]))
    assert [asked.refusal(ONE, f"uid-{node}") is None for node in ("n2", "n1")] == [False, True]


def test_one_that_was_let_through_counts_before_its_taint_is_seen() -> None:
    """The older intent was not visible yet when the younger one asked."""
    views = [a_view(incidents=[intended("n2", 10)]), a_view(incidents=[intended("n1", 20), intended("n2", 10)])]
    asked = BudgetGate(lambda: views.pop(0))
    assert asked.refusal(ONE, "uid-n2") is None
    assert asked.refusal(ONE, "uid-n1") is not None


OUT: list[tuple[str, ClusterView, bool]] = [
    ("nobody else", a_view(incidents=[intended("n1", 20)]), True),
    ("another is tainted", a_view(tainted(a_node("n2")), incidents=[intended("n1", 20)]), False),
    ("another was seen out", a_view(incidents=[intended("n1", 20), intended("n2", 1, verified=True)]), False),
    ("it was out before", a_view(tainted(a_node("n2")), incidents=[intended("n1", 20, verified=True)]), True),
    ("its own intent is not seen", a_view(incidents=[intended("n2", 1)]), False),
]


@pytest.mark.parametrize(("view", "allowed"), [row[1:] for row in OUT], ids=[row[0] for row in OUT])
def test_who_counts(view: ClusterView, allowed: bool) -> None:
    assert (gate(view).refusal(ONE, "uid-n1") is None) is allowed
