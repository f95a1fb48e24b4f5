"""From a time to a record: every time there is, against a look at all records, in logs whose times go up and down."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastlog.log.times import TimedOffset, TimeLookup
from fastlog.record_batches import records
from tests.harness.stored_batches import batch
from tests.unit.test_record_batch_log import BatchLog, some_batches

FIRST_MS = 1_700_000_000_000


def look_up(log: BatchLog, time_ms: int | None) -> TimedOffset | None:
    view = log.view
    segments = log.arena.segments(view.index)
    lookup = TimeLookup(log.folder, segments, (view.visible_offset, view.visible_end), time_ms)
    for _ in range(10_000):
        if lookup.step():
            return lookup.found
    raise AssertionError("it does not end")


def filled(directory: Path, batches: list[bytes], *, flushed: int) -> tuple[BatchLog, list[tuple[int, int]]]:
    """A log of several segments of which the first batches are flushed; time and offset of each record in these."""
    log = BatchLog(directory, **{"log.file.size": "30000"})
    visible: list[tuple[int, int]] = []
    for number, data in enumerate(batches):
        _, (offset,), _ = log.append(data)
        base = int.from_bytes(data[27:35], "big")
        count = int.from_bytes(data[57:61], "big")
        if number < flushed:
            visible += [(base + i, offset + i) for i in range(count)]
        if number == flushed - 1:
            log.log.flush()
    return log, visible


def expected(visible: list[tuple[int, int]], time_ms: int) -> tuple[int, int] | None:
    return next(((time, offset) for time, offset in visible if time >= time_ms), None)


@pytest.mark.parametrize("state", ["as it was", "restarted", "without indexes"])
def test_every_time_is_found(tmp_path: Path, state: str) -> None:
    log, visible = filled(tmp_path, some_batches(150, seed=11), flushed=130)
    if state == "restarted":
        log.folder.joinpath("fastlog.json").unlink()
        log.restart()
        log.log.flush()
        visible = [(one.timestamp, one.offset) for one in all_records(log)]
    if state == "without indexes":
        for path in [*log.folder.glob("*.index"), *log.folder.glob("*.timeindex")]:
            path.unlink()
    assert len(log.segments()) > 3
    times = sorted({time + by for time, _ in visible for by in (-1, 0, 1)})
    for time_ms in [*random.Random(3).sample(times, 300), 0, times[0], times[-1]]:
        found = look_up(log, time_ms)
        assert (found and found[:2]) == expected(visible, time_ms), time_ms
    largest = max(visible, key=lambda one: (one[0], -one[1]))
    found = look_up(log, None)
    assert found is not None
    assert found[:2] == largest


def all_records(log: BatchLog) -> list[TimedOffset]:
    return [
        TimedOffset(record.timestamp, record.offset, one.epoch) for one in log.batches() for record in records(one.data)
    ]


def test_nothing_is_found_in_an_empty_log_or_behind_the_visible_end(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    assert look_up(log, 0) is None
    assert look_up(log, None) is None
    log.append(batch(b"old", time_ms=5))
    assert look_up(log, 0) is None
    log.log.flush()
    log.append(batch(b"new", time_ms=50))
    assert look_up(log, 6) is None
    assert look_up(log, 5) == (5, 0, 0)
    assert look_up(log, None) == (5, 0, 0)


def test_records_without_a_time_are_passed_over(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    log.append(batch(b"none", time_ms=-1))
    log.append(batch(b"some", time_ms=7))
    log.log.flush()
    assert look_up(log, 0) == (7, 1, 0)
    assert look_up(log, None) == (7, 1, 0)


def test_a_segment_whose_records_are_all_older_is_not_opened(tmp_path: Path) -> None:
    """Retention may be dropping it, or its disk may not give it back: nobody needs it."""
    log = BatchLog(tmp_path, **{"log.file.size": "30000"})
    for time_ms in (5, 6, 50, 60):
        log.append(batch(bytes(20_000), time_ms=time_ms))
    log.log.flush()
    first, second, *_ = (segment.base for segment in log.segments())
    log.folder.joinpath(f"{first:020}.log").unlink()
    found = [look_up(log, time_ms) for time_ms in (50, 60, 61)]
    assert found == [(50, 2, 0), (60, 3, 0), None]
    with pytest.raises(FileNotFoundError):
        look_up(log, 5)
    assert second > first
