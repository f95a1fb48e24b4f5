"""``kill -9`` at every named point of an append, a roll, a repair, a flush, a release, retention and a creation.

Whoever comes next finds exactly what was published, and goes on; nothing else of the dead process is ever seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.errors import OffsetOutOfRangeError
from fastlog.log._append import Appender, append_bytes, end_life, roll_now
from fastlog.log._arena import Arena
from fastlog.log._flush import flush_now, make_partition_flusher, release_now, run_ahead_now
from fastlog.log._segments import SegmentFiles, locate_offset
from fastlog.log._shared_memory import FIRST_PROCESSOR, FLUSHER
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.slots import SlotSpec
from fastlog.workers.child import Shared
from fastlog.workers.keeper import Keeper
from tests.harness.shared_log import (
    BUSY,
    DONE,
    HOUR_MS,
    LIMITS,
    SharedLog,
    in_child,
    message,
    start_flusher,
    stop,
    wait_until,
)
from tests.harness.stopped import stopped_at

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)
OTHER = message(20, b"o")
LOST = message(40, b"l")
KILLED = -9


def die(log: SharedLog, rules: str, data: bytes = LOST, count: int = 3) -> None:
    """A process of its own appends, and is killed at a point of that."""
    assert in_child(lambda: log.append(data, count), f"{rules}=kill") == KILLED


def said(log: SharedLog) -> tuple[int, int, int]:
    """End, watermark, messages appended."""
    view = log.view()
    return view.log_end, view.flushed_end, view.appended_messages


# -- owners of the append lock -----------------------------------------------------------------------------------------

HOLDING = [
    ("append.after_lock", 0, 0, 0),
    ("append.mid_write", 20, 0, 0),
    ("append.after_write", 40, 0, 0),
    ("append.cell_open", 40, 0, 0),
    ("append.cell_filled", 40, 0, 0),
    ("append.published", 40, 40, 3),
    ("append.before_unlock", 40, 40, 3),
]


@pytest.mark.parametrize("flush_first", [False, True])
@pytest.mark.parametrize(("point", "written", "published", "counted"), HOLDING)
def test_an_append_that_ends_at_a_point_is_there_or_is_not(
    point: str, written: int, published: int, counted: int, flush_first: bool, memory: Path
) -> None:
    """A flush takes what it published, also one before the repair; the file ends there afterwards."""
    log = SharedLog(memory)
    log.append(ENTRY)
    die(log, f"{point}@1")
    assert len(log.stored()) == 12 + written
    assert said(log) == (12 + published, 0, 1 + counted)
    assert log.arena.cell(FIRST_PROCESSOR)[4] == 1
    if flush_first:
        assert log.flush() == 0
        assert said(log) == (12 + published, 12 + published, 1 + counted)
        assert locate_offset(log.arena, 0, 0) == (0, 0, 0, 12 + published)
    assert log.append(OTHER, 5) == DONE
    assert log.counter("repairs") == 1
    assert log.arena.cell(FIRST_PROCESSOR)[4] == 0
    assert log.stored() == ENTRY + LOST[:published] + OTHER
    assert log.flush() == 0
    end = 32 + published
    assert said(log) == (end, end, 6 + counted)
    assert log.view().flushed_messages == 6 + counted
    assert log.append(ENTRY) == DONE
    assert log.counter("repairs") == 1


def test_an_append_that_ends_behind_its_unlock_needs_no_repair(memory: Path) -> None:
    log = SharedLog(memory)
    die(log, "append.unlocked@1")
    assert log.arena.cell(FIRST_PROCESSOR)[4] == 0
    assert log.append(OTHER) == DONE
    assert log.counter("repairs") == 0
    assert log.stored() == LOST + OTHER


@pytest.mark.parametrize("flush_first", [False, True])
@pytest.mark.parametrize(
    ("point", "bases"),
    [
        ("roll.created", [0]),
        ("roll.entry_written", [0]),
        ("roll.published", [0, 12]),
        ("append.mid_write", [0, 12]),
        ("append.after_write", [0, 12]),
    ],
)
def test_a_roll_that_ends_at_a_point_is_finished_by_the_next(
    point: str, bases: list[int], flush_first: bool, memory: Path
) -> None:
    log = SharedLog(memory, segment_bytes=5)
    log.append(ENTRY)
    die(log, f"{point}@1")
    assert log.bases() == bases
    assert log.path(12).exists()
    if flush_first:
        assert log.flush() == 0
        assert said(log) == (12, 12, 1)
        assert log.view().dir_synced_tail == len(bases)
    assert log.append(OTHER) == DONE
    assert log.bases() == [0, 12]
    assert [row.index for row in log.segments()] == [0, 1]
    assert all(row.first_ms for row in log.segments())
    assert (log.path(0).read_bytes(), log.path(12).read_bytes()) == (ENTRY, OTHER)
    assert log.counter("repairs") == 1
    assert log.counter("rolls") == (0 if point == "roll.published" else 1)  # counted last
    assert log.flush() == 0
    assert said(log) == (32, 32, 2)
    assert log.view().dir_synced_tail == 2
    assert [path.name for path in log.folder().glob(".flushed-*")] == [f".flushed-{12:020}"]
    assert locate_offset(log.arena, 0, 12) == (1, 12, 0, 32)


@pytest.mark.parametrize("repair", ["repair.marked", "repair.inside", "repair.cut", "repair.done"])
@pytest.mark.parametrize(("point", "published"), [(point, published) for point, _, published, _ in HOLDING])
def test_whoever_repairs_may_be_killed_too(point: str, published: int, repair: str, memory: Path) -> None:
    """Twice over. A half-made roll of the first one is adopted by any of them, or by the one that lives."""
    log = SharedLog(memory, segment_bytes=5)
    log.append(ENTRY)
    die(log, "roll.created@1")
    for _ in range(2):
        die(log, f"{repair}@1")
        assert said(log) == (12, 0, 1)
    die(log, f"{point}@1")  # repairs and appends
    for _ in range(2):
        die(log, f"{repair}@1")
        assert said(log)[0] == 12 + published
    assert log.append(OTHER) == DONE
    assert log.stored() == ENTRY + LOST[:published] + OTHER
    assert log.bases() == [0, 12, *([52] if published else [])]
    assert log.flush() == 0
    assert said(log)[:2] == (32 + published, 32 + published)


def forgotten(log: SharedLog, other: int = 1) -> None:
    """Return when the running flusher has nothing to do with slot 0: it has flushed others since, more than once."""
    wait_until(lambda: log.view().flushed_end == log.view().log_end, what="the first flush")
    for _ in range(3):
        assert log.append(ENTRY, slot=other) == DONE
        log.arena.demand_flush(other)
        end = log.view(other).log_end
        wait_until(lambda end=end: log.view(other).flushed_end == end)  # type: ignore[misc]


@pytest.fixture
def watched(memory: Path) -> Iterator[SharedLog]:
    """Two partitions with a flusher that looks at nothing by itself; it has flushed the first one and put it aside."""
    log = SharedLog(memory, partitions=2, flush_ns=50_000_000)
    assert log.append(ENTRY) == DONE
    flusher = start_flusher(log.arena, heartbeat_ms=HOUR_MS)
    try:
        forgotten(log)
        yield log
    finally:
        stop(flusher)


def test_a_successor_in_its_place_makes_whole_what_it_left_and_has_it_flushed(watched: SharedLog) -> None:
    """Without any append: it looks at its cell. The dead one had published bytes and told nobody of them."""
    die(watched, "append.published@1")
    Appender(watched.arena, SegmentFiles(watched.arena, 8), FIRST_PROCESSOR).take_over()
    assert watched.arena.cell(FIRST_PROCESSOR)[4] == 0
    assert watched.counter("repairs") == 1
    wait_until(lambda: watched.view().flushed_end == 52, what="a flush that nobody asked for")
    assert watched.append(OTHER) == DONE  # nobody has the lock any more
    assert watched.stored() == ENTRY + LOST + OTHER


def test_the_name_of_a_new_segment_is_made_durable_without_any_append(watched: SharedLog) -> None:
    """Retention waits for it."""
    assert roll_now(watched.appender, 0)
    wait_until(lambda: watched.view().dir_synced_tail == 2, what="a sync of the directory that nobody asked for")
    assert (watched.folder() / f".flushed-{12:020}").exists()


def add(log: SharedLog, topic: str, partition: int, *, durable: bool) -> int:
    """A new partition, in one of the spare slots where no other is free; its slot."""
    folder = log.directory / f"{topic}-{partition}"
    folder.mkdir()
    (folder / f"{0:020}.kafka").touch()
    spec = SlotSpec(
        topic=topic, partition=partition, directory=0, format=0, created_ms=1, segments=[(0, 1, 0)], log_end=0,
        durable=durable, **LIMITS,
    )  # fmt: skip
    assert log.arena.create_lock()
    slot = log.arena.add(spec, True)
    log.arena.create_unlock()
    return slot


def test_the_name_of_a_new_partition_is_made_durable_without_any_append(watched: SharedLog) -> None:
    """The flusher is told of it, and looks when it is woken next, whatever for."""
    assert add(watched, "t", 2, durable=False) == 2
    watched.arena.wake(FLUSHER)
    wait_until(lambda: watched.view(2).dir_synced_tail == 1, what="a sync of the directory")


def test_a_wish_for_a_flush_ends_with_the_life(watched: SharedLog) -> None:
    """Nothing was unflushed, so that it stood for the next append; that one is another partition's."""
    arena = watched.arena
    arena.demand_flush(0)
    assert arena.create_lock()
    assert end_life(watched.appender, 0)
    arena.create_unlock()
    arena.wake(FLUSHER)
    wait_until(lambda: arena.seen(FLUSHER) == arena.change_count, what="the flusher is past it")
    assert arena.create_lock()
    arena.free(0)
    arena.create_unlock()
    assert add(watched, "u", 0, durable=True) == 0
    assert watched.append(ENTRY) == DONE
    for _ in range(3):
        assert watched.append(ENTRY, slot=1) == DONE
        arena.demand_flush(1)
        wait_until(lambda: watched.view(1).flushed_end == watched.view(1).log_end, what="the other one's flush")
    assert watched.view().flushed_end == watched.view().log_end - len(ENTRY)


