"""A slot lives, ends and lives again: nobody appends to what has ended, nor is it used again while it is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.errors import LogError, PartitionGoneError
from fastlog.log import _files
from fastlog.log._append import append_bytes, end_life, roll_now
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import ACCEPTOR, FIRST_PROCESSOR, FLUSHER, KEEPER
from fastlog.log.manager import CreationBusyError, LogManager
from tests.harness.descriptors import open_descriptors
from tests.harness.lives import ENTRY, GONE, RING, add, add_slot, end, free, live_again
from tests.harness.shared_log import (
    DONE,
    SharedLog,
    in_child,
)
from tests.harness.stopped import stopped_at

pytestmark = pytest.mark.usefixtures("no_faults")


# -- one slot ----------------------------------------------------------------------------------------------------------


def test_an_append_is_of_one_life(tmp_path: Path) -> None:
    """Neither under a life that has ended nor under what the word says between two lives."""
    log = SharedLog(tmp_path)
    life = log.view().life
    assert log.append(ENTRY) == DONE
    end(log)
    size = log.path(0).stat().st_size
    for meant in (life, life + 1):
        assert append_bytes(log.appender, 0, ENTRY, 1, meant)[0] == GONE
    free(log)
    assert append_bytes(log.appender, 0, ENTRY, 1, life + 1)[0] == GONE
    assert add(log.arena, "new") == 0
    for meant in (life, life + 1):
        assert append_bytes(log.appender, 0, ENTRY, 1, meant)[0] == GONE
    assert append_bytes(log.appender, 0, ENTRY, 1, life + 2)[0] == DONE
    assert log.path(0).stat().st_size == size


def test_a_life_does_not_end_during_an_append(tmp_path: Path) -> None:
    """Nothing has changed then, and it is tried again."""
    log = SharedLog(tmp_path)
    before = log.arena.change_count
    with stopped_at("append.after_lock", lambda: log.append(ENTRY)) as writer:
        assert log.arena.create_lock()
        assert not end_life(log.appender, 0)
        assert (log.view().life, log.arena.change_count, log.arena.leaving()) == (1, before, [])
        assert writer.go_on() == DONE
    assert end_life(log.appender, 0)
    log.arena.create_unlock()
    assert log.append(ENTRY) == GONE


def test_the_next_life_begins_anew_above_the_former_one(tmp_path: Path) -> None:
    """Offsets begin at 0; positions and table indexes go on, so that slot and index name one file for ever."""
    log = SharedLog(tmp_path)
    for _ in range(3):
        assert log.append(ENTRY) == DONE
        assert roll_now(log.appender, 0)
    assert log.append(ENTRY) == DONE and log.flush() == 0
    before, table = log.view(), log.segments()
    live_again(log)
    after = log.view()
    assert after.life == before.life + 2
    assert (after.topic, after.log_start, after.log_offset, after.visible_offset) == ("new", 0, 0, 0)
    assert after.log_end == after.flushed_end == after.visible_end == before.log_end > 0
    assert after.appended_messages == after.flushed_messages == 0
    (segment,) = log.segments()
    assert segment.index == table[-1].index + 1 and segment.start == before.log_end and segment.base == 0
    assert log.append(ENTRY) == DONE and log.flush() == 0
    assert log.view().visible_offset == len(ENTRY) and log.view().appended_messages == 1
    assert (tmp_path / "new-0" / f"{0:020}.kafka").read_bytes() == ENTRY


def test_nothing_of_the_state_is_inherited(tmp_path: Path) -> None:
    """One that was read-only, whose flush was under way and whose start had moved up."""
    log = SharedLog(tmp_path)
    assert log.append(ENTRY) == DONE and log.flush() == 0 and roll_now(log.appender, 0)
    assert log.append(ENTRY) == DONE and log.flush() == 0
    log.arena.publish_retention(0, 1, len(ENTRY))
    assert in_child(lambda: log.flush() if log.append(ENTRY) == DONE else 1, "flush.begun=kill") == -9
    _files.arm("pwrite@1=EIO,ftruncate@1=EIO", "test")
    assert log.append(ENTRY) != DONE
    _files.arm("", "test")
    assert log.view().state
    live_again(log)
    view = log.view()
    assert (view.state, view.log_start, view.table_tail - view.table_head) == (0, 0, 1)
    assert view.unflushed_since_ns == 0
    assert log.append(ENTRY) == DONE and log.flush() == 0
    assert log.arena.counters(FLUSHER)["rewritten_bytes"] == 0


@pytest.mark.parametrize("point", ["append.after_lock", "append.mid_write", "append.after_write", "append.cell_filled"])
def test_a_life_ends_that_a_dead_writer_held(point: str, tmp_path: Path) -> None:
    """What it left is of the life that ends: nobody repairs it in the next one."""
    log = SharedLog(tmp_path)
    assert in_child(lambda: log.append(ENTRY), f"{point}=kill") == -9
    live_again(log)
    assert log.append(ENTRY) == DONE and log.flush() == 0
    assert log.counter("repairs") == 0
    assert log.stored() in (b"", ENTRY[: len(ENTRY) // 2], ENTRY)


def test_the_successor_of_a_dead_writer_finds_another_life(tmp_path: Path) -> None:
    """Its cell says that it held a lock: of a partition that has gone, or of the next one in its slot."""
    log = SharedLog(tmp_path)
    assert in_child(lambda: log.append(ENTRY), "append.after_write=kill") == -9
    end(log)
    log.appender.take_over()
    assert log.arena.cell(FIRST_PROCESSOR)[4] == 0
    free(log)
    assert add(log.arena, "new") == 0
    assert log.append(ENTRY) == DONE


def test_what_has_gone_is_no_partition(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=2)
    end(log)
    assert log.arena.live_view(0) is None
    with pytest.raises(PartitionGoneError):
        log.view(0)
    assert [view.partition for view in log.arena.views()] == [1]
    assert [tuple(row) for row in log.arena.leaving()] == [(0, "t", 0, 0)]
    free(log)
    assert log.arena.leaving() == []
    assert log.arena.slot_count == 2


def test_a_view_is_of_one_life(tmp_path: Path) -> None:
    """Not the name of one partition with the ends of the next."""
    log = SharedLog(tmp_path)
    with stopped_at("view.ends_read", lambda: log.arena.live_view(0)) as looks:
        live_again(log)
        assert looks.go_on() is None
    with stopped_at("view.ends_read", lambda: log.arena.live_view(0)) as looks:
        end(log)
        assert looks.go_on() is None
    free(log)
    assert add(log.arena, "back") == 0
    end(log, returns=True)
    with stopped_at("view.ends_read", lambda: log.arena.shown_view(0)) as looks:
        log.arena.succeed(0)
        assert looks.go_on() is None


def test_what_leaves_is_of_one_life(tmp_path: Path) -> None:
    """A name that was read while the slot was given to another partition is not believed."""
    log = SharedLog(tmp_path, partitions=2)
    end(log, 0)
    end(log, 1)
    with stopped_at("leaving.read", log.arena.leaving) as looks:
        free(log, 0)
        assert [row.partition for row in looks.go_on()] == [1]
    assert add(log.arena, "next") == 0
    end(log, 0)
    with stopped_at("leaving.read", log.arena.leaving) as looks:
        free(log, 0)
        assert add(log.arena, "third") == 0
        end(log, 0)
        assert [row.partition for row in looks.go_on()] == [1]


def test_everybody_has_to_see_that_a_partition_lives_elsewhere(tmp_path: Path) -> None:
    """Though all had seen that its life here was over: it was found here on until then."""
    log = SharedLog(tmp_path)
    end(log, returns=True)

    def all_see() -> None:
        for number in range(log.arena.processes):
            log.arena.see(number, log.arena.change_count)

    all_see()
    assert log.arena.is_past(0)
    before = log.arena.retention_generation
    log.arena.succeed(0)
    assert not log.arena.is_past(0)
    assert log.arena.retention_generation == before + 1, "nobody closes its files"
    all_see()
    assert log.arena.is_past(0)


def test_a_free_slot_whose_lock_somebody_has_is_room_on(tmp_path: Path) -> None:
    """It is passed over, and used once the lock is free."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    log = SharedLog.over(arena)
    assert add(arena, "old") == 0
    with stopped_at("life.ended", lambda: end(log)) as ends:
        arena.free(0)
        room = arena.room
        assert add_slot(arena, "new") == 1
        assert arena.room == room - 1
        ends.go_on()
    assert add(arena, "newer") == 0


