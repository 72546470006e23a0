"""The grammar of NVIDIA lines in the kernel log: text to facts, pure, never raising.

Laws:
1. The line is searched for its mark (`NVRM: Xid`, `SXid`, ...) anywhere: every log puts another prefix before it.
2. Whatever does not fit the grammar is not ours: None, never an exception, never a guess at a code.
3. PCI addresses come out as NVML writes them in 32 characters: `dddddddd:bb:dd.f`, lower case.
Source of the forms: the driver's own print statements, branches 450 to 595.
"""

import re
from dataclasses import dataclass
from typing import Final

LONGEST_TEXT: Final = 1024
"""Characters kept of a line's text; a record of the kernel holds about as many."""


@dataclass(frozen=True, kw_only=True)
class XidLine:
    """`NVRM: Xid (PCI:0000:4e:00): 79, pid=1217, name=python3, GPU has fallen off the bus.`"""

    pci_bus_id: str
    code: int
    text: str
    pid: int | None = None
    process: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, kw_only=True)
class SxidLine:
    """`nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up (First)`"""

    pci_bus_id: str
    code: int
    text: str
    link: int | None = None


@dataclass(frozen=True, kw_only=True)
class UuidLine:
    """`NVRM: GPU at PCI:0000:4e:00: GPU-<uuid>`: the address of a UUID, even when NVML is dead."""

    pci_bus_id: str
    uuid: str


@dataclass(frozen=True, kw_only=True)
class FellOffLine:
    """`NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus.`"""

    pci_bus_id: str


@dataclass(frozen=True, kw_only=True)
class NoticeHead:
    """`NVRM: The NVIDIA GPU 0000:4e:00.0`: first of three lines; the third says what happened."""

    pci_bus_id: str


@dataclass(frozen=True, kw_only=True)
class NoticeTail:
    """`NVRM: fallen off the bus and is not responding to commands.`"""


@dataclass(frozen=True, kw_only=True)
class ResetLine:
    """`GPU reset executed: GPU-<uuid>, success: true`"""

    uuid: str
    success: bool


Line = XidLine | SxidLine | UuidLine | FellOffLine | NoticeHead | NoticeTail | ResetLine

_PCI = r"(?:[0-9a-f]{1,8}:)?[0-9a-f]{1,2}:[0-9a-f]{1,2}(?:\.[0-7])?"
_UUID = r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ADDRESS = re.compile(r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.I)

_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?({_PCI})(?: GPU-I:(\d{{1,3}})(?: GPU-CI:(\d{{1,3}}))?)?\): (\d{{1,5}})(?:, ?(.*))?$",
    re.I | re.S,
)
# The pid is quoted when it is not known. A name may hold spaces and dots, and sometimes commas: it ends at the first
# comma, for the text behind it has commas of its own and no other mark.
_OWNER = re.compile(r"pid=(?:(\d{1,10})|'?<unknown>'?)(?:, name=([^,]*))?(?:, ?|$)", re.I)
_SXID = re.compile(rf"SXid \((?:PCI:)?({_PCI})\): (\d{{1,5}}), ?(.*)$", re.I | re.S)
_SXID_DETAIL = re.compile(r"Severity \d|Data \{")
_LINK = re.compile(r"\bLink (\d{1,3})\b")
_UUID_LINE = re.compile(rf"NVRM: GPU at (?:PCI:)?({_PCI}): ({_UUID})", re.I)
_FELL_OFF = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?({_PCI}): GPU has fallen off the bus", re.I)
_HEAD = re.compile(rf"NVRM: The NVIDIA GPU ({_PCI})", re.I)
_TAIL = re.compile(r"NVRM: fallen off the bus", re.I)
_RESET = re.compile(rf"GPU reset executed: ({_UUID}), success: (true|false)", re.I)


def normal_pci(text: str) -> str | None:
    """`PCI:4E:00`, `0000:4e:00`, `00000000:4E:00.0` -> `00000000:4e:00.0`; None when it is no PCI address."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):08x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"


def parse(line: str) -> Line | None:
    """What one line of the kernel log says about a GPU or NVSwitch; None = nothing that we know."""
    if "NVRM: " in line:
        return _parse_nvrm(line)
    if "SXid" in line:
        return _parse_sxid(line)
    reset = _RESET.search(line)
    return ResetLine(uuid=_uuid(reset[1]), success=reset[2].lower() == "true") if reset else None


def _parse_nvrm(line: str) -> Line | None:
    if "Xid" in line:
        return _parse_xid(line)
    if found := _UUID_LINE.search(line):
        return UuidLine(pci_bus_id=_pci(found[1]), uuid=_uuid(found[2]))
    if found := _FELL_OFF.search(line):
        return FellOffLine(pci_bus_id=_pci(found[1]))
    if found := _HEAD.search(line):
        return NoticeHead(pci_bus_id=_pci(found[1]))
    return NoticeTail() if _TAIL.search(line) else None


def _parse_xid(line: str) -> XidLine | None:
    found = _XID.search(line.rstrip())
    if found is None:
        return None
    pci, gpu_instance, compute_instance, code, rest = found.groups()
    pid, process, text = _owner(rest or "")
    return XidLine(
        pci_bus_id=_pci(pci),
        code=int(code),
        text=text[:LONGEST_TEXT],
        pid=pid,
        process=process,
        gpu_instance=None if gpu_instance is None else int(gpu_instance),
        compute_instance=None if compute_instance is None else int(compute_instance),
    )


def _owner(rest: str) -> tuple[int | None, str | None, str]:
    """Pid, name and the text behind them; a line without a process has only text."""
    found = _OWNER.match(rest)
    if found is None:
        return None, None, rest
    pid = int(found[1]) if found[1] else None
    name = (found[2] or "").strip()
    return pid, name if name and name != "<unknown>" else None, rest[found.end() :]


def _parse_sxid(line: str) -> SxidLine | None:
    found = _SXID.search(line.rstrip())
    if found is None or _SXID_DETAIL.match(found[3]):
        return None
    link = _LINK.search(found[3])
    return SxidLine(
        pci_bus_id=_pci(found[1]),
        code=int(found[2]),
        text=found[3][:LONGEST_TEXT],
        link=int(link[1]) if link else None,
    )


def _pci(text: str) -> str:
    return normal_pci(text) or text.lower()


def _uuid(text: str) -> str:
    """NVML writes the hex digits of a UUID in lower case."""
    return f"GPU-{text[4:].lower()}"
