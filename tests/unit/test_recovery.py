"""Recovery of one partition: what is read, in which order things become durable, and what is reported."""

from __future__ import annotations

import ctypes
import errno
import os
import random
from pathlib import Path

import pytest

from fastlog.errors import RecoveryError
from fastlog.log.files import FileOps
from fastlog.log.recovery import RecoveredPartition, SegmentInfo, recover_all, recover_partition, scan_log_dirs
from tests.harness import logs, raw_format
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.manual_clock import ManualClock

PARTS = [b"".join(raw_format.entry(b"segment %d message %d" % (part, n)) for n in range(20)) for part in range(3)]
TORN = raw_format.entry(b"damaged")[:-1] + b"!" + raw_format.entry(b"whole") + b"\0\0\0"
KEEP_SIZE = 1
ENTRY_BYTES = len(raw_format.entry(b"segment 0 message 19"))


def recover(directory: Path, files: FileOps | None = None, clean_end: int | None = None) -> RecoveredPartition:
    return recover_partition(
        directory, "t", 0, clean_end=clean_end, files=files or FileOps(), clock=ManualClock(1_700_000_000_000)
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


class RecordingFiles(FaultyFileOps):
    """Remembers which bytes of which size were read, besides side files."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []

    def read_into(self, fd: int, view: memoryview, position: int) -> int:
        count = super().read_into(fd, view, position)
        if Path(f"/proc/self/fd/{fd}").readlink().suffix != ".json":
            self.reads.append((position, count))
        return count


def test_a_clean_stop_is_believed_when_it_names_this_very_end(directory: Path) -> None:
    """T-5: not a byte of a segment is read; any other end is no clean stop."""
    bases = logs.write_segments(directory, PARTS)
    files = RecordingFiles()
    result = recover(directory, files, clean_end=bases[3])
    assert (result.state, result.log_end, files.reads) == ("ok", bases[3], [])
    for other in (bases[3] - 1, bases[3] + 1, 0):
        files = RecordingFiles()
        assert recover(directory, files, clean_end=other).log_end == bases[3]
        assert files.reads


def test_without_a_side_file_the_newest_segment_is_read_and_sealed_ones_are_trusted(directory: Path) -> None:
    """Source: Kafka 0.7.2, which recovers the last segment only."""
    logs.write_segments(directory, PARTS)
    files = RecordingFiles()
    recover(directory, files)
    assert files.reads == [(0, len(PARTS[2]))]


@pytest.mark.parametrize("checkpoint_segment", [0, 1, 2])
def test_reading_begins_at_the_checkpoint(checkpoint_segment: int, directory: Path) -> None:
    """Nothing below the checkpoint is read, everything above it is, through all segments."""
    bases = logs.write_segments(directory, PARTS)
    position = len(raw_format.entry(b"segment 0 message 0")) * 3
    logs.write_side_file(directory, bases[checkpoint_segment] + position)
    files = RecordingFiles()
    assert recover(directory, files).log_end == bases[3]
    rest = [(0, len(part)) for part in PARTS[checkpoint_segment + 1 :]]
    assert files.reads == [(position, len(PARTS[checkpoint_segment]) - position), *rest]
    assert files.calls["fdatasync"] == 3 - checkpoint_segment, "once, where nothing is cut"


def test_bytes_are_flushed_before_they_are_read(directory: Path) -> None:
    logs.write_segments(directory, PARTS[:1])
    files = FaultyFileOps()
    recover(directory, files)
    kinds = [kind for kind, _ in files.order]
    assert kinds.index("fdatasync") < len(kinds) - 1 - kinds[::-1].index("read")
    assert "write" not in kinds
    assert files.order[-2:] == [("fsync_dir", "t-0"), ("fsync_dir", directory.parent.name)]


@pytest.mark.parametrize("checkpoint", [None, 40])
def test_in_doubt_what_memory_holds_is_written_again_before_it_is_synced(
    checkpoint: int | None, directory: Path
) -> None:
    """A2: else the sync would say nothing of pages whose write-back failed before; they may be the only copy."""
    logs.write_segments(directory, [PARTS[0] + TORN])
    (segment,) = directory.glob("*.kafka")
    os.utime(segment, ns=(5, 1_000_000_000))
    if checkpoint is not None:
        logs.write_side_file(directory, checkpoint)
    files = RecordingFiles()
    result = recover_partition(directory, "t", 0, clean_end=None, files=files, in_doubt=True)
    assert (result.state, result.log_end) == ("ok", len(PARTS[0]))
    assert segment.read_bytes() == PARTS[0]
    assert segment.stat().st_mtime_ns == 1_000_000_000
    start = checkpoint or 0
    assert files.reads[0] == (start, len(PARTS[0] + TORN) - start)
    kinds = [kind for kind, _ in files.order]
    again, sync = kinds.index("write"), kinds.index("fdatasync")
    assert again < sync < len(kinds) - 1 - kinds[::-1].index("read")


def test_in_doubt_a_write_that_fails_leaves_everything(directory: Path) -> None:
    logs.write_segments(directory, [PARTS[0] + TORN])
    (segment,) = directory.glob("*.kafka")
    files = FaultyFileOps()
    files.fail("write", 1, errno.ENOSPC)
    result = recover_partition(directory, "t", 0, clean_end=None, files=files, in_doubt=True)
    assert result.state == "offline"
    assert segment.read_bytes() == PARTS[0] + TORN


def test_the_tail_is_durable_elsewhere_before_it_is_cut(directory: Path) -> None:
    """Z-4: copy, flush, name, directory; only then the cut, and that is flushed as well."""
    logs.write_segments(directory, [PARTS[0] + TORN])
    files = FaultyFileOps()
    recover(directory, files)
    order = [item for item in files.order if item[0] in ("write", "fdatasync", "rename", "fsync_dir", "ftruncate")]
    assert [kind for kind, _ in order] == [
        "fdatasync",  # of what is about to be read again
        "write",
        "fdatasync",
        "rename",
        "fsync_dir",
        "ftruncate",
        "fdatasync",
        "fsync_dir",  # before the flushed mark names a segment
        "fsync_dir",
        "fsync_dir",
    ]


def test_what_was_cut_is_kept_counted_and_said(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Z-4: file, position, bytes and whole messages behind the damage are in one line, the bytes in a file."""
    logs.write_segments(directory, [PARTS[0] + TORN])
    result = recover(directory)
    assert (result.state, result.log_end) == ("ok", len(PARTS[0]))
    assert (result.truncated_bytes, result.truncated_messages) == (len(TORN), 1)
    copy = directory / "00000000000000000000.kafka.1700000000000.truncated"
    assert copy.read_bytes() == TORN
    (record,) = caplog.records
    line = record.getMessage()
    for part in (
        f"path={logs.segment_path(directory, 0)}",
        f"position={len(PARTS[0])}",
        "a wrong checksum",
        f"bytes={len(TORN)}",
        "whole_messages_behind=1",
        copy.name,
    ):
        assert part in line


def test_two_cuts_in_one_millisecond_keep_both_tails(directory: Path) -> None:
    """A name that is taken is never taken again."""
    logs.write_segments(directory, [PARTS[0] + TORN])
    recover(directory)
    with logs.segment_path(directory, 0).open("ab") as segment:
        segment.write(b"another tail")
    recover(directory)
    tails = sorted(path.read_bytes() for path in directory.glob("*.truncated"))
    assert tails == sorted([TORN, b"another tail"])


@pytest.mark.parametrize(
    "tail",
    [
        bytes([0, 0, 0, 6, 2, 0, 0, 0, 0, 0]),
        bytes([0, 0, 0, 5, 1, 0, 0, 0, 0]),
        bytes([0, 0, 0, 4, 0, 0, 0, 0]),
        bytes([0xFF, 0xFF, 0xFF, 0xFF, 0]),
        bytes([0, 0, 0, 6, 1, 3, 0, 0, 0, 0]),
        bytes([0, 0, 0, 6, 1, 0xFC, 0, 0, 0, 0]),
        bytes([0x7F, 0xFF, 0xFF, 0xFF]),
        bytes([0]),
    ],
    ids=["magic 2", "5 bytes with magic 1", "length 4", "length -1", "codec 3", "reserved bits", "2 GiB", "1 byte"],
)
def test_every_parse_error_in_the_tail_means_cut_here(tail: bytes, directory: Path) -> None:
    """Z-3, S20: nothing in a tail stops the start. Source of the fault: Kafka 0.7.2 throws on an unknown magic."""
    logs.write_segments(directory, [PARTS[0] + tail])
    result = recover(directory)
    assert (result.state, result.log_end, result.truncated_bytes) == ("ok", len(PARTS[0]), len(tail))


@pytest.mark.parametrize("cut", [0, 1])
def test_a_message_that_ends_at_the_end_of_the_file_is_whole(cut: int, directory: Path) -> None:
    """S4: reading the rule strictly would lose the last good message on every restart."""
    last = raw_format.entry(b"last")
    logs.write_segments(directory, [PARTS[0] + last[: len(last) - cut]])
    assert recover(directory).log_end == len(PARTS[0]) + (0 if cut else len(last))


@pytest.mark.parametrize("clean", [False, True])
def test_space_reserved_behind_the_end_is_given_back(clean: bool, directory: Path) -> None:
    """Preallocation does not outlive the process that wanted it."""
    (end,) = logs.write_segments(directory, PARTS[:1])[1:]
    path = logs.segment_path(directory, 0)
    with path.open("r+b") as segment:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        assert libc.fallocate(segment.fileno(), KEEP_SIZE, 0, 16 * 1024 * 1024) == 0
        os.fsync(segment.fileno())
    assert path.stat().st_blocks * 512 >= 16 * 1024 * 1024
    assert recover(directory, clean_end=end if clean else None).log_end == end
    assert path.stat().st_blocks * 512 < 1024 * 1024
    assert path.read_bytes() == PARTS[0]


def test_append_times_come_from_the_side_file_and_else_from_the_files(directory: Path) -> None:
    """Z-9, T-26: a copied or touched segment keeps its age; only what nobody wrote down has the file's time."""
    bases = logs.write_segments(directory, PARTS)
    logs.write_side_file(directory, bases[3], created_ms=42, segments={bases[0]: (100, 200), bases[1]: (300, 400)})
    for base in bases[:3]:
        os.utime(logs.segment_path(directory, base), ns=(0, 1_234_567_000_000))
    result = recover(directory)
    assert result.created_ms == 42
    assert result.segments == (
        SegmentInfo(bases[0], len(PARTS[0]), 100, 200),
        SegmentInfo(bases[1], len(PARTS[1]), 300, 400),
        SegmentInfo(bases[2], len(PARTS[2]), 1_234_567, 1_234_567),
    )
    (directory / "fastlog.json").write_bytes(b"torn")
    again = recover(directory)
    assert {(item.first_ms, item.last_ms) for item in again.segments} == {(1_234_567, 1_234_567)}
    assert again.log_end == bases[3]


@pytest.mark.parametrize("lost", [None, b"torn"])
def test_a_log_whose_side_file_is_lost_is_not_taken_for_a_new_one(lost: bytes | None, directory: Path) -> None:
    """When it was made is then not known, at this start and at each one after it, whatever the times of the files."""
    bases = logs.write_segments(directory, PARTS)
    path = logs.write_side_file(directory, bases[3], created_ms=42)
    assert recover(directory).created_ms == 42
    path.unlink() if lost is None else path.write_bytes(lost)
    assert recover(directory).created_ms == 0
    logs.write_side_file(directory, bases[3], created_ms=0)  # as the keeper writes it next
    assert recover(directory).created_ms == 0


def test_an_interrupted_creation_is_finished_with_a_time(directory: Path) -> None:
    """The time is durable with the names; where it cannot be written down, the log has none."""
    directory.mkdir()
    assert recover(directory).created_ms == 1_700_000_000_000
    assert recover(directory).created_ms == 1_700_000_000_000
    other = directory.with_name("t-1")
    other.mkdir()
    files = FaultyFileOps()
    files.deny("fastlog.json.tmp", errno.ENOSPC)
    result = recover(other, files)
    assert (result.state, result.created_ms) == ("ok", 0)


def test_names_of_other_widths_are_made_20_digits(directory: Path) -> None:
    """S2: everything else in the broker looks for one name."""
    bases = logs.write_segments(directory, PARTS)
    for base in bases[:3]:
        logs.segment_path(directory, base).rename(directory / f"{base:011}.kafka")
    files = FaultyFileOps()
    assert recover(directory, files).log_end == bases[3]
    assert sorted(logs.contents(directory)) == [f"{base:020}.kafka" for base in bases[:3]]
    assert files.order[-1] == ("fsync_dir", "t-0")


@pytest.mark.parametrize("every", [1, 3])
def test_short_reads_and_writes_change_nothing(every: int, directory: Path) -> None:
    """T-10: the tail that is quarantined is whole, and so is what is kept."""
    logs.write_segments(directory, [PARTS[0] + TORN])
    files = FaultyFileOps()
    files.shorten("read", every)
    files.shorten("write", every)
    assert recover(directory, files).log_end == len(PARTS[0])
    assert [path.read_bytes() for path in directory.glob("*.truncated")] == [TORN]


@pytest.mark.parametrize(("error", "no_room"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_a_tail_that_cannot_be_set_aside_stays_where_it_is(error: int, no_room: bool, directory: Path) -> None:
    """On a full disk nothing is known to be wrong with it: the partition comes back by itself once there is room."""
    logs.write_segments(directory, [PARTS[0] + TORN])
    files = FaultyFileOps()
    files.fail("write", 1, error)
    result = recover(directory, files)
    assert (result.state, result.log_end, result.no_room) == ("read-only", len(PARTS[0]), no_room)
    assert logs.contents(directory) == {f"{0:020}.kafka": PARTS[0] + TORN}
    assert list(directory.glob("*.truncated*")) == []


def test_nothing_of_an_unknown_format_is_touched(directory: Path) -> None:
    """Its files are not opened, cut, renamed or deleted; only the side file is read."""
    logs.write_segments(directory, [PARTS[0] + TORN])
    logs.write_side_file(directory, 0, log_format="kafka-2")
    files = FaultyFileOps()
    result = recover(directory, files)
    assert (result.state, result.format, result.segments) == ("offline", "kafka-2", ())
    assert {kind for kind, _ in files.order} == {"open", "read"}
    assert {name for _, name in files.order} == {"fastlog.json", ""}


def test_a_large_tail_is_not_read_into_memory(directory: Path) -> None:
    """A hole of 16 MiB behind the last message is cut in windows; its copy holds the same bytes."""
    logs.write_segments(directory, PARTS[:1])
    end = len(PARTS[0])
    os.truncate(logs.segment_path(directory, 0), end + 16 * 1024 * 1024)
    files = RecordingFiles()
    result = recover(directory, files)
    assert (result.log_end, result.truncated_bytes, result.truncated_messages) == (end, 16 * 1024 * 1024, 0)
    assert max(count for _, count in files.reads) <= 4 * 1024 * 1024


def test_a_log_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Starting without it would look as if its partitions had never been."""
    with pytest.raises(RecoveryError, match="gone"):
        scan_log_dirs([tmp_path / "gone"])


def test_clean_ends_are_by_log_directory(tmp_path: Path) -> None:
    """The marker of one directory says nothing about a partition in another one."""
    for name in ("a", "b"):
        logs.write_segments(tmp_path / name / f"{name}-0", [PARTS[0]])
    files = RecordingFiles()
    end = len(PARTS[0])
    found, _ = recover_all([tmp_path / "a", tmp_path / "b"], [{"a-0": end}, {"a-0": end}], files)
    assert [(index, one.topic, one.log_end) for index, one in found] == [(0, "a", end), (1, "b", end)]
    assert files.reads == [(0, end)]


def test_recovery_is_the_same_however_often_it_runs(directory: Path) -> None:
    """A second recovery finds nothing to do."""
    source = random.Random(3)
    logs.write_segments(directory, [b"".join(logs.sets(source, 9, 1, codec)) for codec in (0, 1, 2)])
    first = recover(directory)
    before = logs.contents(directory)
    assert recover(directory) == first
    assert logs.contents(directory) == before


# -- a disk that is full at the start ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", ["write", "fdatasync", "fsync_dir"])
def test_a_full_disk_is_no_damage(kind: str, error: int, directory: Path) -> None:
    """Where writing copies, all of them may want room: what was flushed is read, and all of it later."""
    bases = logs.write_segments(directory, PARTS)
    logs.write_side_file(directory, bases[2] - ENTRY_BYTES)
    before = logs.contents(directory)
    files = FaultyFileOps()
    files.fail(kind, 1, error)
    result = recover_partition(directory, "t", 0, clean_end=None, files=files, in_doubt=True)
    assert (result.state, result.no_room) == ("read-only", True)
    assert result.log_end == bases[2] - ENTRY_BYTES
    assert [(item.base, item.size) for item in result.segments] == [
        (0, len(PARTS[0])),
        (bases[1], len(PARTS[1]) - ENTRY_BYTES),
    ]
    assert "the disk is full; nothing was cut" in result.reason
    assert f"make room in {directory}" in result.reason
    assert logs.contents(directory) == before
    assert recover(directory).log_end == bases[3]


def test_without_anything_that_says_what_was_flushed_a_full_disk_shows_nothing(directory: Path) -> None:
    logs.write_segments(directory, PARTS)
    files = FaultyFileOps()
    files.fail("fdatasync", 1, errno.ENOSPC)
    result = recover(directory, files)
    assert (result.state, result.no_room) == ("offline", True)
    assert "the disk is full" in result.reason


def test_a_start_that_changes_nothing_needs_no_room(directory: Path) -> None:
    """After kill -9 with nothing torn: neither a cut, nor times that are set again, nor another mark."""
    bases = logs.write_segments(directory, PARTS)
    recover(directory)
    files = FaultyFileOps()
    assert recover(directory, files).log_end == bases[3]
    assert files.calls.keys().isdisjoint({"write", "ftruncate", "rename", "unlink"})


def test_a_mark_that_finds_no_room_is_left_to_the_next_flush(directory: Path) -> None:
    bases = logs.write_segments(directory, PARTS)
    (directory / ".flushed-00000000000000000000").touch()
    files = FaultyFileOps()
    files.fail("rename", 1, errno.ENOSPC)
    result = recover(directory, files)
    assert (result.state, result.log_end, result.flushed_base) == ("ok", bases[3], 0)
    assert recover(directory).flushed_base == bases[2]
