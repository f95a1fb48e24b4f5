"""Batches of records out of a broker's files: the right ones from the right place, whatever the index says, and a word
about each file that is not what it seems. Files are written by hand, without a broker."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from fastlog import record_batches
from fastlog.errors import CorruptLogError, LogError
from fastlog.record_batches import Record, build
from fastlog.segment_files import segment_name
from fastlog.spark import record_files
from fastlog.spark.record_files import NotHereError, RecordFiles
from tests.harness.descriptors import count_descriptors

ID = bytes(range(16))
PER_BATCH = 10


def batch(base: int, count: int = PER_BATCH, size: int = 10) -> bytes:
    records = [Record(None, b"%02d " % (base + number) + b"x" * size, 5, ()) for number in range(count)]
    return bytes(build(records, base_offset=base))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A partition of two segments with three and two batches of ten records; offset 30 begins the second one."""
    directory = tmp_path / "t-1"
    directory.mkdir()
    wanted = urlsafe_b64encode(ID).decode().rstrip("=")
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {wanted}\n")
    for base, batches in ((0, 3), (30, 2)):
        data = b"".join(batch(base + PER_BATCH * number) for number in range(batches))
        (directory / segment_name(base, ".log")).write_bytes(data)
    return directory


def files_of(log: Path, topic_id: bytes = ID) -> RecordFiles:
    return RecordFiles(str(log.parent), "t", 1, topic_id)


def offsets_in(data: memoryview) -> list[int]:
    """The first of each batch."""
    return [header.base_offset for header, _ in record_batches.batches(bytes(data))]


