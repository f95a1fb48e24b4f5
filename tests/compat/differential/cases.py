"""Requests that are put to both: of each kind and version that fastlog offers a good one, and that one with each of its
fields in turn as it should not be.

``GOOD`` has a good request of each kind, its fields those of every version. What a field can be instead stands in
``OTHERS``, by its name or else by its kind on the wire.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
import time
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kio.index import load_request_schema

from fastlog.workers.kafka import kinds
from tests.compat.differential.target import Target
from tests.harness import raw_batches, today
from tests.harness.raw_records import Record
from tests.harness.today_fuzz import fields_of

Fields = dict[str, Any]
MS = 1 / 1000
FIRST_MS = int(time.time() * 1000) - 3_600_000
"""Of the first record: not so long ago that retention takes it away."""
SUBSCRIPTION = struct.pack(">hih4si", 0, 1, 4, b"full", -1)
"""What a consumer says of itself: the first version, one topic, nothing of its own."""
UNKNOWN_ID = uuid.UUID(int=5)
METADATA, OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP, LIST_GROUPS, DESCRIBE_LOG_DIRS = 3, 8, 11, 14, 16, 35
FIRST = LIST_GROUPS, DESCRIBE_LOG_DIRS
"""Asked for before others have made groups, in states of the moment, and topics with more or less in them."""
PRODUCE_PARTITIONS = 64
_partitions = itertools.count()
_numbers = itertools.count(int(time.time() * 1000) % 10**9)  # a broker may be used again


class Case(NamedTuple):
    """A request; ``prepare`` is done with each of the two before it."""

    key: int
    version: int
    label: str
    fields: Fields
    prepare: Callable[[Target], None] = lambda target: None


def fresh(word: str) -> str:
    """A name that nothing has yet."""
    return f"{word}-{next(_numbers)}"


def batch(*values: bytes, at: int = FIRST_MS, codec: int = 0, **fields: int) -> raw_batches.Batch:
    """A batch of records at one time each, a second apart."""
    made = raw_batches.of([Record(at + 1000 * place, b"k", value) for place, value in enumerate(values)], **fields)
    made.attributes |= codec
    return made


# -- what there is before ----------------------------------------------------------------------------------------------


def prepare(target: Target) -> None:
    """The topics that requests name, anew: ``full`` has ten records in partition 0, ``empty`` none."""
    target.clear()
    target.make("full", 2)
    target.make("empty")
    target.make("compacted", cleanup_policy="compact")
    for start in (0, 4, 8):
        values = [b"value %d" % number for number in range(start, min(start + 4, 10))]
        fields = today.produced(("full", 0, batch(*values, at=FIRST_MS + 1000 * start).encode()), acks=-1)
        found = target.asked(today.PRODUCE, 9, fields)
        assert found.responses[0].partition_responses[0].base_offset == start, found


def id_of(topic: str) -> Callable[[Target], uuid.UUID]:
    """A topic's id, which is another one in each."""
    return lambda target: target.memory[f"id of {topic}"]


def has_topic(name: str, partitions: int = 1, records: int = 0) -> Callable[[Target], None]:
    """A topic of its own for a request that changes it."""

    def prepare(target: Target) -> None:
        if f"id of {name}" not in target.memory:
            target.make(name, partitions)
            for _ in range(records):
                target.asked(today.PRODUCE, 9, today.produced((name, 0, batch(b"x").encode()), acks=-1))

    return prepare


def has_member(group: str, offset: int | None = None) -> Callable[[Target], None]:
    """A stable group of one member, which has committed an offset of ``full``."""

    def prepare(target: Target) -> None:
        fields = join(group)
        found = target.asked(JOIN_GROUP, 3, fields)
        target.memory["member"] = found.member_id
        target.memory.setdefault("members", set()).add(found.member_id)
        given = [{"member_id": found.member_id, "assignment": b"a part"}]
        found = target.asked(SYNC_GROUP, 3, {**who(group), "assignments": given})
        assert found.error_code == 0, found
        if offset is not None:
            assert not target.asked(OFFSET_COMMIT, 7, commit(group)).topics[0].partitions[0].error_code

    return prepare


def member(target: Target) -> str:
    """The id that ``has_member`` was given."""
    return str(target.memory["member"])


def join(group: str) -> Fields:
    protocols = [{"name": name, "metadata": SUBSCRIPTION} for name in ("range", "sticky")]
    return {
        "group_id": group,
        "session_timeout": today.seconds(30),
        "rebalance_timeout": today.seconds(30),
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": protocols,
        "reason": "a test",
    }


