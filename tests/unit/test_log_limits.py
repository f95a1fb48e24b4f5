"""Every limit of a log at one less, exactly, and one more: segments, bounds of what is not flushed, space, windows."""

from __future__ import annotations

import errno
import gc
import itertools
import random
import select
import time
from pathlib import Path

import pytest

from fastlog.errors import LogError, OffsetOutOfRangeError
from fastlog.log import _files
from fastlog.log._append import append_sets, roll_now
from fastlog.log._arena import STATE_OFFLINE
from fastlog.log._flush import flush_now, make_partition_flusher, run_ahead_now
from fastlog.log._segments import locate_offset
from fastlog.log._shared_memory import FLUSHER
from tests.harness.calls import Call, recorded_calls
from tests.harness.descriptors import open_descriptors
from tests.harness.shared_log import (
    DONE,
    FAILED,
    FULL,
    OFFLINE,
    SharedLog,
    in_child,
    message,
    start_flusher,
    stop,
    wait_until,
)
from tests.harness.stopped import stopped_at
from tests.harness.timing import undisturbed

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)
MAX_OFFSET = 2**63 - 1
MIB = 1 << 20


# -- segments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "bases"), [(23, [0, 24, 48]), (24, [0, 36]), (25, [0, 36]), (35, [0, 36])])
def test_a_segment_that_is_exactly_full_takes_one_more(limit: int, bases: list[int], memory: Path) -> None:
    """0.7: it rolls when it is larger than the limit."""
    log = SharedLog(memory, segment_bytes=limit)
    for _ in range(6):
        assert log.append(ENTRY) == DONE
    assert log.bases() == bases


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_descriptors_of_segments_go_with_the_table_of_them(segments: int, memory: Path) -> None:
    def work() -> bool:
        log = SharedLog(memory, segment_bytes=1)
        for _ in range(segments):
            assert log.append(ENTRY) == DONE
        assert len(of_log()) == segments
        del log
        gc.collect()
        return bool(of_log())

    def of_log() -> list[str]:
        return [name for name in open_descriptors().values() if name.startswith(str(memory)) and "kafka" in name]

    assert in_child(work) == 0


@pytest.mark.parametrize("sets", [[], [b"x"] * 65, [b"x", b""]])
def test_as_many_sets_as_have_room_and_none_without_bytes(sets: list[bytes], memory: Path) -> None:
    log = SharedLog(memory)
    with pytest.raises(ValueError, match="message sets"):
        append_sets(log.appender, 0, [(one, 1) for one in sets])
    assert log.stored() == b""


@pytest.mark.parametrize(
    ("sets", "bases"),
    [
        ([12, 12, 12], [0, 36]),  # the third begins where the segment is exactly full
        ([12, 13, 12], [0, 25]),
        ([60, 12, 12], [0, 60]),
        ([60, 60, 60], [0, 60, 120]),
        ([24, 12, 13, 12], [0, 36, 61]),
        ([25, 25, 24, 12, 12], [0, 25, 50, 86]),
    ],
)
def test_sets_that_come_together_lie_where_they_would_one_by_one(
    sets: list[int], bases: list[int], memory: Path
) -> None:
    directories = [memory / "together", memory / "alone"]
    for directory in directories:
        directory.mkdir()
    together, alone = (SharedLog(directory, segment_bytes=24) for directory in directories)
    offsets = list(itertools.accumulate(sets, initial=0))
    data = [message(size, b"%d" % number) for number, size in enumerate(sets)]
    assert append_sets(together.appender, 0, [(one, number + 1) for number, one in enumerate(data)]) == (
        DONE,
        offsets[:-1],
        offsets[-1],
        0,
    )
    assert [alone.try_append(one, number + 1) for number, one in enumerate(data)] == [
        (DONE, offset, offset + size, 0) for offset, size in zip(offsets, sets, strict=False)
    ]
    for log in (together, alone):
        assert log.append(ENTRY) == DONE
        assert log.stored() == b"".join(data) + ENTRY
        assert log.view().appended_messages == sum(range(1, len(sets) + 1)) + 1
        assert [path.stat().st_size for path in sorted(log.folder().glob("*.kafka"))] == [
            end - base for base, end in itertools.pairwise([*log.bases(), log.view().log_end])
        ]
    assert together.bases() == alone.bases()
    assert together.bases()[: len(bases)] == bases
    assert together.counter("appends") == 2
    assert together.counter("rolls") == alone.counter("rolls") == len(together.bases()) - 1


