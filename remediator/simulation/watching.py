"""One watch: where it starts, which changes it shows and as what, when it ends.

Laws:
1. An object that leaves the selection arrives as DELETED with its last matching state; one that enters as ADDED.
2. A watch reads the history at its own pace; when the history has moved on without it, it ends without an error.
3. A version older than the history is answered 200 with one ERROR line; a version of the future waits silently.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from remediator.simulation import tables
from remediator.simulation.calls import Call, Target
from remediator.simulation.reads import requested_version, shape
from remediator.simulation.selectors import matcher
from remediator.simulation.status_errors import ApiError, Obj, bad_request, forbidden_field, invalid
from remediator.simulation.store import Change, Store

DEFAULT_TIMEOUT = (1800.0, 3600.0)
"""Seconds a watch lives when the client names no timeout: the server's --min-request-timeout and twice that."""
INITIAL_END = {"k8s.io/initial-events-end": "true"}


@dataclass(kw_only=True)
class Watch:
    """An accepted watch; the transport asks it for lines."""

    store: Store
    target: Target
    test: Callable[[Obj], bool]
    form: str
    bookmarks: bool
    timeout_seconds: float
    cursor: int
    opening: list[bytes]
    """Lines to send before anything else."""
    over: bool = False

    def lines(self) -> list[bytes]:
        """What is new since the last call; sets `over` when the watch has fallen behind the history."""
        # Together with the opening: nobody rings for a change that came between the opening and the first call.
        out, self.opening = self.opening, []
        if self.over or self.cursor >= self.store.revision:
            return out
        try:
            changes = self.store.changes(self.target.resource.id, self.cursor)
        except ApiError:
            self.over = True
            return out
        for change in changes:
            self.cursor = change.revision
            out += self._told(change)
        return out

    def bookmark(self) -> list[bytes]:
        """The periodic mark of progress, after all that it vouches for."""
        with self.store.lock:
            out = self.lines()
            self.cursor = max(self.cursor, self.store.revision)
            return out if self.over else [*out, self._bookmark(self.cursor, {})]

    def _told(self, change: Change) -> Iterator[bytes]:
        now, before = self._selected(change.object), change.previous is not None and self._selected(change.previous)
        if change.type == "DELETED":
            if before:
                yield self._line("DELETED", change.object, change)
        elif now:
            yield self._line("MODIFIED" if before else "ADDED", change.object, change)
        elif before and change.previous is not None:
            metadata = {**change.previous["metadata"], "resourceVersion": str(change.revision)}
            yield self._line("DELETED", {**change.previous, "metadata": metadata}, None)

    def _selected(self, obj: Obj) -> bool:
        namespace = self.target.namespace
        return (not namespace or obj["metadata"].get("namespace") == namespace) and self.test(obj)

    def _line(self, kind: str, obj: Obj, change: Change | None) -> bytes:
        if self.form == "Table":
            body = json.dumps(tables.table(self.target.resource, [obj], "Metadata", None)).encode()
        elif self.form.startswith("PartialObjectMetadata"):
            body = json.dumps(tables.partial(obj)).encode()
        else:
            body = change.encoded() if change else json.dumps(obj, separators=(",", ":")).encode()
        return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"

    def _bookmark(self, revision: int, annotations: dict[str, str]) -> bytes:
        metadata: Obj = {"resourceVersion": str(revision)}
        if annotations:
            metadata["annotations"] = annotations
        resource = self.target.resource
        obj: Obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return json.dumps({"type": "BOOKMARK", "object": obj}, separators=(",", ":")).encode() + b"\n"

    def open(self, call: Call) -> None:
        """Fills `opening` from the version that the client names."""
        text = call.query.get("resourceVersion", "")
        initial = call.query.get("sendInitialEvents")
        with self.store.lock:
            if (text in ("", "0") and initial != "false") or call.flag("sendInitialEvents"):
                self._open_with_state(marked=self.bookmarks and (text == "0" or bool(initial)))
                return
            self.cursor = self.store.revision if text in ("", "0") else requested_version(text)
            try:
                self.store.changes(self.target.resource.id, self.cursor)
            except ApiError as error:
                line = {"type": "ERROR", "object": error.status()}
                self.opening = [json.dumps(line, separators=(",", ":")).encode() + b"\n"]
                self.over = True

    def _open_with_state(self, *, marked: bool) -> None:
        self.cursor = self.store.revision
        items = self.store.items(self.target.resource.id, self.target.namespace or None)
        self.opening = [self._line("ADDED", item, None) for item in items if self.test(item)]
        if marked:
            self.opening.append(self._bookmark(self.cursor, INITIAL_END))


def open_watch(store: Store, target: Target, call: Call) -> Watch:
    """The watch a request asks for; refuses bad options before anything is streamed."""
    query = call.query
    check_options(call)
    if version := query.get("resourceVersion", ""):
        requested_version(version)
    timeout = query.get("timeoutSeconds", "")
    if timeout and not timeout.isdigit():
        raise bad_request(f"embedded API server: timeoutSeconds must be a number, got {timeout}")
    watch = Watch(
        store=store,
        target=target,
        test=matcher(target.resource, query.get("labelSelector", ""), query.get("fieldSelector", "")),
        form=shape(call),
        bookmarks=call.flag("allowWatchBookmarks"),
        timeout_seconds=float(timeout) if timeout not in ("", "0") else random.uniform(*DEFAULT_TIMEOUT),
        cursor=0,
        opening=[],
    )
    watch.open(call)
    return watch


def check_options(call: Call) -> None:
    """422 for combinations of initial events and resourceVersionMatch that the server forbids."""
    rule, initial = call.query.get("resourceVersionMatch", ""), call.query.get("sendInitialEvents")
    if initial is None:
        if rule:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise invalid("ListOptions", "meta.k8s.io", "", [forbidden_field("resourceVersionMatch", why)])
        return
    if rule != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid("ListOptions", "meta.k8s.io", "", [forbidden_field("resourceVersionMatch", why)])
