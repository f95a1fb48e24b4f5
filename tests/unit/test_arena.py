"""The arena: slots, the lock of creation, wake-ups, counters; each beside another process."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.errors import LogError
from fastlog.log._append import end_life
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY, WHY_ROOM, Arena
from fastlog.log._shared_memory import COORDINATOR, COUNTERS, FIRST_PROCESSOR, FLUSHER, KEEPER, MAX_PROCESSORS
from fastlog.log.slots import SlotSpec
from tests.harness.descriptors import open_descriptors
from tests.harness.shared_log import (
    LIMITS,
    SharedLog,
    in_child,
    message,
    start,
    stop,
    wait_until,
)
from tests.harness.stopped import stopped_at


def spec(topic: str = "t", partition: int = 0, **changes: object) -> SlotSpec:
    fields: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "directory": 0,
        "format": 0,
        "created_ms": 5,
        "segments": [(0, 0, 0)],
        "log_end": 0,
        **LIMITS,
    }
    return SlotSpec(**(fields | changes))  # type: ignore[arg-type]


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_a_slot_says_what_it_was_made_of(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    index = arena.add(spec("größe", 7, segments=[(0, 1, 2), (50, 3, 4)], log_end=90))
    view = arena.view(index)
    assert (view.topic, view.partition, view.created_ms) == ("größe", 7, 5)
    assert (view.log_start, view.flushed_end, view.log_end, view.table_tail) == (0, 90, 90, 2)
    assert [tuple(item) for item in arena.segments(index)] == [(0, 0, 1, 2, 0), (1, 50, 3, 4, 50)]


def test_a_new_slot_has_counted_no_messages(tmp_path: Path) -> None:
    """Whatever the memory held that its ends are made in; messages are counted since the start."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 64, 16)

    def made(depth: int) -> int:
        if depth:
            return max([depth], key=lambda _: made(depth - 1)) and made(0)
        return arena.add(spec(partition=arena.slot_count, log_end=2**62))

    for depth in range(8):
        made(depth)
        repr(re.compile(f"(a|b){{{depth + 2}}}"))
        sorted(os.environ, key=str.casefold)
    counts = {(view.appended_messages, view.flushed_messages) for view in arena.views()}
    assert counts == {(0, 0)}


