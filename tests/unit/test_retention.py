"""Which segments go: 0.7's rules and vector, a policy of the user's, and a clock that jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.errors import ConfigError
from fastlog.log.retention import BelievedTimes, Held, HeldSegment, SteadyClock, by_age_and_size, load_policy

HOUR = 3_600_000


def held(
    sizes: list[int], *, ages: list[int] | None = None, limit_ms: int = 168 * HOUR, limit_bytes: int | None = None
) -> Held:
    now = 10**12
    rows, base = [], 0
    for number, size in enumerate(sizes):
        last = now - ages[number] if ages else now
        rows.append(HeldSegment(base, size, last - 1, last if size else 0))
        base += size
    return Held("t", 0, rows, now, limit_ms, limit_bytes)


def test_at_least_the_limit_stays() -> None:
    """0.7's vector: 1000 messages of 14 bytes in segments of 140, limit 710: six segments stay."""
    assert 100 - by_age_and_size(held([140] * 100, limit_bytes=710)) == 6


@pytest.mark.parametrize(
    ("sizes", "limit", "dropped"),
    [
        ([100, 100, 50], None, 0),
        ([100, 100, 50], 1000, 0),
        ([100, 100, 50], 250, 0),
        ([100, 100, 50], 150, 1),
        ([100, 100, 50], 151, 0),
        ([100, 100, 50], 50, 2),
        ([100, 100, 50], 0, 3),
        ([100, 100, 0], 0, 2),
        ([0], 0, 0),
        ([], 0, 0),
    ],
)
def test_by_size(sizes: list[int], limit: int | None, dropped: int) -> None:
    assert by_age_and_size(held(sizes, limit_bytes=limit)) == dropped


@pytest.mark.parametrize(
    ("ages", "dropped"),
    [
        ([3 * HOUR, 2 * HOUR, 0], 2),
        ([HOUR, HOUR, 0], 0),  # exactly as old as allowed
        ([HOUR + 1, HOUR, 0], 1),
        ([0, 5 * HOUR, 0], 0),  # from the oldest on, and no further than the first that stays
        ([5 * HOUR, 5 * HOUR, 5 * HOUR], 3),
        ([-HOUR, 5 * HOUR, 0], 0),  # a time in the future
    ],
)
def test_by_age_of_the_last_append(ages: list[int], dropped: int) -> None:
    assert by_age_and_size(held([10, 10, 10], ages=ages, limit_ms=HOUR)) == dropped


def test_an_empty_segment_has_no_age() -> None:
    assert by_age_and_size(held([10, 0], ages=[5 * HOUR, 5 * HOUR], limit_ms=HOUR)) == 1


def test_age_first_then_size_of_what_is_left() -> None:
    assert by_age_and_size(held([100, 100, 100], ages=[5 * HOUR, 0, 0], limit_ms=HOUR, limit_bytes=100)) == 2


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(0, 500))
def test_size_keeps_the_limit_and_no_whole_segment_more(sizes: list[int], limit: int) -> None:
    dropped = by_age_and_size(held(sizes, limit_bytes=limit))
    left = sum(sizes[dropped:])
    assert left >= min(limit, sum(sizes))
    if dropped < len(sizes):
        assert left - sizes[dropped] < limit


def keep_two(held: Held) -> int:
    """A policy of a user: two segments, whatever their age."""
    return max(0, len(held.segments) - 2)


class Policies:
    drop_all = staticmethod(lambda held: len(held.segments))


def test_a_policy_by_dotted_name() -> None:
    assert load_policy(f"{__name__}:keep_two")(held([1, 1, 1, 1, 1])) == 3
    assert load_policy(f"{__name__}:Policies.drop_all")(held([1, 1])) == 2
    assert load_policy("") is by_age_and_size


@pytest.mark.parametrize("name", ["no.such.module:f", f"{__name__}:nothing", f"{__name__}:HOUR"])
def test_a_policy_that_cannot_be_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.policy.*" + name.rpartition(":")[0].replace(".", r"\.")):
        load_policy(name)


class ManualTime:
    def __init__(self) -> None:
        self.wall = 10**15
        self.passed = 5

    def pass_ms(self, ms: int) -> None:
        self.wall += ms * 10**6
        self.passed += ms * 10**6

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall, lambda: self.passed)


def test_the_clock_of_retention_goes_with_the_wall() -> None:
    time = ManualTime()
    clock = time.clock()
    time.pass_ms(12345)
    assert (clock.now_ms(), clock.jump_ms()) == (10**9 + 12345, 0)


def test_a_jump_forward_ages_nothing() -> None:
    """Z-9: a clock set a year ahead must not delete a year of data."""
    time = ManualTime()
    clock = time.clock()
    time.wall += 365 * 24 * HOUR * 10**6
    time.pass_ms(1000)
    assert clock.now_ms() == 10**9 + 1000
    assert clock.jump_ms() == 365 * 24 * HOUR


def test_a_jump_back_ages_nothing_either() -> None:
    time = ManualTime()
    clock = time.clock()
    time.wall -= HOUR * 10**6
    assert clock.now_ms() == 10**9 - HOUR
    time.wall += HOUR * 10**6
    assert clock.now_ms() == 10**9


def test_the_real_clock() -> None:
    clock = SteadyClock()
    assert abs(clock.jump_ms()) < 1000
    assert clock.now_ms() > 1_600_000_000_000


def test_a_clock_that_was_not_set_yet_is_followed_once() -> None:
    """A machine without a battery stands at 1970 until it has asked for the time: then retention goes by that."""
    time = ManualTime()
    time.wall = 7 * 10**9
    clock = time.clock()
    time.pass_ms(1000)
    assert clock.now_ms() == 8000
    time.wall = 1_800_000_000 * 10**9
    assert (clock.now_ms(), clock.jump_ms()) == (1_800_000_000_000, 0)
    time.pass_ms(1000)
    time.wall += 365 * 24 * HOUR * 10**6
    assert (clock.now_ms(), clock.jump_ms()) == (1_800_000_001_000, 365 * 24 * HOUR)


NOW = 1_800_000_000_000


def test_a_time_that_can_be_one_is_believed() -> None:
    times = BelievedTimes()
    for last_ms in (NOW, NOW - 1, NOW + 60_000, 1_577_836_800_000):
        assert times.last_ms((0, 0), last_ms, NOW) == last_ms


@pytest.mark.parametrize("wrong", [NOW + 365 * 24 * HOUR, NOW + 30 * HOUR, 1, 7_000])
def test_what_a_wrong_clock_wrote_is_as_old_as_it_is_known(wrong: int) -> None:
    """Neither held for the year that the clock was ahead, nor dropped at once because it stood at 1970."""
    times = BelievedTimes()
    assert times.last_ms((0, 3), wrong, NOW) == NOW
    assert times.last_ms((0, 3), wrong, NOW + HOUR) == NOW
    assert times.last_ms((0, 4), wrong, NOW + HOUR) == NOW + HOUR
    times.forget(0, 4)
    assert times.last_ms((0, 3), wrong, NOW + 2 * HOUR) == NOW + 2 * HOUR
    assert times.last_ms((0, 4), wrong, NOW + 2 * HOUR) == NOW + HOUR


def test_a_clock_that_is_not_set_judges_nothing() -> None:
    """Every time is ahead of it: none of them becomes as old as 1970."""
    times = BelievedTimes()
    assert times.last_ms((0, 0), NOW, 7_000) == NOW
    assert times.last_ms((0, 0), NOW, NOW + 1) == NOW
