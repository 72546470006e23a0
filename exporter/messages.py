"""What the NVML worker says to its parent, and how it travels.

Messages are frozen dataclasses, pickled, each behind its length. Pickle is right here and only here: both ends are the
same code of the same version, started by us, over an anonymous pipe that nobody else can write to; and it carries the
readings without a second description of them.
"""

import os
import pickle
import struct
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from exporter.readings import DriverInfo, DriverState, GpuIdentity, GpuReadings, GpuStatus, XidEvent

_LENGTH = struct.Struct("!I")
# A sweep of one GPU pickles to about 2 KiB; a length beyond this is not a message but a broken stream.
LARGEST_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What a worker is started with; JSON on its standard input."""

    interval_seconds: float
    probe_timeout_seconds: float
    library_path: str | None
    simulate_state_path: str | None
    only: int | None = None
    """NVML index of the one GPU to read, once (a probe of a GPU that hung before); None = all, for ever."""
    without: tuple[int, ...] = ()
    """NVML indices that must not be touched."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "WorkerSettings":
        """The inverse of `to_json`."""
        return cls(**{**values, "without": tuple(values["without"])})


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Progress: what the worker does from `monotonic` on (the machine-wide monotonic clock, seconds)."""

    subject: str
    """A subject of the sweep, or `open`, `attach`, `count`, `idle`."""
    monotonic: float
    gpu_index: int | None = None
    planned_seconds: float = 0.0
    """How long the worker means to be silent (`idle`)."""


@dataclass(frozen=True, kw_only=True)
class Attached:
    """The worker has opened NVML and taken the GPUs."""

    driver: DriverInfo
    count: int
    """What nvmlDeviceGetCount said."""
    identities: tuple[GpuIdentity, ...]
    unattached: tuple[tuple[int, GpuStatus], ...] = ()
    """Indices that NVML enumerates and that could not be taken, with what is wrong."""
    without_events: tuple[str, ...] = ()
    """UUIDs of the GPUs whose Xids NVML does not deliver."""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """One GPU was read, or found gone."""

    readings: GpuReadings


@dataclass(frozen=True, kw_only=True)
class SweepDone:
    """All GPUs were read once."""

    taken_at: datetime


@dataclass(frozen=True, kw_only=True)
class CountChanged:
    """NVML enumerates another number of GPUs than at the start; the worker ends, since every index may have moved."""

    count: int


@dataclass(frozen=True, kw_only=True)
class DriverGone:
    """There is nothing to ask; the worker ends."""

    state: DriverState
    details: str


@dataclass(frozen=True, kw_only=True)
class XidSeen:
    """NVML delivered an Xid."""

    event: XidEvent


Message = Mark | Attached | Swept | SweepDone | CountChanged | DriverGone | XidSeen


class BrokenStream(Exception):
    """The bytes from the worker are not messages; only a new worker helps."""


def encode(message: Message) -> bytes:
    """One message as it goes over the pipe."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def write_all(descriptor: int, content: bytes) -> None:
    """Write to a blocking pipe, whole. Raises OSError when nobody reads any more."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Decoder:
    """Messages out of whatever pieces a pipe delivers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[Message]:
        """The messages that are complete with this piece, in order. Raises `BrokenStream`."""
        self._buffer += piece
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LARGEST_MESSAGE_BYTES:
                raise BrokenStream(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _decode(body: bytes) -> Message:
    try:
        message = pickle.loads(body)
    except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, TypeError, ValueError) as error:
        raise BrokenStream(f"not a message: {error}") from error
    if not isinstance(message, Message):
        raise BrokenStream(f"an unexpected {type(message).__name__}")
    return message
