"""Records of the kernel log: `/dev/kmsg`, `dmesg` and syslog forms to text and time. Pure, never raising.

Forms: `prio,seq,usec,flags;message` (and ` KEY=value` lines that belong to the record before), `<prio>[ secs.micros]
message`, `[secs.micros] message`, `Nov 20 03:11:09 host kernel: message`, and bare messages.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MARKS: Final = ("NVRM", "SXid", "GPU reset executed")
"""What every line about a GPU contains."""
KEPT: Final = 50_000
DISORDER_MICROSECONDS: Final = 1_000_000

_DEVICE = re.compile(r"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]{0,100};")
_STAMPED = re.compile(r"(?:<\d{1,4}>)?\[ {0,12}(\d{1,10})\.(\d{6})\] ?")
_SYSLOG_TIME = r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{8,32})"
_SYSLOG = re.compile(_SYSLOG_TIME + r" \S{1,255} ([^\s:\[]{1,64})\S{0,16}: ?")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One message of the kernel."""

    text: str
    sequence: int | None = None
    """Number of the record in this boot; None where the form has none."""
    microseconds: int | None = None
    """Since boot; None where the form has none."""


class Backlog:
    """What a log held when it was opened: the GPU lines of its last boot, at most `KEPT` of them."""

    def __init__(self) -> None:
        self.records: deque[Record] = deque(maxlen=KEPT)
        self.last: Record | None = None
        """The newest record of any kind."""

    def add(self, records: Iterable[Record]) -> None:
        """More records, in order; where number or time runs backwards a new boot begins."""
        for record in records:
            if self.last is not None and _runs_backwards(self.last, record):
                self.records.clear()
            self.last = record
            if any(mark in record.text for mark in MARKS):
                self.records.append(record)


def _runs_backwards(before: Record, here: Record) -> bool:
    if before.sequence is not None and here.sequence is not None:
        return here.sequence < before.sequence
    if before.microseconds is None or here.microseconds is None:
        return False
    # Processors stamp their lines a little out of order.
    return before.microseconds - here.microseconds > DISORDER_MICROSECONDS


def parse_record(line: str) -> Record | None:
    """One line of a kernel log; None for a continuation line (dictionary of the record before) and for nothing."""
    line = line.rstrip("\n")
    if not line.strip() or line.startswith(" "):
        return None
    if found := _DEVICE.match(line):
        return Record(
            text=_ESCAPE.sub(_byte, line[found.end() :]),
            sequence=int(found[2]),
            microseconds=int(found[3]),
        )
    if found := _STAMPED.match(line):
        return Record(text=line[found.end() :], microseconds=int(found[1]) * 1_000_000 + int(found[2]))
    if found := _SYSLOG.match(line):
        # Anybody may write into a syslog file; only the kernel's own lines are witnesses.
        return Record(text=line[found.end() :]) if found[1] == "kernel" else None
    return Record(text=line)


def _byte(found: re.Match[str]) -> str:
    r"""The kernel writes what is not printable as \xNN; only ASCII is given back as it was."""
    code = int(found[1], 16)
    return chr(code) if code < 0x80 else found[0]