def test_any_sets_that_come_together_lie_where_they_would_one_by_one(memory: Path) -> None:
    """The same by chance, over the bound of what is not flushed, too: as many are taken, and no more."""
    source = random.Random(5)
    for number in range(40):
        logs = []
        limits = {
            "segment_bytes": source.choice([9, 30, 64, 200]),
            "flush_messages": source.choice([3, 10, 1000]),
            "flush_bytes": source.choice([60, 200, 1 << 20]),
        }
        for name in ("together", "alone"):
            (memory / f"{name}{number}").mkdir()
            logs.append(SharedLog(memory / f"{name}{number}", **limits))
        together, alone = logs
        for _ in range(4):
            sets = [(message(source.randint(9, 50)), source.randint(1, 3)) for _ in range(source.randint(1, 12))]
            status, offsets, end, error = append_sets(together.appender, 0, sets)
            results = [alone.try_append(*one) for one in sets[: len(offsets)]]
            assert [result[:2] for result in results] == [(DONE, offset) for offset in offsets]
            if status == FULL:
                assert alone.append(*sets[len(offsets)]) == FULL
            assert (status in (DONE, FULL), error, end) == (True, 0, alone.view().log_end)
            assert (status == DONE) == (len(offsets) == len(sets))
            assert together.bases() == alone.bases()
            assert together.view().appended_messages == alone.view().appended_messages
            if source.random() < 0.7:
                assert together.flush() == alone.flush() == 0
        assert together.stored() == alone.stored()


def test_a_failed_write_in_the_middle_keeps_what_came_before_it(memory: Path) -> None:
    """The sets of one segment are one write: all of them, or none, and those of the segment before stay."""
    log = SharedLog(memory, segment_bytes=24)
    sets = [(ENTRY, 1)] * 5
    _files.arm("pwrite@2=ENOSPC", "test")
    assert append_sets(log.appender, 0, sets) == (FAILED, [0, 12, 24], 36, errno.ENOSPC)
    assert (log.view().log_end, log.view().appended_messages, log.stored()) == (36, 3, ENTRY * 3)
    assert append_sets(log.appender, 0, sets[3:]) == (DONE, [36, 48], 60, 0)
    assert log.bases() == [0, 36]


@pytest.mark.parametrize(("size", "status"), [(19, DONE), (20, DONE), (21, FAILED)])
def test_the_last_offset_that_there_is(size: int, status: int, memory: Path) -> None:
    base = MAX_OFFSET - 20
    log = SharedLog(memory, base=base)
    error = 0 if status == DONE else errno.EFBIG
    end = base + size if status == DONE else base
    assert log.try_append(message(size)) == (status, base, end, error)
    assert log.view().log_end == end
    assert log.view().state == 0
    assert log.flush() == 0
    assert log.view().flushed_end == end


@pytest.mark.parametrize(("asked", "entries"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64)])
def test_a_table_is_a_power_of_two_and_takes_all_its_entries(asked: int, entries: int, memory: Path) -> None:
    log = SharedLog(memory, segment_bytes=5, table_entries=asked)
    assert log.arena.table_entries == entries
    for _ in range(entries + 2):
        assert log.append(ENTRY) == DONE
    assert len(log.bases()) == entries
    assert log.counter("rolls") == entries - 1
    assert log.flush() == 0
    log.arena.publish_retention(0, 1, 12)
    assert roll_now(log.appender, 0)
    assert len(log.bases()) == entries
    assert log.append(ENTRY) == DONE
    assert not roll_now(log.appender, 0)


