"""Cutting batches and tasks: everything once, between messages only, within the limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog.consumer.partitions import TopicPartition
from fastlog.spark.offsets import OffsetRange
from fastlog.spark.planner import limit_batch, split
from tests.harness.spark import MadeUpCluster, partition_of

LOGS = st.lists(st.lists(st.integers(10, 300), max_size=40), min_size=1, max_size=4)


def made_up(logs: Sequence[Sequence[int]]) -> tuple[MadeUpCluster, dict[TopicPartition, OffsetRange]]:
    cluster = MadeUpCluster(**{f"t_0_{number}": sizes for number, sizes in enumerate(logs)})
    return cluster, {item: OffsetRange(0, borders[-1]) for item, borders in cluster.borders.items()}


@pytest.mark.slow
@settings(deadline=None)
@given(LOGS, st.integers(1, 5000))
def test_a_limited_batch(logs: list[list[int]], max_bytes: int) -> None:
    """Whole messages, at most the limit but for a first message that is longer than its share, and always some."""
    cluster, ranges = made_up(logs)
    found = limit_batch(ranges, max_bytes, cluster)
    assert found.keys() == ranges.keys()
    total = sum(interval.size_bytes for interval in ranges.values())
    excess = 0
    for partition, interval in found.items():
        assert interval.start == ranges[partition].start
        assert interval.end in cluster.borders[partition]
        assert interval.size_bytes or not ranges[partition].size_bytes
        share = max_bytes * ranges[partition].size_bytes // total if total else 0
        if interval.size_bytes > share and total > max_bytes:
            assert len(cluster.messages(partition, interval)) == 1
            excess += interval.size_bytes - share
    assert sum(interval.size_bytes for interval in found.values()) <= max_bytes + excess


@pytest.mark.slow
@settings(deadline=None)
@given(LOGS, st.integers(1, 5000))
def test_batches_reach_the_end(logs: list[list[int]], max_bytes: int) -> None:
    cluster, left = made_up(logs)
    for _ in range(200):
        left = {
            item: OffsetRange(interval.end, left[item].end)
            for item, interval in limit_batch(left, max_bytes, cluster).items()
        }
        if not any(interval.size_bytes for interval in left.values()):
            return
    raise AssertionError(left)


def test_a_limit_comes_close() -> None:
    """A large batch of small messages is hardly smaller than it may be."""
    cluster, ranges = made_up([[20] * 100_000])
    (interval,) = limit_batch(ranges, 1_000_000, cluster).values()
    assert 960_000 <= interval.size_bytes <= 1_000_000


def test_shares_follow_what_is_there() -> None:
    cluster, ranges = made_up([[10] * 900, [10] * 100])
    found = [interval.size_bytes for interval in limit_batch(ranges, 1000, cluster).values()]
    assert found == pytest.approx([900, 100], abs=40)


@pytest.mark.slow
@settings(deadline=None)
@given(LOGS, st.integers(1, 5000), st.integers(1, 20))
def test_pieces_are_the_ranges(logs: list[list[int]], max_bytes: int, min_pieces: int) -> None:
    """Put together they are what was cut; each ends between messages and, but for one message, within the limit."""
    cluster, ranges = made_up(logs)
    pieces = split(ranges, max_bytes, min_pieces, cluster)
    joined: dict[TopicPartition, int] = {}
    for partition, interval in pieces:
        assert interval.start == joined.get(partition, 0)
        assert interval.size_bytes > 0
        messages = cluster.messages(partition, interval)
        assert messages[-1] - interval.start < max_bytes
        joined[partition] = interval.end
    assert joined == {item: interval.end for item, interval in ranges.items() if interval.size_bytes}


def test_pieces_are_many_enough() -> None:
    cluster, ranges = made_up([[10] * 1000, [10] * 500])
    assert len(split(ranges, 2**26, 1, cluster)) == 2
    pieces = split(ranges, 2**26, 6, cluster)
    assert [str(piece.partition) for piece in pieces] == ["t/0-0"] * 4 + ["t/0-1"] * 2
    assert {piece.interval.size_bytes for piece in pieces} == {2500}
    assert len(split(ranges, 1000, 1, cluster)) == 15
    assert len(split(ranges, 2**26, 100_000, cluster)) == 1500  # one for each message, no more


def test_nothing_makes_no_pieces() -> None:
    assert split({}, 1, 1, MadeUpCluster()) == []
    assert split({partition_of("t/0-0"): OffsetRange(5, 5)}, 1, 10, MadeUpCluster()) == []


# -- partitions of record batches --------------------------------------------------------------------------------------


def with_records() -> tuple[MadeUpCluster, dict[TopicPartition, OffsetRange]]:
    """100 records of 10 bytes and 50 of 40, and 1000 bytes of messages of 10."""
    cluster = MadeUpCluster(m_0_0=[10] * 100)
    cluster.make_records("r/0-0", b"a" * 16, 100, 10.0)
    cluster.make_records("r/0-1", b"a" * 16, 50, 40.0)
    return cluster, {item: OffsetRange(0, borders[-1]) for item, borders in cluster.borders.items()}


def test_bytes_are_shared_by_what_records_take() -> None:
    cluster, ranges = with_records()
    each = cluster.record_bytes(ranges)
    found = limit_batch(ranges, 2000, cluster, each)
    assert {str(item): interval for item, interval in found.items()} == {
        "m/0-0": OffsetRange(0, 500),
        "r/0-0": OffsetRange(0, 50),
        "r/0-1": OffsetRange(0, 25),
    }
    assert limit_batch(ranges, 4000, cluster, each) == ranges
    small = limit_batch(ranges, 1, cluster, each)
    assert [interval.end for _, interval in sorted(small.items())] == [10, 1, 1], "each moves on"
    done = {item: OffsetRange(interval.end, interval.end) for item, interval in ranges.items()}
    assert limit_batch({**ranges, **dict(list(done.items())[1:])}, 100, cluster, each)[partition_of("r/0-0")] == (
        100,
        100,
    )


def test_a_number_of_records() -> None:
    cluster, ranges = with_records()
    of_records = {item: interval for item, interval in ranges.items() if item.topic == "r"}
    found = limit_batch(of_records, 30, cluster, dict.fromkeys(of_records, 1.0))
    assert [interval for _, interval in sorted(found.items())] == [OffsetRange(0, 20), OffsetRange(0, 10)]


def test_pieces_of_records() -> None:
    """By their bytes, by their number, or as many as there are records; all of them once."""
    cluster, ranges = with_records()
    each = cluster.record_bytes(ranges)

    def cuts(size: int, pieces: int, most: int | None = None) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for partition, interval in split(ranges, size, pieces, cluster, each, most):
            before = found.setdefault(str(partition), [])
            assert interval.start == (before[-1] if before else 0)
            before.append(interval.end)
        return found

    assert cuts(500, 1) == {"m/0-0": [500, 1000], "r/0-0": [50, 100], "r/0-1": [13, 26, 39, 50]}
    assert cuts(10**6, 1, most=40) == {"m/0-0": [1000], "r/0-0": [34, 68, 100], "r/0-1": [25, 50]}
    assert cuts(500, 1, most=40) == {"m/0-0": [500, 1000], "r/0-0": [34, 68, 100], "r/0-1": [13, 26, 39, 50]}
    assert cuts(1, 1)["r/0-1"] == list(range(1, 51)), "no piece without a record"
    assert sum(map(len, cuts(10**6, 8).values())) == 8
