"""A slot lives, ends and lives again: nobody appends to what has ended, nor is it used again while it is looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.errors import LogError, PartitionGoneError
from fastlog.log import _files
from fastlog.log._append import append_bytes, end_life, roll_now
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import ACCEPTOR, FIRST_PROCESSOR, FLUSHER, KEEPER
from fastlog.log.deletion import is_wished, wish_name
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.slots import SlotSpec
from fastlog.workers.kafka07 import answers
from tests.harness import raw_client as raw
from tests.harness.descriptors import open_descriptors
from tests.harness.shared_log import (
    DONE,
    LIMITS,
    SharedLog,
    in_child,
    message,
    start_flusher,
    stop,
    wait_until,
)
from tests.harness.stopped import stands_still, stopped_at
from tests.harness.workers import Workers, is_silent

GONE = 5
WRONG_PARTITION = 3
ENTRY = message(20)
RING = 256


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """What a test arms ends with it."""
    yield
    _files.arm("", "test")


def add(arena: Arena, topic: str, partition: int = 0, directory: int = 0) -> int:
    """A partition with its files, in whichever slot the arena has for it."""
    folder = Path(arena.log_dirs[directory]) / f"{topic}-{partition}"
    folder.mkdir(exist_ok=True)
    (folder / f"{0:020}.kafka").touch()
    assert arena.create_lock()
    try:
        return add_slot(arena, topic, partition, directory)
    finally:
        arena.create_unlock()


def add_slot(arena: Arena, topic: str, partition: int = 0, directory: int = 0) -> int:
    """The same without files, for who holds the creation lock."""
    return arena.add(
        SlotSpec(
            topic=topic,
            partition=partition,
            directory=directory,
            format=0,
            created_ms=1,
            segments=[(0, 1, 0)],
            log_end=0,
            **LIMITS,  # type: ignore[arg-type]
        )
    )


def end(log: SharedLog, slot: int = 0, *, returns: bool = False) -> None:
    """End a life as the keeper does."""
    assert log.arena.create_lock()
    try:
        assert end_life(log.appender, slot, returns)
    finally:
        log.arena.create_unlock()


def free(log: SharedLog, slot: int = 0) -> None:
    """Say that its files have gone; whether all are past it is not looked at."""
    assert log.arena.create_lock()
    try:
        log.arena.free(slot)
    finally:
        log.arena.create_unlock()


def live_again(log: SharedLog, slot: int = 0, topic: str = "new") -> None:
    end(log, slot)
    free(log, slot)
    assert add(log.arena, topic) == slot


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


# -- the flusher -------------------------------------------------------------------------------------------------------


@pytest.fixture
def flusher(tmp_path: Path) -> Iterator[Callable[[SharedLog, str], int]]:
    """Starts a flusher that looks at partitions, with faults; it is gone at the end."""
    pids = []

    def begin(log: SharedLog, faults: str = "") -> int:
        log.files.close_unused()  # or it would inherit them
        log.arena.see(FLUSHER, log.arena.change_count)
        pids.append(start_flusher(log.arena, faults))
        return pids[-1]

    yield begin
    for pid in pids:
        stop(pid)


def open_in(pid: int, log: SharedLog) -> list[str]:
    """The segments of a log that a process has open."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(str(link.readlink()))
    return [name for name in links if name.startswith(str(log.directory)) and ".kafka" in name]


@pytest.mark.parametrize("point", ["flush.begun", "flush.marked", "flush.before_sync", "flush.after_sync"])
def test_the_flusher_is_past_it_when_no_thread_flushes_it(
    point: str, flusher: Callable[[SharedLog, str], int], tmp_path: Path
) -> None:
    log = SharedLog(tmp_path)
    assert log.append(ENTRY) == DONE
    pid = flusher(log, f"{point}@1=stop")
    log.arena.demand_flush(0)
    wait_until(lambda: stands_still(pid))
    end(log)
    time.sleep(0.02)
    assert not log.arena.is_past(0)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: log.arena.is_past(0))
    assert open_in(pid, log) == []


def test_a_slow_flush_is_waited_for(flusher: Callable[[SharedLog, str], int], tmp_path: Path) -> None:
    """The loop of the flusher turns meanwhile; it is one of its threads that is not past."""
    log = SharedLog(tmp_path)
    assert log.append(ENTRY) == DONE
    pid = flusher(log, "fdatasync@1=slow:600")
    log.arena.demand_flush(0)
    wait_until(lambda: open_in(pid, log) != [])
    end(log)
    assert wait_until(lambda: log.arena.is_past(0)) > 0.2
    assert open_in(pid, log) == []


