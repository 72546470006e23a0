"""What survives a restart, and what happens when the disk does not play along."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.assess.judge import judge
from exporter.assess.ledger import Ledger
from exporter.assess.limits import Limits
from exporter.assess.xids import XidCounts, count
from exporter.readers.kmsg import LogPosition
from exporter.state_file import Kept, StateFile
from tests.rig.readings_world import BOOT, NEXT_BOOT, a_snapshot, an_identity, an_xid, at

LIMITS = Limits()


def something(xids: int = 1) -> Kept:
    events = tuple(an_xid(79, seconds=60 * each) for each in range(xids))
    return Kept(
        ledger=judge(Ledger(limits=LIMITS), a_snapshot(xids=events), at(60 * xids)),
        xids=replace(count(XidCounts(), events, BOOT), unpaired={}),
        kernel_log=LogPosition(boot_id=BOOT, sequence=7),
        gpus=(an_identity(0, mig_uuids=("MIG-0",)),),
    )


def written(path: Path) -> int:
    return path.stat().st_mtime_ns


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    kept = something()
    assert StateFile(tmp_path / "new" / "state.json", LIMITS).save(kept)
    back = StateFile(tmp_path / "new" / "state.json", LIMITS).load()
    assert back.ledger.findings == kept.ledger.findings
    assert back.xids.counts == kept.xids.counts
    assert (back.kernel_log, back.gpus) == (kept.kernel_log, kept.gpus)


def test_no_file_is_an_empty_memory(tmp_path: Path) -> None:
    assert StateFile(tmp_path / "state.json", LIMITS).load().ledger.findings == ()
    assert list(tmp_path.iterdir()) == []


def test_unchanged_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    file = StateFile(path, LIMITS)
    file.save(something())
    before = written(path)
    later = replace(something(), ledger=replace(something().ledger, watched_at=at(3600)))
    assert file.save(later) and written(path) == before
    assert file.save(something(xids=2)) and written(path) != before


def test_a_restart_alone_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    StateFile(path, LIMITS).save(something())
    before = written(path)
    again = StateFile(path, LIMITS)
    again.save(again.load())
    assert written(path) == before


def test_another_boot_forgets_places_and_boards_and_keeps_the_ledger() -> None:
    kept = something()
    assert kept.of_boot(BOOT) == kept
    after = kept.of_boot(NEXT_BOOT)
    assert (after.kernel_log, after.gpus, after.ledger) == (None, (), kept.ledger)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00" * 64, id="zeros after a power cut"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[]", id="another shape"),
        pytest.param(b'{"format": 99}', id="another format"),
        pytest.param(b"[" * 100_000, id="deeply nested"),
        pytest.param(None, id="gpus are no list of boards"),
    ],
)
def test_a_corrupt_file_is_set_aside_and_said(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    if content is None:
        StateFile(path, LIMITS).save(something())
        content = json.dumps({**json.loads(path.read_text()), "gpus": [{"index": 0}]}).encode()
    path.write_bytes(content)
    file = StateFile(path, LIMITS)
    with caplog.at_level(logging.WARNING):
        assert file.load().ledger.findings == ()
    assert "corrupt" in caplog.text
    assert (tmp_path / "state.json.corrupt").read_bytes() == content
    assert file.save(something()) and StateFile(path, LIMITS).load().xids.counts == something().xids.counts


def test_a_disk_that_refuses_is_said_once_and_counted_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A file where the folder should be: refused for root as well.
    (tmp_path / "folder").write_text("")
    file = StateFile(tmp_path / "folder" / "state.json", LIMITS)
    with caplog.at_level(logging.INFO):
        assert [file.save(something(1)), file.save(something(2))] == [False, False]
        assert caplog.text.count("cannot be written") == 1
        (tmp_path / "folder").unlink()
        assert file.save(something(2))
    assert "is written again" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    file = StateFile(path, LIMITS)
    file.save(something(1))
    os.symlink("/dev/full", tmp_path / "state.json.new")
    assert file.save(something(2)) is False
    assert StateFile(path, LIMITS).load().xids.counts == something(1).xids.counts


def test_read_only_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("garbage")
    file = StateFile(path, LIMITS, read_only=True)
    file.load()
    assert file.save(something())
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]
    assert path.read_text() == "garbage"
