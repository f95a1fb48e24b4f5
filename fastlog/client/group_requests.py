"""Requests of a group's members to its coordinator, and the answers: today's protocol, as far as groups need it.

Each request in one version, the last one without tagged fields, which every broker of today knows:

| request | key | version | what it is for |
|---|---|---|---|
| Metadata | 3 | 2 | which cluster it is |
| FindCoordinator | 10 | 2 | where the coordinator of a group is |
| JoinGroup, SyncGroup, Heartbeat, LeaveGroup | 11, 14, 12, 13 | 5, 3, 3, 3 | to be a member |
| OffsetCommit, OffsetFetch, OffsetDelete | 8, 9, 47 | 7, 5, 0 | how far a group has read |
| ListGroups, DescribeGroups, DeleteGroups | 16, 15, 42 | 2, 4, 1 | what groups there are |

Source: the schemas of Apache Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fastlog.client.kafka_fields import NULL, Answer, Place, Request, array, by_topic, sized
from fastlog.wire.fields import pack, string

NOBODY = -1
"""The generation of a commit from outside the group, and of a member that has none yet."""


class Identity(NamedTuple):
    """The identity that a request is sent with: a member's id, and the generation that it belongs to."""

    member: str = ""
    generation: int = NOBODY


class Joined(NamedTuple):
    """The answer to JoinGroup. ``members``: the metadata of each, by member id; only the leader gets them."""

    code: int
    generation: int
    protocol: str
    leader: str
    member: str
    members: dict[str, bytes]


class Committed(NamedTuple):
    """A committed offset and the text beside it."""

    offset: int
    text: str


class DescribedMember(NamedTuple):
    """A member of a group that is described; without bytes while the group rebalances."""

    id: str
    client: str
    host: str
    metadata: bytes
    assignment: bytes


class Described(NamedTuple):
    """A group; ``state`` is Kafka's word, ``Dead`` for one that is not known."""

    code: int
    name: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


# -- requests ----------------------------------------------------------------------------------------------------------


def metadata() -> Request:
    """A Metadata request without topics: for the cluster's id and brokers alone."""
    return Request(3, 2, pack("i", 0))


def find_coordinator(group: str) -> Request:
    """A FindCoordinator request for a group."""
    return Request(10, 2, string(group) + pack("b", 0))


def join(
    group: str, member: str, session_ms: int, rebalance_ms: int, kind: str, protocols: Sequence[tuple[str, bytes]]
) -> Request:
    """A JoinGroup request: to be a member of the next generation. ``protocols``: assignors, each with the metadata."""
    rows = array(string(name) + sized(data) for name, data in protocols)
    head = string(group) + pack("ii", session_ms, rebalance_ms) + string(member) + NULL
    return Request(11, 5, head + string(kind) + rows)


def sync(group: str, who: Identity, assignments: Mapping[str, bytes]) -> Request:
    """A SyncGroup request for the member's assignment; the leader's brings the ``assignments`` of all, by member id."""
    rows = array(string(member) + sized(data) for member, data in assignments.items())
    return Request(14, 3, _member(group, who) + rows)


def heartbeat(group: str, who: Identity) -> Request:
    """A Heartbeat request: the member is alive."""
    return Request(12, 3, _member(group, who))


def leave(group: str, member: str) -> Request:
    """A LeaveGroup request for one member."""
    return Request(13, 3, string(group) + array([string(member) + NULL]))


def commit(group: str, who: Identity, offsets: Mapping[Place, Committed]) -> Request:
    """Keep how far partitions have been read."""
    return Request(
        8,
        7,
        _member(group, who)
        + by_topic(
            offsets, lambda place: pack("iqi", place[1], offsets[place].offset, -1) + string(offsets[place].text)
        ),
    )


def fetch_offsets(group: str, places: Iterable[Place] | None) -> Request:
    """An OffsetFetch request for these partitions; None: for all that have a committed offset."""
    rows = pack("i", -1) if places is None else by_topic(places, lambda place: pack("i", place[1]))
    return Request(9, 5, string(group) + rows)


def delete_offsets(group: str, places: Iterable[Place]) -> Request:
    """An OffsetDelete request: to forget the committed offsets of these partitions."""
    return Request(47, 0, string(group) + by_topic(places, lambda place: pack("i", place[1])))


def list_groups() -> Request:
    """A ListGroups request."""
    return Request(16, 2, b"")


def describe_groups(names: Iterable[str]) -> Request:
    """A DescribeGroups request for these groups."""
    return Request(15, 4, array(map(string, names)) + pack("b", 0))


def delete_groups(names: Iterable[str]) -> Request:
    """A DeleteGroups request: to forget groups that have no members."""
    return Request(42, 1, array(map(string, names)))


