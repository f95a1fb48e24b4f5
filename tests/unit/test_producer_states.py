"""The keeper and idempotent producers: snapshots at its checkpoints, and before segments go that tell of them."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastlog.log import producer_snapshots
from fastlog.log._append import end_life
from fastlog.log.files import FileOps
from fastlog.log.log_starts import write_log_starts
from fastlog.log.side_file import read_side_file, write_side_file
from fastlog.workers import keeper as keeper_module
from fastlog.workers import producer_states
from fastlog.workers.child import Shared
from fastlog.workers.keeper import Keeper
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.shared_log import DONE
from tests.harness.stored_batches import batch
from tests.harness.timing import patch_time
from tests.unit.test_producer_snapshots import DUPLICATE, Numbered

pytestmark = pytest.mark.usefixtures("no_faults")


def keeper_of(log: Numbered, files: FileOps | None = None) -> Keeper:
    keeper = Keeper(Shared(log.config, log.arena, (), (), (), 64))
    if files is not None:
        keeper._producers._files = files
    return keeper


def checkpoint(log: Numbered, keeper: Keeper) -> tuple[int, bool]:
    """What the side file says after a last look."""
    log.log.flush()
    keeper._look(final=True)
    side = read_side_file(log.folder, FileOps())
    assert side is not None
    return side.checkpoint, side.unnumbered


def entries(log: Numbered, offset: int) -> list[tuple[int, int]]:
    """Producers of a snapshot with their last numbers."""
    found = producer_snapshots.parse(log.path(offset).read_bytes())
    assert found is not None
    return [(entry.id, entry.last_sequence) for entry in found]


def test_a_log_without_numbers_has_no_snapshots_and_says_so(tmp_path: Path) -> None:
    log = Numbered(tmp_path)
    keeper = keeper_of(log)
    assert log.append(batch(b"a", b"b"))[0] == DONE
    assert checkpoint(log, keeper) == (2, True)
    assert log.snapshots() == []


def test_a_snapshot_is_written_with_a_checkpoint_of_what_is_flushed(tmp_path: Path) -> None:
    """From the first numbered batch on; of what came since the last one, and what is not flushed is left out."""
    log = Numbered(tmp_path, **{"log.file.size": "550"})
    keeper = keeper_of(log)
    assert log.append(batch(b"a", b"b"))[0] == DONE
    assert checkpoint(log, keeper) == (2, True)
    assert log.send(1, 7) == DONE
    assert checkpoint(log, keeper) == (3, False)
    assert entries(log, 3) == [(1, 7)]
    for number in range(10):
        assert log.send(2, number) == DONE
    log.log.flush()
    assert log.send(3, 0) == DONE
    keeper._look(final=True)
    base = log.segments()[-1].base
    assert 3 < base < 13
    assert log.snapshots() == [base, 13]
    assert entries(log, base) == [(1, 7), (2, base - 4)]
    assert entries(log, 13) == [(1, 7), (2, 9)]
    assert checkpoint(log, keeper) == (14, False)
    assert log.snapshots() == [base, 13, 14]
    assert log.send(3, 1) == DONE
    assert checkpoint(log, keeper) == (15, False)
    assert log.snapshots() == [base, 14, 15]


@pytest.mark.parametrize("successor", [False, True])
def test_nothing_below_what_was_never_numbered_is_read(tmp_path: Path, successor: bool) -> None:
    """The first snapshot of a long log begins there, also when a former keeper has written that down.

    Here that is a lie, which shows what is read.
    """
    log = Numbered(tmp_path)
    keeper = keeper_of(log)
    assert log.send(9, 0) == DONE
    if successor:
        side = read_side_file(log.folder, FileOps())
        assert side is not None
        write_side_file(log.folder, replace(side, checkpoint=1, unnumbered=True), FileOps())
        keeper = keeper_of(log)
    else:
        keeper._producers.unnumbered_below(log.view.index, 1)
    assert log.send(1, 7) == DONE
    assert checkpoint(log, keeper) == (2, False)
    assert entries(log, 2) == [(1, 7)]


def test_other_files_have_perhaps_numbered_batches(tmp_path: Path) -> None:
    """What a side file says that was written beside others counts for none of them: Apache Kafka had them meanwhile."""
    log = Numbered(tmp_path)
    assert log.send(1, 7) == DONE
    log.log.flush()
    side = read_side_file(log.folder, FileOps())
    assert side is not None
    write_side_file(log.folder, replace(side, checkpoint=1, unnumbered=True, inode=(0, 1)), FileOps())
    log.restart()
    assert log.send(1, 7) == DUPLICATE


def test_what_a_slots_former_partition_never_numbered_says_nothing_of_the_next(tmp_path: Path) -> None:
    log = Numbered(tmp_path)
    keeper = keeper_of(log)
    keeper._producers.unnumbered_below(log.view.index, 1)
    index = log.view.index
    assert end_life(log.log.appender, index, True)
    assert log.arena.create_lock()
    log.arena.revive(index)
    log.arena.create_unlock()
    keeper._forget_gone()
    assert log.send(9, 0) == DONE
    assert log.send(1, 7) == DONE
    assert checkpoint(log, keeper) == (2, False)
    assert entries(log, 2) == [(1, 7), (9, 0)]


def test_a_snapshot_is_due_after_so_many_bytes_at_a_roll_and_at_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Numbered(tmp_path, **{"log.file.size": "2000"})
    monkeypatch.setattr(keeper_module, "CHECKPOINT_SECONDS", 0.0)
    keeper = keeper_of(log)
    log.send(1, 0)
    size = log.view.log_end
    assert producer_states.SNAPSHOT_BYTES == 64 << 20  # as the documentation says
    monkeypatch.setattr(producer_states, "SNAPSHOT_BYTES", 3 * size)
    taken = []
    for number in range(1, 60):
        log.log.flush()
        keeper._look(final=False)
        taken.append(log.snapshots())
        log.send(1, number)
    assert [each[-1] for each in taken[:8]] == [1, 1, 1, 4, 4, 4, 7, 7]
    rolled = log.segments()[1].base
    assert rolled % 3 != 1
    assert taken[rolled][-2:] == [rolled, rolled + 1]  # the first look behind it
    assert taken[rolled - 1][-1] < rolled
    log.log.flush()
    keeper._look(final=True)
    assert log.snapshots()[-1] == 60


def test_what_was_appended_and_not_flushed_at_a_snapshot_counts_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Numbered(tmp_path)
    monkeypatch.setattr(keeper_module, "CHECKPOINT_SECONDS", 0.0)
    keeper = keeper_of(log)
    log.send(1, 0)
    monkeypatch.setattr(producer_states, "SNAPSHOT_BYTES", 3 * log.view.log_end)
    log.log.flush()
    for number in range(1, 4):
        log.send(1, number)
    keeper._look(final=False)
    assert log.snapshots()[-1] == 1
    log.log.flush()
    keeper._look(final=False)
    assert log.snapshots()[-1] == 4


def test_no_snapshot_is_written_twice(tmp_path: Path) -> None:
    log = Numbered(tmp_path)
    keeper = keeper_of(log)
    log.send(1, 0)
    checkpoint(log, keeper)
    before = log.path(1).stat().st_ino
    assert keeper._producers.write(log.view) is None
    assert log.path(1).stat().st_ino == before


@pytest.mark.parametrize("failing", ["rename", "fsync", "fdatasync", "listdir"])
def test_a_snapshot_that_cannot_be_written_costs_only_a_longer_start(tmp_path: Path, failing: str) -> None:
    log = Numbered(tmp_path)
    files = FaultyFileOps()
    keeper = keeper_of(log, files)
    log.send(1, 0)
    files.fail(failing, 1, errno.EIO)
    assert checkpoint(log, keeper) == (1, False)
    log.send(1, 1)
    assert checkpoint(log, keeper) == (2, False)
    assert entries(log, 2) == [(1, 1)]
    log.restart()
    assert log.send(1, 1) == DUPLICATE


def test_a_snapshot_that_could_not_be_written_is_tried_at_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when as much as makes one due has come again."""
    log = Numbered(tmp_path)
    monkeypatch.setattr(keeper_module, "CHECKPOINT_SECONDS", 0.0)
    files = FaultyFileOps()
    keeper = keeper_of(log, files)
    for number in range(3):
        log.send(1, number)
        log.log.flush()
        if number == 0:
            files.fail("rename", 1, errno.EIO)
        keeper._look(final=False)
        assert log.snapshots() == [[], [0, 2], [0, 2]][number]


