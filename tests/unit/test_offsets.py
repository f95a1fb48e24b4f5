"""getOffsetsBefore: 0.7's vectors, and times that are append times."""

from __future__ import annotations

import pytest

from fastlog.log.offsets import EARLIEST, LATEST, offsets_before
from fastlog.log.slots import Segment

NOW = 1_000_000
THREE = [Segment(0, 0, 100, 200, 0), Segment(1, 108, 300, 400, 108), Segment(2, 216, 500, 600, 216)]


@pytest.mark.parametrize(
    ("time_ms", "count", "expected"),
    [
        (LATEST, 10, [240, 216, 108, 0]),
        (LATEST, 2, [240, 216]),
        (LATEST, 0, []),
        (EARLIEST, 10, [0]),
        (EARLIEST, 0, []),
        (NOW - 1, 10, [216, 108, 0]),  # "now", taken before the request
        (NOW, 10, [240, 216, 108, 0]),
        (NOW + 3_600_000, 10, [240, 216, 108, 0]),
        (2**62, 1, [240]),
        (7 * 10**18, 1, [240]),
        (600, 10, [216, 108, 0]),
        (599, 10, [108, 0]),
        (200, 10, [0]),
        (199, 10, []),
        (-3, 10, []),
        (-(2**63), 10, []),
    ],
)
def test_vectors(time_ms: int, count: int, expected: list[int]) -> None:
    """0.7's test: entries of 12 bytes, segments at 0, 108 and 216, the end at 240."""
    assert offsets_before(THREE, 240, time_ms, count, NOW) == expected


def test_an_empty_log_begins_and_ends_at_the_same_offset() -> None:
    made = [Segment(0, 0, 50, 0, 0)]
    assert offsets_before(made, 0, LATEST, 10, NOW) == [0]
    assert offsets_before(made, 0, EARLIEST, 10, NOW) == [0]
    assert offsets_before(made, 0, NOW, 10, NOW) == [0]
    assert offsets_before(made, 0, 49, 10, NOW) == []


def test_an_empty_last_segment_is_the_end_and_counts_from_its_making() -> None:
    """0.7: no pair for "now"; and what was asked for before it was made is not its offset."""
    rows = [*THREE, Segment(3, 240, 700, 0, 240)]
    assert offsets_before(rows, 240, LATEST, 10, NOW) == [240, 216, 108, 0]
    assert offsets_before(rows, 240, NOW, 10, NOW) == [240, 216, 108, 0]
    assert offsets_before(rows, 240, 699, 10, NOW) == [216, 108, 0]
    assert offsets_before(rows[3:], 240, 1000 * 1000 - 1, 10, NOW) == [240]
    assert offsets_before(rows[3:], 240, 1, 10, NOW) == []


def test_nothing_above_the_watermark_is_named() -> None:
    assert offsets_before(THREE, 110, LATEST, 10, NOW) == [110, 108, 0]
    assert offsets_before(THREE, 108, LATEST, 10, NOW) == [108, 0]
    assert offsets_before(THREE, 107, LATEST, 10, NOW) == [107, 0]


def test_a_log_that_begins_later() -> None:
    assert offsets_before(THREE[1:], 240, EARLIEST, 10, NOW) == [108]
    assert offsets_before(THREE[1:], 240, LATEST, 10, NOW) == [240, 216, 108]
    assert offsets_before([], 0, LATEST, 10, NOW) == []