def who(group: str) -> Fields:
    return {
        "group_id": group,
        "generation_id": 1,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
    }


def commit(group: str) -> Fields:
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": 0, "committed_metadata": "so far"}
    return {
        **who(group),
        "generation_id_or_member_epoch": 1,
        "retention_time": today.seconds(-MS),
        "topics": [{"name": "full", "partitions": [row]}],
    }


# -- good requests -----------------------------------------------------------------------------------------------------

Good = tuple[Fields, Callable[[Target], None]]
"""A request, and what has to be there for it."""


def nothing(target: Target) -> None:
    """For requests that need no more than what is there."""


def produce(version: int) -> Good:
    # a partition of its own for each: what one of the two refuses would move the offsets of all that follow
    topic, partition = f"produced-{version}", next(_partitions) % PRODUCE_PARTITIONS
    fields = today.produced((topic, partition, batch(b"one", b"two").encode()), acks=-1)
    return fields, has_topic(topic, PRODUCE_PARTITIONS)


def fetch(version: int) -> Good:
    fields = today.fetched(("full", 0, 5), max_wait=100)
    (topic,) = fields["topics"]
    topic["topic_id"] = id_of("full")
    return {**fields, "cluster_id": None, "replica_state": {"replica_id": -1, "replica_epoch": -1}}, nothing


def metadata(version: int) -> Good:
    topics = [{"topic_id": None, "name": name} for name in ("full", "empty")]
    flags = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
    return {"topics": topics, "allow_auto_topic_creation": False, **flags}, nothing


def offset_fetch(version: int) -> Good:
    group = fresh("group")
    topics = [{"name": "full", "partition_indexes": [0, 1]}]
    groups = [{"group_id": group, "topics": topics}]
    return {"group_id": group, "topics": topics, "groups": groups, "require_stable": False}, has_member(group, 7)


def of_member(fields: Callable[[str], Fields]) -> Callable[[int], Good]:
    """A request of a stable group's member."""

    def good(version: int) -> Good:
        group = fresh("group")
        return fields(group), has_member(group, 7)

    return good


def sync(group: str) -> Fields:
    return {**who(group), "assignments": [{"member_id": member, "assignment": b"mine"}]}


def leave(group: str) -> Fields:
    return {**who(group), "members": [{"member_id": member, "group_instance_id": None, "reason": None}]}


def rejoin(group: str) -> Fields:
    return {**join(group), "member_id": member}


def create_topics(version: int) -> Good:
    topic = {"name": fresh("made"), "num_partitions": 2, "replication_factor": 1, "assignments": []}
    topic["configs"] = [{"name": "retention.ms", "value": "60000"}]
    return {"topics": [topic], "timeout": today.seconds(30), "validate_only": False}, nothing


def delete_topics(version: int) -> Good:
    name = fresh("deleted")
    topics = [{"name": name, "topic_id": None}]
    return {"topics": topics, "topic_names": [name], "timeout": today.seconds(30)}, has_topic(name)


def delete_records(version: int) -> Good:
    name = f"shortened-{version}"
    rows = [{"partition_index": 0, "offset": 1}]
    return {"topics": [{"name": name, "partitions": rows}], "timeout": today.seconds(30)}, has_topic(name, 1, 3)


def create_partitions(version: int) -> Good:
    name = fresh("grown")
    topics = [{"name": name, "count": 3, "assignments": None}]
    return {"topics": topics, "timeout": today.seconds(30), "validate_only": False}, has_topic(name)


def alter_configs(version: int) -> Good:
    name = f"altered-{version}"
    configs = [{"name": "retention.ms", "value": "60000", "config_operation": 0}]
    resources = [{"resource_type": 2, "resource_name": name, "configs": configs}]
    return {"resources": resources, "validate_only": False}, has_topic(name)


def always(fields: Fields) -> Callable[[int], Good]:
    return lambda version: (fields, nothing)


LISTED = {"current_leader_epoch": -1, "timestamp": FIRST_MS + 2500}
OF_EPOCH = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
RESOURCE = {"resource_type": 2, "resource_name": "full", "configuration_keys": ["retention.ms", "cleanup.policy"]}
PRODUCER = {"transactional_id": None, "transaction_timeout": today.seconds(60), "producer_id": -1, "producer_epoch": -1}

