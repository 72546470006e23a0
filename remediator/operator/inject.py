"""`gpuward inject`: break, heal, reset or reboot a simulated node while it runs, from any other process."""

import argparse
import sys
from pathlib import Path

from exporter.simulation import location, state
from exporter.simulation.state import FAULTS


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "inject",
        help="put a fault on a simulated GPU",
        description="Put a fault on a GPU of a node that runs with --simulate (or in `gpuward demo`).",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fault", metavar="FAULT", help="for example xid:79; see --list")
    what.add_argument("--reset", action="store_true", help="reset the GPU, as nvidia-smi --gpu-reset does")
    what.add_argument("--reboot", action="store_true", help="reboot the node: a new boot id")
    what.add_argument("--list", action="store_true", help="list the faults, one line each")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--node", help="name of the simulated node")
    where.add_argument("--state-file", type=Path, help="its state file, when it was started with one of its own")
    parser.add_argument("--gpu", type=int, metavar="INDEX", help="index of the GPU; default: all of the node")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do it; 0 = done, 2 = it cannot be done and nothing changed."""
    if arguments.list:
        width = max(map(len, FAULTS))
        for fault, meaning in FAULTS.items():
            print(f"{fault:<{width}}  {meaning}")
        return 0
    try:
        print(_inject(arguments))
    except (ValueError, OSError, state.ResetRefused) as error:
        print(f"gpuward inject: {error}", file=sys.stderr)
        return 2
    return 0


def _inject(arguments: argparse.Namespace) -> str:
    path = _state_file(arguments)
    if arguments.reboot:
        return f"{path.stem}: rebooted, boot id {state.reboot(path).boot_id}"
    if arguments.reset:
        if arguments.gpu is None:
            raise ValueError("--reset needs --gpu INDEX")
        state.reset_gpu(path, arguments.gpu)
        return f"{path.stem}: GPU {arguments.gpu} reset"
    state.inject(path, arguments.gpu, arguments.fault)
    target = "all GPUs" if arguments.gpu is None else f"GPU {arguments.gpu}"
    return f"{path.stem}: {arguments.fault} on {target}"


def _state_file(arguments: argparse.Namespace) -> Path:
    path: Path | None = arguments.state_file
    if path is None:
        known = location.nodes()
        node: str | None = arguments.node or (known[0] if len(known) == 1 else None)
        if node is None:
            raise ValueError(
                f"say which node with --node or --state-file; simulated nodes: {', '.join(known) or 'none'}"
            )
        path = location.state_path(node)
    if not path.exists():
        known_nodes = ", ".join(location.nodes()) or "none"
        raise ValueError(f"no simulated node at {path}; simulated nodes: {known_nodes}")
    return path
