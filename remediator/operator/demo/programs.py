"""Our own programs as child processes: each with its log file, each ended with the demo."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

STOP_SECONDS = 8.0


class ProgramEnded(RuntimeError):
    """A program ended that should run; the message ends with the last lines of its log."""


def free_address() -> str:
    """A loopback address nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def program(name: str) -> list[str]:
    """The command that starts one of our console scripts: the one installed beside this Python."""
    return [str(Path(sys.executable).with_name(name))]


class Program:
    """One running child."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self._name = Path(command[0]).name
        # The kernel ends the child with us even when we are killed; where setpriv is missing, stop() has to do.
        setpriv = shutil.which("setpriv")
        leash = [setpriv, "--pdeathsig", "SIGKILL", "--"] if setpriv else []
        with log.open("ab") as output:
            # A session of its own: Ctrl-C reaches the demo only, which then ends everything in order.
            self._child = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise `ProgramEnded` when it does not run any more."""
        status = self._child.poll()
        if status is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
            raise ProgramEnded(f"{self._name} ended with status {status}; {self.log} says:\n{tail}")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; may be called twice."""
        self._child.terminate()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
