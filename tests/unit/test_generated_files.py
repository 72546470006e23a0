"""Committed files that are generated must be what their source says; text files that others load must load."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.generate import rendered as dashboards
from deploy.render import rendered as manifests

ROOT = Path(__file__).parents[2]
GENERATED = {**dashboards(), **manifests()}


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_file_is_up_to_date(path: Path) -> None:
    assert path.read_text() == GENERATED[path], f"run `make dashboards manifests` and commit {path.relative_to(ROOT)}"


@pytest.mark.parametrize("path", sorted((ROOT / "dashboards").glob("*.json")), ids=lambda path: path.name)
def test_dashboard_can_be_imported(path: Path) -> None:
    board = json.loads(path.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert next(v["name"] for v in board["templating"]["list"]) == "datasource"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["description"], f"{panel['title']}: every panel says why one should look"
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "manifests").glob("*.yaml")), ids=lambda path: path.name)
def test_manifest_is_yaml_of_ours(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        assert {"apiVersion", "kind", "metadata"} <= document.keys()
        assert re.fullmatch(r"[a-z0-9.-]+", document["metadata"]["name"])


def test_alert_rules_behave_as_their_tests_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH (Debian package prometheus)")
    for arguments in (["check", "rules", "alerts/gpuward.rules.yaml"], ["test", "rules", "alerts/gpuward.test.yaml"]):
        done = subprocess.run([promtool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
