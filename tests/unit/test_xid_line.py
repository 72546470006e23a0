"""The grammar of NVIDIA's kernel lines, line by line, and that no line ever breaks it."""

from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exporter.readers.kernel_story import KEPT, KernelStory, When
from exporter.readers.kmsg_record import Backlog, Record, parse_record
from exporter.readers.xid_line import (
    LONGEST_TEXT,
    FellOffLine,
    Line,
    NoticeHead,
    NoticeTail,
    ResetLine,
    SxidLine,
    UuidLine,
    XidLine,
    normal_pci,
    parse,
)
from exporter.readings import KernelNotice, NoticeKind, XidEvent, XidFamily
from tests.rig.readings_world import BOOT, T0, at

UUID = "GPU-6f1d0a7c-2b51-49d2-9a3e-5f0c4c8b7e21"
P4E = "00000000:4e:00.0"


def xid(code: int, text: str, pci: str = P4E, pid: int | None = None, process: str | None = None) -> XidLine:
    """An Xid on a GPU without MIG."""
    return XidLine(pci_bus_id=pci, code=code, text=text, pid=pid, process=process)


LINES: list[tuple[str, str, Line | None]] = [
    ("uuid", f"NVRM: GPU at PCI:0000:4e:00: {UUID}", UuidLine(pci_bus_id=P4E, uuid=UUID)),
    ("uuid in capitals", f"NVRM: GPU at PCI:0000:4E:00: {UUID.upper()}", UuidLine(pci_bus_id=P4E, uuid=UUID)),
    ("serial", "NVRM: GPU Board Serial Number: 1654922000123", None),
    (
        "quoted unknown pid",
        "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        xid(79, "GPU has fallen off the bus."),
    ),
    (
        "pid without name",
        "NVRM: Xid (PCI:0000:4e:00): 79, pid=1217, GPU has fallen off the bus.",
        xid(79, "GPU has fallen off the bus.", pid=1217),
    ),
    ("no pid", "NVRM: Xid (PCI:0000:4e:00): 120, GSP task exception: x, y", xid(120, "GSP task exception: x, y")),
    ("nothing but a code", "NVRM: Xid (PCI:0000:4e:00): 79", xid(79, "")),
    ("fell off", "NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus.", FellOffLine(pci_bus_id=P4E)),
    ("head of three", "NVRM: The NVIDIA GPU 0000:4e:00.0", NoticeHead(pci_bus_id=P4E)),
    ("middle of three", "NVRM: (PCI ID: 10de:2330) installed in this system has", None),
    ("tail of three", "NVRM: fallen off the bus and is not responding to commands.", NoticeTail()),
    (
        "name with spaces and dots",
        "NVRM: Xid (PCI:0000:4e:00): 13, pid=21, name=my train.py x, Graphics SM Warp Exception on (GPC 1, TPC 3)",
        xid(13, "Graphics SM Warp Exception on (GPC 1, TPC 3)", pid=21, process="my train.py x"),
    ),
    (
        "a text that is only a channel",
        "NVRM: Xid (PCI:0000:4e:00): 45, pid=7, name=a, Ch 00000008 caused by previous Xid 31",
        xid(45, "Ch 00000008 caused by previous Xid 31", pid=7, process="a"),
    ),
    (
        "MIG instance and compute instance",
        "NVRM: Xid (PCI:0000:4e:00 GPU-I:03 GPU-CI:00): 31, pid=30921, name=w, Ch 00000012",
        XidLine(
            pci_bus_id=P4E, code=31, text="Ch 00000012", pid=30921, process="w", gpu_instance=3, compute_instance=0
        ),
    ),
    (
        "MIG instance alone",
        "NVRM: Xid (PCI:0000:4e:00 GPU-I:05): 94, pid=1, name=t, Contained: x. RST: No, D-RST: Yes",
        XidLine(pci_bus_id=P4E, code=94, text="Contained: x. RST: No, D-RST: Yes", pid=1, process="t", gpu_instance=5),
    ),
    (
        "154",
        "NVRM: Xid (PCI:0000:4e:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x2 (OS Reboot)",
        xid(154, "GPU recovery action changed from 0x1 (PF FLR) to 0x2 (OS Reboot)"),
    ),
    (
        "very old, without PCI:",
        "NVRM: Xid (0000:03:00): 13, 0003 00000000 0000902d",
        xid(13, "0003 00000000 0000902d", "00000000:03:00.0"),
    ),
    ("a domain of its own", "NVRM: Xid (PCI:0018:01:00): 149, X", xid(149, "X", "00000018:01:00.0")),
    ("a function part", "NVRM: Xid (PCI:0000:4e:00.0): 62, X", xid(62, "X")),
    (
        "journald",
        "Nov 20 03:11:09 node-17 kernel: NVRM: Xid (PCI:0000:4e:00): 62, pid=1209, name=dcgm-exporter, 2c5c1b42",
        xid(62, "2c5c1b42", pid=1209, process="dcgm-exporter"),
    ),
    (
        "dmesg",
        "[1209311.882411] NVRM: Xid (PCI:0000:4e:00): 63, pid='<unknown>', name=<unknown>, Dynamic Page Retirement",
        xid(63, "Dynamic Page Retirement"),
    ),
    (
        "kmsg",
        "6,18832,12094412,-;NVRM: Xid (PCI:0000:4e:00): 110, pid=1, name=systemd, SEC_FAULT: _FAULT_SCC",
        xid(110, "SEC_FAULT: _FAULT_SCC", pid=1, process="systemd"),
    ),
    (
        "fatal sxid",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up (First)",
        SxidLine(pci_bus_id="00000000:05:00.0", code=20034, text="Fatal, Link 30 LTSSM Fault Up (First)", link=30),
    ),
    (
        "sxid without a link",
        "nvidia-nvswitch1: SXid (PCI:0000:04:00.0): 10004, NVSWITCH Temperature 96C",
        SxidLine(pci_bus_id="00000000:04:00.0", code=10004, text="NVSWITCH Temperature 96C"),
    ),
    ("sxid severity", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 30", None),
    ("sxid data", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Data {0x00000000}", None),
    ("sxid without a code", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): Fatal", None),
    ("reset", f"GPU reset executed: {UUID}, success: true", ResetLine(uuid=UUID, success=True)),
    ("failed reset", f"GPU reset executed: {UUID}, success: false", ResetLine(uuid=UUID, success=False)),
    ("rate limit", "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:86:00 (printing 1 of 30).", None),
    ("init failed", "NVRM: GPU 0000:d1:00.0: RmInitAdapter failed! (0x62:0x40:2402)", None),
    ("crash of a program", "python3[214883]: segfault at 7f20 ip 00007f1ea2b6f0c1 error 4 in libnccl.so.2", None),
    ("no code", "NVRM: Xid (PCI:0000:4e:00): none, x", None),
    ("a code that cannot be", "NVRM: Xid (PCI:0000:4e:00): 1234567, x", None),
    ("no address", "NVRM: Xid (PCI:nowhere): 79, x", None),
    ("empty", "", None),
]


@pytest.mark.parametrize(("line", "parsed"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_lines(line: str, parsed: Line | None) -> None:
    assert parse(line) == parsed


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("0000:4e:00", P4E),
        ("PCI:0000:4E:00", P4E),
        ("00000000:4E:00.0", P4E),
        ("4e:00", P4E),
        ("0018:01:00.1", "00000018:01:00.1"),
        ("0000:4e:00.9", None),
        ("x", None),
        ("", None),
    ],
)
def test_normal_pci(text: str, normal: str | None) -> None:
    assert normal_pci(text) == normal


PIECES = (
    *("NVRM: ", "Xid ", "SXid ", "(PCI:", "0000:4e:00", "): ", "79", ", ", "pid=", "'<unknown>'", "name=", UUID),
    *("GPU at ", "GPU-I:", "fallen off the bus", "GPU reset executed: ", "success: true", "\x00", "\n", "९"),
)
pieces = st.sampled_from(PIECES)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(pieces, st.text(max_size=8)), max_size=20).map("".join))
@example("NVRM: Xid (PCI:0000:4e:00): ९९, x")
def test_no_line_breaks_the_grammar(line: str) -> None:
    parsed = parse(line)
    if isinstance(parsed, XidLine):
        assert 0 <= parsed.code <= 99999
        assert len(parsed.text) <= LONGEST_TEXT
        assert normal_pci(parsed.pci_bus_id) == parsed.pci_bus_id
    parse_record(line)
    KernelStory().read(line, When(at=T0, boot_id=BOOT))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 0xFFFF),
    st.integers(0, 255),
    st.integers(0, 99999),
    st.none() | st.integers(1, 4_000_000),
    st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), max_size=60),
)
def test_what_the_driver_prints_is_read_back(domain: int, bus: int, code: int, pid: int | None, text: str) -> None:
    owner = "" if pid is None else f"pid={pid}, name=python3, "
    line = parse(f"NVRM: Xid (PCI:{domain:04x}:{bus:02x}:00): {code}, {owner}{text}")
    assert isinstance(line, XidLine)
    assert (line.pci_bus_id, line.code) == (f"{domain:08x}:{bus:02x}:00.0", code)
    if pid is not None:
        assert (line.pid, line.process) == (pid, "python3")


