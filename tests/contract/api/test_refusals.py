"""Request -> status, reason, message: every refusal our clients must tell apart."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.contract.api.asking import JSON_PATCH, MERGE, STRATEGIC, Ask, Server
from tests.contract.api.world import GPU_NODES, INCIDENTS, LEASES, NODES, PODS, World, a_gpu_node, an_incident

ABSENT = object()
NODE = f"{NODES}/{{n}}"
GPU_NODE = f"{GPU_NODES}/{{n}}"
INCIDENT = f"{INCIDENTS}/{{n}}"
UNCHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`{n}` stands for the test's own name; a message that ends in ... is a beginning."""

    id: str
    ask: Ask
    status: int
    reason: str | None
    message: str
    facts: dict[str, Any] = field(default_factory=dict)
    given: str = ""
    """What exists before: `node`, `gpunode`, `incident`, `terminating`."""


def put(path: str, body: Any) -> Ask:
    return Ask(method="PUT", path=path, body=body)


def post(path: str, body: Any) -> Ask:
    return Ask(method="POST", path=path, body=body)


def patch(path: str, body: Any, kind: str = MERGE) -> Ask:
    return Ask(method="PATCH", path=path, body=body, kind=kind)


def get(path: str) -> Ask:
    return Ask(method="GET", path=path)


def taints(*taints: Any) -> Ask:
    return patch(NODE, {"spec": {"taints": list(taints)}})


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
REJECTED = "the server rejected our request due to an error in our request"

PATHS = [
    Case(id="missing node", ask=get(f"{NODES}/zzz"), status=404, reason="NotFound", message='nodes "zzz" not found',
         facts={"details": {"name": "zzz", "kind": "nodes"}}),
    Case(id="missing custom object", ask=get(f"{GPU_NODES}/zzz"), status=404, reason="NotFound",
         message='gpunodes.gpuward.io "zzz" not found',
         facts={"details": {"name": "zzz", "group": "gpuward.io", "kind": "gpunodes"}}),
    Case(id="unknown path", ask=get("/foo"), status=404, reason=None, message="404 page not found\n"),
    Case(id="unknown group", ask=get("/apis/foo.io/v1/foos"), status=404, reason=None, message="404 page not found\n"),
    Case(id="unknown core resource", ask=get("/api/v1/foos"), status=404, reason="NotFound",
         message="the server could not find the requested resource", facts={"details": {}}),
    Case(id="unknown custom resource", ask=get("/apis/gpuward.io/v1alpha1/foos"), status=404, reason=None,
         message="404 page not found\n"),
    Case(id="patch of a collection", ask=patch(NODES, {}), status=405, reason="MethodNotAllowed",
         message="the server does not allow this method on the requested resource"),
    Case(id="post to an object", ask=post(f"{NODES}/zzz", {}), status=405, reason="MethodNotAllowed",
         message="the server does not allow this method on the requested resource"),
    Case(id="missing namespace", ask=post(LEASES.replace("default", "nope"), {"metadata": {"name": "{n}"}}),
         status=404, reason="NotFound", message='namespaces "nope" not found'),
    Case(id="other namespace in the body", ask=post(LEASES, {"metadata": {"name": "{n}", "namespace": "other"}}),
         status=400, reason="BadRequest",
         message="the namespace of the provided object does not match the namespace sent on the request"),
]  # fmt: skip

IDENTITY = [
    Case(id="unknown token", ask=Ask(method="GET", path=NODES, token="nope"), status=401, reason="Unauthorized",
         message="Unauthorized"),
    Case(id="no token", ask=Ask(method="GET", path=f"{NODES}/fn", token=""), status=403, reason="Forbidden",
         message='nodes "fn" is forbidden: User "system:anonymous" cannot get resource "nodes" in API group "" at the '
                 "cluster scope"),
    Case(id="no token, subresource", ask=Ask(method="POST", path=f"{PODS}/e1/eviction", body={}, token=""),
         status=403, reason="Forbidden",
         message='pods "e1" is forbidden: User "system:anonymous" cannot create resource "pods/eviction" in API group '
                 '"" in the namespace "default"'),
    Case(id="no token, discovery", ask=Ask(method="GET", path="/apis", token=""), status=403, reason="Forbidden",
         message='forbidden: User "system:anonymous" cannot get path "/apis"', facts={"details": {}}),
    Case(id="no token, list", ask=Ask(method="GET", path=NODES, token=""), status=403, reason="Forbidden",
         message='nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in API group "" at the '
                 "cluster scope"),
]  # fmt: skip