GOOD: dict[int, Callable[[int], Good]] = {
    0: produce,
    1: fetch,
    2: lambda version: (
        {**today.listed(), "topics": [{"name": "full", "partitions": [{"partition_index": 0, **LISTED}]}]},
        nothing,
    ),
    3: metadata,
    8: of_member(commit),
    9: offset_fetch,
    10: always({"key": "a-group", "key_type": 0, "coordinator_keys": ["a-group"]}),
    11: of_member(rejoin),
    12: of_member(who),
    13: of_member(leave),
    14: of_member(sync),
    15: of_member(lambda group: {"groups": [group], "include_authorized_operations": False}),
    16: always({"states_filter": ["Dead"]}),
    18: always({"client_software_name": "test", "client_software_version": "1"}),
    19: create_topics,
    20: delete_topics,
    21: delete_records,
    22: always(PRODUCER),
    23: always({"replica_id": -1, "topics": [{"topic": "full", "partitions": OF_EPOCH}]}),
    32: always({"resources": [RESOURCE], "include_synonyms": False, "include_documentation": False}),
    33: alter_configs,
    35: always({"topics": [{"topic": "full", "partitions": [0]}]}),
    37: create_partitions,
    42: of_member(lambda group: {"groups_names": [group]}),
    44: alter_configs,
    47: of_member(
        lambda group: {"group_id": group, "topics": [{"name": "full", "partitions": [{"partition_index": 0}]}]}
    ),
    60: always({"include_cluster_authorized_operations": False, "endpoint_type": 1}),
}

# -- what a field can be instead ---------------------------------------------------------------------------------------

NAMES = ["missing", "", ".", "bad/name", "x" * 250]
MOST = 2**31 - 1
GOOD_BATCH = batch(b"one", b"two")
SNAPPY_BYTES = b"\x01\x00x"  # a snappy block of one byte


def _damaged() -> dict[str, bytes | None]:
    data = GOOD_BATCH.encode()
    change = dataclasses.replace
    return {
        "empty": b"",
        "a part of a batch": data[:-1],
        "half a head": data[:40],
        "two batches": data + data,
        "another checksum": GOOD_BATCH.encode(crc=1),
        "a byte behind": data + b"x",
        "magic 1": change(GOOD_BATCH, magic=1).encode(),
        "magic 3": change(GOOD_BATCH, magic=3).encode(),
        "no records": change(GOOD_BATCH, record_count=0, payload=b"", last_offset_delta=0).encode(),
        "a count too large": change(GOOD_BATCH, record_count=3).encode(),
        "a negative count": change(GOOD_BATCH, record_count=-1).encode(),
        "another last delta": change(GOOD_BATCH, last_offset_delta=5).encode(),
        "a base offset": change(GOOD_BATCH, base_offset=5).encode(),
        "a leader epoch": change(GOOD_BATCH, leader_epoch=5).encode(),
        "a control batch": change(GOOD_BATCH, attributes=0x20).encode(),
        "a transactional batch": change(GOOD_BATCH, attributes=0x10).encode(),
        "codec 5": change(GOOD_BATCH, attributes=5).encode(),
        "gzip that is none": change(GOOD_BATCH, attributes=1).encode(),
        "snappy that is none": change(GOOD_BATCH, attributes=2, payload=SNAPPY_BYTES).encode(),
        "lz4 that is none": change(GOOD_BATCH, attributes=3).encode(),
        "zstd that is none": change(GOOD_BATCH, attributes=4).encode(),
        "log append time": change(GOOD_BATCH, attributes=8).encode(),
        "a batch length too small": GOOD_BATCH.encode(batch_length=48),
        "a largest time too small": change(GOOD_BATCH, max_timestamp=FIRST_MS - 1).encode(),
        "no time": batch(b"x", at=-1).encode(),
        "a negative time": batch(b"x", at=-5).encode(),
        "a time far ahead": batch(b"x", at=FIRST_MS + 10**8).encode(),
        "an unknown producer at 0": change(GOOD_BATCH, producer_id=77, producer_epoch=0, base_sequence=0).encode(),
        "an unknown producer at 5": change(GOOD_BATCH, producer_id=78, producer_epoch=3, base_sequence=5).encode(),
        "a producer without a number": change(GOOD_BATCH, producer_id=79, producer_epoch=0).encode(),
        "a producer without an epoch": change(GOOD_BATCH, producer_id=80, base_sequence=0).encode(),
        "a producer below -1": change(GOOD_BATCH, producer_id=-2, producer_epoch=0, base_sequence=0).encode(),
        "a number without a producer": change(GOOD_BATCH, base_sequence=0).encode(),
    }


