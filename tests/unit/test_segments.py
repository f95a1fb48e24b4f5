"""From an offset to a place in a file, while segments come and go; and the open descriptors of one process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastlog.errors import OffsetOutOfRangeError
from fastlog.log._append import roll_now
from fastlog.log._segments import locate_offset
from tests.harness.descriptors import open_descriptors
from tests.harness.shared_log import DONE, SharedLog, message, start, stop
from tests.harness.timing import PATIENCE

ENTRY = message(12)


def open_files(folder: Path) -> set[Path]:
    """The files below a folder that this process has open."""
    paths = {Path(name) for name in open_descriptors().values()}
    return {path for path in paths if path.is_relative_to(folder)}


def test_reading_at_the_end_is_empty_and_past_it_out_of_range(tmp_path: Path) -> None:
    """0.7: one byte past the end is an error, the end itself is empty."""
    log = SharedLog(tmp_path)
    assert locate_offset(log.arena, 0, 0) is None
    log.append(ENTRY)
    log.flush()
    assert locate_offset(log.arena, 0, 0) == (0, 0, 0, 12)
    assert locate_offset(log.arena, 0, 12) is None
    with pytest.raises(OffsetOutOfRangeError):
        locate_offset(log.arena, 0, 13)


def test_unflushed_bytes_are_not_there(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    log.flush()
    log.append(ENTRY)
    assert locate_offset(log.arena, 0, 0) == (0, 0, 0, 12)
    assert locate_offset(log.arena, 0, 12) is None
    with pytest.raises(OffsetOutOfRangeError):
        locate_offset(log.arena, 0, 24)


def test_reading_before_the_first_segment_is_out_of_range(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, segment_bytes=5)
    for _ in range(3):
        log.append(ENTRY)
    log.flush()
    log.arena.publish_retention(0, 1, 12)
    assert log.bases() == [12, 24]
    assert locate_offset(log.arena, 0, 12) == (1, 12, 0, 24)
    for offset in (0, 11):
        with pytest.raises(OffsetOutOfRangeError):
            locate_offset(log.arena, 0, offset)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(9, 60), min_size=1, max_size=40), dropped=st.integers(0, 10), data=st.data())
def test_every_offset_is_found_where_its_file_says(
    sizes: list[int], dropped: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against the file names and lengths on disk; a place ends with its segment or with what is flushed."""
    log = SharedLog(tmp_path_factory.mktemp("log"), segment_bytes=60)
    flushed = data.draw(st.integers(0, len(sizes)))
    for size in sizes[:flushed]:
        assert log.append(message(size)) == DONE
    log.flush()
    for size in sizes[flushed:]:
        assert log.append(message(size)) == DONE
    high = sum(sizes[:flushed])
    files = sorted((int(path.stem), path.stat().st_size) for path in log.folder().glob("*.kafka"))
    start_row = min(dropped, sum(base <= high for base, _ in files) - 1)
    log.arena.publish_retention(0, start_row, files[start_row][0])
    for offset in range(sum(sizes) + 2):
        if not files[start_row][0] <= offset <= high:
            with pytest.raises(OffsetOutOfRangeError):
                locate_offset(log.arena, 0, offset)
            continue
        index, (base, size) = next((i, f) for i, f in reversed(list(enumerate(files))) if f[0] <= offset)
        wanted = (index, base, offset - base, min(base + size, high)) if offset < high else None
        assert locate_offset(log.arena, 0, offset) == wanted


def test_a_table_is_used_round_and_round(tmp_path: Path) -> None:
    """Entries are never reused by number, only by place: 200 segments pass through a table of 16."""
    log = SharedLog(tmp_path, segment_bytes=5, table_entries=16)
    for number in range(200):
        assert log.append(ENTRY) == DONE
        assert log.flush() == 0
        if number >= 8:
            log.arena.publish_retention(0, number - 7, (number - 7) * 12)
        for back in range(min(number, 7) + 1):
            offset = (number - back) * 12
            assert locate_offset(log.arena, 0, offset) == (number - back, offset, 0, offset + 12)
    assert log.bases() == list(range(192 * 12, 200 * 12, 12))


@pytest.mark.slow
def test_a_look_up_beside_retention_finds_what_is_held(tmp_path: Path) -> None:
    """A search that meets entries which retention drops and a roll uses again says nothing wrong about newer ones."""
    log = SharedLog(tmp_path, segment_bytes=5, table_entries=16)

    def churn() -> None:
        number = 0
        while True:
            log.append(ENTRY)
            roll_now(log.appender, 0)
            log.flush()
            number += 1
            if number > 2:
                log.arena.publish_retention(0, number - 2, (number - 2) * 12)
                log.path((number - 3) * 12).unlink()

    pid = start(churn, "")
    looked = 0
    try:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.7 or looked <= 1000 or log.view().table_head <= 100:
            assert time.monotonic() < begun + PATIENCE
            for _ in range(100):
                view = log.view()
                offset = view.flushed_end - 12 if looked % 2 and view.flushed_end >= 12 else view.flushed_end
                try:
                    place = locate_offset(log.arena, 0, offset)
                    assert place is None or place[1] + place[2] == offset
                except OffsetOutOfRangeError:
                    assert offset < log.view().log_start
                assert log.segments()
                looked += 1
    finally:
        stop(pid)


def test_no_more_descriptors_are_open_than_agreed(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=20, capacity=6)
    for _ in range(3):
        for slot in range(20):
            assert log.append(ENTRY, slot=slot) == DONE
            assert log.files.open_count <= 6
    assert all(log.stored(slot) == ENTRY * 3 for slot in range(20))
    assert len(open_files(tmp_path)) == log.files.open_count


def test_what_is_not_flushed_stays_open_the_longest(tmp_path: Path) -> None:
    """The kernel tells a failed write-back to those who have the file open; with the last of them it may forget it."""
    log = SharedLog(tmp_path, partitions=8, capacity=4)
    for slot in range(4):
        log.append(ENTRY, slot=slot)
    log.flush(2)
    log.append(ENTRY, slot=4)
    mine = {path for path in open_files(tmp_path) if path.parent.name != "t-2"}
    assert mine >= {log.path(0, slot) for slot in (0, 1, 3, 4)}
    assert log.append(ENTRY, slot=5) == DONE  # with all of them unflushed, the oldest goes


def test_unused_descriptors_can_be_closed(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=3)
    for slot in range(3):
        log.append(ENTRY, slot=slot)
    assert log.files.open_count == 3
    log.files.close_unused()
    log.files.close_unused()
    assert log.files.open_count == 0
    assert not open_files(tmp_path)
    assert log.append(ENTRY) == DONE


def test_a_log_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    """An append to a file without write permission fails as a write and cuts nothing (unless root may do all)."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    log.flush()
    log.files.close_unused()
    log.path(0).chmod(0o444)
    status = log.append(ENTRY)
    assert (status == DONE) == (os.geteuid() == 0)
    assert log.stored().startswith(ENTRY)