def test_what_is_appended_is_flushed_without_anybody_who_asks(watched: SharedLog) -> None:
    """The other side of the two above: the append itself tells the flusher."""
    assert watched.append(LOST) == DONE
    wait_until(lambda: watched.view().flushed_end == 52, what="a flush that nobody asked for")


def test_a_successor_whose_lock_others_have_meanwhile_leaves_it_to_them(memory: Path) -> None:
    log = SharedLog(memory)
    die(log, "append.mid_write@1")
    with stopped_at("append.after_write", lambda: log.append(OTHER)) as other:
        Appender(log.arena, SegmentFiles(log.arena, 8), FIRST_PROCESSOR).take_over()
        assert log.arena.cell(FIRST_PROCESSOR)[4] == 0
        assert other.go_on() == DONE
    assert log.stored() == OTHER
    assert log.counter("repairs") == 1


def test_a_flusher_whose_predecessor_s_lock_others_have_meanwhile_holds_nothing(memory: Path) -> None:
    log = SharedLog(memory)
    predecessor = Appender(log.arena, SegmentFiles(log.arena, 8), FLUSHER)
    assert in_child(lambda: append_bytes(predecessor, 0, LOST, 3), "append.mid_write@1=kill") == KILLED
    with stopped_at("append.after_write", lambda: log.append(OTHER)) as other:
        assert log.arena.cell(FLUSHER)[4] == 1
        flusher = start_flusher(log.arena, heartbeat_ms=HOUR_MS)
        try:
            wait_until(lambda: log.arena.cell(FLUSHER)[4] == 0, what="it sees that the lock is not its own")
            assert other.go_on() == DONE
        finally:
            stop(flusher)
    assert log.stored() == OTHER


