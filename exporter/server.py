"""HTTP: metrics, health, and one small handle for the remediator.

Laws:
1. A scrape is a memory copy: handlers read fields of the `Board` that the loop replaces whole; no lock, no driver
   call, no gRPC call is ever on the way.
2. The only thing that changes anything (`/-/release`) answers to loopback alone.
"""

import asyncio
import html
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from exporter.exposition.renderer import CONTENT_TYPE, Page
from exporter.logs import fields

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 3.0
KEEP_ALIVE_SECONDS: Final = 75
"""Longer than any usual scrape interval, so that Prometheus keeps its connection."""
BACKLOG: Final = 128


class Board:
    """What the loop has put up for everybody to read. Each field is replaced whole; readers take what is there."""

    def __init__(self) -> None:
        self.page: Page | None = None
        self.status: bytes | None = None
        """Status of the GPUNode as JSON; None before the first snapshot."""
        self.beat = time.monotonic()
        """When the loop last finished a turn."""
        self.dead_part = ""
        """Name of a thread that ended by an error; this process can only be restarted."""
        self.scrapes = 0


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where to listen, and when the loop counts as dead."""

    host: str
    """Empty = every address of the machine."""
    port: int
    """0 = any free one; the log line `listening` says which."""
    telemetry_path: str = "/metrics"
    stalled_seconds: float = 30.0
    """`/-/healthy` fails when the loop has not turned for so long: at least three intervals."""


Release = Callable[[str], bool]
"""Let go of the GPU with this UUID, so that it can be reset; False = no such GPU, or the driver does not let go."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Server:
    """Serves a `Board` from a thread of its own. `start` returns when the port is open; `stop` when it is closed."""

    def __init__(self, settings: ServerSettings, board: Board, release: Release) -> None:
        self._settings = settings
        self._board = board
        self._release = release
        self._socket: socket.socket | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is really open; call after `start`."""
        if self._socket is None:
            raise RuntimeError("the server has not been started")
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Open the port and serve; raises OSError when the address cannot be had."""
        self._socket = _listen(self._settings.host, self._settings.port)
        config = uvicorn.Config(
            self._app(),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            # Who asks is who is connected: a header must not be able to claim loopback.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(SHUTDOWN_SECONDS),
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._uvicorn.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )
        self._thread.start()
        address = f"{self._settings.host or '0.0.0.0'}:{self.port}"
        log.info("listening", extra=fields(address=address, path=self._settings.telemetry_path))

    def stop(self) -> None:
        """Stop serving; requests under way may finish."""
        if self._uvicorn is not None and self._thread is not None and self._socket is not None:
            self._uvicorn.should_exit = True
            self._thread.join(SHUTDOWN_SECONDS + 2)
            self._socket.close()

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(self._settings.telemetry_path, self._metrics),
                Route("/-/healthy", self._healthy),
                Route("/-/ready", self._ready),
                Route("/health", self._health),
                Route("/-/release", self._let_go, methods=["POST"]),
                Route("/", self._landing),
            ]
        )

    async def _metrics(self, request: Request) -> Response:
        page = self._board.page
        if page is None:
            return PlainTextResponse("starting: nothing has been collected yet\n", status_code=503)
        self._board.scrapes += 1
        headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(page.zipped, headers={**headers, "Content-Encoding": "gzip"})
        return Response(page.plain, headers=headers)

    async def _healthy(self, _: Request) -> Response:
        age = time.monotonic() - self._board.beat
        if age > self._settings.stalled_seconds:
            return PlainTextResponse(f"stalled: the loop has not turned for {age:.0f} s\n", status_code=503)
        if self._board.dead_part:
            return PlainTextResponse(f"broken: {self._board.dead_part} has died\n", status_code=503)
        return PlainTextResponse("healthy\n")

    async def _ready(self, _: Request) -> Response:
        if self._board.status is None:
            return PlainTextResponse("starting: no snapshot yet\n", status_code=503)
        return PlainTextResponse("ready\n")

    async def _health(self, _: Request) -> Response:
        status = self._board.status
        if status is None:
            return JSONResponse({"error": "no snapshot yet"}, status_code=503)
        return Response(status, media_type="application/json")

    async def _let_go(self, request: Request) -> Response:
        if request.client is None or not loopback(request.client.host):
            return JSONResponse({"error": "only processes on this node may ask for this"}, status_code=403)
        uuid = request.query_params.get("gpu", "")
        if not uuid:
            return JSONResponse({"error": "say which: ?gpu=UUID"}, status_code=400)
        # The worker may take a while to end.
        released = await asyncio.to_thread(self._release, uuid)
        if not released:
            why = f"{uuid} is no GPU of this node, or a call into the driver does not return"
            return JSONResponse({"error": why}, status_code=409)
        return JSONResponse({"released": uuid})

    async def _landing(self, _: Request) -> Response:
        path = html.escape(self._settings.telemetry_path)
        return HTMLResponse(
            f"<!doctype html><title>gpu-exporter</title><h1>gpu-exporter</h1><ul>"
            f'<li><a href="{path}">metrics</a><li><a href="/health">health of the GPUs (JSON)</a>'
            f'<li><a href="/-/healthy">alive?</a><li><a href="/-/ready">ready?</a></ul>'
        )


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header allows gzip (RFC 9110 section 12.5.3); a quality of 0 refuses it."""
    for part in header.split(","):
        coding, _, quality = part.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def loopback(host: str) -> bool:
    """Whether `host` is this machine's loopback, also as IPv4 mapped into IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _listen(host: str, port: int) -> socket.socket:
    listener = _open(host, port)
    # Connections inherit it. asyncio sets it only on sockets that name their protocol: without, a scrape over a kept
    # connection waits 40 ms for the delayed ACK of the one before.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _open(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError:
            pass  # a kernel that knows IPv6 and has it switched off
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
