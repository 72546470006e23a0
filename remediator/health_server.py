"""HTTP of the remediator: metrics and the two questions a kubelet asks. Read only.

Laws:
1. Healthy means that restarting would not help: the loop turns and no watch is stuck. A standby replica is healthy.
2. Ready means that the first decision could be made: every watch has been filled once.
"""

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 3.0
BACKLOG = 128


@dataclass(frozen=True, kw_only=True)
class Pages:
    """What can be read; each is called in a thread of its own, so a slow one blocks nobody."""

    metrics: Callable[[], bytes]
    metrics_type: str
    healthy: Callable[[], str | None]
    """What is wrong, or None."""
    ready: Callable[[], str | None]
    """What is missing, or None."""


class HealthServer:
    """`start` returns when the port is open, `stop` when it is closed."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        """`host` empty = every address; `port` 0 = any free one."""
        self._pages = pages
        self._socket = _listen(host, port)
        # asyncio sets it only on sockets made with an explicit protocol; without it every reply on a kept connection
        # waits 40 ms for the client's delayed ACK. Accepted sockets inherit it.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            self._app(),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(SHUTDOWN_SECONDS),
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._uvicorn.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that is really open."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        self._thread.start()
        log.info("listening port=%d", self.port)

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        if self._thread.is_alive():
            self._thread.join(SHUTDOWN_SECONDS + 2)
        self._socket.close()

    def _app(self) -> Starlette:
        # Plain functions: starlette runs them in its thread pool.
        return Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/-/healthy", self._healthy),
                Route("/-/ready", self._ready),
                Route("/", self._landing),
            ]
        )

    def _metrics(self, _: Request) -> Response:
        return Response(self._pages.metrics(), headers={"Content-Type": self._pages.metrics_type})

    def _healthy(self, _: Request) -> Response:
        return _answer(self._pages.healthy(), "healthy")

    def _ready(self, _: Request) -> Response:
        return _answer(self._pages.ready(), "ready")

    def _landing(self, _: Request) -> Response:
        return HTMLResponse(
            "<!doctype html><title>gpu-remediator</title><h1>gpu-remediator</h1><ul>"
            '<li><a href="/metrics">metrics</a><li><a href="/-/healthy">alive?</a>'
            '<li><a href="/-/ready">ready?</a></ul>'
        )


def _answer(problem: str | None, good: str) -> Response:
    if problem is None:
        return PlainTextResponse(f"{good}\n")
    return PlainTextResponse(f"{problem}\n", status_code=503)


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError:
            log.debug("no IPv6 here")
    return socket.create_server((host, port), backlog=BACKLOG)
