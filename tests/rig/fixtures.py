"""Fixtures of the rigs, loaded by tests/conftest.py as a plugin.

`real_control_plane` and `two_nodes` are shared by all tests of a process: use names of your own, remove cluster-wide
objects, leave nodes Ready.
"""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.rig import binaries
from tests.rig.control_plane import ControlPlane
from tests.rig.require import require_rig

if TYPE_CHECKING:
    from tests.rig.nodes import Cluster

RIG_FIXTURES = {"real_control_plane", "two_nodes"}
NODE_PROGRAMS = ("containerd", "ctr", "runc", "unshare", "mount", "openssl")
NODES = ("node-a", "node-b")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if RIG_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.rig)
            # One control plane a run is enough, and two cores carry no second one (with --dist loadgroup).
            item.add_marker(pytest.mark.xdist_group("rig"))
        if "two_nodes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.nodes)
            item.add_marker(pytest.mark.slow)


def require_control_plane() -> None:
    """Skip or fail unless the control plane can be started here."""
    lacking = binaries.missing(binaries.CONTROL_PLANE)
    if lacking:
        require_rig(f"real control plane: {', '.join(lacking)} not built (run: make rig)")
    if shutil.which("openssl") is None:
        require_rig("real control plane: openssl is not on PATH")


@pytest.fixture(scope="session")
def real_control_plane() -> Iterator[ControlPlane]:
    """A real API server with the lean controllers and the scheduler; ready in about five seconds."""
    require_control_plane()
    with ControlPlane(controllers="lean") as plane:
        yield plane


def require_nodes() -> None:
    """Skip or fail unless real nodes can be started here."""
    require_control_plane()
    if os.geteuid() != 0:
        require_rig("real nodes: need root (mounts, control groups)")
    for program in NODE_PROGRAMS:
        if shutil.which(program) is None:
            require_rig(f"real nodes: {program} is not on PATH (Debian packages containerd, runc, util-linux, mount)")
    lacking = binaries.missing(binaries.NODE)
    if lacking:
        require_rig(f"real nodes: {', '.join(lacking)} not built (run: make rig)")


@pytest.fixture(scope="session")
def two_nodes() -> "Iterator[Cluster]":
    """Nodes `node-a` and `node-b`, each with the four GPUs of `--simulate h100x4`, and all controllers."""
    from tests.rig.nodes import cluster  # only here: it needs our simulator, and a plugin must load whatever is broken

    require_nodes()
    with cluster(dict.fromkeys(NODES, ("h100", 4))) as nodes:
        yield nodes
