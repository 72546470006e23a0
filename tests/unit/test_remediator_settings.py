"""Settings, the policy file's reload, the small decisions of the sweeps, the program's own ending."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from exporter.health import keys
from remediator.domain.model import ClusterView, JobFacts
from remediator.domain.policy import Mode
from remediator.domain.policy_errors import PolicyError
from remediator.domain.states import TRANSITIONS
from remediator.settings import SettingsError, load
from remediator.settings_policy import PolicyFile, PolicyNews, parse
from remediator.simulation.cluster import EmbeddedCluster
from remediator.sweeps import Retention, expired_incidents, forgotten_jobs
from tests.fakes.world import eventually
from tests.worlds import an_incident

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--web.listen-address", "9452"], "--web.listen-address '9452': must be HOST:PORT or :PORT"),
        (["--log.level", "loud"], "--log.level 'loud': "),
        (["--lease.duration", "5"], "lease.duration > lease.renew-deadline"),
        (["--lease.renew-deadline", "12"], "must not outlive our leadership"),
        (["--incidents.keep-days", "-1"], "--incidents.keep-days '-1': "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_flag_says_which_and_what(arguments: list[str], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(arguments, "1")
    assert words in str(caught.value)


def test_flags_win_over_their_environment_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_REMEDIATOR_WEB_LISTEN_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("GPU_REMEDIATOR_LEADER_ELECT", "false")
    monkeypatch.setenv("GPU_REMEDIATOR_LOG_LEVEL", "debug")
    command, settings = load(["--log.level", "error"], "1")
    assert (command, settings.listen, settings.leader_elect) == ("run", ("127.0.0.1", 1), False)
    assert settings.log_level == "error"


def test_identities_of_two_processes_on_one_host_differ() -> None:
    assert load([], "1")[1].identity != load([], "1")[1].identity


def remediator(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "remediator.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **environment}
    )


def test_states_prints_the_diagram_of_the_table() -> None:
    done = remediator("states")
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first == "stateDiagram-v2"
    assert all(re.fullmatch(r"    (\[\*\]|\w+) --> (\[\*\]|\w+)(: [a-z /]+)?", line) for line in lines), done.stdout
    drawn = {tuple(line.split(": ")[0].strip().split(" --> ")) for line in lines}
    moves = {(phase.value, target.value) for phase, row in TRANSITIONS.items() for target in row.values()}
    ends = {(phase.value, "[*]") for phase, row in TRANSITIONS.items() if not row}
    assert drawn == {("[*]", "Suspected"), *moves, *ends}


def test_help_names_every_flag_its_default_and_the_environment() -> None:
    done = remediator("--help", COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    fixed = "--config.file --web.listen-address --kubeconfig --kube.api-server --kube.token-file --kube.ca-file"
    fixed += " --namespace --log.level --log.format --identity --leader-elect --no-leader-elect states"
    assert [word for word in fixed.split() if word not in done.stdout] == []
    assert "(default: :9452)" in done.stdout
    assert "GPU_REMEDIATOR_LOG_LEVEL" in done.stdout


def test_a_wrong_policy_at_start_ends_with_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("budget: {nodes: 0}\nrules: [{name: a, mode: kill}]")
    # No API server is needed to say that the file is wrong.
    done = remediator("--kube.api-server", "http://127.0.0.1:1", GPU_REMEDIATOR_CONFIG_FILE=str(path))
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"gpu-remediator: {path}: budget.nodes: ")
    assert (
        second == f"gpu-remediator: {path}: rules[0].mode: 'kill' is not allowed; allowed: observe, recommend, enforce"
    )


def test_a_policy_file_that_is_not_there_ends_it() -> None:
    done = remediator("--kube.api-server", "http://127.0.0.1:1", "--config.file", "/nowhere/policy.yaml")
    assert done.returncode == 2
    assert "/nowhere/policy.yaml cannot be read: No such file or directory" in done.stderr


@pytest.mark.parametrize("arguments", [("--mode", "enforce"), ("--log.level", "loud"), ("stats",)], ids=" ".join)
def test_wrong_arguments_end_with_2_and_the_culprit(arguments: tuple[str, ...]) -> None:
    done = remediator(*arguments)
    assert done.returncode == 2
    assert arguments[-1] in done.stderr
    assert "Traceback" not in done.stderr


def test_text_that_is_not_yaml_says_where() -> None:
    with pytest.raises(PolicyError, match=r"line 2, column \d+: not YAML"):
        parse(b"rules:\n\t- a")


@pytest.mark.parametrize("text", ["rules: [{mode: enforce}]", "\x00", "[]", "rules: {"], ids=repr)
def test_a_wrong_file_leaves_the_last_good_policy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules: [{name: a, mode: enforce, faults: [xid-79]}]")
    told: list[PolicyNews] = []
    policies = PolicyFile(path, told.append, look_seconds=0)
    good = policies.current()
    path.write_text(text)
    for _ in range(3):
        policies.refresh()
    assert policies.current() is good
    assert [news.valid for news in told] == [True, False], "told once, not at every look"
    assert told[1].problems
    path.unlink()
    policies.refresh()
    assert (policies.current() is good, told[-1].valid) == (True, False)
    path.write_text("rules: [{name: a, mode: observe}]")
    policies.refresh()
    assert (policies.current().rules[0].mode, told[-1].valid) == (Mode.OBSERVE, True)


def test_closed_incidents_are_kept_for_a_while_and_open_ones_always() -> None:
    day = timedelta(days=1)
    closed = [an_incident(name=f"i{n}", closed_at=NOW - n * day) for n in (1, 5, 9)]
    still_open = an_incident(name="open", opened_at=NOW - 900 * day)
    view = ClusterView(nodes={}, incidents=(*closed, still_open))
    assert expired_incidents(view, Retention(days=7, count=10), NOW) == ("i9",)
    assert expired_incidents(view, Retention(days=30, count=1), NOW) == ("i9", "i5")
    assert expired_incidents(view, Retention(days=30, count=0), NOW) == ("i9", "i5", "i1")


def test_only_finished_jobs_of_no_open_incident_are_forgotten() -> None:
    old = NOW - timedelta(hours=1)
    jobs = (
        JobFacts(name="of-open", incident="open", finished_at=old),
        JobFacts(name="orphan", incident="gone", finished_at=old),
        JobFacts(name="fresh", incident="gone", finished_at=NOW),
        JobFacts(name="running", incident="gone"),
    )
    view = ClusterView(nodes={}, incidents=(an_incident(name="open"),), jobs=jobs)
    assert forgotten_jobs(view, NOW) == ("orphan",)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        made.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuward"}}])
        yield made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_the_process_ends_cleanly_and_gives_the_lease_back(cluster: EmbeddedCluster, number: signal.Signals) -> None:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/gpuward/leases/{keys.CONTROLLER}"
    command = [sys.executable, "-m", "remediator.cli", "--kube.api-server", cluster.url]
    command += ["--web.listen-address", "127.0.0.1:0", "--log.format", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: cluster.request("GET", lease).code == 200, 30, "no lease")
        began = time.monotonic()
        process.send_signal(number)
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log
    assert time.monotonic() - began < 10
    assert cluster.request("GET", lease).body["spec"]["holderIdentity"] == ""
    assert "Traceback" not in log
