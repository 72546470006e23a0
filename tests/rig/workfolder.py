"""Temporary folders that a crashed run cannot leave behind for good: the next run removes what has no owner."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Short, because a Unix socket's path ends at 107 bytes.
PREFIX = "gpuward-"
OWNER = ".owner"


def cache() -> Path:
    """Return this user's cache folder of the rigs; locks live there too, so that /tmp stays clean."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuward" / "rig"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel lets go of it when the process ends in whatever way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def work_folder(kind: str) -> Iterator[Path]:
    """Yield a new folder of this `kind`, removed at the end; ownerless folders of the same kind are removed first."""
    base = Path(tempfile.gettempdir())
    pattern = f"{PREFIX}{kind}-"
    with locked(cache() / f"{kind}.lock"):
        for stale in base.glob(f"{pattern}*"):
            _remove_ownerless(stale)
        folder = Path(tempfile.mkdtemp(prefix=pattern, dir=base))
        owner = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _remove_ownerless(folder: Path) -> None:
    try:
        owner = os.open(folder / OWNER, os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(owner)
