"""The structure of the house: imports only go down, third-party packages have one home, files stay small."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("exporter", "remediator")
HARD_LIMIT = 400
TEST_LIMIT = 500
GENERATED = ("_pb2.py", "_pb2.pyi")

# Floor of a module = the longest matching prefix. A module may import its own floor or lower ones.
FLOORS: dict[str, int] = {
    "exporter.health": 0,
    "exporter.readings": 0,
    "exporter.assess": 0,
    "exporter.attribution": 0,
    "exporter.readers": 1,
    "exporter.exposition": 1,
    "exporter.simulation": 1,
    "exporter.guarded": 1,
    "exporter.messages": 1,
    "exporter.logs": 1,
    "exporter.worker": 2,
    "exporter.watchdog": 2,
    "exporter.sampler": 2,
    "exporter.apiserver": 2,
    "exporter.publisher": 2,
    "exporter.state_file": 2,
    "exporter.server": 2,
    "exporter.loop": 3,
    "exporter.settings": 4,
    "exporter.cli": 4,
    "remediator.domain": 0,
    "remediator.adapters": 1,
    "remediator.simulation": 1,
    "remediator.logs": 1,
    "remediator.observer": 2,
    "remediator.executor": 2,
    "remediator.metrics": 2,
    "remediator.health_server": 2,
    "remediator.sweeps": 2,
    "remediator.console": 2,
    "remediator.loop": 3,
    "remediator.settings": 4,
    "remediator.cli": 4,
    "remediator.operator": 4,
}

# What a floor-0 package may import of our own code, beside itself.
PURE: dict[str, tuple[str, ...]] = {
    "exporter.health": (),
    "exporter.readings": ("exporter.health",),
    "exporter.assess": ("exporter.health", "exporter.readings"),
    "exporter.attribution": ("exporter.health", "exporter.readings"),
    "remediator.domain": ("exporter.health",),
}

# Modules of the standard library that would make a pure package impure.
IMPURE = {"socket", "threading", "subprocess", "logging", "time", "os", "random", "urllib", "http", "ssl", "select"}

# Third-party package -> the modules (or packages) that may import it.
HOMES: dict[str, tuple[str, ...]] = {
    "pynvml": ("exporter.readers.nvml", "exporter.simulation"),
    "h2": ("exporter.readers.unary", "exporter.simulation.kubelet_socket"),
    "google": ("exporter.readers.podresources", "exporter.simulation.kubelet_socket"),
    "starlette": ("exporter.server", "remediator.health_server", "remediator.simulation"),
    "uvicorn": ("exporter.server", "remediator.health_server", "remediator.simulation"),
    "prometheus_client": ("exporter.exposition.own", "remediator.metrics"),
    "urllib3": ("remediator.adapters.transport",),
    "kubernetes": ("remediator.adapters.kubeconfig",),
    "msgspec": ("remediator.adapters.wire",),
    "pydantic": ("remediator.settings", "remediator.domain.policy"),
    "pydantic_settings": ("remediator.settings",),
    "yaml": ("exporter.settings", "remediator.settings", "remediator.simulation", "remediator.operator"),
    "requests": ("remediator.adapters.notify", "remediator.adapters.prometheus", "remediator.operator"),
    "apscheduler": ("remediator.sweeps",),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = [pytest.param(name, path, id=name) for name, path in modules()]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            yield node.module or "", node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def longest_prefix(name: str, table: dict[str, int]) -> str | None:
    matches = [prefix for prefix in table if within(name, prefix)]
    return max(matches, key=len, default=None)


def within(name: str, prefix: str) -> bool:
    """`exporter.readers.nvml` is the home of `exporter.readers.nvml_fields` too."""
    return name == prefix or name.startswith((f"{prefix}.", f"{prefix}_"))


def ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in PACKAGES


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_every_module_has_a_floor(name: str, path: Path) -> None:
    if name in PACKAGES:
        return
    assert longest_prefix(name, FLOORS), f"{path}: give {name} a floor in FLOORS, or move it to where it belongs"


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_imports_only_go_down(name: str, path: Path) -> None:
    home = longest_prefix(name, FLOORS)
    if home is None:
        return
    for target, line in imports(path):
        floor = longest_prefix(target, FLOORS) if ours(target) else None
        if floor is not None:
            assert FLOORS[floor] <= FLOORS[home], (
                f"{path}:{line}: {name} (floor {FLOORS[home]}) imports {target} above it"
            )


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_pure_packages_stay_pure(name: str, path: Path) -> None:
    home = next((package for package in PURE if within(name, package)), None)
    if home is None:
        return
    for target, line in imports(path):
        top = target.split(".")[0]
        assert top not in IMPURE, f"{path}:{line}: {name} is pure and may not import {target}"
        if ours(target):
            allowed = (home, *PURE[home])
            assert any(within(target, package) for package in allowed) or target in PACKAGES, (
                f"{path}:{line}: {name} may import {allowed}, not {target}"
            )


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_only_the_operator_imports_both_programs(name: str, path: Path) -> None:
    other = "remediator" if name.startswith("exporter") else "exporter"
    for target, line in imports(path):
        if target.split(".")[0] != other or target == other:
            continue
        if name.startswith("remediator.operator"):
            continue
        assert within(target, "exporter.health"), f"{path}:{line}: {name} may import exporter.health only, not {target}"


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_simulation_stays_out_of_production(name: str, path: Path) -> None:
    # A lazy import inside a function is how a simulated run is wired; a module-level one would ship it everywhere.
    if "simulation" in name or name.startswith("remediator.operator"):
        return
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            text = ast.unparse(node)
            assert ".simulation" not in text, f"{path}:{node.lineno}: {text}"


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_third_party_packages_have_one_home(name: str, path: Path) -> None:
    import sys

    for target, line in imports(path):
        top = target.split(".")[0]
        if ours(target) or top in sys.stdlib_module_names:
            continue
        assert top in HOMES, f"{path}:{line}: {top} has no home in HOMES; is the dependency needed?"
        assert any(within(name, home) for home in HOMES[top]), f"{path}:{line}: {top} lives in {HOMES[top]}"


@pytest.mark.parametrize("package", PACKAGES)
def test_top_packages_are_empty(package: str) -> None:
    assert (ROOT / package / "__init__.py").read_text() == ""


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_every_package_says_what_may_live_there(name: str, path: Path) -> None:
    if path.name != "__init__.py" or name in PACKAGES:
        return
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "May import" in doc, f"{path}: the docstring says what lives here, what may not, and 'May import: ...'"


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=str(p.relative_to(ROOT))) for d in (*PACKAGES, "dashboards") for p in (ROOT / d).rglob("*.py")],
)
def test_files_stay_small(path: Path) -> None:
    if path.name.endswith(GENERATED):
        return
    lines = len(path.read_text().splitlines())
    assert lines <= HARD_LIMIT, f"{path} has {lines} lines; split it by subject (review at 300, hard stop {HARD_LIMIT})"


def test_test_files_stay_small() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        lines = len(path.read_text().splitlines())
        assert lines <= TEST_LIMIT, f"{path} has {lines} lines (limit {TEST_LIMIT})"


def test_nothing_catches_everything_outside_the_named_files() -> None:
    allowed = {"guarded.py", "sampler.py", "executor.py", "loop.py"}
    for _, path in modules():
        if path.name in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                assert caught not in {"everything", "Exception", "BaseException"}, (
                    f"{path}:{node.lineno} catches {caught}"
                )


def test_no_mock_is_imported() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for target, line in imports(path):
            assert not target.startswith("unittest.mock"), f"{path}:{line}: fakes keep state; see tests/fakes"
