"""How the leader of a broker's group deals partitions out, and the bytes in which members and leader speak."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import pytest

from fastlog.client.kafka_fields import Place
from fastlog.consumer.assignment import assign_group
from fastlog.consumer.broker_groups import assignor
from fastlog.consumer.broker_groups.assignor import Given, MemberView, deal
from fastlog.errors import ConfigError, CoordinationError
from fastlog.workers.coordinator.groups.records import topics_of_subscription
from fastlog.zkpaths import PartitionId, Subscription


def view(consumer: str, held: set[Place] = frozenset(), generation: int = -1, **topics: int) -> MemberView:  # type: ignore[assignment]
    return MemberView(consumer, Subscription(topics or {"t": 1}), generation >= 0, frozenset(held), generation)


def places(*numbers: int, topic: str = "t") -> set[Place]:
    return {(topic, number) for number in numbers}


def dealt(members: Mapping[str, MemberView], **counts: int) -> dict[str, set[Place]]:
    return {member: set(given.streams) for member, given in deal(members, counts).items()}


def test_the_range_is_that_of_groups_in_zookeeper() -> None:
    """The first streams, by their names, get one more; partitions are in the order of their names, so 10 before 2."""
    members = {"m1": view("b", t=2), "m2": view("a", t=1, u=1)}
    found = deal(members, {"t": 11, "u": 1, "v": 5})
    owners = assign_group(
        {"b": Subscription({"t": 2}), "a": Subscription({"t": 1, "u": 1})},
        {"t": [PartitionId(0, n) for n in range(11)], "u": [PartitionId(0, 0)]},
    )
    assert {("t", p.partition): thread for p, thread in owners["t"].items()} == {
        **{place: f"b-{stream}" for place, stream in found["m1"].streams.items()},
        **{place: f"a-{stream}" for place, stream in found["m2"].streams.items() if place[0] == "t"},
    }
    assert set(found["m2"].streams) == {("t", 0), ("t", 1), ("t", 10), ("t", 2), ("u", 0)}
    assert all(given.whole and not given.refused and given.members == 2 for given in found.values())


def test_what_somebody_holds_is_given_to_nobody_else() -> None:
    """Who is to have it waits for the next generation, and is told that more comes."""
    members = {"m1": view("a", places(0, 1, 2, 3), 4), "m2": view("b")}
    found = deal(members, {"t": 4})
    assert set(found["m1"].streams) == places(0, 1) and found["m1"].whole
    assert not found["m2"].streams and not found["m2"].whole
    members = {"m1": view("a", places(0, 1), 5), "m2": view("b")}
    assert dealt(members, t=4) == {"m1": places(0, 1), "m2": places(2, 3)}
    assert all(given.whole for given in deal(members, {"t": 4}).values())


def test_of_two_who_hold_one_partition_the_later_one_keeps_it() -> None:
    members = {"m1": view("a", places(0), 4), "m2": view("b", places(0), 3)}
    assert dealt(members, t=1) == {"m1": places(0), "m2": set()}
    members = {"m1": view("a", places(0), 3), "m2": view("b", places(0), 4)}
    found = deal(members, {"t": 1})
    assert not found["m1"].streams and not found["m1"].whole and not found["m2"].streams  # m2 lets go of it first


def test_one_of_two_with_the_same_id_waits() -> None:
    """Whoever was let in before stays; of two new ones the smaller member id is let in."""
    first = view("a", places(0), 3)
    found = deal({"m2": first, "m1": view("a")}, {"t": 2})
    assert set(found["m2"].streams) == places(0, 1) and not found["m2"].refused
    assert found["m1"] == Given({}, 1, True, "another consumer of the id a is in the group")
    found = deal({"m2": view("a"), "m1": view("a")}, {"t": 2})
    assert set(found["m1"].streams) == places(0, 1) and found["m2"].refused


def test_who_is_refused_still_holds_what_it_has_not_let_go() -> None:
    found = deal({"m1": view("a", places(1), 3), "m2": view("a", places(0), 3)}, {"t": 2})
    assert set(found["m1"].streams) == places(1) and not found["m1"].whole and found["m2"].refused


def test_a_filter_that_cannot_be_used_gets_nothing() -> None:
    told: list[tuple[str, ConfigError]] = []
    bad = MemberView("b", Subscription({}, "(", True, 1))
    good = MemberView("a", Subscription({}, "t.*", True, 2))
    found = deal({"m1": bad, "m2": good}, {"t1": 2, "x": 1}, lambda consumer, error: told.append((consumer, error)))
    assert found["m1"].streams == {} and found["m2"].streams == {("t1", 0): 0, ("t1", 1): 1}
    assert [consumer for consumer, _ in told] == ["b"]


@pytest.mark.parametrize("seed", range(50))
def test_generations_end_with_what_the_range_says(seed: int) -> None:
    """Whoever comes and goes: in no generation is a partition two members', and after two quiet ones all is dealt."""
    source = random.Random(seed)
    held: dict[str, set[Place]] = {}
    generation = 0

    def turn() -> dict[str, Given]:
        nonlocal generation
        members = {
            name: view(name, held[name], generation if held[name] else -1, t=streams[name], u=1) for name in held
        }
        found = deal(members, counts)
        generation += 1
        for name, given in found.items():
            for other in held:
                assert other == name or not held[other] & set(given.streams), "given before it was let go of"
        for name, given in found.items():
            held[name] = set(given.streams)
        return found

    streams: dict[str, int] = {}
    counts = {"t": source.randint(0, 12), "u": 3}
    for _ in range(20):
        if source.random() < 0.5 and len(held) < 6:
            name = f"m{source.randrange(100)}"
            held.setdefault(name, set())
            streams[name] = source.randint(1, 3)
        elif held:
            held.pop(source.choice(sorted(held)))
        counts["t"] = min(12, counts["t"] + source.randint(0, 1))
        turn()
    turn()
    found = turn()
    if held:
        assert all(given.whole for given in found.values())
        taken = [place for given in found.values() for place in given.streams]
        assert sorted(taken) == sorted(places(*range(counts["t"])) | places(*range(3), topic="u"))