def test_a_successor_of_one_that_held_nothing_takes_nothing(memory: Path) -> None:
    log = SharedLog(memory)
    with stopped_at("append.after_lock", lambda: log.append(ENTRY)):
        Appender(log.arena, SegmentFiles(log.arena, 8), FLUSHER).take_over()
    assert log.counter("lock_waits", FLUSHER) == 0


# -- the flusher -------------------------------------------------------------------------------------------------------

FLUSHING = [
    ("flush.begun", 12, False, 32),
    ("flush.tail_read", 12, False, 32),
    ("flush.end_read", 12, False, 32),
    ("flush.marked", 12, True, 32),
    ("flush.before_sync", 12, True, 32),
    ("flush.before_sync@2", 12, True, 32),
    ("flush.segment_synced", 12, True, 32),
    ("flush.segment_synced@2", 12, True, 32),
    ("flush.names_synced", 12, True, 32),
    ("flush.mark_moved", 12, True, 32),
    ("flush.after_sync", 12, True, 32),
    ("flush.time_stored", 12, True, 32),
    ("flush.flushed", 44, True, 0),
    ("flush.published", 44, True, 0),
    ("flush.ended", 44, True, 0),
]


@pytest.mark.parametrize("late", [b"", LOST], ids=["nothing since", "more since"])
@pytest.mark.parametrize(("point", "high", "marked", "rewritten"), FLUSHING)
def test_a_flush_that_ends_at_a_point_is_made_again(
    point: str, high: int, marked: bool, rewritten: int, late: bytes, memory: Path
) -> None:
    """What it published stays; the rest is written again in its place, synced, and only then visible."""
    log = SharedLog(memory, segment_bytes=20, durable=False)
    log.append(ENTRY)
    assert log.flush() == 0
    log.append(ENTRY)
    log.append(OTHER, 2)
    assert log.bases() == [0, 24]
    point = point if "@" in point else f"{point}@1"
    assert in_child(log.flush, f"{point}=kill") == KILLED
    assert log.view().flushed_end == high
    assert log.view().visible_end == (12 if point == "flush.flushed@1" else high)
    marks = memory / ".fastlog-flushing"
    assert marks.read_bytes()[1:2] == (b"\1" if marked else b"\0")
    assert log.view().dir_synced_tail == (2 if high == 44 or "time_stored" in point or "after_sync" in point else 1)
    if late:
        assert log.append(late) == DONE
    successor = make_partition_flusher(log.arena, 64, 0, 0)
    again = rewritten + (len(late) if rewritten or point in ("flush.flushed@1", "flush.published@1") else 0)
    assert flush_now(successor, 0) == 0
    assert log.counter("rewritten_bytes", FLUSHER) == again
    view = log.view()
    assert view.visible_end == view.flushed_end == view.log_end == 44 + len(late)
    assert view.flushed_messages == view.appended_messages
    assert log.stored() == ENTRY * 2 + OTHER + late
    assert [path.name for path in log.folder().glob(".flushed-*")] == [f".flushed-{24:020}"]
    assert view.dir_synced_tail == len(log.bases())
    assert log.append(ENTRY) == DONE
    assert flush_now(successor, 0) == 0
    assert marks.read_bytes()[1:2] == b"\0"
    assert log.counter("rewritten_bytes", FLUSHER) == again
    assert log.view().flushed_end == log.view().log_end