def test_descriptors_of_what_has_gone_are_closed(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=2)
    for slot in (0, 1):
        assert log.append(ENTRY, slot=slot) == DONE

    def held() -> list[str]:
        return sorted(name for name in open_descriptors().values() if name.startswith(str(tmp_path)))

    assert len(held()) == 2
    end(log)
    log.files.close_unused()
    assert held() == []
    assert log.append(ENTRY, slot=1) == DONE
    assert held() == [str(log.path(0, 1))]


# -- slots -------------------------------------------------------------------------------------------------------------


def test_a_slot_is_room_when_it_is_free_and_not_before(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=3)
    assert log.arena.room == 0
    end(log, 1)
    assert log.arena.room == 0
    with pytest.raises(LogError, match=r"max\.partitions"):
        add(log.arena, "early")
    free(log, 1)
    assert log.arena.room == 1
    assert add(log.arena, "new") == 1
    assert log.arena.room == 0
    for slot in (0, 2):
        end(log, slot)
        free(log, slot)
    assert log.arena.room == 2
    assert {add(log.arena, "a"), add(log.arena, "b")} == {0, 2}


def test_only_what_has_gone_is_freed(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    with pytest.raises(LogError):
        log.arena.free(0)
    end(log)
    free(log)
    with pytest.raises(LogError):
        log.arena.free(0)
    assert log.arena.room == 1


@pytest.mark.parametrize("is_used_again", [False, True], ids=["new slot", "used again"])
@pytest.mark.parametrize("point", ["create.slot_written", "create.slot_lives", "create.slot_published"])
def test_a_creator_that_dies_leaves_a_partition_or_none(point: str, is_used_again: bool, tmp_path: Path) -> None:
    """And whoever has the lock next has everybody look, at no slot that is lost and no room that is not there."""
    log = SharedLog(tmp_path, partitions=2)
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 2, 64)
    log = SharedLog.over(arena)
    for name in "ab" if is_used_again else "a":
        add(arena, name)
    if is_used_again:
        end(log, 1)
        free(log, 1)
    (tmp_path / "c-0").mkdir()
    (tmp_path / "c-0" / f"{0:020}.kafka").touch()
    seen = arena.change_count

    def create() -> None:
        assert arena.create_lock()
        add_slot(arena, "c")

    assert in_child(create, f"{point}=kill") == -9
    is_there = point != "create.slot_written"
    assert [view.topic for view in arena.views()] == (["a", "c"] if is_there else ["a"])
    assert arena.create_lock()
    arena.create_unlock()
    _, changed = arena.changed(seen)
    assert changed is None
    assert arena.room == (0 if is_there else 1)
    if not is_there:
        assert add(arena, "c") == 1
    assert log.append(ENTRY, slot=1) == DONE
    assert arena.room == 0


