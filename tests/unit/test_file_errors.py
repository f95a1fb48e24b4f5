"""Errors of disks name the file, whichever call meets them; what a person gets to read begins with it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from fastlog import broker
from fastlog.errors import LogError
from fastlog.log.files import FileOps
from fastlog.log.quarantine import quarantine_span
from tests.harness.faulty_files import FaultyFileOps


def refuse(*_: object) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("call", ["fsync", "close"])
def test_a_directory_whose_sync_fails_is_named(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call on a descriptor does not know it by itself."""
    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output error") as caught:
        patched.setattr(os, call, refuse)
        FileOps().fsync_dir(tmp_path)
    assert caught.value.filename == str(tmp_path)


@pytest.mark.parametrize("call", ["pread", "close"])
def test_a_file_that_cannot_be_read_or_closed_is_named(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when only its end goes wrong; one error that was named is not named again."""
    path = tmp_path / "file"
    path.touch()
    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output error") as caught:
        patched.setattr(os, call, refuse, raising=False)
        with FileOps().open(path, os.O_RDONLY):
            if call == "pread":
                refuse()
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="other") as caught, FileOps().open(path, os.O_RDONLY):
        raise OSError(errno.EIO, "", "other")
    assert caught.value.filename == "other"


def test_a_lock_that_cannot_be_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that another broker has it: that the disk, or whatever stands for it, does not lock."""
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LogError) as caught, broker._locked(tmp_path):
        pass
    assert str(caught.value).startswith("cannot lock the log directory: Input/output error")
    assert str(tmp_path / ".lock") in str(caught.value)


def test_a_lock_is_given_back_whatever_the_end_of_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that wrote its clean marker does not turn into one that failed."""
    with monkeypatch.context() as patched, broker._locked(tmp_path) as fd:
        patched.setattr(os, "close", refuse)
    os.close(fd)


@pytest.mark.parametrize("kind", ["write", "fdatasync", "rename"])
def test_a_copy_that_does_not_come_to_its_name_takes_no_room(kind: str, tmp_path: Path) -> None:
    """Nothing of it is left, whatever failed, and the next one is whole."""
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(b"whole and torn")
    files = FaultyFileOps()
    files.fail(kind, 1, errno.ENOSPC)
    with FileOps().open(path, os.O_RDONLY) as fd:
        with pytest.raises(OSError, match="No space left"):
            quarantine_span(files, fd, path, 6, 14, 7)
        assert list(tmp_path.iterdir()) == [path]
        assert quarantine_span(files, fd, path, 6, 14, 7).read_bytes() == b"and torn"
    assert path.read_bytes() == b"whole and torn"


def test_a_directory_that_cannot_be_listed_is_a_fault_that_a_test_can_make(tmp_path: Path) -> None:
    """As every other call: by its number, and by the name that is refused."""
    files = FaultyFileOps()
    files.fail("listdir", 2)
    assert files.listdir(tmp_path) == []
    with pytest.raises(OSError, match="Input/output error"):
        files.listdir(tmp_path)
    files.deny(tmp_path.name)
    with pytest.raises(PermissionError):
        files.listdir(tmp_path)
    assert files.calls["listdir"] == 3
