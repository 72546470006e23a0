"""A `gpu-exporter` process over a simulated node of its own: met by flags, HTTP, files and signals only."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import urllib3
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from exporter.simulation import state
from tests.rig.processes import Process, free_port
from tests.rig.waiting import eventually

PROGRAM = str(Path(sys.executable).with_name("gpu-exporter"))
START_SECONDS = 30.0
POLL_SECONDS = 0.05
LEFT_BEHIND = {"node.json", "node.json.kmsg", "node.json.lock", "state.json", "exporter.log", "temporary"}
"""What may lie in the folder afterwards: the node's hardware, what outlives a restart, the log."""
OF_TESTS = {"kubelet.sock", "state.json.corrupt", "kmsg", "other"}
"""What a test may have asked for or put there itself."""


class Page:
    """One exposition, parsed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def series(self, name: str, **labels: str) -> list[Sample]:
        """Return every series of `name` with at least these labels."""
        return [each for each in self.samples if each.name == name and labels.items() <= each.labels.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the only such series, None when there is none; AssertionError when there are several."""
        found = self.series(name, **labels)
        assert len(found) < 2, f"{name} {labels} is not one series: {found}"
        return found[0].value if found else None

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the values of the series of `name` by one label."""
        return {each.labels[label]: each.value for each in self.series(name, **labels)}

    def of_gpu(self, uuid: str) -> set[str]:
        """Return the names of all device series of one GPU."""
        return {each.name for each in self.samples if each.labels.get("gpu") == uuid and each.name.startswith("gpu_")}

    def states(self, name: str, **labels: str) -> set[str]:
        """Return the states of `name` that hold."""
        return {each.labels["state"] for each in self.series(name, **labels) if each.value == 1}


class Exporter:
    """Runs while the `with` block does; ends with status 0 and leaves no process and no unknown file behind."""

    def __init__(
        self, folder: Path, *flags: str, simulate: str | None = "h100x8", interval: float = 0.5, node: str = "n1"
    ) -> None:
        self.folder = folder
        self.node = node
        self.silicon = folder / "node.json"
        self.state_file = folder / "state.json"
        self.kubelet_socket = folder / "kubelet.sock"
        self.simulate = simulate
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        hardware = ["--simulate", simulate, "--simulate.state-file", str(self.silicon)] if simulate else []
        self._command = [
            *(PROGRAM, *hardware, "--node.name", node, "--web.listen-address", f"127.0.0.1:{port}"),
            *("--interval", str(interval), "--kubelet.pod-resources-socket", str(self.kubelet_socket)),
            *("--state.file", str(self.state_file), *flags),
        ]
        self._process: Process | None = None
        self._http = urllib3.PoolManager(maxsize=4, timeout=5.0, retries=False)

    def __enter__(self) -> Self:
        self.start()
        eventually("the exporter is ready", self.ready, START_SECONDS, POLL_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        status = self.stop()
        self._http.clear()
        if error is None:
            assert status == 0, f"exit status {status}: {self.log()}"

    def start(self) -> None:
        """Start the process; returns before it answers."""
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        self._process = Process(self._command, self.folder / "exporter.log", {"TMPDIR": str(temporary)})

    def stop(self, seconds: float = 10.0) -> int:
        """Ask it to end, see that nothing is left, return its exit status; -9 when it had to be killed."""
        process = self._process
        if process is None:
            return 0
        family = [process.pid, *self.children()]
        status = process.stop(seconds)
        self._process = None
        eventually("all its processes are gone", lambda: not [pid for pid in family if alive(pid)], 5.0, POLL_SECONDS)
        left = {path.name for path in self.folder.iterdir()} - LEFT_BEHIND
        left |= {path.name for path in (self.folder / "temporary").iterdir()}
        assert left <= OF_TESTS, f"left behind: {left}"
        return status

    @property
    def target(self) -> str:
        """host:port, as Prometheus wants it."""
        return self.url.removeprefix("http://")

    @property
    def process(self) -> Process:
        """The running process."""
        assert self._process is not None, "not started"
        return self._process

    def ready(self) -> bool:
        """Whether it has read its GPUs; raises `ProcessGone` when it ended."""
        self.process.check_running()
        return self.status("/-/ready") == 200

    def status(self, path: str) -> int:
        """Return the HTTP status of a GET; OSError when nobody answers."""
        return self._get(path).status

    def page(self) -> Page:
        """Return /metrics now; AssertionError on anything but 200, OSError when nobody answers."""
        answer = self._get("/metrics")
        assert answer.status == 200, f"/metrics says {answer.status}: {answer.data!r}"
        return Page(answer.data.decode())

    def health(self) -> dict[str, Any]:
        """Return /health: the status of the GPUNode."""
        answer = self._get("/health")
        assert answer.status == 200, f"/health says {answer.status}: {answer.data!r}"
        return dict(json.loads(answer.data))

    def until(self, what: str, fact: Callable[[Page], object], seconds: float) -> Page:
        """Return the first page of which `fact` is true."""

        def look() -> Page | None:
            page = self.page()
            return page if fact(page) else None

        return eventually(what, look, seconds, POLL_SECONDS)

    def uuids(self) -> list[str]:
        """Return the UUIDs of its GPUs by index."""
        profile, _, count = (self.simulate or "x0").rpartition("x")
        return [state.gpu_uuid(self.node, profile, index) for index in range(int(count))]

    def children(self) -> list[int]:
        """Return the process ids of its workers."""
        return [] if self._process is None else children_of(self._process.pid)

    def worker(self) -> int:
        """Return the process id of its only worker; LookupError when it has none or several at the moment."""
        workers = self.children()
        if len(workers) != 1:
            raise LookupError(f"workers: {workers}")
        return workers[0]

    def log(self) -> str:
        """Return the whole log."""
        return (self.folder / "exporter.log").read_text()

    @contextmanager
    def always_answers(self, within: float = 2.0) -> Iterator[None]:
        """Ask for /metrics all the time; AssertionError when one scrape fails or takes longer than `within` seconds."""
        ended, slowest = threading.Event(), [0.0]
        failures: list[Exception] = []

        def ask() -> None:
            while not ended.is_set():
                asked = time.monotonic()
                try:
                    answer = self._get("/metrics")
                    if answer.status != 200 or b"gpu_up" not in answer.data:
                        failures.append(AssertionError(f"{answer.status}: {answer.data!r}"))
                except OSError as failed:
                    failures.append(failed)
                slowest[0] = max(slowest[0], time.monotonic() - asked)
                ended.wait(POLL_SECONDS)

        asker = threading.Thread(target=ask, name="asker")
        asker.start()
        try:
            yield
        finally:
            ended.set()
            asker.join()
        assert not failures, failures
        assert slowest[0] < within, f"a scrape took {slowest[0]:.2f} s"

    def _get(self, path: str) -> urllib3.BaseHTTPResponse:
        try:
            return self._http.request("GET", f"{self.url}{path}")
        except urllib3.exceptions.HTTPError as failed:
            raise OSError(f"{path}: {failed}") from failed


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    return stat(pid)[0] not in ("Z", "X")


def children_of(parent: int) -> list[int]:
    """Return the living children of a process."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [pid for pid in pids if stat(pid)[1] == parent and alive(pid)]


def stat(pid: int) -> tuple[str, int]:
    """Return state letter and parent of a process, ("X", 0) when there is none (proc(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0], int(fields[1])
