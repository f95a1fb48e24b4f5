"""Appends, rolls, flushes, look-ups, repair and retention, stopped at every point where they meet the same words.

One process stands at a named point, others do their work, then it goes on: all is exact.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.errors import OffsetOutOfRangeError
from fastlog.log._append import roll_now
from fastlog.log._flush import make_partition_flusher, release_now, run_ahead_now
from fastlog.log._segments import locate_offset
from tests.harness.calls import recorded_calls
from tests.harness.shared_log import BUSY, DONE, SharedLog, message, start_flusher, stop, wait_until
from tests.harness.stopped import stands_still, stopped_at

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)
OTHER = message(20, b"o")


def flushed(log: SharedLog) -> tuple[int, int]:
    """The watermark, and how many messages count as flushed."""
    view = log.view()
    return view.flushed_end, view.flushed_messages


def synced_files(calls: list[str]) -> list[str]:
    return [name.removeprefix("fdatasync ") for name in calls if name.startswith("fdatasync ")]


# -- a flusher and an appender -----------------------------------------------------------------------------------------

BEFORE_READ = ["flush.begun", "flush.tail_read"]
AFTER_READ = [
    "flush.end_read",
    "flush.marked",
    "flush.before_sync",
    "flush.segment_synced",
    "flush.names_synced",
    "flush.mark_moved",
    "flush.after_sync",
    "flush.time_stored",
    "flush.flushed",
    "flush.published",
    "flush.ended",
]
ROLLS = pytest.mark.parametrize("segment_bytes", [1 << 30, 5], ids=["same segment", "new segment"])


@ROLLS
@pytest.mark.parametrize("point", AFTER_READ)
def test_what_comes_while_a_flush_syncs_waits_for_the_next_one(point: str, segment_bytes: int, memory: Path) -> None:
    """The end that is published is the one that was read before the first sync, and so is the count."""
    log = SharedLog(memory, durable=False, segment_bytes=segment_bytes)
    log.append(ENTRY * 2, 2)
    with stopped_at(point, log.flush) as flusher:
        ends = log.view().flushed_end, log.view().visible_end
        published = point in ("flush.published", "flush.ended")
        assert ends == (24 if published or point == "flush.flushed" else 0, 24 if published else 0)
        with pytest.raises(OffsetOutOfRangeError) if not published else contextlib.nullcontext():
            assert locate_offset(log.arena, 0, 24) is None
        assert log.append(OTHER, 5) == DONE
        assert (log.view().flushed_end, log.view().visible_end) == ends
        assert flusher.go_on() == 0
    assert flushed(log) == (24, 2)
    assert (log.view().log_end, log.view().appended_messages) == (44, 7)
    assert log.view().dir_synced_tail == 1
    assert locate_offset(log.arena, 0, 24) is None
    with recorded_calls(memory) as calls:
        assert log.flush() == 0
    assert flushed(log) == (44, 7)
    rolled = segment_bytes == 5
    assert synced_files([call.short for call in calls])[-1] == log.path(24 if rolled else 0).name
    assert log.view().dir_synced_tail == (2 if rolled else 1)
    assert [path.name for path in log.folder().glob(".flushed-*")] == [f".flushed-{24 if rolled else 0:020}"]
    assert log.stored() == ENTRY * 2 + OTHER


@ROLLS
@pytest.mark.parametrize("point", BEFORE_READ)
def test_what_comes_before_a_flush_reads_the_end_is_synced_with_it(
    point: str, segment_bytes: int, memory: Path
) -> None:
    """All that becomes visible was synced, the segment of a roll and its name too, and it is counted."""
    log = SharedLog(memory, segment_bytes=segment_bytes)
    log.append(ENTRY * 2, 2)
    with recorded_calls(memory) as calls, stopped_at(point, log.flush) as flusher:
        assert log.append(OTHER, 5) == DONE
        assert flusher.go_on() == 0
    names = [call.short for call in calls]
    assert flushed(log) == (44, 7)
    rolled = segment_bytes == 5
    expected = [log.path(0).name, log.path(24).name] if rolled else [log.path(0).name]
    assert synced_files(names) == expected
    assert names.index("flush.segment_synced") > names.index("append.unlocked")
    if rolled:
        assert names.index("fsync t-0") > names.index("roll.created")
        assert (log.folder() / f".flushed-{24:020}").exists()
        assert log.view().dir_synced_tail == 2
    assert log.flush() == 0
    assert flushed(log) == (44, 7)


def test_a_second_roll_while_a_flush_reads_is_read_again(memory: Path) -> None:
    """However often the tail moves between the two reads, no end is taken that lies behind a segment not looked at."""
    log = SharedLog(memory, segment_bytes=5)
    log.append(ENTRY)
    with recorded_calls(memory) as calls, stopped_at("flush.tail_read@1-3=stop", log.flush) as flusher:
        for _ in range(2):
            log.append(ENTRY)
            flusher.go_on_to_next()
        log.append(ENTRY)
        assert flusher.go_on() == 0
    assert log.view().flushed_end == 48
    assert synced_files([call.short for call in calls]) == [log.path(base).name for base in (0, 12, 24, 36)]


@pytest.mark.parametrize("point", BEFORE_READ + AFTER_READ)
def test_whoever_asks_for_a_flush_during_one_gets_another(point: str, memory: Path) -> None:
    """S is a minute away, and half of no bound is reached: it is the request that counts, and it is not forgotten."""
    log = SharedLog(memory, durable=False)
    log.append(ENTRY)
    log.arena.demand_flush(0)
    flusher = start_flusher(log.arena, f"{point}@1=stop")
    try:
        wait_until(lambda: stands_still(flusher), what="the flusher at its point")
        assert log.append(ENTRY) == DONE
        log.arena.demand_flush(0)
        os.kill(flusher, signal.SIGCONT)
        wait_until(lambda: log.view().flushed_end == 24, what="the second request")
    finally:
        stop(flusher)


@pytest.mark.parametrize(
    ("point", "end", "count"),
    [
        ("append.after_lock", 12, 1),
        ("append.mid_write", 12, 1),
        ("append.after_write", 12, 1),
        ("append.cell_open", 12, 1),
        ("append.cell_filled", 12, 1),
        ("append.published", 32, 6),
        ("append.before_unlock", 32, 6),
        ("append.unlocked", 32, 6),
    ],
)
def test_a_flush_takes_what_is_published_and_no_more(point: str, end: int, count: int, memory: Path) -> None:
    log = SharedLog(memory)
    log.append(ENTRY)
    with stopped_at(point, lambda: log.append(OTHER, 5)) as appender:
        assert log.flush() == 0
        assert flushed(log) == (end, count)
        assert locate_offset(log.arena, 0, 0) == (0, 0, 0, end)
        assert log.path(0).read_bytes()[:end] == (ENTRY + OTHER)[:end]
        assert appender.go_on() == DONE
    assert (log.view().log_end, log.view().appended_messages) == (32, 6)
    assert log.flush() == 0
    assert flushed(log) == (32, 6)
    assert log.stored() == ENTRY + OTHER


@pytest.mark.parametrize(
    ("point", "bases", "mark"),
    [
        ("roll.created", [0], 0),
        ("roll.entry_written", [0], 0),
        ("roll.published", [0, 12], 12),
        ("append.mid_write", [0, 12], 12),
    ],
)
def test_a_flush_in_the_middle_of_a_roll_knows_the_segment_or_does_not(
    point: str, bases: list[int], mark: int, memory: Path
) -> None:
    """The table names a segment once its entry is whole. One that it names is durable before its base is passed."""
    log = SharedLog(memory, durable=False, segment_bytes=5)
    log.append(ENTRY)
    with stopped_at(point, lambda: log.append(OTHER)) as appender:
        assert log.bases() == bases
        if len(bases) == 2:
            row = log.segments()[1]
            assert (row.index, row.last_ms) == (1, 0)
            assert abs(row.first_ms - log.segments()[0].last_ms) < 60_000
        assert log.flush() == 0
        assert log.view().flushed_end == 12
        assert [path.name for path in log.folder().glob(".flushed-*")] == [f".flushed-{mark:020}"]
        assert log.view().dir_synced_tail == len(bases)
        assert locate_offset(log.arena, 0, 0) == (0, 0, 0, 12)
        assert locate_offset(log.arena, 0, 12) is None
        assert appender.go_on() == DONE
    assert log.bases() == [0, 12]
    assert log.flush() == 0
    assert locate_offset(log.arena, 0, 12) == (1, 12, 0, 32)
    assert [path.name for path in log.folder().glob(".flushed-*")] == [f".flushed-{12:020}"]
    assert log.stored() == ENTRY + OTHER


# -- two appenders -----------------------------------------------------------------------------------------------------


@ROLLS
@pytest.mark.parametrize(
    "point", ["append.after_lock", "append.mid_write", "append.after_write", "append.cell_open", "append.cell_filled"]
)
def test_a_second_appender_is_told_that_the_lock_is_held(point: str, segment_bytes: int, memory: Path) -> None:
    log = SharedLog(memory, segment_bytes=segment_bytes)
    log.append(ENTRY)
    with stopped_at(point, lambda: log.append(OTHER)) as first:
        waits = log.counter("lock_waits")
        assert log.try_append(ENTRY) == (BUSY, *log.try_append(ENTRY)[1:])
        assert log.counter("lock_waits") == waits + 2
        assert not roll_now(log.appender, 0, 0)
        assert first.go_on() == DONE
    assert log.append(ENTRY) == DONE
    assert log.stored() == ENTRY + OTHER + ENTRY
    assert log.counter("repairs") == 0


def test_a_lock_that_is_free_is_had_before_its_waiters_are_woken(memory: Path) -> None:
    log = SharedLog(memory)
    with stopped_at("append.unlocked", lambda: log.append(OTHER)) as first:
        assert log.append(ENTRY) == DONE
        assert first.go_on() == DONE
    assert log.stored() == OTHER + ENTRY
    assert log.counter("repairs") == 0


@pytest.mark.parametrize("point", ["repair.marked", "repair.inside", "repair.cut", "repair.done"])
def test_while_a_dead_owner_is_cleaned_up_after_others_read_and_wait(point: str, memory: Path) -> None:
    """Nobody appends behind half a message, and what is flushed meanwhile ends where the log ends."""
    log = SharedLog(memory)
    log.append(ENTRY)
    with stopped_at("append.mid_write", lambda: log.append(message(40))) as owner:
        owner.kill()
    assert len(log.stored()) == 32
    with stopped_at(point, lambda: log.append(OTHER)) as second:
        assert len(log.stored()) == (32 if point in ("repair.marked", "repair.inside") else 12)
        if point != "repair.marked":  # until then the lock still counts as that of a dead owner, for the next one
            assert log.append(ENTRY) == BUSY
        assert log.flush() == 0
        assert locate_offset(log.arena, 0, 0) == (0, 0, 0, 12)
        assert second.go_on() == DONE
    assert log.stored() == ENTRY + OTHER
    assert log.counter("repairs") == 1


# -- look-ups ----------------------------------------------------------------------------------------------------------

TABLE = 16


def grown(directory: Path, segments: int = 6) -> SharedLog:
    """A log of segments with one entry each, all flushed, in a table that is used again after 16."""
    log = SharedLog(directory, segment_bytes=5, table_entries=TABLE)
    for _ in range(segments):
        assert log.append(ENTRY) == DONE
    assert log.flush() == 0
    return log


def grow(log: SharedLog) -> None:
    assert roll_now(log.appender, 0)
    assert log.append(ENTRY) == DONE
    assert log.flush() == 0


def roll(log: SharedLog) -> None:
    assert roll_now(log.appender, 0)
    assert log.flush() == 0


def drop(log: SharedLog, count: int) -> None:
    """As the keeper does."""
    rows = log.segments()
    log.arena.publish_retention(0, rows[count].index, rows[count].base)
    for row in rows[:count]:
        log.path(row.base).unlink()


def drop_most(log: SharedLog) -> None:
    drop(log, len(log.segments()) - 1)


def wrap(log: SharedLog) -> None:
    """Every place of the table gets another segment."""
    for _ in range(2 * TABLE):
        grow(log)
        if len(log.segments()) > 3:
            drop(log, 2)


def drop_all(log: SharedLog) -> None:
    """All that there was: an empty segment takes its place, whose first offset is the end."""
    roll(log)
    drop_most(log)


INTRUDERS = pytest.mark.parametrize("meanwhile", [grow, roll, drop_most, drop_all, wrap])


@INTRUDERS
@pytest.mark.parametrize(
    "point", ["locate.watermark_read", "locate.tail_read", "locate.head_read", "locate.entry_read"]
)
@pytest.mark.parametrize("offset", [0, 24, 65, 72], ids=str)
def test_a_look_up_finds_what_is_there_or_says_that_it_is_not(
    offset: int, point: str, meanwhile: Callable[[SharedLog], None], memory: Path
) -> None:
    """What it names is a place of that offset at some moment of the look-up, whatever rolls and retention do."""
    log = grown(memory)
    with stopped_at(point, lambda: locate_offset(log.arena, 0, offset)) as reader:
        meanwhile(log)
        after = log.view()
        try:
            place = reader.go_on()
        except OffsetOutOfRangeError:
            assert offset < after.log_start
            return
    assert offset <= after.visible_end
    if place is None:
        assert offset in (72, after.visible_end)
        return
    index, base, position, end = place
    assert (base, position) == (index * 12, offset - base)
    assert end in (72, base + 12)
    assert base <= offset < end
    held = {row.index: row.base for row in log.segments()}
    assert held.get(index, base) == base


@pytest.mark.parametrize(
    "point", ["locate.watermark_read", "locate.tail_read", "locate.head_read", "locate.entry_read"]
)
@pytest.mark.parametrize("index", [9, 10, 14, 15])
def test_a_look_up_finds_what_is_held_behind_entries_that_are_used_again(index: int, point: str, memory: Path) -> None:
    """A search by halves meets the place of a segment that is gone, and of a newer one, before it comes to its own."""
    log = grown(memory, TABLE)
    offset = index * 12 + 5
    with stopped_at(point, lambda: locate_offset(log.arena, 0, offset)) as reader:
        drop(log, 9)
        for _ in range(9):
            grow(log)
        assert log.bases() == [number * 12 for number in range(9, 25)]
        assert reader.go_on() == (index, index * 12, 5, index * 12 + 12)


@INTRUDERS
@pytest.mark.parametrize("point", ["segments.tail_read", "segments.read"])
def test_a_list_of_segments_is_one_that_there_was(
    point: str, meanwhile: Callable[[SharedLog], None], memory: Path
) -> None:
    """Each row names its own segment, they follow one another, and none that retention dropped is named."""
    log = grown(memory)
    with stopped_at(point, log.segments) as reader:
        meanwhile(log)
        held = log.segments()
        rows = reader.go_on()
    assert [(row.index, row.base) for row in rows] == [(row.index, row.index * 12) for row in rows]
    assert [row.index for row in rows] == list(range(rows[0].index, rows[-1].index + 1))
    assert all(row.first_ms for row in rows)
    assert rows[0].index == held[0].index
    assert rows[-1].index <= held[-1].index


@pytest.mark.parametrize("point", ["view.ends_read"])
def test_a_view_never_shows_more_than_there_is(point: str, memory: Path) -> None:
    log = grown(memory)
    log.append(ENTRY * 2, 2)
    with stopped_at(point, log.view) as reader:
        wrap(log)
        view = reader.go_on()
    assert view.log_start <= view.visible_end <= view.flushed_end <= view.log_end
    assert view.flushed_messages <= view.appended_messages
    assert view.table_head < view.table_tail


# -- retention ---------------------------------------------------------------------------------------------------------


def test_the_start_of_a_log_moves_before_its_segments_go(memory: Path) -> None:
    """Between the two nobody is given an offset that is about to go, and the table has no room yet."""
    log = grown(memory, TABLE)
    with stopped_at("retention.start_published", lambda: log.arena.publish_retention(0, 3, 36)) as keeper:
        assert (log.view().log_start, log.view().table_head) == (36, 0)
        assert len(log.segments()) == TABLE
        with pytest.raises(OffsetOutOfRangeError):
            locate_offset(log.arena, 0, 35)
        assert locate_offset(log.arena, 0, 36) == (3, 36, 0, 48)
        assert log.append(ENTRY) == DONE
        assert len(log.segments()) == TABLE
        keeper.go_on()
    assert (log.view().log_start, log.view().table_head) == (36, 3)
    assert log.append(ENTRY) == DONE
    assert log.bases() == [*range(36, TABLE * 12, 12), (TABLE + 1) * 12]
    assert log.flush() == 0
    assert locate_offset(log.arena, 0, TABLE * 12) == (TABLE - 1, (TABLE - 1) * 12, 12, (TABLE + 1) * 12)


@pytest.mark.parametrize("point", ["roll.created", "roll.entry_written", "roll.published"])
def test_retention_in_the_middle_of_a_roll_leaves_the_active_segment(point: str, memory: Path) -> None:
    """In a table that is full to the last place, so that the new entry takes the place of one that has gone."""
    log = grown(memory, TABLE)
    drop(log, 1)
    with stopped_at(point, lambda: log.append(OTHER)) as appender:
        published = point == "roll.published"
        end = TABLE * 12
        assert log.bases() == list(range(12, end, 12)) + ([end] if published else [])
        drop(log, TABLE - 2)
        assert log.bases() == [end - 12] + ([end] if published else [])
        assert locate_offset(log.arena, 0, end - 12) == (TABLE - 1, end - 12, 0, end)
        with pytest.raises(OffsetOutOfRangeError):
            locate_offset(log.arena, 0, end - 13)
        assert appender.go_on() == DONE
    assert log.bases() == [end - 12, end]
    assert log.flush() == 0
    assert locate_offset(log.arena, 0, end) == (TABLE, end, 0, end + 20)
    assert log.stored() == ENTRY + OTHER


def test_descriptors_of_dropped_segments_go_when_the_files_are_gone(memory: Path) -> None:
    """Told after the files went: a process that looks before has nothing to close, and looks again when told."""
    log = grown(memory)
    generation = log.arena.retention_generation

    def keep() -> None:
        drop(log, 3)
        log.arena.retention_done()

    with stopped_at("retention.unlinked", keep) as keeper:
        assert not log.path(24).exists()
        assert log.arena.retention_generation == generation
        keeper.go_on()
    assert log.arena.retention_generation == generation + 1


# -- giving reserved space back ----------------------------------------------------------------------------------------


def test_an_append_waits_while_reserved_space_is_cut_off(memory: Path) -> None:
    """It is cut to the end that was read with the append lock: nobody can write behind it in between."""
    log = SharedLog(memory)
    log.append(ENTRY)

    def release() -> None:
        flusher = make_partition_flusher(log.arena, 64, 1 << 20, 0)
        run_ahead_now(flusher, 0)
        release_now(flusher, 0)

    with stopped_at("release.locked", release) as flusher:
        assert log.append(OTHER) == BUSY
        flusher.go_on()
    assert log.append(OTHER) == DONE
    assert log.stored() == ENTRY + OTHER


def test_a_segment_that_goes_while_it_is_left_is_not_cut(memory: Path) -> None:
    """Its size is the difference of two entries, which may be those of other segments by then."""
    log = SharedLog(memory, table_entries=TABLE)
    log.append(ENTRY * 3, 3)  # those that take its place in the table have a third of it

    def leave() -> None:
        flusher = make_partition_flusher(log.arena, 64, 1 << 20, 0)
        run_ahead_now(flusher, 0)
        roll(log)
        run_ahead_now(flusher, 0)

    with log.path(0).open("rb") as reader, stopped_at("release.sealed", leave) as flusher:
        wrap(log)
        flusher.go_on()
        assert reader.read() == ENTRY * 3


def test_a_segment_that_stays_gives_its_space_back(memory: Path) -> None:
    """The other side of the test above."""
    log = SharedLog(memory)
    log.append(ENTRY)
    flusher = make_partition_flusher(log.arena, 64, 1 << 20, 0)
    run_ahead_now(flusher, 0)
    assert log.path(0).stat().st_blocks * 512 >= 1 << 20
    roll(log)
    run_ahead_now(flusher, 0)
    assert log.path(0).stat().st_blocks * 512 < 1 << 20
    assert log.stored() == ENTRY