@pytest.mark.parametrize("point", ["life.marked", "life.ended", "life.announced"])
def test_a_keeper_that_dies_leaves_a_life_or_none(point: str, tmp_path: Path) -> None:
    """The next one can go on, and waits for everybody as if it had done all itself."""
    log = SharedLog(tmp_path, partitions=2)
    log.arena.see(FIRST_PROCESSOR, log.arena.change_count)

    def work() -> None:
        assert log.arena.create_lock()
        end_life(log.appender, 0)

    assert in_child(work, f"{point}=kill") == -9
    assert (log.arena.live_view(0) is None) == (point != "life.marked")
    end(log)
    assert log.append(ENTRY, slot=0) == GONE
    assert [row.index for row in log.arena.leaving()] == [0]
    assert not log.arena.is_past(0)
    log.arena.see(FIRST_PROCESSOR, log.arena.change_count)
    assert log.arena.is_past(0)
    free(log)
    assert log.arena.leaving() == [] and log.arena.room == 1
    assert add(log.arena, "new") == 0
    assert log.append(ENTRY, slot=0) == DONE


def test_no_directory_is_made_for_a_partition_without_room(tmp_path: Path) -> None:
    """Also when a creator has died: a directory without a slot would keep the broker from starting."""
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 2, 64)
    manager = LogManager(config, arena)
    manager.create_partition("a", 0)
    assert in_child(lambda: manager.create_partition("b", 0), "create.slot_published=kill") == -9
    with pytest.raises(LogError, match=r"max\.partitions"):
        LogManager(config, arena).create_partition("c", 0)
    assert not (tmp_path / "c-0").exists()


