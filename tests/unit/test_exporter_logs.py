"""Log lines: one per record, machine-readable in both forms, nothing can break out of a line."""

import io
import json
import logging
import sys

import pytest

from exporter.logs import JsonFormatter, LogfmtFormatter, fields, set_up


def record(message: str, *arguments: object, **pairs: object) -> logging.LogRecord:
    made = logging.LogRecord("exporter.test", logging.INFO, "", 0, message, arguments, None)
    vars(made).update(fields(**pairs))
    return made


def test_logfmt() -> None:
    line = LogfmtFormatter().format(record("listening", address="127.0.0.1:9451", path="/metrics"))
    assert line.startswith("ts=20") and "Z level=info logger=exporter.test " in line
    assert line.endswith('msg="listening" address=127.0.0.1:9451 path=/metrics')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "x"', '"say \\"x\\""'),
        ("line\nlevel=error", '"line\\nlevel=error"'),
        (3, "3"),
    ],
)
def test_values_are_quoted_where_they_must_be(value: object, text: str) -> None:
    assert LogfmtFormatter().format(record("m", key=value)).endswith(f"key={text}")


def test_arguments_are_filled_in() -> None:
    assert 'msg="state=ok n=3"' in LogfmtFormatter().format(record("state=%s n=%d", "ok", 3))


def test_json_is_one_object_per_line_with_the_same_keys() -> None:
    line = JsonFormatter().format(record("it\nis", error=ValueError("x")))
    assert "\n" not in line
    parsed = json.loads(line)
    assert (parsed["msg"], parsed["level"], parsed["error"]) == ("it\nis", "info", "x")


def test_an_exception_stays_on_its_line() -> None:
    made = record("failed")
    try:
        raise ValueError("x")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = LogfmtFormatter().format(made)
    assert "ValueError: x" in line and "\n" not in line


def test_set_up_replaces_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    try:
        set_up("info", "logfmt")
        set_up("warning", "json")
        logging.getLogger("x").info("quiet")
        logging.getLogger("x").warning("loud")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert [json.loads(line)["msg"] for line in stream.getvalue().splitlines()] == ["loud"]
