"""The clean marker: durable when written, gone for good before it is believed, and never half there."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from fastlog.log.clean_marker import consume_clean_marker, write_clean_marker
from fastlog.log.files import FileOps
from tests.harness.faulty_files import FaultyFileOps

NAME = ".kafka_cleanshutdown"
ENDS = {"topic-0": 0, "topic-with-dash-12": 2**63 - 1, "ü-1": 5}


class PowerCut(BaseException):
    """The machine stops at this call."""


def test_round_trip_and_gone_afterwards(tmp_path: Path) -> None:
    """Conformance 12: a stop leaves the marker; the start that reads it removes it."""
    write_clean_marker(tmp_path, ENDS, FileOps())
    assert json.loads((tmp_path / NAME).read_bytes()) == {"version": 1, "ends": ENDS}
    assert consume_clean_marker(tmp_path, FileOps()) == ENDS
    assert list(tmp_path.iterdir()) == []
    assert consume_clean_marker(tmp_path, FileOps()) == {}


def test_order_of_writing(tmp_path: Path) -> None:
    """Z-5, I-7: bytes durable before the name, the name durable before the call returns."""
    files = FaultyFileOps()
    write_clean_marker(tmp_path, ENDS, files)
    assert files.order == [
        ("open", NAME + ".tmp"),
        ("write", ""),
        ("fdatasync", ""),
        ("rename", NAME + ".tmp"),
        ("fsync_dir", tmp_path.name),
    ]


def test_order_of_consuming(tmp_path: Path) -> None:
    """Z-5, I-7: the marker is removed, and the directory synced, before anybody hears what it said."""
    write_clean_marker(tmp_path, ENDS, FileOps())
    files = FaultyFileOps()
    assert consume_clean_marker(tmp_path, files) == ENDS
    assert files.order[-2:] == [("unlink", NAME), ("fsync_dir", tmp_path.name)]


@pytest.mark.parametrize("kind", ["open", "write", "fdatasync", "rename", "fsync_dir"])
@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC, PowerCut()])
def test_a_write_that_stops_anywhere_leaves_no_half_marker(
    kind: str, failure: int | BaseException, tmp_path: Path
) -> None:
    """The next start finds all of it or nothing."""
    files = FaultyFileOps()
    files.fail(kind, 1, failure)
    with pytest.raises((OSError, PowerCut)):
        write_clean_marker(tmp_path, ENDS, files)
    assert consume_clean_marker(tmp_path, FileOps()) == (ENDS if kind == "fsync_dir" else {})
    write_clean_marker(tmp_path, ENDS, FileOps())
    assert consume_clean_marker(tmp_path, FileOps()) == ENDS


@pytest.mark.parametrize("kind", ["unlink", "fsync_dir"])
def test_a_marker_that_cannot_be_removed_stops_the_start(kind: str, tmp_path: Path) -> None:
    """Z-5: going on would leave it for a later start, which would skip a torn tail."""
    write_clean_marker(tmp_path, ENDS, FileOps())
    files = FaultyFileOps()
    files.fail(kind, 1, errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        consume_clean_marker(tmp_path, files)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"null",
        b"[]",
        b'{"version": 1}',
        b'{"version": 2, "ends": {"t-0": 1}}',
        b'{"version": 1, "ends": {"t-0": -1}}',
        b'{"version": 1, "ends": {"t-0": "1"}}',
        b'{"version": 1, "ends": {"t-0": true}}',
        b'{"version": 1, "ends": {"t-0": 9223372036854775808}}',
        b'{"version": 1, "ends": {"t-0": 1',
        b'{"version": 1, "ends": [1]}',
        b"[" * 100_000,
    ],
)
def test_the_empty_marker_of_0_7_and_a_damaged_one_name_nothing(
    data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every log is scanned then; the marker is gone all the same, and one line says why."""
    (tmp_path / NAME).write_bytes(data)
    assert consume_clean_marker(tmp_path, FileOps()) == {}
    assert not (tmp_path / NAME).exists()
    assert [str(tmp_path / NAME) in record.getMessage() for record in caplog.records] == [True]


def test_an_unreadable_marker_names_nothing_and_goes(tmp_path: Path) -> None:
    write_clean_marker(tmp_path, ENDS, FileOps())
    files = FaultyFileOps()
    files.fail("read", 1)
    assert consume_clean_marker(tmp_path, files) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_marker_that_is_not_there_and_cannot_be_looked_for_stops_no_start(tmp_path: Path) -> None:
    """A disk that fails for a moment; it was taken for one that is there and has to go."""
    files = FaultyFileOps()
    files.fail("open", 1)
    assert consume_clean_marker(tmp_path, files) == {}
    assert files.order == [("open", NAME), ("unlink", NAME), ("fsync_dir", tmp_path.name)]


def test_a_directory_of_that_name_is_no_marker(tmp_path: Path) -> None:
    """T-15: it can never be believed, so it stops nothing."""
    (tmp_path / NAME).mkdir()
    assert consume_clean_marker(tmp_path, FileOps()) == {}
    assert (tmp_path / NAME).is_dir()


def test_an_old_temporary_file_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / (NAME + ".tmp")).write_bytes(b"x" * 10_000)
    write_clean_marker(tmp_path, ENDS, FileOps())
    assert consume_clean_marker(tmp_path, FileOps()) == ENDS
