"""Flags, environment, file: who wins, and what a wrong value is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from exporter.settings import Settings, load
from exporter.settings_options import OPTIONS, SettingsError

NODE = {"NODE_NAME": "n1"}


def loaded(*arguments: str, **environ: str) -> Settings:
    return load(arguments, {**NODE, **environ}, "1")


def test_defaults() -> None:
    settings = loaded()
    assert (settings.listen_host, settings.listen_port, settings.telemetry_path) == ("", 9451, "/metrics")
    assert (settings.interval_seconds, settings.probe_timeout_seconds) == (10, 5)
    assert settings.node == "n1"
    assert str(settings.pod_resources_socket) == "/var/lib/kubelet/pod-resources/kubelet.sock"
    assert settings.endpoint is None and settings.expected_gpus is None and settings.lease_seconds == 30


def test_environment_twins_follow_from_the_flag() -> None:
    assert {option.env for option in OPTIONS} >= {"GPU_EXPORTER_WEB_LISTEN_ADDRESS", "GPU_EXPORTER_KUBE_API_SERVER"}
    assert loaded(GPU_EXPORTER_INTERVAL="2.5").interval_seconds == 2.5


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("interval: 3\nlog.level: debug\nweb:\n  telemetry-path: /from-file\n  listen-address: ':7'\n")
    settings = loaded(
        "--config.file", str(file), "--interval", "1", GPU_EXPORTER_INTERVAL="2", GPU_EXPORTER_LOG_LEVEL="error"
    )
    assert settings.interval_seconds == 1
    assert settings.log_level == "error"
    assert settings.telemetry_path == "/from-file"
    assert settings.listen_port == 7
    assert settings.log_format == "logfmt"


def test_the_probe_never_waits_longer_than_an_interval_by_default() -> None:
    assert loaded("--interval", "0.5").probe_timeout_seconds == 0.5
    assert loaded("--interval", "0.5", "--probe.timeout", "3").probe_timeout_seconds == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--interval", "0"], ["--interval", "'0'", "0.1 to 3600"], id="no time"),
        pytest.param(["--interval", "nan"], ["--interval", "'nan'"], id="not a number"),
        pytest.param(["--interval", "inf"], ["--interval", "'inf'"], id="for ever"),
        pytest.param(["--web.listen-address", "9451"], ["--web.listen-address", "[HOST]:PORT"], id="no colon"),
        pytest.param(["--web.listen-address", ":65536"], ["--web.listen-address", "65535"], id="port too large"),
        pytest.param(["--web.telemetry-path", "/-/ready"], ["--web.telemetry-path", "/metrics"], id="path is taken"),
        pytest.param(["--log.level", "loud"], ["--log.level", "debug, info, warning, error"], id="unknown level"),
        pytest.param(["--simulate", "h100"], ["--simulate", "PROFILExCOUNT", "h100x8"], id="no count"),
        pytest.param(["--simulate", "h100x0"], ["--simulate"], id="no GPU"),
        pytest.param(["--simulate.state-file", "x"], ["--simulate.state-file", "--simulate"], id="without simulation"),
        pytest.param(["--expected-gpus", "-1"], ["--expected-gpus", "0 to 999"], id="negative"),
        pytest.param(["--kube.publish", "maybe"], ["--kube.publish", "auto, on, off"], id="unknown word"),
        pytest.param(["--kube.publish", "on"], ["--kube.publish", "--kube.api-server"], id="nobody to publish to"),
        pytest.param(["--kube.api-server", "10.0.0.1"], ["--kube.api-server", "https://"], id="no URL"),
        pytest.param(["--kube.api-server", "http://10.0.0.1"], ["--kube.api-server", "loopback"], id="token in clear"),
        pytest.param(["--node.name", "N 1"], ["--node.name", "lower-case"], id="no node name"),
        pytest.param(["--config.file", "/none/x.yaml"], ["--config.file", "/none/x.yaml"], id="no file"),
    ],
)
def test_a_wrong_flag_is_told_what_is_wrong_and_what_is_allowed(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(*arguments)
    assert all(word in str(refused.value) for word in words), refused.value
    assert str(refused.value).startswith(arguments[0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("intervall: 3", ["intervall", "is no setting", "interval"], id="unknown key"),
        pytest.param("interval: soon", ["interval", "'soon'", "0.1 to 3600"], id="wrong value"),
        pytest.param("- 1", ["list", "mapping"], id="not a mapping"),
        pytest.param("a: [", ["not YAML"], id="not YAML"),
        pytest.param("once: true", ["once", "is no setting"], id="not in a file"),
    ],
)
def test_a_wrong_file_says_which_key(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as refused:
        loaded("--config.file", str(file))
    assert all(word in str(refused.value) for word in [str(file), *words]), refused.value


def test_a_wrong_environment_is_named() -> None:
    with pytest.raises(SettingsError, match="GPU_EXPORTER_INTERVAL"):
        loaded(GPU_EXPORTER_INTERVAL="soon")


def test_publishing_is_off_outside_a_cluster_and_on_with_an_address(tmp_path: Path) -> None:
    token = str(tmp_path / "token")
    endpoint = loaded("--kube.api-server", "https://api:6443", "--kube.token-file", token).endpoint
    assert endpoint is not None and endpoint.token_file == Path(token)
    assert loaded("--kube.api-server", "http://127.0.0.1:8080").endpoint is not None
    assert loaded("--kube.api-server", "https://api:6443", "--kube.publish", "off").endpoint is None


def test_addresses() -> None:
    assert (loaded("--web.listen-address", "[::1]:0").listen_host, loaded().listen_port) == ("::1", 9451)


def test_exit_status_of_a_wrong_value_is_2() -> None:
    command = [sys.executable, "-m", "exporter.cli", "--interval", "never"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-exporter: --interval: 'never'") and "Traceback" not in done.stderr


def test_settings_cost_no_pydantic_and_no_kubernetes() -> None:
    code = "import sys, exporter.cli; print(sorted({'pydantic', 'kubernetes', 'yaml', 'requests'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
