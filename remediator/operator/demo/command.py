"""`gpuward demo`: set the stage, tell the story, leave the stage open for a look around."""

import argparse
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from remediator.operator.demo.nodes import GPUS
from remediator.operator.demo.programs import ProgramEnded
from remediator.operator.demo.stage import NODES, OPT_OUT_REASON, OPTED_OUT, Stage
from remediator.operator.demo.story import Narrator, NotSeenError, Story

STORY_SECONDS = 90.0
"""What the story may take once the stage is set; longer counts as a failure with --once."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "demo",
        help="a GPU fault that heals itself before your eyes",
        description="Three nodes of 8 simulated H100, the exporters, the remediator, some workloads, and a fault.",
    )
    parser.add_argument("--once", action="store_true", help="end after the story; status 0 only if all of it was seen")
    parser.add_argument(
        "--cluster",
        choices=("embedded", "real"),
        default="embedded",
        help="embedded = API server in this process (default); real = kube-apiserver and etcd, built by `make rig`",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Play it; 0 = everything was seen (or Ctrl-C afterwards), 1 = something was not."""
    leave = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leave.set())
    say("gpuward demo: a GPU fault that heals itself. Everything runs on this machine and ends with it.")
    with tempfile.TemporaryDirectory(prefix="gpuward-demo-") as folder:
        stage = Stage(Path(folder), real=arguments.cluster == "real")
        try:
            stage.start()
            status = play(stage, leave)
            if not arguments.once and not leave.is_set():
                look_around(stage)
                leave.wait()
        except (ProgramEnded, OSError) as error:
            say(f"demo: {error}")
            status = 1
        finally:
            stage.stop()
    return status


def play(stage: Stage, leave: threading.Event) -> int:
    """The whole story; 0 = every step was seen."""
    story = Story(stage.eyes, Narrator(say=say, leave=leave), stage.inject)
    began = time.monotonic()
    try:
        story.opening(NODES, GPUS)
        story.healing(NODES[0])
        story.opted_out(OPTED_OUT, OPT_OUT_REASON)
    except NotSeenError as missed:
        say(f"\nNOT SEEN: {missed}")
        say(stage.evidence())
        return 1
    took = time.monotonic() - began
    say(f"\nThe story took {took:.0f} s; every step was seen in the API and in /metrics.")
    return 0 if took <= STORY_SECONDS else 1


def look_around(stage: Stage) -> None:
    """Say where to look and what to try."""
    say("\nLook around (Ctrl-C ends the demo):")
    for line in stage.directions():
        say(f"  {line}")


def say(text: str) -> None:
    """One line to the reader, at once."""
    print(text, flush=True, file=sys.stdout)