def test_expired_producers_are_in_no_further_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Numbered(tmp_path, **{"producer.id.expiration.ms": "60000"})
    keeper = keeper_of(log)
    log.send(1, 0)
    checkpoint(log, keeper)
    now_ns = producer_states.time.time_ns()
    (entry,) = producer_snapshots.parse(log.path(1).read_bytes()) or []
    patch_time(monkeypatch, producer_states, time_ns=lambda: (entry.time_ms + 59_999) * 1_000_000)
    log.send(2, 0)
    checkpoint(log, keeper)
    assert [number for number, _ in entries(log, 2)] == [1, 2]
    patch_time(monkeypatch, producer_states, time_ns=lambda: (entry.time_ms + 60_000) * 1_000_000)
    log.send(2, 1)
    checkpoint(log, keeper)
    assert [number for number, _ in entries(log, 3)] == [2]
    assert now_ns


# -- retention -------------------------------------------------------------------------------------------------------


def aged(directory: Path) -> tuple[Numbered, Keeper, FaultyFileOps]:
    """A log whose first segments are to go: producer 1 has written to them alone."""
    log = Numbered(directory, **{"log.file.size": "400", "log.retention.size": "500"})
    files = FaultyFileOps()
    assert log.send(1, 0) == DONE
    for number in range(20):
        assert log.send(2, number) == DONE
    log.log.flush()
    return log, keeper_of(log, files), files


