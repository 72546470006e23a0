"""Custom resources by their schema: what is dropped, what is refused, and in which words."""

import json

from remediator.simulation import schema
from remediator.simulation.calls import Target
from remediator.simulation.resources import Resource
from remediator.simulation.status_errors import ApiError, FieldError, Obj, bad_request, invalid, unchecked_rules, wrong

_BLOCKING = (
    "FieldValueNotSupported",
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
)
"""Errors after which the server no longer looks at CEL rules, and says so."""


def schema_of(resource: Resource) -> Obj:
    """The structural schema of a custom resource."""
    version: Obj = resource.custom or {}
    found: Obj = version["schema"]["openAPIV3Schema"]
    return found


def check_head(resource: Resource, body: Obj) -> None:
    """A custom object must say what it is (400), and say it right (422)."""
    shown = json.dumps(body, separators=(",", ":"))
    for key, name in (("kind", "Kind"), ("apiVersion", "apiVersion")):
        if not body.get(key):
            told = f"Object '{name}' is missing in '{shown}'"
            raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind}): {told}")
    metadata = body.get("metadata") or {}
    if body["apiVersion"] != resource.api_version:
        given, wanted = body["apiVersion"], resource.api_version
        told = f"the API version in the data ({given}) does not match the expected API version ({wanted})"
        raise bad_request(told)
    if body["kind"] != resource.kind:
        what = wrong("kind", body["kind"], f"must be {resource.kind}")
        raise invalid(body["kind"], resource.group, metadata.get("name", ""), [what])


def defaulted(resource: Resource, obj: Obj) -> Obj:
    """Without nulls that the schema does not allow, with the schema's defaults."""
    filled: Obj = schema.with_defaults(schema_of(resource), schema.without_nulls(schema_of(resource), obj))
    return filled


def pruned(target: Target, obj: Obj, mode: str, *, patched: bool) -> tuple[Obj, dict[str, str]]:
    """The object without unknown fields and the headers that tell of them; `mode` is fieldValidation."""
    resource = target.resource
    kept, dropped = schema.prune(schema_of(resource), obj)
    if not dropped or mode == "Ignore":
        return kept, {}
    if mode == "Strict":
        raise _strict(resource, obj, sorted(dropped), patched=patched)
    return kept, {"Warning": ", ".join(f'299 - "unknown field \\"{path}\\""' for path in dropped)}


def _strict(resource: Resource, obj: Obj, dropped: list[str], *, patched: bool) -> ApiError:
    told = "strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in dropped)
    if patched:
        error = invalid("", "", "", [wrong("patch", json.dumps(obj, separators=(",", ":"), sort_keys=True), told)])
        error.message = error.message.removesuffix(": " + told) + ": " + told
        return error
    version = resource.version
    return bad_request(f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}: {told}')


def errors_of(target: Target, obj: Obj, old: Obj | None) -> list[FieldError]:
    """Breaches of the schema, then (only when there is none that hides them) of its transition rules."""
    whole = schema_of(target.resource)
    if target.subresource == "status":
        part: Obj = (whole.get("properties") or {}).get("status") or {}
        value = obj.get("status")
        errors = [] if value is None else schema.validate(part, value, "status", shown="")
    else:
        errors = schema.validate(whole, obj)
    if any(error.reason in _BLOCKING for error in errors) and schema.has_rules(whole):
        return [*errors, unchecked_rules()]
    if not errors and old is not None:
        errors = schema.transition_errors(whole, old, obj)
    return errors
