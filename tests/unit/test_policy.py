"""The policy file: what is accepted, who wins, and what a wrong file says."""

from typing import Any

import pytest

from remediator.domain.policy import AskHuman, JobRepair, Mode, Policy, load_policy
from remediator.domain.policy_errors import PolicyError
from tests.worlds import H100, a_job, a_policy


def problems(raw: object) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as refused:
        load_policy(raw)
    return refused.value.problems


def a_rule(**changes: Any) -> dict[str, Any]:
    return {"rules": [{"name": "r", **changes}]}


@pytest.mark.parametrize("raw", [None, {}], ids=["empty file", "empty mapping"])
def test_the_empty_file_observes_everything(raw: object) -> None:
    policy = load_policy(raw)
    assert policy == Policy()
    assert policy.rule_for({}, H100, "xid-79") is None


def test_a_rule_without_a_mode_observes_and_asks_a_human() -> None:
    (rule,) = load_policy(a_rule()).rules
    assert rule.mode is Mode.OBSERVE
    assert rule.playbook.repair == (AskHuman(),)


WRONG: list[tuple[str, object, str]] = [
    ("no mapping", "nonsense", "the file: a mapping of keys is wanted, not 'nonsense'"),
    ("a list", [1], "the file: a mapping of keys is wanted, not [1]"),
    ("unknown key", {"rulez": []}, "rulez: unknown key (did you mean rules?); allowed: budget, heartbeatStaleSeconds"),
    ("rules no list", {"rules": 3}, "rules: a list is wanted, not 3"),
    ("no name", {"rules": [{}]}, "rules[0].name: is missing"),
    (
        "misspelt mode",
        a_rule(mode="enfroce"),
        "rules[0].mode: 'enfroce' is not allowed; allowed: observe, recommend, enforce",
    ),
    ("enforce everything", a_rule(mode="enforce"), "rules[0]: mode enforce must name its faults"),
    ("enforce a star", a_rule(mode="enforce", faults=["*"]), "rules[0]: mode enforce must name its faults"),
    ("same name twice", {"rules": [{"name": "a"}, {"name": "a"}]}, "rule names must differ; used more than once: a"),
    (
        "budget of none",
        {"budget": {"nodes": 0}},
        "budget.nodes: 0 is wrong: input should be greater than or equal to 1",
    ),
    ("budget too big", {"budget": {"percent": "150%"}}, "budget.percent: '150' is wrong"),
    (
        "budget no number",
        {"budget": {"percent": "some"}},
        "budget.percent: 'some' is wrong: input should be a valid number",
    ),
    ("negative time", a_rule(playbook={"probationSeconds": -1}), "rules[0].playbook.probationSeconds: -1 is wrong"),
    (
        "grace of zero",
        a_rule(playbook={"drain": {"graceSeconds": 0}}),
        "rules[0].playbook.drain.graceSeconds: 0 is wrong",
    ),
    (
        "unknown repair",
        a_rule(playbook={"repair": ["pray"]}),
        "rules[0].playbook.repair[0]: 'pray' is not allowed; allowed: ask-human",
    ),
    (
        "empty job",
        a_rule(playbook={"repair": [{"job": {}}]}),
        "rules[0].playbook.repair[0].job: a Job template needs spec.",
    ),
    (
        "misspelt repair key",
        a_rule(playbook={"repair": [{"job": a_job(), "timeout": 3}]}),
        "rules[0].playbook.repair[0].timeout: unknown key (did you mean timeoutSeconds?); allowed: job, kind, name",
    ),
    (
        "empty validation",
        a_rule(playbook={"validate": {"job": {"spec": {}}}}),
        "rules[0].playbook.validate.job: a Job template needs spec.",
    ),
]


@pytest.mark.parametrize(("raw", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_file_says_which_key_what_is_wrong_and_what_is_allowed(raw: object, words: str) -> None:
    (problem,) = problems(raw)
    assert problem.startswith(words) or words in problem


def test_all_problems_are_told_at_once() -> None:
    assert len(problems({"budget": {"nodes": -1}, "rulez": 1, "rules": [{"mode": "x"}]})) == 4


def test_the_first_matching_rule_wins() -> None:
    policy = load_policy(
        {
            "rules": [
                {"name": "lab", "nodeSelector": {"pool": "lab"}},
                {"name": "a100", "models": ["*a100*"], "mode": "recommend"},
                {"name": "xids", "faults": ["xid-*"], "mode": "enforce"},
            ]
        }
    )

    def named(labels: dict[str, str], model: str | None, fault: str) -> str | None:
        rule = policy.rule_for(labels, model, fault)
        return rule.name if rule else None

    assert named({"pool": "lab"}, H100, "xid-79") == "lab"
    assert named({"pool": "prod"}, "NVIDIA A100-SXM4", "gpu-lost") == "a100"
    assert named({}, H100, "xid-79") == "xids"
    assert named({}, None, "xid-79") == "xids"
    assert named({}, H100, "gpu-lost") is None
    found = policy.rule_named("lab")
    assert found is not None and found.name == "lab"
    assert policy.rule_named("gone") is None


def test_the_ladder_takes_the_last_step_again_and_again() -> None:
    playbook = a_policy(repair=[{"name": "reset", "job": a_job(), "needs": "gpu"}, "ask-human"]).rules[0].playbook
    assert [playbook.repair_step(attempt).name for attempt in (0, 1, 2, 3)] == [
        "reset",
        "reset",
        "ask-human",
        "ask-human",
    ]


def test_an_empty_ladder_asks_a_human() -> None:
    assert a_policy(repair=[]).rules[0].playbook.repair == (AskHuman(),)


@pytest.mark.parametrize(
    ("step", "proof"),
    [
        ({"needs": "node"}, "boot-id"),
        ({"needs": "gpu"}, "finding-cleared"),
        ({"needs": "gpu", "proof": "boot-id"}, "boot-id"),
        ({}, "boot-id"),
    ],
    ids=["a reboot is proven by its boot id", "a reset by the end of the fault", "as said", "doubt asks for more"],
)
def test_the_proof_follows_from_the_reach(step: dict[str, str], proof: str) -> None:
    (repair,) = a_policy(repair=[{"job": a_job(), **step}]).rules[0].playbook.repair
    assert isinstance(repair, JobRepair) and repair.proven_by == proof


def test_snake_case_and_percent_signs_are_understood() -> None:
    policy = load_policy({"budget": {"percent": "12.5%"}, "rules": [{"name": "r", "node_selector": {"a": "b"}}]})
    assert policy.budget.percent == 12.5
    assert policy.rules[0].node_selector == {"a": "b"}
