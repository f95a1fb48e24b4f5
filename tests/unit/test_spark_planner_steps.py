"""What is asked of brokers to cut ranges: how far one request walks, how fine, and when nothing is asked."""

from __future__ import annotations

import pytest

from fastlog.consumer.partitions import TopicPartition
from fastlog.spark.offsets import OffsetRange
from fastlog.spark.planner import TaskPiece, limit_batch, split
from tests.harness.spark import partition_of

MIB = 2**20
ONE, TWO, EMPTY = (partition_of(f"t/0-{number}") for number in range(3))


class Asked:
    """Boundaries of messages that all have one size; ``steps`` and ``behind`` are what was asked."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.steps: list[tuple[TopicPartition, OffsetRange, int]] = []
        self.behind: list[tuple[TopicPartition, OffsetRange]] = []

    def between(self, partition: TopicPartition, interval: OffsetRange, step_bytes: int) -> list[int]:
        self.steps.append((partition, interval, step_bytes))
        assert step_bytes >= 1
        found, at = [interval.start], interval.start
        while True:
            at += -(-step_bytes // self.size) * self.size
            if at > interval.end:
                return found
            found.append(at)

    def after(self, partition: TopicPartition, interval: OffsetRange) -> int:
        self.behind.append((partition, interval))
        return interval.start + self.size


@pytest.mark.parametrize("limit", [None, 1000, 1001])
def test_what_is_within_the_limit_is_not_cut(limit: int | None) -> None:
    asked = Asked(10)
    ranges = {ONE: OffsetRange(0, 400), TWO: OffsetRange(100, 700)}
    assert limit_batch(ranges, limit, asked) == ranges
    assert asked.steps == asked.behind == []


def test_one_byte_less_cuts_each_in_proportion() -> None:
    asked = Asked(1)
    found = limit_batch({ONE: OffsetRange(0, 400), TWO: OffsetRange(100, 700)}, 999, asked)
    assert found == {ONE: OffsetRange(0, 396), TWO: OffsetRange(100, 694)}
    assert asked.steps == [(ONE, OffsetRange(0, 399), 399 // 32), (TWO, OffsetRange(100, 699), 599 // 32)]


@pytest.mark.parametrize(
    ("share", "step"),
    [(63, 1), (64, 2), (3200, 100), (256 * MIB - 1, 8 * MIB - 1), (256 * MIB, 8 * MIB), (600 * MIB, 8 * MIB)],
)
def test_a_share_is_walked_in_32_steps_and_none_is_larger_than_a_broker_walks_at_once(share: int, step: int) -> None:
    asked = Asked(1)
    limit_batch({ONE: OffsetRange(0, 2000 * MIB)}, share, asked)
    assert asked.steps == [(ONE, OffsetRange(0, share), step)]
    assert asked.behind == []


def test_a_share_below_the_next_message_gets_that_one() -> None:
    """One of nothing asks for it at once, and an empty range for nothing."""
    asked = Asked(10)
    found = limit_batch({ONE: OffsetRange(0, 1000), TWO: OffsetRange(50, 60), EMPTY: OffsetRange(7, 7)}, 9, asked)
    assert found == {ONE: OffsetRange(0, 10), TWO: OffsetRange(50, 60), EMPTY: OffsetRange(7, 7)}
    assert asked.steps == [(ONE, OffsetRange(0, 8), 1)]
    assert asked.behind == [(ONE, OffsetRange(0, 1000)), (TWO, OffsetRange(50, 60))]


@pytest.mark.parametrize(("max_bytes", "pieces", "count"), [(1000, 1, 1), (1001, 1, 1), (999, 1, 2), (1000, 2, 2)])
def test_a_range_of_one_piece_asks_nothing(max_bytes: int, pieces: int, count: int) -> None:
    asked = Asked(10)
    found = split({ONE: OffsetRange(0, 1000)}, max_bytes, pieces, asked)
    assert [piece.interval for piece in found] == (
        [OffsetRange(0, 1000)] if count == 1 else [OffsetRange(0, 500), OffsetRange(500, 1000)]
    )
    assert len(asked.steps) == count - 1


@pytest.mark.parametrize(
    ("size", "max_bytes", "step"),
    [
        (1000, 500, 500),
        (1001, 500, 334),
        (16 * MIB - 2, 8 * MIB - 1, 8 * MIB - 1),
        (16 * MIB, 8 * MIB, 4 * MIB),
        (64 * MIB, 32 * MIB, 32 * MIB // 5),
        (200 * MIB, 100 * MIB, 100 * MIB // 13),
        (3, 1, 1),
    ],
)
def test_a_range_is_walked_in_steps_that_fit_its_pieces(size: int, max_bytes: int, step: int) -> None:
    """A step of a piece, or an even part of it that a broker walks at once."""
    asked = Asked(1)
    found = split({ONE: OffsetRange(5, size + 5)}, max_bytes, 1, asked)
    assert asked.steps == [(ONE, OffsetRange(5, size + 5), step)]
    assert [piece.interval.start for piece in found] == [5, *(piece.interval.end for piece in found)][:-1]
    assert found[-1].interval.end == size + 5
    assert len(found) == -(-size // max_bytes)


def test_pieces_come_by_partition_and_share_what_is_wanted() -> None:
    """Of ten at least, nine tenths are of the larger one; an empty range has none."""
    asked = Asked(10)
    found = split({TWO: OffsetRange(0, 100), ONE: OffsetRange(0, 900), EMPTY: OffsetRange(5, 5)}, 10**6, 10, asked)
    assert found == [TaskPiece(ONE, OffsetRange(at, at + 100)) for at in range(0, 900, 100)] + [
        TaskPiece(TWO, OffsetRange(0, 100))
    ]


def test_more_pieces_than_bytes() -> None:
    assert len(split({ONE: OffsetRange(0, 40)}, 1000, 1000, Asked(10))) == 4


def test_a_record_is_not_cut_however_large_it_is() -> None:
    asked = Asked(1)
    assert split({ONE: OffsetRange(3, 4)}, 10, 1, asked, {ONE: 1000.0}) == [TaskPiece(ONE, OffsetRange(3, 4))]
    assert asked.steps == []


def test_a_part_of_a_byte_counts_as_one() -> None:
    """Ten records of 10.05 bytes are more than 100."""
    ranges, each = {ONE: OffsetRange(0, 10)}, {ONE: 10.05}
    assert limit_batch(ranges, 101, Asked(1), each) == ranges
    assert limit_batch(ranges, 100, Asked(1), each) == {ONE: OffsetRange(0, 9)}
