"""Which pods hold which GPU, for every form of device id."""

import pytest

from exporter.attribution import SYSTEMS
from exporter.attribution.devices import holders, strangers
from exporter.attribution.naming import Names
from exporter.health.vocabulary import DevicePod
from exporter.readings import PodDevice, PodMapping
from tests.rig.readings_world import a_gpu, an_identity, uuid

MIG = "MIG-11111111-2222-3333-4444-555555555555"
GPUS = (a_gpu(0), a_gpu(1, identity=an_identity(1, mig_uuids=(MIG,))))


def held(device_id: str, pod: str = "train", container: str = "main", resource: str = "nvidia.com/gpu") -> PodDevice:
    """One device of one container."""
    return PodDevice(namespace="ml", pod=pod, container=container, resource=resource, device_id=device_id)


def mapping(*devices: PodDevice) -> PodMapping:
    """What the kubelet says."""
    return PodMapping(known=True, devices=devices)


@pytest.mark.parametrize(
    ("device_id", "gpu", "share"),
    [
        pytest.param(uuid(0), uuid(0), "whole", id="a whole GPU"),
        pytest.param(f"{uuid(0)}::3", uuid(0), "replica", id="a replica of a whole GPU"),
        pytest.param(MIG, uuid(1), "mig", id="a MIG device lies on its parent"),
        pytest.param(f"{MIG}::0", uuid(1), "mig", id="a replica of a MIG device"),
        pytest.param(f"MIG-{uuid(0)}/7/0", uuid(0), "mig", id="the MIG form of old drivers names the parent"),
        pytest.param("GPU-ffffffff-0000-0000-0000-000000000000", None, "", id="a GPU that is not here"),
        pytest.param("MIG-ffffffff-0000-0000-0000-000000000000", None, "", id="a MIG device that is not here"),
        pytest.param("nvidia0", None, "", id="another system's id"),
        pytest.param("", None, "", id="nothing"),
        pytest.param("::", None, "", id="nothing, replicated"),
    ],
)
def test_ids(device_id: str, gpu: str | None, share: str) -> None:
    found = holders(mapping(held(device_id)), GPUS)
    pod = DevicePod(namespace="ml", name="train", uid="", container="main", resource="nvidia.com/gpu", share=share)
    assert found == ({} if gpu is None else {gpu: (pod,)})
    assert strangers(mapping(held(device_id)), GPUS, "nvidia.com/") == int(gpu is None)


def test_a_container_is_named_once_per_gpu_and_share() -> None:
    found = holders(mapping(held(f"{uuid(0)}::1"), held(f"{uuid(0)}::2"), held(f"{uuid(1)}::0")), GPUS)
    assert {gpu: len(pods) for gpu, pods in found.items()} == {uuid(0): 1, uuid(1): 1}


def test_sharers_are_sorted() -> None:
    found = holders(mapping(held(f"{uuid(0)}::1", pod="b"), held(f"{uuid(0)}::2", pod="a")), GPUS)
    assert [pod.name for pod in found[uuid(0)]] == ["a", "b"]


def test_a_network_card_is_no_stranger() -> None:
    card = held("0000:17:00.1", resource="rdma/hca")
    assert holders(mapping(card), GPUS) == {}
    assert strangers(mapping(card), GPUS, "nvidia.com/") == 0


def test_an_unknown_mapping_has_no_holders() -> None:
    unknown = PodMapping(known=False, devices=(held(uuid(0)),), reason="timeout")
    assert holders(unknown, GPUS) == {}
    assert strangers(unknown, GPUS, "nvidia.com/") == 0


def test_no_two_systems_know_the_same_id() -> None:
    names = Names(gpu.identity for gpu in GPUS)
    for device_id in (uuid(0), f"{uuid(0)}::1", MIG, f"MIG-{uuid(0)}/1/0"):
        assert sum(system(device_id, names) is not None for system in SYSTEMS) == 1
