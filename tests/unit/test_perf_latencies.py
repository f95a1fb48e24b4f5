"""Percentiles within their precision, and latencies that count from the intended send time."""

from __future__ import annotations

import math
import random
import threading

import pytest

from fastlog.errors import TransportError
from fastlog.perf.latencies import LatencyHistogram, Pacer, Timed
from fastlog.perf.timeline import Timeline
from fastlog.producer.hooks import Delivery

MS = 1_000_000


def delivery(messages: int, error: TransportError | None = None, first: int = 0) -> Delivery:
    return Delivery("t", 0, 0, -1, -1, messages, error, first)


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_sorted_values(seed: int) -> None:
    """Nearest rank, at most a microsecond or half a percent off, over eight orders of magnitude."""
    source = random.Random(seed)
    values = [int(10 ** source.uniform(3, 11)) for _ in range(5000)]
    found = LatencyHistogram()
    for value in values:
        found.add(value)
    values.sort()
    for percent in (0.1, 50, 95, 99, 99.9, 100):
        exact = values[max(0, math.ceil(len(values) * percent / 100) - 1)]
        assert abs(found.percentile_ms(percent) * MS - exact) <= max(1000, exact / 200)
    assert found.count == 5000 and found.max_ns == values[-1]
    assert found.mean_ms == pytest.approx(sum(values) / 5000 / MS)


def test_no_percentile_is_above_the_maximum() -> None:
    found = LatencyHistogram()
    found.add(1_000_001)
    assert found.percentile_ms(50) == found.percentile_ms(99.9) == pytest.approx(1.0, rel=0.01)
    assert found.percentile_ms(100) <= found.max_ns / MS


def test_nothing_measured_is_all_zeros() -> None:
    assert set(LatencyHistogram().as_dict().values()) == {0}


def test_the_object_has_count_and_the_promised_percentiles() -> None:
    found = LatencyHistogram()
    found.add(2 * MS, 3)
    assert list(found.as_dict()) == ["count", "mean", "p50", "p95", "p99", "p99.9", "max"]
    assert found.as_dict()["count"] == 3


def test_merged_is_as_counted_together() -> None:
    one, two, both = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    for number in range(1000):
        (one if number % 3 else two).add(number * 10_000)
        both.add(number * 10_000)
    one.merge(two)
    assert one.as_dict() == both.as_dict()


def test_threads_lose_no_count() -> None:
    found = LatencyHistogram()

    def count() -> None:
        for _ in range(2000):
            found.add(5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count == 8000


def test_messages_are_due_at_their_rate() -> None:
    pacer = Pacer(1000, 5 * MS)
    assert [pacer.due(now) for now in (0, 5 * MS - 1, 5 * MS, 6 * MS - 1, 6 * MS, 105 * MS)] == [0, 0, 1, 1, 2, 101]
    assert [pacer.intended_ns(number) for number in (0, 1, 100)] == [5 * MS, 6 * MS, 105 * MS]


def test_a_stall_does_not_move_what_comes_after_it() -> None:
    """After a second of standing still a thousand messages are late, each by its own amount."""
    pacer = Pacer(1000, 0)
    now = 1000 * MS
    assert pacer.due(now) == 1001
    late = [now - pacer.intended_ns(number) for number in range(1001)]
    assert late[0] == 1000 * MS and late[500] == 500 * MS and late[1000] == 0


def test_a_fractional_rate_keeps_its_pace() -> None:
    pacer = Pacer(0.3, 0)
    assert pacer.due(10**9) == 1 and pacer.due(int(3.4e9)) == 2
    pacer = Pacer(3_000_000, 0)
    assert pacer.intended_ns(3_000_000) == pytest.approx(10**9, abs=2)


def test_each_message_of_a_send_has_its_own_intended_time() -> None:
    """Whatever part of a call a delivery is of."""
    found = LatencyHistogram()
    now = [10 * MS]
    timed = Timed(found, 0, MS, clock=lambda: now[0])
    timed(delivery(1, first=2))  # intended at 2 ms
    assert (found.count, found.total_ns) == (1, 8 * MS)
    now[0] = 20 * MS
    timed(delivery(2))  # at 0 and 1 ms
    assert (found.count, found.max_ns, found.total_ns) == (3, 20 * MS, 47 * MS)


def test_what_failed_has_no_latency() -> None:
    found = LatencyHistogram()
    timed = Timed(found, 0, MS, clock=lambda: 10 * MS)
    timed(delivery(3, TransportError("gone")))
    assert found.count == 0
    timed(delivery(1, first=3))
    assert found.total_ns == 7 * MS
    Timed(found, 0, clock=lambda: MS)(delivery(5, TransportError("gone")))
    assert found.count == 1


def test_a_timeline_has_a_point_for_each_period_and_one_for_the_rest() -> None:
    line = Timeline(100.0, 0.25)
    for now, count in ((100.1, 10), (100.25, 100), (100.3, 110), (100.75, 200)):
        line.look(now, count)
    line.look(100.85, 300, last=True)
    line.look(101.85, 300, last=True)
    assert line.points == [(0.25, 400.0), (0.75, 200.0), (0.85, 1000.0)]
