"""The stage of the end-to-end stories, shared by all of them: starting it costs more than any of them."""

from collections.abc import Iterator

import pytest

from tests.rig.nodes import Cluster
from tests.rig.prometheus import require_prometheus
from tests.rig.stage import Stage


@pytest.fixture(scope="session")
def stage(two_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two nodes, an exporter each, and Prometheus with our rules."""
    require_prometheus()
    with Stage(two_nodes, tmp_path_factory.mktemp("stage")) as running:
        yield running