@pytest.mark.parametrize("point", ["flush.rewrite", "flush.rewritten", "pwrite"])
def test_a_successor_that_dies_while_it_writes_again_has_a_successor(point: str, memory: Path) -> None:
    """It holds the append lock: the next append repairs, and the next flusher begins anew."""
    log = SharedLog(memory, segment_bytes=5)
    log.append(ENTRY)
    log.append(OTHER)
    assert in_child(log.flush, "flush.after_sync@1=kill") == KILLED
    for _ in range(2):
        assert in_child(log.flush, f"{point}@1=kill") == KILLED
        assert log.view().flushed_end == 0
    assert log.append(ENTRY) == DONE
    assert log.counter("repairs") + log.counter("repairs", FLUSHER) == 2
    assert log.flush() == 0
    assert said(log)[:2] == (44, 44)
    assert log.stored() == ENTRY + OTHER + ENTRY


def test_a_flusher_that_dies_while_it_gives_space_back_takes_nothing_along(memory: Path) -> None:
    log = SharedLog(memory)
    log.append(ENTRY)

    def release() -> None:
        flusher = make_partition_flusher(log.arena, 64, 1 << 20, 0)
        run_ahead_now(flusher, 0)
        release_now(flusher, 0)

    assert in_child(release, "release.locked@1=kill") == KILLED
    assert log.append(OTHER) == DONE
    assert log.stored() == ENTRY + OTHER
    assert log.flush() == 0
    release_now(log.flusher, 0)
    assert log.stored() == ENTRY + OTHER


