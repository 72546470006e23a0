"""Merge patch (RFC 7396), JSON patch (RFC 6902) and strategic merge patch, as pure functions of plain JSON.

Laws:
1. The patched object is new; the old one is never changed in place.
2. A JSON patch that cannot be applied tells nothing but 422, as on the real server: a failed `test` and a wrong path
   look the same.
3. The strategic patch knows the merge keys of the lists in `MERGE_KEYS`; every other list is replaced whole.
"""

import copy
import json
from typing import Any

from remediator.simulation.calls import json_complaint
from remediator.simulation.status_errors import Obj, bad_request, refused_patch

# Path of a list (under the object, without indices) -> the field that names an entry. From the Kubernetes API types.
MERGE_KEYS: dict[str, str] = {
    "metadata.ownerReferences": "uid",
    "status.conditions": "type",
    "status.addresses": "type",
    "status.podIPs": "ip",
    "spec.volumes": "name",
    "spec.containers": "name",
    "spec.initContainers": "name",
    "spec.imagePullSecrets": "name",
    "spec.hostAliases": "ip",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.resourceClaims": "name",
    "secrets": "name",
    "imagePullSecrets": "name",
}
_CONTAINER_KEYS = {"env": "name", "ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath"}
for _list in ("spec.containers", "spec.initContainers"):
    MERGE_KEYS |= {f"{_list}.{name}": key for name, key in _CONTAINER_KEYS.items()}
MERGE_KEYS |= {
    f"spec.template.{path}": key for path, key in MERGE_KEYS.items() if path.startswith(("spec.", "metadata."))
}

MERGED_SETS = ("metadata.finalizers", "spec.template.metadata.finalizers", "spec.podCIDRs")
"""Lists of plain values that a strategic patch unites."""


def decoded(body: bytes) -> Any:
    """The patch as JSON; 400 with the server's words when it is not."""
    if not body.strip():
        raise bad_request("error decoding patch: unexpected end of JSON input")
    try:
        return json.loads(body)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {json_complaint(body, error)}") from error


def object_patch(patch: Any) -> Obj:
    """The patch when it is an object, as merge patches must be; 400 otherwise."""
    if isinstance(patch, dict):
        return patch
    kind = {list: "array", str: "string", bool: "bool"}.get(type(patch), "number")
    told = f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
    raise bad_request(f"error decoding patch: {told}")


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def json_patch(target: Obj, operations: Any) -> Any:
    """RFC 6902; `test` for null passes on an absent member of an existing parent."""
    if not isinstance(operations, list):
        kind = {dict: "object", str: "string", bool: "bool"}.get(type(operations), "number")
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type []handlers.jsonPatchOp"
        )
    document: Any = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _operate(document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise refused_patch() from error
    return document


def _operate(document: Any, operation: Obj) -> Any:
    path = _pointer(operation["path"])
    match operation["op"]:
        case "add":
            return _add(document, path, operation["value"])
        case "replace":
            _resolve(document, path)
            return _add(_remove(document, path), path, operation["value"])
        case "remove":
            return _remove(document, path)
        case "test":
            if not _same(_resolve_or_none(document, path), operation.get("value")):
                raise ValueError("test failed")
            return document
        case "move":
            value = _resolve(document, source := _pointer(operation["from"]))
            return _add(_remove(document, source), path, value)
        case "copy":
            return _add(document, path, copy.deepcopy(_resolve(document, _pointer(operation["from"]))))
        case other:
            raise ValueError(other)


def _same(left: Any, right: Any) -> bool:
    """Equality in which True is not 1."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(text)
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _step(at: Any, part: str) -> Any:
    return at[_index(at, part)] if isinstance(at, list) else at[part]


def _index(at: list[Any], part: str) -> int:
    if not part.isdigit():
        raise ValueError(part)
    return int(part)


def _resolve(document: Any, path: list[str]) -> Any:
    for part in path:
        document = _step(document, part)
    return document


def _resolve_or_none(document: Any, path: list[str]) -> Any:
    parent = _resolve(document, path[:-1]) if path else None
    if isinstance(parent, dict):
        return parent.get(path[-1])
    return _resolve(document, path)


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _resolve(document, path[:-1])
    if isinstance(parent, list):
        at = len(parent) if path[-1] == "-" else _index(parent, path[-1])
        if at > len(parent):
            raise IndexError(at)
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise TypeError(parent)
    return document


def _remove(document: Any, path: list[str]) -> Any:
    parent = _resolve(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(parent, path[-1])]
    else:
        del parent[path[-1]]
    return document


def strategic(target: Any, patch: Obj, path: str = "") -> Any:
    """Strategic merge patch for built-in kinds, with `$patch`, `$retainKeys` and `$deleteFromPrimitiveList`."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    out = dict(target) if isinstance(target, dict) else {}
    if (kept := patch.get("$retainKeys")) is not None:
        out = {key: value for key, value in out.items() if key in kept}
    for key, value in patch.items():
        here = f"{path}.{key}" if path else key
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.split("/", 1)[1]
            out[name] = [entry for entry in out.get(name) or [] if entry not in value]
        elif key.startswith("$"):
            continue
        elif value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
            out.pop(key, None)
        elif isinstance(value, dict):
            out[key] = strategic(out.get(key), value, here)
        elif isinstance(value, list):
            out[key] = _strategic_list(out.get(key) or [], value, here, patch.get(f"$setElementOrder/{key}"))
        else:
            out[key] = value
    return out


def _strategic_list(old: list[Any], patch: list[Any], path: str, order: list[Any] | None) -> list[Any]:
    if path in MERGED_SETS:
        return old + [entry for entry in patch if entry not in old]
    name = MERGE_KEYS.get(path)
    if name is None or any(isinstance(entry, dict) and entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if not (isinstance(entry, dict) and "$patch" in entry)]
    entries = {entry.get(name): entry for entry in old}
    for entry in patch:
        identity = entry.get(name)
        if identity is None:
            raise bad_request(f"map: map does not contain declared merge key: {name}")
        if entry.get("$patch") == "delete":
            entries.pop(identity, None)
        else:
            entries[identity] = strategic(entries.get(identity), entry, path)
    wanted = [entry.get(name) for entry in (order or patch)]
    known = [entry.get(name) for entry in old]
    first = [identity for identity in wanted if identity in entries]
    rest = [identity for identity in known if identity in entries and identity not in first]
    return [entries[identity] for identity in _interleaved(rest, first, known)]


def _interleaved(rest: list[Any], first: list[Any], known: list[Any]) -> list[Any]:
    """Entries the patch names go before those only the server knows, unless both were known in the other order."""
    out: list[Any] = []
    rest, first = list(rest), list(first)
    while rest and first:
        both_known = rest[0] in known and first[0] in known
        ahead = both_known and known.index(rest[0]) < known.index(first[0])
        out.append(rest.pop(0) if ahead else first.pop(0))
    return out + rest + first
