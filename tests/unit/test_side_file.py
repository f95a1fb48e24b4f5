"""The side file: what was written is read; damage is seen; an interrupted write leaves the former one."""

from __future__ import annotations

import errno
import json
import logging
from dataclasses import fields
from pathlib import Path

import pytest

from fastlog._crc import crc32
from fastlog.config import BrokerConfig
from fastlog.log.files import FileOps
from fastlog.log.side_file import MAX_BYTES, SideFile, parse_side_file, read_side_file, write_side_file
from tests.harness import logs
from tests.harness.faulty_files import FaultyFileOps

OLD = SideFile(1, checkpoint=10)
NEW = SideFile(
    1_600_000_000_000,
    checkpoint=2**63 - 1,
    segments={0: (5, 6), 2**62: (-1, 10**15)},
    sealed={0: (2**40, 2**62)},
    inode=(2**62, 2**63),
)


def test_round_trip(tmp_path: Path) -> None:
    write_side_file(tmp_path, NEW, FileOps())
    assert read_side_file(tmp_path, FileOps()) == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["fastlog.json"]


def test_it_is_what_the_documentation_describes(tmp_path: Path) -> None:
    """A file written from the description alone, with the standard library, is read, however it is spaced."""
    logs.write_side_file(tmp_path, 77, created_ms=5, segments={0: (1, 2), 77: (3, 4)})
    assert read_side_file(tmp_path, FileOps()) == SideFile(5, "kafka-0.7", 77, {0: (1, 2), 77: (3, 4)})


def test_a_time_that_cannot_be_is_damage(tmp_path: Path) -> None:
    """One partition's side file never keeps the broker from starting."""
    for created_ms in (-1, 2**63):
        logs.write_side_file(tmp_path, 77, created_ms=created_ms)
        assert read_side_file(tmp_path, FileOps()) is None


def test_none_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_side_file(tmp_path, FileOps()) is None
    assert caplog.records == []


def test_every_cut_and_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    """A damaged file says nothing; it never says something else."""
    write_side_file(tmp_path, NEW, FileOps())
    data = (tmp_path / "fastlog.json").read_bytes()
    for cut in range(len(data) - 1):  # the last byte is a newline
        assert parse_side_file(data[:cut]) is None, cut
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert parse_side_file(bytes(flipped)) in (None, NEW), bit


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 4096, b"null", b"[]", b"{}", b'"x"', b"1", b'{"crc": 0}', b'{"crc": "x"}', b"[" * 100_000, b"\xff"],
)
def test_damage_is_said_in_one_line(data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be read as one counts as absent, and a log line names it."""
    (tmp_path / "fastlog.json").write_bytes(data)
    assert read_side_file(tmp_path, FileOps()) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(tmp_path / "fastlog.json") in record.getMessage()


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 7},
        {"format": None},
        {"created_ms": True},
        {"created_ms": 5.0},
        {"checkpoint": 7.5},
        {"segments": {"0": [1, None]}},
        {"segments": {"0": [1.0, 2]}},
        {"sealed": {"0": ["1", 2]}},
        {"inode": [1, "2"]},
        {"format": 7, "checkpoint": 7.5},
    ],
)
def test_what_is_of_another_kind_is_damage(wrong: dict[str, object]) -> None:
    """Whole by its CRC, but written by nobody who knows the format."""
    content: dict[str, object] = {"version": 1, "format": "kafka-0.7", "created_ms": 5, "checkpoint": 7, "segments": {}}

    def parsed(more: dict[str, object]) -> SideFile | None:
        made = content | more
        crc = crc32(json.dumps(made, sort_keys=True, separators=(",", ":")).encode())
        return parse_side_file(json.dumps(made | {"crc": crc}).encode())

    assert parsed({}) == SideFile(5, "kafka-0.7", 7)
    assert parsed(wrong) is None


def test_the_largest_numbers_are_no_damage(tmp_path: Path) -> None:
    largest = 2**63 - 1
    logs.write_side_file(tmp_path, largest, created_ms=largest)
    assert read_side_file(tmp_path, FileOps()) == SideFile(largest, checkpoint=largest)


@pytest.mark.parametrize("checkpoint", [-1, 2**63])
def test_a_checkpoint_out_of_range_is_damage(checkpoint: int, tmp_path: Path) -> None:
    path = logs.write_side_file(tmp_path, checkpoint)
    assert parse_side_file(path.read_bytes()) is None


def test_a_later_version_is_a_format_that_nobody_knows(tmp_path: Path) -> None:
    """The partition is to be left alone, not recovered as if it had no side file."""
    logs.write_side_file(tmp_path, 5, version=2)
    side = read_side_file(tmp_path, FileOps())
    assert side is not None
    assert "version 2" in side.format


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    """Not the same as none: a partition whose side file cannot be read must not be taken for one of 0.7."""
    write_side_file(tmp_path, NEW, FileOps())
    files = FaultyFileOps()
    files.fail("read", 1)
    with pytest.raises(OSError, match="Input/output error"):
        read_side_file(tmp_path, files)


@pytest.mark.parametrize("sync_directory", [False, True])
def test_a_write_that_fails_anywhere_leaves_the_former_file(sync_directory: bool, tmp_path: Path) -> None:
    """Readers see the old or the new one as a whole, whichever call fails; the bytes are durable before the name."""
    files = FaultyFileOps()
    write_side_file(tmp_path, OLD, files, sync_directory=sync_directory)
    kinds = [kind for kind, _ in files.order]
    assert kinds == ["open", "write", "fdatasync", "rename", *["fsync_dir"] * sync_directory]
    for kind in kinds:
        files = FaultyFileOps()
        files.fail(kind, 1, errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            write_side_file(tmp_path, NEW, files, sync_directory=sync_directory)
        assert read_side_file(tmp_path, FileOps()) == (NEW if kind == "fsync_dir" else OLD)


def test_short_writes_and_reads(tmp_path: Path) -> None:
    """T-10: a short write goes on from where it stopped."""
    files = FaultyFileOps()
    files.shorten("write")
    files.shorten("read")
    write_side_file(tmp_path, NEW, files)
    assert files.calls["write"] > 3
    assert read_side_file(tmp_path, files) == NEW


def test_as_many_segments_as_a_partition_may_have_fit_in() -> None:
    """One that is too long takes its partition out of service."""
    most = next(item for item in fields(BrokerConfig) if item.name == "segments_per_partition").metadata["high"]
    one = f'"{2**63 - 1}":[{2**63 - 1},{2**63 - 1}],'
    assert len(one) * most + 1000 < MAX_BYTES


@pytest.mark.slow
def test_more_than_16_mib_are_read(tmp_path: Path) -> None:
    side = SideFile(1, checkpoint=10**12, segments=dict.fromkeys(range(10**12, 10**12 + 400_000), (10**12, 10**12)))
    write_side_file(tmp_path, side, FileOps())
    assert (tmp_path / "fastlog.json").stat().st_size > 16 * 2**20
    assert read_side_file(tmp_path, FileOps()) == side
