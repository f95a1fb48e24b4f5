"""``fastlog doctor`` on directories and disks: each fault is named, and a try leaves nothing."""

from __future__ import annotations

import errno
import os
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastlog.config import BrokerConfig
from fastlog.tools import doctor_machine
from fastlog.tools.findings import Subject
from tests.harness.command_line import Commands
from tests.harness.descriptors import count_descriptors
from tests.harness.doctor import Doctor


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Doctor:
    return Doctor(Commands(capfd), tmp_path / "data")


def test_directories_that_cannot_be_made(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert doctor.names("--log-dir", str(file)) == ["directory-unusable"]
    assert doctor.names("--log-dir", "/proc/self/logs") == ["directory-unusable", "write-refused"]
    beneath = doctor.row("directory", "--log-dir", str(file / "logs"))
    assert (beneath["name"], beneath["remedy"]) == ("directory-unusable", "name another --log-dir")


@pytest.mark.parametrize(
    ("flags", "found", "remedy"),
    [(os.ST_RDONLY | os.ST_NODEV, "mounted for reading only", "mount it"), (os.ST_NODEV, "may not write", "chown it")],
)
def test_a_directory_that_cannot_be_made_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, found: str, remedy: str
) -> None:
    """Nobody is told to chown what is mounted for reading only."""
    monkeypatch.setattr(doctor_machine.os, "access", lambda path, mode: False)
    monkeypatch.setattr(doctor_machine.os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    subject = Subject(BrokerConfig(), [tmp_path / "data"], 1.0)
    (finding, *_) = doctor_machine.check_directories(subject)
    assert finding.name == "directory-unusable" and found in finding.found and finding.remedy.startswith(remedy)


def test_a_directory_that_is_named_twice(doctor: Doctor, tmp_path: Path) -> None:
    """A start would find it locked, by itself."""
    (tmp_path / "link").symlink_to(doctor.directory)
    for other in (doctor.directory, doctor.directory / ".." / doctor.directory.name, tmp_path / "link"):
        row = doctor.row("settings", "--log-dir", str(doctor.directory), "--log-dir", str(other))
        assert row["name"] == "settings-unusable"
        assert f"{other} is the directory {doctor.directory} once more" in row["found"]


def test_a_directory_that_is_beneath_another_users(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **how: bool) -> os.stat_result:
        if path == doctor.directory:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return look(path, **how)

    look = Path.stat
    monkeypatch.setattr(Path, "stat", refuse)
    (found,) = doctor_machine.check_directories(Subject(BrokerConfig(), [doctor.directory], 1.0))
    assert (found.name, found.level) == ("directory-unusable", "bad")
    assert found.remedy.startswith("chown it") and "Permission denied" in found.found


def test_a_kernel_that_does_not_tell_of_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **how: str) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert doctor_machine.mounted(tmp_path) == ("", frozenset())


