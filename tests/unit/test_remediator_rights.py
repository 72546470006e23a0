"""The shipped rights of the remediator are those that a whole story uses: none is missing, none is too many."""

from pathlib import Path

import yaml

from exporter.health import keys
from remediator.cli_program import Program
from remediator.settings import Settings
from remediator.simulation.calls import Call, Reply
from remediator.simulation.cluster import EmbeddedCluster
from tests.fakes.world import World, eventually

MANIFEST = Path(__file__).parents[2] / "deploy" / "manifests" / "40-remediator-rbac.yaml"
JOB = "{spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'x:1'}]}}}}"
POLICY = f"""
rules:
- name: lost
  mode: enforce
  faults: [xid-79]
  playbook:
    repair: [{{job: {JOB}, needs: gpu, proof: boot-id}}]
    validate: {{job: {JOB}}}
    probationSeconds: 0
"""
VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
SELDOM = {
    *((resource, "list") for resource in ("gpunodes", "leases", "jobs")),  # where a server streams no initial state
    ("events", "patch"),  # an Event that is told again
}


def right(call: Call) -> tuple[str, str]:
    """Resource (with its subresource) and verb of a request, as RBAC names them."""
    parts = call.path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    resource = "/".join((rest[0], *rest[2:3]))
    if call.method == "GET":
        return resource, "watch" if call.flag("watch") else "get" if len(rest) > 1 else "list"
    return resource, VERBS[call.method]


def granted() -> set[tuple[str, str]]:
    rules = [rule for each in yaml.safe_load_all(MANIFEST.read_text()) for rule in each.get("rules", ())]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def test_the_rights_are_those_that_a_story_uses(tmp_path: Path) -> None:
    used: set[tuple[str, str]] = set()

    def note(call: Call) -> Reply | None:
        if call.headers.get("user-agent", "").startswith("gpu-remediator"):
            used.add(right(call))
        return None

    (tmp_path / "policy.yaml").write_text(POLICY)
    with EmbeddedCluster() as cluster:
        cluster.intercept(note)
        world = World(cluster)
        for name in ("n1", "n2"):
            world.add_node(name)
        world.add_pod("n1", 0)
        world.start()
        settings = Settings(
            config_file=tmp_path / "policy.yaml",
            kube_api_server=cluster.url,
            web_listen_address="127.0.0.1:0",
            identity="a",
            incidents_keep_count=0,
        )
        program = Program(settings, "test")
        program.start()
        try:
            world.fault("n1", 0)
            eventually(lambda: [i for i in world.incidents() if i["status"].get("closedAt")], 30, "closed")
            eventually(lambda: ("jobs", "delete") in used, what="its Jobs are deleted")
            eventually(lambda: not program.observer.facts().incidents[0].open)
            program.sweeps.housekeeping()
        finally:
            program.stop()
            world.stop()
    assert used - granted() == set(), "not allowed by the manifest"
    assert granted() - used - SELDOM == set(), "more than is needed"
    assert ("pods", "delete") not in used and keys.GPU_INCIDENTS in {resource for resource, _ in used}
