"""A container image without a registry: one layer with the static pause program, as an archive that ctr imports."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

NAME = "docker.io/local/pause:1"
# The same program under the names that Job templates like to call.
PATHS = ("pause", "bin/pause", "bin/true", "bin/false", "bin/sleep")


def write_archive(program: Path, archive: Path) -> None:
    """Write `program` as image NAME to `archive` (docker-archive layout)."""
    layer = _tar({path: program.read_bytes() for path in PATHS}, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(config), "manifest.json": json.dumps(manifest)}
    archive.write_bytes(_tar({"layer.tar": layer, **{name: text.encode() for name, text in files.items()}}, mode=0o644))


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return output.getvalue()