def test_the_flusher_forgets_what_has_gone(flusher: Callable[[SharedLog, str], int], tmp_path: Path) -> None:
    """It keeps no file of it open, does not flush what is left, and flushes the next life."""
    log = SharedLog(tmp_path)
    pid = flusher(log, "")
    assert log.append(ENTRY) == DONE
    log.arena.demand_flush(0)
    wait_until(lambda: log.view().visible_offset == len(ENTRY))
    assert open_in(pid, log) == [str(log.path(0))]
    assert log.append(ENTRY) == DONE
    end(log)
    wait_until(lambda: log.arena.is_past(0))
    assert open_in(pid, log) == []
    log.folder(0).rename(tmp_path / "away")
    free(log)
    assert add(log.arena, "t") == 0
    assert log.append(ENTRY) == DONE
    log.arena.demand_flush(0)
    wait_until(lambda: log.view().visible_offset == len(ENTRY))
    assert open_in(pid, log) == [str(log.path(0))]


# -- processors --------------------------------------------------------------------------------------------------------


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Workers]:
    """A processor without a flusher, whose heartbeats are hours apart: what is not woken is never seen."""
    with Workers(tmp_path, flusher=False, partitions=2, flush_bytes=1 << 20) as workers:
        yield workers


def end_in(workers: Workers, slot: int = 0) -> None:
    end(SharedLog.over(workers.arena), slot)


def test_an_answer_that_is_owed_ends_with_the_life(one: Workers) -> None:
    """Its messages were appended and not flushed, which they never will be."""
    with one.connect() as client:
        client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, raw.entry(b"x"), raw.FLUSHED)))
        wait_until(lambda: one.count("appends") == 1)
        one.wait_still()
        end_in(one)
        assert client.recv_own()[1].error == WRONG_PARTITION
        wait_until(lambda: one.arena.is_past(0))


def test_a_write_that_waits_for_room_ends_with_the_life(one: Workers) -> None:
    """Nothing of it gets into the next life."""
    big = raw.entry(b"x" * (700 << 10))
    with one.connect() as client:
        assert client.produce_ack("t", 0, big).error == 0
        client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, big, raw.APPENDED)))
        wait_until(lambda: one.count("append_waits") >= 1)
        one.wait_still()
        end_in(one)
        assert client.recv_own()[1].error == WRONG_PARTITION
        wait_until(lambda: one.arena.is_past(0))
    assert (one.directory / "t-0" / f"{0:020}.kafka").stat().st_size == len(big)


def test_a_write_that_waits_for_a_lock_ends_with_the_life(one: Workers) -> None:
    """Another process held it, and was killed: nobody but the end of the life wakes who waits."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        with stopped_at("append.after_lock", lambda: log.append(ENTRY)) as writer:
            client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, ENTRY, raw.APPENDED)))
            wait_until(lambda: one.count("lock_waits") >= 1)
            one.wait_still()
            writer.kill()
        end(log)
        assert client.recv_own()[1].error == WRONG_PARTITION
        wait_until(lambda: one.arena.is_past(0))
    assert log.stored() == ENTRY


def test_a_write_without_an_answer_goes_with_the_life(one: Workers) -> None:
    """As if it had come before the deletion; its connection lives on."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        with stopped_at("append.after_lock", lambda: log.append(ENTRY)) as writer:
            client.produce("t", 0, ENTRY)
            wait_until(lambda: one.count("lock_waits") >= 1)
            one.wait_still()
            writer.kill()
        end(log)
        wait_until(lambda: one.arena.is_past(0))
        assert client.metadata().topics == {}
    assert log.stored() == ENTRY


def test_a_processor_closes_what_has_gone(one: Workers) -> None:
    """Also where nobody asks it for anything."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        for partition in (0, 1):
            assert client.produce_ack("t", partition, ENTRY).error == 0
        log.files.close_unused()
        one.wait_still()
        name = f"{0:020}.kafka"
        assert one.held()[f"t-0/{name}"] == one.held()[f"t-1/{name}"] == 1
        end(log, 0)
        wait_until(lambda: one.held()[f"t-0/{name}"] == 0)
        assert one.held()[f"t-1/{name}"] == 1


def test_a_processor_is_past_it_when_its_threads_are(one: Workers) -> None:
    """An answer that is being made may be about to use what it has found; the loop turns meanwhile."""
    with one.connect() as client, one.connect() as other:
        for topic in ("t", "u"):
            assert client.produce_ack(topic, 0, ENTRY).error == 0
        one.wait_still()
        _files.arm("delete.wanted@1=slow:600", "test")
        began = time.monotonic()
        client.send_raw(raw.own_frame(raw.DELETE_TOPIC, raw.text("u")))
        wait_until(lambda: is_wished("u", [one.directory]))
        end_in(one)
        assert other.fetch("t", 0, 0) == (0, b"")  # past it, but for the thread
        assert not one.arena.is_past(0)
        wait_until(lambda: one.arena.is_past(0))
        assert time.monotonic() - began > 0.5
        let_go(one, "u", slot=1)
        assert client.recv_own()[1].error == 0


def let_go(workers: Workers, topic: str, slot: int) -> None:
    """Do what the keeper does about a wish."""
    end_in(workers, slot)
    (workers.directory / f"{topic}-0").rename(workers.directory / f"away-{slot}")
    (workers.directory / wish_name(topic)).unlink()
    free(SharedLog.over(workers.arena), slot)


def test_a_deletion_is_answered_when_the_name_is_free(one: Workers) -> None:
    """Not when the partition has gone, whose directory still has its name."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        client.send_raw(raw.own_frame(raw.DELETE_TOPIC, raw.text("t")))
        wait_until(lambda: is_wished("t", [one.directory]))
        for step in (
            lambda: None,
            lambda: end(log),
            lambda: (one.directory / "t-0").rename(one.directory / "away"),
            lambda: (one.directory / wish_name("t")).unlink(),
        ):
            step()
            one.arena.wake_creators()
            one.wait_still()
            assert is_silent(client)
        free(log)
        assert client.recv_own()[1].error == 0


