"""Two real nodes on a real control plane; one such rig at a time on a machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.rig import cgroups
from tests.rig.audit import Audit
from tests.rig.control_plane import ControlPlane
from tests.rig.node import Node
from tests.rig.waiting import eventually
from tests.rig.workfolder import cache, locked, work_folder

READY_SECONDS = 90.0


class Cluster(NamedTuple):
    plane: ControlPlane
    nodes: tuple[Node, ...]
    audit: Audit

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def await_ready(self, seconds: float = READY_SECONDS) -> None:
        """Return when every node is Ready and offers its devices."""
        for node in self.nodes:
            try:
                eventually(f"node {node.name} is Ready with its devices", node.ready, seconds)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{node.log('kubelet')}") from error


@contextmanager
def cluster(hardware: dict[str, tuple[str, int]]) -> Iterator[Cluster]:
    """Run one node per entry of `hardware` (name -> GPU profile and count), all Ready when this yields."""
    # Device plugin folder and run folder are each node's own; two rigs at once would still starve each other of CPU,
    # and the control groups of a crashed run can only be told from living ones by holding this lock.
    with locked(cache() / "nodes-running.lock"), work_folder("n") as folder:
        cgroups.remove_leftovers()
        audit = Audit(folder)
        with ControlPlane(controllers="full", flags=audit.flags()) as plane:
            nodes = tuple(Node(plane, name, folder / name, gpus) for name, gpus in hardware.items())
            try:
                for node in nodes:
                    node.boot()
                running = Cluster(plane, nodes, audit)
                running.await_ready()
                yield running
            finally:
                for node in nodes:
                    node.power_off()
