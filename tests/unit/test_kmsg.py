"""The kernel log reader over real files and, where the machine lets us, the real kernel log."""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from exporter.readers.kmsg import BootClock, KmsgReader, LogPosition
from exporter.readers.kmsg_sources import LONGEST_LINE, FileSource, SourceFailed, SyslogSource, open_source
from exporter.readings import KernelNotice, XidEvent
from tests.rig.readings_world import BOOT, NEXT_BOOT

PATIENCE = 10.0


def until(holds: Callable[[], bool]) -> None:
    """Wait for a fact; fails when it does not come true."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def line(sequence: int, xid: int, seconds: float = 1) -> str:
    """A record of an Xid."""
    return f"3,{sequence},{int(seconds * 1e6)},-;NVRM: Xid (PCI:0000:4e:00): {xid}, x\n"


class Node:
    """A log file, the boot that writes it, and what the readers of it have told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot = BootClock(boot_id=BOOT, booted_at=datetime.now(UTC) - timedelta(hours=1))
        self.told: list[XidEvent | KernelNotice] = []
        self.readers: list[KmsgReader] = []
        self.clock_fails = False

    def clock(self) -> BootClock:
        """What boot it is."""
        if self.clock_fails:
            raise OSError("no boot id")
        return self.boot

    def reader(self, resume: LogPosition | None = None) -> KmsgReader:
        """A reader that has read what is there."""
        reader = KmsgReader(self.path, self.clock, self.told.append, resume)
        self.readers.append(reader)
        reader.start()
        until(lambda: reader.status.word != "starting")
        return reader

    def write(self, *lines: str) -> None:
        """The kernel prints."""
        with self.path.open("a", encoding="utf-8") as log:
            log.write("".join(lines))

    def xids(self) -> list[int]:
        """Codes told so far."""
        return [event.code for event in self.told if isinstance(event, XidEvent)]

    def reads(self, *codes: int) -> None:
        """These codes are told, no others, also a little later."""
        until(lambda: len(self.xids()) >= len(codes))
        time.sleep(0.4)
        assert self.xids() == list(codes)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with an empty log."""
    made = Node(tmp_path / "log")
    made.path.touch()
    yield made
    for reader in made.readers:
        reader.stop()


def test_what_was_there_is_told_with_its_own_time_and_what_comes_with_now(node: Node) -> None:
    node.write(line(1, 48, seconds=600))
    reader = node.reader()
    node.reads(48)
    (old,) = node.told
    assert old.observed_at == node.boot.booted_at + timedelta(seconds=600)
    assert old.boot_id == BOOT
    node.write(line(2, 79))
    node.reads(48, 79)
    assert abs(node.told[1].observed_at - datetime.now(UTC)) < timedelta(seconds=5)
    assert reader.position == LogPosition(boot_id=BOOT, sequence=2, microseconds=1_000_000)
    assert (reader.status.word, reader.status.records) == ("ok", 2)


def test_a_line_is_told_once_over_restarts(node: Node) -> None:
    node.write(line(1, 48), line(2, 31))
    first = node.reader()
    node.reads(48, 31)
    first.stop()
    node.write(line(3, 79))
    node.reader(resume=first.position)
    node.reads(48, 31, 79)


def test_lines_with_times_only_are_told_once_over_restarts(node: Node) -> None:
    both = "[  100.000001] NVRM: Xid (PCI:0000:4e:00): 48, x\n[  100.000001] NVRM: Xid (PCI:0000:4e:00): 63, x\n"
    node.write(both)
    first = node.reader()
    node.reads(48, 63)
    first.stop()
    node.write("[  101.000000] NVRM: Xid (PCI:0000:4e:00): 79, x\n")
    node.reader(resume=first.position)
    node.reads(48, 63, 79)


def test_lines_without_any_time_are_told_only_as_they_come(node: Node) -> None:
    node.write("Nov 20 03:11:09 n1 kernel: NVRM: Xid (PCI:0000:4e:00): 48, x\n")
    node.reader()
    until(lambda: node.readers[0].status.records == 1)
    time.sleep(0.4)
    node.write("Nov 20 03:12:09 n1 kernel: NVRM: Xid (PCI:0000:4e:00): 79, x\n")
    node.reads(79)


def test_a_position_of_another_boot_is_worth_nothing(node: Node) -> None:
    node.write(line(1, 48))
    node.reader(resume=LogPosition(boot_id=NEXT_BOOT, sequence=99, microseconds=10**12))
    node.reads(48)


def test_of_a_file_with_two_boots_only_the_last_is_told(node: Node) -> None:
    node.write(line(1, 95), line(90, 95), line(1, 48), line(2, 79))
    node.reader()
    node.reads(48, 79)


def test_a_file_older_than_the_boot_tells_nothing(node: Node) -> None:
    node.write(line(1, 48))
    os.utime(node.path, (1, 1))
    node.reader()
    node.write(line(2, 79))
    until(lambda: node.readers[0].status.records == 2)
    node.reads(79)


def test_a_line_from_the_future_is_of_another_boot(node: Node) -> None:
    node.write(line(1, 48, seconds=100_000), line(2, 79, seconds=10**12))
    node.reader()
    node.reads()


def test_a_new_boot_that_cuts_the_file(node: Node) -> None:
    node.write(line(1, 48), line(2, 31))
    reader = node.reader()
    node.reads(48, 31)
    node.boot = BootClock(boot_id=NEXT_BOOT, booted_at=datetime.now(UTC))
    node.path.write_text(line(0, 79), encoding="utf-8")
    node.reads(48, 31, 79)
    assert node.told[-1].boot_id == NEXT_BOOT
    assert reader.position == LogPosition(boot_id=NEXT_BOOT, sequence=0, microseconds=1_000_000)


def test_a_new_boot_whose_log_is_already_longer(node: Node) -> None:
    node.write(line(1, 48))
    node.reader()
    node.reads(48)
    node.boot = BootClock(boot_id=NEXT_BOOT, booted_at=datetime.now(UTC))
    node.path.write_text(line(0, 79) + line(1, 31) + line(2, 13), encoding="utf-8")
    node.reads(48, 79, 31, 13)


def test_a_rotated_file_is_read_to_its_end_and_then_the_new_one(node: Node) -> None:
    node.write(line(1, 48))
    node.reader()
    node.reads(48)
    node.write(line(2, 31))
    node.path.rename(node.path.with_name("log.1"))
    node.path.write_text(line(3, 79), encoding="utf-8")
    node.reads(48, 31, 79)


def test_half_a_line_waits_for_its_other_half(node: Node) -> None:
    node.reader()
    whole = line(1, 79)
    node.write(whole[:30])
    time.sleep(0.4)
    node.write(whole[30:])
    node.reads(79)


def test_a_log_that_is_not_there_is_said_and_found_later(node: Node) -> None:
    node.path.unlink()
    reader = node.reader()
    assert reader.status.word == "absent"
    assert str(node.path) in reader.status.sentence
    node.path.write_text(line(1, 48), encoding="utf-8")
    node.reads(48)
    assert reader.status.word == "ok"
    node.path.unlink()
    until(lambda: reader.status.word == "absent")
    node.path.write_text(line(2, 79), encoding="utf-8")
    node.reads(48, 79)


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    node = Node(tmp_path)
    reader = node.reader()
    assert (reader.status.word, "neither" in reader.status.sentence) == ("failed", True)
    reader.stop()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission_is_said(node: Node) -> None:
    node.path.chmod(0)
    assert node.reader().status.word == "refused"


def test_an_unknown_boot_is_a_failed_log(node: Node) -> None:
    node.write(line(1, 48))
    node.clock_fails = True
    reader = node.reader()
    assert reader.status.word == "failed"
    node.clock_fails = False
    node.reads(48)


def test_stopping(node: Node) -> None:
    reader = node.reader()
    before = threading.active_count()
    started = time.monotonic()
    reader.stop()
    reader.stop()
    assert time.monotonic() - started < 1
    assert reader.status.word == "stopped"
    assert threading.active_count() == before - 1
    never_started = KmsgReader(node.path, node.clock, node.told.append)
    never_started.stop()


def test_a_flood_does_not_prevent_stopping(node: Node) -> None:
    node.write(*(line(n, 31) for n in range(60_000)))
    reader = node.reader()
    started = time.monotonic()
    reader.stop()
    assert time.monotonic() - started < 2


def test_a_flood_does_not_hold_back_the_history(node: Node) -> None:
    node.write(line(1, 79))

    def clock() -> BootClock:
        """Asked between two reads: no read ever finds nothing new."""
        node.write("5,2,2000000,-;audit: noise\n")
        return node.boot

    reader = KmsgReader(node.path, clock, node.told.append)
    node.readers.append(reader)
    reader.start()
    until(lambda: node.xids() == [79])


def test_a_history_is_bounded(node: Node) -> None:
    node.write(*(line(n, 31) for n in range(60_000)))
    node.reader()
    until(lambda: len(node.told) >= 50_000)
    time.sleep(0.3)
    assert len(node.told) == 50_000, "the newest ones"


def test_a_line_without_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (LONGEST_LINE + 2) + b"\n" + b"y\n")
    source = open_source(path)
    assert isinstance(source, FileSource)
    assert source.read()[-1] == "y"
    with path.open("ab") as log:
        log.write(b"z" * (LONGEST_LINE + 2))
    assert source.read() == ()
    with path.open("ab") as log:
        log.write(b"\nafter\n")
    assert source.read() == ("", "after")
    source.close()


def kernel_log_is_writable() -> bool:
    """Whether this machine lets us write to and read from its kernel log."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def print_to_kernel_log(text: str) -> None:
    """One line of root's own to the kernel log."""
    with open("/dev/kmsg", "w", encoding="utf-8") as log:
        log.write(f"<3>{text}\n")


