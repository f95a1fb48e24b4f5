"""The log of record batches: offsets stored under the lock, indexes, look-ups, repair, recovery."""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.log import _files, _index, kafka_files
from fastlog.log._append import Appender, append_sets
from fastlog.log._arena import STATE_NO_FLUSH, STATE_OFFLINE, STATE_READ_ONLY, WHY_ROOM, WHY_START, Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.files import FileOps
from fastlog.log.formats import SearchBudget, format_number
from fastlog.log.formats.record_batches import RECORD_BATCHES, RecordBatches
from fastlog.log.manager import LogManager
from fastlog.log.metadata import Topic
from fastlog.log.side_file import read_side_file, write_side_file
from fastlog.log.slots import SlotView
from fastlog.segment_files import SegmentFile
from fastlog.tools.dump_log import dump_log_command
from fastlog.tools.fsck import fsck_command
from tests.harness import stored_batches
from tests.harness.calls import read_calls
from tests.harness.shared_log import DONE, FAILED, OFFLINE, SharedLog, start, wait
from tests.harness.stored_batches import batch

TOPIC_ID = bytes(range(16))


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """What a test arms ends with it."""
    yield
    _files.arm("", "test")
    _files.record(None)


class BatchLog:
    """One partition of record batches below a directory, begun anew by ``restart``."""

    def __init__(self, directory: Path, files: FileOps | None = None, **properties: str) -> None:
        self.directory = directory
        self.files = files
        directory.mkdir(exist_ok=True)
        # nothing flushes here: on a slow machine the bound of unflushed data would be met by its age
        self.properties = {"log.dir": str(directory), "log.default.flush.interval.ms": "600000"} | properties
        self.start({})
        self.create()

    def create(self) -> None:
        """Make the partition, or finish it where that was begun."""
        self.manager.create_partition("t", 0, format_name=RECORD_BATCHES, topic_id=TOPIC_ID)

    def start(self, clean_ends: dict[str, int], known: Sequence[Topic] = ()) -> None:
        self.config = BrokerConfig.from_properties(self.properties)
        self.arena = Arena([str(self.directory)], FIRST_PROCESSOR + 2, 4, 64)
        self.manager = LogManager(self.config, self.arena, self.files)
        self.report = self.manager.load([clean_ends], known)
        self.log = SharedLog.over(self.arena)

    def restart(self, *, clean: bool = False) -> None:
        self.start({"t-0": self.view.log_offset} if clean else {})

    @property
    def view(self) -> SlotView:
        found = self.manager.slot("t", 0)
        assert found is not None
        return found

    @property
    def folder(self) -> Path:
        return self.directory / "t-0"

    def append(self, *datas: bytes) -> tuple[int, list[int], int]:
        """Append batches, one piece each; status, their offsets, the next one."""
        pieces = []
        for data in datas:
            (head,) = stored_batches.batches(data)
            count = head.last - head.base + 1
            pieces.append((data, count, count, head.largest_ms))
        status, offsets, following, _ = append_sets(self.log.appender, self.view.index, pieces)
        return status, offsets, following

    def segments(self) -> list[SegmentFile]:
        return [SegmentFile(int(path.stem), path, path.stat().st_size) for path in sorted(self.folder.glob("*.log"))]

    def batches(self) -> list[stored_batches.Batch]:
        return [one for segment in self.segments() for one in stored_batches.batches(segment.path.read_bytes())]

    def check_indexes(self) -> None:
        """They are those of the model, byte for byte; of the newest segment what an append may still lack."""
        segments = self.segments()
        for segment in segments:
            expected = stored_batches.indexes(
                segment.path.read_bytes(), segment.base, is_sealed=segment is not segments[-1]
            )
            found = tuple(
                path.read_bytes() if path.exists() else b""
                for path in (segment.path.with_suffix(".index"), segment.path.with_suffix(".timeindex"))
            )
            assert found == expected, segment.path


