"""What writes and reads do to an object: versions, generations, subresources, patches, pruning, pages, forms."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.api.asking import JSON_PATCH, MERGE, STRATEGIC, Answer, Ask, Object, Server
from tests.contract.api.world import (
    CONFIG_MAPS,
    GPU_NODES,
    INCIDENTS,
    LEASES,
    NODES,
    PODS,
    READY,
    World,
    a_gpu_node,
    a_pod,
    an_incident,
    eventually,
)

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"


def version(obj: Object) -> str:
    found = obj["metadata"]["resourceVersion"]
    assert isinstance(found, str)
    return found


def test_a_node_as_posted_is_not_ready_and_has_no_generation(world: World) -> None:
    node = world.make(NODES, {"metadata": {"name": world.name}, "status": {"capacity": {"pods": "110"}}})
    assert node["spec"] == {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}
    assert "generation" not in node["metadata"]
    assert node["status"]["capacity"] == node["status"]["allocatable"] == {"pods": "110"}


def test_status_is_ignored_in_a_post_and_through_the_main_resource(world: World, server: Server) -> None:
    made = world.make(GPU_NODES, a_gpu_node(world.name) | {"status": {"health": "Healthy"}})
    assert "status" not in made and made["metadata"]["generation"] == 1
    patched = server.merge(f"{GPU_NODES}/{world.name}", {"status": {"health": "Healthy"}})
    assert "status" not in patched and version(patched) == version(made)


def test_spec_and_labels_are_ignored_through_the_status_of_a_custom_object(world: World, server: Server) -> None:
    world.incident()
    path = f"{INCIDENTS}/{world.name}/status"
    body = {"status": {"phase": "Draining"}, "metadata": {"labels": {"a": "b"}}, "spec": {"fault": "other"}}
    patched = server.merge(path, body)
    assert patched["status"] == {"phase": "Draining"}
    assert "labels" not in patched["metadata"] and patched["spec"]["fault"] == "xid-79"


def test_labels_do_go_through_the_status_of_a_node(world: World, server: Server) -> None:
    world.node()
    body = {"spec": {"unschedulable": True}, "metadata": {"labels": {"via": "status"}}}
    patched = server.merge(f"{NODES}/{world.name}/status", body)
    assert patched["metadata"]["labels"] == {"via": "status"} and "unschedulable" not in patched["spec"]


def test_only_spec_changes_and_deletion_raise_the_generation(world: World, server: Server) -> None:
    pod = world.pod()
    path = f"{PODS}/{world.name}"
    assert pod["metadata"]["generation"] == 1
    assert server.merge(path, {"metadata": {"labels": {"a": "b"}}})["metadata"]["generation"] == 1
    image = {"spec": {"containers": [{"name": "main", "image": "pause:2"}]}}
    assert server.must("PATCH", path, image, STRATEGIC)["metadata"]["generation"] == 2
    deleted = server.must("DELETE", path, {"gracePeriodSeconds": 30})
    assert deleted["metadata"]["generation"] == 3


def test_a_write_that_changes_nothing_keeps_the_version(world: World, server: Server) -> None:
    world.gpu_node({"health": "Healthy"})
    path = f"{GPU_NODES}/{world.name}"
    before = server.get(path)
    assert version(server.merge(f"{path}/status", {"status": {"health": "Healthy"}})) == version(before)
    assert version(server.must("PUT", path, before)) == version(before)


def test_empty_values_of_a_node_are_not_stored(world: World, server: Server) -> None:
    world.node()
    path = f"{NODES}/{world.name}"
    node = server.merge(path, {"spec": {"taints": [], "unschedulable": False}, "metadata": {"labels": {}}})
    assert "taints" not in node["spec"] and "unschedulable" not in node["spec"] and "labels" not in node["metadata"]


def test_null_test_passes_on_an_absent_list(world: World, server: Server) -> None:
    world.node()
    taint = {"key": "gpuward.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
    first = [
        {"op": "test", "path": "/spec/taints", "value": None},
        {"op": "add", "path": "/spec/taints", "value": [taint]},
    ]
    node = server.must("PATCH", f"{NODES}/{world.name}", first, JSON_PATCH)
    assert node["spec"]["taints"] == [taint]
    more = [{"op": "add", "path": "/spec/taints/-", "value": {"key": "b", "effect": "NoExecute"}}]
    node = server.must("PATCH", f"{NODES}/{world.name}", more, JSON_PATCH)
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["gpuward.io/unhealthy", "b"]


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
def test_a_patch_of_taints_replaces_the_whole_list(kind: str, world: World, server: Server) -> None:
    world.node()
    path = f"{NODES}/{world.name}"
    server.merge(path, {"spec": {"taints": [{"key": "foreign", "effect": "NoSchedule"}]}})
    node = server.must("PATCH", path, {"spec": {"taints": [{"key": "ours", "effect": "NoSchedule"}]}}, kind)
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["ours"]


def test_a_strategic_patch_merges_conditions_by_type(world: World, server: Server) -> None:
    world.node()
    path = f"{NODES}/{world.name}/status"
    server.must("PATCH", path, {"status": {"conditions": [{"type": "GPUHealthy", "status": "True"}]}}, STRATEGIC)
    node = server.must(
        "PATCH", path, {"status": {"conditions": [{"type": "GPUHealthy", "status": "False"}]}}, STRATEGIC
    )
    assert {c["type"]: c["status"] for c in node["status"]["conditions"]} == {"Ready": "True", "GPUHealthy": "False"}
    gone = {"status": {"conditions": [{"type": "GPUHealthy", "$patch": "delete"}]}}
    node = server.must("PATCH", path, gone, STRATEGIC)
    assert [c["type"] for c in node["status"]["conditions"]] == ["Ready"]


def test_the_order_that_a_strategic_patch_leaves(world: World, server: Server) -> None:
    world.node(conditions=[READY, {"type": "A", "status": "True"}])
    path = f"{NODES}/{world.name}/status"
    body = {"status": {"conditions": [{"type": "B", "status": "True"}, {"type": "A", "status": "False"}]}}
    node = server.must("PATCH", path, body, STRATEGIC)
    assert [c["type"] for c in node["status"]["conditions"]] == ["B", "Ready", "A"]


def test_of_many_writers_with_one_version_one_wins(world: World, server: Server) -> None:
    node = world.node()

    def write(number: int) -> int:
        labels = {"metadata": {"resourceVersion": version(node), "labels": {"winner": str(number)}}}
        return server.ask(Ask(method="PATCH", path=f"{NODES}/{world.name}", body=labels, kind=MERGE)).status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write, range(8))) == [200] + [409] * 7


def test_unknown_fields_are_pruned_with_a_warning(world: World, server: Server) -> None:
    world.gpu_node()
    path = f"{GPU_NODES}/{world.name}/status"
    body = {"status": {"health": "Healthy", "nope": 1}}
    answer = server.ask(Ask(method="PATCH", path=path, body=body, kind=MERGE))
    assert answer.status == 200 and answer.body["status"] == {"health": "Healthy"}
    assert answer.headers["Warning"] == '299 - "unknown field \\"status.nope\\""'
    ignored = server.ask(Ask(method="PATCH", path=f"{path}?fieldValidation=Ignore", body=body, kind=MERGE))
    assert ignored.status == 200 and "Warning" not in ignored.headers
    strict = server.ask(Ask(method="PATCH", path=f"{path}?fieldValidation=Strict", body=body, kind=MERGE))
    assert (strict.status, strict.body["reason"]) == (422, "Invalid")
    assert strict.body["message"].endswith('strict decoding error: unknown field "status.nope"')


def test_nulls_are_pruned(world: World, server: Server) -> None:
    world.gpu_node({"health": "Healthy"})
    body = server.get(f"{GPU_NODES}/{world.name}") | {"status": {"health": None, "seenGPUs": 1}}
    stored = server.must("PUT", f"{GPU_NODES}/{world.name}/status", body)
    assert stored["status"] == {"seenGPUs": 1}


def test_a_finalizer_holds_a_deleted_object(world: World, server: Server) -> None:
    body = a_gpu_node(world.name)
    body["metadata"]["finalizers"] = ["gpuward.io/test"]
    world.make(GPU_NODES, body)
    path = f"{GPU_NODES}/{world.name}"
    deleted = server.must("DELETE", path)["metadata"]
    assert deleted["deletionGracePeriodSeconds"] == 0 and deleted["deletionTimestamp"] and deleted["generation"] == 2
    more = {"metadata": {"finalizers": ["gpuward.io/test", "gpuward.io/more"]}}
    refused = server.ask(Ask(method="PATCH", path=path, body=more, kind=MERGE))
    why = "no new finalizers can be added if the object is being deleted, found new finalizers []string"
    assert refused.status == 422 and why in refused.body["message"]
    last = server.merge(path, {"metadata": {"finalizers": None}})
    assert last["kind"] == "GPUNode" and last["metadata"]["name"] == world.name
    assert server.ask(Ask(method="GET", path=path)).status == 404


def test_delete_answers_with_a_status_or_the_object(world: World, server: Server) -> None:
    made = world.gpu_node()
    answer = server.must("DELETE", f"{GPU_NODES}/{world.name}")
    uid = made["metadata"]["uid"]
    details = {"name": world.name, "group": "gpuward.io", "kind": "gpunodes", "uid": uid}
    assert (answer["kind"], answer["status"], answer["details"]) == ("Status", "Success", details)
    world.pod(running=False)
    gone = server.must("DELETE", f"{PODS}/{world.name}", {"gracePeriodSeconds": 0})
    assert gone["kind"] == "Pod" and gone["metadata"]["deletionGracePeriodSeconds"] == 0


@pytest.mark.parametrize(
    ("precondition", "message"),
    [
        pytest.param(
            {"uid": "abc"},
            "the UID in the precondition (abc) does not match the UID in record ({uid}). The object might have been "
            "deleted and then recreated",
            id="uid",
        ),
        pytest.param(
            {"resourceVersion": "1"},
            "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ({version}). "
            "The object might have been modified",
            id="version",
        ),
    ],
)
def test_a_delete_precondition_that_fails(precondition: Object, message: str, world: World, server: Server) -> None:
    made = world.gpu_node()
    answer = delete(server, f"{GPU_NODES}/{world.name}", {"preconditions": precondition})
    expected = message.format(uid=made["metadata"]["uid"], version=version(made))
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    assert answer.body["message"] == f'Operation cannot be fulfilled on GPUNode.gpuward.io "{world.name}": {expected}'


def delete(server: Server, path: str, options: Object) -> Answer:
    return server.ask(Ask(method="DELETE", path=path, body=options))


def test_a_dry_run_stores_nothing(world: World, server: Server) -> None:
    made = server.must("POST", f"{NODES}?dryRun=All", {"metadata": {"name": world.name}})
    assert made["metadata"]["name"] == world.name
    assert server.ask(Ask(method="GET", path=f"{NODES}/{world.name}")).status == 404


def test_put_creates_a_lease_but_not_a_node(world: World, server: Server) -> None:
    body = {"metadata": {"name": world.name}, "spec": {"holderIdentity": "a"}}
    world.forget_later(f"{LEASES}/{world.name}")
    assert server.ask(Ask(method="PUT", path=f"{LEASES}/{world.name}", body=body)).status == 201
    assert server.ask(Ask(method="PUT", path=f"{NODES}/{world.name}", body=body)).status == 404


def test_generate_name(world: World, server: Server) -> None:
    body = {"metadata": {"generateName": f"{world.name}-"}}
    name = server.must("POST", f"{CONFIG_MAPS}?dryRun=All", body)["metadata"]["name"]
    assert name.startswith(f"{world.name}-") and len(name) == len(world.name) + 6


def test_pages_are_one_consistent_list(world: World, server: Server) -> None:
    for place in range(5):
        world.make(CONFIG_MAPS, {"metadata": {"name": f"{world.name}-{place}", "labels": {"test": world.name}}})
    query = f"{CONFIG_MAPS}?labelSelector=test%3D{world.name}&limit=2"
    first = server.get(query)
    server.must("DELETE", f"{CONFIG_MAPS}/{world.name}-4")
    second = server.get(f"{query}&continue={first['metadata']['continue']}")
    third = server.get(f"{query}&continue={second['metadata']['continue']}")
    names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert names == [f"{world.name}-{place}" for place in range(5)]
    assert "continue" not in third["metadata"] and "remainingItemCount" not in first["metadata"]
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param("fieldSelector=status.phase%3DDraining,metadata.name%3D{n}", True, id="phase"),
        pytest.param("fieldSelector=status.phase%21%3DDraining,metadata.name%3D{n}", False, id="not phase"),
        pytest.param("fieldSelector=spec.nodeName%3D{n}", True, id="node"),
        pytest.param("labelSelector=test%3D{n}", True, id="label"),
        pytest.param("labelSelector=test+in+(x,{n})", True, id="in"),
        pytest.param("labelSelector=test%3D{n},test+notin+({n})", False, id="notin"),
        pytest.param("labelSelector=test%3D{n},!other", True, id="absent"),
        pytest.param("labelSelector=test%3D{n},other", False, id="present"),
        pytest.param("labelSelector=test%21%3D{n}&fieldSelector=metadata.name%3D{n}", False, id="not label"),
    ],
)
def test_selectors(selector: str, expected: bool, world: World, server: Server) -> None:
    body = an_incident(world.name, node=world.name)
    body["metadata"]["labels"] = {"test": world.name}
    world.make(INCIDENTS, body, {"phase": "Draining"})
    items = server.get(f"{INCIDENTS}?{selector.replace('{n}', world.name)}")["items"]
    assert [item["metadata"]["name"] for item in items] == [world.name] * expected


def test_pods_of_one_node(world: World, server: Server) -> None:
    world.pod()
    world.pod(suffix="-b", running=False)
    query = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{world.name}"
    # Without a version the list is consistent: what was written before is in it.
    assert [pod["metadata"]["name"] for pod in server.get(query)["items"]] == [world.name, f"{world.name}-b"]
    running = server.get(f"{query},status.phase%3DRunning")["items"]
    assert [pod["metadata"]["name"] for pod in running] == [world.name]


def test_a_list_names_its_kind_and_items_of_built_ins_do_not(world: World, server: Server) -> None:
    world.gpu_node()
    world.node()
    nodes, custom = server.get(NODES), server.get(GPU_NODES)
    assert (nodes["kind"], nodes["apiVersion"]) == ("NodeList", "v1")
    assert (custom["kind"], custom["apiVersion"]) == ("GPUNodeList", "gpuward.io/v1alpha1")
    assert "kind" not in nodes["items"][0] and custom["items"][0]["kind"] == "GPUNode"


def test_a_custom_table_has_the_columns_of_its_definition(world: World, server: Server) -> None:
    finding = {"severity": "critical", "scope": "gpu", "advice": "reboot-node"}
    findings = [finding | {"code": "xid-79"}, finding | {"code": "xid-48"}]
    gpus = [{"uuid": "GPU-a", "index": 0, "health": "Unhealthy", "findings": findings}]
    world.gpu_node({"health": "Unhealthy", "seenGPUs": 8, "gpus": gpus})
    table = server.ask(Ask(method="GET", path=f"{GPU_NODES}/{world.name}", accept=TABLE)).body
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == ["Name", "Health", "GPUs", "Expected", "Fault", "Age", "Driver"]
    row = dict(zip(names, table["rows"][0]["cells"], strict=True))
    age = row.pop("Age")
    assert age.endswith("s")
    wanted = {"Name": world.name, "Health": "Unhealthy", "GPUs": 8, "Expected": None, "Fault": "xid-79", "Driver": None}
    assert row == wanted
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize(
    ("conditions", "unschedulable", "word"),
    [
        pytest.param([READY], False, "Ready", id="ready"),
        pytest.param([READY | {"status": "False"}], False, "NotReady", id="not ready"),
        pytest.param([READY], True, "Ready,SchedulingDisabled", id="cordoned"),
    ],
)
def test_the_status_column_of_a_node(
    conditions: list[Object], unschedulable: bool, word: str, world: World, server: Server
) -> None:
    world.node(conditions=conditions)
    path = f"{NODES}/{world.name}"
    server.merge(path, {"spec": {"unschedulable": unschedulable or None}})
    table = server.ask(Ask(method="GET", path=path, accept=TABLE)).body
    assert [column["name"] for column in table["columnDefinitions"]][:5] == [
        "Name", "Status", "Roles", "Age", "Version",
    ]  # fmt: skip
    assert table["rows"][0]["cells"][:3] == [world.name, word, "<none>"]


def test_the_table_of_a_pod(world: World, server: Server) -> None:
    world.pod()
    table = server.ask(Ask(method="GET", path=f"{PODS}/{world.name}", accept=TABLE)).body
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    row: dict[str, Any] = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Ready"], row["Status"]) == (world.name, "0/1", "Running")
    assert row["Node"] == world.name


def test_metadata_alone(world: World, server: Server) -> None:
    made = world.gpu_node()
    found = server.ask(Ask(method="GET", path=f"{GPU_NODES}/{world.name}", accept=PARTIAL)).body
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert found["metadata"]["uid"] == made["metadata"]["uid"] and "status" not in found


def test_dependents_go_with_their_owner(world: World, server: Server) -> None:
    node = world.node()
    reference = {"apiVersion": "v1", "kind": "Node", "name": world.name, "uid": node["metadata"]["uid"]}
    body = a_gpu_node(world.name)
    body["metadata"]["ownerReferences"] = [reference]
    world.make(GPU_NODES, body)
    server.must("DELETE", f"{NODES}/{world.name}")

    def gone() -> bool:
        return server.ask(Ask(method="GET", path=f"{GPU_NODES}/{world.name}")).status == 404

    # The real collector finds new custom kinds only every 30 s.
    eventually("the GPUNode is gone", gone, 60.0)


def test_a_deleted_namespace_takes_its_contents_along(world: World, server: Server) -> None:
    world.make("/api/v1/namespaces", {"metadata": {"name": world.name}})
    inside = f"/api/v1/namespaces/{world.name}/configmaps"
    server.must("POST", inside, {"metadata": {"name": "a"}})
    deleted = server.must("DELETE", f"/api/v1/namespaces/{world.name}")
    assert deleted["kind"] == "Namespace" and deleted["status"]["phase"] == "Terminating"

    def gone() -> bool:
        return server.ask(Ask(method="GET", path=f"/api/v1/namespaces/{world.name}")).status == 404

    eventually("the namespace is gone", gone, 30.0)


def test_a_fresh_pod(world: World) -> None:
    pod = world.make(PODS, a_pod(world.name, priorityClassName="system-node-critical", schedulerName="nobody"))
    assert (pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (2_000_001_000, "PreemptLowerPriority")
    assert [t["tolerationSeconds"] for t in pod["spec"]["tolerations"]] == [300, 300]
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
