"""The embedded API server on the wire: starlette and uvicorn in one thread of their own.

Everything is answered on the event loop (an answer costs well under a millisecond); only watches stay open. They are
woken by the store's listener, read its history at their own pace and end when the server stops.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from remediator.simulation.api import Api
from remediator.simulation.calls import Call, Reply
from remediator.simulation.store import HISTORY, Change
from remediator.simulation.watching import Watch

START_SECONDS = 10.0
"""How long a start may take before it counts as failed; usual is below 0.1 s."""

Intercept = Callable[[Call], Reply | None]
"""A test's chance to answer in the server's place (429, 500, ...); None lets the request pass."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Traits of the real server that cost time or memory, and are therefore a choice."""

    eviction_floor_seconds: float = 0.0
    """0.1 on a real server: after any write an eviction waits for a progress notice of etcd, asked for that often."""
    bookmark_seconds: float = 60.0
    """Between bookmarks of a watch."""
    history: int = HISTORY
    """Changes kept per resource; a watch that lags further behind ends or gets 410."""


class ApiHttpServer:
    """Serves one `Api` on loopback."""

    def __init__(self, api: Api, behaviour: Behaviour, port: int = 0) -> None:
        self.api = api
        self.behaviour = behaviour
        self.intercept: Intercept | None = None
        self._socket = socket.create_server(("127.0.0.1", port), backlog=2048)
        # asyncio sets it only on sockets made with an explicit protocol; without it every reply on a kept connection
        # waits 40 ms for the client's delayed ACK. Accepted sockets inherit it.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=120,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="embedded-apiserver", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._noticed = 0
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Returns when the port answers."""
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the embedded API server did not start")
            time.sleep(0.002)
        self._unsubscribe = self.api.store.subscribe(self._wake)

    def stop(self) -> None:
        """Ends every watch, closes the socket, joins the thread."""
        self._unsubscribe()
        self._stopping = True
        self._server.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring, None)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._socket])

    def _wake(self, resource: str, _: Change) -> None:
        if self._loop is not None and self._watchers.get(resource):
            self._loop.call_soon_threadsafe(self._ring, resource)

    def _ring(self, resource: str | None) -> None:
        """Wakes the watches of one resource, or all."""
        for name, events in self._watchers.items():
            if resource in (None, name):
                for event in events:
                    event.set()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        call = Call(
            method=request.method,
            path=scope["path"],
            query=dict(request.query_params),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await request.body(),
        )
        await self._floor(call)
        answer = (self.intercept(call) if self.intercept else None) or self.api.answer(call)
        if isinstance(answer, Watch):
            await self._stream(answer, receive, send)
        else:
            await self._reply(answer)(scope, receive, send)

    async def _floor(self, call: Call) -> None:
        """What a consistent read of the budgets costs an eviction on the real server when anything was written."""
        floor = self.behaviour.eviction_floor_seconds
        if floor and call.path.endswith("/eviction") and self._noticed != self.api.store.revision:
            await asyncio.sleep(floor - time.monotonic() % floor)
            self._noticed = self.api.store.revision

    def _reply(self, reply: Reply) -> Response:
        media = "text/plain; charset=utf-8" if isinstance(reply.body, str) else "application/json"
        return Response(reply.encoded(), status_code=reply.code, headers=reply.headers, media_type=media)

    async def _stream(self, watch: Watch, receive: Receive, send: Send) -> None:
        """Sends lines until the client goes, time is up, the watch has fallen behind, or the server stops."""
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        event = asyncio.Event()
        name = watch.target.resource.id
        self._watchers.setdefault(name, set()).add(event)
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await self._feed(watch, event, gone, send)
        finally:
            self._watchers[name].discard(event)
            gone.cancel()
        if not gone.done() or gone.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _feed(self, watch: Watch, event: asyncio.Event, gone: "asyncio.Future[None]", send: Send) -> None:
        now = time.monotonic()
        deadline, bookmark_at = now + watch.timeout_seconds, now + self.behaviour.bookmark_seconds
        while not self._stopping and not gone.done():
            event.clear()
            if lines := watch.lines():
                await send({"type": "http.response.body", "body": b"".join(lines), "more_body": True})
            now = time.monotonic()
            if watch.over or now >= deadline:
                return
            if watch.bookmarks and now >= bookmark_at:
                bookmark_at = now + self.behaviour.bookmark_seconds
                await send({"type": "http.response.body", "body": b"".join(watch.bookmark()), "more_body": True})
            until = min(deadline, bookmark_at if watch.bookmarks else deadline)
            await _first(event, gone, until - now)


async def _first(event: asyncio.Event, gone: "asyncio.Future[None]", seconds: float) -> None:
    """Waits for news, the client's end or the time."""
    news: asyncio.Future[bool] = asyncio.ensure_future(event.wait())
    try:
        waited: set[asyncio.Future[Any]] = {news, gone}
        await asyncio.wait(waited, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    finally:
        news.cancel()


async def _disconnected(receive: Callable[[], Any]) -> None:
    while True:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] == "http.disconnect":
            return
