"""The calls we make to the API server, each with its answer translated (`answers.py`).

Laws:
1. Reads are repeated here a few times on overload (429 with the server's own wait); writes never are.
2. A patch that must not overwrite carries `metadata.resourceVersion`; a conflict is the caller's to resolve.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from remediator.adapters import wire
from remediator.adapters.answers import error_of
from remediator.adapters.errors import Fatal, Gone, Retryable
from remediator.adapters.resources import PODS, Ref, Resource
from remediator.adapters.store import key_of
from remediator.adapters.transport import READ_TIMEOUT, Reply, Request, Transport
from remediator.adapters.wire import HasMetadata

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMetadata)

PAGE = 500
EVICTION_TIMEOUT = 15.0
"""Seconds: the server itself retries a contended budget every 0.5 s, up to 20 times, before it answers. Not longer,
because the leader fence must hold for all of it (elector.LeaseTimes)."""
READ_ATTEMPTS = 4
WARNINGS_KEPT = 100
LONGEST_WAIT = 5.0
"""Seconds a read waits inside the call for an overloaded server; a longer wish goes back to the caller."""
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True, kw_only=True)
class Query:
    """What to list."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    from_cache: bool = False
    """True = any recent state (resourceVersion=0, whole answer at once): 1 ms instead of up to 100; for planning."""

    def params(self) -> dict[str, str]:
        wanted = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in wanted.items() if value}


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Objects and the version they were true at; `undecodable` names what is there but cannot be read."""

    items: tuple[T, ...]
    resource_version: str
    undecodable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """One pod to be evicted, and only this one: the UID is a precondition."""

    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None
    """None = the pod's own."""
    dry_run: bool = False