# -- read --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(0, 50, 3))
def test_reading_begins_with_the_batch_that_has_an_offset(log: Path, offset: int) -> None:
    """And goes on over the end of a segment, from the next one's beginning."""
    files = files_of(log)
    files.seek(offset)
    at = offset // PER_BATCH * PER_BATCH
    found: list[int] = []
    while at < 50:
        found += offsets_in(files.read(at))
        at = found[-1] + PER_BATCH
    assert found == [*range(offset // PER_BATCH * PER_BATCH, 50, PER_BATCH)]


def test_a_read_is_as_many_whole_batches_as_fit_and_one_in_any_case(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(batch(0))
    cases = (
        (size - 1, [[0], [10], [20], [30], [40]]), (2 * size - 1, [[0], [10], [20], [30], [40]]),
        (2 * size, [[0, 10], [20], [30, 40]]), (9 * size, [[0, 10, 20], [30, 40]]),
    )  # fmt: skip
    for window, found in cases:
        monkeypatch.setattr(record_files, "_WINDOW_BYTES", window)
        files = files_of(log)
        files.seek(0)
        at = 0
        for expected in found:
            assert offsets_in(files.read(at)) == expected
            at = expected[-1] + PER_BATCH


def entry(offset: int, position: int) -> bytes:
    return struct.pack(">ii", offset, position)


@pytest.mark.parametrize("kind", ["right", "none", "empty", "short", "behind", "of another file", "a directory"])
def test_an_index_is_a_help_alone(log: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it leads astray, or cannot be read, reading begins at the segment's beginning."""
    size = len(batch(0))
    index = log / segment_name(0, ".index")
    data = {"right": entry(9, 0) + entry(19, size), "empty": b"", "short": entry(19, size)[:7],
            "behind": entry(5, 2 * size), "of another file": entry(15, size)}  # fmt: skip
    if kind in data:
        index.write_bytes(data[kind])
    if kind == "a directory":
        index.mkdir()
    files = files_of(log)
    heads: list[int] = []
    head = RecordFiles._head

    def noted(self: RecordFiles) -> tuple[int, int, int]:
        heads.append(self._position)
        return head(self)

    monkeypatch.setattr(RecordFiles, "_head", noted)
    before = count_descriptors(log)
    files.seek(25)
    assert offsets_in(files.read(20))[0] == 20
    assert heads[-1] == 2 * size
    if kind == "right":
        assert heads == [size, 2 * size], "it leads to the batch before"
    assert count_descriptors(log) == before + 1
    files.seek(5)
    assert offsets_in(files.read(0))[0] == 0


# -- what is not here --------------------------------------------------------------------------------------------------


def test_files_of_another_topic_are_not_here(log: Path, tmp_path: Path) -> None:
    """Nor those of one that is not there, or that cannot be read; nothing stays open."""
    before = count_descriptors(log)
    with pytest.raises(NotHereError, match="is not the directory of the topic with the id"):
        files_of(log, bytes(16))
    with pytest.raises(NotHereError, match="is no absolute path"):
        RecordFiles("relative", "t", 1, ID)
    with pytest.raises(NotHereError, match="No such file"):
        RecordFiles(str(tmp_path), "t", 2, ID)
    metadata = log / "partition.metadata"
    text = metadata.read_text()
    metadata.unlink()
    with pytest.raises(NotHereError, match=r"partition\.metadata: No such file"):
        files_of(log)
    metadata.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text(text)
    with pytest.raises(NotHereError, match=r"partition\.metadata: "):
        files_of(log)
    metadata.unlink()
    metadata.write_text("x" * 4096 + text)
    with pytest.raises(NotHereError, match="is not the directory"):
        files_of(log)
    assert count_descriptors(log) == before


def test_what_begins_behind_an_offset_is_not_here(log: Path) -> None:
    """Retention has taken it; what is not a segment's name is passed over."""
    (log / segment_name(0, ".log")).unlink()
    (log / "x.log").touch()
    files = files_of(log)
    with pytest.raises(NotHereError, match="begins behind offset 29"):
        files.seek(29)
    files.seek(30)
    assert offsets_in(files.read(30)) == [30, 40]


def test_a_segment_that_is_no_file_is_not_here(log: Path) -> None:
    path = log / segment_name(30, ".log")
    path.unlink()
    path.mkdir()
    before = count_descriptors(log)
    files = files_of(log)
    with pytest.raises(NotHereError, match="no regular file"):
        files.seek(30)
    files.close()
    path.rmdir()
    path.symlink_to(log / segment_name(0, ".log"))
    with pytest.raises(NotHereError, match=segment_name(30, ".log")):
        files_of(log).seek(30)
    assert count_descriptors(log) == before


def test_what_is_open_stays_readable(log: Path) -> None:
    """Retention may unlink it; once it is closed nothing is open."""
    before = count_descriptors(log)
    files = files_of(log)
    files.seek(0)
    (log / segment_name(0, ".log")).unlink()
    assert offsets_in(files.read(0)) == [0, 10, 20]
    assert offsets_in(files.read(30)) == [30, 40]
    files.close()
    files.close()
    assert count_descriptors(log) == before


# -- damage ------------------------------------------------------------------------------------------------------------


def changed(log: Path, position: int, data: bytes, base: int = 0) -> None:
    path = log / segment_name(base, ".log")
    whole = path.read_bytes()
    path.write_bytes(whole[:position] + data + whole[position + len(data) :])


def test_what_is_before_the_damage_is_as_good_as_ever(log: Path) -> None:
    """The next read finds it first, and says where."""
    size = len(batch(0))
    changed(log, 2 * size - 1, b"\xff")
    files = files_of(log)
    files.seek(0)
    assert offsets_in(files.read(0)) == [0]
    with pytest.raises(CorruptLogError, match="the batch there is damaged") as caught:
        files.read(10)
    assert caught.value.position == size  # type: ignore[attr-defined]
    assert segment_name(0, ".log") in str(caught.value)


@pytest.mark.parametrize(("left", "said"), [(-1, "ends inside a batch"), (-100, "ends inside a batch")])
def test_a_segment_that_ends_inside_a_batch(log: Path, left: int, said: str) -> None:
    path = log / segment_name(30, ".log")
    path.write_bytes(path.read_bytes()[:left])
    files = files_of(log)
    files.seek(30)
    assert offsets_in(files.read(30)) == [30]
    with pytest.raises(CorruptLogError, match=said):
        files.read(40)


def test_a_segment_that_ends_before_an_offset(log: Path) -> None:
    """Which the broker has shown: it is no other topic's, and nothing is passed over."""
    path = log / segment_name(30, ".log")
    path.write_bytes(path.read_bytes()[: len(batch(30)) + 20])
    files = files_of(log)
    with pytest.raises(LogError, match="ends before what the broker has shown"):
        files.seek(40)


@pytest.mark.parametrize("length", [record_batches.HEADER_BYTES - record_batches.LENGTH_COUNTS_FROM - 1, 0, -1])
def test_what_cannot_be_the_length_of_a_batch(log: Path, length: int) -> None:
    """A walk by it would come to anywhere, or stay for ever."""
    changed(log, 8, struct.pack(">i", length))
    with pytest.raises(CorruptLogError, match="no batch begins there"):
        files_of(log).seek(5)


def test_a_disk_that_fails(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of with the file and the position; reading the index alone is done without."""
    files = files_of(log)
    files.seek(0)

    def fail(fd: int, view: memoryview, position: int) -> int:
        raise OSError(5, "Input/output error")

    (log / segment_name(0, ".index")).write_bytes(entry(9, 0))
    monkeypatch.setattr(record_files, "read_fully", fail)
    assert files._indexed(25) == 0
    with pytest.raises(LogError, match="cannot read a segment: Input/output error"):
        files.read(0)


# IMPORT
