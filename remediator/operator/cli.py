"""`gpuward`, also installed as `kubectl-gpuward`: the operator's tool. One subcommand per file, listed here."""

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from remediator.operator import inject
from remediator.operator.demo import command as demo


class Subcommand(Protocol):
    """What a subcommand module offers."""

    def add_parser(self, subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        """Declare its arguments; `set_defaults(run=...)` names the function that gets them."""


COMMANDS: tuple[Subcommand, ...] = (demo, inject)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="gpuward", description="See, explain and try out GPU remediation.")
    subparsers = top.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 = done, 1 = failed, 2 = wrong usage."""
    arguments = parser().parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
