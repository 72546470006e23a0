"""A store that follows the API server: list, then watch, whatever the network does.

Laws:
1. The watch thread updates the store and tells keys; all work happens elsewhere.
2. Silence longer than the read timeout is a dead line: reconnect with the last version, it is not an error.
3. 410 (status or ERROR event) drops the version and lists again; everything else backs off and goes on where it was.
4. The back-off is forgotten only after an event or a stream old enough: an instant orderly end is a failure too.
5. What cannot be decoded is left as we knew it, counted, and the watch goes on.
Sources: design rules proven against nine faults (tests/unit/test_reflector_faults.py); client-go's reflector.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from remediator.adapters import wire
from remediator.adapters.answers import error_in_stream, error_of
from remediator.adapters.api import KubeApi, Query
from remediator.adapters.backoff import Backoff, BackoffLimits
from remediator.adapters.errors import ApiError, Gone, Retryable, Unauthorized
from remediator.adapters.guarded import survive
from remediator.adapters.resources import Resource
from remediator.adapters.store import Change, Store, key_of
from remediator.adapters.transport import STREAM_READ_TIMEOUT, Reply, Stream, StreamRequest, Transport
from remediator.adapters.wire import HasMetadata

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMetadata)

WATCH_BACKOFF = BackoffLimits(longest=10.0)
"""A third of what client-go waits: two replicas with five watches cost a server nothing that comes back, and until
they are back no fault is seen."""

Told = Callable[[Change], None]
"""Must be quick: it runs on the watch thread."""


class WatchHooks(Protocol):
    """What the metrics want to know of one reflector; every call must be quick."""

    def event(self, kind: str) -> None: ...

    def relist(self, kind: str) -> None: ...

    def reconnect(self, kind: str, reason: str) -> None: ...

    def undecodable(self, kind: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ReflectorOptions:
    """Seconds, all of them; the defaults fit kube-apiserver."""

    watch_for: tuple[float, float] = (300.0, 600.0)
    """Range of the server-side end of a watch: random, so that watches do not end together."""
    read_timeout: float = STREAM_READ_TIMEOUT
    initial_timeout: float = 60.0
    """A server that ignores sendInitialEvents never marks their end: give up and list pages. 5,000 nodes take 6 s."""
    old_enough: float = 5.0
    """Age at which a stream has proved itself even without an event."""
    backoff: BackoffLimits = WATCH_BACKOFF
    watch_list: bool = True
    """Whether to try sendInitialEvents at all."""


@dataclass(frozen=True)
class Followed(Generic[T]):
    """What a reflector follows."""

    resource: Resource[T]
    query: Query = field(default_factory=Query)


class _Unsupported(Exception):
    """The server cannot stream its initial state: list pages instead."""


class Reflector(Generic[T]):
    """One thread that keeps one store equal to one kind on the server."""

    def __init__(
        self, transport: Transport, followed: Followed[T], hooks: WatchHooks, options: ReflectorOptions
    ) -> None:
        self.store: Store[T] = Store()
        self.kind = followed.resource.plural
        self.synced = threading.Event()
        """Set when the store has been filled once."""
        self._transport = transport
        self._api = KubeApi(transport)
        self._followed = followed
        self._hooks = hooks
        self._options = options
        self._told: list[Told] = []
        self._backoff = Backoff(options.backoff)
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._stream_lock = threading.Lock()
        self._version: str | None = None
        self._pages = not options.watch_list
        self._initial: dict[str, T] | None = None
        self._heard = time.monotonic()
        self._progress = False
        self._thread = threading.Thread(target=self._run, name=f"watch-{self.kind}", daemon=True)

    def tell(self, told: Told) -> None:
        """Call `told` for every change from now on; before `start`."""
        self._told.append(told)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; a reader that waits for a byte is woken at once."""
        self._stopping.set()
        with self._stream_lock:
            if self._stream is not None:
                self._stream.close()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def silence(self) -> float:
        """Seconds since the server last told us anything, bookmarks included."""
        return time.monotonic() - self._heard

    def _run(self) -> None:
        while not self._stopping.is_set():
            survive(f"watch {self.kind}", self._cycle, lambda _what, _error: self._pause("bug", None))

    def _cycle(self) -> None:
        """One list if needed, one stream to its end, one wait if earned."""
        started = time.monotonic()
        self._progress = False
        try:
            if self._version is None and self._pages:
                self._list()
            self._watch()
            reason, after = "end", None
        except _Unsupported as error:
            log.info("no streamed list kind=%s reason=%s", self.kind, error)
            self._pages = True
            return
        except Gone as error:
            self._version = None
            reason, after = "gone", error.after
        except ApiError as error:
            reason, after = error.reason if error.status == 0 else f"http-{error.status}", error.after
            level = logging.WARNING if isinstance(error, Unauthorized) or error.status == 403 else logging.INFO
            log.log(level, "watch broke kind=%s error=%s", self.kind, error)
        except wire.Garbled:
            reason, after = "garbled", None
        if self._stopping.is_set():
            return
        self._hooks.reconnect(self.kind, reason or "connection")
        proven = time.monotonic() - started >= self._options.old_enough
        if proven or self._progress:
            self._backoff.reset()
        if proven and reason in ("end", "timeout"):
            return
        self._pause(reason, after)

    def _pause(self, reason: str, after: float | None) -> None:
        wait = max(self._backoff.next_wait(), after or 0.0)
        log.debug("waiting kind=%s reason=%s seconds=%.1f", self.kind, reason, wait)
        self._stopping.wait(wait)

    def _list(self) -> None:
        listing = self._api.list(self._followed.resource, self._followed.query)
        items = {key_of(item): item for item in listing.items}
        for key in listing.undecodable:
            self._keep_known(key, items)
        self._take_all(items, listing.resource_version)

    def _keep_known(self, key: str, items: dict[str, T]) -> None:
        """An object that cannot be read is not a deleted one."""
        log.warning("cannot read kind=%s key=%s", self.kind, key)
        self._hooks.undecodable(self.kind)
        known = self.store.get(key)
        if known is not None:
            items[key] = known

    def _take_all(self, items: dict[str, T], version: str) -> None:
        changes = self.store.replace(items)
        self._version = version
        self._heard = time.monotonic()
        self._hooks.relist(self.kind)
        self.synced.set()
        for change in changes:
            self._tell(change)

    def _watch(self) -> None:
        stream = self._open()
        timer: threading.Timer | None = None
        late = threading.Event()
        if self._initial is not None:
            # The read timeout cannot notice a server that streams live events but never ends the initial ones.
            timer = threading.Timer(self._options.initial_timeout, _give_up, (late, stream))
            timer.daemon = True
            timer.start()
        try:
            self._check_opened(stream)
            for line in stream.lines():
                self._heard = time.monotonic()
                self._take(line)
                if timer is not None and self._initial is None:
                    timer.cancel()
                    timer = None
        except Retryable as error:
            if self._initial is not None and error.reason == "timeout":
                raise _Unsupported("silent without the end mark") from error
            raise
        finally:
            if timer is not None:
                timer.cancel()
            with self._stream_lock:
                self._stream = None
            stream.close()
        if late.is_set() and self._initial is not None:
            raise _Unsupported("no end mark in time")

    def _open(self) -> Stream:
        params = self._followed.query.params() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(random.uniform(*self._options.watch_for)))),
        }
        self._initial = None
        if self._version is not None:
            params["resourceVersion"] = self._version
        else:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            self._initial = {}
        path = self._followed.resource.path(self._followed.query.namespace)
        request = StreamRequest(path=path, params=params, read_timeout=self._options.read_timeout)
        stream = self._transport.stream(request)
        with self._stream_lock:
            self._stream = stream
            if self._stopping.is_set():
                stream.close()
        return stream

    def _check_opened(self, stream: Stream) -> None:
        if stream.status < 300:
            return
        body = b"\n".join(stream.lines())
        error = error_of(f"watch {self.kind}", Reply(status=stream.status, headers=stream.headers, body=body))
        # Who may ask, whether the kind is there, load: nothing about the parameter (a restarting server answers 403
        # until it knows its roles). Any other 4xx means that the parameter is not understood.
        other_matters = (401, 403, 404, 408, 410, 429)
        if self._initial is not None and 400 <= stream.status < 500 and stream.status not in other_matters:
            raise _Unsupported(str(error)) from error
        raise error

    def _take(self, line: bytes) -> None:
        event = wire.decode(line, wire.WatchEvent)
        if event.type == "ERROR":
            raise error_in_stream(f"watch {self.kind}", bytes(event.object))
        meta = wire.decode(event.object, wire.PartialObject).metadata
        self._hooks.event(self.kind)
        if event.type == "BOOKMARK":
            self._bookmark(meta)
        elif event.type in ("ADDED", "MODIFIED", "DELETED"):
            self._object(event, meta)
        # A half-told initial state is no progress: it starts from nothing again.
        if self._initial is None and meta.resource_version:
            self._version = meta.resource_version
            self._progress = True

    def _bookmark(self, meta: wire.Metadata) -> None:
        if self._initial is not None and meta.annotations.get(wire.INITIAL_EVENTS_END) == "true":
            items, self._initial = self._initial, None
            self._take_all(items, meta.resource_version)

    def _object(self, event: wire.WatchEvent, meta: wire.Metadata) -> None:
        key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        if event.type == "DELETED":
            if self._initial is not None:
                self._initial.pop(key, None)
            else:
                self._tell(self.store.drop(key))
            return
        try:
            item = wire.decode(event.object, self._followed.resource.kind)
        except wire.Garbled:
            self._keep_known(key, self._initial if self._initial is not None else {})
            return
        if self._initial is not None:
            self._initial[key] = item
        else:
            self._tell(self.store.put(item))

    def _tell(self, change: Change | None) -> None:
        if change is None:
            return
        for told in self._told:
            told(change)


def _give_up(late: threading.Event, stream: Stream) -> None:
    late.set()
    stream.close()
