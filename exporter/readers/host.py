"""What the host says about itself: boot id, node name, kernel driver, device nodes."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from exporter.health.vocabulary import BootId

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
DRIVER_VERSION_PATH = Path("/sys/module/nvidia/version")
DEVICE_FOLDER = Path("/dev")


class HostUnreadable(Exception):
    """The host did not tell a fact that we cannot do without."""


def read_boot_id(path: Path = BOOT_ID_PATH) -> BootId:
    """The kernel's boot id. Raises `HostUnreadable`: without it no finding can be said to have survived a reboot."""
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise HostUnreadable(f"boot id: {error}") from error
    if not text:
        raise HostUnreadable(f"boot id: {path} is empty")
    return BootId(text)


def node_name(environment: Mapping[str, str]) -> str:
    """NODE_NAME (the DaemonSet sets it from spec.nodeName), else the host's name in lower case, as kubelets do."""
    return environment.get("NODE_NAME") or os.uname().nodename.lower()


def loaded_driver_version(path: Path = DRIVER_VERSION_PATH) -> str | None:
    """Version of the loaded NVIDIA kernel module, None = not loaded; read when needed, for upgrades change it."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def gpu_device_nodes(folder: Path = DEVICE_FOLDER) -> tuple[int, ...]:
    """Minor numbers of `/dev/nvidiaN` that exist, ascending: a second opinion on how many GPUs there are."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return ()
    return tuple(sorted(int(found[1]) for name in names if (found := re.fullmatch(r"nvidia(\d+)", name))))
