"""Child processes of a rig: each with its log file, each ended with its parent, none found by name."""

import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes the port between choice and use.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on right now."""
    for _ in range(1000):
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port between 20000 and 32000")


def dies_with_parent(command: Sequence[str]) -> list[str]:
    """Wrap `command` so that the kernel kills it when the starting thread ends, however that ends (needs setpriv)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "SIGKILL", "--", *command] if setpriv else [*command]


class Process:
    """One running child; its output goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.command = list(command)
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                dies_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,  # Ctrl-C in a terminal must reach the owner only: the order of stopping matters
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def running(self) -> bool:
        return self._child.poll() is None

    def wait(self, seconds: float) -> int:
        """Return the exit status; subprocess.TimeoutExpired when it lives on."""
        return self._child.wait(seconds)

    def send(self, number: signal.Signals) -> None:
        if self.running():
            self._child.send_signal(number)

    def stop(self, seconds: float = 10.0) -> int:
        """Ask with SIGTERM, insist with SIGKILL after `seconds`; return the exit status."""
        self.send(signal.SIGTERM)
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        self.send(signal.SIGKILL)
        return self._child.wait()

    def tail(self, lines: int = 20) -> str:
        """Return the end of the log, for error messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def check_running(self) -> None:
        """AssertionError with the end of the log when the process is gone."""
        if not self.running():
            raise ProcessGone(f"{self.command[0]} ended with {self._child.returncode}:\n{self.tail()}")


class ProcessGone(RuntimeError):
    """A process of the rig ended although nobody asked it to."""
