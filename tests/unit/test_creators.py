"""The names of earlier starts: known to the next one, and to no copy of the directory."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from fastlog.log import creators
from fastlog.log.creators import add_creator
from fastlog.log.discovery import scan_log_dirs
from fastlog.log.files import FileOps
from fastlog.segment_files import CREATORS_NAME
from tests.harness.faulty_files import FaultyFileOps

FILES = FileOps()


def test_every_start_knows_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creators, "KEPT", 4)
    assert [add_creator(tmp_path, name, FILES) for name in ("a-1", "a-2", "ä-3")] == [(), ("a-1",), ("a-2", "a-1")]
    for number in range(6):
        former = add_creator(tmp_path, f"b-{number}", FILES)
    assert former == ("b-4", "b-3", "b-2", "b-1")
    assert scan_log_dirs([tmp_path]) == ([], []), "it is passed over as something unknown"


def test_a_copy_of_the_directory_knows_nothing(tmp_path: Path) -> None:
    """Else the broker that runs on the copy would take the id of the one that runs on the original."""
    original, copy = tmp_path / "a", tmp_path / "b"
    original.mkdir()
    add_creator(original, "a-1", FILES)
    shutil.copytree(original, copy)
    assert add_creator(copy, "b-1", FILES) == ()
    assert add_creator(original, "a-2", FILES) == ("a-1",)


def test_a_machine_that_was_cloned_knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(creators, "BOOT_ID", boot)
    directory = tmp_path / "data"
    directory.mkdir()
    boot.write_text("one\n")
    add_creator(directory, "a-1", FILES)
    assert add_creator(directory, "a-2", FILES) == ("a-1",)
    boot.write_text("two\n")
    assert add_creator(directory, "a-3", FILES) == ()


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"version": 2}', b"[" * 100_000])
def test_a_damaged_file_is_replaced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / CREATORS_NAME).write_bytes(data)
    assert add_creator(tmp_path, "a-1", FILES) == ()
    assert add_creator(tmp_path, "a-2", FILES) == ("a-1",)


@pytest.mark.parametrize("kind", ["write", "fdatasync", "rename", "fsync_dir"])
def test_a_disk_that_refuses_stops_no_start(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    add_creator(tmp_path, "a-1", FILES)
    files = FaultyFileOps()
    files.fail(kind, 1, errno.ENOSPC)
    assert add_creator(tmp_path, "a-2", files) == ("a-1",)
    assert CREATORS_NAME in caplog.text
    assert "a-1" in add_creator(tmp_path, "a-3", FILES)
