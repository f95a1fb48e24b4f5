"""Producers over restarts: snapshots in Kafka's format, made again from the heads of batches, never of what was cut."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from fastlog.log import producer_snapshots
from fastlog.log._producer_table import ProducerTable, SnapshotEntry
from fastlog.log.files import FileOps
from fastlog.log.formats import format_number
from fastlog.log.formats.record_batches import RECORD_BATCHES, RecordBatches
from fastlog.log.side_file import read_side_file, write_side_file
from fastlog.log.slots import ProducerState
from tests.harness import raw_batches
from tests.harness.raw_batches import crc32c
from tests.harness.raw_records import Record
from tests.harness.shared_log import DONE
from tests.harness.stored_batches import batch
from tests.unit.test_record_batch_log import BatchLog

pytestmark = pytest.mark.usefixtures("no_faults")

DUPLICATE, OUT_OF_SEQUENCE = 6, 7
NOW_MS = 1_800_000_000_000


class Numbered(BatchLog):
    """A partition to which producers write that number their batches."""

    time_ms = 1_700_000_000_000
    """Of their records."""

    def send(self, producer: int, first: int, count: int = 1, epoch: int = 0, size: int = 1) -> int:
        data = batch(*[b"x" * size] * count, time_ms=self.time_ms, producer_id=producer, epoch=epoch, sequence=first)
        status, _, _ = self.append(data)
        return status

    def known(self) -> list[ProducerState]:
        return [row._replace(age_ms=0) for row in self.arena.producers(self.view.index)]

    def learned(self, **options: int) -> producer_snapshots.Learned:
        segments, offset = self.segments(), self.view.log_offset
        return producer_snapshots.learn(self.folder, RecordBatches(), segments, offset, 0, NOW_MS, FileOps(), **options)

    def snapshot(self) -> None:
        producer_snapshots.write(self.folder, self.view.log_offset, self.learned(tail_bytes=0).table, FileOps())

    def snapshots(self) -> list[int]:
        return producer_snapshots.listed(self.folder, FileOps())

    def path(self, offset: int) -> Path:
        return self.folder / f"{offset:020}.snapshot"


ENTRIES = [
    SnapshotEntry(5, 3, 2**31 - 1, 2**40, 4, 1_700_000_000_000),
    SnapshotEntry(2**62, 0, -1, -1, 0, 7, 9, 2**41),
]


def test_the_bytes_are_those_of_kafka() -> None:
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 5, 3, 2**31 - 1, 2**40, 4, 1_700_000_000_000, -1, -1)
    body += struct.pack(">qhiqiqiq", 2**62, 0, -1, -1, 0, 7, 9, 2**41)
    data = struct.pack(">hI", 1, crc32c(body)) + body
    assert producer_snapshots.encode(ENTRIES) == data
    assert producer_snapshots.parse(data) == ENTRIES
    assert ProducerTable(ENTRIES).entries() == ENTRIES
    empty = struct.pack(">hIi", 1, crc32c(bytes(4)), 0)
    assert (producer_snapshots.encode([]), producer_snapshots.parse(empty)) == (empty, [])


def test_any_damage_is_noticed() -> None:
    data = producer_snapshots.encode(ENTRIES)
    for end in range(len(data)):
        assert producer_snapshots.parse(data[:end]) is None
    for at in range(len(data)):
        assert producer_snapshots.parse(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
    assert producer_snapshots.parse(data + bytes(46)) is None
    body = struct.pack(">i", 3) + data[10:]
    assert producer_snapshots.parse(struct.pack(">hI", 1, crc32c(body)) + body) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_start_knows_what_was_known(tmp_path: Path, seed: int) -> None:
    """With snapshots taken anywhere, of several segments, after clean and other stops."""
    rng = random.Random(seed)
    log = Numbered(tmp_path, **{"log.file.size": "2000"})
    following = dict.fromkeys(range(7), 0)
    for _ in range(150):
        kind, producer = rng.random(), rng.randrange(7)
        if kind < 0.08:
            log.snapshot()
        elif kind < 0.15:
            before = log.known()
            log.restart(clean=rng.random() < 0.5)
            assert log.known() == before
        elif kind < 0.25:
            assert log.append(batch(b"plain"))[0] == DONE
        elif kind < 0.3:
            epoch = max((row.epoch for row in log.known() if row.id == producer), default=-1) + 1
            assert log.send(producer, 0, epoch=epoch) == DONE
            following[producer] = 1
        else:
            count = rng.randrange(1, 4)
            epoch = next((row.epoch for row in log.known() if row.id == producer), 0)
            assert log.send(producer, following[producer], count, epoch) == DONE
            following[producer] += count
    assert len(log.segments()) > 3
    assert len(log.known()) == 7
    assert len(log.snapshots()) == 2


def test_five_batches_of_each_are_known_again_also_from_below_a_snapshot(tmp_path: Path) -> None:
    log = Numbered(tmp_path)
    for first in range(7):
        assert (log.send(1, first), log.send(2, first)) == (DONE, DONE)
    log.snapshot()
    log.restart(clean=True)
    assert [log.send(1, first) for first in range(7)] == [OUT_OF_SEQUENCE] * 2 + [DUPLICATE] * 5
    assert log.send(2, 7) == DONE


def test_a_tail_begins_where_a_batch_does(tmp_path: Path) -> None:
    """As far back as is asked for, and not much further: the last batch alone where nothing is."""
    log = Numbered(tmp_path, **{"log.file.size": "60000"})
    for first in range(150):
        assert log.send(1, first, size=1000) == DONE
    log.snapshot()
    assert len(log.segments()) == 3
    assert [len(row.batches) for row in log.learned(tail_bytes=0).table.states(NOW_MS)] == [1]
    whole = log.learned(tail_bytes=1 << 30).table.states(NOW_MS)[0].batches
    assert [one.last_sequence for one in whole] == [145, 146, 147, 148, 149]
    for tail_bytes in (1, 3000, 40_000, 100_000, log.segments()[-1].size, log.segments()[-1].size + 1):
        place = producer_snapshots._tail(RecordBatches(), log.segments(), tail_bytes, FileOps())
        behind = sum(item.size for item in log.segments()[place[0] :]) - place[1]
        assert tail_bytes <= behind <= tail_bytes + 6000, tail_bytes
        kept = log.learned(tail_bytes=tail_bytes).table.states(NOW_MS)[0].batches
        assert kept == whole[-len(kept) :]
        assert len(kept) == min(5, behind // log.batches()[0].bytes)
    for segment in log.segments():
        segment.path.with_suffix(".index").write_bytes(bytes(4000))
    assert producer_snapshots._tail(RecordBatches(), log.segments(), 3000, FileOps()) == (2, 0)
    assert log.learned(tail_bytes=3000).table.states(NOW_MS)[0].batches == whole


@pytest.mark.parametrize("damage", ["the newest", "all", "lost"])
def test_without_a_good_snapshot_the_log_is_read(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    log = Numbered(tmp_path)
    for first in range(4):
        log.send(1, first)
        log.send(first + 10, 0)
        log.snapshot()
    log.send(1, 4)
    before, paths = log.known(), [log.path(offset) for offset in log.snapshots()]
    for path in paths[1:] if damage == "the newest" else paths:
        path.write_bytes(path.read_bytes()[:-1]) if damage != "lost" else path.unlink()
    log.restart()
    assert log.known() == before
    assert caplog.text.count("snapshot not used") == {"the newest": 1, "all": 2, "lost": 0}[damage]


def test_what_a_snapshot_says_is_believed_of_what_has_gone(tmp_path: Path) -> None:
    """Segments that retention has taken; and the snapshot is not older than their end."""
    log = Numbered(tmp_path, **{"log.file.size": "2000"})
    for first in range(3):
        log.send(1, first)
    log.snapshot()
    for first in range(60):
        log.send(2, first, size=100)
    before = log.known()
    gone = log.segments()[:2]
    assert gone[-1].base > 3
    for segment in gone:
        segment.path.unlink()
    log.restart()
    assert [(row.id, row.epoch, row.batches[-1][:3]) for row in log.known()] == [
        (row.id, row.epoch, row.batches[-1][:3]) for row in before
    ]
    assert (log.send(1, 2), log.send(1, 4), log.send(2, 60)) == (DUPLICATE, OUT_OF_SEQUENCE, DONE)


def test_a_snapshot_of_what_was_cut_goes_durably_before_anything_is_appended(tmp_path: Path) -> None:
    """Else the next start believes it of other batches, which have those offsets by then."""
    log = Numbered(tmp_path)
    for first in range(3):
        log.send(1, first)
    log.snapshot()
    end = log.segments()[0].size
    for first in range(3, 6):
        log.send(1, first)
    log.snapshot()
    assert log.snapshots() == [3, 6]
    with log.segments()[0].path.open("r+b") as file:
        file.truncate(end + 30)
    log.restart()
    assert log.snapshots() == [3]
    assert [one.last_sequence for one in log.known()[0].batches] == [0, 1, 2]
    assert log.send(1, 5) == OUT_OF_SEQUENCE
    assert [log.send(7, number) for number in range(5)] == [DONE] * 5
    log.restart()
    assert [(row.id, row.batches[-1].last_sequence) for row in log.known()] == [(1, 2), (7, 4)]


def test_below_what_was_never_numbered_nothing_is_read(tmp_path: Path) -> None:
    """The side file says so; here it lies, and so shows what is read."""
    log = Numbered(tmp_path)
    log.send(1, 0)
    log.send(2, 0)
    offset = log.view.log_offset
    log.send(3, 0)
    side = read_side_file(log.folder, FileOps())
    assert side is not None
    assert not side.unnumbered
    write_side_file(log.folder, replace(side, checkpoint=offset, unnumbered=True), FileOps())
    log.restart()
    assert [row.id for row in log.known()] == [3]
    log.snapshot()
    log.restart()
    assert [row.id for row in log.known()] == [1, 2, 3]


def test_a_head_that_is_none_ends_the_reading_of_its_segment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Numbered(tmp_path, **{"log.file.size": "500"})
    for first in range(12):
        log.send(first, 0)
    first, second = log.segments()[:2]
    with first.path.open("r+b") as file:
        file.seek(16)
        file.write(b"\1")
    found = [entry.id for entry in log.learned().table.entries()]
    assert found == list(range(second.base, 12))
    assert "what is no batch stands there" in caplog.text


def test_expired_producers_leave_snapshots(tmp_path: Path) -> None:
    table = ProducerTable([SnapshotEntry(number, 0, 0, number, 0, 1000 + number) for number in range(3)])
    open_one = ProducerTable([SnapshotEntry(9, 0, 0, 9, 0, 5, 0, 9)])
    table.update(open_one)
    table.forget_before(1001)
    assert [entry.id for entry in table.entries()] == [2, 9]
    assert [(row.id, row.age_ms, row.open_offset) for row in table.states(1005)] == [(2, 3, None), (9, 1000, 9)]


def test_new_producer_ids_are_above_all_that_were_met(tmp_path: Path) -> None:
    log = Numbered(tmp_path)
    assert log.arena.largest_producer == -1
    log.send(41, 0)
    log.snapshot()
    log.send(12, 0)
    log.send(2**62, 0)
    log.restart()
    assert log.arena.largest_producer == 41
    log.send(2**62 - 1, 0)
    log.restart()
    assert log.arena.largest_producer == 2**62 - 1


def test_transactions_of_a_log_that_was_moved_here_are_followed(tmp_path: Path) -> None:
    """Where one begins, that a marker ends it and raises the epoch, which alone ends none; its producer is kept."""
    transactional, marker = 0x10, 0x30
    record = [Record(value=b"x")]
    batches = [
        raw_batches.of(record, transactional, base_offset=0, producer_id=1, producer_epoch=0, base_sequence=0),
        raw_batches.of(record, transactional, base_offset=1, producer_id=1, producer_epoch=0, base_sequence=1),
        raw_batches.of(record, transactional, base_offset=2, producer_id=2, producer_epoch=5, base_sequence=0),
        raw_batches.of(record, marker, base_offset=3, producer_id=1, producer_epoch=0, base_sequence=-1),
        raw_batches.of(record, marker, base_offset=4, producer_id=2, producer_epoch=6, base_sequence=-1),
        raw_batches.of(record, transactional, base_offset=5, producer_id=1, producer_epoch=0, base_sequence=2),
        raw_batches.of(record, transactional, base_offset=6, producer_id=1, producer_epoch=0, base_sequence=3),
        raw_batches.of(record, transactional, base_offset=7, producer_id=1, producer_epoch=1, base_sequence=0),
    ]
    path = tmp_path / "segment"
    path.write_bytes(b"".join(one.encode() for one in batches))
    found = []
    for count in range(1, len(batches) + 1):
        table = ProducerTable()
        end = sum(len(one.encode()) for one in batches[:count])
        with path.open("rb") as file:
            assert table.replay(file.fileno(), format_number(RECORD_BATCHES), 0, end, 77) == end
        found.append([(row.id, row.epoch, row.open_offset, len(row.batches)) for row in table.states(77)])
        assert table.has_open == any(row[2] is not None for row in found[-1])
    assert found[1:] == [
        [(1, 0, 0, 2)],
        [(1, 0, 0, 2), (2, 5, 2, 1)],
        [(1, 0, None, 2), (2, 5, 2, 1)],
        [(1, 0, None, 2), (2, 6, None, 0)],
        [(1, 0, 5, 3), (2, 6, None, 0)],
        [(1, 0, 5, 4), (2, 6, None, 0)],
        [(1, 1, 5, 1), (2, 6, None, 0)],
    ]
    assert [entry[:4] + entry[7:] for entry in table.entries()] == [(1, 1, 0, 7, 5), (2, 6, -1, -1, -1)]
    table.forget_before(100)
    assert [entry.id for entry in table.entries()] == [1]


def test_a_walk_ends_where_a_batch_does_not(tmp_path: Path) -> None:
    """One that is cut, at each of its bytes, and what can be none, tell of nobody; the batches before them do."""
    first, second = (batch(b"x", base=number, producer_id=number, sequence=0) for number in (1, 2))
    path = tmp_path / "segment"
    for data in (first + second, first + bytes(200)):
        path.write_bytes(data)
        for end in range(len(first), len(first) + len(second)):
            table = ProducerTable()
            with path.open("rb") as file:
                assert table.replay(file.fileno(), format_number(RECORD_BATCHES), 0, end, 7) == len(first)
            assert [row.id for row in table.entries()] == [1]


@pytest.mark.parametrize("kept", [0, 1, 43, 60])
def test_a_file_that_is_shorter_than_its_log_tells_of_what_it_has(tmp_path: Path, kept: int) -> None:
    """Less than a head is no batch, whatever was read before it."""
    first, second = (batch(b"x", base=number, producer_id=number, sequence=0) for number in (1, 2))
    path = tmp_path / "segment"
    path.write_bytes(first + second[:kept])
    table = ProducerTable()
    with path.open("rb") as file:
        end = len(first) + len(second)
        assert table.replay(file.fileno(), format_number(RECORD_BATCHES), 0, end, 7) == len(first)
    assert [row.id for row in table.entries()] == [1]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """It is no log without producers."""
    path = tmp_path / "segment"
    with path.open("wb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        ProducerTable().replay(file.fileno(), format_number(RECORD_BATCHES), 0, 1000, 7)


def test_a_log_with_an_open_transaction_is_read_from_its_snapshot_on(tmp_path: Path) -> None:
    """What a snapshot says is open was begun below it: the batches alone would not say so."""
    log = Numbered(tmp_path)
    for first in range(3):
        log.send(1, first)
    entry = SnapshotEntry(1, 0, 1, 1, 0, NOW_MS, -1, 0)
    producer_snapshots.write(log.folder, 2, ProducerTable([entry]), FileOps())
    (state,) = log.learned().table.states(NOW_MS)
    assert state.open_offset == 0
    assert [one.last_sequence for one in state.batches] == [1, 2]


def test_after_a_marker_of_its_epoch_a_producer_goes_on_and_after_a_later_one_begins_with_0(tmp_path: Path) -> None:
    log = Numbered(tmp_path)
    entries = [SnapshotEntry(1, 3, 7, 0, 0, NOW_MS), SnapshotEntry(2, 4, -1, -1, 0, NOW_MS)]
    log.send(9, 0)
    producer_snapshots.write(log.folder, 1, ProducerTable(entries), FileOps())
    log.restart(clean=True)
    assert log.send(1, 8, epoch=3) == DONE
    assert [log.send(2, 8, epoch=4), log.send(2, 0, epoch=3), log.send(2, 0, epoch=4)] == [OUT_OF_SEQUENCE, 8, DONE]


@pytest.mark.parametrize("beyond", [-1, 0, 1, 2])
def test_a_snapshot_that_speaks_of_more_than_the_log_has_goes(beyond: int, tmp_path: Path) -> None:
    """By one record, too: the next one that is appended gets that offset."""
    log = Numbered(tmp_path)
    assert log.send(7, 0, 3) == DONE
    producer_snapshots.write(log.folder, 3 + beyond, log.learned(tail_bytes=0).table, FileOps())
    before = set(log.snapshots())
    producer_snapshots.drop_above(log.folder, 3, FileOps())
    assert set(log.snapshots()) == {offset for offset in before if offset <= 3}
    assert (3 + beyond in log.snapshots()) == (beyond <= 0)


class Recorded(FileOps):
    """Notes what is changed in directories, and when they are synced."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    def replace_file(self, path: Path, data: bytes, point: str) -> None:
        super().replace_file(path, data, point)
        self.calls.append(("replace", path.name))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.calls.append(("unlink", path.name))

    def fsync_dir(self, path: Path) -> None:
        super().fsync_dir(path)
        self.calls.append(("sync", path.name))


