"""What stands in log directories: partitions are found, and whatever is none is named and left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastlog.errors import RecoveryError
from fastlog.log.discovery import FoundPartition, scan_log_dirs

TOO_LONG = "x" * 300
"""As the target of a link it is an error that says nothing of what stands there."""


def test_partitions_are_found_in_the_order_of_their_names(tmp_path: Path) -> None:
    """In each log directory; what the broker itself keeps there is neither a partition nor worth a line."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one / "b-0", one / "a-1", two / "a-0"):
        path.mkdir(parents=True)
    (one / "meta.properties").touch()
    found, warnings = scan_log_dirs([one, two])
    assert found == [
        FoundPartition(0, one / "a-1", "a", 1),
        FoundPartition(0, one / "b-0", "b", 0),
        FoundPartition(1, two / "a-0", "a", 0),
    ]
    assert warnings == []


def test_what_is_no_partition_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-0").touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "gone-0").symlink_to(tmp_path / "nowhere")
    (tmp_path / "round-0").symlink_to(tmp_path / "round-0")
    (tmp_path / "else").symlink_to(TOO_LONG)
    found, warnings = scan_log_dirs([tmp_path])
    assert found == []
    assert warnings == [
        f"skipped path={tmp_path}/a-0: not a directory",
        f"skipped path={tmp_path}/notes: the name is not <topic>-<partition>",
        f"skipped path={tmp_path}/else: File name too long",
        f"skipped path={tmp_path}/gone-0: not a directory",
        f"skipped path={tmp_path}/round-0: Too many levels of symbolic links",
    ]


def test_a_partition_that_cannot_be_looked_at_is_one(tmp_path: Path) -> None:
    """Passed over, it would be made anew beside what it has."""
    (tmp_path / "t-3").symlink_to(TOO_LONG)
    assert scan_log_dirs([tmp_path]) == ([FoundPartition(0, tmp_path / "t-3", "t", 3)], [])


def test_a_directory_of_two_names_is_one_partition(tmp_path: Path) -> None:
    """That of its own name, whichever comes first; also from another log directory."""
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "t-1").mkdir(parents=True)
    two.mkdir()
    (one / "a-0").symlink_to(one / "t-1")
    (two / "b-0").symlink_to(one / "t-1")
    found, warnings = scan_log_dirs([one, two])
    assert found == [FoundPartition(0, one / "t-1", "t", 1)]
    assert warnings == [
        f"skipped path={one}/a-0: the same directory as {one}/t-1",
        f"skipped path={two}/b-0: the same directory as {one}/t-1",
    ]


def test_a_log_directory_that_cannot_be_read(tmp_path: Path) -> None:
    """Its partitions would be missing, and others would take their places."""
    with pytest.raises(RecoveryError, match=rf"cannot be read: {os.strerror(2)}") as raised:
        scan_log_dirs([tmp_path, tmp_path / "nowhere"])
    assert str(tmp_path / "nowhere") in str(raised.value)