NVRM = "NVRM: Xid (PCI:0000:4e:00): 79, x"


@pytest.mark.parametrize(
    ("line", "record"),
    [
        pytest.param(f"3,17,1000,-;{NVRM}", Record(text=NVRM, sequence=17, microseconds=1000), id="kmsg"),
        pytest.param(f"6,17,1000,c,caller=T1;{NVRM}", Record(text=NVRM, sequence=17, microseconds=1000), id="caller"),
        pytest.param(
            "3,17,1000,-;a\\x0ab\\xc3", Record(text="a\nb\\xc3", sequence=17, microseconds=1000), id="escapes"
        ),
        pytest.param(" SUBSYSTEM=pci", None, id="dictionary of the record before"),
        pytest.param(f"[   12.000345] {NVRM}", Record(text=NVRM, microseconds=12_000_345), id="dmesg"),
        pytest.param(f"<3>[12.000345] {NVRM}", Record(text=NVRM, microseconds=12_000_345), id="syslog(2)"),
        pytest.param(f"Nov 20 03:11:09 n-17 kernel: {NVRM}", Record(text=NVRM), id="syslog file"),
        pytest.param(f"2026-11-20T03:11:09.1+01:00 n kernel: {NVRM}", Record(text=NVRM), id="syslog file, new time"),
        pytest.param(f"Nov 20 03:11:09 n-17 evil[7]: {NVRM}", None, id="a program is no kernel"),
        pytest.param(NVRM, Record(text=NVRM), id="bare"),
        pytest.param("", None, id="empty"),
        pytest.param("   ", None, id="blank"),
    ],
)
def test_records(line: str, record: Record | None) -> None:
    assert parse_record(line) == record