OTHERS: dict[tuple[int | None, str], Any] = {
    (0, "records"): _damaged(),
    (0, "transactional_id"): ["", "an-id"],
    (0, "acks"): [1, 0, 2, -2],
    (0, "timeout"): [today.seconds(0), today.seconds(-MS)],
    (1, "max_wait"): [today.seconds(0), today.seconds(-MS)],
    (1, "min_bytes"): [0, -1, MOST],
    (1, "max_bytes"): [0, 1, 90, -1, MOST],
    (1, "partition_max_bytes"): [0, 1, 90, -1, MOST],
    (1, "fetch_offset"): [0, 4, 9, 10, 11, -1, -2],
    (1, "session_id"): [1, -1],
    (1, "session_epoch"): [0, 1, MOST],
    (1, "topic_id"): [None, UNKNOWN_ID],
    (1, "replica_id"): [0, 1, 5, -2],
    (2, "timestamp"): [-1, -2, -3, -4, -5, -6, -7, 0, FIRST_MS, FIRST_MS + 4000, FIRST_MS + 10**6, 2**63 - 1, -(2**63)],
    (3, "topics"): [None],
    (3, "topic_id"): [UNKNOWN_ID, id_of("full")],
    (3, "name"): ["absent", "", ".", "bad/name", "x" * 250, None],
    (8, "committed_offset"): [0, -1, -2, 2**63 - 1],
    (8, "committed_metadata"): ["", None, "x" * 4096, "x" * 4097],
    (None, "retention_time"): [today.seconds(0), today.seconds(5)],
    (11, "session_timeout"): [today.seconds(each) for each in (0, -MS, 5.999, 6, 1800, 1800.001)],
    (11, "rebalance_timeout"): [today.seconds(each) for each in (0, -MS)],
    (11, "protocol_type"): ["", "connect"],
    (11, "protocols"): [[{"name": "other", "metadata": SUBSCRIPTION}]],
    (11, "metadata"): [b"", b"no subscription", SUBSCRIPTION + b"more"],
    (14, "protocol_type"): ["", "connect"],
    (14, "protocol_name"): ["", "sticky"],
    (15, "groups"): [["unknown"], [""]],
    (16, "states_filter"): [["Dead", "NoState"], ["nosuch"], [""]],
    (19, "num_partitions"): [-1, 0, -2, 1],
    (19, "replication_factor"): [-1, 0, 2, -2],
    (19, "assignments"): [
        [{"partition_index": 0, "broker_ids": [1]}],
        [{"partition_index": 1, "broker_ids": [1]}],
        [{"partition_index": 0, "broker_ids": [9]}],
        [{"partition_index": 0, "broker_ids": []}],
    ],
    (19, "name"): ["full", "", ".", "..", "bad/name", "x" * 249, "x" * 250, "__own", "__consumer_offsets"],
    (20, "name"): ["missing", "", ".", "bad/name", None],
    (20, "topic_names"): [["missing"], [""], ["bad/name"]],
    (20, "topic_id"): [UNKNOWN_ID, id_of("full")],
    (21, "offset"): [-1, 0, 3, 4, -2, 2**63 - 1],
    (22, "transactional_id"): ["", "an-id"],
    (22, "transaction_timeout"): [today.seconds(each) for each in (0, -MS, 10**6)],
    (22, "producer_id"): [0, 5, -2],
    (22, "producer_epoch"): [0, 5, -2, 32767],
    (23, "leader_epoch"): [-1, -2, 1, MOST],
    (32, "configuration_keys"): [None, [], ["nosuch"]],
    (32, "resource_name"): [*NAMES, "__consumer_offsets"],
    (35, "topics"): [None, []],
    (37, "count"): [0, 1, 2, -1, MOST],
    (37, "assignments"): [
        [{"broker_ids": [1]}, {"broker_ids": [1]}],
        [{"broker_ids": [1]}],
        [{"broker_ids": [9]}, {"broker_ids": [1]}],
        [{"broker_ids": []}, {"broker_ids": [1]}],
        [],
    ],
    (60, "endpoint_type"): [0, 2, 3, -1],
    (10, "key_type"): [1, 2, 3, -1],
    (10, "key"): ["", "x" * 300],
    (10, "coordinator_keys"): [[""], ["a", "b"], ["a", "a"]],
    (18, "client_software_name"): ["", "-", "bad name", "é"],
    (18, "client_software_version"): ["", "-", "bad version"],
    (None, "name"): NAMES,
    (None, "topic"): NAMES,
    (None, "resource_name"): NAMES,
    (None, "resource_type"): [0, 1, 4, 8, 16, 32, 99, -1],
    (None, "config_operation"): [1, 2, 3, 4, -1],
    (None, "value"): ["", "nosuch", "-1", "-2", None],
    (None, "group_id"): ["", "unknown"],
    (None, "member_id"): ["", "unknown"],
    (None, "group_instance_id"): ["", "unknown"],
    (None, "generation_id"): [0, -1, 2, MOST],
    (None, "generation_id_or_member_epoch"): [0, -1, 2, MOST],
    (None, "partition_index"): [1, 9, -1, MOST],
    (None, "partition"): [1, 9, -1, MOST],
    (None, "index"): [900, -1, MOST],
    (None, "current_leader_epoch"): [0, 1, MOST, -2],
    (None, "isolation_level"): [1, 2, -1],
    (None, "timeout"): [today.seconds(0), today.seconds(-MS)],
    (None, "replica_id"): [0, 1, 5, -2],
}
"""By api key, or None for any, and name of a field: its other values, or these by what they are called."""
BY_KIND: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [0, 1, 2, -1, 99],
    "int16": [0, 1, 2, -1],
    "int32": [0, 1, -1, MOST],
    "int64": [0, 1, -1, 2**63 - 1],
    "string": ["", "other"],
    "bytes": [b""],
}