# -- who is told -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "is_known"), [(0, True), (1, True), (RING - 1, True), (RING, False), (600, False)])
def test_the_ring_tells_which_slots_changed_or_that_it_does_not_know(
    changes: int, is_known: bool, tmp_path: Path
) -> None:
    log = SharedLog(tmp_path, partitions=1)
    expected: list[int] = []
    before = log.arena.change_count
    while len(expected) < changes:
        if log.arena.live_view(0) is not None:
            end(log)
        else:
            free(log)
            add(log.arena, "t")
        expected.append(0)
    now, changed = log.arena.changed(before)
    assert now == before + changes
    assert changed == (expected if is_known else None)


@pytest.mark.parametrize("pairs", [1, 100, 200])
def test_a_table_of_names_keeps_up(pairs: int, tmp_path: Path) -> None:
    """Within the ring and beyond it: a manager that looks now and then knows what is there, and nothing else."""
    log = SharedLog(tmp_path, partitions=3, directories=2)
    manager = LogManager(BrokerConfig(log_dirs=tuple(map(str, log.roots))), log.arena)
    assert manager.topics() == ["t"] and len(manager.partitions("t")) == 3
    for _ in range(pairs):
        live_again(log, 2, topic="n")
    assert manager.topics() == ["n", "t"]
    assert [view.partition for view in manager.partitions("t")] == [0, 1]
    assert manager.slot("t", 2) is None
    found = manager.slot("n", 0)
    assert found is not None and (found.index, found.life) == (2, 1 + 2 * pairs)
    end(log, 0)
    assert manager.slot("t", 0) is None
    assert manager.partition_count("t") == 2
    end(log, 1)
    assert manager.topics() == ["n"]


def test_a_new_partition_lies_where_deletions_made_room(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=4, directories=2)
    manager = LogManager(BrokerConfig(log_dirs=tuple(map(str, log.roots))), log.arena)
    assert manager.topics() == ["t"]
    for slot in (1, 3):
        end(log, slot)
        free(log, slot)
    for name in ("a", "b"):
        manager.create_partition(name, 0)
        assert (log.roots[1] / f"{name}-0").is_dir()


def test_a_name_is_not_given_before_its_files_have_gone(tmp_path: Path) -> None:
    """Nor to another partition of the topic: a topic goes as a whole."""
    log = SharedLog(tmp_path, partitions=3)
    manager = LogManager(BrokerConfig(log_dirs=(str(tmp_path),), partitions=3), log.arena)
    end(log, 0)
    end(log, 2)
    free(log, 2)
    for partition in (0, 2):
        with pytest.raises(CreationBusyError):
            manager.create_partition("t", partition)
    assert manager.create_partition("other", 0) == 2
    log.folder(0).rename(tmp_path / "away")
    free(log, 0)
    assert manager.create_partition("t", 0) == 0


def test_everybody_has_to_be_past_it(tmp_path: Path) -> None:
    """Each process that looks at partitions; the acceptor looks at none, and an empty place at nothing."""
    log = SharedLog(tmp_path)
    looking = [FLUSHER, KEEPER, FIRST_PROCESSOR, FIRST_PROCESSOR + 1]
    for process in looking:
        log.arena.see(process, log.arena.change_count)
    end(log)
    for process in looking:
        assert not log.arena.is_past(0)
        log.arena.see(process, log.arena.change_count)
    assert log.arena.is_past(0)
    assert ACCEPTOR not in looking


@pytest.mark.parametrize("began_after", [False, True])
def test_a_dead_process_counts_from_its_successor_on(began_after: bool, tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    arena = log.arena
    arena.see(FIRST_PROCESSOR, arena.change_count)
    if not began_after:
        # the place is empty, and somebody begins to look before the life ends
        arena.see_all(FIRST_PROCESSOR)
        arena.see(FIRST_PROCESSOR, arena.change_count)
    end(log)
    assert not arena.is_past(0)
    arena.see_all(FIRST_PROCESSOR)
    assert arena.is_past(0)
    arena.see(FIRST_PROCESSOR, arena.change_count)
    assert arena.is_past(0)
