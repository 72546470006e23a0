"""One HTTP request and its answer, free of any web framework; and what the path and query say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from remediator.simulation.resources import Registry, Resource
from remediator.simulation.status_errors import (
    ApiError,
    Obj,
    bad_request,
    invalid,
    no_such_path,
    no_such_resource,
    not_supported,
)

MAX_BODY = 3 * 1024 * 1024
_OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}


def json_complaint(body: bytes, error: ValueError) -> str:
    """Go's words for a cut-off document; for other mistakes our own, marked as such."""
    at = error.pos if isinstance(error, json.JSONDecodeError) else 0
    return "unexpected end of JSON input" if at >= len(body.rstrip()) else f"embedded: {error}"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request as it arrived; header names are lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    user: str = "admin"

    def flag(self, name: str) -> bool:
        """A boolean query parameter."""
        return self.query.get(name, "").lower() in ("1", "true", "t")

    @property
    def dry_run(self) -> bool:
        """`dryRun=All`; 422 for any other value."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            options = _OPTIONS.get(self.method, "DeleteOptions")
            raise invalid(options, "meta.k8s.io", "", [not_supported("dryRun", [value], ("All",))])
        return value == "All"

    def media_type(self) -> str:
        """Content type without parameters."""
        return self.headers.get("content-type", "").split(";")[0].strip()

    def json_object(self, expected: str) -> Obj:
        """The body as an object, {} when empty; 400 with the server's words otherwise."""
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise self._unrecognized(expected, json_complaint(self.body, error)) from error
        if not isinstance(found, dict):
            raise self._unrecognized(expected, "embedded: not an object")
        return found

    def options(self) -> Obj:
        """The DeleteOptions in the body, {} when there is none."""
        return self.json_object("DeleteOptions") if self.body.strip() else {}

    def _unrecognized(self, expected: str, why: str) -> ApiError:
        shown = self.body[:30].decode(errors="replace") or "<empty>"
        told = f"couldn't get version/kind; json parse error: {why} ({shown})"
        return bad_request(f"the object provided is unrecognized (must be of type {expected}): {told}")


@dataclass(kw_only=True)
class Reply:
    """An answer: `body` is JSON, or text when it is a str."""

    code: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """The bytes on the wire."""
        if isinstance(self.body, str):
            return self.body.encode()
        return json.dumps(self.body, separators=(",", ":")).encode()


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a path names."""

    resource: Resource
    namespace: str
    """Empty for a cluster-scoped resource and for a list over all namespaces."""
    name: str
    subresource: str

    @property
    def key(self) -> tuple[str, str]:
        """Key in the store."""
        return self.namespace, self.name


def refusal(error: ApiError) -> Reply:
    """The answer that carries an error."""
    body: Any = error.message if error.plain else error.status()
    return Reply(code=error.code, body=body, headers=dict(error.headers))


def target_of(registry: Registry, path: str) -> Target:
    """The resource, namespace, name and subresource of a path under /api or /apis; 404 when there is none."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    if not registry.serves_group(group, version):
        raise no_such_path() if group else no_such_resource()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = registry.find(group, version, rest[0])
    if resource is None or (namespace and not resource.namespaced):
        raise no_such_resource() if group in ("", "apps", "batch") else no_such_path()
    if len(rest) > 3 or (not namespace and resource.namespaced and len(rest) > 1):
        raise no_such_resource()
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(resource=resource, namespace=namespace, name=name, subresource=subresource)