def test_a_directory_of_another_user(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.directory.mkdir(mode=0o700)
    monkeypatch.setattr(doctor_machine.os, "access", lambda path, mode: not mode & os.W_OK)
    assert doctor.names() == ["directory-unusable"]
    assert str(os.geteuid()) in doctor.row("directory")["found"]


def test_directories_of_two_clusters(doctor: Doctor, tmp_path: Path) -> None:
    paths = []
    for number, name in enumerate(("one", "two", "three", "four")):
        path = tmp_path / name
        path.mkdir(mode=0o700)
        (path / "meta.properties").write_text(f"version=1\ncluster.id={'AABA'[number] * 22}\n")
        (path / ".kafka_cleanshutdown").touch()
        paths += ["--log-dir", str(path)]
    assert doctor.names(*paths[:4]) == []
    assert doctor.names(*paths[:6]) == ["directory-of-another-cluster"]
    (row,) = [row for row in doctor.run(*paths).rows if row.get("name") == "directory-of-another-cluster"]
    assert (
        row["found"] == f"{tmp_path / 'three'} belongs to the cluster {'B' * 22}, and {tmp_path / 'one'} to {'A' * 22}"
    )
    (tmp_path / "one" / "meta.properties").write_text("version=1\n")
    assert doctor.names(*paths[:2]) == ["directory-of-no-cluster"]


def test_a_stop_out_of_order_and_a_directory_that_is_open(doctor: Doctor) -> None:
    doctor.directory.mkdir(mode=0o700)
    (doctor.directory / "meta.properties").write_text(f"version=1\ncluster.id={'A' * 22}\n")
    assert doctor.names() == ["stop-unclean"]
    doctor.directory.chmod(0o750)
    assert doctor.names() == ["directory-open"]
    assert "stop-unclean" in doctor.names("--set", "log.access=group")
    doctor.directory.chmod(0o770)
    for access, mode in (("owner", "go-rwx"), ("group", "g-w,o-rwx")):
        assert doctor.row("directory", "--set", f"log.access={access}")["remedy"].startswith(f"chmod -R {mode} ")


def test_directories_in_memory_and_far_away(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.names("--log-dir", "/dev/shm/fastlog-doctor", keep=("directory-in-memory",)) == [
        "directory-in-memory"
    ]
    monkeypatch.setattr(doctor_machine, "mounted", lambda path: ("nfs4", frozenset()))
    assert doctor.names() == ["directory-remote"]
    monkeypatch.setattr(doctor_machine, "mounted", lambda path: ("ext4", frozenset()))
    for place in ("/tmp", "/var/tmp"):
        found = doctor.names("--log-dir", f"{place}/fastlog-doctor", keep=("directory-temporary",))
        assert found == ["directory-temporary"]


@pytest.mark.parametrize(("options", "found"), [("rw,discard", ["disk-discards"]), ("rw,nodiscard", []), ("rw", [])])
def test_a_disk_that_discards(options: str, found: list[str], doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    device = doctor.directory.parent.stat().st_dev
    read = Path.read_text

    def read_text(path: Path, **how: str) -> str:
        if path != Path("/proc/self/mountinfo"):
            return read(path, **how)
        return (
            "21 1 99:1 / /other rw - xfs /dev/b rw,discard\n"
            f"22 1 {os.major(device)}:{os.minor(device)} / / rw,relatime shared:1 - ext4 /dev/a {options}\n"
        )

    monkeypatch.setattr(Path, "read_text", read_text)
    assert doctor.names(keep=("disk-discards",)) == found
    assert doctor_machine.mounted(doctor.directory.parent)[0] == "ext4"


def test_a_slow_disk(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([0.06, 0.06, 0.06, 0.0, 0.0, 0.0, 0.0, 0.06, 0.06, 0.0])
    monkeypatch.setattr(doctor_machine.os, "fdatasync", lambda fd: time.sleep(next(took)))
    assert doctor.names(keep=("sync-slow",)) == ["sync-slow"]
    assert doctor.names(keep=("sync-slow",)) == []  # two of five are not the rule


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EROFS, "mount"), (errno.EIO, "dmesg")],
)
def test_a_disk_that_refuses(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(doctor_machine.os, "pwrite", refuse)
    assert doctor.names() == ["write-refused"]
    assert remedy in doctor.row("disk")["remedy"]


@pytest.mark.parametrize("refusal", [0, errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_a_try_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    """Also where every file has a name, and where the disk fills meanwhile."""
    opened, written = os.open, os.pwrite

    def open_file(path: object, flags: int, *more: int, **options: object) -> int:
        if refusal and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(refusal, os.strerror(refusal))
        return opened(path, flags, *more, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(doctor_machine.os, "open", open_file)
    before = count_descriptors()
    positions: list[int] = []

    def write(fd: int, data: bytes, position: int) -> int:
        positions.append(position)
        return written(fd, data, position) if len(positions) < 8 else 5

    monkeypatch.setattr(doctor_machine.os, "pwrite", write)
    assert len(doctor_machine.sync_seconds(tmp_path)) == 5
    assert positions == [0, 4096, 8192, 12288, 16384]
    with pytest.raises(OSError, match="No space left"):
        doctor_machine.sync_seconds(tmp_path)
    assert list(tmp_path.iterdir()) == [] and count_descriptors() == before


def test_a_directory_that_cannot_be_opened_is_not_tried_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine.tempfile, "mkstemp", lambda **_: pytest.fail("it was"))
    with pytest.raises(FileNotFoundError):
        doctor_machine.sync_seconds(tmp_path / "none")


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 bytes"), (1024, "1.0 KiB"), (2**20, "1.0 MiB"), (3 * 2**30, "3.0 GiB"), (2**40, "1.0 TiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert doctor_machine._size(size) == text


@pytest.mark.parametrize(
    ("free", "free_files", "name"),
    [(149, 50, "space-low"), (150, 50, ""), (50, 50, "space-low"), (49, 50, "space-scarce"), (500, 49, "inodes-few")],
)
def test_room(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, free: int, free_files: int, name: str) -> None:
    statistics = namedtuple("statistics", "f_bavail f_blocks f_frsize f_files f_favail")
    monkeypatch.setattr(doctor_machine.os, "statvfs", lambda path: statistics(free, 1000, 2**20, 1000, free_files))
    assert doctor.row("space").get("name", "") == name


@pytest.mark.parametrize(("free", "name"), [(16 * 2**20, ""), (16 * 2**20 - 1, "space-scarce")])
def test_room_on_a_small_disk(monkeypatch: pytest.MonkeyPatch, free: int, name: str) -> None:
    """All of it is free, and that is soon over."""
    statistics = SimpleNamespace(f_bavail=free, f_blocks=free, f_frsize=1, f_files=0, f_favail=0)
    monkeypatch.setattr(doctor_machine.os, "statvfs", lambda path: statistics)
    assert doctor_machine._space(Path("/")).name == name
