"""What members of a broker's group say to one another, and how the leader deals the partitions out.

The bytes are those of Kafka's consumers, so that its tools show topics and partitions; what they have no room for is
JSON in the user data. Integers are big-endian, strings and arrays as in ``client.group_requests``.

    a member, when it joins:  int16 version 2, array of topics, bytes user data,
                              array of what it holds {string topic, array of int32}, int32 generation that this is of
                              user data {"fastlog": 1, "consumer", "reads": as in ZooKeeper, "accepted"}
    what it is given:         int16 version 2, array {string topic, array of int32}, bytes user data
                              user data {"fastlog": 1, "threads": {topic: {partition: stream}}, "members", "whole",
                              "refused"}

Members go on reading while the group rebalances. So what one of them holds is given to another only in the generation
after the one in which the first was given it no more: it has let go and committed before it joins that one (KIP-429).

Pure. Source: Apache Kafka 4.2 (ConsumerProtocolSubscription, ConsumerProtocolAssignment).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fastlog.client.group_requests import NOBODY
from fastlog.client.kafka_fields import Answer, Place, array, by_topic, sized
from fastlog.consumer.assignment import assign_group, streams_by_topic
from fastlog.errors import ConfigError, CoordinationError, ProtocolError
from fastlog.wire.fields import pack, string
from fastlog.zkpaths import PartitionId, Subscription, thread_ids

NAME = "fastlog-range"
"""The assignor's name in requests: the range assignment of Kafka 0.7, over streams."""
PROTOCOL_TYPE = "consumer"
_VERSION = 2
_FORMAT = 1


class MemberView(NamedTuple):
    """A member's metadata in JoinGroup, as this assignor writes it."""

    consumer: str
    subscription: Subscription
    accepted: bool = False
    """Whether it is in the group already, and does not only wait until its name is free."""
    held: frozenset[Place] = frozenset()
    generation: int = NOBODY
    """The generation in which it was given what it holds."""

    def encode(self, topics: Iterable[str]) -> bytes:
        """The bytes for the request. ``topics``: the existing ones that it reads, for assignors without filters."""
        described = {
            "fastlog": _FORMAT,
            "consumer": self.consumer,
            "reads": self.subscription.encode().decode(),
            "accepted": self.accepted,
        }
        names = array(string(topic) for topic in sorted(topics))
        return b"".join(
            (pack("h", _VERSION), names, _json(described), _places(self.held), pack("i", self.generation)),
        )

    @classmethod
    def parse(cls, data: bytes) -> MemberView:
        """Read the bytes. Raises ``CoordinationError`` for what no member of this assignor writes."""
        try:
            fields = Answer(data)
            fields.int16("version")
            fields.items("topics", 2, lambda: fields.text("topic"))
            described = _parsed(fields)
            held = _parsed_places(fields)
            return cls(
                str(described["consumer"]),
                Subscription.parse(str(described["reads"]).encode()),
                described["accepted"] is True,
                frozenset(held),
                fields.int32("generation"),
            )
        except (ProtocolError, KeyError) as error:
            raise CoordinationError(f"{data[:100]!r} is not what a member says of itself: {error!r}") from None


class Given(NamedTuple):
    """What a member is given: of each partition the number of the stream that reads it."""

    streams: dict[Place, int]
    members: int = 0
    whole: bool = True
    """Whether this is all it is to have; otherwise more follows once others have let go."""
    refused: str = ""
    """Why it is given nothing; empty where it is not refused."""

    def encode(self) -> bytes:
        """The bytes for the SyncGroup request: partitions as today's assignors write them, and the rest as JSON."""
        threads: dict[str, dict[str, int]] = {}
        for (topic, number), stream in sorted(self.streams.items()):
            threads.setdefault(topic, {})[str(number)] = stream
        described = {
            "fastlog": _FORMAT,
            "threads": threads,
            "members": self.members,
            "whole": self.whole,
            "refused": self.refused,
        }
        return pack("h", _VERSION) + _places(self.streams) + _json(described)

    @classmethod
    def parse(cls, data: bytes) -> Given:
        """Raises ``CoordinationError`` for what no leader writes. No bytes: the leader did not know of the member."""
        if not data:
            return cls({}, whole=False)
        try:
            fields = Answer(data)
            fields.int16("version")
            places = _parsed_places(fields)
            described = _parsed(fields)
            streams = {place: described["threads"][place[0]][str(place[1])] for place in places}
            if not all(type(stream) is int and stream >= 0 for stream in streams.values()):
                raise ProtocolError(f"streams {streams}")
            return cls(streams, int(described["members"]), described["whole"] is True, str(described["refused"]))
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            raise CoordinationError(f"{data[:100]!r} is not what a leader assigns: {error!r}") from None


