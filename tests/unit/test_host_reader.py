"""What the host says about itself, and what it means when it does not."""

from pathlib import Path

import pytest

from exporter.readers.host import (
    HostUnreadable,
    gpu_device_nodes,
    loaded_driver_version,
    node_name,
    read_boot_id,
)


def test_the_boot_id_of_this_machine_is_a_uuid() -> None:
    assert len(read_boot_id()) == 36


@pytest.mark.parametrize("content", [pytest.param(None, id="absent"), pytest.param("\n", id="empty")])
def test_no_boot_id_is_an_error_and_never_an_empty_one(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_text(content)
    with pytest.raises(HostUnreadable, match="boot id"):
        read_boot_id(path)


def test_the_node_name_comes_from_the_environment_first() -> None:
    assert node_name({"NODE_NAME": "n7"}) == "n7"
    assert node_name({}) != ""


def test_a_driver_that_is_not_loaded_is_none(tmp_path: Path) -> None:
    path = tmp_path / "version"
    assert loaded_driver_version(path) is None
    path.write_text("550.163.01\n")
    assert loaded_driver_version(path) == "550.163.01"


def test_only_gpu_device_nodes_count(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / name).touch()
    assert gpu_device_nodes(tmp_path) == (2, 10)
    assert gpu_device_nodes(tmp_path / "absent") == ()
