"""A real Prometheus on a free port that scrapes what a test names and judges with our rules."""

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from tests.rig.processes import Process, free_port
from tests.rig.require import require_rig
from tests.rig.waiting import eventually
from tests.rig.workfolder import work_folder


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class Prometheus:
    """Scrapes `jobs` (job name -> host:port targets) every `interval` seconds and evaluates `rules` files as often."""

    def __init__(self, jobs: Mapping[str, Sequence[str]], rules: Sequence[Path] = (), interval: float = 0.5) -> None:
        self._jobs = jobs
        self._rules = rules
        self._interval = f"{int(interval * 1000)}ms"
        self._stack = ExitStack()
        self._process: Process | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Return when /-/ready says so."""
        folder = self._stack.enter_context(work_folder("prom"))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "prometheus.yml").write_text(self._configuration())
        command = [
            *(shutil.which("prometheus") or "prometheus", f"--config.file={folder / 'prometheus.yml'}"),
            *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
        ]
        process = self._process = Process(command, folder / "prometheus.log")

        def ready() -> bool:
            process.check_running()
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)

        try:
            eventually("Prometheus is ready", ready, 30.0)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._process:
            self._process.stop()
        self._stack.close()

    def query(self, expression: str) -> list[Sample]:
        """Return the instant vector of `expression` now; AssertionError with Prometheus' words when it is refused."""
        found = self._ask("query", query=expression)["result"]
        return [Sample(each["metric"], float(each["value"][1])) for each in found]

    def firing(self, alert: str) -> list[Mapping[str, str]]:
        """Return the labels of each firing instance of `alert`."""
        alerts = self._ask("alerts")["alerts"]
        return [each["labels"] for each in alerts if each["state"] == "firing" and each["labels"]["alertname"] == alert]

    def rules(self) -> dict[str, str]:
        """Return the health of every alert rule by name: `ok` once it was evaluated without error."""
        return {rule["name"]: rule["health"] for group in self._ask("rules")["groups"] for rule in group["rules"]}

    def _ask(self, what: str, **parameters: str) -> Any:  # Any: the data of whichever query it was
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode(errors='replace')}") from None

    def _configuration(self) -> str:
        scrapes = [{"job_name": job, "static_configs": [{"targets": list(to)}]} for job, to in self._jobs.items()]
        often = {"scrape_interval": self._interval, "scrape_timeout": self._interval}
        return yaml.safe_dump(
            {
                "global": {**often, "evaluation_interval": self._interval},
                "rule_files": [str(path.resolve()) for path in self._rules],
                "scrape_configs": scrapes,
            }
        )


def require_prometheus() -> None:
    """Skip or fail unless Prometheus is installed."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            require_rig(f"Prometheus: {program} is not on PATH (Debian package prometheus)")