VERSIONS = [
    Case(id="stale put", given="node", ask=put(NODE, {"metadata": {"name": "{n}", "resourceVersion": "1"}}),
         status=409, reason="Conflict", message=f'Operation cannot be fulfilled on nodes "{{n}}": {MODIFIED}',
         facts={"details": {"name": "{n}", "kind": "nodes"}}),
    Case(id="stale merge patch", given="node", ask=patch(NODE, {"metadata": {"resourceVersion": "1"}}),
         status=409, reason="Conflict", message=f'Operation cannot be fulfilled on nodes "{{n}}": {MODIFIED}'),
    Case(id="stale custom status", given="gpunode",
         ask=patch(f"{GPU_NODE}/status", {"metadata": {"resourceVersion": "1"}, "status": {"health": "Unknown"}}),
         status=409, reason="Conflict",
         message=f'Operation cannot be fulfilled on gpunodes.gpuward.io "{{n}}": {MODIFIED}',
         facts={"details": {"name": "{n}", "group": "gpuward.io", "kind": "gpunodes"}}),
    Case(id="put with another uid", given="node", ask=put(NODE, {"metadata": {"name": "{n}", "uid": "abc"}}),
         status=409, reason="Conflict",
         message='Operation cannot be fulfilled on nodes "{n}": StorageError: invalid object, Code: 4, Key: '
                 "/registry/minions/{n}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in "
                 "precondition: abc, UID in object meta: ..."),
    Case(id="merge patch with another uid", given="node", ask=patch(NODE, {"metadata": {"uid": "abc"}}),
         status=422, reason="Invalid",
         message='Node "{n}" is invalid: metadata.uid: Invalid value: "abc": field is immutable'),
    Case(id="custom put without version", given="gpunode", ask=put(GPU_NODE, a_gpu_node("{n}")), status=422,
         reason="Invalid", facts={"details.kind": "gpunodes"},
         message='gpunodes.gpuward.io "{n}" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified '
                 "for an update"),
    Case(id="post with a version", ask=post(NODES, {"metadata": {"name": "{n}", "resourceVersion": "5"}}), status=500,
         reason=None, message="resourceVersion should not be set on objects to be created"),
    Case(id="existing", given="node", ask=post(NODES, {"metadata": {"name": "{n}"}}), status=409,
         reason="AlreadyExists", message='nodes "{n}" already exists'),
    Case(id="existing and terminating", given="terminating", ask=post(GPU_NODES, a_gpu_node("{n}")), status=409,
         reason="AlreadyExists", message='object is being deleted: gpunodes.gpuward.io "{n}" already exists'),
    Case(id="name in body and URL differ", given="node", ask=put(NODE, {"metadata": {"name": "fn"}}), status=400,
         reason="BadRequest", message="the name of the object (fn) does not match the name on the URL ({n})"),
    Case(id="read at a version of the future", ask=get(f"{NODES}?resourceVersion=99999999"), status=504,
         reason="Timeout", message="Timeout: Too large resource version: 99999999, current: ...",
         facts={"details.causes.0.reason": "ResourceVersionTooLarge", "details.retryAfterSeconds": 1}),
    Case(id="list at no version", ask=get(f"{NODES}?resourceVersion=abc"), status=400, reason="BadRequest",
         message='invalid resource version: resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": '
                 "invalid syntax"),
]  # fmt: skip

