"""Log lines of the remediator on standard error: logfmt or JSON, one line per record, times in UTC."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

FORMATS: Final = ("logfmt", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


class LineFormatter(logging.Formatter):
    """`ts=... level=info logger=remediator.loop msg="..."`, or the same keys as one JSON object."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        pairs = {
            "ts": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            pairs["exception"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(pairs, ensure_ascii=False)
        free_text = ("msg", "exception")
        return " ".join(
            f"{key}={json.dumps(text, ensure_ascii=False) if key in free_text else text}" for key, text in pairs.items()
        )


def set_up(level: str, form: str) -> None:
    """Send every record of `level` and above to standard error; what others had set up is replaced."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=form == "json"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Their lines per connection and per job run drown ours.
    for name in ("urllib3", "apscheduler", "uvicorn", "kubernetes"):
        logging.getLogger(name).setLevel(logging.WARNING)
