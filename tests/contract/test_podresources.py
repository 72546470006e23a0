"""Our pod-resources client against gRPC's own server on a Unix socket, and against servers that misbehave."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.readers.podresources import PodResourcesClient
from exporter.readers.podresources_pb2 import (
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerResources,
    ListPodResourcesResponse,
    PodResources,
)
from exporter.readers.unary import CallFailed, Method, call
from exporter.readings import PodDevice, PodMapping

GPU_A, GPU_B = "GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002"
RESOURCE = "nvidia.com/gpu"

Answer = Callable[[bytes, grpc.ServicerContext], bytes]


@contextmanager
def kubelet(path: Path, **methods: Answer) -> Iterator[None]:
    """gRPC's own server with these methods of the lister; every other one is unimplemented."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method, request_deserializer=None, response_serializer=None)
        for name, method in methods.items()
    }
    options = [("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


def always(message: bytes) -> Answer:
    """The same answer to every question."""
    return lambda _request, _context: message


def failing(code: grpc.StatusCode, words: str = "no") -> Answer:
    """A refusal."""

    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, words)
        raise AssertionError("abort raises")

    return refuse


def listed(*devices: tuple[str, str, str]) -> bytes:
    """A List answer: (pod, container, device id), one entry per device as kubelets write it."""
    reply = ListPodResourcesResponse()
    for pod, container, device_id in devices:
        entry = ContainerDevices(resource_name=RESOURCE, device_ids=[device_id])
        holder = ContainerResources(name=container, devices=[entry])
        reply.pod_resources.append(PodResources(name=pod, namespace="ml", containers=[holder]))
    return reply.SerializeToString()


def offered(*device_ids: str) -> bytes:
    """A GetAllocatableResources answer."""
    entries = [ContainerDevices(resource_name=RESOURCE, device_ids=[each]) for each in device_ids]
    return AllocatableResourcesResponse(devices=entries).SerializeToString()


def read(path: Path, timeout_seconds: float = 5) -> PodMapping:
    """What our client makes of the server at `path`."""
    return PodResourcesClient(path).read(timeout_seconds)


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A socket path that is short enough for a Unix socket."""
    return tmp_path_factory.mktemp("k") / "s"


def test_who_holds_what(path: Path) -> None:
    with kubelet(
        path,
        List=always(listed(("train", "main", GPU_A), ("infer", "main", GPU_B))),
        GetAllocatableResources=always(offered(GPU_A, GPU_B)),
    ):
        mapping = read(path)
    assert mapping.known
    assert mapping.devices == (
        PodDevice(namespace="ml", pod="train", container="main", resource=RESOURCE, device_id=GPU_A),
        PodDevice(namespace="ml", pod="infer", container="main", resource=RESOURCE, device_id=GPU_B),
    )
    assert mapping.allocatable == ((RESOURCE, GPU_A), (RESOURCE, GPU_B))
    assert mapping.taken_at is not None
    assert mapping.reason == ""


def test_a_device_named_per_numa_node_is_one_device(path: Path) -> None:
    twice = listed(("train", "main", GPU_A), ("train", "main", GPU_A))
    with kubelet(path, List=always(twice), GetAllocatableResources=always(offered(GPU_A, GPU_A))):
        mapping = read(path)
    assert (len(mapping.devices), len(mapping.allocatable)) == (1, 1)


def test_an_idle_node_is_known_and_empty(path: Path) -> None:
    with kubelet(path, List=always(b""), GetAllocatableResources=always(offered(GPU_A))):
        mapping = read(path)
    assert mapping.known
    assert mapping.devices == ()


def test_a_kubelet_that_has_just_started_knows_nothing(path: Path) -> None:
    with kubelet(path, List=always(b""), GetAllocatableResources=always(b"")):
        mapping = read(path)
    assert (mapping.known, mapping.reason) == (False, "starting")


def test_an_old_kubelet_without_allocatable(path: Path) -> None:
    with kubelet(path, List=always(listed(("train", "main", GPU_A)))):
        mapping = read(path)
    assert mapping.known
    assert mapping.allocatable == ()


def test_fields_that_we_do_not_read_are_skipped(path: Path) -> None:
    # pod: cpu_ids (4, packed), memory (5, message); container: cpu_ids (3), memory (4): written by hand.
    container = b"\x0a\x04main" + b"\x1a\x02\x01\x02" + b"\x22\x05\x0a\x03mem"
    container += b"\x12" + bytes([2 + len(RESOURCE) + 2 + len(GPU_A)])
    container += b"\x0a" + bytes([len(RESOURCE)]) + RESOURCE.encode() + b"\x12" + bytes([len(GPU_A)]) + GPU_A.encode()
    pod = b"\x0a\x05train\x12\x02ml" + b"\x1a" + bytes([len(container)]) + container + b"\x22\x01\x07\x2a\x02\x0a\x00"
    message = b"\x0a" + bytes([len(pod)]) + pod
    with kubelet(path, List=always(message), GetAllocatableResources=always(offered(GPU_A))):
        mapping = read(path)
    assert [device.device_id for device in mapping.devices] == [GPU_A]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param(grpc.StatusCode.PERMISSION_DENIED, "refused", id="refused"),
        pytest.param(grpc.StatusCode.UNAVAILABLE, "refused", id="unavailable"),
        pytest.param(grpc.StatusCode.UNIMPLEMENTED, "unimplemented", id="no such method"),
        pytest.param(grpc.StatusCode.INTERNAL, "failed", id="internal"),
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, "exhausted", id="asked too often, twice"),
    ],
)
def test_refusals(path: Path, code: grpc.StatusCode, reason: str) -> None:
    with kubelet(path, List=failing(code), GetAllocatableResources=always(offered(GPU_A))):
        mapping = read(path)
    assert (mapping.known, mapping.reason, mapping.devices) == (False, reason, ())


def test_a_failing_second_question_spoils_the_first(path: Path) -> None:
    with kubelet(
        path,
        List=always(listed(("train", "main", GPU_A))),
        GetAllocatableResources=failing(grpc.StatusCode.INTERNAL),
    ):
        assert not read(path).known


def test_asked_too_often_once_is_asked_again(path: Path) -> None:
    asked: list[float] = []

    def exhausted_once(_request: bytes, context: grpc.ServicerContext) -> bytes:
        asked.append(time.monotonic())
        if len(asked) == 1:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return listed(("train", "main", GPU_A))

    with kubelet(path, List=exhausted_once, GetAllocatableResources=always(offered(GPU_A))):
        assert read(path).known
    assert len(asked) == 2


def test_asked_too_often_with_no_time_left_is_not_asked_again(path: Path) -> None:
    with kubelet(path, List=failing(grpc.StatusCode.RESOURCE_EXHAUSTED)):
        started = time.monotonic()
        assert read(path, 0.15).reason in ("exhausted", "timeout")
        assert time.monotonic() - started < 1


def test_a_hung_kubelet(path: Path) -> None:
    release = threading.Event()

    def hang(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        release.wait(30)
        return b""

    with kubelet(path, List=hang):
        started = time.monotonic()
        mapping = read(path, 0.5)
        took = time.monotonic() - started
        release.set()
    assert (mapping.known, mapping.reason) == (False, "timeout")
    assert 0.4 < took < 3


def test_no_kubelet(path: Path) -> None:
    assert read(path).reason == "absent"


def test_a_socket_that_nobody_serves(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert read(path).reason == "refused"


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    assert read(tmp_path / ("x" * 200)).reason == "failed"


def test_a_large_answer_arrives_whole(path: Path) -> None:
    """1,000 pods with 8 devices: beyond every window of HTTP/2."""
    many = [(f"pod-{n}", "main", f"GPU-{n:08x}-{d}") for n in range(1000) for d in range(8)]
    with kubelet(path, List=always(listed(*many)), GetAllocatableResources=always(offered(GPU_A))):
        mapping = read(path)
    assert len(mapping.devices) == 8000


def test_a_huge_answer_is_refused(path: Path) -> None:
    with kubelet(path, List=always(bytes(17 << 20))):
        assert read(path, 20).reason == "too-large"


def test_the_cap_is_a_cap_on_the_message(path: Path) -> None:
    exactly = bytes(1000)
    method = Method(socket_path=path, path="/v1.PodResourcesLister/List", limit_bytes=1000)
    with kubelet(path, List=always(exactly)):
        assert call(method, b"", 5) == exactly
        with pytest.raises(CallFailed, match="more than 999 bytes"):
            call(Method(socket_path=path, path=method.path, limit_bytes=999), b"", 5)


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\xff\xff\xff\xff", id="no protobuf"),
        pytest.param(b"\x0a\x7fshort", id="a length beyond the end"),
        pytest.param(b"\x0b", id="a group"),
        pytest.param(b"\x0a\x04\x0a\x02\xff\xfe", id="a name that is no UTF-8"),
    ],
)
def test_an_answer_that_is_no_message(path: Path, garbage: bytes) -> None:
    with kubelet(path, List=always(garbage), GetAllocatableResources=always(b"")):
        assert (read(path).known, read(path).reason) == (False, "garbled")


@contextmanager
def raw_server(path: Path, answer: bytes, hold_seconds: float = 0.0) -> Iterator[None]:
    """A server that says the same bytes to everybody and hangs up after `hold_seconds`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                try:
                    connection.recv(65536)
                    connection.sendall(answer)
                except OSError:
                    continue
                ended.wait(hold_seconds)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(4) + b"\x00\x00\x00\x0b"
RESET = b"\x00\x00\x04\x03\x00\x00\x00\x00\x01" + b"\x00\x00\x00\x07"
STATUS_200_AND_END = b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88"
BAD_NAME = b"\x00\x00\x08\x01\x05\x00\x00\x00\x01\x88\x00\x02\xff\xfe\x02\xff\xfe"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"", "failed", id="hangs up without a word"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", "failed", id="HTTP/1.1"),
        pytest.param(bytes(100), "garbled", id="zeros"),
        pytest.param(EMPTY_SETTINGS, "failed", id="hangs up after its settings"),
        pytest.param(EMPTY_SETTINGS + GOAWAY, "failed", id="goes away"),
        pytest.param(EMPTY_SETTINGS + RESET, "failed", id="resets the call"),
        pytest.param(EMPTY_SETTINGS + STATUS_200_AND_END, "garbled", id="ends without a gRPC status"),
        pytest.param(EMPTY_SETTINGS + BAD_NAME, "garbled", id="header that is no text"),
    ],
)
def test_servers_that_speak_something_else(path: Path, answer: bytes, reason: str) -> None:
    with raw_server(path, answer):
        mapping = read(path, 3)
    assert (mapping.known, mapping.reason) == (False, reason)


