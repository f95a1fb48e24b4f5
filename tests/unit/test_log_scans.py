"""Scans of segment files that are shorter than they were, and of entries at every border of what is read at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastlog._segment import SCAN_CODEC, SCAN_CRC, SCAN_MAGIC, SCAN_OK, SCAN_TAIL, SCAN_TOO_LARGE
from fastlog.log.files import FileOps
from fastlog.log.formats import DeepFindings, SearchBudget, log_format
from fastlog.log.formats.kafka07 import MAX_BUFFERED_ENTRY_BYTES
from fastlog.segment_files import WINDOW_BYTES, first_boundary, read_fully, windows
from tests.harness import raw_format
from tests.harness.shared_log import message

KAFKA = log_format("kafka-0.7")
FILES = FileOps()
LARGE = MAX_BUFFERED_ENTRY_BYTES + 10


@contextmanager
def file_of(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("segment")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


# -- entries that are larger than what is held in memory ---------------------------------------------------------------


@pytest.mark.parametrize("left", [WINDOW_BYTES, WINDOW_BYTES + 1, LARGE - 1])
def test_a_large_entry_of_a_file_that_has_shrunk_ends_the_scan(left: int) -> None:
    """Whoever cut the file since its size was asked for leaves nobody waiting for bytes that never come."""
    data = message(12) + raw_format.entry(b"\xff" * (LARGE - 9), magic=0)
    with file_of(data[: 12 + left]) as fd:
        found = KAFKA.scan(FILES, fd, 0, len(data))
        assert (found.end, found.count, found.status) == (12, 1, SCAN_TAIL)
        assert KAFKA.find_entry(FILES, fd, 12, len(data), SearchBudget()) is None
        assert KAFKA.count_entries(FILES, fd, 12, len(data), SearchBudget()) == 0


@pytest.mark.parametrize("size", [MAX_BUFFERED_ENTRY_BYTES - 1, MAX_BUFFERED_ENTRY_BYTES, LARGE])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_large_entry_is_one_whatever_way_it_is_checked(size: int, magic: int) -> None:
    """In one buffer or in pieces: the same count, the same end, and what stands behind it is found."""
    entry = raw_format.entry(bytes(size - 9 - magic), magic=magic)
    assert len(entry) == size
    data = message(12) + entry + message(13)
    with file_of(data) as fd:
        assert KAFKA.scan(FILES, fd, 0, len(data))[:5] == (len(data), 3, 0, 0, SCAN_OK)
        deep = DeepFindings()
        assert KAFKA.scan(FILES, fd, 0, len(data), deep)[:2] == (len(data), 3)
        assert (deep.messages, deep.suspicious, deep.damaged_wrappers) == (3, [], [])
        assert KAFKA.scan(FILES, fd, 0, len(data) - 13)[:5] == (12 + size, 2, 0, 0, SCAN_OK)
        assert KAFKA.scan(FILES, fd, 0, len(data) - 14)[:5] == (12, 1, 0, 0, SCAN_TAIL)
        os.pwrite(fd, b"\1", 12 + size - 1)
        assert KAFKA.scan(FILES, fd, 0, len(data))[:5] == (12, 1, 0, 0, SCAN_CRC)
        assert KAFKA.find_entry(FILES, fd, 12, len(data), SearchBudget()) == 12 + size


@pytest.mark.parametrize(
    ("at", "byte", "status"),
    [(4, 2, SCAN_MAGIC), (4, 255, SCAN_MAGIC), (5, 3, SCAN_CODEC), (5, 4, SCAN_CODEC), (5, 128, SCAN_CODEC)],
)
def test_the_head_of_a_large_entry_is_checked_like_any_other(at: int, byte: int, status: int) -> None:
    entry = raw_format.entry(bytes(LARGE), magic=1)
    with file_of(entry) as fd:
        os.pwrite(fd, bytes([byte]), at)
        assert KAFKA.scan(FILES, fd, 0, len(entry))[:5] == (0, 0, 0, 0, status)


@pytest.mark.parametrize("codec", [1, 2])
def test_a_large_wrapper_counts_as_one(codec: int) -> None:
    """The codec bits are under no checksum, so what is in it does not matter here."""
    entry = bytearray(raw_format.entry(bytes(LARGE), magic=1))
    entry[5] = codec
    with file_of(bytes(entry)) as fd:
        assert KAFKA.scan(FILES, fd, 0, len(entry))[:5] == (len(entry), 1, 1, 0, SCAN_OK)


# -- an entry that stands behind a damaged one -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"\0\0\0\x05\0", True),  # the smallest of magic 0
        (b"\0\0\0\x04\0", False),
        (b"\0\0\0\x06\1\0", True),  # the smallest of magic 1
        (b"\0\0\0\x05\1\0", False),
        (b"\0\0\0\x06\1\2", True),
        (b"\0\0\0\x06\1\3", False),
        (b"\0\0\0\x06\2\0", False),
        (b"\xff\xff\xff\xff\0", False),
    ],
)
@pytest.mark.parametrize("by_length", [True, False], ids=["by its length", "by search"])
def test_the_smallest_entries_are_found_behind_damage(head: bytes, found: bool, by_length: bool) -> None:
    """Their checksum is that of nothing, 0. By the length of the damaged one, or by trying every byte."""
    damaged = bytearray(raw_format.entry(b"damaged", magic=0))
    damaged[-1] ^= 1
    if not by_length:
        damaged[3] += 1
    entry = head + b"\0\0\0\0"
    with file_of(bytes(damaged) + entry) as fd:
        end = len(damaged) + len(entry)
        place = KAFKA.find_entry(FILES, fd, 0, end, SearchBudget())
        assert place == (len(damaged) if found else None)
        assert KAFKA.find_entry(FILES, fd, 0, end - 1, SearchBudget()) is None
        assert KAFKA.count_entries(FILES, fd, 0, end, SearchBudget()) == int(found)


@pytest.mark.parametrize("left", range(0, 5))
def test_a_damaged_end_that_is_shorter_than_a_length_hides_nothing(left: int) -> None:
    with file_of(message(12) + b"\0\0\0\1\1"[:left]) as fd:
        assert KAFKA.find_entry(FILES, fd, 12, 12 + left, SearchBudget()) is None
        assert KAFKA.count_entries(FILES, fd, 12, 12 + left, SearchBudget()) == 0


@pytest.mark.parametrize(("limit", "counted"), [(None, 3), (10_000, 3), (36, 1), (12, 1)])
def test_a_search_that_may_cost_no_more_says_so(limit: int | None, counted: int) -> None:
    """What it has counted by then stands."""
    data = (message(12) + b"\xff\xff") * 3
    with file_of(data) as fd:
        budget = SearchBudget(limit)
        assert KAFKA.count_entries(FILES, fd, 0, len(data), budget, first_may_be_valid=True) == counted
        assert budget.exhausted == (counted < 3)


def test_a_budget_of_exactly_that_is_enough() -> None:
    budget = SearchBudget(10)
    assert budget.take(4)
    assert budget.take(6)
    assert not budget.exhausted
    assert not budget.take(1)
    assert budget.exhausted
    assert not budget.take(0)
    assert SearchBudget().take(1 << 60)


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [99, 100, 101])
def test_an_entry_of_exactly_the_most_is_given(most: int) -> None:
    data = message(12) + message(100) + message(12)
    with file_of(data) as fd:
        found = list(windows(fd, 0, len(data), max_entry_bytes=most, window_bytes=50))
        given = b"".join(bytes(one.entries) for one in windows(fd, 0, len(data), max_entry_bytes=most, window_bytes=50))
    assert given == (data if most >= 100 else message(12))
    if most < 100:
        assert [(one.position, one.count, one.status) for one in found] == [(0, 1, SCAN_OK), (12, 0, SCAN_TOO_LARGE)]
    else:
        assert [(one.position, one.count) for one in found] == [(0, 1), (12, 1), (112, 1)]
        assert {one.status for one in found} == {SCAN_OK}


@pytest.mark.parametrize("window", [12, 13, 23, 24, 25])
def test_an_entry_that_ends_with_the_window_is_not_read_twice(window: int) -> None:
    data = message(12) * 4
    asked: list[tuple[int, int]] = []

    def read(fd: int, view: memoryview, position: int) -> int:
        asked.append((position, len(view)))
        return os.preadv(fd, [view], position)

    with file_of(data) as fd:
        found = list(windows(fd, 0, len(data), window_bytes=window, read=read))
    assert sum(one.count for one in found) == 4
    assert [one.position for one in found] == list(range(0, 48, window // 12 * 12))
    assert [position for position, _ in asked] == [one.position for one in found]


def test_short_reads_end_where_the_file_does() -> None:
    with file_of(b"abcdefgh") as fd:
        view = memoryview(bytearray(20))
        assert read_fully(fd, view, 3) == 5
        assert bytes(view[:5]) == b"defgh"
        assert read_fully(fd, view[:0], 3) == 0
        assert read_fully(fd, view, 8) == 0


# -- the boundary behind a place ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "target", "end", "most", "found"),
    [
        (0, 0, 60, 1000, 0),
        (0, 1, 60, 1000, 12),
        (0, 12, 60, 1000, 12),
        (0, 13, 60, 1000, 32),
        (12, 13, 60, 1000, 32),
        (0, 59, 60, 1000, 60),
        (0, 60, 60, 1000, 60),
        (0, 60, 59, 1000, 32),  # the last entry does not end before the end
        (0, 60, 33, 1000, 32),
        (0, 60, 60, 0, 0),
    ],
)
def test_the_first_boundary_at_or_behind_a_place(
    start: int, target: int, end: int, most: int, found: int, tmp_path: Path
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(message(12) + message(20) + message(28))
    assert first_boundary(path, start, target, end, most) == found
