"""What survives a restart of the exporter: standing findings, Xid counters, the GPUs seen in this boot.

Laws:
1. The file appears by rename, whole or not at all.
2. A file that cannot be read is set aside beside its old place, said in the log, and started anew.
3. A disk that is full or read-only is counted and said once; the exporter goes on without memory.
4. Written only when something worth keeping changed: no node's disk is worn by a heartbeat.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from exporter.assess.ledger import Ledger
from exporter.assess.limits import Limits
from exporter.assess.memory import UNPAIRED, BadMemory, decode, encode
from exporter.assess.xids import XidCounts
from exporter.health.vocabulary import BootId
from exporter.logs import fields as log_fields
from exporter.readers.kmsg import LogPosition
from exporter.readings import GpuIdentity

log = logging.getLogger(__name__)

LIMIT_BYTES: Final = 8 << 20
"""Ledger and counters are bounded far below; a larger file is not ours."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Everything that is kept."""

    ledger: Ledger = field(default_factory=Ledger)
    xids: XidCounts = field(default_factory=XidCounts)
    kernel_log: LogPosition | None = None
    """How far the kernel log is counted; the rest is read after a restart."""
    gpus: tuple[GpuIdentity, ...] = ()
    """GPUs seen in the boot of `ledger`: one that is lost before our start cannot say its name."""

    def of_boot(self, boot: BootId) -> "Kept":
        """What of this still holds in `boot`; the ledger itself decides in `fold` what a reboot ends."""
        if self.ledger.boot == boot:
            return self
        return replace(self, kernel_log=None, gpus=())


class StateFile:
    """The file at `path`. Used by one thread."""

    def __init__(self, path: Path, limits: Limits, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        self._limits = limits
        self._saved: dict[str, Any] | None = None
        self._said = ""

    def load(self) -> Kept:
        """What was kept; nothing when there is no file or it cannot be used."""
        nothing = Kept(ledger=Ledger(limits=self._limits), xids=XidCounts(window=self._limits.duplicate_window))
        try:
            if self._path.stat().st_size > LIMIT_BYTES:
                raise BadMemory(f"more than {LIMIT_BYTES} bytes")
            raw = json.loads(self._path.read_bytes())
            kept = _kept(raw, self._limits)
        except FileNotFoundError:
            return nothing
        except OSError as failed:
            log.warning("state file cannot be read", extra=log_fields(path=self._path, error=failed))
            return nothing
        except (ValueError, RecursionError) as wrong:  # BadMemory, not JSON, not UTF-8
            self._set_aside(wrong)
            return nothing
        self._saved = _worth(raw)
        return kept

    def save(self, kept: Kept) -> bool:
        """Keep it when it changed; False when the disk refused, which is said once per kind of refusal."""
        if self._read_only:
            return True
        raw = _raw(kept)
        worth = _worth(raw)
        if worth == self._saved:
            return True
        try:
            self._write(json.dumps(raw, separators=(",", ":")).encode())
        except OSError as failed:
            self._say(failed)
            return False
        self._saved = worth
        if self._said:
            self._said = ""
            log.info("state file is written again", extra=log_fields(path=self._path))
        return True

    def _write(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def _say(self, failed: OSError) -> None:
        kind = type(failed).__name__ + str(failed.errno)
        if kind != self._said:
            self._said = kind
            log.warning(
                "state file cannot be written; Xid counters will start anew after a restart",
                extra=log_fields(path=self._path, error=failed),
            )

    def _set_aside(self, wrong: Exception) -> None:
        if self._read_only:
            return
        aside = self._path.with_name(f"{self._path.name}.corrupt")
        try:
            self._path.replace(aside)
        except OSError as failed:
            aside = self._path
            log.warning("corrupt state file stays where it is", extra=log_fields(path=self._path, error=failed))
        log.warning("state file is corrupt; starting anew", extra=log_fields(aside=aside, error=wrong))


def _raw(kept: Kept) -> dict[str, Any]:
    return {
        **encode(kept.ledger, kept.xids),
        "kernelLog": asdict(kept.kernel_log) if kept.kernel_log else None,
        "gpus": [asdict(identity) for identity in kept.gpus],
    }


def _worth(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` without the times that move in every turn, and without witnesses: they come with a count that moves too."""
    ledger = {key: value for key, value in raw["ledger"].items() if key not in ("watchedAt", "entries", UNPAIRED)}
    entries = [{key: entry[key] for key in entry if key != "quietSince"} for entry in raw["ledger"]["entries"]]
    xids = {key: value for key, value in raw["xids"].items() if key != UNPAIRED}
    plain: dict[str, Any] = json.loads(json.dumps({**raw, "ledger": {**ledger, "entries": entries}, "xids": xids}))
    return plain


def _kept(raw: Any, limits: Limits) -> Kept:
    if not isinstance(raw, dict):
        raise BadMemory("not a JSON object")
    ledger, xids = decode(raw, limits)
    try:
        position = raw["kernelLog"]
        return Kept(
            ledger=ledger,
            xids=xids,
            kernel_log=None if position is None else LogPosition(**position),
            gpus=tuple(_identity(gpu) for gpu in raw["gpus"]),
        )
    except (KeyError, TypeError) as wrong:
        raise BadMemory(f"kept state cannot be read: {wrong}") from wrong


def _identity(raw: Mapping[str, Any]) -> GpuIdentity:
    known = {each.name for each in fields(GpuIdentity)}
    values = {key: value for key, value in raw.items() if key in known}
    return GpuIdentity(**{**values, "mig_uuids": tuple(values.get("mig_uuids", ()))})
