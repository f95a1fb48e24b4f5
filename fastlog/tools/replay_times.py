"""When the messages of a log were made: by their own times or envelopes, by the times of segments, or by a rate."""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import Protocol

from fastlog._batch import ConsumedMessage
from fastlog.consumer.broker_logs import segment_borders
from fastlog.consumer.simple import SimpleConsumer
from fastlog.envelope import unwrap
from fastlog.errors import EnvelopeError
from fastlog.tools.report import EXIT_USAGE, CommandError
from fastlog.tools.topic_places import PartitionPlace


class MessageTimes(Protocol):
    """The times of one partition's messages, asked for in their order."""

    unknown: int
    """Messages of which nobody knows; they count as made with the one before."""

    def of(self, message: ConsumedMessage) -> float:
        """Seconds since some moment that is the same for all partitions; never less than for the message before."""


class EnvelopeTimes:
    """What stands in each message's envelope."""

    def __init__(self) -> None:
        self.unknown = 0
        self._last = 0.0

    def of(self, message: ConsumedMessage) -> float:
        """The time in the envelope, by the clock of who made it; 0 before the first one that has any."""
        try:
            made = unwrap(message.payload or b"")[0].time_ms / 1000
        except EnvelopeError:
            self.unknown += 1
        else:
            self._last = max(self._last, made)
        return self._last


class RecordTimes:
    """What stands in each record: the time that its producer gave it, or that of its append."""

    def __init__(self) -> None:
        self.unknown = 0
        self._last = 0.0

    def of(self, message: ConsumedMessage) -> float:
        """Its time; 0 before the first one that has any."""
        if message.timestamp is None:
            self.unknown += 1
        else:
            self._last = max(self._last, message.timestamp / 1000)
        return self._last


class SegmentTimes:
    """Between the times when segments were last appended to, as if bytes had come evenly.

    A broker knows no other times. Nothing tells when the oldest segment was begun; it counts as written as fast as
    the rest of the partition, on average.
    """

    def __init__(self, consumer: SimpleConsumer, topic: str, place: PartitionPlace) -> None:
        self.unknown = 0
        number = place.partition.partition
        borders = segment_borders(consumer, topic, number)
        starts = borders[:-1] if len(borders) > 1 else borders
        self._offsets = [*starts, max(borders[-1], place.end)]
        stamps: list[float] = []
        for start in starts:
            stamps.append(_stamp_ms(consumer, topic, number, start, int(stamps[-1]) if stamps else 0))
        if len(stamps) < 2 or stamps[-1] <= stamps[0]:
            raise CommandError(
                f"nobody knows when the messages of {topic}, partition {place.partition} came",
                "it has one segment, or all were written at once, and a broker keeps the times of segments only",
                "use --rate, --speed full, or --times envelope where messages have one",
                EXIT_USAGE,
            )
        rate = (stamps[-1] - stamps[0]) / (self._offsets[-1] - self._offsets[1])
        first = stamps[0] - rate * (self._offsets[1] - self._offsets[0])
        self._seconds = [moment / 1000 for moment in (first, *stamps)]

    def of(self, message: ConsumedMessage) -> float:
        """Where the offset lies between two borders whose times are known."""
        offset = message.offset
        at = min(max(0, bisect_right(self._offsets, offset) - 1), len(self._offsets) - 2)
        low, high = self._offsets[at], self._offsets[at + 1]
        begin, end = self._seconds[at], self._seconds[at + 1]
        return begin + (end - begin) * min(1.0, max(0, offset - low) / max(1, high - low))


class RateTimes:
    """``rate`` messages in a second, over all partitions."""

    def __init__(self, rate: float, clock: list[int]) -> None:
        self.unknown = 0
        self._rate = rate
        self._clock = clock

    def of(self, message: ConsumedMessage) -> float:
        """The next moment at which one is due."""
        self._clock[0] += 1
        return self._clock[0] / self._rate


def _stamp_ms(consumer: SimpleConsumer, topic: str, number: int, start: int, low: int) -> int:
    """When the segment that begins at ``start`` was last appended to: the first time at which it is named."""
    high = int(time.time() * 1000) + 1
    while low < high:
        middle = (low + high) // 2
        found = consumer.get_offsets_before(topic, number, middle, 1)
        if found and found[0] >= start:
            high = middle
        else:
            low = middle + 1
    return low
