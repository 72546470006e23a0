"""A simulated kubelet's pod-resources socket: v1.PodResourcesLister over gRPC on a Unix socket, from a table in memory.

Lives here: the server side of unary gRPC over HTTP/2 (`h2`), as much as List and GetAllocatableResources need.
Laws:
1. One thread serves everything; `stop` ends it, closes every connection and removes the socket file.
2. What a kubelet does badly is a mode (`Mode`), switchable while it runs; it holds for requests from then on.
3. Answers larger than the client's flow-control window wait for the window, as a real server's do.

Example: `with KubeletSocket(path) as kubelet: kubelet.set_pods([PodDevice(...)])`.
"""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from exporter.readers import podresources_pb2 as messages
from exporter.readings import PodDevice

LIST: Final = "/v1.PodResourcesLister/List"
ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"
_OK, _EXHAUSTED, _UNIMPLEMENTED = "0", "8", "12"
_GARBAGE: Final = b"\xff\xfe\xfd not a message \x07\x00"
"""Begins with a field of a wire type that does not exist, so that no decoder can take it for a message."""


class Mode(StrEnum):
    """How the simulated kubelet answers."""

    NORMAL = "normal"
    HANG = "hang"
    """Takes the request and never answers."""
    GARBAGE = "garbage"
    """Answers in correct gRPC with bytes that are no message."""
    NOISE = "noise"
    """Answers with bytes that are not even HTTP/2."""
    REFUSE = "refuse"
    """Answers RESOURCE_EXHAUSTED, as a kubelet does that limits its callers."""


@dataclass
class _Client:
    """One connection and what still has to be sent on its streams."""

    channel: socket.socket
    protocol: h2.connection.H2Connection
    paths: dict[int, str] = field(default_factory=dict)
    waiting: dict[int, bytes] = field(default_factory=dict)


class KubeletSocket:
    """The server; `start` and `stop` once each, or use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mode = Mode.NORMAL
        self.requests = 0
        """Requests seen since the start."""
        self._pods: tuple[PodDevice, ...] = ()
        self._allocatable: tuple[tuple[str, str], ...] = ()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        self._thread: threading.Thread | None = None

    def set_pods(self, devices: Iterable[PodDevice], allocatable: Iterable[tuple[str, str]] | None = None) -> None:
        """Say who holds which device, and (unless None) the (resource, device id) pairs that may be given out."""
        self._pods = tuple(devices)
        if allocatable is not None:
            self._allocatable = tuple(allocatable)

    def start(self) -> None:
        """Listen on the path, replacing a socket left by another run; returns when connections are taken."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._wake, waked = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(waked, selectors.EVENT_READ)
        self._waked = waked
        self._thread = threading.Thread(target=self._serve, name="simulated-kubelet", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, close every connection, remove the socket file. Idempotent."""
        if self._thread is None:
            return
        self._wake.send(b"x")
        self._thread.join()
        self._thread = None
        for client in list(self._clients.values()):
            self._drop(client)
        for channel in (self._listener, self._wake, self._waked):
            channel.close()
        self._selector.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> "KubeletSocket":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._waked:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(self._clients[key.fd])

    def _accept(self) -> None:
        channel, _ = self._listener.accept()
        # A client that stops reading must not stop the others for longer than this.
        channel.settimeout(2.0)
        settings = h2.config.H2Configuration(client_side=False)
        client = _Client(channel, h2.connection.H2Connection(config=settings))
        client.protocol.initiate_connection()
        self._clients[channel.fileno()] = client
        self._selector.register(channel, selectors.EVENT_READ)
        self._flush(client)

    def _receive(self, client: _Client) -> None:
        try:
            received = client.channel.recv(65536)
            events = client.protocol.receive_data(received) if received else []
        except (OSError, h2.exceptions.ProtocolError):
            received, events = b"", []
        if not received:
            self._drop(client)
            return
        for event in events:
            self._handle(client, event)
        self._flush(client)

    def _handle(self, client: _Client, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream), headers=headers):
                client.paths[stream] = dict(headers or ()).get(b":path", b"").decode(errors="replace")
            case h2.events.DataReceived(stream_id=int(stream), flow_controlled_length=int(length)) if length:
                client.protocol.acknowledge_received_data(length, stream)
            case h2.events.StreamEnded(stream_id=int(stream)):
                self.requests += 1
                self._answer(client, stream, client.paths.pop(stream, ""))
            case h2.events.StreamReset(stream_id=int(stream)):
                client.paths.pop(stream, None)
                client.waiting.pop(stream, None)
            case h2.events.WindowUpdated():
                for stream in list(client.waiting):
                    self._send_body(client, stream)

    def _answer(self, client: _Client, stream: int, path: str) -> None:
        mode = self.mode
        if mode is Mode.HANG:
            return
        if mode is Mode.NOISE:
            with contextlib.suppress(OSError):
                client.channel.sendall(_GARBAGE * 8)
            return
        message = self._message(path)
        if mode is Mode.REFUSE or message is None:
            status = _EXHAUSTED if mode is Mode.REFUSE else _UNIMPLEMENTED
            client.protocol.send_headers(stream, [*_HEADERS, ("grpc-status", status)], end_stream=True)
            return
        body = _GARBAGE if mode is Mode.GARBAGE else message
        client.protocol.send_headers(stream, _HEADERS)
        client.waiting[stream] = struct.pack(">BI", 0, len(body)) + body
        self._send_body(client, stream)

    def _message(self, path: str) -> bytes | None:
        if path == LIST:
            return _list_response(self._pods).SerializeToString()
        if path == ALLOCATABLE:
            return _allocatable_response(self._allocatable).SerializeToString()
        return None

    def _send_body(self, client: _Client, stream: int) -> None:
        rest = client.waiting[stream]
        while rest:
            room = min(client.protocol.local_flow_control_window(stream), client.protocol.max_outbound_frame_size)
            if room <= 0:
                client.waiting[stream] = rest
                return
            client.protocol.send_data(stream, rest[:room])
            rest = rest[room:]
        del client.waiting[stream]
        client.protocol.send_headers(stream, [("grpc-status", _OK)], end_stream=True)

    def _flush(self, client: _Client) -> None:
        try:
            client.channel.sendall(client.protocol.data_to_send())
        except OSError:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.channel.fileno(), None) is not None:
            self._selector.unregister(client.channel)
            client.channel.close()


_HEADERS: Final = [(":status", "200"), ("content-type", "application/grpc")]


def _list_response(pods: Iterable[PodDevice]) -> messages.ListPodResourcesResponse:
    """One entry per device id, as kubelets since 1.27 write them."""
    grouped: dict[tuple[str, str], dict[str, list[PodDevice]]] = {}
    for held in pods:
        grouped.setdefault((held.namespace, held.pod), {}).setdefault(held.container, []).append(held)
    response = messages.ListPodResourcesResponse()
    for (namespace, name), containers in grouped.items():
        pod = response.pod_resources.add(name=name, namespace=namespace)
        for container, devices in containers.items():
            entry = pod.containers.add(name=container)
            for held in devices:
                entry.devices.add(resource_name=held.resource, device_ids=[held.device_id])
    return response


def _allocatable_response(allocatable: Iterable[tuple[str, str]]) -> messages.AllocatableResourcesResponse:
    response = messages.AllocatableResourcesResponse()
    for resource, device_id in allocatable:
        response.devices.add(resource_name=resource, device_ids=[device_id])
    return response