def test_what_is_known_outlives_the_segments_that_said_it(tmp_path: Path) -> None:
    log, keeper, _ = aged(tmp_path)
    keeper._clean(log.view)
    assert log.view.log_start > 1
    assert log.snapshots() == [21]
    log.restart()
    assert (log.send(1, 0), log.send(2, 19)) == (DUPLICATE, DUPLICATE)


def test_what_deleted_records_said_is_known_until_a_snapshot_says_it(tmp_path: Path) -> None:
    """A start that does not count segments below a kept start reads them, and so does the keeper before they go."""
    log, _, _ = aged(tmp_path)
    assert log.segments()[1].base > 1
    write_log_starts(tmp_path, {("t", 0): log.segments()[-1].base}, FileOps())
    log.restart()
    assert (log.view.log_start, len(log.segments()) > 2) == (log.segments()[-1].base, True)
    assert log.send(1, 0) == DUPLICATE
    keeper = keeper_of(log)
    keeper._finish_deletions(log.view)
    assert (len(log.segments()), log.snapshots()) == (1, [18, 21])
    log.restart()
    assert log.send(1, 0) == DUPLICATE


def test_a_snapshot_that_is_there_is_enough(tmp_path: Path) -> None:
    log, keeper, files = aged(tmp_path)
    checkpoint(log, keeper)
    before = log.path(21).stat().st_mtime_ns
    files.fail("rename", 1, errno.EIO)
    keeper._clean(log.view)
    assert log.view.log_start > 1
    assert log.path(21).stat().st_mtime_ns == before


@pytest.mark.parametrize(("start", "is_written"), [(20, False), (21, False), (22, True)])
def test_a_snapshot_at_the_end_of_what_goes_is_new_enough(tmp_path: Path, start: int, is_written: bool) -> None:
    log, keeper, files = aged(tmp_path)
    assert keeper._producers.write(log.view) is None
    log.send(2, 20)
    log.log.flush()
    files.fail("rename", 1, errno.EIO)
    assert keeper._producers.outlive(log.view, start) is not is_written


