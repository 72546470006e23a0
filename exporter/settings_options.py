"""The flags of gpu-exporter: one table, and what each value may look like."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from exporter import logs
from exporter.health import keys

ENV_PREFIX: Final = "GPU_EXPORTER_"
DEFAULT_PORT: Final = 9451
LARGEST_PORT: Final = 65535


class SettingsError(ValueError):
    """A value that cannot be used: which one, what is wrong with it, what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One flag; `env` and the key in the YAML file follow from its name."""

    flag: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    metavar: str = "VALUE"
    switch: bool = False

    @property
    def key(self) -> str:
        """Name without dashes in front: the key in a YAML file, dots as levels."""
        return self.flag.removeprefix("--")

    @property
    def env(self) -> str:
        """`--web.listen-address` -> `GPU_EXPORTER_WEB_LISTEN_ADDRESS`."""
        return ENV_PREFIX + re.sub(r"[.-]", "_", self.key).upper()


def _text(allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not text:
            raise SettingsError(f"is empty; allowed: {allowed}")
        return text

    return parse


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise SettingsError(f"{text!r} is unknown; allowed: {', '.join(words)}")
        return text

    return parse


def _seconds(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise SettingsError(f"{text!r} is not a time; allowed: seconds from {least:g} to {most:g}")
        return value

    return parse


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise SettingsError(f"{text!r} is neither yes nor no; allowed: true, false")
    return text.lower() in ("true", "1", "yes")


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise SettingsError(f"{text!r} is not a number of GPUs; allowed: whole numbers from 0 to 999")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    name, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > LARGEST_PORT:
        raise SettingsError(f"{text!r} is not an address; allowed: [HOST]:PORT with a port from 0 to {LARGEST_PORT}")
    return name.strip("[]"), int(port)


def _url_path(text: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9/_.-]+", text) or text in ("/health", "/-/healthy", "/-/ready", "/-/release"):
        raise SettingsError(f"{text!r} is not a free path; allowed: a path such as /metrics")
    return text


def _simulation(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"([a-z0-9-]+?)x([1-9][0-9]?)", text)
    if not found:
        raise SettingsError(f"{text!r} is not PROFILExCOUNT; allowed: for example h100x8, a100x4, t4x2")
    return found[1], int(found[2])


def node_name(text: str) -> str:
    if len(text) > 253 or not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", text):
        raise SettingsError(f"{text!r} is not a node name; allowed: lower-case letters, digits, '-' and '.'")
    return text


_path = _text("a path")

OPTIONS: Final[tuple[Option, ...]] = (
    Option(flag="--web.listen-address", parse=_address, default=("", DEFAULT_PORT), metavar="[HOST]:PORT",
           help=f"Address to serve on (default :{DEFAULT_PORT}; port 0 takes any free one)."),
    Option(flag="--web.telemetry-path", parse=_url_path, default="/metrics", metavar="PATH",
           help="Path of the metrics (default /metrics)."),
    Option(flag="--config.file", parse=_path, default=None, metavar="FILE",
           help="YAML file with any of these settings; keys are the flag names, dots may be levels."),
    Option(flag="--log.level", parse=_choice(*logs.LEVELS), default="info", metavar="LEVEL",
           help=f"One of {', '.join(logs.LEVELS)} (default info)."),
    Option(flag="--log.format", parse=_choice(*logs.FORMATS), default="logfmt", metavar="FORMAT",
           help=f"One of {', '.join(logs.FORMATS)} (default logfmt)."),
    Option(flag="--once", parse=_switch, default=False, switch=True,
           help="Print one exposition and end."),
    Option(flag="--interval", parse=_seconds(0.1, 3600), default=10.0, metavar="SECONDS",
           help="Time between two sweeps of all GPUs (default 10)."),
    Option(flag="--probe.timeout", parse=_seconds(0.05, 600), default=None, metavar="SECONDS",
           help="A driver call that takes longer means a hung GPU (default: the interval, at most 5)."),
    Option(flag="--simulate", parse=_simulation, default=None, metavar="PROFILExCOUNT",
           help="Serve a simulated node, for example h100x8, a100x4 or t4x2."),
    Option(flag="--simulate.state-file", parse=_path, default=None, metavar="FILE",
           help="State of the simulated node, to inject faults into (default: a temporary file, said in the log)."),
    Option(flag="--node.name", parse=node_name, default=None, metavar="NAME",
           help="Name of this node (default: NODE_NAME, else the host name)."),
    Option(flag="--nvml.library", parse=_path, default=None, metavar="FILE",
           help="The driver's libnvidia-ml.so.1, where the loader does not find it."),
    Option(flag="--kubelet.pod-resources-socket", parse=_path, metavar="PATH",
           default="/var/lib/kubelet/pod-resources/kubelet.sock",
           help="Where the kubelet tells which pod holds which device."),
    Option(flag="--kmsg.path", parse=_path, default=None, metavar="PATH",
           help="Kernel log to read Xid lines from (default /dev/kmsg)."),
    Option(flag="--state.file", parse=_path, default=None, metavar="FILE",
           help="Xid counters and findings, kept over restarts (default /var/lib/gpuward/exporter-state.json)."),
    Option(flag="--boot-id.path", parse=_path, default=None, metavar="PATH",
           help="Where the kernel tells its boot id (default /proc/sys/kernel/random/boot_id)."),
    Option(flag="--kube.publish", parse=_choice("auto", "on", "off"), default="auto", metavar="WHEN",
           help="Write GPUNode and Lease: on, off, or auto = when there is an API server to write to (default auto)."),
    Option(flag="--kube.api-server", parse=_text("https://HOST[:PORT]"), default=None, metavar="URL",
           help="API server (default: the one every pod is told)."),
    Option(flag="--kube.token-file", parse=_path, default=None, metavar="FILE",
           help="Bearer token for the API server; read again every minute."),
    Option(flag="--kube.ca-file", parse=_path, default=None, metavar="FILE",
           help="Certificate authority of the API server."),
    Option(flag="--kube.namespace", parse=node_name, default=keys.NAMESPACE, metavar="NAME",
           help=f"Namespace of the heartbeat Lease (default {keys.NAMESPACE})."),
    Option(flag="--kube.lease-seconds", parse=_seconds(1, 600), default=30.0, metavar="SECONDS",
           help="Time between two heartbeats; three missed ones make the node's health Unknown (default 30)."),
    Option(flag="--expected-gpus", parse=_count, default=None, metavar="N",
           help="GPUs this node should have (default: the most ever seen, over reboots; say N after taking one out)."),
)  # fmt: skip