def test_the_start_of_a_log_moves_up_to_the_watermark(memory: Path) -> None:
    """To it, and to where it is: neither is one too many."""
    log = SharedLog(memory, segment_bytes=5)
    for _ in range(3):
        log.append(ENTRY)
    assert roll_now(log.appender, 0)
    assert log.flush() == 0
    log.arena.publish_retention(0, 2, 24)
    log.arena.publish_retention(0, 2, 24)
    with pytest.raises(LogError):
        log.arena.publish_retention(0, 1, 24)
    with pytest.raises(LogError):
        log.arena.publish_retention(0, 2, 23)
    with pytest.raises(LogError):
        log.arena.publish_retention(0, 3, 37)
    assert (log.view().log_start, log.view().table_head) == (24, 2)
    log.arena.publish_retention(0, 3, 36)
    assert log.bases() == [36]
    assert locate_offset(log.arena, 0, 36) is None
    with pytest.raises(OffsetOutOfRangeError):
        locate_offset(log.arena, 0, 35)
    assert log.append(ENTRY) == DONE
    assert log.flush() == 0
    assert locate_offset(log.arena, 0, 36) == (3, 36, 0, 48)


def test_a_partition_that_is_offline_takes_nothing(memory: Path) -> None:
    log = SharedLog(memory, state=STATE_OFFLINE)
    assert log.append(ENTRY) == OFFLINE
    assert not roll_now(log.appender, 0)
    assert log.flush() == errno.EIO
    assert log.stored() == b""


# -- what is not flushed -----------------------------------------------------------------------------------------------


def woken(log: SharedLog) -> bool:
    """Whether the flusher was woken since it was asked last."""
    ready, _, _ = select.select([log.arena.eventfd(FLUSHER)], [], [], 0)
    log.arena.wake_taken(FLUSHER) if ready else None
    return bool(ready)


@pytest.mark.parametrize(("most", "half"), [(1, 1), (2, 1), (9, 5), (10, 5), (11, 6)])
def test_the_flusher_is_woken_at_half_of_m(most: int, half: int, memory: Path) -> None:
    """By the first message since a flush, too, for it has to look at the clock; by none between."""
    log = SharedLog(memory, flush_messages=most)
    told = [number for number in range(1, most + 1) if (log.append(ENTRY), woken(log)) == (DONE, True)]
    assert told == sorted({1, *range(half, most + 1)})
    assert log.append(ENTRY) == FULL
    assert woken(log)
    assert log.flush() == 0
    assert log.append(ENTRY) == DONE
    assert woken(log)


