"""Where kernel lines come from: the device `/dev/kmsg`, a regular file in any of its forms, or `syslog(2)`.

Laws:
1. `read` never blocks; it returns the lines that are there, oldest first, and an empty tuple when there are none.
2. A source that cannot be read raises `SourceFailed` with one word and one sentence; the reader tries again later.
3. A source that was cut or exchanged says so once (`begun_anew`), for its lines may be of another boot.
"""

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import Final, Protocol

RECORD_BYTES: Final = 16384
"""The kernel refuses a buffer smaller than the record (at most 8 KiB with its dictionary)."""
CHUNK_BYTES: Final = 1 << 18
LONGEST_LINE: Final = 1 << 16
FILE_PAUSE_SECONDS: Final = 0.25
"""A fault should be known within a second."""
RING_PAUSE_SECONDS: Final = 1.0
"""Every look copies the whole ring (up to a few MiB)."""
BURST: Final = 4096
"""Records handed on at once, so that a flood cannot keep the reader from stopping."""


class SourceFailed(Exception):
    """This source cannot be read now."""

    def __init__(self, word: str, sentence: str) -> None:
        super().__init__(sentence)
        self.word = word
        """`absent`, `refused` or `failed`."""
        self.sentence = sentence


class Source(Protocol):
    """What the reader needs of a source."""

    name: str
    overruns: int
    """Times that the kernel overwrote lines before they were read."""
    pause_seconds: float
    """How long to wait between two reads where `descriptor` is None."""
    drained: bool
    """Whether the last `read` took everything that was there: in a flood no read ever finds nothing."""

    def read(self) -> tuple[str, ...]:
        """Lines since the last call. Raises `SourceFailed`."""
        ...

    def begun_anew(self) -> bool:
        """True once after the log was cut or exchanged."""
        ...

    def descriptor(self) -> int | None:
        """A descriptor that `poll` can wait for; None = ask again after a pause."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...


def open_source(path: Path) -> Source:
    """The source behind `path`; a device that refuses us is read through `syslog(2)`, which needs CAP_SYSLOG only."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path == Path("/dev/kmsg") and error.errno in (errno.EPERM, errno.EACCES, errno.ENOENT):
            return SyslogSource()
        raise _failed(path, error) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISCHR(mode):
        return DeviceSource(path, descriptor)
    if stat.S_ISREG(mode):
        return FileSource(path, descriptor)
    os.close(descriptor)
    raise SourceFailed("failed", f"{path} is neither a device nor a file")


def _failed(path: Path, error: OSError) -> SourceFailed:
    if error.errno == errno.ENOENT:
        return SourceFailed("absent", f"{path} does not exist")
    if error.errno in (errno.EPERM, errno.EACCES):
        return SourceFailed("refused", f"{path}: no permission to read the kernel log")
    return SourceFailed("failed", f"{path}: {error.strerror}")


class DeviceSource:
    """`/dev/kmsg`: one record per read, EPIPE when the ring overtook us."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = str(path)
        self.overruns = 0
        self.pause_seconds = FILE_PAUSE_SECONDS
        self.drained = False
        self._descriptor = descriptor

    def read(self) -> tuple[str, ...]:
        """Records since the last call."""
        lines: list[str] = []
        while len(lines) < BURST:
            try:
                record = os.read(self._descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                self.overruns += 1
                continue
            except OSError as error:
                raise _failed(Path(self.name), error) from error
            if not record:
                break
            lines += record.decode("utf-8", "replace").splitlines()
        self.drained = len(lines) < BURST
        return tuple(lines)

    def begun_anew(self) -> bool:
        """The kernel's ring lives as long as we do."""
        return False

    def descriptor(self) -> int | None:
        """The device itself can be waited for."""
        return self._descriptor

    def close(self) -> None:
        """Close the device."""
        os.close(self._descriptor)


class FileSource:
    """A growing file, followed like `tail -F`: a shorter or exchanged file is read from its start."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = str(path)
        self.overruns = 0
        self.pause_seconds = FILE_PAUSE_SECONDS
        self.drained = False
        self._path = path
        self._descriptor = descriptor
        self._offset = 0
        self._rest = b""
        self._anew = False

    def read(self) -> tuple[str, ...]:
        """Whole lines since the last call; an exchanged file is first read to its end."""
        piece = self._piece()
        if not piece:
            self._follow()
            piece = self._piece()
        self.drained = len(piece) < CHUNK_BYTES
        self._offset += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        return tuple(line.decode("utf-8", "replace") for line in lines)

    def _piece(self) -> bytes:
        try:
            return os.pread(self._descriptor, CHUNK_BYTES, self._offset)
        except OSError as error:
            raise _failed(self._path, error) from error

    def modified_at(self) -> float:
        """Time of the last write, seconds since the epoch."""
        return os.fstat(self._descriptor).st_mtime

    def rewind(self) -> None:
        """Read again from the start."""
        self._offset = 0
        self._rest = b""

    def _follow(self) -> None:
        opened = os.fstat(self._descriptor)
        try:
            named = self._path.stat()
        except OSError as error:
            raise _failed(self._path, error) from error
        if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            try:
                fresh = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise _failed(self._path, error) from error
            os.close(self._descriptor)
            self._descriptor = fresh
        elif opened.st_size >= self._offset:
            return
        self.rewind()
        self._anew = True

    def begun_anew(self) -> bool:
        """True once after the file was cut or exchanged."""
        anew, self._anew = self._anew, False
        return anew

    def descriptor(self) -> int | None:
        """Regular files are always ready: nothing to wait for."""
        return None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


READ_ALL: Final = 3
RING_SIZE: Final = 10


class SyslogSource:
    """`syslog(2)`: the whole ring at once, left in place. Needs CAP_SYSLOG, no device."""

    def __init__(self) -> None:
        self.name = "syslog(2)"
        self.overruns = 0
        self.pause_seconds = RING_PAUSE_SECONDS
        self.drained = True
        self._call = ctypes.CDLL(None, use_errno=True).klogctl
        self._size = self._ask(RING_SIZE, None, 0)
        self._buffer = ctypes.create_string_buffer(self._size)
        self._seen: tuple[str, ...] = ()

    def _ask(self, action: int, buffer: "ctypes.Array[ctypes.c_char] | None", size: int) -> int:
        answer = int(self._call(action, buffer, size))
        if answer < 0:
            code = ctypes.get_errno()
            word = "refused" if code in (errno.EPERM, errno.EACCES) else "failed"
            raise SourceFailed(word, f"syslog(2): {os.strerror(code)} (CAP_SYSLOG is needed)")
        return answer

    def read(self) -> tuple[str, ...]:
        """Lines since the last call: what follows the last line that was seen."""
        length = self._ask(READ_ALL, self._buffer, self._size)
        lines = tuple(self._buffer.raw[:length].decode("utf-8", "replace").splitlines())
        fresh = self._after_seen(lines)
        # The first line of a full ring may be a torn one, so only the end of what was seen is compared.
        self._seen = lines[-64:] or self._seen
        return fresh

    def _after_seen(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        seen = self._seen
        if not seen:
            return lines
        for end in range(len(lines), 0, -1):
            tail = lines[max(0, end - len(seen)) : end]
            if tail == seen[-len(tail) :]:
                return lines[end:]
        self.overruns += 1
        return lines

    def begun_anew(self) -> bool:
        """The kernel's ring lives as long as we do."""
        return False

    def descriptor(self) -> int | None:
        """Nothing to wait for."""
        return None

    def close(self) -> None:
        """Nothing is held."""