def test_what_a_member_says_can_be_read_by_others() -> None:
    """Its topics by who knows nothing of filters; all of it by the leader."""
    said = MemberView("c", Subscription({}, "a|b", False, 3), True, frozenset({("t", 2), ("t", 10), ("u", 0)}), 9)
    data = said.encode(["t", "u"])
    assert MemberView.parse(data) == said
    assert topics_of_subscription(data) == {"t", "u"}
    told = Given({("t", 2): 1, ("u", 0): 0}, 4, False, "so")
    assert Given.parse(told.encode()) == told
    assert Given.parse(b"") == Given({}, whole=False)


def test_other_bytes_are_refused() -> None:
    """Cut anywhere, of another client or another version."""
    data = view("c", places(1), 3).encode(["t"])
    given = Given({("t", 2): 1}, 1).encode()
    for size in range(len(data)):
        with pytest.raises(CoordinationError, match="not what a member says"):
            MemberView.parse(data[:size])
    for size in range(1, len(given)):
        with pytest.raises(CoordinationError, match="not what a leader assigns"):
            Given.parse(given[:size])
    for before, after in ((b'"fastlog":1', b'"fastlog":2'), (b'"fastlog"', b'"another"'), (b"{", b"[")):
        with pytest.raises(CoordinationError):
            MemberView.parse(data.replace(before, after))
        with pytest.raises(CoordinationError):
            Given.parse(given.replace(before, after))
    for streams in ({"t": {"2": -1}}, {"t": {"2": "1"}}, {"t": {"3": 1}}, {}):
        with pytest.raises(CoordinationError):
            Given.parse(swapped(given, streams))
    assert Given.parse(swapped(given, {"t": {"2": 5}})).streams == {("t", 2): 5}


def swapped(given: bytes, threads: object) -> bytes:
    """The bytes with other streams in the user data."""
    start = given.index(b"{")
    told = json.loads(given[start:]) | {"threads": threads}
    text = json.dumps(told).encode()
    return given[: start - 4] + len(text).to_bytes(4, "big") + text


def test_topics_are_those_that_are_meant() -> None:
    assert assignor.topics_of(Subscription({"b": 1, "a": 1}), {"a": 1}) == ["a", "b"]
    assert assignor.topics_of(Subscription({}, "a|c", True, 1), {"b": 1, "a": 1}) == ["a"]
