"""How much a batch takes of each partition, and how it is cut into tasks. Knows neither Spark nor a broker.

Every place where something ends is a message boundary that ``Boundaries`` has told; none is guessed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fastlog.consumer.partitions import TopicPartition
from fastlog.spark.offsets import Interval, Ranges

_FINENESS = 32  # a batch may stay this part below its share, where messages are shorter than that
_LARGEST_STEP = 8 * 2**20


class Boundaries(Protocol):
    """Who knows where messages begin."""

    def between(self, partition: TopicPartition, interval: Interval, step_bytes: int) -> list[int]:
        """Boundaries in the interval, ascending, the first its start; usually at least ``step_bytes`` apart."""

    def after(self, partition: TopicPartition, interval: Interval) -> int:
        """Where the message ends that begins where the interval does."""


class Piece(NamedTuple):
    """What one task reads."""

    partition: TopicPartition
    interval: Interval


def limit_batch(ranges: Ranges, max_bytes: int | None, boundaries: Boundaries) -> dict[TopicPartition, Interval]:
    """Shorten ranges so that all of them together have at most ``max_bytes``, each in proportion to its length.

    Whole messages only. A partition whose share is smaller than its next message still gets that one, so that each of
    them moves on: with very small limits a batch is larger than the limit.
    """
    total = sum(interval.size_bytes for interval in ranges.values())
    if max_bytes is None or total <= max_bytes:
        return dict(ranges)
    return {
        partition: _shortened(partition, interval, max_bytes * interval.size_bytes // total, boundaries)
        for partition, interval in ranges.items()
    }


def split(ranges: Ranges, max_bytes: int, min_pieces: int, boundaries: Boundaries) -> list[Piece]:
    """Cut ranges into pieces, each ending at the first boundary at or behind an equal share of its range.

    Pieces of about ``max_bytes`` at most, and at least ``min_pieces`` of them where there are that many messages.
    Empty ranges have no piece.
    """
    total = sum(interval.size_bytes for interval in ranges.values())
    size = max(1, min(max_bytes, total // min_pieces))
    pieces = []
    for partition, interval in sorted(ranges.items()):
        count = -(-interval.size_bytes // size)
        if count > 1:
            step = -(-interval.size_bytes // count)
            finer = step // (1 + step // _LARGEST_STEP)  # one request walks so far, and no farther
            at = interval.start
            for point in boundaries.between(partition, interval, finer):
                if point >= at + step and point < interval.end:
                    pieces.append(Piece(partition, Interval(at, point)))
                    at = point
            interval = Interval(at, interval.end)
        if interval.size_bytes:
            pieces.append(Piece(partition, interval))
    return pieces


def _shortened(partition: TopicPartition, interval: Interval, share: int, boundaries: Boundaries) -> Interval:
    if not interval.size_bytes:
        return interval
    wanted = Interval(interval.start, interval.start + share)
    step = max(1, min(share // _FINENESS, _LARGEST_STEP))
    end = boundaries.between(partition, wanted, step)[-1] if share else interval.start
    if end == interval.start:
        end = boundaries.after(partition, interval)
    return Interval(interval.start, end)