PATCHES = [
    Case(id="failed test", given="node",
         ask=patch(NODE, [{"op": "test", "path": "/metadata/name", "value": "x"}], JSON_PATCH),
         status=422, reason="Invalid", message=REJECTED, facts={"details": {}}),
    Case(id="missing path", given="node", ask=patch(NODE, [{"op": "remove", "path": "/metadata/labels/x"}], JSON_PATCH),
         status=422, reason="Invalid", message=REJECTED, facts={"details": {}}),
    Case(id="add to no taints", given="node",
         ask=patch(NODE, [{"op": "add", "path": "/spec/taints/-", "value": {"key": "a", "effect": "NoSchedule"}}],
                   JSON_PATCH),
         status=422, reason="Invalid", message=REJECTED),
    Case(id="JSON patch that is no list", given="node", ask=patch(NODE, {"a": 1}, JSON_PATCH), status=400,
         reason="BadRequest",
         message="error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
    Case(id="empty patch", given="node", ask=Ask(method="PATCH", path=NODE, raw=b"", kind=MERGE), status=400,
         reason="BadRequest", message="error decoding patch: unexpected end of JSON input"),
    Case(id="cut-off patch", given="node", ask=Ask(method="PATCH", path=NODE, raw=b'{"a":', kind=MERGE), status=400,
         reason="BadRequest", message="error decoding patch: unexpected end of JSON input"),
    Case(id="unknown patch type", given="node", ask=patch(NODE, {}, "application/json"), status=415,
         reason="UnsupportedMediaType", message="415: Unsupported Media Type"),
    Case(id="strategic patch of a custom object", given="gpunode", ask=patch(GPU_NODE, {}, STRATEGIC), status=415,
         reason="UnsupportedMediaType",
         message="the body of the request was in an unknown format - accepted media types include: "
                 "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"),
]  # fmt: skip

VALUES = [
    Case(id="bad taint effect", given="node", ask=taints({"key": "a", "effect": "Bogus"}), status=422, reason="Invalid",
         message='Node "{n}" is invalid: metadata.taints[0].effect: Unsupported value: "Bogus": supported values: '
                 '"NoSchedule", "PreferNoSchedule", "NoExecute"'),
    Case(id="taint twice", given="node",
         ask=taints({"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule", "value": "b"}),
         status=422, reason="Invalid",
         message='Node "{n}" is invalid: metadata.taints[1]: Duplicate value: {"Key":"a","Value":"b",'
                 '"Effect":"NoSchedule","TimeAdded":null}: taints must be unique by key and effect pair'),
    Case(id="bad name", ask=post(NODES, {"metadata": {"name": "Bad_Name"}}), status=422, reason="Invalid",
         message='Node "Bad_Name" is invalid: metadata.name: Invalid value: "Bad_Name": a lowercase RFC 1123 ...'),
    Case(id="no name", ask=post(NODES, {"metadata": {}}), status=422, reason="Invalid",
         message='Node "" is invalid: metadata.name: Required value: name or generateName is required'),
    Case(id="label too long", given="gpunode", ask=patch(GPU_NODE, {"metadata": {"labels": {"a": "x" * 64}}}),
         status=422, reason="Invalid",
         message=f'GPUNode.gpuward.io "{{n}}" is invalid: metadata.labels: Invalid value: "{"x" * 64}": must be no '
                 "more than 63 bytes"),
    Case(id="custom wrong type", given="gpunode", ask=patch(f"{GPU_NODE}/status", {"status": {"seenGPUs": "x"}}),
         status=422, reason="Invalid", facts={"details.causes.0.reason": "FieldValueTypeInvalid"},
         message='GPUNode.gpuward.io "{n}" is invalid: status.seenGPUs: Invalid value: "string": seenGPUs in body must '
                 'be of type integer: "string"'),
    Case(id="custom enum", given="gpunode", ask=patch(f"{GPU_NODE}/status", {"status": {"health": "Bad"}}), status=422,
         reason="Invalid", facts={"details.causes.0.reason": "FieldValueNotSupported"},
         message='GPUNode.gpuward.io "{n}" is invalid: status.health: Unsupported value: "Bad": supported values: '
                 '"Healthy", "Degraded", "Unhealthy", "Unknown"'),
    Case(id="custom minimum", given="gpunode", ask=patch(f"{GPU_NODE}/status", {"status": {"seenGPUs": -1}}),
         status=422, reason="Invalid",
         message='GPUNode.gpuward.io "{n}" is invalid: status.seenGPUs: Invalid value: -1: seenGPUs in body should be '
                 "greater than or equal to 0"),
    Case(id="custom required", given="gpunode",
         ask=patch(f"{GPU_NODE}/status", {"status": {"gpus": [{"uuid": "a", "index": 0}]}}), status=422,
         reason="Invalid", message='GPUNode.gpuward.io "{n}" is invalid: status.gpus[0].health: Required value'),
    Case(id="custom too many", given="gpunode",
         ask=patch(f"{GPU_NODE}/status", {"status": {"gpus": [{"uuid": "a", "index": 0, "health": "Healthy"}] * 65}}),
         status=422, reason="Invalid",
         message='GPUNode.gpuward.io "{n}" is invalid: status.gpus: Too many: 65: must have at most 64 items'),
    Case(id="custom too long", given="gpunode", ask=patch(f"{GPU_NODE}/status", {"status": {"bootID": "x" * 65}}),
         status=422, reason="Invalid",
         message='GPUNode.gpuward.io "{n}" is invalid: status.bootID: Too long: may not be more than 64 bytes'),
    Case(id="custom no date", given="gpunode", ask=patch(f"{GPU_NODE}/status", {"status": {"observedAt": "today"}}),
         status=422, reason="Invalid",
         message='GPUNode.gpuward.io "{n}" is invalid: status.observedAt: Invalid value: "today": observedAt in body '
                 'must be of type date-time: "today"'),
    Case(id="immutable spec", given="incident", ask=patch(INCIDENT, {"spec": {"fault": "other"}}), status=422,
         reason="Invalid", message='GPUIncident.gpuward.io "{n}" is invalid: spec: Invalid value: spec is immutable'),
    Case(id="an enum error hides the rules", given="incident",
         ask=patch(f"{INCIDENT}/status", {"status": {"phase": "Foo"}}), status=422, reason="Invalid",
         facts={"details.causes.1.message": f"Invalid value: null: {UNCHECKED}", "details.causes.1.field": "<nil>"},
         message='GPUIncident.gpuward.io "{n}" is invalid: [status.phase: Unsupported value: "Foo": ...'),
    Case(id="strict unknown field in a post",
         ask=post(f"{GPU_NODES}?fieldValidation=Strict", a_gpu_node("{n}") | {"foo": {}}), status=400,
         reason="BadRequest",
         message='GPUNode in version "v1alpha1" cannot be handled as a GPUNode: strict decoding error: unknown field '
                 '"foo"'),
    Case(id="custom object without a kind", ask=post(GPU_NODES, {"metadata": {"name": "{n}"}}), status=400,
         reason="BadRequest",
         message="the object provided is unrecognized (must be of type GPUNode): Object 'Kind' is missing in ..."),
    Case(id="custom object of another kind", ask=post(GPU_NODES, an_incident("{n}")), status=422, reason="Invalid",
         message='GPUIncident.gpuward.io "{n}" is invalid: kind: Invalid value: "GPUIncident": must be GPUNode'),
    Case(id="other kind", ask=post(NODES, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{n}"}}), status=400,
         reason="BadRequest",
         message='Pod in version "v1" cannot be handled as a Node: converting (v1.Pod) to (core.Node): unknown '
                 "conversion"),
    Case(id="malformed body", ask=Ask(method="POST", path=NODES, raw=b'{"a":'), status=400, reason="BadRequest",
         message="the object provided is unrecognized (must be of type Node): couldn't get version/kind; json parse "
                 'error: unexpected end of JSON input ({"a":)'),
    Case(id="body too large", ask=Ask(method="POST", path=NODES, raw=b" " * (3 * 1024 * 1024 + 1)), status=413,
         reason="RequestEntityTooLarge", message="Request entity too large: limit is 3145728"),
    Case(id="lease without a duration", ask=post(LEASES, {"metadata": {"name": "{n}"},
                                                          "spec": {"leaseDurationSeconds": 0}}),
         status=422, reason="Invalid",
         message='Lease.coordination.k8s.io "{n}" is invalid: spec.leaseDurationSeconds: Invalid value: 0: must be '
                 "greater than 0"),
    Case(id="unknown dry run", ask=post(f"{NODES}?dryRun=Some", {"metadata": {"name": "{n}"}}), status=422,
         reason="Invalid",
         message='CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: '
                 '"All"'),
]  # fmt: skip

SELECTORS = [
    Case(id="unknown field of a node", ask=get(f"{NODES}?fieldSelector=spec.foo%3Da"), status=400, reason="BadRequest",
         message="field label not supported: spec.foo"),
    Case(id="field that is not selectable", ask=get(f"{INCIDENTS}?fieldSelector=spec.fault%3Da"), status=400,
         reason="BadRequest", message="field label not supported: spec.fault"),
    Case(id="match without version", ask=get(f"{NODES}?resourceVersionMatch=Exact"), status=422, reason="Invalid",
         message='ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is '
                 "forbidden unless resourceVersion is provided"),
    Case(id="initial events without match", ask=get(f"{NODES}?watch=1&sendInitialEvents=true"), status=422,
         reason="Invalid",
         message='ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires '
                 "setting resourceVersionMatch to NotOlderThan"),
    Case(id="watch at no version", ask=get(f"{NODES}?watch=1&resourceVersion=abc"), status=500, reason=None,
         message='resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax'),
]  # fmt: skip

ALL = [*PATHS, *IDENTITY, *VERSIONS, *PATCHES, *VALUES, *SELECTORS]


def filled(value: Any, name: str) -> Any:
    """`{n}` replaced in every text."""
    if isinstance(value, str):
        return value.replace("{n}", name)
    if isinstance(value, dict):
        return {filled(key, name): filled(entry, name) for key, entry in value.items()}
    return [filled(entry, name) for entry in value] if isinstance(value, list) else value


def at(body: Any, path: str) -> Any:
    for part in path.split("."):
        body = body[int(part)] if isinstance(body, list) else body.get(part, ABSENT)
    return body


def prepare(world: World, given: str) -> None:
    match given:
        case "node":
            world.node()
        case "gpunode":
            world.gpu_node()
        case "incident":
            world.incident()
        case "terminating":
            body = a_gpu_node(world.name)
            body["metadata"]["finalizers"] = ["gpuward.io/test"]
            world.make(GPU_NODES, body)
            world.server.must("DELETE", f"{GPU_NODES}/{world.name}")


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id.replace(" ", "-"))
def test_a_refusal_is_told_alike(case: Case, server: Server, world: World) -> None:
    prepare(world, case.given)
    ask = Ask(
        method=case.ask.method,
        path=filled(case.ask.path, world.name),
        body=filled(case.ask.body, world.name),
        kind=case.ask.kind,
        raw=case.ask.raw,
        token=case.ask.token,
    )
    answer = server.ask(ask)
    assert answer.status == case.status, answer.body
    expected = filled(case.message, world.name)
    if case.reason is None and isinstance(answer.body, str):
        assert answer.body == expected
        return
    assert answer.body.get("reason") == case.reason
    assert answer.body["kind"] == "Status" and answer.body["code"] == case.status
    message = answer.body["message"]
    assert message.startswith(expected[:-3]) if expected.endswith("...") else message == expected
    for path, value in case.facts.items():
        assert at(answer.body, path) == filled(value, world.name), path