# -- answers -----------------------------------------------------------------------------------------------------------


def parse_metadata(answer: Answer) -> tuple[dict[int, tuple[str, int]], str]:
    """Host and port of each broker by its id, and the cluster's id."""

    def broker() -> tuple[int, tuple[str, int]]:
        found = answer.int32("node id"), (answer.text("host"), answer.int32("port"))
        answer.text("rack")
        return found

    brokers = dict(answer.items("brokers", 12, broker))
    return brokers, answer.text("cluster id")


def parse_coordinator(answer: Answer) -> tuple[int, str, int, tuple[str, int]]:
    """An error code, the broker's words for it, the coordinator's node id, host and port."""
    answer.skip_throttle()
    code, text = answer.int16("error code"), answer.text("error message")
    found = code, text, answer.int32("node id"), (answer.text("host"), answer.int32("port"))
    answer.end()
    return found


def parse_joined(answer: Answer) -> Joined:
    """Read the answer to JoinGroup. Raises ``ProtocolError`` for what is none, as every function here."""
    answer.skip_throttle()
    code, generation = answer.int16("error code"), answer.int32("generation")
    protocol, leader, member = answer.text("protocol"), answer.text("leader"), answer.text("member id")

    def one() -> tuple[str, bytes]:
        name = answer.text("member id")
        answer.text("instance id")
        return name, answer.sized_bytes("metadata")

    members = dict(answer.items("members", 8, one))
    answer.end()
    return Joined(code, generation, protocol, leader, member, members)


def parse_synced(answer: Answer) -> tuple[int, bytes]:
    """An error code, and what is assigned."""
    answer.skip_throttle()
    found = answer.int16("error code"), answer.sized_bytes("assignment")
    answer.end()
    return found


def parse_code(answer: Answer) -> int:
    """The error code that HEARTBEAT has, and LEAVE_GROUP before its members."""
    answer.skip_throttle()
    return answer.int16("error code")


def parse_commit(answer: Answer) -> dict[Place, int]:
    """The error code of each partition in the answer to OffsetCommit; 0 where the offset is kept."""
    answer.skip_throttle()
    found = answer.by_place(6, lambda: (answer.int32("partition"), answer.int16("error code")))
    answer.end()
    return found


def parse_offsets(answer: Answer) -> tuple[int, dict[Place, tuple[int, Committed]]]:
    """An error code, and for each partition another one and what is committed: -1 where nothing is."""

    def one() -> tuple[int, tuple[int, Committed]]:
        number, offset = answer.int32("partition"), answer.int64("offset")
        answer.int32("leader epoch")
        text = answer.text("metadata")
        return number, (answer.int16("error code"), Committed(offset, text))

    answer.skip_throttle()
    found = answer.by_place(20, one)
    code = answer.int16("error code")
    answer.end()
    return code, found


def parse_deleted_offsets(answer: Answer) -> tuple[int, dict[Place, int]]:
    """An error code, and one for each partition."""
    code = answer.int16("error code")
    answer.skip_throttle()
    found = answer.by_place(6, lambda: (answer.int32("partition"), answer.int16("error code")))
    answer.end()
    return code, found


def parse_groups(answer: Answer) -> tuple[int, dict[str, str]]:
    """An error code, and the kind of protocol of each group by its name."""
    answer.skip_throttle()
    code = answer.int16("error code")
    rows = answer.items("groups", 4, lambda: (answer.text("group"), answer.text("protocol type")))
    answer.end()
    return code, dict(rows)


def parse_described(answer: Answer) -> list[Described]:
    """The groups in the answer to DescribeGroups, each with its members."""

    def member() -> DescribedMember:
        name = answer.text("member id")
        answer.text("instance id")
        return DescribedMember(
            name,
            answer.text("client id"),
            answer.text("client host"),
            answer.sized_bytes("metadata"),
            answer.sized_bytes("assignment"),
        )

    def group() -> Described:
        code, name, state = answer.int16("error code"), answer.text("group"), answer.text("state")
        kind, protocol = answer.text("protocol type"), answer.text("protocol")
        members = tuple(answer.items("members", 16, member))
        answer.int32("operations")
        return Described(code, name, state, kind, protocol, members)

    answer.skip_throttle()
    found = answer.items("groups", 18, group)
    answer.end()
    return found


def parse_deleted_groups(answer: Answer) -> dict[str, int]:
    """The error code of each group in the answer to DeleteGroups; 0 where it is gone."""
    answer.skip_throttle()
    rows = answer.items("groups", 4, lambda: (answer.text("group"), answer.int16("error code")))
    answer.end()
    return dict(rows)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _member(group: str, who: Identity) -> bytes:
    return string(group) + pack("i", who.generation) + string(who.member) + NULL
