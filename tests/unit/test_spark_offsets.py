"""Offsets of a query as text: one form for one meaning, and nothing else is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError
from fastlog.spark.offsets import (
    EARLIEST,
    MAX_OFFSET,
    OffsetRange,
    OffsetSpec,
    decode,
    encode_initial,
    encode_ranges,
    is_of_records,
    log_number,
    on_brokers,
    parse_partition,
    parse_partitions,
)
from fastlog.zkpaths import PartitionId
from tests.harness.spark import partition_of

PARTITIONS = st.builds(
    TopicPartition,
    st.sampled_from(["a", "b-1", "é", "t 2"]),
    st.builds(PartitionId, st.integers(0, 30), st.integers(0, 30)),
)
OFFSETS = st.integers(0, 2**63 - 1)
INTERVALS = st.tuples(OFFSETS, OFFSETS).map(lambda pair: OffsetRange(*sorted(pair)))


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(PARTITIONS, INTERVALS), st.randoms())
def test_ranges_have_one_text(ranges: dict[TopicPartition, OffsetRange], random: Any) -> None:
    """Whatever order they come in; it reads back as the same ranges, and once more as the same text."""
    shuffled = list(ranges.items())
    random.shuffle(shuffled)
    text = json.dumps(encode_ranges(ranges))
    assert json.dumps(encode_ranges(dict(shuffled))) == text
    found = decode(json.loads(text))
    assert found == ranges
    assert json.dumps(encode_ranges(found)) == text


def test_partitions_are_ordered_as_numbers() -> None:
    ranges = {partition_of(name): OffsetRange(0, 1) for name in ("b/10-0", "b/2-10", "b/2-9", "a/0-0")}
    assert encode_ranges(ranges) == {
        "v": 1,
        "topics": {"a": {"0-0": [0, 1]}, "b": {"2-9": [0, 1], "2-10": [0, 1], "10-0": [0, 1]}},
    }
    assert list(encode_ranges(ranges)["topics"]["b"]) == ["2-9", "2-10", "10-0"]


@pytest.mark.parametrize(
    "place",
    [
        OffsetSpec("earliest"),
        OffsetSpec("latest"),
        OffsetSpec("time", time_ms=1_700_000_000_000),
        OffsetSpec("offsets", by_partition=((partition_of("t/0-0"), EARLIEST), (partition_of("t/0-1"), 17))),
        OffsetSpec("times", by_partition=((partition_of("t/0-0"), 5),)),
    ],
    ids=lambda place: place.kind,
)
def test_the_beginning_of_a_query_reads_back(place: OffsetSpec) -> None:
    assert decode(json.loads(json.dumps(encode_initial(place)))) == place


@pytest.mark.parametrize(
    "offset",
    [
        None,
        {},
        {"topics": {}},
        {"v": 2, "topics": {}},
        {"v": 1},
        {"v": 1, "topics": {"t": [0, 1]}},
        {"v": 1, "topics": {"t": {"0": [0, 1]}}},
        {"v": 1, "topics": {"t": {"0-0": [1, 0]}}},
        {"v": 1, "topics": {"t": {"0-0": [-1, 0]}}},
        {"v": 1, "topics": {"t": {"0-0": 5}}},
        {"v": 1, "topics": {"": {"0-0": [0, 1]}}},
        {"v": 1, "initial": "middle"},
        {"v": 1, "initial": {"offsets": {"t": {"0-0": -3}}}},
        {"t": {"0": 5}},
    ],
)
def test_what_this_source_did_not_write_is_refused(offset: Any) -> None:
    """A checkpoint of another source, or of a later version, is not read as something else."""
    with pytest.raises(ConfigError):
        decode(offset)


@pytest.mark.parametrize(("least", "allowed"), [(-2, [-2, 0, MAX_OFFSET]), (0, [0, MAX_OFFSET])])
def test_numbers_of_partitions_have_limits(least: int, allowed: list[int]) -> None:
    for value in allowed:
        assert parse_partitions({"t": {"0-0": value}}, "name", least) == ((partition_of("t/0-0"), value),)
    for wrong in (least - 1, MAX_OFFSET + 1, True, 1.0, "1", None):
        with pytest.raises(ConfigError, match=f"name: {wrong!r} for .* is not from {least} to {MAX_OFFSET}"):
            parse_partitions({"t": {"0-0": wrong}}, "name", least)


def test_a_log_of_record_batches_is_known_by_its_topic_s_id() -> None:
    """By a number that Delta's and JSON's readers take, and that no time in ms is."""
    one, other = log_number(bytes(range(16))), log_number(bytes(range(1, 17)))
    assert one != other
    assert one == log_number(bytes(range(16)))
    for topic_id in (bytes(16), b"\xff" * 16, bytes(range(16))):
        assert 2**62 <= log_number(topic_id) < 2**63
        assert is_of_records(log_number(topic_id))
    assert not is_of_records(1_700_000_000_000) and not is_of_records(0)


def test_partitions_by_their_numbers() -> None:
    there = [partition_of(name) for name in ("a/0-0", "a/0-1", "a/2-1", "b/2-1")]
    numbers = OffsetSpec("offsets", by_partition=parse_partitions({"b": {"1": 5}, "a": {"0": -2}}, "x", -2))
    assert OffsetSpec.from_json(json.loads(json.dumps(numbers.to_json()))) == numbers
    assert numbers.to_json() == {"offsets": {"a": {"0": -2}, "b": {"1": 5}}}
    found = on_brokers(numbers, "x", there)
    assert found.by_partition == ((partition_of("a/0-0"), -2), (partition_of("b/2-1"), 5))
    named = OffsetSpec("offsets", by_partition=((partition_of("a/0-1"), 7),))
    assert on_brokers(named, "x", there) is named
    with pytest.raises(ConfigError, match="x: a/1 may be a/0-1 and a/2-1: write broker-partition"):
        on_brokers(OffsetSpec("offsets", by_partition=parse_partitions({"a": {"1": 5}}, "x", 0)), "x", there)
    absent = parse_partitions({"c": {"1": 5}}, "x", 0)
    assert on_brokers(OffsetSpec("offsets", by_partition=absent), "x", there).by_partition == absent
    twice = OffsetSpec("offsets", by_partition=parse_partitions({"b": {"1": 5, "2-1": 6}}, "x", 0))
    with pytest.raises(ConfigError, match="x: a partition is named twice"):
        on_brokers(twice, "x", there)
    for text in ("2147483648", "-1", "", True):
        with pytest.raises(ConfigError, match="neither broker-partition"):
            parse_partition("t", text, "x")
    assert parse_partition("t", 2147483647, "x").partition.partition == 2147483647
