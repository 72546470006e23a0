"""A control group per simulated machine, in every hierarchy, so that two kubelets do not fight over one tree."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "gpuward-rig-"


def hierarchies() -> list[Path]:
    """Return the mount point of every control group hierarchy of this machine, v1 and v2."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in mounts if fields[2] in {"cgroup", "cgroup2"}]


def create(name: str) -> None:
    """Make group `name` in every hierarchy; an empty cpuset runs nothing, so it gets what its parent has."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (group / setting).exists() and (hierarchy / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())
        controllers = hierarchy / "cgroup.controllers"
        if controllers.exists():
            for controller in controllers.read_text().split():
                for place in (hierarchy, group):
                    with suppress(OSError):
                        (place / "cgroup.subtree_control").write_text(f"+{controller}")


def remove(name: str) -> None:
    """Remove group `name` and those below it; processes must be gone, a group that has some stays."""
    for hierarchy in hierarchies():
        for group in _deepest_first(hierarchy / name):
            with suppress(OSError):
                group.rmdir()


def remove_leftovers() -> None:
    """Remove the groups of earlier runs; only for the one who holds the lock of the nodes rig."""
    for name in {group.name for hierarchy in hierarchies() for group in hierarchy.glob(f"{PREFIX}*")}:
        remove(name)


def _deepest_first(group: Path) -> Iterator[Path]:
    if not group.is_dir():
        return
    for child in group.iterdir():
        if child.is_dir():
            yield from _deepest_first(child)
    yield group