def some_batches(count: int, seed: int = 1) -> list[bytes]:
    """Batches of 1 to 5 records and up to 3 kB, with times that go up and down."""
    rng = random.Random(seed)
    return [
        batch(
            *(rng.randbytes(rng.randrange(600)) for _ in range(rng.randrange(1, 6))),
            time_ms=1_700_000_000_000 + rng.randrange(-5_000, 5_000) + number * 500,
        )
        for number in range(count)
    ]


def test_a_batch_gets_its_offset_and_epoch_and_keeps_its_other_bytes(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    sent = [batch(b"a", b"bc"), batch(b"d", producer_id=7), batch(b"e", b"f", b"g", base=77)]
    assert log.append(*sent) == (DONE, [0, 2, 3], 6)
    stored = log.batches()
    assert [(one.base, one.last, one.epoch) for one in stored] == [(0, 1, 0), (2, 2, 0), (3, 5, 0)]
    assert [one.data[8:12] + one.data[16:] for one in stored] == [data[8:12] + data[16:] for data in sent]
    assert (log.view.log_offset, log.view.appended_messages) == (6, 6)


@pytest.mark.parametrize("together", [1, 7])
def test_indexes_are_those_of_the_model_in_every_segment(tmp_path: Path, together: int) -> None:
    """Whether batches come one by one or several in one write."""
    log = BatchLog(tmp_path, **{"log.file.size": "40000"})
    sent = some_batches(120)
    for at in range(0, len(sent), together):
        assert log.append(*sent[at : at + together])[0] == DONE
    assert len(log.segments()) >= 3
    log.check_indexes()


@pytest.mark.parametrize(
    ("size", "before"),
    [(1024, 4), (1025, 4), (1024 - 61, 4), (3000, 4), (16384, 4), (16385, 3), (70_000, 0)],
)
def test_large_batches_share_an_entry(tmp_path: Path, size: int, before: int) -> None:
    """An entry is due when more came than 4096 bytes or four times the batch, and never later than behind 64 kB."""
    log = BatchLog(tmp_path)
    bare = len(batch(b"x" * (size - 100)))
    data = batch(b"x" * (size - 100 + size - bare))
    assert len(data) == size
    for _ in range(2 * before + 3):
        assert log.append(data)[0] == DONE
    (segment,) = log.segments()
    found = segment.path.with_suffix(".index").read_bytes()
    places = [int.from_bytes(found[at + 4 : at + 8], "big") // size for at in range(0, len(found), 8)]
    assert places == [before + 1, 2 * (before + 1)]
    log.check_indexes()


def test_every_offset_is_found_by_its_index(tmp_path: Path) -> None:
    """The place is that of the batch that holds it, with an index, without one, and with one that lies."""
    log = BatchLog(tmp_path)
    for data in some_batches(700):
        assert log.append(data)[0] == DONE
    (segment,) = log.segments()
    expected = {offset: one.position for one in log.batches() for offset in range(one.base, one.last + 1)}
    made, index = RecordBatches(), segment.path.with_suffix(".index")
    true = index.read_bytes()
    assert len(true) > 8 * 64  # more than one block of entries is looked at
    lies = [
        true,
        b"",
        true[: len(true) // 2 + 3],
        bytes(len(true)),
        b"".join(true[i : i + 4] + bytes(4) for i in range(0, len(true), 8)),
        b"".join(true[i : i + 7] + bytes([true[i + 7] ^ 1]) for i in range(0, len(true), 8)),
        true[8:] + b"\x7f\xff\xff\xff" * 2,
    ]
    for content in lies:
        index.write_bytes(content)
        assert {offset: made.position(segment, offset) for offset in expected} == expected
    index.unlink()
    assert {offset: made.position(segment, offset) for offset in expected} == expected
    assert made.position(segment, log.view.log_offset) == segment.size
    assert made.position(segment, log.view.log_offset + 1) > segment.size
    assert made.end_offset(segment) == log.view.log_offset


def test_with_an_index_nothing_is_read_that_lies_far_before(tmp_path: Path) -> None:
    """Where that is damaged, what is behind it is found all the same."""
    log = BatchLog(tmp_path)
    for data in some_batches(300):
        log.append(data)
    (segment,) = log.segments()
    last = log.batches()[-1]
    with segment.path.open("r+b") as file:
        file.write(b"\xff" * 61)
    assert RecordBatches().position(segment, last.base) == last.position
    segment.path.with_suffix(".index").unlink()
    assert RecordBatches().position(segment, last.base) != last.position


def test_an_index_with_preallocated_zeros_behind_is_read(tmp_path: Path) -> None:
    """Another broker that was killed leaves such ones."""
    log = BatchLog(tmp_path)
    for data in some_batches(100):
        log.append(data)
    (segment,) = log.segments()
    index = segment.path.with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(8 * 1000))
    for one in log.batches():
        assert RecordBatches().position(segment, one.last) == one.position


@pytest.mark.parametrize("point", ["append.after_write", "append.cell_open", "append.cell_filled"])
def test_a_writer_that_dies_before_it_publishes_leaves_nothing(tmp_path: Path, point: str) -> None:
    """Neither bytes nor index entries: the next writer's batches get those offsets, and the indexes fit them."""
    log = BatchLog(tmp_path)
    for data in some_batches(40):
        log.append(data)
    end = log.view.log_offset
    assert wait(start(lambda: log.append(*some_batches(30, seed=2)), f"{point}@1=kill")) == -9
    status, offsets, _ = log.append(batch(b"after"))
    assert (status, offsets) == (DONE, [end])
    for data in some_batches(20, seed=3):
        assert log.append(data)[0] == DONE
    assert log.log.counter("repairs") == 1
    log.check_indexes()


def test_nothing_of_an_older_segment_with_the_same_name_stays_in_the_indexes(tmp_path: Path) -> None:
    """One that was cut away may have left its own, which are longer."""
    log = BatchLog(tmp_path, **{"log.file.size": "40000"})
    for kind in ("index", "timeindex"):
        (log.folder / f"{0:020}.{kind}").write_bytes(b"\1" * 12_000)
    for data in some_batches(80):
        assert log.append(data)[0] == DONE
    assert len(log.segments()) >= 2
    log.check_indexes()


def test_an_index_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    sent = some_batches(60)
    _files.arm("pwrite@2-=ENOSPC", "test")
    assert log.append(batch(b"0" * 5000))[0] == DONE  # no entry is due yet
    assert log.append(batch(b"1"))[0] == FAILED
    _files.arm("", "test")
    blocked = log.folder / "00000000000000000000.index"
    blocked.mkdir()
    for data in sent:
        assert log.append(data)[0] == DONE
    (segment,) = log.segments()
    for one in log.batches():
        assert RecordBatches().position(segment, one.base) == one.position


def test_a_clean_start_goes_on_where_the_indexes_ended(tmp_path: Path) -> None:
    log = BatchLog(tmp_path, **{"log.file.size": "60000"})
    for data in some_batches(90):
        log.append(data)
    log.log.flush()
    log.restart(clean=True)
    assert (log.view.state, log.view.epoch, log.view.topic_id) == (0, 0, TOPIC_ID)
    for data in some_batches(90, seed=5):
        assert log.append(data)[0] == DONE
    log.check_indexes()
    assert [one.epoch for one in log.batches()] == [0] * 180


def test_a_torn_tail_is_cut_and_the_epoch_grows(tmp_path: Path) -> None:
    """What is whole stays, offsets go on behind it, and what is appended from now on is of another epoch."""
    log = BatchLog(tmp_path)
    for data in some_batches(50):
        log.append(data)
    whole = log.batches()
    (segment,) = log.segments()
    with segment.path.open("ab") as file:
        file.write(batch(b"torn" * 100, base=whole[-1].last + 1)[:-1])
    log.restart()
    assert log.view.log_offset == whole[-1].last + 1
    assert log.view.epoch == 1
    assert log.batches() == whole
    assert log.append(batch(b"next"))[0] == DONE
    assert [one.epoch for one in log.batches()] == [0] * 50 + [1]
    assert kafka_files.read_epochs(log.folder, FileOps()) == [(0, 0), (1, whole[-1].last + 1)]
    log.check_indexes()
    assert list(log.folder.glob("*.truncated*"))


@pytest.mark.parametrize(("failure", "why"), [(errno.EIO, WHY_START), (errno.ENOSPC, WHY_ROOM)])
@pytest.mark.parametrize("failing", ["replace_file", "fsync_dir"])
def test_nothing_is_appended_in_an_epoch_that_is_not_durable(
    tmp_path: Path, failing: str, failure: int, why: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The next start would give it again: two lives of one epoch could have other records at the same offsets."""
    log = BatchLog(tmp_path)
    for data in some_batches(20):
        log.append(data)
    stored = log.batches()
    log.files = NoEpochs(failing, failure)
    for number in range(2):
        log.restart()
        assert log.view.state == STATE_READ_ONLY | STATE_NO_FLUSH | why << 8
        assert log.view.epoch == (1 if failing == "replace_file" else number + 1)
        assert log.append(batch(b"refused"))[0] == OFFLINE
        assert log.batches() == stored
        assert log.view.log_offset == stored[-1].last + 1
    assert f"its leader epoch cannot be written: {os.strerror(failure)}; what it has can be read" in caplog.text
    assert str(log.folder) in caplog.text
    log.files = None
    log.restart()
    assert log.view.state == 0
    epoch = log.view.epoch
    assert epoch >= 1
    assert log.append(batch(b"first"))[0] == DONE
    log.restart()
    assert (log.view.state, log.view.epoch) == (0, epoch + 1)
    assert [one.epoch for one in log.batches()] == [0] * len(stored) + [epoch]


class NoEpochs(FileOps):
    """Lets one call fail that makes the file of leader epochs durable."""

    def __init__(self, failing: str, failure: int) -> None:
        self.failing, self.failure = failing, failure
        self.is_written = False

    def replace_file(self, path: Path, data: bytes, point: str) -> None:
        self.is_written = path.name == kafka_files.EPOCHS_NAME
        if self.is_written and self.failing == "replace_file":
            raise OSError(self.failure, os.strerror(self.failure))
        super().replace_file(path, data, point)

    def fsync_dir(self, path: Path) -> None:
        fails, self.is_written = self.is_written and self.failing == "fsync_dir", False
        if fails:
            raise OSError(self.failure, os.strerror(self.failure))
        super().fsync_dir(path)


def test_offsets_that_go_back_are_cut(tmp_path: Path) -> None:
    """They are not covered by a checksum: a batch that does not follow the one before it is none of this log."""
    log = BatchLog(tmp_path)
    for data in some_batches(3):
        log.append(data)
    end = log.view.log_offset
    (segment,) = log.segments()
    with segment.path.open("ab") as file:
        file.write(batch(b"stale", base=end - 1))
    log.restart()
    assert log.view.log_offset == end
    assert log.view.state == 0


@pytest.mark.parametrize(("damaged", "checkpoint"), [(0, 8), (4, 8), (36, 40)])
def test_nothing_is_cut_where_the_way_to_the_checkpoint_ends_before_it(
    tmp_path: Path, damaged: int, checkpoint: int
) -> None:
    """A head below it is damaged, and the index knows of batches behind: what was flushed is no torn tail."""
    log = BatchLog(tmp_path)
    for _ in range(60):
        assert log.append(batch(b"x" * 200))[0] == DONE
    assert log.log.flush() == 0
    side = read_side_file(log.folder, FileOps())
    assert side is not None
    write_side_file(log.folder, replace(side, checkpoint=checkpoint), FileOps())
    (segment,) = log.segments()
    data = bytearray(segment.path.read_bytes())
    at = next(each.position for each in log.batches() if each.base == damaged)
    data[at + 16] = 7
    segment.path.write_bytes(data)
    log.start({})
    reason = log.report.partitions[0].reason
    assert f"an unknown magic byte at position {at}, below the flushed offset {checkpoint}" in reason
    assert segment.path.read_bytes() == data
    assert log.view.log_offset == damaged
    assert log.view.state & 3 == (STATE_READ_ONLY if damaged else STATE_OFFLINE)


def test_every_cut_and_every_flipped_byte_of_the_tail_leaves_whole_batches(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    log.append(batch(b"first", b"second"))
    log.append(batch(b"third"))
    (segment,) = log.segments()
    content = segment.path.read_bytes()
    second = log.batches()[1].position
    for cut in range(len(content)):
        damaged = content[:cut]
        expected = content[:second] if second <= cut < len(content) else b""
        segment.path.write_bytes(damaged)
        log.restart()
        assert segment.path.read_bytes() == expected, cut
    for at in range(second, len(content)):
        if at in range(second + 4, second + 16) and at not in range(second + 8, second + 12):
            continue  # an offset within reach, or the epoch: no checksum covers them
        damaged = content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]
        segment.path.write_bytes(damaged)
        log.restart()
        assert segment.path.read_bytes() in (content[:second], damaged if at < second + 4 else content[:second]), at


@pytest.mark.parametrize("missing", [".index", ".timeindex"])
def test_indexes_that_are_missing_or_of_other_bytes_are_made_anew(tmp_path: Path, missing: str) -> None:
    log = BatchLog(tmp_path, **{"log.file.size": "30000"})
    for data in some_batches(90):
        log.append(data)
    log.log.flush()
    segments = log.segments()
    for segment in segments:
        segment.path.with_suffix(missing).unlink(missing_ok=True)
    segments[0].path.with_suffix(".index").write_bytes(b"\x00\x00\x10\x00" * 20)
    log.folder.joinpath("00000000000000999999.index").write_bytes(b"of no segment")
    log.restart(clean=True)
    log.check_indexes()
    assert not log.folder.joinpath("00000000000000999999.index").exists()


@pytest.mark.parametrize("kept", ["side file", "time indexes", "nothing"])
def test_segments_whose_records_have_no_time_are_as_old_as_their_files(tmp_path: Path, kept: str) -> None:
    """Retention goes by that, as in Kafka; as records of 1970 they would be removed at once."""
    log = BatchLog(tmp_path, **{"log.file.size": "30000"})
    for number in range(90):
        log.append(batch(b"x" * (600 + number), time_ms=-1))
    log.log.flush()
    before = time.time_ns() // 1_000_000
    if kept != "side file":
        for path in log.folder.iterdir():
            if path.suffix not in (".log", ".index", ".timeindex"):
                path.unlink()
    for segment in log.segments():
        if kept == "nothing":
            segment.path.with_suffix(".timeindex").unlink(missing_ok=True)
        elif kept == "time indexes":
            # as some write it, without a time and with the last record's offset
            segment.path.with_suffix(".timeindex").write_bytes(b"\xff" * 8 + bytes(4))
    log.restart(clean=True)
    found = [segment.last_ms for segment in log.arena.segments(log.view.index)]
    assert len(found) > 1 and all(before - 60_000 <= at <= before + 60_000 for at in found)


def test_batches_are_found_behind_damage(tmp_path: Path) -> None:
    """fsck and the line about what was cut count the records of what is whole there."""
    log = BatchLog(tmp_path)
    sent = some_batches(30)
    for data in sent:
        log.append(data)
    (segment,) = log.segments()
    stored = log.batches()
    content = bytearray(segment.path.read_bytes())
    content[stored[10].position + 70 if stored[10].bytes > 71 else stored[10].position + 60] ^= 1
    content[stored[20].position + 10] ^= 0x70  # a length
    segment.path.write_bytes(content)
    made, files = RecordBatches(), FileOps()
    with files.open(segment.path, os.O_RDONLY) as fd:
        found = made.scan(files, fd, 0, len(content))
        assert found.end == stored[10].position
        assert found.count == sum(one.last - one.base + 1 for one in stored[:10])
        assert made.find_entry(files, fd, found.end, len(content), SearchBudget()) == stored[11].position
        expected = sum(one.last - one.base + 1 for one in stored[11:20] + stored[21:])
        assert made.count_entries(files, fd, found.end, len(content), SearchBudget()) == expected


def test_where_batches_begin(tmp_path: Path) -> None:
    """The first boundary at or behind each place, the end too; where the walk ends early, that place."""
    log = BatchLog(tmp_path)
    for data in some_batches(5):
        log.append(data)
    (segment,) = log.segments()
    bounds = [one.position for one in log.batches()] + [segment.size]
    made = RecordBatches()
    for target in range(segment.size + 1):
        expected = min(bound for bound in bounds if bound >= target)
        assert made.first_boundary(segment.path, 0, target, segment.size, segment.size) == expected
        assert made.is_entry(segment.path, target, segment.size) == (target in bounds[:-1])
    last = bounds[-2]
    for end in range(last, segment.size):
        assert made.first_boundary(segment.path, 0, segment.size, end, segment.size) == last
        assert not made.is_entry(segment.path, last, end)
    assert made.first_boundary(segment.path, bounds[1], segment.size, segment.size, 1) == bounds[2]
    assert made.first_boundary(segment.path, 0, bounds[2] + 1, segment.size, bounds[2] + 1) == bounds[3]
    assert made.first_boundary(segment.path, 0, bounds[2] + 1, segment.size, bounds[2]) == bounds[2]
    with segment.path.open("r+b") as file:
        file.seek(bounds[1] + 16)
        file.write(b"\x09")  # a magic that no batch has
    assert made.first_boundary(segment.path, 0, segment.size, segment.size, segment.size) == bounds[1]
    assert not made.is_entry(segment.path, bounds[1], segment.size)
    with pytest.raises(FileNotFoundError):
        made.is_entry(segment.path.with_suffix(".gone"), 0, 1)


@pytest.mark.parametrize("wrong", ["the length", "the checksum"])
def test_what_a_search_behind_damage_finds(tmp_path: Path, wrong: str) -> None:
    """Nothing behind the last batch; what only looks like a batch is passed by; a budget that is used up ends it."""
    log = BatchLog(tmp_path)
    for data in (batch(b"first"), batch(batch(b"x")[:-1] + b"\xff"), batch(b"third"), batch(b"last")):
        log.append(data)
    (segment,) = log.segments()
    first, second, third, last = (one.position for one in log.batches())
    content = bytearray(segment.path.read_bytes())
    at = {"the length": 11, "the checksum": 20}[wrong]
    for position in (first, second, last):
        content[position + at] ^= 1
    segment.path.write_bytes(content)
    made, files = RecordBatches(), FileOps()
    with files.open(segment.path, os.O_RDONLY) as fd:
        assert made.find_entry(files, fd, first, len(content), SearchBudget()) == third
        assert made.find_entry(files, fd, last, len(content), SearchBudget()) is None
        assert made.find_entry(files, fd, first, len(content), SearchBudget(0)) is None


def test_a_batch_that_is_larger_than_a_window_is_checked_in_pieces(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    log.append(batch(b"small"), batch(b"x" * (9 << 20)), batch(b"small"))
    log.restart()
    assert (log.view.log_offset, log.view.state) == (3, 0)
    (segment,) = log.segments()
    with segment.path.open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"y")
    log.restart()
    assert log.view.log_offset == 1


def test_the_compiled_walk_reads_what_the_index_was_made_of(tmp_path: Path) -> None:
    """``entries`` gives what appends wrote."""
    log = BatchLog(tmp_path)
    for data in some_batches(70):
        log.append(data)
    (segment,) = log.segments()
    with segment.path.open("rb") as file:
        offsets, times, state = _index.entries(file.fileno(), format_number(RECORD_BATCHES), 0, segment.size, False)
    assert (offsets, times) == stored_batches.indexes(segment.path.read_bytes(), 0, is_sealed=False)
    assert state[1:3] == (len(offsets) // 8, len(times) // 12)


def test_a_dump_tells_batch_by_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Offsets, counts, and whose they are; exit code 5 where one is not valid."""
    log = BatchLog(tmp_path)
    log.append(batch(b"a", b"b"), batch(b"c", producer_id=9))
    command = ["--json", "--no-print", str(log.folder)]
    assert dump_log_command.main(command, standalone_mode=False) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(row["offset"], row["next_offset"], row["count"], row["producer_id"], row["valid"]) for row in rows]
    assert found == [(0, 2, 2, -1, True), (2, 3, 1, 9, True)]
    (segment,) = log.segments()
    with segment.path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert dump_log_command.main(command, standalone_mode=False) == 5
    assert [json.loads(line)["valid"] for line in capsys.readouterr().out.splitlines()] == [True, False]


@pytest.mark.parametrize("keep", ["before", "after"])
def test_fsck_finds_damage_and_what_it_keeps_is_served(tmp_path: Path, keep: str) -> None:
    """As for any format; the indexes of what is left are those of the model, with what is appended behind it."""
    log = BatchLog(tmp_path, **{"log.file.size": "20000"})
    for data in some_batches(60):
        log.append(data)
    log.log.flush()
    assert len(log.segments()) == 3
    damaged = next(one for one in log.batches() if one.position > 4000)
    (whole,) = [one for one in log.batches() if one.base == damaged.last + 1]
    end = log.view.log_offset
    with log.segments()[0].path.open("r+b") as file:
        file.seek(damaged.position + damaged.bytes - 1)
        last = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last[0] ^ 1]))
    assert fsck_command.main([str(log.folder)], standalone_mode=False) == 5
    assert fsck_command.main(["--repair", "--keep", keep, str(log.folder)], standalone_mode=False) == 0
    log.restart()
    expected = (0, damaged.base) if keep == "before" else (whole.base, end)
    assert (log.view.state, log.view.log_start, log.view.log_offset) == (0, *expected)
    for data in some_batches(40, seed=6):
        assert log.append(data)[0] == DONE
    log.check_indexes()


