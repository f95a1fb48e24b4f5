"""PRODUCE, FETCH and LIST_OFFSETS of today's protocol, at every version that is offered."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.log import _files
from fastlog.log._append import end_life
from fastlog.log._arena import STATE_OFFLINE
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log.formats import format_number
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import LogManager
from fastlog.log.slots import SlotSpec
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import wait_until
from tests.harness.calls import recorded_calls
from tests.harness.shared_log import LIMITS, SharedLog
from tests.harness.today_client import (
    EARLIEST,
    EARLIEST_HERE,
    LARGEST,
    LATEST,
    LATEST_ELSEWHERE,
    RECORDS,
    Client,
    batch,
    each,
    filled,
    make_with,
    values_of,
)
from tests.harness.topic_maker import TopicMaker
from tests.harness.workers import Workers, drain


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {"partitions_by_topic": {"two": 2}, "fetch_max_wait_ms": 60_000, "max_inflated_bytes": 1 << 22}
    with Workers(tmp_path_factory.mktemp("log"), slots=256, **settings) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        yield connected


# -- topics ------------------------------------------------------------------------------------------------------------


def test_who_asks_for_a_topic_has_it_made(client: Client) -> None:
    """With all its partitions and an id of its own, which every later answer has."""
    (made,) = client.make("two")
    assert (made.error_code, made.name, made.is_internal) == (0, "two", False)
    assert [(part.partition_index, part.leader_id, part.leader_epoch) for part in made.partitions] == [
        (0, 0, 0),
        (1, 0, 0),
    ]
    assert {part.replica_nodes for part in made.partitions} == {(0,)} == {part.isr_nodes for part in made.partitions}
    assert made.topic_id is not None and made.topic_id.version == 4
    assert client.make("two") == [made]
    other, again = client.make("other", "two")
    assert again == made and other.topic_id != made.topic_id
    for version in each(today.METADATA):
        fields: dict[str, Any] = {"topics": None, "allow_auto_topic_creation": False}
        operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": False}
        if version == 0:
            fields["topics"] = []
        every = client.ask(today.METADATA, version, **fields, **operations).topics
        assert {"two", "other"} <= {topic.name for topic in every}
        (found,) = [topic for topic in every if topic.name == "two"]
        assert len(found.partitions) == 2
        if version >= 10:
            assert found.topic_id == made.topic_id
        if version >= 8:
            assert found.topic_authorized_operations == sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
    by_id = {"topics": [{"topic_id": made.topic_id, "name": None}], "allow_auto_topic_creation": True}
    (found,) = client.ask(today.METADATA, 12, **by_id, include_topic_authorized_operations=False).topics
    assert found == made


def told_by_id(client: Client, topic_id: bytes, *more: str) -> list[Any]:
    """What METADATA says of the topic with an id, and of those with these names."""
    topics = [{"topic_id": uuid.UUID(bytes=topic_id), "name": None}]
    topics += [{"topic_id": None, "name": name} for name in more]
    flags = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    return list(client.ask(today.METADATA, 12, topics=topics, **flags).topics)


def test_ids_of_topics_that_came_and_went_are_known_no_more(tmp_path: Path) -> None:
    """However many there were; each was known by whichever partition it had, and is named as it was asked for."""
    with Workers(tmp_path, slots=1, makes_topics=False) as workers, Client(workers) as client:
        arena, log = workers.arena, SharedLog.over(workers.arena)
        words: dict[str, Any] = {"format": format_number(RECORD_BATCHES), "created_ms": 1, "segments": [(0, 1, 0)]}
        for number in range(1, 80):
            topic_id = number.to_bytes(16, "big")
            assert arena.create_lock()
            index = arena.add(SlotSpec("t", 1, 0, log_end=0, topic_id=topic_id, **words, **LIMITS))
            arena.create_unlock()
            assert told_by_id(client, topic_id)[0].error_code == 0
            assert arena.create_lock()
            assert end_life(log.appender, index)
            arena.create_unlock()
            (gone,) = told_by_id(client, topic_id)
            assert (gone.error_code, gone.topic_id, gone.partitions) == (100, uuid.UUID(bytes=topic_id), ())
            arena.wake_all()
            wait_until("it is past", lambda index=index: arena.is_past(index))  # type: ignore[misc]
            assert arena.create_lock()
            arena.free(index)
            arena.create_unlock()


def test_ids_that_share_a_place_are_told_apart(tmp_path: Path) -> None:
    """They differ in one byte, and begin at one place of the table; those behind one that goes are found as before."""
    with Workers(tmp_path, slots=32, makes_topics=False) as workers, Client(workers) as client:
        arena, log = workers.arena, SharedLog.over(workers.arena)
        words: dict[str, Any] = {"format": format_number(RECORD_BATCHES), "created_ms": 1, "segments": [(0, 1, 0)]}
        ids = [number.to_bytes(16, "big") for number in range(1, 33)]
        assert arena.create_lock()
        made = [
            arena.add(SlotSpec(f"t{at}", 0, 0, log_end=0, topic_id=of, **words, **LIMITS)) for at, of in enumerate(ids)
        ]
        arena.create_unlock()
        for number, topic_id in enumerate(ids):
            assert [(one.error_code, one.name) for one in told_by_id(client, topic_id)] == [(0, f"t{number}")]
        assert told_by_id(client, (99).to_bytes(16, "big"))[0].error_code == 100
        assert arena.create_lock()
        assert all(end_life(log.appender, index) for index in made[::3])
        arena.create_unlock()
        codes = [told_by_id(client, topic_id)[0].error_code for topic_id in ids]
        assert codes == [100 if number % 3 == 0 else 0 for number in range(len(ids))]


def test_a_topic_is_made_beside_one_that_is_named_by_its_id(client: Client) -> None:
    (made,) = client.make("named")
    found = told_by_id(client, made.topic_id.bytes, "made-beside")
    assert [(topic.error_code, topic.name) for topic in found] == [(0, "named"), (0, "made-beside")]


def test_the_brokers_own_topics_are_told_apart(workers: Workers, client: Client) -> None:
    make_with(workers, "__own")
    assert [told_by_id(client, bytes(15) + b"?", name)[1].is_internal for name in ("__own", "two")] == [True, False]


@pytest.mark.parametrize("name", ["a b", "\u00e9", "x" * 250, ".", "..", "__mine"])
def test_names_that_kafka_has_not_are_not_made(client: Client, name: str) -> None:
    (found,) = client.make(name)
    assert (found.error_code, found.partitions) == (17, ())


def test_a_topic_is_not_made_where_nobody_wants_it(client: Client) -> None:
    fields = {"topics": [{"topic_id": None, "name": "unwanted"}], "allow_auto_topic_creation": False}
    (found,) = client.ask(today.METADATA, 12, **fields, include_topic_authorized_operations=False).topics
    assert found.error_code == 3


def test_a_topic_of_07_keeps_its_name(workers: Workers, client: Client) -> None:
    with workers.connect() as old:
        assert old.produce_ack("old", 0, raw.entry(b"one"), raw.FLUSHED).error == 0
    assert [topic.error_code for topic in client.make("old")] == [0]
    assert [part.error_code for part in client.produce(("old", 0, batch(b"x")))] == [43]
    assert list(workers.directory.glob("old-0/*.log")) == []


# -- what is produced is fetched ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", each(today.PRODUCE))
@pytest.mark.parametrize("acks", [1, -1])
def test_batches_are_stored_as_they_come(client: Client, version: int, acks: int) -> None:
    topic = f"produce-{version}{acks}"
    client.make(topic)
    for number in range(3):
        (told,) = client.produce((topic, 0, record_batches.build(RECORDS)), version=version, acks=acks)
        assert (told.index, told.error_code, told.base_offset) == (0, 0, 3 * number)
        if version >= 5:
            assert told.log_start_offset == 0
        if version >= 8:
            assert told.record_errors == () and told.error_message is None
    found = client.fetch((topic, 0, 4), max_wait=10_000)
    stored = list(record_batches.batches(bytes(found[0].records)))
    assert [header.base_offset for header, _ in stored] == [3, 6]
    assert [bytes(data[61:]) for _, data in stored] == [record_batches.build(RECORDS)[61:]] * 2
    assert [record._replace(offset=-1) for record in record_batches.records(bytes(stored[0][1]))] == RECORDS


@pytest.mark.parametrize("version", each(today.FETCH))
def test_every_version_of_fetch(client: Client, version: int) -> None:
    (made,) = client.make("fetch")
    while client.offset("fetch", 0, LATEST).offset < 2:
        client.produce(("fetch", 0, batch(b"a", b"b")), acks=-1)
    fields = today.fetched(("fetch", 0, 0), ids={"fetch": made.topic_id}, isolation=version % 2)
    fields["forgotten_topics_data"] = [{"topic": "fetch", "topic_id": made.topic_id, "partitions": [0, 1]}] * 2
    (found,) = client.ask(today.FETCH, version, **fields).responses[0].partitions
    assert (found.partition_index, found.error_code) == (0, 0)
    assert (found.high_watermark, found.last_stable_offset) == (2, 2)
    assert found.aborted_transactions == (() if version % 2 else None)
    if version >= 5:
        assert found.log_start_offset == 0
    assert values_of(found) == [(0, b"a"), (1, b"b")]


@pytest.mark.parametrize("version", each(today.LIST_OFFSETS))
def test_every_version_of_list_offsets(client: Client, version: int) -> None:
    client.make("list")
    while client.offset("list", 0, LATEST).offset < 3:
        client.produce(("list", 0, record_batches.build(RECORDS)), acks=-1)
    expected = {EARLIEST: (0, -1), LATEST: (3, -1)}
    if version >= 7:
        expected |= {LARGEST: (1, 3000), EARLIEST_HERE: (0, -1), LATEST_ELSEWHERE: (-1, -1)}
    for when, (offset, timestamp) in expected.items():
        found = client.offset("list", 0, when, version)
        assert (found.error_code, found.offset, found.timestamp) == (0, offset, timestamp), when
    if version >= 4:
        assert client.offset("list", 0, LATEST, version, epoch=0).error_code == 0
        assert client.offset("list", 0, LATEST, version, epoch=1).error_code == 75
    for when, found_at in ((0, (0, 1000)), (1000, (0, 1000)), (1001, (1, 3000)), (3000, (1, 3000)), (3001, (-1, -1))):
        found = client.offset("list", 0, when, version)
        assert (found.error_code, found.offset, found.timestamp) == (0, *found_at), when
    assert client.offset("list", 0, -6, version).error_code == 42
    assert client.offset("list", 1, LATEST, version).error_code == 3
    assert client.offset("list", 1, 0, version).error_code == 3
    assert client.offset("none", 0, LATEST, version).error_code == 3
    assert client.offset("list", -1, LATEST, version).error_code == 3


@pytest.mark.parametrize("when", [LATEST, LARGEST])
def test_who_has_produced_and_asks_for_the_end_sees_it(tmp_path: Path, when: int) -> None:
    with Workers(tmp_path, flusher=False) as workers, Client(workers) as client:
        client.make("t")
        assert client.produce(("t", 0, batch(b"x")), acks=1)[0].error_code == 0
        client.socket.sendall(today.request(today.LIST_OFFSETS, 7, today.listed(("t", 0, when))))
        workers.wait_still()
        workers.start_flusher()
        _, found = today.decoded(today.LIST_OFFSETS, 7, today.answer_of(client.socket))
        assert found.topics[0].partitions[0].offset == (1 if when == LATEST else 0)


def test_an_end_that_nobody_makes_visible_any_more_is_not_waited_for(tmp_path: Path) -> None:
    """Where flushing has failed: who asks for the end is not even held once."""
    with Workers(tmp_path, flusher=False) as workers, Client(workers) as client:
        client.make("t")
        assert client.produce(("t", 0, batch(b"x")))[0].error_code == 0
        _files.arm("fdatasync=EIO", "test")
        (view,) = workers.arena.views()
        assert flush_now(make_partition_flusher(workers.arena, 64, 0, 0), view.index) != 0
        _files.arm("", "test")
        with recorded_calls(tmp_path) as calls:
            assert client.offset("t", 0, LATEST).offset == 0
        assert "wait.hold" not in {call.name for call in calls}


def test_times_of_several_partitions_at_once(client: Client) -> None:
    """Beside what is known without a look into files, and each in its place."""
    client.make("times", "two")
    for number in range(300):
        client.produce(("times", 0, batch(b"x" * 1000, time_ms=10_000 + number)), acks=1)
    client.offset("times", 0, LATEST)
    parts = [("times", 0, LARGEST), ("none", 0, 5), ("times", 0, EARLIEST), ("times", 0, 10_200), ("times", 0, LATEST)]
    found = client.ask(today.LIST_OFFSETS, 9, **today.listed(*parts)).topics
    assert [(one.partitions[0].error_code, one.partitions[0].offset) for one in found] == [
        (0, 299),
        (3, -1),
        (0, 0),
        (0, 200),
        (0, 300),
    ]
    assert [one.partitions[0].timestamp for one in found] == [10_299, -1, -1, 10_200, -1]


def test_one_of_several_brokers_refuses_and_says_so(workers: Workers, client: Client) -> None:
    """What a client can be told is told by its first request; any other ends the connection. 0.7 goes on."""
    (made,) = client.make("part")
    with Client(workers) as waiting:
        parts = today.fetched(("part", 0, 0), max_wait=50_000)
        waiting.socket.sendall(today.request(today.FETCH, 12, parts))
        workers.wait_still()
        workers.arena.set_other_broker(0)
        try:
            (topic,) = client.make("part")
            assert (topic.error_code, topic.partitions) == (29, ())
            (topic,) = client.make("never-made")
            assert (topic.error_code, topic.partitions) == (29, ())
            flags = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
            found = client.ask(today.METADATA, 12, topics=None, **flags)
            assert found.topics == () and len(found.brokers) == 1
            by_id = [{"topic_id": made.topic_id, "name": None}]
            (topic,) = client.ask(today.METADATA, 12, topics=by_id, **flags).topics
            assert (topic.error_code, topic.partitions) == (100, ())
            assert client.ask(today.API_VERSIONS, 0).error_code == 0
            for key, version, fields in (
                (today.PRODUCE, 9, today.produced(("part", 0, batch(b"x")), acks=-1)),
                (today.FETCH, 12, today.fetched(("part", 0, 0))),
                (today.LIST_OFFSETS, 7, today.listed(("part", 0, LATEST))),
            ):
                with Client(workers) as other:
                    other.socket.sendall(today.request(key, version, fields))
                    assert drain(other.raw) == b""
            with Client(workers) as other:
                other.socket.sendall(today.framed(struct.pack(">hhi", 60, 0, 5) + b"\0\0\0"))
                assert drain(other.raw) == b""
            with workers.connect() as old:
                assert old.produce_ack("of-07", 0, raw.entry(b"x")).error == 0
        finally:
            workers.arena.set_other_broker(None)
        assert client.produce(("part", 0, batch(b"x")), acks=-1)[0].error_code == 0
        _, found = today.decoded(today.FETCH, 12, today.answer_of(waiting.socket))
        assert values_of(found.responses[0].partitions[0]) == [(0, b"x")], "what had begun goes on"
    assert "never-made" not in {view.topic for view in workers.arena.views()}


# -- what is out of service, and what is being made --------------------------------------------------------------------


def test_what_is_out_of_service_is_so_for_every_request(tmp_path: Path) -> None:
    """Beside a partition that serves. None of it is said to be unknown: it may come back."""
    with Workers(tmp_path, makes_topics=False) as workers, Client(workers) as client:
        words: dict[str, Any] = {"format": format_number(RECORD_BATCHES), "created_ms": 1, "topic_id": b"t" * 16}
        assert workers.arena.create_lock()
        for partition, state in enumerate((STATE_OFFLINE, 0)):
            place = {"topic": "t", "partition": partition, "directory": 0, "segments": [(0, 1, 0)], "log_end": 0}
            workers.arena.add(SlotSpec(**place, **words, **LIMITS, state=state))
        workers.arena.create_unlock()
        assert client.produce(("t", 0, batch(b"x")))[0].error_code == 56
        assert [part.error_code for part in client.fetch(("t", 0, 0), ("t", 1, 0))] == [56, 0]
        for when in (EARLIEST, LATEST, LARGEST, 0):
            assert client.offset("t", 0, when).error_code == 56
        for version in each(today.METADATA):
            named = {"topics": [{"topic_id": None, "name": "t"}], "allow_auto_topic_creation": False}
            flags = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
            (topic,) = client.ask(today.METADATA, version, **named, **flags).topics
            gone, there = topic.partitions
            assert [(part.error_code, part.leader_id, part.isr_nodes) for part in (gone, there)] == [
                (5, -1, ()),
                (0, 0, (0,)),
            ]
            assert gone.replica_nodes == there.replica_nodes == (0,)
            if version >= 5:
                assert (gone.offline_replicas, there.offline_replicas) == ((0,), ())


def test_errors_are_those_of_each_partition(client: Client) -> None:
    filled(client, "errors", 2)
    found = client.fetch(("errors", 0, 3), ("errors", 0, -1), ("errors", 1, 0), ("none", 0, 0), ("errors", 0, 1))
    assert [part.error_code for part in found] == [1, 1, 3, 3, 0]
    assert [(part.high_watermark, part.log_start_offset) for part in found] == [(-1, -1)] * 4 + [(2, 0)]
    assert [part.high_watermark for part in found] == [-1, -1, -1, -1, 2]
    assert values_of(found[4])
    assert client.fetch(("errors", 0, 0), epoch=1)[0].error_code == 75
    assert client.fetch(("errors", 0, 0), epoch=0)[0].error_code == 0
    (unknown,) = client.fetch(("errors", 0, 0), version=13, ids={"errors": None})
    assert unknown.error_code == 100


def test_what_is_being_made_is_not_shown(workers: Workers, client: Client) -> None:
    """A topic, until it is written down that it is there, and partitions that it gets later."""
    manager = LogManager(workers.processors[0].config, workers.arena)
    topic_id = bytes(range(16, 32))

    def make(partition: int) -> int:
        words: dict[str, Any] = {"format_name": "record-batches", "topic_id": topic_id, "settled": False}
        return manager.create_partition("growing", partition, count=2, **words)

    def told(**named: Any) -> Any:
        flags = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        (topic,) = client.ask(today.METADATA, 12, topics=[{"topic_id": None, "name": None} | named], **flags).topics
        return topic.error_code, [part.partition_index for part in topic.partitions]

    def listed() -> dict[str, int]:
        flags = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        return {one.name: len(one.partitions) for one in client.ask(today.METADATA, 12, topics=None, **flags).topics}

    by_id = {"topic_id": uuid.UUID(bytes=topic_id)}
    first = make(0)
    assert told(name="growing") == (3, []) and told(**by_id) == (100, []) and "growing" not in listed()
    workers.arena.settle(first)
    assert told(name="growing") == told(**by_id) == (0, [0]) and listed()["growing"] == 1
    second = make(1)
    assert told(name="growing") == (0, [0]) and listed()["growing"] == 1
    workers.arena.settle(second)
    assert told(name="growing") == (0, [0, 1]) and listed()["growing"] == 2


def test_who_asks_for_a_topic_that_is_being_made_waits_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(tmp_path) as workers, Client(workers) as client:
        manager = LogManager(workers.processors[0].config, workers.arena)
        words: dict[str, Any] = {"format_name": RECORD_BATCHES, "topic_id": b"g" * 16, "settled": False}
        index = manager.create_partition("growing", 0, count=1, **words)
        monkeypatch.setattr(TopicMaker, "_make", lambda *_: workers.arena.settle(index) or 0)
        (made,) = client.make("growing")
        assert (made.error_code, len(made.partitions)) == (0, 1)


def test_an_index_does_not_take_the_place_of_its_own_segment(tmp_path: Path) -> None:
    """Descriptors are few, and all others have seen bytes that are not flushed: they are kept before this one."""
    with Workers(tmp_path, flusher=False) as workers, Client(workers) as client:
        client.make("read", *(f"busy{number}" for number in range(16)))
        for number in range(20):
            assert client.produce(("read", 0, batch(b"%d" % number * 500)))[0].error_code == 0
        flusher = make_partition_flusher(workers.arena, 64, 0, 0)
        (read,) = [view.index for view in workers.arena.views() if view.topic == "read"]
        assert flush_now(flusher, read) == 0
        for number in range(16):
            assert client.produce((f"busy{number}", 0, batch(b"x")))[0].error_code == 0
        (found,) = client.fetch(("read", 0, 15))
        assert (found.error_code, values_of(found)[0]) == (0, (15, b"15" * 500))
