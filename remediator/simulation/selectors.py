"""Label and field selectors of list and watch."""

import re
from collections.abc import Callable
from typing import Any

from remediator.simulation.resources import Resource
from remediator.simulation.status_errors import ApiError, Obj, bad_request

Test = Callable[[Obj], bool]

_SET = re.compile(r"^(?P<key>[^\s=!,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s=!,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!,()]*)$")
_EXISTS = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s=!,()]+)$")


def matcher(resource: Resource, labels: str, fields: str) -> Test:
    """The test of a `labelSelector` and a `fieldSelector` together; 400 for what cannot be read or selected."""
    tests = [*_label_tests(labels), *_field_tests(resource, fields)]
    return lambda obj: all(test(obj) for test in tests)


def _parts(text: str) -> list[str]:
    """Splits at commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label_tests(text: str) -> list[Test]:
    return [_label_test(part) for part in _parts(text)]


def _label_test(part: str) -> Test:
    if found := _SET.match(part):
        values = {value.strip() for value in found["values"].split(",")}
        return _label_in(found["key"], values, found["op"] == "in")
    if found := _EQUAL.match(part):
        return _label_in(found["key"], {found["value"]}, found["op"] != "!=")
    if found := _EXISTS.match(part):
        key, wanted = found["key"], not found["not"]
        return lambda obj: (key in labels_of(obj)) is wanted
    raise unreadable(part)


def unreadable(part: str) -> ApiError:
    """400 of a selector that is not one; the real text differs per mistake, so this one says who speaks."""
    return bad_request(f"embedded API server: unable to parse requirement: {part}")


def _label_in(key: str, values: set[str], positive: bool) -> Test:
    if positive:
        return lambda obj: labels_of(obj).get(key) in values
    return lambda obj: labels_of(obj).get(key) not in values


def labels_of(obj: Obj) -> dict[str, str]:
    """The labels of an object, never None."""
    found: dict[str, str] = obj["metadata"].get("labels") or {}
    return found


def _field_tests(resource: Resource, text: str) -> list[Test]:
    tests: list[Test] = []
    for part in _parts(text):
        found = re.match(r"^([^=!]+)(==|=|!=)(.*)$", part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        tests.append(_field_test(resource, found))
    return tests


def _field_test(resource: Resource, found: re.Match[str]) -> Test:
    name, operator, value = found.groups()
    paths = {"metadata.name": "metadata.name", **resource.selectable}
    if resource.namespaced:
        paths["metadata.namespace"] = "metadata.namespace"
    if name not in paths:
        raise bad_request(f"field label not supported: {name}")
    keys = paths[name].split(".")
    empty = "false" if name == "spec.unschedulable" else "0" if name == "status.successful" else ""
    if operator == "!=":
        return lambda obj: _text_at(obj, keys, empty) != value
    return lambda obj: _text_at(obj, keys, empty) == value


def _text_at(obj: Obj, keys: list[str], empty: str) -> str:
    """The value at the path as text; `empty` where there is none."""
    at: Any = obj
    for key in keys:
        at = at.get(key) if isinstance(at, dict) else None
    if at is None:
        return empty
    return str(at).lower() if isinstance(at, bool) else str(at)


def selects(selector: Obj | None, labels: dict[str, str]) -> bool:
    """Whether a `LabelSelector` object matches; None matches nothing, {} everything (policy/v1, apps/v1)."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(matches_expression(rule, labels) for rule in selector.get("matchExpressions") or ())


def matches_expression(rule: Obj, labels: dict[str, str]) -> bool:
    """One `{key, operator, values}` rule of a label selector or a node affinity."""
    key, values = rule["key"], rule.get("values") or []
    match rule["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":
            return key in labels and int(labels[key]) > int(values[0])
        case "Lt":
            return key in labels and int(labels[key]) < int(values[0])
        case other:
            raise bad_request(f"{other!r} is not a valid label selector operator")