class KubeApi:
    """Typed reads, plain writes; raises the tree of `errors.py`. Safe to use from every thread."""

    def __init__(self, transport: Transport, *, timeout: float = READ_TIMEOUT) -> None:
        self._transport = transport
        self._timeout = timeout
        self._warned: set[str] = set()

    def get(self, ref: Ref[T]) -> T:
        """The object as the server has it now; raises NotFound."""
        reply = self._read(f"get {ref}", ref.path(), {})
        return _decoded(f"get {ref}", reply.body, ref.resource.kind)

    def list(self, resource: Resource[T], query: Query = Query()) -> Listing[T]:
        """All objects, in pages; a continue token that expired under way restarts the list once, then raises Gone."""
        try:
            return self._pages(resource, query)
        except Gone:
            return self._pages(resource, query)

    def create(self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """The new object; raises AlreadyExists."""
        what = f"create {resource.plural}"
        reply = self._write(what, "POST", resource.path(namespace), body)
        return _decoded(what, reply.body, resource.kind)

    def merge_patch(self, ref: Ref[T], body: Mapping[str, Any], subresource: str = "") -> T:
        """The object after the patch; raises Conflict when the body named an older resourceVersion."""
        what = f"patch {ref} {subresource}".rstrip()
        reply = self._write(what, "PATCH", ref.path(subresource), body, MERGE_PATCH)
        return _decoded(what, reply.body, ref.resource.kind)

    def json_patch(self, ref: Ref[T], operations: Sequence[Mapping[str, Any]], subresource: str = "") -> T:
        """The object after the patch; a failed `test` is Refused and cannot be told from a wrong path."""
        what = f"json-patch {ref}"
        reply = self._write(what, "PATCH", ref.path(subresource), operations, JSON_PATCH)
        return _decoded(what, reply.body, ref.resource.kind)

    def patch_status(self, ref: Ref[T], status: Mapping[str, Any], resource_version: str = "") -> T:
        """Merge-patch the status subresource; with a version, only if nobody wrote since."""
        body: dict[str, Any] = {"status": dict(status)}
        if resource_version:
            body["metadata"] = {"resourceVersion": resource_version}
        return self.merge_patch(ref, body, "status")

    def patch_condition(self, node: Ref[T], condition: Mapping[str, str]) -> T:
        """Set one condition of a Node: strategic merge by `type` leaves the kubelet's conditions alone."""
        body = {"status": {"conditions": [dict(condition)]}}
        what = f"patch {node} condition {condition['type']}"
        reply = self._write(what, "PATCH", node.path("status"), body, STRATEGIC_PATCH)
        return _decoded(what, reply.body, node.resource.kind)

    def delete(self, ref: Ref[T], *, uid: str = "", propagation: str = "Background") -> None:
        """Ask for deletion (of exactly that `uid` when given); raises NotFound, Conflict."""
        body: dict[str, Any] = {"propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        self._write(f"delete {ref}", "DELETE", ref.path(), body)

    def evict(self, eviction: Eviction) -> None:
        """Evict one pod; raises Blocked (budget), NotFound, Conflict (another pod of that name), Refused, Retryable."""
        ref = Ref(PODS, eviction.name, eviction.namespace)
        options: dict[str, Any] = {"preconditions": {"uid": eviction.uid}}
        if eviction.grace_seconds is not None:
            options["gracePeriodSeconds"] = eviction.grace_seconds
        if eviction.dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": eviction.name, "namespace": eviction.namespace},
            "deleteOptions": options,
        }
        what = f"evict {eviction.namespace}/{eviction.name}"
        request = Request(method="POST", path=ref.path("eviction"), body=wire.encode(body), timeout=EVICTION_TIMEOUT)
        self._checked(what, request)

    def _pages(self, resource: Resource[T], query: Query) -> Listing[T]:
        params = query.params() | ({"resourceVersion": "0"} if query.from_cache else {"limit": str(PAGE)})
        what, path = f"list {resource.plural}", resource.path(query.namespace)
        items: list[T] = []
        undecodable: list[str] = []
        while True:
            envelope = _decoded(what, self._read(what, path, params).body, wire.ListEnvelope)
            for raw in envelope.items or ():
                try:
                    items.append(wire.decode(raw, resource.kind))
                except wire.Garbled:  # its metadata must be readable, or the whole answer is not Kubernetes
                    undecodable.append(_key(what, bytes(raw)))
            if not envelope.metadata.continue_:
                return Listing(tuple(items), envelope.metadata.resource_version, tuple(undecodable))
            params["continue"] = envelope.metadata.continue_

    def _read(self, what: str, path: str, params: Mapping[str, str]) -> Reply:
        request = Request(method="GET", path=path, params=params, timeout=self._timeout)
        for _ in range(READ_ATTEMPTS - 1):
            try:
                return self._checked(what, request)
            except Retryable as error:
                if error.status != 429 or (error.after or 0.0) > LONGEST_WAIT:
                    raise
                time.sleep(error.after if error.after is not None else 1.0)
        return self._checked(what, request)

    def _write(self, what: str, method: str, path: str, body: object, content_type: str = "application/json") -> Reply:
        request = Request(
            method=method, path=path, body=wire.encode(body), content_type=content_type, timeout=self._timeout
        )
        return self._checked(what, request)

    def _checked(self, what: str, request: Request) -> Reply:
        reply = self._transport.request(request)
        if reply.status >= 300:
            raise error_of(what, reply)
        warning = reply.headers.get("warning")
        if warning and warning not in self._warned and len(self._warned) < WARNINGS_KEPT:
            # An unknown field means that the CRDs of another version are installed: what we wrote was dropped.
            self._warned.add(warning)
            log.warning("the API server warns call=%s warning=%s", what, warning)
        return reply


def _key(what: str, raw: bytes) -> str:
    return key_of(_decoded(what, raw, wire.PartialObject))


V = TypeVar("V")


def _decoded(what: str, body: bytes, kind: type[V]) -> V:
    try:
        return wire.decode(body, kind)
    except wire.Garbled as error:
        raise Fatal(f"{what}: {error}") from error
