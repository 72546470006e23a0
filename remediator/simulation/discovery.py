"""What the server says about itself: versions, groups, resources, and the little OpenAPI that kubectl asks for."""

from remediator.simulation.calls import Call, Reply
from remediator.simulation.resources import ALL_VERBS, Registry, Resource
from remediator.simulation.status_errors import Obj, no_such_path, not_done_here

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3+embedded",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
_SUB_KINDS = {"eviction": ("policy", "v1", "Eviction"), "binding": ("", "", "Binding")}
PROBES = ("/healthz", "/livez", "/readyz", "/livez/ping")
PUBLIC = (*PROBES, "/version")
"""Paths that everyone may read."""


def discover(registry: Registry, call: Call) -> Reply | None:
    """The answer to a discovery path, None when the path is not one."""
    path = call.path.rstrip("/")
    if path in PROBES:
        return Reply(body="ok")
    if path == "/version":
        return Reply(body=VERSION)
    if path.startswith("/openapi"):
        return _openapi(registry, path)
    parts = path.strip("/").split("/")
    match parts:
        case ["api"]:
            cidr = [{"clientCIDR": "0.0.0.0/0", "serverAddress": call.headers.get("host", "")}]
            return Reply(body={"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": cidr})
        case ["api", "v1"]:
            return Reply(body=_resources(registry, "", "v1"))
        case ["apis"]:
            groups = [_group(registry, group) for group in sorted({r.group for r in registry if r.group})]
            return Reply(body={"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group] if any(r.group == group for r in registry):
            return Reply(body={"kind": "APIGroup", "apiVersion": "v1", **_group(registry, group)})
        case ["apis", group, version] if registry.serves_group(group, version):
            return Reply(body=_resources(registry, group, version))
    return None


def _group(registry: Registry, group: str) -> Obj:
    versions = sorted({r.version for r in registry if r.group == group})
    rows = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": rows, "preferredVersion": rows[-1]}


def _resources(registry: Registry, group: str, version: str) -> Obj:
    rows = [row for r in registry if (r.group, r.version) == (group, version) for row in _rows(r)]
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows}


def _rows(resource: Resource) -> list[Obj]:
    main: Obj = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(ALL_VERBS),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    rows = [main]
    for sub in resource.subresources:
        group, version, kind = _SUB_KINDS.get(sub, ("", "", resource.kind))
        verbs = ["create"] if sub in _SUB_KINDS else ["get", "patch", "update"]
        row: Obj = {"name": f"{resource.plural}/{sub}", "singularName": "", "namespaced": resource.namespaced}
        row |= {"kind": kind, "verbs": verbs}
        if group:
            row |= {"group": group, "version": version}
        rows.append(row)
    return rows


def _openapi(registry: Registry, path: str) -> Reply:
    """OpenAPI v3 with nothing but the kinds and `fieldValidation`: kubectl then leaves validation to the server."""
    prefix = "/openapi/v3"
    if not path.startswith(prefix):
        raise not_done_here(path)
    groups = {(f"apis/{r.group}/{r.version}" if r.group else f"api/{r.version}"): r for r in registry}
    name = path.removeprefix(prefix).strip("/")
    if not name:
        return Reply(body={"paths": {key: {"serverRelativeURL": f"{prefix}/{key}"} for key in groups}})
    if name not in groups:
        raise no_such_path()
    group, version = groups[name].group, groups[name].version
    paths = {_path(r, name): {"patch": _patch_facts(r)} for r in registry if (r.group, r.version) == (group, version)}
    info = {"title": "gpuward embedded API server", "version": VERSION["gitVersion"]}
    return Reply(body={"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}})


def _path(resource: Resource, prefix: str) -> str:
    middle = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"/{prefix}{middle}/{resource.plural}/{{name}}"


def _patch_facts(resource: Resource) -> Obj:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    ok = {"200": {"description": "OK"}}
    action = {"x-kubernetes-group-version-kind": kind, "x-kubernetes-action": "patch"}
    return {**action, "parameters": parameters, "responses": ok}