def test_indexes_of_sealed_segments_are_durable_with_them(tmp_path: Path) -> None:
    """Synced by the flush that passes the segment; one that cannot be takes nothing out of service."""
    log = BatchLog(tmp_path, **{"log.file.size": "20000"})
    log.log.flush()
    for data in some_batches(60):
        log.append(data)
    sealed = log.segments()[:-1]
    record = tmp_path / "calls"
    _files.record(str(record))
    assert log.log.flush() == 0
    _files.record(None)
    synced = {call.path.name for call in read_calls(record) if call.name == "fdatasync"}
    for segment in sealed:
        assert {segment.path.with_suffix(suffix).name for suffix in (".log", ".index", ".timeindex")} <= synced


def test_files_of_one_segment_are_told_apart_in_a_small_table(tmp_path: Path) -> None:
    """Where a table of few descriptors has a segment, its index and its time index in one place, for some of many."""
    config = BrokerConfig.from_properties({"log.dir": str(tmp_path), "max.partitions": "40"})
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 40, 16)
    manager = LogManager(config, arena)
    manager.load([{}])
    appender = Appender(arena, SegmentFiles(arena, 4), FIRST_PROCESSOR)
    sent = [batch(b"%d" % number * 800) for number in range(12)]
    for partition in range(40):
        slot = manager.create_partition("t", partition, count=40, format_name=RECORD_BATCHES)
        for data in sent:
            assert append_sets(appender, slot, [(data, 1, 1, 1_700_000_000_000)])[0] == DONE
        path = tmp_path / f"t-{partition}" / "00000000000000000000.log"
        content = path.read_bytes()
        assert len(list(stored_batches.batches(content))) == len(sent)
        found = path.with_suffix(".index").read_bytes(), path.with_suffix(".timeindex").read_bytes()
        assert found == stored_batches.indexes(content, 0, is_sealed=False)
