"""How many nodes may be out: bounds, the last node, and what counts."""

from dataclasses import replace
from typing import Any

import pytest

from remediator.domain.budgets import allowance, ledger
from remediator.domain.model import Phase
from remediator.domain.policy import Budget
from tests.worlds import a_node, a_view, an_incident, tainted


@pytest.mark.parametrize(
    ("budget", "total", "allowed"),
    [
        pytest.param({}, 10, 1, id="no bound given: one"),
        pytest.param({"nodes": 3}, 10, 3, id="a count"),
        pytest.param({"percent": 25}, 10, 2, id="a share, rounded down"),
        pytest.param({"percent": 20}, 4, 1, id="a share below one: at least one"),
        pytest.param({"nodes": 3, "percent": 20}, 10, 2, id="both: the smaller wins"),
        pytest.param({"nodes": 9}, 3, 2, id="never all"),
        pytest.param({"percent": 100}, 2, 1, id="never all of two"),
        pytest.param({"nodes": 1}, 1, 0, id="a fleet of one is left to a human"),
        pytest.param({"nodes": 1, "last_node": "take"}, 1, 1, id="unless the policy says take"),
        pytest.param({"nodes": 5}, 0, 0, id="no GPU nodes, no allowance"),
    ],
)
def test_allowance(budget: dict[str, Any], total: int, allowed: int) -> None:
    assert allowance(Budget(**budget), total) == allowed


@pytest.mark.parametrize("percent", [float("nan"), float("inf"), -5.0, 0.0, 101.0])
def test_a_malformed_share_allows_nothing(percent: float) -> None:
    """Fail closed even when it did not come through the policy file."""
    assert allowance(Budget.model_construct(nodes=None, percent=percent, last_node="keep"), 10) == 0


def test_a_node_counts_once_and_is_not_refused_to_itself() -> None:
    view = a_view(
        tainted(a_node("n1")), incidents=[an_incident(Phase.DRAINING, "n1", 0), an_incident(Phase.REPAIRING, "n1", 1)]
    )
    book = ledger(view, Budget(nodes=1))
    assert book.out == {"uid-n1"}
    assert book.refusal("uid-n1") is None
    assert book.refusal("uid-n2") == "1 of 6 GPU nodes are out of service by us, the budget allows 1"


@pytest.mark.parametrize(
    ("phase", "charged"),
    [
        (Phase.SUSPECTED, False),
        (Phase.QUARANTINED, True),
        (Phase.DRAINING, True),
        (Phase.PROBATION, True),
        (Phase.ESCALATED, True),
        (Phase.RESOLVED, True),
    ],
    ids=str,
)
def test_the_intent_counts_until_the_incident_is_closed(phase: Phase, charged: bool) -> None:
    view = a_view(incidents=[an_incident(phase, "n1")])
    assert ledger(view, Budget()).out == ({"uid-n1"} if charged else frozenset())


def test_an_orphaned_taint_of_ours_counts() -> None:
    assert ledger(a_view(tainted(a_node("n1"))), Budget()).out == {"uid-n1"}


def test_a_node_that_is_gone_frees_its_place() -> None:
    view = a_view(incidents=[replace(an_incident(Phase.DRAINING, "n1"), node_uid="uid-of-the-old-n1")])
    assert ledger(view, Budget()).out == frozenset()


def test_the_last_node_in_service_is_kept_whoever_took_the_others() -> None:
    nodes = [a_node(f"n{i}", unschedulable=i < 6) for i in range(1, 7)]
    book = ledger(a_view(*nodes), Budget(nodes=3))
    assert book.refusal("uid-n6") == "it is the last GPU node in service"
    assert ledger(a_view(*nodes), Budget(nodes=3, last_node="take")).refusal("uid-n6") is None


def test_charging_is_seen_by_the_next_one() -> None:
    book = ledger(a_view(), Budget(nodes=1))
    assert book.refusal("uid-n1") is None
    assert book.charge("uid-n1").refusal("uid-n2") is not None


def test_nodes_without_gpus_are_not_counted() -> None:
    view = a_view(*(a_node(f"n{i}", gpus=0) for i in range(1, 6)), a_node("n6"))
    assert ledger(view, Budget()).total == 1
