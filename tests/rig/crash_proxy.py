"""A transparent proxy in front of a real API server that tells a test about each write, after it is stored.

The client sees the server's own certificate. While the test is told, the client has no answer yet: killing it there is
the worst moment, the write is done and nobody knows.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self

import urllib3

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Events and Leases carry no state of the remediation: dying at each of them would only prove that it can die.
UNCOUNTED = ("/events", "/leases")
HOP_BY_HOP = frozenset({"transfer-encoding", "connection", "content-length", "host"})


class StoredWrite(NamedTuple):
    method: str
    path: str

    @property
    def counted(self) -> bool:
        return self.method in WRITES and not any(word in self.path for word in UNCOUNTED)


class CrashProxy(ThreadingHTTPServer):
    """Serves on a free port of 127.0.0.1 while the `with` block runs; `told` is called for each stored write."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: str, certificates: Path, told: Callable[[StoredWrite], None]) -> None:
        super().__init__(("127.0.0.1", 0), Relay)
        self.upstream = upstream
        self.told = told
        self._open: set[urllib3.BaseHTTPResponse] = set()
        self.pool = urllib3.PoolManager(
            ca_certs=str(certificates / "apiserver.crt"), retries=False, maxsize=1024, timeout=urllib3.Timeout(120)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
        # The handshake belongs to the connection's own thread: one slow client must not block the others.
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1})
        self.url = f"https://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        # Watches of killed clients are still open upstream, and an API server does not stop before they end.
        for reply in list(self._open):
            reply.shutdown()

    @contextmanager
    def answering(self, reply: urllib3.BaseHTTPResponse) -> Iterator[None]:
        """Close `reply` at the end of the block, or cut it off when the proxy stops earlier."""
        self._open.add(reply)
        try:
            yield
        finally:
            self._open.discard(reply)
            reply.close()

    def handle_error(self, *_: object) -> None:
        """A client that was killed cuts its connections at any point, the TLS handshake included."""


class Relay(BaseHTTPRequestHandler):
    """Passes one client's requests on and the answers back."""

    protocol_version = "HTTP/1.1"
    server: CrashProxy

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        address = self.server.upstream + self.path
        self.close_connection = True  # an upstream without an answer is told as it is: a cut connection
        reply = self.server.pool.request(self.command, address, body=body, headers=headers, preload_content=False)
        write = StoredWrite(self.command, self.path.partition("?")[0])
        with self.server.answering(reply):
            if write.counted and reply.status < 300:
                self.server.told(write)
            self._pass_on(reply)
            self.close_connection = False

    def _pass_on(self, reply: urllib3.BaseHTTPResponse) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if "Content-Length" in reply.headers:
            self.send_header("Content-Length", reply.headers["Content-Length"])
            self.end_headers()
            self.wfile.write(reply.read(decode_content=False))
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in reply.stream(decode_content=False):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Say nothing; the test looks at what was told."""

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = relay  # noqa: N815  the names are those of http.server
