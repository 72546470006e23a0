"""The two servers under contract."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from remediator.simulation.cluster import EmbeddedCluster, Fleet, crd_manifests
from remediator.simulation.http import Behaviour
from tests.contract.api.asking import Ask, Server
from tests.contract.api.world import GPU_NODES, World, eventually

# The group and the mark that tests/rig gives to every test that uses its fixture.
REAL = pytest.param("real", marks=[pytest.mark.rig, pytest.mark.xdist_group("rig")])
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TOKEN = "admin-token"


@pytest.fixture(scope="session", params=["embedded", REAL])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    yield from serve(request, {TOKEN: "admin"})


def serve(request: pytest.FixtureRequest, tokens: Mapping[str, str] | None) -> Iterator[Server]:
    """The server that the parameter names, with our definitions."""
    if request.param == "embedded":
        behaviour = Behaviour(eviction_floor_seconds=0.1)
        with EmbeddedCluster(tokens=tokens, behaviour=behaviour, fleet=Fleet()) as cluster:
            found = Server("embedded", cluster.url, None, TOKEN)
            yield found
            found.close()
        return
    # Any: the rig's ControlPlane, asked for by name so that the embedded half runs where the rig is missing.
    plane: Any = request.getfixturevalue("real_control_plane")
    found = Server("real", plane.url, plane.ca_file, plane.admin_token)
    for manifest in crd_manifests():
        found.ask(Ask(method="POST", path=DEFINITIONS, body=manifest))
    eventually("GPUNodes are served", lambda: found.ask(Ask(method="GET", path=GPU_NODES)).status == 200)
    yield found
    found.close()


@pytest.fixture
def world(server: Server) -> Iterator[World]:
    made = World(server)
    yield made
    made.clean_up()
