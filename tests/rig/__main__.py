"""`python -m tests.rig build` fills the cache; `... up` runs a control plane until SIGTERM or the end of stdin."""

import argparse
import os
import select
import shutil
import signal
import sys
from pathlib import Path

from tests.rig import binaries
from tests.rig.control_plane import CONTROLLERS, ControlPlane
from tests.rig.workfolder import cache


def up(arguments: argparse.Namespace) -> None:
    binaries.build(binaries.CONTROL_PLANE)
    alarm_read, alarm_write = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(alarm_write, b"x") and None)
    with ControlPlane(controllers=arguments.controllers, scheduler=not arguments.no_scheduler) as plane:
        try:
            if arguments.kubeconfig:
                shutil.copy(plane.kubeconfig, arguments.kubeconfig)
            print(f"READY {plane.url} {arguments.kubeconfig or plane.kubeconfig}", flush=True)
            _wait(alarm_read)
        finally:
            if arguments.kubeconfig:
                arguments.kubeconfig.unlink(missing_ok=True)


def _wait(alarm: int) -> None:
    """Return on a signal or when stdin ends; a terminal or file as stdin is read and ignored."""
    sources = [alarm, sys.stdin.fileno()]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if alarm in ready or not os.read(sys.stdin.fileno(), 4096):
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.rig", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the rig's programs into the user cache (about 6 minutes, once)")
    run = commands.add_parser("up", help="run a real control plane; prints READY URL KUBECONFIG")
    run.add_argument("--kubeconfig", type=Path, help="write the admin kubeconfig here; removed at the end")
    run.add_argument("--controllers", default="full", help=f"{', '.join(CONTROLLERS)}, or a controller list")
    run.add_argument("--no-scheduler", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "build":
        binaries.build()
        print(f"the rig's programs are in {cache()}")
    else:
        up(arguments)


if __name__ == "__main__":
    main()
