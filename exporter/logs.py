"""Log lines of the exporter: logfmt or JSON on standard error, one line per record.

Key-value pairs travel in `extra={"fields": {...}}`, so that a message stays a constant that one can search for.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

FORMATS: Final = ("logfmt", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


def fields(**pairs: object) -> dict[str, dict[str, object]]:
    """The `extra` argument of a log call that carries `pairs`."""
    return {"fields": pairs}


def _pairs(record: logging.LogRecord) -> dict[str, object]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    pairs: dict[str, object] = {
        "ts": moment,
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    pairs.update(getattr(record, "fields", {}))
    if record.exc_info:
        pairs["exception"] = logging.Formatter().formatException(record.exc_info)
    return pairs


class LogfmtFormatter(logging.Formatter):
    """`ts=... level=info logger=exporter.server msg="listening" address=...`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; the message is always quoted, other values where they must be."""
        return " ".join(f"{key}={_quoted(value, always=key == 'msg')}" for key, value in _pairs(record).items())


def _quoted(value: object, *, always: bool) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(mark in text for mark in ' ="\\')
    return text if plain and not always else json.dumps(text, ensure_ascii=False)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, the same keys as logfmt."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return json.dumps(_pairs(record), default=str, ensure_ascii=False)


def set_up(level: str, form: str) -> None:
    """Send every record of `level` and above to standard error in `form`; replaces what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # The server's own start and stop lines say less than ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
