"""Links that somebody put into a log directory: no file outside it is read for ours, written, cut or locked."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog import broker
from fastlog.errors import LogError
from fastlog.log.clean_marker import consume_clean_marker, write_clean_marker
from fastlog.log.creators import add_creator
from fastlog.log.files import FileOps
from fastlog.log.flush_marks import FlushMarks
from fastlog.log.recovery import recover_partition
from fastlog.log.side_file import SideFile, read_side_file, write_side_file
from fastlog.segment_files import CLEAN_MARKER_NAME, CREATORS_NAME, FLUSH_MARKS_NAME, LOCK_NAME, SIDE_FILE_NAME
from tests.harness import logs, raw_format
from tests.harness.shared_log import FAILED, SharedLog, message

VICTIM = b"somebody else's\n" * 10
LINKS = [os.symlink, os.link]
DATA = raw_format.entry(b"ours") * 3
SEGMENT = "00000000000000000000.kafka"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(VICTIM)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    logs.write_segments(path / "t-0", [DATA])
    return path


def lock(directory: Path) -> None:
    with broker._locked(directory):
        pass


@pytest.mark.parametrize(
    ("name", "use"),
    [(LOCK_NAME, lock), (FLUSH_MARKS_NAME, lambda directory: FlushMarks(directory, FileOps()))],
)
def test_what_is_used_in_its_place_is_refused_by_name(
    name: str, use: Callable[[Path], None], directory: Path, victim: Path
) -> None:
    """A start says which file it is, instead of locking or writing another one."""
    (directory / name).symlink_to(victim)
    with pytest.raises((LogError, OSError), match=r"symbolic link.*" + name.replace(".", r"\.")):
        use(directory)
    assert victim.read_bytes() == VICTIM


def test_a_lock_that_is_no_file_is_refused(directory: Path) -> None:
    os.mkfifo(directory / LOCK_NAME)
    with pytest.raises(LogError, match="not a regular file"):
        lock(directory)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("name", "use"),
    [
        (CLEAN_MARKER_NAME, lambda directory: write_clean_marker(directory, {}, FileOps())),
        (CREATORS_NAME, lambda directory: add_creator(directory, "a-1", FileOps())),
        (f"t-0/{SIDE_FILE_NAME}", lambda directory: write_side_file(directory / "t-0", SideFile(1), FileOps())),
    ],
)
def test_a_temporary_file_is_always_a_new_one(
    name: str, use: Callable[[Path], None], link: Callable[[Path, Path], None], directory: Path, victim: Path
) -> None:
    link(victim, directory / f"{name}.tmp")
    use(directory)
    assert victim.read_bytes() == VICTIM
    assert (directory / name).is_file()
    assert not (directory / name).is_symlink()


@pytest.mark.parametrize("link", LINKS)
def test_a_tail_goes_into_a_new_file(link: Callable[[Path, Path], None], directory: Path, victim: Path) -> None:
    with (directory / "t-0" / SEGMENT).open("ab") as segment:
        segment.write(b"torn")
    link(victim, directory / "t-0" / f"{SEGMENT}.truncated.tmp")
    found = recover_partition(directory / "t-0", "t", 0, clean_end=None, files=FileOps())
    assert (found.state, found.truncated_bytes) == ("ok", 4)
    assert [path.read_bytes() for path in (directory / "t-0").glob("*.truncated")] == [b"torn"]
    assert victim.read_bytes() == VICTIM


def test_a_clean_marker_elsewhere_says_nothing(directory: Path, victim: Path) -> None:
    write_clean_marker(directory, {"t-0": 1}, FileOps())
    (directory / CLEAN_MARKER_NAME).rename(directory / "elsewhere")
    (directory / CLEAN_MARKER_NAME).symlink_to("elsewhere")
    assert consume_clean_marker(directory, FileOps()) == {}
    assert (directory / "elsewhere").is_file()
    assert not (directory / CLEAN_MARKER_NAME).is_symlink()


def test_a_side_file_elsewhere_is_not_read(directory: Path) -> None:
    write_side_file(directory, SideFile(1, checkpoint=3), FileOps())
    (directory / "t-0" / SIDE_FILE_NAME).symlink_to(directory / SIDE_FILE_NAME)
    with pytest.raises(OSError, match="symbolic link") as refused:
        read_side_file(directory / "t-0", FileOps())
    assert refused.value.errno == errno.ELOOP
    found = recover_partition(directory / "t-0", "t", 0, clean_end=None, files=FileOps())
    assert found.state == "offline"
    assert SIDE_FILE_NAME in found.reason


def test_neither_a_roll_nor_a_flush_goes_through_a_link(tmp_path: Path, victim: Path) -> None:
    """Those that come while the broker runs."""
    home = tmp_path / "running"
    home.mkdir()
    log = SharedLog(home, segment_bytes=20)
    log.append(message(30))
    victim.write_bytes(b"")
    log.path(30).symlink_to(victim)
    assert log.append(message(30)) == FAILED
    (home / FLUSH_MARKS_NAME).symlink_to(victim)
    assert log.flush() == errno.ELOOP
    assert victim.read_bytes() == b""