needs_kernel_log = pytest.mark.skipif(not kernel_log_is_writable(), reason="no /dev/kmsg to write to")


@needs_kernel_log
def test_the_real_kernel_log(tmp_path: Path) -> None:
    mine = f"GPU-{uuid.uuid4()}"
    node = Node(Path("/dev/kmsg"))
    reader = node.reader()
    until(lambda: reader.position is not None)
    print_to_kernel_log(f"GPU reset executed: {mine}, success: true")

    def told() -> int:
        return sum(isinstance(event, KernelNotice) and event.gpu == mine for event in node.told)

    until(lambda: told() == 1)
    reader.stop()
    again = node.reader(resume=reader.position)
    time.sleep(0.5)
    again.stop()
    assert told() == 1


@needs_kernel_log
def test_the_kernels_own_clock_may_run_ahead() -> None:
    """It is not slewed: after months it is minutes off, and the ring holds no other boot."""
    mine = f"GPU-{uuid.uuid4()}"
    node = Node(Path("/dev/kmsg"))
    node.boot = BootClock(boot_id=BOOT, booted_at=datetime.now(UTC))
    print_to_kernel_log(f"GPU reset executed: {mine}, success: true")
    reader = node.reader()
    until(lambda: any(isinstance(event, KernelNotice) and event.gpu == mine for event in node.told))
    reader.stop()
    assert all(event.observed_at <= datetime.now(UTC) for event in node.told)


@needs_kernel_log
def test_the_kernel_log_through_the_system_call() -> None:
    try:
        source = SyslogSource()
    except SourceFailed as refused:
        pytest.skip(refused.sentence)
    mark = f"gpuward-test-{uuid.uuid4()}"
    source.read()
    print_to_kernel_log(mark)
    lines = source.read()
    assert sum(mark in each for each in lines) == 1
    assert not any(mark in each for each in source.read())
    assert source.overruns == 0
    assert (source.descriptor(), source.begun_anew()) == (None, False)
    source.close()