def test_a_directory_is_synced_when_a_snapshot_is_in_place_and_before_older_ones_go(tmp_path: Path) -> None:
    log, files = Numbered(tmp_path), Recorded()
    for offset in (1, 2, 3, 4):
        producer_snapshots.write(log.folder, offset, ProducerTable(), files, keep=1)
    name = log.folder.name
    made = [[("replace", log.path(offset).name), ("sync", name)] for offset in (1, 2, 3, 4)]
    assert files.calls == [*made[0], *made[1], *made[2], *made[3], ("unlink", log.path(2).name)]
    assert log.snapshots() == [1, 3, 4]


def test_snapshots_that_go_with_what_was_cut_have_gone_durably(tmp_path: Path) -> None:
    log, files = Numbered(tmp_path), Recorded()
    for offset in (3, 4):
        producer_snapshots.write(log.folder, offset, ProducerTable(), FileOps())
    producer_snapshots.drop_above(log.folder, 4, files)
    assert files.calls == []
    producer_snapshots.drop_above(log.folder, 2, files)
    assert files.calls == [("unlink", log.path(3).name), ("unlink", log.path(4).name), ("sync", log.folder.name)]


def test_a_long_reading_lets_others_have_their_turns(tmp_path: Path) -> None:
    """Between two segments, and before the first."""
    log = Numbered(tmp_path, **{"log.file.size": "60000"})
    for first in range(150):
        assert log.send(1, first, size=1000) == DONE
    turns: list[int] = []
    producer_snapshots.learn(
        log.folder, RecordBatches(), log.segments(), 150, 0, NOW_MS, FileOps(), turn=lambda: turns.append(1)
    )
    assert len(turns) == len(log.segments()) == 3


def test_a_tail_that_begins_before_the_first_batch_of_an_index_is_the_whole_segment(tmp_path: Path) -> None:
    """No row of the index is at or before it."""
    log = Numbered(tmp_path)
    for first in range(30):
        assert log.send(1, first, size=1000) == DONE
    (segment,) = log.segments()
    rows = segment.path.with_suffix(".index").read_bytes()
    (_, before) = struct.unpack_from(">ii", rows)
    assert before > 1000
    for tail_bytes in (segment.size - before + 1, segment.size - 1, segment.size):
        place = producer_snapshots._tail(RecordBatches(), [segment], tail_bytes, FileOps())
        assert place == (0, 0), tail_bytes
    place = producer_snapshots._tail(RecordBatches(), [segment], segment.size - before, FileOps())
    assert place == (0, before)


def test_so_much_of_a_log_is_looked_at_for_the_last_batches() -> None:
    """The documents say so, and a start takes that long."""
    assert producer_snapshots.TAIL_BYTES == 16 << 20
