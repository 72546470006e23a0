"""The parent's end of one NVML worker: starting it, reading what it says, ending it without ever waiting for long."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from exporter.messages import BrokenStream, Decoder, Message, WorkerSettings

# SIGTERM ends a worker at once unless it is inside the kernel; SIGKILL then gets the same short while. Whoever is not
# gone by then sits in an uninterruptible driver call and is left behind.
TERM_GRACE_SECONDS = 0.2
KILL_GRACE_SECONDS = 0.5
# The kernel closes the pipe of a process that dies a moment before it can be reaped.
DEATH_SECONDS = 0.2
PIPE_READ_BYTES = 1 << 16
PACKAGE_PARENT = Path(__file__).resolve().parents[1]


class WorkerProcess:
    """One running worker. Not thread-safe: the sampler's thread owns it.

    The thread that starts a worker must outlive it: the kernel's parent-death signal is tied to the starting thread.
    """

    def __init__(self, settings: WorkerSettings, started: float) -> None:
        self.settings = settings
        self.started = started
        self.last_words: list[Message] = []
        """What was still in the pipe when it was ended: an Xid among it must not be lost."""
        self._decoder = Decoder()
        self.descriptor, child_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "exporter.worker", str(child_end)],
                stdin=subprocess.PIPE,
                pass_fds=(child_end,),
                env=_environment(),
            )
        except OSError:
            os.close(self.descriptor)
            raise
        finally:
            os.close(child_end)
        os.set_blocking(self.descriptor, False)
        self._tell_settings()

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def receive(self) -> list[Message] | None:
        """What the worker has said since the last call; None = it has closed its end. Raises `BrokenStream`."""
        messages: list[Message] = []
        while True:
            try:
                piece = os.read(self.descriptor, PIPE_READ_BYTES)
            except BlockingIOError:
                return messages
            if not piece:
                return messages or None
            messages += self._decoder.feed(piece)

    def state(self) -> str:
        """The kernel's one letter for the worker's main thread (`R`, `S`, `D`, `T`...); `X` = no such process."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return "X"
        # The name before it is in parentheses and may itself contain anything.
        return status.rpartition(")")[2].split()[0]

    def end(self) -> bool:
        """End the worker now; True = it is gone, False = it could not be reaped in time (see `is_gone`)."""
        gone = self._kill()
        try:
            self.last_words = self.receive() or []
        except BrokenStream:
            pass  # it was ended in the middle of a message, or for this very reason
        self._close()
        return gone

    def is_gone(self) -> bool:
        """Whether the process has ended (and is reaped by asking)."""
        return self._process.poll() is not None

    def exit_sentence(self) -> str:
        """How it ended, for a human."""
        try:
            code = self._process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its pipe and still runs"
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"

    def _kill(self) -> bool:
        for number, grace in ((signal.SIGTERM, TERM_GRACE_SECONDS), (signal.SIGKILL, KILL_GRACE_SECONDS)):
            # A stopped process takes SIGTERM only when it is continued; SIGKILL takes it as it is.
            self._process.send_signal(number)
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                continue
            return True
        return False

    def _tell_settings(self) -> None:
        line = json.dumps(self.settings.to_json()).encode() + b"\n"
        stdin = self._process.stdin
        if stdin is None:  # Popen was asked for a pipe; this is for the type checker
            return
        try:
            # Shorter than a pipe's buffer, so this cannot block on a worker that is slow to start.
            os.write(stdin.fileno(), line)
        except BrokenPipeError:
            pass  # it died at once; its closed pipe will say so

    def _close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self._process.stdin is not None:
            self._process.stdin.close()


def _environment() -> dict[str, str]:
    """Ours, plus the place of this package: with -P the working directory is not searched for modules."""
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(PACKAGE_PARENT), inherited)))}
