"""What is true of every object's metadata, and how the server tidies an object before it stores it."""

import json
import re
from typing import Any

from remediator.simulation.status_errors import FieldError, Obj, forbidden_field, required, wrong

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"^{_LABEL}(\.{_LABEL})*$")
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_QUALIFIED = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
    "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
LABEL_BYTES = 63
_DROPPED_WHEN_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences", "generateName")


def name_errors(name: str | None, *, dots: bool = True) -> list[FieldError]:
    """A name must be there and be a DNS subdomain; without `dots` a DNS label (Namespace)."""
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    if not dots and "." in name:
        return [wrong("metadata.name", name, "must not contain dots")]
    if len(name) > 253 or not _SUBDOMAIN.match(name):
        return [wrong("metadata.name", name, SUBDOMAIN_RULE)]
    return []


def label_errors(metadata: Obj) -> list[FieldError]:
    """Keys and values of labels, keys of annotations."""
    errors: list[FieldError] = []
    for key, value in (metadata.get("labels") or {}).items():
        errors += _key_errors("metadata.labels", key)
        if len(value.encode()) > LABEL_BYTES:
            errors.append(wrong("metadata.labels", value, f"must be no more than {LABEL_BYTES} bytes"))
        if value and not _QUALIFIED.match(value):
            errors.append(wrong("metadata.labels", value, _VALUE_RULE))
    for key in metadata.get("annotations") or ():
        errors += _key_errors("metadata.annotations", key.lower())
    return errors


def _key_errors(field: str, key: str) -> list[FieldError]:
    prefix, slash, name = key.rpartition("/")
    errors: list[FieldError] = []
    if slash and not _SUBDOMAIN.match(prefix):
        errors.append(wrong(field, key, f"prefix part {SUBDOMAIN_RULE}"))
    if len(name.encode()) > LABEL_BYTES:
        errors.append(wrong(field, key, f"name part must be no more than {LABEL_BYTES} bytes"))
    if not _QUALIFIED.match(name):
        errors.append(wrong(field, key, _QUALIFIED_RULE))
    return errors


def finalizer_errors(old: Obj, new: Obj) -> list[FieldError]:
    """Nothing may hold an object back once it is being deleted."""
    if "deletionTimestamp" not in old["metadata"]:
        return []
    before = old["metadata"].get("finalizers") or []
    added = [name for name in new["metadata"].get("finalizers") or [] if name not in before]
    if not added:
        return []
    listed = ", ".join(json.dumps(name) for name in added)
    why = "no new finalizers can be added if the object is being deleted, found new finalizers []string{" + listed + "}"
    return [forbidden_field("metadata.finalizers", why)]


def tidied(obj: Obj) -> Obj:
    """Without empty metadata fields; the server drops them when it decodes any object."""
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if value is not None and (value or key not in _DROPPED_WHEN_EMPTY)
    }
    return {**obj, "metadata": metadata}


def compacted(value: Any) -> Any:
    """A built-in object without nulls (but times) and empty lists, which its Go type would not write."""
    if isinstance(value, dict):
        return {
            key: compacted(entry)
            for key, entry in value.items()
            if (entry is not None or key.endswith("Time")) and entry != []
        }
    if isinstance(value, list):
        return [compacted(entry) for entry in value]
    return value