def wait_for_the_wish_alone(workers: Workers, client: raw.RawClient) -> None:
    """Have topic ``t`` made and its deletion asked for, until nothing but the wish is left of it."""
    log = SharedLog.over(workers.arena)
    assert client.produce_ack("t", 0, ENTRY).error == 0
    client.send_raw(raw.own_frame(raw.DELETE_TOPIC, raw.text("t")))
    wait_until(lambda: is_wished("t", [workers.directory]))
    end(log)
    (workers.directory / "t-0").rename(workers.directory / "away")
    free(log)
    workers.wait_still()


def test_a_deletion_is_not_answered_while_its_wish_stands(one: Workers) -> None:
    """Two asked for one topic, and the keeper had finished when the second one's wish was there: it would delete what
    is made after the answer.
    """
    with one.connect() as client:
        wait_for_the_wish_alone(one, client)
        assert is_silent(client)
        (one.directory / wish_name("t")).unlink()
        one.arena.wake_creators()
        assert client.recv_own()[1].error == 0


def test_a_deletion_that_ends_while_its_thread_looks_is_answered(one: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wake-up comes when the thread has looked for the last time, and has not said yet that it waits."""
    looks = []

    def look(topic: str, directories: list[Path]) -> bool:
        found = is_wished(topic, directories)
        looks.append(found)
        if looks == [True, True]:
            (one.directory / wish_name("t")).unlink()
            turned = one.turns()
            one.arena.wake_creators()
            wait_until(lambda: one.turns() > turned)
            one.wait_still()
        return found

    with one.connect() as client:
        wait_for_the_wish_alone(one, client)
        monkeypatch.setattr(answers, "is_wished", look)
        one.arena.wake_creators()
        assert client.recv_own()[1].error == 0
        assert looks[:2] == [True, True]


def test_a_thread_that_looks_at_no_partition_is_not_waited_for(one: Workers) -> None:
    """One that reads a file has it open, and knows no name."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        one.wait_still()
        end(log)
        wait_until(lambda: one.arena.is_past(0))
        assert client.fetch("t", 0, 0) == (0, b"")


def test_processors_follow_slots_from_one_topic_to_the_next(one: Workers) -> None:
    """More often than the ring is long: the names in their tables are those that there are."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        for turn in range(300):
            topic = f"t{turn % 7}"
            if turn % 50 == 0:
                assert client.produce_ack("stays", 0, ENTRY).error == 0
            message_now = raw.entry(b"turn %d" % turn)
            assert client.produce_ack(topic, turn % 2, message_now).base_offset == 0
            slot = next(view.index for view in one.arena.views() if view.topic == topic)
            end(log, slot)
            wait_until(lambda slot=slot: one.arena.is_past(slot))  # type: ignore[misc]
            assert client.offsets(topic, turn % 2) == [0]
            (one.directory / f"{topic}-{turn % 2}").rename(one.directory / f"gone-{turn}")
            free(log, slot)
        assert sorted(client.metadata().topics) == ["stays"]
        assert one.arena.slot_count == 2


def test_of_a_topic_that_has_gone_no_partition_is_remembered(one: Workers) -> None:
    """It had more than the configured count; who writes to any of the new one's writes to one of these."""
    slots = [add(one.arena, "wide", partition) for partition in (4, 5)]
    with one.connect() as client:
        for partition, slot in zip((4, 5), slots, strict=True):
            assert client.produce_ack("wide", partition, ENTRY).error == 0
            end_in(one, slot)
            wait_until(lambda slot=slot: one.arena.is_past(slot))  # type: ignore[misc]
            (one.directory / f"wide-{partition}").rename(one.directory / f"gone-{partition}")
            free(SharedLog.over(one.arena), slot)
        told = [client.produce_ack("wide", -1, ENTRY) for _ in range(40)]
        assert {answer.error for answer in told} == {0}
        assert {answer.partition for answer in told} == {0, 1}
        assert client.produce_ack("wide", 5, ENTRY).error == WRONG_PARTITION
