"""Where the API server is: explicit flags, a kubeconfig, or the pod we run in, in this order.

Laws:
1. The official client is imported only when a kubeconfig is to be read: in a pod it would cost 37 MB for nothing.
2. Token files are handed on as files, never as text: they rotate.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remediator.adapters.errors import Fatal
from remediator.adapters.transport import Endpoint, FileToken, StaticToken

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What the user said about the API server; all None = look for ourselves."""

    api_server: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    kubeconfig: Path | None = None


def find_endpoint(
    wish: Connection, environment: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT
) -> Endpoint:
    """The endpoint to use; raises Fatal that says what was looked for."""
    if wish.api_server:
        return Endpoint(
            url=wish.api_server.rstrip("/"),
            ca_file=str(wish.ca_file) if wish.ca_file else None,
            token=FileToken(wish.token_file) if wish.token_file else StaticToken(None),
        )
    if wish.kubeconfig:
        return from_kubeconfig(wish.kubeconfig)
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if host and (account / "token").exists():
        return in_cluster(host, environment.get("KUBERNETES_SERVICE_PORT", "443"), account)
    default = Path(environment.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if default.exists():
        return from_kubeconfig(default)
    raise Fatal(f"no API server: no --kube.api-server, no --kubeconfig, no service account, no {default}")


def in_cluster(host: str, port: str, account: Path = SERVICE_ACCOUNT) -> Endpoint:
    """The API server as every pod sees it."""
    name = f"[{host}]" if ":" in host else host
    ca_file = account / "ca.crt"
    return Endpoint(
        url=f"https://{name}:{port}",
        ca_file=str(ca_file) if ca_file.exists() else None,
        token=FileToken(account / "token"),
    )


def from_kubeconfig(path: Path) -> Endpoint:
    """The current context of a kubeconfig; exec plugins and providers work as the official client does them."""
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_kube_config

    found = Configuration()
    try:
        # The official client has no types.
        load_kube_config(str(path), client_configuration=found, persist_config=False)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise Fatal(f"kubeconfig {path}: {error}") from error
    return Endpoint(
        url=str(found.host).rstrip("/"),
        ca_file=found.ssl_ca_cert,
        verify=bool(found.verify_ssl),
        token=ConfiguredToken(found),
        cert_file=found.cert_file,
        key_file=found.key_file,
        server_name=found.tls_server_name,
    )


class ConfiguredToken:
    """The bearer token of an official Configuration, whose hook renews it when it nears its end."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration

    def current(self) -> str | None:
        value = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return str(value).removeprefix("Bearer ").strip() if value else None

    def refresh(self) -> None:
        """The hook inside `current` decides by expiry; there is nothing to force."""
