"""Where simulated nodes keep their state file when nobody says otherwise: `gpuward inject --node n2` finds n2 there."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER_VARIABLE = "GPUWARD_SIMULATION_FOLDER"


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of this user's simulated nodes: $GPUWARD_SIMULATION_FOLDER, else one in the temporary folder."""
    named = environment.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"gpuward-simulation-{os.getuid()}"


def state_path(node: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The state file of the simulated node `node`."""
    return folder(environment) / f"{node}.json"


def nodes(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of the simulated nodes that have a state file, sorted."""
    return tuple(sorted(path.stem for path in folder(environment).glob("*.json")))