def frame(kind: int, flags: int, payload: bytes) -> bytes:
    """One frame of HTTP/2 on stream 1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + b"\x00\x00\x00\x01" + payload


HEADERS, DATA, END_HEADERS, END_STREAM = 1, 0, 4, 1
STATUS_0 = frame(HEADERS, END_HEADERS | END_STREAM, b"\x00\x0bgrpc-status\x010")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"", "garbled", id="no message at all"),
        pytest.param(b"\x00\x00", "garbled", id="half a head"),
        pytest.param(b"\x01\x00\x00\x00\x01x", "garbled", id="compressed, which nobody asked for"),
        pytest.param(b"\x00\x00\x00\x00\x02x", "garbled", id="shorter than it says"),
        pytest.param(b"\x00\x00\x00\x00\x00" * 2, "garbled", id="two messages"),
        pytest.param(b"\x00\x00\x00\x00\x00", "starting", id="one empty message: the client reads it"),
    ],
)
def test_bodies(path: Path, body: bytes, reason: str) -> None:
    answer = EMPTY_SETTINGS + frame(HEADERS, END_HEADERS, b"\x88") + frame(DATA, 0, body) + STATUS_0
    with raw_server(path, answer):
        assert read(path, 3).reason == reason


def test_a_server_that_says_half_a_frame(path: Path) -> None:
    with raw_server(path, EMPTY_SETTINGS[:5], hold_seconds=5):
        started = time.monotonic()
        assert read(path, 0.5).reason == "timeout"
        assert time.monotonic() - started < 3


def test_a_server_that_takes_nobody(path: Path) -> None:
    """A listener that never accepts: its backlog is full, then connecting itself waits."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(path))
        assert read(path, 0.5).reason == "timeout"
        for each in waiting:
            each.close()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_client(tmp_path_factory: pytest.TempPathFactory, answer: bytes) -> None:
    path = tmp_path_factory.mktemp("k") / "s"
    with raw_server(path, EMPTY_SETTINGS + answer):
        mapping = read(path, 2)
    assert not mapping.known
    assert mapping.reason


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100))
def test_no_message_breaks_the_decoder(message: bytes) -> None:
    """The decoder is protobuf's: it decodes or refuses with its own error, in both of our messages."""
    for kind in (ListPodResourcesResponse, AllocatableResourcesResponse):
        with suppress(DecodeError):
            kind.FromString(message)


def test_a_call_gives_the_message_itself(path: Path) -> None:
    with kubelet(path, List=always(listed(("train", "main", GPU_A))), GetAllocatableResources=always(b"")):
        method = Method(socket_path=path, path="/v1.PodResourcesLister/List")
        assert call(method, b"", 5) == listed(("train", "main", GPU_A))
        with pytest.raises(CallFailed) as unknown:
            call(Method(socket_path=path, path="/v1.PodResourcesLister/Nothing"), b"", 5)
    assert unknown.value.word == "unimplemented"