@pytest.mark.parametrize(("most", "half"), [(60, 3), (71, 3), (72, 3), (73, 3), (84, 4)])
def test_the_flusher_is_woken_at_half_of_b(most: int, half: int, memory: Path) -> None:
    log = SharedLog(memory, flush_bytes=most)
    told = [number for number in range(1, most // 12 + 1) if (log.append(ENTRY), woken(log)) == (DONE, True)]
    assert told == [1, *range(half, most // 12 + 1)]
    assert log.append(ENTRY) == FULL
    assert woken(log)


@pytest.mark.parametrize(("size", "told"), [(11, False), (12, True), (13, True)])
def test_the_flusher_is_woken_every_4_mib(size: int, told: bool, memory: Path) -> None:
    """It makes room ahead, and starts writing back."""
    log = SharedLog(memory)
    for _ in range(2):
        assert log.append(message(4 * MIB - 12)) == DONE
        woken(log)
        assert log.append(message(size)) == DONE
        assert woken(log) == told
        assert log.append(message(24 - size)) == DONE
        woken(log)
        assert log.append(ENTRY) == DONE
        assert not woken(log)
        assert log.append(message(4 * MIB - 24)) == DONE
        woken(log)


def test_whoever_waits_for_a_flush_has_every_append_wake_it(memory: Path) -> None:
    """Until the flush begins that serves the marker."""
    log = SharedLog(memory)
    log.append(ENTRY)
    assert woken(log)
    log.append(ENTRY)
    assert not woken(log)
    log.arena.demand_flush(0)
    assert woken(log)
    log.append(ENTRY)
    assert woken(log)
    assert log.flush() == 0
    log.append(ENTRY)
    woken(log)
    log.append(ENTRY)
    assert not woken(log)


def test_a_partition_that_leaves_service_wakes_the_flusher(memory: Path) -> None:
    log = SharedLog(memory)
    log.append(ENTRY)
    woken(log)
    _files.arm("pwrite@1=EIO", "test")
    assert log.append(ENTRY) == FAILED
    assert not woken(log)
    _files.arm("pwrite@1=short,pwrite@2=EIO,ftruncate@1=EIO", "test")
    assert log.append(ENTRY) == FAILED
    assert woken(log)


def test_a_repair_wakes_the_flusher(memory: Path) -> None:
    """Whatever it comes to: the dead owner may have published and not said so."""
    log = SharedLog(memory)
    for faults, status in (("", FULL), ("ftruncate@1=EIO", OFFLINE)):
        assert in_child(lambda: log.append(ENTRY), "append.after_lock@1=kill") == -9
        assert in_child(lambda: log.append(message(40)), "append.mid_write@1=kill") == -9
        woken(log)
        _files.arm(faults, "test")
        assert (roll_now(log.appender, 0) and FULL) == (status == FULL and FULL)
        assert woken(log)


@pytest.mark.parametrize(("sets", "admitted"), [([3, 3, 4], 3), ([3, 3, 5], 2), ([10], 1), ([11], 1), ([11, 1], 1)])
def test_as_many_sets_are_taken_as_m_allows(sets: list[int], admitted: int, memory: Path) -> None:
    """Where all is flushed one is always taken, however large; each bound counts all that is not flushed."""
    log = SharedLog(memory, flush_messages=10)
    log.append(ENTRY, 7)
    assert log.flush() == 0
    status, offsets, _, _ = append_sets(log.appender, 0, [(ENTRY, count) for count in sets])
    assert (status, len(offsets)) == (DONE if admitted == len(sets) else FULL, admitted)
    assert log.view().appended_messages == 7 + sum(sets[:admitted])


@pytest.mark.parametrize(("sets", "admitted"), [([20, 20, 20], 3), ([20, 20, 21], 2), ([61, 9], 1), ([51, 9], 2)])
def test_as_many_sets_are_taken_as_b_allows(sets: list[int], admitted: int, memory: Path) -> None:
    log = SharedLog(memory, flush_bytes=60)
    log.append(ENTRY)
    assert log.flush() == 0
    status, offsets, _, _ = append_sets(log.appender, 0, [(message(size), 1) for size in sets])
    assert (status, len(offsets)) == (DONE if admitted == len(sets) else FULL, admitted)
    assert log.view().log_end == 12 + sum(sets[:admitted])


def test_appends_go_on_until_the_oldest_byte_is_twice_s_old(memory: Path) -> None:
    """Later than S, and not yet twice as late."""
    numbers = itertools.count()

    def attempt() -> list[int]:
        directory = memory / str(next(numbers))
        directory.mkdir()
        log = SharedLog(directory, flush_ns=150_000_000)
        first = log.append(ENTRY)
        time.sleep(0.17)
        return [first, log.append(ENTRY)]

    assert undisturbed(0.3, attempt) == [DONE, DONE]


def test_a_byte_is_as_old_as_the_flush_that_left_it_and_no_older(memory: Path) -> None:
    """What came during a flush waits from the beginning of that flush on, not from the first byte that it took."""
    log = SharedLog(memory)
    log.append(ENTRY)
    first = log.view().unflushed_since_ns
    with stopped_at("flush.after_sync", log.flush) as flusher:
        begun = time.monotonic_ns()
        log.append(ENTRY)
        assert log.view().unflushed_since_ns == first
        time.sleep(0.002)
        assert flusher.go_on() == 0
    assert first < log.view().unflushed_since_ns < begun
    assert log.flush() == 0
    before = time.monotonic_ns()
    log.append(ENTRY)
    after = time.monotonic_ns()
    assert before <= log.view().unflushed_since_ns <= after
    log.append(ENTRY)
    assert log.view().unflushed_since_ns <= after


def test_each_of_many_partitions_is_seen_by_the_flusher(memory: Path) -> None:
    """Those at the borders of its words of 64 bits, too; S is a minute away, and nobody asks for the others."""
    slots = [0, 63, 64, 127, 128, 129]
    log = SharedLog(memory, partitions=130)
    for slot in slots:
        assert log.append(ENTRY, slot=slot) == DONE
    for slot in slots:
        log.arena.demand_flush(slot)
    flusher = start_flusher(log.arena)
    try:
        wait_until(lambda: all(log.view(slot).flushed_end == 12 for slot in slots), what="all of them")
    finally:
        stop(flusher)
    assert sum(view.flushed_end for view in log.arena.views()) == 12 * len(slots)


# -- space and pages ---------------------------------------------------------------------------------------------------


def ranges(calls: list[Call], name: str) -> list[tuple[str, int, int]]:
    return [(one.path.name[-10:-6], one.position, one.size) for one in calls if one.name == name and one.result >= 0]


def test_space_is_reserved_in_steps_and_never_behind_the_end_of_a_segment(memory: Path) -> None:
    """A step when less than half a step is left, the last one as long as the segment still is."""
    log = SharedLog(memory, segment_bytes=1000)
    flusher = make_partition_flusher(log.arena, 64, 400, 0)
    found = []
    for size in (12, 188, 9, 191, 200, 9, 91, 9, 290):
        assert log.append(message(size)) == DONE
        with recorded_calls(memory) as calls:
            run_ahead_now(flusher, 0)
            run_ahead_now(flusher, 0)
        found.append((log.view().log_end, [call[1:] for call in ranges(calls, "fallocate")]))
    assert found == [
        (12, [(12, 400)]),
        (200, []),  # half a step is left, and a bit
        (209, []),
        (400, [(412, 400)]),
        (600, []),
        (609, []),
        (700, [(812, 188)]),
        (709, []),
        (999, []),
    ]


def test_a_file_system_without_reservations_is_asked_once(memory: Path) -> None:
    """Another error, such as a full disk, may pass."""
    for error, calls_made in (("EOPNOTSUPP", 0), ("EINVAL", 0), ("ENOSPC", 1)):
        (memory / error).mkdir()
        log = SharedLog(memory / error)
        flusher = make_partition_flusher(log.arena, 64, MIB, 0)
        log.append(ENTRY)
        _files.arm(f"fallocate@1={error}", "test")
        with recorded_calls(memory) as calls:
            run_ahead_now(flusher, 0)
            run_ahead_now(flusher, 0)
        assert len(ranges(calls, "fallocate")) == calls_made
        assert log.view().state == 0


def test_writing_back_begins_when_so_much_has_come(memory: Path) -> None:
    """Of what is not flushed, each byte once, and nothing of another segment."""
    log = SharedLog(memory, segment_bytes=1000)
    flusher = make_partition_flusher(log.arena, 64, 0, 100)
    log.append(ENTRY)
    assert log.flush() == 0
    found = []
    for size in (87, 12, 1 + 8, 100, 792, 99 + 9, 9, 92):
        assert log.append(message(size)) == DONE
        with recorded_calls(memory) as calls:
            run_ahead_now(flusher, 0)
        found.append((log.view().log_end, ranges(calls, "sync_file_range")))
    assert found == [
        (99, []),
        (111, []),  # 99 since the flush
        (120, [("0000", 12, 108)]),
        (220, [("0000", 120, 100)]),
        (1012, [("0000", 220, 792)]),
        (1120, []),  # in a new segment, while the older one is not synced
        (1129, []),
        (1221, []),
    ]
    assert flush_now(flusher, 0) == 0
    assert log.append(message(150)) == DONE
    with recorded_calls(memory) as calls:
        run_ahead_now(flusher, 0)
    assert ranges(calls, "sync_file_range") == [("1012", 209, 150)]


def test_pages_are_forgotten_in_steps_and_behind_what_is_kept(memory: Path) -> None:
    """A MiB at least at a time; each byte once, in its own segment; not what was there before."""
    log = SharedLog(memory)
    log.append(ENTRY)
    assert log.flush() == 0
    flusher = make_partition_flusher(log.arena, 64, 0, 0, 100)
    found = []
    for size in (MIB, 99, 1, 50, MIB):
        for part in [size] if size > 9 else [9]:
            assert log.append(message(part)) == DONE
        if size == 50:
            assert roll_now(log.appender, 0)
        with recorded_calls(memory) as calls:
            assert flush_now(flusher, 0) == 0
        found.append([call[1:] for call in ranges(calls, "posix_fadvise")])
    first = 12 + MIB + 99 + 9 + 50
    assert found == [[], [], [(12, MIB + 8)], [], [(12 + MIB + 8, first - (12 + MIB + 8)), (0, MIB - 100)]]


# -- what a dead flusher had in hand -----------------------------------------------------------------------------------

WINDOW = 4 * MIB


@pytest.mark.parametrize(
    "sizes",
    [
        [WINDOW],
        [WINDOW - 1, 12],
        [WINDOW + 1],
        [WINDOW - 4, 12],
        [WINDOW - 12, 12, 12],
        [12, WINDOW, 12],
        [2 * WINDOW, 12],
        [2 * WINDOW + 1, 2 * WINDOW - 1],
    ],
    ids=str,
)
def test_entries_are_written_again_whatever_their_place_in_the_window(sizes: list[int], memory: Path) -> None:
    """Also one that fills it, ends in it, or is longer."""
    log = SharedLog(memory)
    for number, size in enumerate(sizes):
        assert log.append(message(size, b"%d" % number)) == DONE
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    with recorded_calls(memory) as calls:
        assert log.flush() == 0
    assert log.counter("rewritten_bytes", FLUSHER) == sum(sizes)
    written = [(call.position, call.size) for call in calls if call.name == "pwrite"]
    assert [position for position, _ in written] == list(itertools.accumulate((n for _, n in written), initial=0))[:-1]
    assert log.view().flushed_end == sum(sizes)
    assert log.stored() == b"".join(message(size, b"%d" % number) for number, size in enumerate(sizes))


@pytest.mark.parametrize("faults", ["pread@1-=short", "pwrite@1-3=short", "pread@1=short,pwrite@2=short"])
def test_short_calls_write_all_of_it_again(faults: str, memory: Path) -> None:
    log = SharedLog(memory)
    for size in (5000, 12, 300):
        assert log.append(message(size)) == DONE
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    _files.arm(faults, "test")
    assert log.flush() == 0
    assert log.counter("rewritten_bytes", FLUSHER) == 5312
    assert log.view().flushed_end == 5312


@pytest.mark.parametrize("left", [0, 11, 12, 23])
def test_a_file_that_ends_before_the_log_does_is_damage(left: int, memory: Path) -> None:
    """Somebody cut it while the flusher was dead: nothing of it becomes visible, and zeros are not made up."""
    log = SharedLog(memory)
    log.append(ENTRY)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    log.path(0).write_bytes((ENTRY * 2)[:left])
    assert log.flush() == errno.EIO
    assert (log.view().flushed_end, log.stored()) == (0, (ENTRY * 2)[:left])
    assert "could not be read back" in log.arena.describe_state(log.view().state)
    assert log.append(ENTRY) == OFFLINE
