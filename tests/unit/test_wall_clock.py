"""The time that records get: the system's to the millisecond, though the clock is not asked for each of them."""

from __future__ import annotations

import time

import pytest

from fastlog.producer import _parts
from fastlog.producer._parts import WallClock
from tests.harness.timing import PATIENCE

MS = 1_000_000
START = 1_700_000_000_000
COUNTS = 3
"""In a nanosecond."""


def looked(*moments: int, look: int = 30) -> WallClock:
    """A clock that was looked at so many ns after the start, with a counter that runs evenly."""
    clock = WallClock()
    for at in moments:
        assert clock.note(COUNTS * at, COUNTS * (at + look), START * MS + at, 7 + at) == START + at // MS
    return clock


def test_it_is_the_systems_time() -> None:
    """Never before the moment at which it was asked, nor behind it, over thousands of milliseconds' ends."""
    seen = set()
    deadline = time.monotonic() + PATIENCE
    while len(seen) < 100:
        before = time.time_ns() // MS
        found = _parts.now()
        assert before <= found <= time.time_ns() // MS
        seen.add(found)
        assert time.monotonic() < deadline


def test_a_millisecond_holds_until_it_is_over() -> None:
    clock = looked(1, 20 * MS + 400_000)
    assert clock.per_ns == pytest.approx(COUNTS)
    counts = COUNTS * (20 * MS + 400_000)
    assert clock.at(counts) == clock.at(counts + COUNTS * 590_000) == START + 20
    assert clock.at(counts + COUNTS * 600_001) is None
    assert clock.at(counts - 1) is None, "a counter that goes back says nothing"


@pytest.mark.parametrize(
    ("moments", "why"),
    [
        ((1,), "it was never measured"),
        ((1, 10 * MS), "the gap is too short"),
        ((1, 10_000 * MS + 2), "the machine may have slept"),
        ((20 * MS, 1), "time went back"),
    ],
)
def test_an_unknown_counter_is_not_trusted(moments: tuple[int, ...], why: str) -> None:
    clock = looked(*moments)
    assert clock.per_ns == 0 and clock.at(COUNTS * moments[-1]) is None, why


def test_looks_that_took_long_measure_nothing() -> None:
    """One of both: the thread was interrupted between the counter and the clock. The next two do."""
    for first, second in ((MS, 30), (30, MS)):
        clock = WallClock()
        clock.note(0, COUNTS * first, START * MS, 7)
        clock.note(COUNTS * 20 * MS, COUNTS * (20 * MS + second), START * MS + 20 * MS, 7 + 20 * MS)
        assert clock.per_ns == 0
        for at in (40 * MS, 60 * MS):
            clock.note(COUNTS * at, COUNTS * (at + 30), START * MS + at, 7 + at)
        assert clock.per_ns == pytest.approx(COUNTS)


def test_a_millisecond_does_not_hold_too_long_where_the_counter_seemed_too_quick() -> None:
    """The clock was read at the end of the first look, as late as that may be, and at the beginning of the second."""
    clock, late = WallClock(), 20 * MS // 64 - 100
    clock.note(0, COUNTS * late, START * MS, 7 + late)
    clock.note(COUNTS * 20 * MS, COUNTS * 20 * MS + 30, START * MS + 20 * MS, 7 + 20 * MS)
    assert clock.per_ns > COUNTS * 1.015
    assert clock.at(COUNTS * (20 * MS + 980_000)) == START + 20
    assert clock.at(COUNTS * 21 * MS) is None


def test_what_was_measured_goes_on_counting_over_short_gaps() -> None:
    clock = looked(1, 20 * MS, 20 * MS + 1_100_000)
    assert clock.per_ns == pytest.approx(COUNTS)
    assert clock.at(COUNTS * (21 * MS + 900_000)) == START + 21
    clock = looked(1, 20 * MS, 20 * MS + 1_100_000, 45 * MS)
    assert clock.at(COUNTS * (45 * MS + 980_000)) == START + 45


def test_a_counter_that_begins_anew_is_measured_anew() -> None:
    clock = looked(1, 20 * MS)
    assert clock.note(5, 35, START * MS + 40 * MS, 7 + 40 * MS) == START + 40
    assert clock.per_ns == 0
    clock.note(5 + 40 * MS, 35 + 40 * MS, START * MS + 60 * MS, 7 + 60 * MS)
    assert clock.per_ns == pytest.approx(2), "it may count at another rate now"


def test_a_step_of_the_clock_shows_with_the_next_millisecond() -> None:
    clock = looked(1, 20 * MS)
    at = COUNTS * (21 * MS)
    assert clock.at(at) is None
    assert clock.note(at, at + 30, (START - 5000) * MS, 7 + 21 * MS) == START - 5000
    assert clock.at(at + COUNTS * 900_000) == START - 5000
