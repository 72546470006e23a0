"""Structural schemas of custom resources: pruning of unknown fields and validation.

Supported: type, properties, additionalProperties, items, required, enum, minimum, maximum, the length and count
limits, pattern, format date-time, nullable, default, x-kubernetes-preserve-unknown-fields, x-kubernetes-int-or-string
and the one CEL rule `self == oldSelf`. A CRD that uses more is refused with 501 when it is created.
"""

import re
from collections.abc import Iterator
from typing import Any

from remediator.simulation.status_errors import (
    FieldError,
    Obj,
    failed_rule,
    not_done_here,
    not_supported,
    required,
    too_long,
    too_many,
    wrong,
    wrong_type,
)

KNOWN_WORDS = frozenset((
    "type", "properties", "additionalProperties", "items", "required", "enum", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "pattern", "format", "nullable",
    "default", "description", "title", "example", "externalDocs", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-validations", "x-kubernetes-embedded-resource",
))  # fmt: skip
IMMUTABLE_RULE = "self == oldSelf"
_OF_PYTHON = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
_DATE_TIME = re.compile(r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$")


def check_supported(schema: Obj, path: str = "") -> None:
    """501 when the schema says something that this validator would not enforce."""
    for word in schema:
        if word not in KNOWN_WORDS:
            raise not_done_here(f"schema word {word} at {path or 'the root'}")
    for rule in schema.get("x-kubernetes-validations") or ():
        if rule.get("rule") != IMMUTABLE_RULE or set(rule) - {"rule", "message"}:
            raise not_done_here(f"CEL rule {rule.get('rule')!r} at {path}")
    if schema.get("format") not in (None, "date-time", "int32", "int64", "double", "float"):
        raise not_done_here(f"schema format {schema['format']} at {path}")
    for name, child in _children(schema):
        check_supported(child, f"{path}.{name}")


def _children(schema: Obj) -> Iterator[tuple[str, Obj]]:
    yield from (schema.get("properties") or {}).items()
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield name, schema[name]


def prune(schema: Obj, value: Any, path: str = "") -> tuple[Any, list[str]]:
    """The value without fields the schema does not name, and the paths of what was dropped."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        kept = [prune(schema["items"], entry, f"{path}[{place}]") for place, entry in enumerate(value)]
        return [entry for entry, _ in kept], [name for _, names in kept for name in names]
    if not isinstance(value, dict):
        return value, []
    out: Obj = {}
    dropped: list[str] = []
    for key, entry in value.items():
        here = f"{path}.{key}" if path else key
        child = _property(schema, key)
        if not path and key in ("apiVersion", "kind", "metadata"):
            out[key] = entry
        elif child is None:
            dropped.append(here)
        else:
            out[key], below = prune(child, entry, here)
            dropped += below
    return out, dropped


def _property(schema: Obj, key: str) -> Obj | None:
    """Schema of one member; {} when everything is allowed, None when it is unknown."""
    found: Obj | None = (schema.get("properties") or {}).get(key)
    if found is not None:
        return found
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return more
    return {} if more is True or schema.get("x-kubernetes-preserve-unknown-fields") or not schema else None


def with_defaults(schema: Obj, value: Any) -> Any:
    """The value with the schema's defaults filled in, where the parent is present."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [with_defaults(schema["items"], entry) for entry in value]
    if not isinstance(value, dict):
        return value
    out = dict(value)
    for key, child in (schema.get("properties") or {}).items():
        if key not in out and "default" in child:
            out[key] = child["default"]
        if key in out:
            out[key] = with_defaults(child, out[key])
    return out


def without_nulls(schema: Obj, value: Any) -> Any:
    """The value without null members, but where the schema says nullable."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [without_nulls(schema["items"], entry) for entry in value]
    if not isinstance(value, dict):
        return value
    out: Obj = {}
    for key, entry in value.items():
        child = _property(schema, key) or {}
        if entry is not None or child.get("nullable") or not child:
            out[key] = without_nulls(child, entry)
    return out


def has_rules(schema: Obj) -> bool:
    """True when the schema has CEL rules anywhere."""
    return bool(schema.get("x-kubernetes-validations")) or any(has_rules(child) for _, child in _children(schema))


def validate(schema: Obj, value: Any, path: str = "", shown: str | None = None) -> list[FieldError]:
    """Everything wrong with `value`; a wrong type hides what lies below it.

    `shown` is the path inside messages, where the server leaves out `status` when only the status was written.
    """
    shown = path if shown is None else shown
    if value is None and schema.get("nullable"):
        return []
    wanted = schema.get("type")
    if wanted and not schema.get("x-kubernetes-int-or-string") and not _is(wanted, value):
        got = _OF_PYTHON.get(type(value), "null")
        told = f'{shown} in body must be of type {wanted}: "{got}"'
        return [required(path)] if value is None else [wrong_type(path, got, told)]
    errors = list(_limits(schema, value, path, shown))
    if isinstance(value, dict):
        errors += _members(schema, value, path, shown)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for place, entry in enumerate(value):
            errors += validate(schema["items"], entry, f"{path}[{place}]", f"{shown}[{place}]")
    return errors


def _is(wanted: str, value: Any) -> bool:
    match wanted:
        case "integer":
            return (isinstance(value, int) and not isinstance(value, bool)) or (
                isinstance(value, float) and value.is_integer()
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return _OF_PYTHON.get(type(value)) == wanted


def _members(schema: Obj, value: Obj, path: str, shown: str) -> Iterator[FieldError]:
    for key in schema.get("required") or ():
        if key not in value:
            yield required(_joined(path, key))
    for key, entry in value.items():
        child = _property(schema, key)
        if child and (path or key not in ("apiVersion", "kind", "metadata")):
            yield from validate(child, entry, _joined(path, key), _joined(shown, key))


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _limits(schema: Obj, value: Any, path: str, shown: str) -> Iterator[FieldError]:
    if "enum" in schema and value not in schema["enum"]:
        yield not_supported(path, value, tuple(schema["enum"]))
    if isinstance(value, str):
        yield from _text_limits(schema, value, path, shown)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield wrong(path, value, f"{shown} in body should be greater than or equal to {schema['minimum']}")
        if "maximum" in schema and value > schema["maximum"]:
            yield wrong(path, value, f"{shown} in body should be less than or equal to {schema['maximum']}")
    elif isinstance(value, list | dict):
        yield from _count_limits(schema, value, path, shown)


def _text_limits(schema: Obj, value: str, path: str, shown: str) -> Iterator[FieldError]:
    if len(value) > schema.get("maxLength", len(value)):
        yield too_long(path, schema["maxLength"])
    if len(value) < schema.get("minLength", 0):
        yield wrong(path, value, f"{shown} in body should be at least {schema['minLength']} chars long")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield wrong(path, value, f"{shown} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _DATE_TIME.match(value):
        yield wrong_type(path, value, f'{shown} in body must be of type date-time: "{value}"')


def _count_limits(schema: Obj, value: list[Any] | Obj, path: str, shown: str) -> Iterator[FieldError]:
    least, most = ("minItems", "maxItems") if isinstance(value, list) else ("minProperties", "maxProperties")
    if len(value) > schema.get(most, len(value)):
        yield too_many(path, len(value), schema[most])
    if len(value) < schema.get(least, 0):
        noun = "items" if isinstance(value, list) else "properties"
        yield wrong(path, len(value), f"{shown} in body should have at least {schema[least]} {noun}")


def transition_errors(schema: Obj, old: Any, new: Any, path: str = "") -> list[FieldError]:
    """Breaches of `self == oldSelf` wherever both an old and a new value exist."""
    errors = [
        failed_rule(path, new, rule.get("message") or f"failed rule: {IMMUTABLE_RULE}")
        for rule in schema.get("x-kubernetes-validations") or ()
        if new != old
    ]
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() & new.keys():
            if child := _property(schema, key):
                errors += transition_errors(child, old[key], new[key], f"{path}.{key}" if path else key)
    return errors
