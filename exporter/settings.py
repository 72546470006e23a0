"""Settings of gpu-exporter: flags, their environment twins, an optional YAML file, defaults; in this order of weight.

Standard library (and PyYAML when a file is named): pydantic would cost every GPU node 15 MB and 150 ms.
A wrong value is refused with its source, what is wrong, and what is allowed; the process ends with status 2.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter import apiserver
from exporter.readers import host
from exporter.settings_options import ENV_PREFIX, OPTIONS, Option, SettingsError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set; what each means stands in `settings_options.OPTIONS`."""

    listen_host: str
    listen_port: int
    telemetry_path: str
    log_level: str
    log_format: str
    once: bool
    interval_seconds: float
    probe_timeout_seconds: float
    simulate: tuple[str, int] | None
    simulate_state_file: Path | None
    node: str
    nvml_library: str | None
    pod_resources_socket: Path
    kmsg_path: Path | None
    """None = the kernel's, or in a simulation the simulated one."""
    state_file: Path | None
    """None = the default place, or in a simulation beside its state file."""
    boot_id_path: Path | None
    expected_gpus: int | None
    endpoint: apiserver.Endpoint | None
    """None = nothing is published."""
    namespace: str
    lease_seconds: float


def load(arguments: Sequence[str], environ: Mapping[str, str], version: str) -> Settings:
    """Settings from all sources; raises `SettingsError`. `--help`, `--version` and unknown flags end the process."""
    flags = _parser(version).parse_args(arguments)
    given = {option.key: getattr(flags, option.key) for option in OPTIONS}
    by_env = {option.key: environ[option.env] for option in OPTIONS if environ.get(option.env)}
    config_file = given["config.file"] or by_env.get("config.file")
    by_file = _read_file(Path(config_file)) if config_file else {}
    values: dict[str, Any] = {}
    for option in OPTIONS:
        for source, text in (
            (option.flag, given[option.key]),
            (option.env, by_env.get(option.key)),
            (f"{config_file}: {option.key}", by_file.get(option.key)),
        ):
            if text is not None:
                values[option.key] = _parsed(option, source, text)
                break
        else:
            values[option.key] = option.default
    return _assemble(values, environ)


def _parser(version: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-exporter",
        description="Exports NVIDIA GPUs to Prometheus and their health to Kubernetes.",
        epilog=f"Every flag has an environment twin, e.g. --interval: {ENV_PREFIX}INTERVAL.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpu-exporter {version}")
    for option in OPTIONS:
        if option.switch:
            parser.add_argument(option.flag, dest=option.key, action="store_const", const="true", help=option.help)
        else:
            parser.add_argument(option.flag, dest=option.key, metavar=option.metavar, help=option.help)
    return parser


def _parsed(option: Option, source: str, text: str) -> object:
    try:
        return option.parse(text)
    except SettingsError as wrong:
        raise SettingsError(f"{source}: {wrong}") from wrong


def _read_file(path: Path) -> dict[str, str]:
    import yaml  # only who names a file pays for the parser

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as failed:
        raise SettingsError(f"--config.file: {failed}; allowed: a readable YAML file") from failed
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"{path}: not YAML: {' '.join(str(wrong).split())}") from wrong
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: is a {type(content).__name__}; allowed: a mapping of settings")
    flat = _flat(content, "")
    known = {option.key for option in OPTIONS if option.key not in ("config.file", "once")}
    for key in flat:
        if key not in known:
            raise SettingsError(f"{path}: {key}: is no setting; allowed: {', '.join(sorted(known))}")
    return flat


def _flat(level: Mapping[Any, Any], prefix: str) -> dict[str, str]:
    """`web: {listen-address: ":1"}` -> `web.listen-address: ":1"`."""
    flat: dict[str, str] = {}
    for key, value in level.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{name}."))
        elif isinstance(value, bool):
            flat[name] = str(value).lower()
        elif value is not None:
            flat[name] = str(value)
    return flat


def _assemble(values: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    def path(key: str) -> Path | None:
        return None if values[key] is None else Path(values[key])

    listen_host, listen_port = values["web.listen-address"]
    if values["simulate.state-file"] is not None and values["simulate"] is None:
        raise SettingsError("--simulate.state-file: needs a simulation; allowed: together with --simulate")
    name = values["node.name"]
    if name is None:
        name = _parsed(_option("node.name"), "NODE_NAME or the host name (set --node.name)", host.node_name(environ))
    return Settings(
        listen_host=listen_host,
        listen_port=listen_port,
        telemetry_path=values["web.telemetry-path"],
        log_level=values["log.level"],
        log_format=values["log.format"],
        once=values["once"],
        interval_seconds=values["interval"],
        probe_timeout_seconds=values["probe.timeout"] or min(5.0, values["interval"]),
        simulate=values["simulate"],
        simulate_state_file=path("simulate.state-file"),
        node=name,
        nvml_library=values["nvml.library"],
        pod_resources_socket=Path(values["kubelet.pod-resources-socket"]),
        kmsg_path=path("kmsg.path"),
        state_file=path("state.file"),
        boot_id_path=path("boot-id.path"),
        expected_gpus=values["expected-gpus"],
        endpoint=_endpoint(values, environ),
        namespace=values["kube.namespace"],
        lease_seconds=values["kube.lease-seconds"],
    )


def _option(key: str) -> Option:
    return next(option for option in OPTIONS if option.key == key)


def _endpoint(values: Mapping[str, Any], environ: Mapping[str, str]) -> apiserver.Endpoint | None:
    when, url = values["kube.publish"], values["kube.api-server"]
    token, authority = values["kube.token-file"], values["kube.ca-file"]
    if when == "off":
        return None
    if url is not None:
        try:
            return apiserver.Endpoint(
                url=url, token_file=Path(token) if token else None, ca_file=Path(authority) if authority else None
            )
        except ValueError as wrong:
            raise SettingsError(f"--kube.api-server: {wrong}") from wrong
    found = apiserver.in_cluster(environ)
    if found is None and when == "on":
        raise SettingsError("--kube.publish: on, and this is no pod; allowed: together with --kube.api-server")
    return found


def environment() -> Mapping[str, str]:
    """The process's environment; read here and nowhere else."""
    return os.environ
