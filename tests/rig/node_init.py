"""Process 1 of a simulated machine: own mounts, own processes; when it ends, the kernel ends all that ran in it.

Runs as `python -I node_init.py SPEC` inside new mount and pid namespaces. SPEC is a JSON file: `mounts` (arguments for
mount), `services` (name -> command and log). Commands arrive as lines on stdin (`start`, `stop` or `kill` and a name),
each answered by one line. The end of stdin is the power switch. Standard library only, nothing of the project.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

REAP_SECONDS = 0.05
STOP_SECONDS = 10.0


class Machine:
    """The services of one machine by name; orphans are reaped in passing, as process 1 must."""

    def __init__(self, services: dict[str, dict[str, object]]) -> None:
        self._services = services
        self._running: dict[str, int] = {}

    def start(self, name: str) -> str:
        command, log = self._services[name]["command"], self._services[name]["log"]
        assert isinstance(command, list) and isinstance(log, str)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        os.close(output)
        self._running[name] = child.pid
        child.returncode = 0  # reap() waits for every child; Popen must not wait, or warn, on its own
        return str(child.pid)

    def stop(self, name: str) -> str:
        return self._end(name, signal.SIGTERM)

    def kill(self, name: str) -> str:
        return self._end(name, signal.SIGKILL)

    def reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._running = {name: running for name, running in self._running.items() if running != pid}

    def _end(self, name: str, number: signal.Signals) -> str:
        pid = self._running.get(name)
        if pid is None:
            return "not running"
        os.kill(pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while self._running.get(name) == pid:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(REAP_SECONDS)
            self.reap()
        return "ended"


def serve(machine: Machine) -> None:
    commands: dict[str, Callable[[str], str]] = {"start": machine.start, "stop": machine.stop, "kill": machine.kill}
    pending = b""
    while True:
        machine.reap()
        ready, _, _ = select.select([0], [], [], REAP_SECONDS)
        if not ready:
            continue
        chunk = os.read(0, 4096)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            verb, name = line.decode().split()
            print("ok", commands[verb](name), flush=True)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    for arguments in spec["mounts"]:
        subprocess.run(["mount", *arguments], check=True)
    print("ok booted", flush=True)
    serve(Machine(spec["services"]))


if __name__ == "__main__":
    main()
