"""Messages that a query with windows, or a join, leaves out because they are late, in a table of their own.

Spark drops them inside of its operators, and tells how many there were and no more. Which they are follows from what
it writes into its checkpoint before it runs a batch: the ranges that the batch reads, and the watermark. An operator
drops what is not later than the watermark of the batch before: a window by its end, a message of a join by its time.
A batch that runs again finds the same in the checkpoint. So the messages of each batch are read a second time and
held against the watermark, and those that are late are brought into their table before the batch's rows into its own;
either table knows by the number of the batch what it has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError
from fastlog.spark import offsets
from fastlog.spark.jobs.expressions import source_frame
from fastlog.spark.offsets import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OVER = "_over"
TIME, REASON, WATERMARK = "time", "reason", "watermark"
PLACES = ("topic", "broker", "partition", "offset", "idx", "key", "value")
_LOG_VERSION = "v1"
_ONE_WATERMARK = "spark.sql.streaming.statefulOperator.allowMultiple"
"""Spark's setting without which an operator goes by the watermark of its own batch."""
_OF_STREAMS = ("group",)
"""Options of the source that a batch read refuses."""

Timed = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Side:
    """A source of a query: its options, and what adds to its messages ``TIME``, ``REASON``, ``OVER`` and ``columns``.
    A message, or a window of it, is late once the watermark has come to ``OVER``."""

    source: Mapping[str, str]
    timed: Timed
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """What Spark has written down of a batch: what it reads of each source, and below which watermark, in ms since
    1970, its operators leave out what comes."""

    ranges: list[dict[TopicPartition, OffsetRange]]
    watermark_ms: int


def planned(checkpoint: Path, batch: int, sources: int) -> Planned:
    """What the checkpoint of a query says of a batch that was begun.

    Raises:
        ConfigError: it is written in a way that is not known, or of another number of sources.
    """
    metadata, ends = _entry(checkpoint, batch)
    before, begins = _entry(checkpoint, batch - 1) if batch else ({}, ["-"] * len(ends))
    if not len(ends) == len(begins) == sources:
        raise ConfigError(f"{checkpoint}: is of a query of {len(ends)} sources, not of {sources}")
    # What has the end of the batch before reads nothing: a batch may be there for its watermark alone.
    ranges = [_ranges(end) if end != begin else {} for begin, end in zip(begins, ends, strict=True)]
    of = metadata if str(metadata.get("conf", {}).get(_ONE_WATERMARK)).lower() == "false" else before
    return Planned(ranges, int(of.get("batchWatermarkMs", 0)))


def _entry(checkpoint: Path, batch: int) -> tuple[dict[str, Any], list[str]]:
    version, *lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    if version != _LOG_VERSION or not lines:
        raise ConfigError(f"{checkpoint}: this Spark writes its offsets in a way that is not known ({version})")
    metadata: dict[str, Any] = json.loads(lines[0])
    return metadata, lines[1:]


def _ranges(end: str) -> dict[TopicPartition, OffsetRange]:
    found = {} if end == "-" else offsets.decode(json.loads(end))
    if isinstance(found, offsets.OffsetSpec):
        return {}  # where the query begins
    return {partition: interval for partition, interval in found.items() if interval.size_bytes}


class LateRows:
    """Finds the late messages of each batch of a query with these sources, in their order."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = list(sides)

    def of(self, session: SparkSession, checkpoint: Path, batch: int) -> DataFrame | None:
        """The late messages of a batch, once for each window that was over; None of one that reads nothing. Raises as
        ``planned``."""
        found = planned(checkpoint, batch, len(self._sides))
        parts = zip(self._sides, found.ranges, strict=True)
        frames = [self._late(session, side, ranges, found.watermark_ms) for side, ranges in parts if ranges]
        return reduce(lambda one, other: one.unionByName(other), frames) if frames else None

    def _late(
        self, session: SparkSession, side: Side, ranges: Mapping[TopicPartition, OffsetRange], watermark_ms: int
    ) -> DataFrame:
        from pyspark.sql import functions as f

        source = {name: value for name, value in side.source.items() if name.lower() not in _OF_STREAMS}
        watermark = f.timestamp_millis(f.lit(watermark_ms))
        timed = side.timed(source_frame(session, source, ranges))
        late = timed.where(f.col(OVER) <= watermark).withColumn(WATERMARK, watermark)
        return late.select(*PLACES, TIME, *side.columns, WATERMARK, REASON)
