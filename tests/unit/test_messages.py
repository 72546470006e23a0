"""Messages between the NVML worker and its parent survive any cutting of the stream, and garbage is refused."""

import json
import os
import pickle
import struct
import threading
from datetime import UTC, datetime

import pytest

from exporter.messages import (
    BrokenStream,
    CountChanged,
    Decoder,
    DriverGone,
    Mark,
    Message,
    SweepDone,
    Swept,
    WorkerSettings,
    XidSeen,
    encode,
    write_all,
)
from exporter.readings import DriverState, GpuIdentity, GpuReadings, GpuStatus, XidEvent

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GPU = GpuIdentity(uuid="GPU-1", index=0, minor=0, pci_bus_id="00000000:1b:00.0", serial=None, model="X")
MESSAGES: list[Message] = [
    Mark(subject="ecc", monotonic=1.5, gpu_index=2),
    Swept(readings=GpuReadings(identity=GPU, status=GpuStatus.UP, taken_at=NOW, power_watts=71.5, failed=("ecc",))),
    SweepDone(taken_at=NOW),
    CountChanged(count=7),
    DriverGone(state=DriverState.NO_DRIVER, details="no"),
    XidSeen(event=XidEvent(code=79, gpu="GPU-1", pci_bus_id=None, observed_at=NOW, source="nvml-event")),
]


@pytest.mark.parametrize("piece", [1, 3, 7, 10_000])
def test_messages_arrive_whole_and_in_order_however_the_stream_is_cut(piece: int) -> None:
    stream = b"".join(encode(message) for message in MESSAGES)
    decoder = Decoder()
    arrived = [m for at in range(0, len(stream), piece) for m in decoder.feed(stream[at : at + piece])]
    assert arrived == MESSAGES


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\xff\xff\xff\xff", id="impossible length"),
        pytest.param(struct.pack("!I", 4) + b"nope", id="not a pickle"),
        pytest.param(struct.pack("!I", len(pickle.dumps("a word"))) + pickle.dumps("a word"), id="not a message"),
    ],
)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(BrokenStream):
        Decoder().feed(garbage)


def test_write_all_writes_more_than_a_pipe_holds() -> None:
    reading, writing = os.pipe()
    content = bytes(300_000)
    arrived = bytearray()

    def drain() -> None:
        while piece := os.read(reading, 65536):
            arrived.extend(piece)

    thread = threading.Thread(target=drain)
    thread.start()
    write_all(writing, content)
    os.close(writing)
    thread.join()
    os.close(reading)
    assert arrived == content


def test_worker_settings_survive_json() -> None:
    settings = WorkerSettings(
        interval_seconds=0.5, probe_timeout_seconds=0.4, library_path=None, simulate_state_path="/x", without=(3, 5)
    )
    assert WorkerSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
