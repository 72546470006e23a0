"""Get and list: versions, pages, and the three shapes an object may be asked in."""

import base64
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from remediator.simulation import tables
from remediator.simulation.calls import Call, Reply, Target
from remediator.simulation.selectors import matcher
from remediator.simulation.status_errors import (
    ApiError,
    Obj,
    bad_request,
    forbidden_field,
    invalid,
    not_done_here,
    not_found,
    too_large_version,
)
from remediator.simulation.store import Store

SNAPSHOTS = 64
"""Paged lists whose rest is kept; an older continue token is answered with 410."""


def shape(call: Call) -> str:
    """`Table`, `PartialObjectMetadata`, `PartialObjectMetadataList` or "" for the object itself; 406 for protobuf."""
    accept = call.headers.get("accept", "") or "*/*"
    for entry in accept.split(","):
        media, *parameters = (part.strip() for part in entry.split(";"))
        if media not in ("application/json", "*/*", "application/*"):
            continue
        facts = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        wanted = facts.get("as", "")
        if not wanted or facts.get("v", "v1") == "v1":
            return wanted
    told = "406: Not Acceptable\n\nAvailable representations: application/json"
    raise ApiError(406, "NotAcceptable", told, {})


def requested_version(text: str) -> int:
    """A resourceVersion parameter as a number; 500 for what is none, as the server says it."""
    if not text.isdigit():
        told = (
            f'resourceVersion: Invalid value: {json.dumps(text)}: strconv.ParseUint: parsing "{text}": invalid syntax'
        )
        raise ApiError(500, "", told)
    return int(text)


def listed_version(text: str) -> int:
    """The same for a list, where the server answers 400."""
    try:
        return requested_version(text)
    except ApiError as error:
        raise bad_request(f"invalid resource version: {error.message}") from error


class Reads:
    """The reading half of the server, over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages: OrderedDict[str, tuple[str, list[Obj]]] = OrderedDict()

    def get(self, target: Target, call: Call) -> Reply:
        """GET of one object."""
        resource = target.resource
        with self._store.lock:
            if version := call.query.get("resourceVersion"):
                self._check_version(requested_version(version))
            found = self._store.get(resource.id, target.key)
        if found is None:
            raise not_found(resource.plural, resource.group, target.name)
        match shape(call):
            case "Table":
                return Reply(body=tables.table(resource, [found], call.query.get("includeObject", "Metadata"), None))
            case "PartialObjectMetadata":
                return Reply(body=tables.partial(found))
        return Reply(body=found)

    def list_all(self, target: Target, call: Call) -> Reply:
        """GET of a collection."""
        resource, query = target.resource, call.query
        test = matcher(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        with self._store.lock:
            if token := query.get("continue"):
                version, items = self._continued(token)
            else:
                version, items = self._current(target, call, test)
        items, metadata = self._page(version, items, query)
        match shape(call):
            case "Table":
                return Reply(body=tables.table(resource, items, query.get("includeObject", "Metadata"), metadata))
            case "PartialObjectMetadataList":
                partials = [tables.partial(item) for item in items]
                head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
                return Reply(body={**head, "metadata": metadata, "items": partials})
        if resource.custom is not None:
            metadata.setdefault("continue", "")
        else:
            items = [{key: item[key] for key in item if key not in ("kind", "apiVersion")} for item in items]
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return Reply(body={**head, "metadata": metadata, "items": items})

    def _current(self, target: Target, call: Call, test: Callable[[Obj], bool]) -> tuple[str, list[Obj]]:
        match_rule = call.query.get("resourceVersionMatch", "")
        version = call.query.get("resourceVersion", "")
        check_match(version, match_rule)
        if "sendInitialEvents" in call.query:
            why = "sendInitialEvents is forbidden for list"
            raise invalid("ListOptions", "meta.k8s.io", "", [forbidden_field("sendInitialEvents", why)])
        if version:
            wanted = listed_version(version)
            self._check_version(wanted)
            if match_rule == "Exact" and wanted != self._store.revision:
                raise not_done_here("a list at an exact older resourceVersion")
        items = self._store.items(target.resource.id, target.namespace or None)
        return str(self._store.revision), [item for item in items if test(item)]

    def _check_version(self, wanted: int) -> None:
        if wanted > self._store.revision:
            raise too_large_version(wanted, self._store.revision)

    def _continued(self, token: str) -> tuple[str, list[Obj]]:
        if (page := self._pages.get(token)) is None:
            told = "The provided continue parameter is too old to display a consistent list result."
            raise ApiError(410, "Expired", told)
        return page

    def _page(self, version: str, items: list[Obj], query: Any) -> tuple[list[Obj], Obj]:
        limit_text = query.get("limit", "0") or "0"
        if not limit_text.isdigit():
            raise bad_request(f"embedded API server: limit must be a number, got {limit_text}")
        limit = int(limit_text)
        metadata: Obj = {"resourceVersion": version}
        if not limit or len(items) <= limit:
            return items, metadata
        page, rest = items[:limit], items[limit:]
        last = page[-1]["metadata"]
        mark = {"v": "embedded", "rv": version, "start": f"{last.get('namespace', '')}/{last['name']}", "n": len(rest)}
        token = base64.urlsafe_b64encode(json.dumps(mark).encode()).decode().rstrip("=")
        with self._store.lock:
            self._pages[token] = (version, rest)
            while len(self._pages) > SNAPSHOTS:
                self._pages.popitem(last=False)
        metadata["continue"] = token
        if not query.get("labelSelector") and not query.get("fieldSelector"):
            metadata["remainingItemCount"] = len(rest)
        return page, metadata

    def forget_pages(self) -> None:
        """Lets every continue token expire."""
        with self._store.lock:
            self._pages.clear()


def check_match(version: str, match_rule: str) -> None:
    """422 for a resourceVersionMatch that makes no sense."""
    if not match_rule:
        return
    if not version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        raise invalid("ListOptions", "meta.k8s.io", "", [forbidden_field("resourceVersionMatch", why)])
    if match_rule == "Exact" and version == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        raise invalid("ListOptions", "meta.k8s.io", "", [forbidden_field("resourceVersionMatch", why)])
