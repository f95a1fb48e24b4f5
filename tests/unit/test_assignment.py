"""Every member computes the same owners as Kafka 0.7 would (T-33)."""

from __future__ import annotations

import itertools
import math

import pytest

from fastlog.consumer.assignment import TopicFilter, assign_group, assign_range, streams_by_topic
from fastlog.errors import ConfigError
from fastlog.zkpaths import PartitionId, Subscription


def by_thread(owners: dict[PartitionId, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for partition, name in owners.items():
        found.setdefault(name, []).append(str(partition))
    return found


def reference(partitions: list[str], threads: list[str]) -> dict[str, list[str]]:
    """The formula of 0.7.2, written from its words: i·⌊P/C⌋ + min(i, P mod C), strings sorted as strings."""
    partitions, threads = sorted(partitions), sorted(threads)
    found = {}
    for i, name in enumerate(threads):
        start = i * math.floor(len(partitions) / len(threads)) + min(i, len(partitions) % len(threads))
        count = math.floor(len(partitions) / len(threads)) + (1 if i < len(partitions) % len(threads) else 0)
        if count:
            found[name] = partitions[start : start + count]
    return found


@pytest.mark.parametrize("threads", range(1, 21))
def test_every_case_equals_the_formula(threads: int) -> None:
    """P ≤ 40 over several brokers, C ≤ 20 over several consumers; complete and disjoint."""
    names = [f"group_host{number % 3}-15-{number % 3:08x}-{number // 3}" for number in range(threads)]
    for count in range(41):
        partitions = [PartitionId(number % 4 * 9, number // 4) for number in range(count)]
        found = assign_range(partitions, sorted(names))
        assert sorted(found) == sorted(partitions)
        assert by_thread(found) == reference([str(partition) for partition in partitions], names)


def test_the_examples_of_the_walkthrough() -> None:
    """Five partitions; two connectors with one stream each, then with four streams each."""
    partitions = {"t": [PartitionId(0, number) for number in range(5)]}
    two = {f"g_c{number}": Subscription({"t": 1}) for number in range(2)}
    assert by_thread(assign_group(two, partitions)["t"]) == {
        "g_c0-0": ["0-0", "0-1", "0-2"],
        "g_c1-0": ["0-3", "0-4"],
    }
    eight = {f"g_c{number}": Subscription({"t": 4}) for number in range(2)}
    assert by_thread(assign_group(eight, partitions)["t"]) == {
        "g_c0-0": ["0-0"],
        "g_c0-1": ["0-1"],
        "g_c0-2": ["0-2"],
        "g_c0-3": ["0-3"],
        "g_c1-0": ["0-4"],
    }


def test_the_vector_of_the_load_balance_test() -> None:
    partitions = [PartitionId.parse(text) for text in ("200-0", "200-1", "300-0", "300-1", "400-0")]
    names = ["group1_consumer1-0", "group1_consumer2-0"]
    assert by_thread(assign_range(partitions, names)) == {
        "group1_consumer1-0": ["200-0", "200-1", "300-0"],
        "group1_consumer2-0": ["300-1", "400-0"],
    }
    assert [len(owned) for owned in by_thread(assign_range(partitions[:4], names)).values()] == [2, 2]


def test_strings_are_compared_not_numbers() -> None:
    partitions = [PartitionId(0, 2), PartitionId(0, 10), PartitionId(10, 0), PartitionId(2, 0)]
    members = {f"c{number}": Subscription({"t": 1}) for number in (2, 10)}
    found = by_thread(assign_group(members, {"t": partitions})["t"])
    assert found == {"c10-0": ["0-10", "0-2"], "c2-0": ["10-0", "2-0"]}


def test_the_order_in_which_things_are_listed_does_not_matter() -> None:
    partitions = [PartitionId(0, number) for number in range(4)]
    names = ["a", "b", "c"]
    expected = assign_range(partitions, ["a-0", "b-0", "c-0"])
    for some, others in itertools.product(itertools.permutations(partitions), itertools.permutations(names)):
        members = {name: Subscription({"t": 1}) for name in others}
        assert assign_group(members, {"t": some})["t"] == expected


def test_filters_and_topics_share_a_group() -> None:
    """A member with a filter competes for the topics it means, and for no others."""
    partitions = {"white1": [PartitionId(0, 0), PartitionId(0, 1)], "black": [PartitionId(0, 0)]}
    members = {"g_a": Subscription({"white1": 1, "absent": 1}), "g_b": Subscription({}, "white.*", True, 1)}
    found = assign_group(members, partitions)
    assert by_thread(found["white1"]) == {"g_a-0": ["0-0"], "g_b-0": ["0-1"]}
    assert found["absent"] == {}
    assert "black" not in found
    members["g_c"] = Subscription({}, "white(", True, 1)
    assert assign_group(members, partitions) == found


def test_nobody_and_nothing() -> None:
    assert assign_range([], ["a-0"]) == {}
    assert assign_range([PartitionId(0, 0)], []) == {}
    assert assign_group({}, {"t": [PartitionId(0, 0)]}) == {}


@pytest.mark.parametrize(
    ("pattern", "is_whitelist", "topic", "allowed"),
    [
        ("a,b", True, "b", True),
        ('"white.* , black"', True, "black", True),
        ("white", True, "white1", False),
        ("white", False, "white1", True),
        ("a|b", False, "a", False),
        ("", True, "a", False),
    ],
)
def test_filters_are_read_as_0_7_does(pattern: str, is_whitelist: bool, topic: str, allowed: bool) -> None:
    assert TopicFilter(pattern, is_whitelist).allows(topic) is allowed
    assert (topic in streams_by_topic(Subscription({}, pattern, is_whitelist, 2), [topic])) is allowed


def test_a_filter_that_is_no_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a\(' is no regular expression"):
        TopicFilter("a(")
