"""The panels of our dashboards as a real Prometheus sees them."""

import json
from pathlib import Path
from typing import NamedTuple

from tests.rig.prometheus import Prometheus

FOLDER = Path(__file__).parents[2] / "dashboards"


class Panel(NamedTuple):
    """One query of one panel, with every node chosen."""

    dashboard: str
    title: str
    expression: str


def panels() -> list[Panel]:
    """Return every query of every dashboard, in reading order."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                found.append(Panel(path.stem, panel["title"], target["expr"].replace("$node", ".*")))
    return found


def empty(prometheus: Prometheus, asked: list[Panel]) -> set[str]:
    """Return the expressions that find nothing; AssertionError with Prometheus' words when one is refused."""
    return {panel.expression for panel in asked if not prometheus.query(panel.expression)}
