"""How much a batch takes of each partition, and how it is cut into tasks. Knows neither Spark nor a broker.

Every place where something ends is a message boundary that ``SplitPoints`` has told; none is guessed. Of partitions of
record batches offsets are numbers of records, each of which is a boundary, and the bytes of one are an average: what is
limited by bytes is so about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from fastlog.consumer.partitions import TopicPartition
from fastlog.spark.offsets import OffsetRange, Ranges

_FINENESS = 32  # a batch may stay this part below its share, where messages are shorter than that
_LARGEST_STEP = 8 * 2**20
_NONE: Mapping[TopicPartition, float] = {}


class SplitPoints(Protocol):
    """Where ranges may be split: knows at which offsets messages begin."""

    def between(self, partition: TopicPartition, interval: OffsetRange, step_bytes: int) -> list[int]:
        """Boundaries in the interval, ascending, the first its start; usually at least ``step_bytes`` apart."""

    def after(self, partition: TopicPartition, interval: OffsetRange) -> int:
        """Where the message ends that begins where the interval does."""


class TaskPiece(NamedTuple):
    """The range of one partition that one task reads."""

    partition: TopicPartition
    interval: OffsetRange


def limit_batch(
    ranges: Ranges, max_bytes: int | None, boundaries: SplitPoints, record_bytes: Mapping[TopicPartition, float] = _NONE
) -> dict[TopicPartition, OffsetRange]:
    """Shorten ranges so that all of them together have at most ``max_bytes``, each in proportion to its length.

    Whole messages only. A partition whose share is smaller than its next message still gets that one, so that each of
    them moves on: with very small limits a batch is larger than the limit. ``record_bytes`` has the bytes of a record
    of each partition of record batches; with 1 for all of them, ``max_bytes`` is a number of records.
    """
    total = sum(_bytes_of(partition, interval, record_bytes) for partition, interval in ranges.items())
    if max_bytes is None or total <= max_bytes:
        return dict(ranges)
    found = {}
    for partition, interval in ranges.items():
        share = max_bytes * interval.size_bytes // total  # of messages bytes, of records their number
        if partition not in record_bytes:
            found[partition] = _shortened(partition, interval, share, boundaries)
        else:
            taken = min(interval.size_bytes, max(1, share))
            found[partition] = OffsetRange(interval.start, interval.start + taken)
    return found


def split(
    ranges: Ranges,
    max_bytes: int,
    min_pieces: int,
    boundaries: SplitPoints,
    record_bytes: Mapping[TopicPartition, float] = _NONE,
    max_records: int | None = None,
) -> list[TaskPiece]:
    """Cut ranges into pieces, each ending at the first boundary at or behind an equal share of its range.

    Pieces of about ``max_bytes``, and ``max_records`` of a partition of record batches, at most; ``min_pieces`` of them
    at least, where there are that many messages, or batches. Empty ranges have no piece.
    """
    total = sum(_bytes_of(partition, interval, record_bytes) for partition, interval in ranges.items())
    size = max(1, min(max_bytes, total // min_pieces))
    pieces = []
    for partition, interval in sorted(ranges.items()):
        count = min(interval.size_bytes, -(-_bytes_of(partition, interval, record_bytes) // size))
        if max_records is not None and partition in record_bytes:
            count = max(count, -(-interval.size_bytes // max_records))
        if count > 1:
            step = -(-interval.size_bytes // count)
            finer = step // (1 + step // _LARGEST_STEP)  # one request walks so far, and no farther
            at = interval.start
            for point in boundaries.between(partition, interval, finer):
                if point >= at + step:
                    pieces.append(TaskPiece(partition, OffsetRange(at, point)))
                    at = point
            interval = OffsetRange(at, interval.end)
        if interval.size_bytes:
            pieces.append(TaskPiece(partition, interval))
    return pieces


def _bytes_of(partition: TopicPartition, interval: OffsetRange, record_bytes: Mapping[TopicPartition, float]) -> int:
    each = record_bytes.get(partition)
    return interval.size_bytes if each is None else math.ceil(interval.size_bytes * each)


def _shortened(partition: TopicPartition, interval: OffsetRange, share: int, boundaries: SplitPoints) -> OffsetRange:
    if not interval.size_bytes:
        return interval
    wanted = OffsetRange(interval.start, interval.start + share)
    step = max(1, min(share // _FINENESS, _LARGEST_STEP))
    end = boundaries.between(partition, wanted, step)[-1] if share else interval.start
    if end == interval.start:
        end = boundaries.after(partition, interval)
    return OffsetRange(interval.start, end)