def test_what_starts_damaged_says_so(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    for state, word in ((STATE_READ_ONLY, "read-only"), (STATE_OFFLINE, "offline")):
        index = arena.add(spec(partition=state, state=state))
        assert arena.describe_state(arena.view(index).state) == f"{word}: found damaged at start"
    full = arena.add(spec(partition=4, state=STATE_READ_ONLY | WHY_ROOM << 8))
    assert arena.describe_state(arena.view(full).state) == "read-only: the disk was full at start"
    assert arena.describe_state(0) == "ok"


def test_a_full_arena_and_a_full_table_name_the_setting(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 1, 16)
    with pytest.raises(LogError, match=r"max\.segments\.per\.partition"):
        arena.add(spec(segments=[(i, 0, 0) for i in range(17)]))
    arena.add(spec())
    with pytest.raises(LogError, match=r"max\.partitions"):
        arena.add(spec(partition=1))
    with pytest.raises(IndexError):
        arena.view(1)


def test_the_number_of_processes_has_a_limit(tmp_path: Path) -> None:
    for processes in (FIRST_PROCESSOR, FIRST_PROCESSOR + MAX_PROCESSORS + 1):
        with pytest.raises(LogError, match="1 to"):
            Arena([str(tmp_path)], processes, 1, 16)


def test_reserved_places_have_a_cell_and_nothing_else(tmp_path: Path) -> None:
    """Between the coordinator and the processors: no descriptor, no wake-up, nobody who is waited for."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 2, 1, 16)
    reserved = range(COORDINATOR + 1, FIRST_PROCESSOR)
    assert [arena.eventfd(number) for number in reserved] == [-1, -1]
    assert len({arena.eventfd(number) for number in range(arena.processes)} - {-1}) == 6
    arena.wake_all()
    arena.set_stopping(1)
    for number in range(arena.processes):
        assert number in reserved or readable(arena.eventfd(number))
        assert arena.cell(number)[:2] == (0, 0)
        assert arena.counters(number) == dict.fromkeys(COUNTERS, 0)


def test_nobody_can_shrink_the_memory_under_the_others(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 1, 16)
    fds = [fd for fd, name in open_descriptors().items() if "fastlog-arena" in name]
    assert fds
    for fd in fds:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 4096)
    assert arena.slot_count == 0


def test_a_slot_of_one_process_appears_in_the_others(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 2, 4, 16)
    arena.wait_for_creation(FIRST_PROCESSOR)

    def create() -> None:
        assert arena.create_lock()
        arena.add(spec("new"))
        arena.create_unlock()

    assert in_child(create) == 0
    assert arena.view(0).topic == "new"
    assert readable(arena.eventfd(FIRST_PROCESSOR))
    assert not readable(arena.eventfd(FIRST_PROCESSOR + 1))


def test_one_process_creates_at_a_time_and_a_dead_one_blocks_nobody(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    ready, told = os.pipe()

    def hold() -> None:
        assert arena.create_lock()
        os.write(told, b"x")
        while True:
            select.select([], [], [])

    pid = start(hold)
    assert os.read(ready, 1) == b"x"
    assert not arena.create_lock()
    stop(pid)
    assert arena.create_lock()
    assert not arena.create_lock()
    arena.create_unlock()
    assert arena.create_lock()
    arena.create_unlock()
    os.close(ready)
    os.close(told)


def test_a_wake_up_is_written_once_and_never_lost(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    fd = arena.eventfd(KEEPER)
    assert not readable(fd)
    for _ in range(3):
        arena.wake(KEEPER)
    assert readable(fd)
    arena.wake_taken(KEEPER)
    assert not readable(fd)
    assert in_child(lambda: arena.wake(KEEPER)) == 0
    assert readable(fd)
    arena.wake_taken(KEEPER)
    arena.wake_all()
    assert readable(fd) and readable(arena.eventfd(FLUSHER))


@pytest.mark.slow
def test_no_wake_up_is_lost_between_two_processes(tmp_path: Path) -> None:
    """Each side wakes the other and sleeps until it is woken: one lost wake-up and both sleep for ever."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 2, 4, 16)
    mine, other = FIRST_PROCESSOR, FIRST_PROCESSOR + 1

    def answer() -> None:
        seen = 0
        while seen < 5000:
            arena.wake_taken(other)
            now = arena.counters(mine)["appends"]
            if now == seen:
                assert select.select([arena.eventfd(other)], [], [], 2.0)[0], seen
                continue
            seen = now
            arena.count(other, "appends", now - arena.counters(other)["appends"])
            arena.wake(mine)

    pid = start(answer)
    try:
        for number in range(1, 5001):
            arena.count(mine, "appends")
            arena.wake(other)
            while arena.counters(other)["appends"] != number:
                arena.wake_taken(mine)
                if arena.counters(other)["appends"] != number:
                    assert select.select([arena.eventfd(mine)], [], [], 2.0)[0], number
    finally:
        stop(pid)


def test_the_log_start_only_grows_and_never_passes_the_watermark(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, segment_bytes=5)
    for _ in range(4):
        log.append(message(12))
    with pytest.raises(LogError):
        log.arena.publish_retention(0, 1, 12)
    log.flush()
    log.arena.publish_retention(0, 2, 24)
    for head, offset in ((1, 12), (1, 36), (5, 60)):
        with pytest.raises(LogError):
            log.arena.publish_retention(0, head, offset)
    assert (log.view().log_start, log.bases()) == (24, [24, 36])


def test_requests_and_refusals_are_counted_by_kind(tmp_path: Path) -> None:
    """Each pair of a request and an error has a place of its own, as far as there are any; the last is of the rest."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    assert (arena.requests(FIRST_PROCESSOR), arena.refusals(FIRST_PROCESSOR)) == ({}, {})

    def count() -> None:
        for code in (3, -1, 3, 32767):
            arena.count_refusal(FIRST_PROCESSOR, 0, code)
        arena.count_refusal(FIRST_PROCESSOR, 127, 3)

    assert in_child(count) == 0
    arena.clear_cell(FIRST_PROCESSOR, 77, 99)
    known: dict[tuple[int, int] | None, int] = {(0, 3): 2, (0, -1): 1, (0, 32767): 1, (127, 3): 1}
    assert arena.refusals(FIRST_PROCESSOR) == known
    assert arena.refusals(FLUSHER) == {}
    for code in range(100, 170):
        arena.count_refusal(FIRST_PROCESSOR, 1, code)
        arena.count_refusal(FIRST_PROCESSOR, 1, 100)
    found = arena.refusals(FIRST_PROCESSOR)
    places = 63 - len(known)
    assert found == known | {(1, code): 1 for code in range(100, 100 + places)} | {(1, 100): 71, None: 70 - places}


def test_counters_and_cells_survive_their_process(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)

    def count() -> None:
        for name in COUNTERS:
            arena.count(FIRST_PROCESSOR, name, 3)

    assert in_child(count) == 0
    arena.clear_cell(FIRST_PROCESSOR, 77, 99)
    assert arena.counters(FIRST_PROCESSOR) == dict.fromkeys(COUNTERS, 3)
    assert arena.cell(FIRST_PROCESSOR) == (77, 99, 0, 0, 0)
    arena.beat(FIRST_PROCESSOR)
    assert arena.cell(FIRST_PROCESSOR)[1] > 99


def test_who_holds_an_append_lock_can_be_seen(tmp_path: Path) -> None:
    """The supervisor ends a silent process sooner when others wait for what it holds."""
    log = SharedLog(tmp_path, partitions=3)
    pid = start(lambda: log.append(message(12), slot=2), "pwrite@1=slow:10000")
    try:
        wait_until(lambda: log.arena.cell(FIRST_PROCESSOR)[4] == 3)
    finally:
        stop(pid)
    assert log.append(message(12), slot=2) == 0
    assert log.arena.cell(FIRST_PROCESSOR)[4] == 0


def test_an_arena_that_nobody_has_takes_no_addresses(tmp_path: Path) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:")

    before = maps()
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    assert maps() > before
    del arena
    assert maps() == before


def test_who_lives_neither_returns_nor_goes(tmp_path: Path) -> None:
    """A caller that is wrong is told, and everybody finds the partition as it was."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    index = arena.add(spec())
    before = arena.view(index), arena.change_count, arena.leaving(), arena.returning()
    for call, what in (
        (arena.succeed, "that is to return"),
        (arena.revive, "that is to return"),
        (arena.free, "that has gone"),
    ):
        with pytest.raises(LogError, match=f"slot {index} has no partition {what}"):
            call(index)
        assert (arena.view(index), arena.change_count, arena.leaving(), arena.returning()) == before


def test_a_partition_like_another_is_settled_as_it_is(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 8, 16)
    first = arena.add(spec(settled=0))
    assert not arena.view(arena.add(spec(partition=1, settled=1), like=first)).settled
    arena.settle(first)
    assert arena.view(arena.add(spec(partition=2, settled=0), like=first)).settled


def test_whoever_waits_is_woken_by_what_it_waits_for(tmp_path: Path) -> None:
    """A start that is written down, also one that is so already; a flush that is wanted; a partition that lives on."""
    log = SharedLog(tmp_path)
    arena = log.arena

    def wakes(process: int, call: Callable[[], object]) -> bool:
        for number in (FLUSHER, KEEPER, FIRST_PROCESSOR):
            arena.wake_taken(number)
        call()
        return readable(arena.eventfd(process))

    for _ in range(2):
        assert not wakes(FIRST_PROCESSOR, lambda: arena.publish_start(0, 0))
        arena.wait_for_end(0, FIRST_PROCESSOR)
        assert wakes(FIRST_PROCESSOR, lambda: arena.publish_start(0, 0))
    assert wakes(FLUSHER, lambda: arena.demand_flush(0))
    assert arena.create_lock()
    assert end_life(log.appender, 0, True)
    assert wakes(FIRST_PROCESSOR, lambda: arena.revive(0))
    arena.create_unlock()


def test_what_waits_for_a_flush_is_no_older_than_the_last_one_that_began(tmp_path: Path) -> None:
    """It came while that was under way, which leaves nothing of before."""
    log = SharedLog(tmp_path)
    log.append(message(12))
    first = log.view().unflushed_since_ns
    with stopped_at("flush.end_read", log.flush) as flush:
        log.append(message(12))
        assert log.view().unflushed_since_ns == first
        assert flush.go_on() == 0
    assert log.view().log_end > log.view().flushed_end
    assert log.view().unflushed_since_ns > first


def test_the_lowest_descriptor_is_given_back_like_any(tmp_path: Path) -> None:
    """As an arena gets it in a process without a standard input."""

    def work() -> None:
        os.close(0)
        arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
        assert str(Path("/proc/self/fd/0").readlink()).startswith("/memfd:fastlog-arena")
        del arena
        assert not os.path.lexists("/proc/self/fd/0")

    assert in_child(work) == 0


def test_so_many_changes_are_told_one_by_one_and_of_more_that_any_slot_may_have_changed(tmp_path: Path) -> None:
    """One fewer than are kept: another one may be on its way."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 300, 4)
    assert arena.create_lock()
    made = [arena.add(spec(partition=number)) for number in range(258)]
    arena.create_unlock()
    assert arena.change_count == 258
    assert [arena.changed(seen) for seen in (0, 1, 2)] == [(258, None)] * 3
    assert [arena.changed(seen) for seen in (3, 257, 258)] == [(258, made[3:]), (258, made[257:]), (258, [])]


def test_a_stop_wakes_every_process(tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 2, 1, 4)
    arena.set_stopping(1)
    for process in (FLUSHER, KEEPER, COORDINATOR, FIRST_PROCESSOR, FIRST_PROCESSOR + 1):
        assert select.select([arena.eventfd(process)], [], [], 0)[0], process
