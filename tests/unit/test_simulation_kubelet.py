"""The simulated kubelet socket, asked by grpcio: an independent client that shares no code with it."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from exporter.readers import podresources_pb2 as messages
from exporter.readings import PodDevice
from exporter.simulation.kubelet_socket import ALLOCATABLE, LIST, KubeletSocket, Mode

GPU = "nvidia.com/gpu"


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[KubeletSocket]:
    """A running simulated kubelet."""
    with KubeletSocket(tmp_path / "kubelet.sock") as running:
        yield running


def listed(path: Path, seconds: float = 5.0) -> messages.ListPodResourcesResponse:
    """What List answers to grpcio."""
    with channel_to(path) as channel:
        call = channel.unary_unary(
            LIST,
            request_serializer=messages.ListPodResourcesRequest.SerializeToString,
            response_deserializer=messages.ListPodResourcesResponse.FromString,
        )
        answer = call(messages.ListPodResourcesRequest(), timeout=seconds)
        assert isinstance(answer, messages.ListPodResourcesResponse)
        return answer


@contextlib.contextmanager
def channel_to(path: Path) -> Iterator[grpc.Channel]:
    """A grpcio channel; without a named authority grpcio sends the socket path, which strict servers refuse."""
    options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 16 << 20)]
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        yield channel


def held(pod: str, container: str, device: str) -> PodDevice:
    return PodDevice(namespace="team-a", pod=pod, container=container, resource=GPU, device_id=device)


def table(answer: messages.ListPodResourcesResponse) -> list[tuple[str, str, str, str, str]]:
    """The answer as flat rows."""
    return [
        (pod.namespace, pod.name, container.name, devices.resource_name, device_id)
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
        for device_id in devices.device_ids
    ]


def test_pods_are_listed_as_they_are_set(kubelet: KubeletSocket) -> None:
    assert table(listed(kubelet.path)) == []
    kubelet.set_pods(
        [held("train-0", "main", "GPU-1"), held("train-0", "side", "GPU-2"), held("train-0", "main", "GPU-3")]
    )
    assert sorted(table(listed(kubelet.path))) == [
        ("team-a", "train-0", "main", GPU, "GPU-1"),
        ("team-a", "train-0", "main", GPU, "GPU-3"),
        ("team-a", "train-0", "side", GPU, "GPU-2"),
    ]
    kubelet.set_pods([])
    assert table(listed(kubelet.path)) == []


def test_answer_larger_than_any_window_arrives_whole(kubelet: KubeletSocket) -> None:
    kubelet.set_pods(held(f"pod-{n}", "main", f"GPU-{n}-{'x' * 80}") for n in range(8000))
    rows = table(listed(kubelet.path, 20.0))
    assert len(rows) == 8000
    assert listed(kubelet.path, 20.0).ByteSize() > 1_000_000


def test_allocatable_resources(kubelet: KubeletSocket) -> None:
    kubelet.set_pods([], [(GPU, "GPU-1"), (GPU, "GPU-2")])
    with channel_to(kubelet.path) as channel:
        call = channel.unary_unary(
            ALLOCATABLE,
            request_serializer=messages.AllocatableResourcesRequest.SerializeToString,
            response_deserializer=messages.AllocatableResourcesResponse.FromString,
        )
        answer = call(messages.AllocatableResourcesRequest(), timeout=5)
    assert [(each.resource_name, list(each.device_ids)) for each in answer.devices] == [
        (GPU, ["GPU-1"]),
        (GPU, ["GPU-2"]),
    ]


def status_of(path: Path, method: str = LIST, seconds: float = 5.0) -> grpc.StatusCode:
    """The gRPC status of a call that must fail; the answer is not decoded."""
    with channel_to(path) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(method)(b"", timeout=seconds)
    code = failed.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code


def test_unknown_method_is_unimplemented(kubelet: KubeletSocket) -> None:
    assert status_of(kubelet.path, "/v1.PodResourcesLister/Get") is grpc.StatusCode.UNIMPLEMENTED


def test_modes_and_the_way_back(kubelet: KubeletSocket) -> None:
    kubelet.mode = Mode.REFUSE
    assert status_of(kubelet.path) is grpc.StatusCode.RESOURCE_EXHAUSTED
    kubelet.mode = Mode.HANG
    assert status_of(kubelet.path, seconds=0.3) is grpc.StatusCode.DEADLINE_EXCEEDED
    kubelet.mode = Mode.NOISE
    assert status_of(kubelet.path) in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
    kubelet.mode = Mode.GARBAGE
    with pytest.raises(grpc.RpcError) as failed:
        listed(kubelet.path)
    assert failed.value.code() is grpc.StatusCode.INTERNAL  # the answer came, but is no message
    kubelet.mode = Mode.NORMAL
    kubelet.set_pods([held("p", "c", "GPU-1")])
    assert len(table(listed(kubelet.path))) == 1
    assert kubelet.requests == 5


def test_client_that_speaks_nonsense_or_nothing_hurts_nobody(kubelet: KubeletSocket) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as rude:
        silent.connect(str(kubelet.path))
        rude.connect(str(kubelet.path))
        rude.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
        assert table(listed(kubelet.path)) == []


def test_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    kubelet = KubeletSocket(tmp_path / "kubelet.sock")
    kubelet.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(kubelet.path))
        listed(kubelet.path)
        kubelet.stop()
        kubelet.stop()
        client.settimeout(5)
        while client.recv(4096):
            pass
    assert not kubelet.path.exists()
    assert not [thread for thread in threading.enumerate() if thread.name == "simulated-kubelet"]


def test_start_replaces_a_socket_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    with KubeletSocket(path):
        assert table(listed(path)) == []