def deal(
    members: Mapping[str, MemberView],
    counts: Mapping[str, int],
    on_bad_filter: Callable[[str, ConfigError], None] = lambda consumer, error: None,
) -> dict[str, Given]:
    """What each member is given, by its id. ``counts``: how many partitions each topic has.

    Of members with one consumer's id the first that was let in is given its part, and the others wait: thread names
    would stand for two streams.
    """
    chosen: dict[str, str] = {}
    for member_id, view in sorted(members.items(), key=lambda item: (not item[1].accepted, item[0])):
        chosen.setdefault(view.consumer, member_id)
    subscriptions = {consumer: members[member_id].subscription for consumer, member_id in chosen.items()}
    partitions = {topic: [PartitionId(0, number) for number in range(count)] for topic, count in counts.items()}
    owners = assign_group(subscriptions, partitions, on_bad_filter)
    holders = _holders(members)
    streams: dict[str, dict[Place, int]] = {member_id: {} for member_id in members}
    waiting: set[str] = set()
    for topic, dealt in owners.items():
        threads = _threads(topic, subscriptions, counts)
        for partition, thread in dealt.items():
            consumer, stream = threads[thread]
            place, member_id = (topic, partition.partition), chosen[consumer]
            if holders.get(place, member_id) == member_id:
                streams[member_id][place] = stream
            else:
                waiting.add(member_id)
    return {
        member_id: Given(
            streams[member_id],
            len(chosen),
            member_id not in waiting,
            "" if chosen[view.consumer] == member_id else f"another consumer of the id {view.consumer} is in the group",
        )
        for member_id, view in members.items()
    }


def _holders(members: Mapping[str, MemberView]) -> dict[Place, str]:
    """The member that holds each partition; where two claim one, the member that was given it later."""
    found: dict[Place, tuple[int, str]] = {}
    for member_id, view in members.items():
        for place in view.held:
            found[place] = max(found.get(place, (NOBODY, "")), (view.generation, member_id))
    return {place: member_id for place, (_, member_id) in found.items()}


def _threads(
    topic: str, subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]
) -> dict[str, tuple[str, int]]:
    """The consumer and the number of the stream that each thread's name of a topic stands for."""
    found = {}
    for consumer, subscription in subscriptions.items():
        count = subscription.streams if subscription.is_filter else subscription.topics.get(topic, 0)
        for number, name in enumerate(thread_ids(consumer, count)):
            found[name] = consumer, number
    return found


def topics_of(subscription: Subscription, counts: Mapping[str, int]) -> list[str]:
    """The topics that a subscription means, of those that there are; those it names, whether they are there or not.

    Raises:
        ConfigError: its filter takes too long.
    """
    return sorted(streams_by_topic(subscription, counts))


def _json(value: Any) -> bytes:
    return sized(json.dumps(value, separators=(",", ":")).encode())


def _parsed(fields: Answer) -> dict[str, Any]:
    data = fields.sized_bytes("user data")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("fastlog") != _FORMAT:
        raise ProtocolError(f"{data[:100]!r} is not of this version of fastlog")
    return found


def _places(places: Iterable[Place]) -> bytes:
    return by_topic(sorted(places), lambda place: pack("i", place[1]))


def _parsed_places(fields: Answer) -> list[Place]:
    return list(fields.by_place(4, lambda: (fields.int32("partition"), None)))