# -- retention and creation --------------------------------------------------------------------------------------------


def test_retention_that_ends_between_start_and_table_is_finished(memory: Path) -> None:
    """No offset below the start is given out meanwhile; the next keeper takes the segments out, and their files."""
    config = BrokerConfig.from_properties({"log.dir": str(memory), "log.file.size": "100", "log.retention.size": "30"})
    arena = Arena([str(memory)], FIRST_PROCESSOR + 1, 4, 16)
    manager = LogManager(config, arena)
    manager.load([{}])
    manager.create_partition("t", 0)
    log = SharedLog.over(arena)
    for _ in range(4):
        assert log.append(message(150)) == DONE
    assert log.flush() == 0

    def clean() -> None:
        Keeper(Shared(config, arena, (), (), (), 64))._clean(arena.view(0))

    assert in_child(clean, "retention.start_published@1=kill") == KILLED
    view = log.view()
    assert (view.log_start, view.table_head) == (450, 0)
    assert all(log.path(base).exists() for base in (0, 150, 300, 450))
    with pytest.raises(OffsetOutOfRangeError):
        locate_offset(arena, 0, 449)
    assert locate_offset(arena, 0, 450) == (3, 450, 0, 600)
    clean()
    assert (log.view().log_start, log.view().table_head) == (450, 3)
    assert [path.name for path in sorted(log.folder().glob("*.kafka"))] == [log.path(450).name]


@pytest.mark.parametrize(
    "point", ["create.directory", "create.side_file", "create.segment", "create.slot_written", "create.slot_published"]
)
def test_a_partition_is_there_when_its_slot_is_counted_and_not_before(point: str, memory: Path) -> None:
    """While its creator stands there, nobody else creates, and everybody sees all of it or nothing; so when it dies."""
    config = BrokerConfig.from_properties({"log.dir": str(memory)})
    arena = Arena([str(memory)], FIRST_PROCESSOR + 1, 4, 16)
    manager = LogManager(config, arena)
    manager.load([{}])
    published = point == "create.slot_published"
    with stopped_at(point, lambda: manager.create_partition("t", 0)) as creator:
        assert arena.slot_count == published
        assert (manager.slot("t", 0) is not None) == published
        with pytest.raises(CreationBusyError):
            manager.create_partition("u", 0)
        creator.kill()
    assert manager.create_partition("t", 0) == 0
    assert manager.create_partition("u", 0) == 1
    assert arena.slot_count == 2
    view = manager.slot("t", 0)
    assert view is not None
    assert (view.topic, view.partition, view.log_end, view.state, view.dir_synced_tail) == ("t", 0, 0, 0, 0)
    log = SharedLog.over(arena)
    assert log.append(ENTRY) == DONE
    assert log.flush() == 0
    assert log.view().flushed_end == 12


def test_the_lock_is_held_for_as_long_as_its_owner_lives(memory: Path) -> None:
    """Stopped is not dead: however long it stands, nobody repairs behind its back."""
    log = SharedLog(memory)
    with stopped_at("append.mid_write", lambda: log.append(LOST)) as owner:
        for _ in range(20):
            assert log.append(ENTRY) == BUSY
        assert len(log.stored()) == 20
        assert owner.go_on() == DONE
    assert log.stored() == LOST
    assert log.counter("repairs") == 0
