"""The records of ``__consumer_offsets`` as Apache Kafka has them: groups and the offsets that they have committed.

How fields are written: ``log.record_fields``. Written is version 1 of the offset's key and 3 of its value, 2 of the
group's key and 3 of its value.

    key of an offset   int16 0 or 1, string group, string topic, int32 partition
    its value          int16 version; int64 offset; from 3 int32 leader epoch; string metadata; int64 time of the
                       commit; in 1 int64 time of expiry; from 4 flexible, with the topic's id as tag 0
    key of a group     int16 2, string group
    its value          int16 version; string protocol type; int32 generation; string? protocol; string? leader;
                       from 2 int64 time of its state; array of members: string id; from 3 string? instance id;
                       string client id; string host; from 1 int32 rebalance time-out; int32 session time-out;
                       bytes metadata; bytes assignment; from 4 flexible

A value of null takes back what was said of the key.

Source: Apache Kafka 4.2 (OffsetCommitKey, OffsetCommitValue, GroupMetadataKey, GroupMetadataValue).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from fastlog.errors import LogError
from fastlog.log.record_fields import Fields
from fastlog.workers.coordinator.groups.members import Stored, StoredMember

OFFSET_KEYS, GROUP_KEY = (0, 1), 2
OFFSET_VALUE, GROUP_VALUE = 3, 3
NEWEST_VALUE = FIRST_FLEXIBLE = 4


class OffsetKey(NamedTuple):
    """The key of a committed offset: group, topic and partition."""

    group: str
    topic: str
    partition: int


class Offset(NamedTuple):
    """What is committed; times are milliseconds since 1970."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


class GroupState(NamedTuple):
    """A group, and since when it is as it is; -1: not known."""

    stored: Stored
    since_ms: int


def offset_key(key: OffsetKey) -> bytes:
    """The key's bytes."""
    return struct.pack(">h", 1) + _string(key.group) + _string(key.topic) + struct.pack(">i", key.partition)


def offset_value(offset: Offset) -> bytes:
    """The value's bytes."""
    head = struct.pack(">hqi", OFFSET_VALUE, offset.offset, offset.leader_epoch)
    return head + _string(offset.metadata) + struct.pack(">q", offset.committed_ms)


def group_key(group: str) -> bytes:
    """The key's bytes."""
    return struct.pack(">h", GROUP_KEY) + _string(group)


def group_value(state: GroupState) -> bytes:
    """The value's bytes."""
    stored = state.stored
    parts = [
        struct.pack(">h", GROUP_VALUE),
        _string(stored.protocol_type),
        struct.pack(">i", stored.generation),
        _string(stored.protocol),
        _string(stored.leader),
        struct.pack(">qi", state.since_ms, len(stored.members)),
    ]
    for member in stored.members:
        parts += [
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_ms, member.session_ms),
            _bytes(member.metadata),
            _bytes(member.assignment),
        ]
    return b"".join(parts)


def read_key(data: bytes) -> OffsetKey | str | None:
    """An offset's key, a group's name, or None for a key that is neither: that of a kind that others write.

    Raises:
        LogError: it is cut short.
    """
    fields = Fields(data)
    version = fields.number(2)
    if version in OFFSET_KEYS:
        return OffsetKey(fields.string() or "", fields.string() or "", fields.number(4))
    return fields.string() or "" if version == GROUP_KEY else None


def read_offset(data: bytes) -> Offset:
    """An offset's value.

    Raises:
        LogError: it is cut short, or of a version that is not known.
    """
    fields = _Fields(data)
    version = fields.version()
    offset = fields.number(8)
    epoch = fields.number(4) if version >= 3 else -1
    return Offset(offset, epoch, fields.string() or "", fields.number(8))


def read_group(data: bytes) -> GroupState:
    """A group's value.

    Raises:
        LogError: it is cut short, or of a version that is not known.
    """
    fields = _Fields(data)
    version = fields.version()
    kind, generation = fields.string() or "", fields.number(4)
    protocol, leader = fields.string(), fields.string()
    since_ms = fields.number(8) if version >= 2 else -1
    members = []
    for _ in range(fields.count()):
        member_id = fields.string() or ""
        instance_id = fields.string() if version >= 3 else None
        client_id, host = fields.string() or "", fields.string() or ""
        rebalance_ms = fields.number(4) if version >= 1 else -1
        session_ms = fields.number(4)
        metadata, assignment = fields.blob() or b"", fields.blob() or b""
        fields.tags()
        if rebalance_ms < 0:
            rebalance_ms = session_ms
        members.append(
            StoredMember(member_id, instance_id, client_id, host, rebalance_ms, session_ms, metadata, assignment)
        )
    return GroupState(Stored(kind, generation, protocol, leader, tuple(members)), since_ms)


def topics_of_subscription(metadata: bytes) -> set[str] | None:
    """The topics that a member of a consumers' group names; None where the bytes are something else.

    Source: Apache Kafka 4.2 (ConsumerProtocolSubscription): int16 version, array of strings, and more.
    """
    try:
        fields = Fields(metadata)
        if fields.number(2) < 0:
            return None
        return {fields.string() or "" for _ in range(fields.count())}
    except LogError:
        return None


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Fields(Fields):
    """Those of a value, whose version stands before them."""

    def version(self) -> int:
        found = self.number(2)
        if not 0 <= found <= NEWEST_VALUE:
            raise LogError("a record of a newer version of Kafka's", found=found)
        self.is_flexible = found >= FIRST_FLEXIBLE
        return found
