"""OFFSETS of a processor: what its compiled side reads from the table is what the rule says, for any table and time."""

from __future__ import annotations

import random
import time
from pathlib import Path

from fastlog.log.offsets import offsets_before
from fastlog.log.slots import SlotSpec
from tests.harness import raw_client as raw
from tests.harness.workers import PARTITIONS, Workers

FAR_MS = 2**62
"""Later than any clock, so that the end counts in whatever millisecond it is asked for."""
MOST_SEGMENTS = 60


def some_log(source: random.Random, partition: int) -> SlotSpec:
    """A log with up to sixty segments; some are empty, times may be out of order, the end may be low."""
    bases = sorted(source.sample(range(0, 10_000, 10), source.randint(1, MOST_SEGMENTS)))
    times = [source.choice([0, source.randint(1, 1000), source.randint(1, 1000)]) for _ in bases]
    segments = [(base, source.choice([0, 500]), last) for base, last in zip(bases, times, strict=True)]
    return SlotSpec(
        topic="t", partition=partition, directory=0, format=0, created_ms=1, segment_bytes=1 << 30, roll_ms=0,
        flush_messages=10**9, flush_bytes=1 << 30, flush_ns=10**15, segments=segments,
        log_end=bases[-1] + source.choice([0, 0, 14]),
    )  # fmt: skip


def test_offsets_of_any_table(tmp_path: Path) -> None:
    """The visible end may lie at a segment's beginning; times before, between and behind all."""
    source = random.Random(7)
    with Workers(tmp_path, flusher=False, partitions=PARTITIONS) as workers, workers.connect() as client:
        for partition in range(PARTITIONS - 1):
            index = workers.arena.add(some_log(source, partition))
            segments = workers.arena.segments(index)
            visible = workers.arena.view(index).visible_offset
            now_ms = time.time_ns() // 1_000_000
            for when in (
                raw.LATEST,
                raw.EARLIEST,
                -3,
                0,
                1,
                499,
                500,
                501,
                source.randint(1, 1000),
                now_ms // 2,
                FAR_MS,
            ):
                for count in (0, 1, 2, len(segments), 100, 2**31 - 1):
                    expected = offsets_before(segments, visible, when, count, now_ms)
                    assert client.offsets("t", partition, when, count) == expected, (segments, visible, when, count)


def test_offsets_after_segments_have_gone(tmp_path: Path) -> None:
    """The earliest is that of the first that is held."""
    with Workers(tmp_path, segment_bytes=30) as workers, workers.connect() as client:
        for _ in range(10):
            assert client.produce_ack("t", 0, raw.entry(b"good") * 2, raw.FLUSHED).error == 0
        held = workers.arena.segments(0)
        assert len(held) == 5
        assert client.offsets("t", 0, raw.EARLIEST) == [0]
        workers.arena.publish_retention(0, held[3].index, held[3].base)
        assert client.offsets("t", 0, raw.EARLIEST, 9) == [held[3].base]
        assert client.offsets("t", 0, raw.LATEST, 100) == [
            workers.arena.view(0).visible_offset, *(item.base for item in reversed(held[3:]))
        ]  # fmt: skip
