"""Write every dashboard as JSON beside its source: `python -m dashboards.generate`."""

import json
from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.fleet import fleet

HERE = Path(__file__).parent
DASHBOARDS: dict[str, Callable[[], Dashboard]] = {"fleet": fleet}


def rendered() -> dict[Path, str]:
    """Path -> JSON text of every dashboard; deterministic."""
    return {HERE / f"{name}.json": text(make()) for name, make in DASHBOARDS.items()}


def text(board: Dashboard) -> str:
    """JSON of one dashboard; panels get the ids that Grafana wants unique, in reading order."""
    raw = json.loads(JSONEncoder().encode(board.build()))
    for number, panel in enumerate(raw["panels"], start=1):
        panel["id"] = number
    return json.dumps(raw, sort_keys=True, indent=2) + "\n"


def main() -> None:
    """Write the files."""
    for path, text in rendered().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
