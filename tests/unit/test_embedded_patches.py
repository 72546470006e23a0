"""Merge, JSON and strategic patches as pure functions."""

import copy
from typing import Any

import pytest

from remediator.simulation.patches import json_patch, merge, strategic
from remediator.simulation.status_errors import ApiError


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="replaces"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null removes"),
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="objects merge"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="lists replace"),
        pytest.param({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}, id="nulls in a new object go"),
    ],
)
def test_merge(target: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy(target)
    assert merge(target, patch) == expected
    assert target == before, "the old object is shared with history and must not change"


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        pytest.param({"op": "add", "path": "/l/1", "value": 9}, {"l": [1, 9, 2], "m": {}}, id="insert"),
        pytest.param({"op": "add", "path": "/l/-", "value": 9}, {"l": [1, 2, 9], "m": {}}, id="append"),
        pytest.param({"op": "replace", "path": "/l/0", "value": 9}, {"l": [9, 2], "m": {}}, id="replace"),
        pytest.param({"op": "remove", "path": "/l/0"}, {"l": [2], "m": {}}, id="remove"),
        pytest.param({"op": "move", "from": "/l/0", "path": "/m/a"}, {"l": [2], "m": {"a": 1}}, id="move"),
        pytest.param({"op": "copy", "from": "/l/0", "path": "/m/a"}, {"l": [1, 2], "m": {"a": 1}}, id="copy"),
        pytest.param({"op": "test", "path": "/m/x", "value": None}, {"l": [1, 2], "m": {}}, id="null test"),
        pytest.param({"op": "add", "path": "/m/a~1b", "value": 1}, {"l": [1, 2], "m": {"a/b": 1}}, id="escape"),
    ],
)
def test_json_patch(operation: Any, expected: Any) -> None:
    target = {"l": [1, 2], "m": {}}
    assert json_patch(target, [operation]) == expected
    assert target == {"l": [1, 2], "m": {}}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "add", "path": "/l/7", "value": 9}, id="past the end"),
        pytest.param({"op": "remove", "path": "/x"}, id="absent"),
        pytest.param({"op": "replace", "path": "/x", "value": 1}, id="replace of nothing"),
        pytest.param({"op": "add", "path": "/x/y", "value": 1}, id="no parent"),
        pytest.param({"op": "test", "path": "/l/0", "value": True}, id="True is not 1"),
        pytest.param({"op": "test", "path": "/x/y", "value": None}, id="null test without a parent"),
        pytest.param({"op": "nonsense", "path": "/l"}, id="unknown"),
        pytest.param({"path": "/l"}, id="no operation"),
    ],
)
def test_a_json_patch_that_cannot_be_applied(operation: Any) -> None:
    with pytest.raises(ApiError) as refused:
        json_patch({"l": [1, 2]}, [operation])
    assert refused.value.code == 422


def conditions(**status: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": value} for kind, value in status.items()]}}


def test_strategic_lists_merge_by_key_and_new_entries_come_first() -> None:
    patched = strategic(conditions(A="True", B="True"), conditions(C="True", B="False"))
    assert patched == conditions(C="True", A="True", B="False")


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        pytest.param([{"type": "A", "$patch": "delete"}], conditions(B="True"), id="delete"),
        pytest.param([{"$patch": "replace"}, {"type": "C", "status": "True"}], conditions(C="True"), id="replace"),
    ],
)
def test_strategic_directives(patch: Any, expected: Any) -> None:
    assert strategic(conditions(A="True", B="True"), {"status": {"conditions": patch}}) == expected


def test_strategic_order_directive_and_unknown_lists() -> None:
    order = [{"type": "B"}, {"type": "A"}]
    patch = {"status": {"$setElementOrder/conditions": order, "conditions": [{"type": "A", "status": "False"}]}}
    assert strategic(conditions(A="True", B="True"), patch) == conditions(B="True", A="False")
    assert strategic({"spec": {"taints": [1]}}, {"spec": {"taints": [2]}}) == {"spec": {"taints": [2]}}


def test_strategic_sets_of_plain_values() -> None:
    target = {"metadata": {"finalizers": ["a", "b"]}}
    assert strategic(target, {"metadata": {"finalizers": ["c"]}}) == {"metadata": {"finalizers": ["a", "b", "c"]}}
    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert strategic(target, gone) == {"metadata": {"finalizers": ["b"]}}


def test_an_entry_without_its_key_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        strategic(conditions(A="True"), {"status": {"conditions": [{"status": "True"}]}})
    assert refused.value.code == 400
