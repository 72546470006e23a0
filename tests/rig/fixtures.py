"""Fixtures of the rigs, loaded by tests/conftest.py as a plugin.

`real_control_plane` is shared by all tests of a process: use names of your own and remove cluster-wide objects.
"""

import shutil
from collections.abc import Iterator

import pytest

from tests.rig import binaries
from tests.rig.control_plane import ControlPlane
from tests.rig.require import require_rig

RIG_FIXTURES = {"real_control_plane"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if RIG_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.rig)
            # One control plane a run is enough, and two cores carry no second one (with --dist loadgroup).
            item.add_marker(pytest.mark.xdist_group("rig"))


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
