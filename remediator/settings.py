"""Settings of gpu-remediator: flags, their environment twins, defaults; in this order of weight.

The twin of `--web.listen-address` is GPU_REMEDIATOR_WEB_LISTEN_ADDRESS. What may be done to which GPU stands in the
policy file, not here.
"""

import argparse
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from exporter.health import keys
from remediator.adapters.api import EVICTION_TIMEOUT

ENV_PREFIX = "GPU_REMEDIATOR_"


class SettingsError(ValueError):
    """A wrong flag or variable; the message says which one, what is wrong and what is allowed."""


class Settings(BaseSettings):
    """Everything that can be set; the description is the flag's help text."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    config_file: Path | None = Field(None, description="policy file (YAML); without one everything is only observed")
    web_listen_address: str = Field(":9452", description="HOST:PORT for metrics and health")
    kubeconfig: Path | None = Field(
        None, description="kubeconfig; default: the pod's service account, then ~/.kube/config"
    )
    kube_api_server: str | None = Field(None, description="URL of the API server; wins over the kubeconfig")
    kube_token_file: Path | None = Field(None, description="file with the bearer token, read again as it rotates")
    kube_ca_file: Path | None = Field(None, description="certificate authority of the API server")
    namespace: str = Field(keys.NAMESPACE, description="namespace of our Leases and Jobs", pattern=r"^[a-z0-9-]{1,63}$")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is written")
    log_format: Literal["logfmt", "json"] = Field("logfmt", description="form of a log line")
    identity: str = Field(
        default_factory=lambda: f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        description="name in the leader lease; must differ between replicas (default: host name and a random part)",
    )
    leader_elect: bool = Field(True, description="lead only while holding the Lease; needed with more than one replica")
    lease_duration: float = Field(30.0, gt=0, description="seconds after which others may take over a silent leader")
    lease_renew_deadline: float = Field(24.0, gt=0, description="seconds after which a leader that cannot renew stops")
    lease_retry: float = Field(4.0, gt=0, description="seconds between renewals")
    incidents_keep_days: float = Field(30.0, gt=0, description="how long closed incidents are kept")
    incidents_keep_count: int = Field(5000, ge=0, description="how many closed incidents are kept")
    notify_webhook_url: str | None = Field(None, description="webhook for messages (Slack form); better by environment")

    @field_validator("web_listen_address")
    @classmethod
    def _address(cls, value: str) -> str:
        _, colon, port = value.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError("must be HOST:PORT or :PORT")
        return value

    @model_validator(mode="after")
    def _times(self) -> "Settings":
        if not self.lease_duration > self.lease_renew_deadline > self.lease_retry:
            raise ValueError("must be: lease.duration > lease.renew-deadline > lease.retry")
        if self.leader_elect and self.lease_renew_deadline - self.lease_retry <= EVICTION_TIMEOUT:
            raise ValueError(
                f"lease.renew-deadline must exceed lease.retry by more than {EVICTION_TIMEOUT:.0f} s: "
                "an eviction may take that long and must not outlive our leadership"
            )
        return self

    @property
    def listen(self) -> tuple[str, int]:
        """Host (empty = every address) and port."""
        host, _, port = self.web_listen_address.rpartition(":")
        return host.strip("[]"), int(port)


def load(arguments: Sequence[str], version: str) -> tuple[str, Settings]:
    """Command (`run` or `states`) and settings; raises SettingsError. `--help` and unknown flags end the process."""
    given = vars(_parser(version).parse_args(arguments))
    command = given.pop("command")
    try:
        return command, Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_line(dict(problem)) for problem in error.errors())) from error


def _parser(version: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-remediator",
        description="Takes faulty GPUs out of service, has them repaired and brings them back.",
        epilog=f"Every flag has an environment twin, e.g. --log.level: {ENV_PREFIX}LOG_LEVEL.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpu-remediator {version}")
    parser.add_argument(
        "command", nargs="?", choices=("run", "states"), default="run", help="states: print the diagram"
    )
    for name, field in Settings.model_fields.items():
        if field.annotation is bool:
            parser.add_argument(
                _flag(name),
                dest=name,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=_help(field),
            )
        else:
            parser.add_argument(_flag(name), dest=name, metavar="VALUE", default=argparse.SUPPRESS, help=_help(field))
    return parser


_DOTTED = ("config", "web", "kube", "log", "lease", "incidents", "notify")


def _flag(name: str) -> str:
    head, _, tail = name.partition("_")
    dotted = f"{head}.{tail}" if tail and head in _DOTTED else name
    return f"--{dotted.replace('_', '-')}"


def _help(field: Any) -> str:
    default = "" if field.default_factory or field.default is None else f" (default: {field.default})"
    return f"{field.description}{default}".replace("%", "%%")


def _line(problem: dict[str, Any]) -> str:
    where = _flag(str(problem["loc"][0])) if problem["loc"] else "settings"
    given = f" {problem['input']!r}" if problem["loc"] and isinstance(problem.get("input"), str) else ""
    return f"{where}{given}: {problem['msg'].removeprefix('Value error, ')}"