def others(key: int, name: str, kind: str) -> dict[str, Any]:
    """What a field can be instead, by what that is called."""
    values = OTHERS.get((key, name), OTHERS.get((None, name), BY_KIND.get(kind, [])))
    return values if isinstance(values, dict) else {called(value): value for value in values}


def called(value: Any) -> str:
    """A value in a case's label."""
    if isinstance(value, str) and len(value) > 40:
        return f"{len(value)} characters"
    if isinstance(value, float) or hasattr(value, "total_seconds"):
        return f"{value.total_seconds() * 1000:.0f} ms"
    return "one of the broker's" if callable(value) else repr(value)


def changed(key: int, schema: Any, fields: Fields) -> Iterator[tuple[str, Fields]]:
    """The fields of a request with one of them as it should not be, in each way; and what it is."""
    for name, hint, kind in fields_of(schema):
        if name not in fields:
            continue
        inner, is_list, is_nullable = _shape(hint)
        for label, value in others(key, name, kind).items():
            if value is not None or is_nullable:
                made = [value] if is_list and value is not None and not isinstance(value, list) else value
                yield f"{name}: {label}", {**fields, name: made}
        good = fields[name]
        if not is_list:
            if dataclasses.is_dataclass(inner):
                for label, part in changed(key, inner, good):
                    yield f"{name}.{label}", {**fields, name: part}
            continue
        if good:
            yield f"{name}: none", {**fields, name: []}
            yield f"{name}: twice", {**fields, name: [good[0], good[0]]}
        if good and dataclasses.is_dataclass(inner):
            for label, part in changed(key, inner, good[0]):
                yield f"{name}.{label}", {**fields, name: [part, *good[1:]]}


def _shape(hint: Any) -> tuple[Any, bool, bool]:
    """The type of a field's elements, and whether it is a list and may be null."""
    is_nullable = False
    if isinstance(hint, types.UnionType):
        is_nullable = True
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, is_nullable
    return hint, False, is_nullable


def generated(keys: set[int]) -> Iterator[Case]:
    """A good request of each kind and version, and what is changed of it; each asks for a new good one."""
    for key, api in sorted((kinds.APIS | kinds.FORWARDED).items(), key=lambda one: (one[0] not in FIRST, one[0])):
        if key not in keys:
            continue
        for version in range(api.served, api.last + 1):
            schema = load_request_schema(key, version)
            good, prepare = GOOD[key](version)
            yield Case(key, version, "good", good, prepare)
            for at in range(len(list(changed(key, schema, good)))):
                fields, prepare = GOOD[key](version)
                label, fields = next(itertools.islice(changed(key, schema, fields), at, None))
                yield Case(key, version, label, fields, prepare)
    if METADATA in keys:
        yield from by_id()


def by_id() -> Iterator[Case]:
    """METADATA of a topic by its id alone."""
    for label, topic_id in (("by its id", id_of("full")), ("by an unknown id", UNKNOWN_ID)):
        fields, _ = metadata(12)
        yield Case(METADATA, 12, label, {**fields, "topics": [{"topic_id": topic_id, "name": None}]})
