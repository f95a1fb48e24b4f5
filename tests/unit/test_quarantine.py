"""Bytes that leave a log: copied whole, under a name that nobody has."""

from __future__ import annotations

import os
from pathlib import Path

from fastlog.log.files import FileOps
from fastlog.log.quarantine import TRUNCATED, copy_span, quarantine_file, quarantine_span

FILES = FileOps()


def test_a_span_that_ends_with_its_file_is_copied_as_far_as_it_goes(tmp_path: Path) -> None:
    """A file that was cut meanwhile has less than was asked for."""
    (tmp_path / "from").write_bytes(b"0123456789")
    with FILES.open(tmp_path / "from", os.O_RDONLY) as fd, FILES.open(tmp_path / "to", os.O_RDWR | os.O_CREAT) as copy:
        copy_span(FILES, fd, 4, 30, copy)
    assert (tmp_path / "to").read_bytes() == b"456789"


def test_no_name_is_given_twice(tmp_path: Path) -> None:
    """Two cuts of one millisecond keep the bytes of both."""
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(b"0123456789")
    with FILES.open(path, os.O_RDONLY) as fd:
        made = [quarantine_span(FILES, fd, path, start, 10, now_ms=7) for start in (2, 5)]
    made.append(quarantine_file(FILES, path, TRUNCATED, now_ms=7))
    assert [one.read_bytes() for one in made] == [b"23456789", b"56789", b"0123456789"]
    assert sorted(tmp_path.iterdir()) == sorted(made)