def test_segments_stay_while_a_snapshot_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, keeper, files = aged(tmp_path)
    files.fail("fdatasync", 1, errno.EIO)
    keeper._clean(log.view)
    assert (log.view.log_start, log.snapshots()) == (0, [])
    assert keeper._again == {log.view.index}
    keeper._clean(log.view)
    assert log.view.log_start > 1
    assert log.snapshots() == [21]
    assert "no room for a producer snapshot" not in caplog.text


def test_on_a_full_disk_they_go_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, keeper, files = aged(tmp_path)
    files.fail("fdatasync", 1, errno.ENOSPC)
    keeper._clean(log.view)
    assert log.view.log_start > 1
    assert log.snapshots() == []
    assert "no room for a producer snapshot" in caplog.text


def test_a_snapshot_of_what_is_flushed_reads_no_further_also_where_the_log_went_on_in_another_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment once, and of the one that the flushed end is in so much."""
    log = Numbered(tmp_path, **{"log.file.size": "600"})
    keeper = keeper_of(log)
    for first in range(2):
        assert log.send(1, first, size=100) == DONE
    log.log.flush()
    flushed = log.view.flushed_end
    for first in range(2, 16):
        assert log.send(1, first, size=100) == DONE
    assert len(log.segments()) > 3 and log.view.flushed_end == flushed
    read: list[list[tuple[int, int]]] = []
    learn = producer_snapshots.learn

    def learned(directory: Path, made: Any, segments: list[Any], *given: Any, **options: Any) -> Any:
        read.append([(segment.base, segment.size) for segment in segments])
        return learn(directory, made, segments, *given, **options)

    monkeypatch.setattr(producer_snapshots, "learn", learned)
    assert keeper._producers.write(log.view) is None
    assert [rows for rows in read if rows[-1][1]] == [[(0, flushed)]]
    assert entries(log, 2) == [(1, 1)]
    log.log.flush()
    read.clear()
    assert keeper._producers.write(log.view) is None
    bases = [segment.base for segment in log.segments()]
    assert [[base for base, _ in rows] for rows in read] == [bases, bases]
    assert [size for _, size in read[-1]] == [segment.size for segment in log.segments()]


def test_what_was_noted_of_a_slot_is_forgotten_with_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one lives there, whose first checkpoint writes a snapshot."""
    log = Numbered(tmp_path)
    assert log.send(1, 0) == DONE
    log.log.flush()
    states = producer_states.ProducerStates(log.arena, lambda view: log.folder, 1000)
    written: list[int] = []
    monkeypatch.setattr(producer_states.ProducerStates, "_write", lambda self, view, *given: written.append(view.index))
    states.checkpoint(log.view, final=False)
    states.checkpoint(log.view, final=False)
    once = len(written)
    assert once
    states.forget(log.view.index)
    states.checkpoint(log.view, final=False)
    assert len(written) == 2 * once


# -- what is said ----------------------------------------------------------------------------------------------------


def test_that_producers_are_forgotten_early_is_said_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    log = Numbered(tmp_path)
    states = producer_states.ProducerStates(log.arena, lambda view: log.folder, 1000)
    states.tell_of_forgotten(0.0)
    log.arena.count(5, "producers_forgotten_early", 3)
    states.tell_of_forgotten(1.0)
    log.arena.count(6, "producers_forgotten_early", 2)
    states.tell_of_forgotten(60.9)
    assert [record.getMessage().rpartition("count=")[2].partition(":")[0] for record in caplog.records] == ["3"]
    states.tell_of_forgotten(61.0)
    assert len(caplog.records) == 2
    states.tell_of_forgotten(200.0)
    assert [record.getMessage().rpartition("count=")[2].partition(":")[0] for record in caplog.records] == ["3", "2"]
