"""The node that an exporter watches: this machine, or a simulated one in a file."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from exporter.health.vocabulary import BootId
from exporter.logs import fields
from exporter.readers.host import BOOT_ID_PATH, HostUnreadable, read_boot_id
from exporter.readers.kmsg import BootClock
from exporter.settings import Settings
from exporter.settings_options import SettingsError

log = logging.getLogger(__name__)

KMSG_PATH: Final = Path("/dev/kmsg")
STATE_FILE: Final = Path("/var/lib/gpuward/exporter-state.json")


@dataclass(frozen=True, kw_only=True)
class Node:
    """Where the facts about one node are."""

    clock: Callable[[], BootClock]
    """Boot id and time of boot; raises OSError or ValueError."""
    kmsg_path: Path
    state_file: Path
    boot_id_path: Path
    simulate_state_path: Path | None
    """State file of a simulated node; None = this machine."""
    temporary: bool = False
    """A simulated node that nobody asked to keep: its files go with us."""

    def leave(self) -> None:
        """Remove what is temporary."""
        if self.temporary and self.simulate_state_path is not None:
            path = self.simulate_state_path
            for leftover in path.parent.glob(f"{path.name}*"):
                leftover.unlink(missing_ok=True)


def real_node(chosen: Settings) -> Node:
    """This machine."""
    boot_id_path = chosen.boot_id_path or BOOT_ID_PATH

    def clock() -> BootClock:
        # Uptime is read with the wall clock: a clock that is set later moves both.
        up = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
        try:
            return BootClock(boot_id=read_boot_id(boot_id_path), booted_at=datetime.now(UTC) - up)
        except HostUnreadable as failed:
            raise OSError(str(failed)) from failed

    return Node(
        clock=clock,
        kmsg_path=chosen.kmsg_path or KMSG_PATH,
        state_file=chosen.state_file or STATE_FILE,
        boot_id_path=boot_id_path,
        simulate_state_path=None,
    )


def simulated_node(chosen: Settings) -> Node:
    """The simulated node in its state file; a named file that fits is used as it is, everything else is made anew."""
    # Imported here only: production never pays for the simulator.
    from exporter.simulation import location, state

    if chosen.simulate is None:
        raise ValueError("settings without a simulation")
    profile, count = chosen.simulate
    # `--once` beside an exporter that simulates a node of that name must not boot or remove the other's.
    name = f"{chosen.node}.once-{os.getpid()}" if chosen.once else chosen.node
    path = chosen.simulate_state_file or location.state_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if chosen.simulate_state_file is None or not _fits(path, profile, count):
            state.create(path, profile, count, chosen.node)
    except ValueError as wrong:
        raise SettingsError(f"--simulate: {wrong}") from wrong
    except OSError as failed:
        raise SettingsError(f"--simulate.state-file: {failed}; allowed: a file that we may write") from failed
    log.info("simulated node", extra=fields(node=chosen.node, profile=profile, gpus=count, state_file=path))
    return Node(
        clock=_SimulatedClock(path),
        kmsg_path=chosen.kmsg_path or state.kmsg_path(path),
        state_file=chosen.state_file or path.with_name(f"{path.name}.exporter"),
        boot_id_path=chosen.boot_id_path or BOOT_ID_PATH,
        simulate_state_path=path,
        temporary=chosen.simulate_state_file is None,
    )


def _fits(path: Path, profile: str, count: int) -> bool:
    from exporter.simulation import state

    try:
        known = state.load(path)
    except (OSError, state.StateError):
        return False
    return known.profile.name == profile and len(known.gpus) == count


class _SimulatedClock:
    """Boot id and time of a simulated node, read again only when its file changed: it is asked four times a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._boot: BootClock | None = None

    def __call__(self) -> BootClock:
        from exporter.simulation import state

        changed = os.stat(self._path).st_mtime_ns
        if self._boot is None or changed != self._changed:
            known = state.load(self._path)
            booted_at = datetime.fromtimestamp(known.boot_at, UTC)
            self._boot, self._changed = BootClock(boot_id=BootId(known.boot_id), booted_at=booted_at), changed
        return self._boot
