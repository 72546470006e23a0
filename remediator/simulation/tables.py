"""How objects look to `kubectl get`: the server-side Table, and the metadata-only form."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from exporter.health.wire import parse_timestamp
from remediator.simulation.resources import Resource
from remediator.simulation.status_errors import Obj, not_done_here

Row = Callable[[Obj], list[Any]]
Column = tuple[str, str, int, str]
"""Name, type, priority (1 = only with -o wide), description."""
NAME: Column = ("Name", "string", 0, "Name of the object")


def partial(obj: Obj) -> Obj:
    """PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(resource: Resource, items: list[Obj], include: str, metadata: Obj | None) -> Obj:
    """A Table of `items`; `include` is Metadata, Object or None; `metadata` is that of the list."""
    columns, row = _layout(resource)
    definitions = [
        {"name": name, "type": kind, "format": "name" if name == "Name" else "", "description": told, "priority": wide}
        for name, kind, wide, told in columns
    ]
    if metadata is None:
        metadata = {"resourceVersion": items[0]["metadata"]["resourceVersion"]} if len(items) == 1 else {}
    rows = [{"cells": row(item)} | _included(item, include) for item in items]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**head, "columnDefinitions": definitions, "rows": rows}


def _included(item: Obj, include: str) -> Obj:
    match include:
        case "None":
            return {"object": None}
        case "Object":
            return {"object": item}
        case "" | "Metadata":
            return {"object": partial(item)}
    raise not_done_here(f"includeObject={include}")


def _layout(resource: Resource) -> tuple[list[Column], Row]:
    if resource.custom is not None:
        return _custom(resource.custom.get("additionalPrinterColumns") or _ONLY_AGE)
    if resource.id in _BUILTIN:
        columns, row = _BUILTIN[resource.id]
        return [NAME, *columns], lambda obj: [obj["metadata"]["name"], *row(obj)]
    return [NAME, *_text("Age")], lambda obj: [obj["metadata"]["name"], age(obj)]


_ONLY_AGE = [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]


def _custom(columns: list[Obj]) -> tuple[list[Column], Row]:
    shown = [
        (
            column["name"],
            column["type"],
            column.get("priority", 0),
            column.get("description")
            or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
        )
        for column in columns
    ]

    def row(obj: Obj) -> list[Any]:
        cells = [_cell(column["type"], first_at(obj, column["jsonPath"])) for column in columns]
        return [obj["metadata"]["name"], *cells]

    return [NAME, *shown], row


def first_at(obj: Any, path: str) -> Any:
    """The first value at a simple JSON path (`.a.b[*].c`, `.a[0]`), None when there is none."""
    found = [obj]
    for name, index in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", path):
        found = [value for at in found for value in _below(at, name, index)]
    return found[0] if found else None


def _below(at: Any, name: str, index: str) -> list[Any]:
    if name:
        return [at[name]] if isinstance(at, dict) and name in at else []
    if not isinstance(at, list):
        return []
    if index == "*":
        return at
    if index.isdigit():
        return [at[int(index)]] if int(index) < len(at) else []
    raise not_done_here(f"the JSON path index [{index}]")


def _cell(kind: str, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case "date":
            return _since(str(value))
        case "integer":
            return int(value) if isinstance(value, int | float) else None
        case "number":
            return value if isinstance(value, int | float) else None
        case "boolean":
            return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _since(text: str) -> str:
    try:
        moment = parse_timestamp(text)
    except ValueError:
        return "<invalid>"
    return human((datetime.now(UTC) - moment).total_seconds())


def age(obj: Obj) -> str:
    """Time since creation, as kubectl shows it."""
    return _since(obj["metadata"].get("creationTimestamp", ""))


def human(seconds: float) -> str:
    """`45s`, `3m20s`, `5h`, `2d3h`: two units while small, one when large."""
    whole = int(seconds)
    if whole < 0:
        return "<invalid>" if whole < -1 else "0s"
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if minutes < 10:
        return f"{minutes}m" + (f"{whole % 60}s" if whole % 60 else "")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h" + (f"{minutes % 60}m" if minutes % 60 else "")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d" + (f"{hours % 24}h" if hours % 24 else "")
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y"


def _node(node: Obj) -> list[Any]:
    conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions") or ()}
    words = ["Ready" if conditions.get("Ready") == "True" else "NotReady" if "Ready" in conditions else "Unknown"]
    if node.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = sorted(k.removeprefix(prefix) for k in node["metadata"].get("labels") or {} if k.startswith(prefix))
    info = node.get("status", {}).get("nodeInfo") or {}
    addresses = {a["type"]: a["address"] for a in node.get("status", {}).get("addresses") or ()}
    wide = [addresses.get("InternalIP", "<none>"), addresses.get("ExternalIP", "<none>")]
    wide += [info.get(key) or "<unknown>" for key in ("osImage", "kernelVersion", "containerRuntimeVersion")]
    return [",".join(words), ",".join(roles) or "<none>", age(node), info.get("kubeletVersion", ""), *wide]


def _pod(pod: Obj) -> list[Any]:
    status, spec = pod.get("status") or {}, pod["spec"]
    containers = status.get("containerStatuses") or []
    ready = sum(1 for c in containers if c.get("ready"))
    word = status.get("reason") or status.get("phase", "")
    for c in containers:
        state = c.get("state") or {}
        word = (state.get("waiting") or state.get("terminated") or {}).get("reason") or word
    if "deletionTimestamp" in pod["metadata"]:
        word = "Terminating"
    restarts = str(sum(c.get("restartCount", 0) for c in containers))
    wide = [status.get("podIP") or "<none>", spec.get("nodeName") or "<none>"]
    wide += [status.get("nominatedNodeName") or "<none>", "<none>"]
    return [f"{ready}/{len(spec['containers'])}", word, restarts, age(pod), *wide]


def _event(event: Obj) -> list[Any]:
    involved = event.get("involvedObject") or {}
    about = f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"
    return [
        _since(event.get("lastTimestamp") or ""),
        event.get("type"),
        event.get("reason"),
        about,
        event.get("message"),
    ]


def _text(*columns: str, wide: tuple[str, ...] = ()) -> list[Column]:
    return [(name, "string", 0, "") for name in columns] + [(name, "string", 1, "") for name in wide]


_NODE_WIDE = ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
_BUILTIN: dict[str, tuple[list[Column], Row]] = {
    "nodes": (_text("Status", "Roles", "Age", "Version", wide=_NODE_WIDE), _node),
    "pods": (
        _text("Ready", "Status", "Restarts", "Age", wide=("IP", "Node", "Nominated Node", "Readiness Gates")),
        _pod,
    ),
    "events": (_text("Last Seen", "Type", "Reason", "Object", "Message"), _event),
}