def rec(sequence: int | None, microseconds: int | None, text: str = NVRM) -> Record:
    """A record."""
    return Record(text=text, sequence=sequence, microseconds=microseconds)


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        pytest.param([rec(1, 10), rec(2, 20)], [1, 2], id="in order"),
        pytest.param([rec(7, 70), rec(1, 10)], [1], id="numbers start again: another boot"),
        pytest.param([rec(1, 90), rec(2, 10)], [1, 2], id="numbers outrank times"),
        pytest.param([rec(1, 1, "else"), rec(2, 2)], [2], id="GPU lines only"),
    ],
)
def test_backlog_keeps_the_last_boot(records: list[Record], kept: list[int]) -> None:
    backlog = Backlog()
    backlog.add(records)
    assert [record.sequence for record in backlog.records] == kept


def test_backlog_by_time() -> None:
    backlog = Backlog()
    backlog.add([rec(None, 5_000_000), rec(None, 4_900_000)])
    assert len(backlog.records) == 2, "processors stamp a little out of order"
    backlog.add([rec(None, 1_000_000), rec(None, None)])
    assert [record.microseconds for record in backlog.records] == [1_000_000, None]


def told(*lines: str, story: KernelStory | None = None, seconds: float = 0) -> list[XidEvent | KernelNotice]:
    """What a story tells of these lines."""
    reader = story or KernelStory()
    return [event for line in lines for event in reader.read(line, When(at=at(seconds), boot_id=BOOT))]


def test_a_line_becomes_an_event_with_its_gpu() -> None:
    (event,) = told(
        f"NVRM: GPU at PCI:0000:4e:00: {UUID}",
        "NVRM: Xid (PCI:0000:4e:00 GPU-I:03): 31, pid=5, name=a, fault",
    )
    assert event == XidEvent(
        code=31,
        gpu=UUID,
        pci_bus_id=P4E,
        observed_at=at(0),
        source="kernel-log",
        text="fault",
        pid=5,
        process="a",
        gpu_instance=3,
        boot_id=BOOT,
    )


@pytest.mark.parametrize("as_one_record", [True, False])
def test_the_notice_in_three_lines(as_one_record: bool) -> None:
    lines = (
        "NVRM: The NVIDIA GPU 0000:4e:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    (notice,) = told(*(("\n".join(lines),) if as_one_record else lines))
    assert isinstance(notice, KernelNotice)
    assert (notice.kind, notice.pci_bus_id, notice.gpu) == (NoticeKind.FELL_OFF, P4E, None)


def test_a_tail_without_head_is_nothing() -> None:
    assert told("NVRM: fallen off the bus and is not responding to commands.") == []


def test_words_after_xid_79_are_the_same_loss() -> None:
    story = KernelStory()
    assert len(told("NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.", story=story)) == 1
    words = "NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus."
    assert told(words, story=story, seconds=1) == []
    (again,) = told(words, story=story, seconds=301)
    assert isinstance(again, KernelNotice)
    assert told(words, story=story, seconds=302) == []


def test_a_reset_is_told() -> None:
    (done,) = told(f"GPU reset executed: {UUID}, success: true")
    (failed,) = told(f"GPU reset executed: {UUID}, success: false")
    assert isinstance(done, KernelNotice)
    assert isinstance(failed, KernelNotice)
    assert (done.kind, done.gpu, failed.kind) == (NoticeKind.RESET_DONE, UUID, NoticeKind.RESET_FAILED)


def test_one_sxid_per_switch_code_and_link_within_seconds() -> None:
    story = KernelStory()
    line = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link {} LTSSM Fault Up"
    first = told(line.format(30), line.format(30), line.format(31), story=story)
    assert [event.family for event in first if isinstance(event, XidEvent)] == [XidFamily.SXID, XidFamily.SXID]
    assert len(told(line.format(30), story=story, seconds=5)) == 1


def test_memory_of_a_story_is_bounded() -> None:
    story = KernelStory()
    for bus in range(256):
        for device in range(4):
            told(f"NVRM: GPU at PCI:0000:{bus:02x}:{device:02x}: {UUID}", story=story)
    (event,) = told("NVRM: Xid (PCI:0000:00:00): 31, x", story=story)
    assert isinstance(event, XidEvent)
    assert event.gpu is None, f"only the newest {KEPT} addresses are kept"
    assert timedelta(0) == event.observed_at - T0
