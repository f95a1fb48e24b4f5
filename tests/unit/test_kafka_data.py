"""PRODUCE, FETCH and LIST_OFFSETS of today's protocol, at every version that is offered."""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.log import _files
from fastlog.log._arena import STATE_OFFLINE
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log.files import FileOps
from fastlog.log.formats import format_number
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.kafka_files import write_epochs
from fastlog.log.manager import LogManager
from fastlog.log.slots import SlotSpec
from fastlog.record_batches import Record
from fastlog.workers.kafka import kinds
from fastlog.workers.kafka.codes import Code
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.shared_log import LIMITS
from tests.harness.topic_maker import TopicMaker
from tests.harness.workers import Workers, drain, is_silent

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ZSTD = 4
EARLIEST, LATEST, LARGEST, EARLIEST_HERE, LATEST_ELSEWHERE = -2, -1, -3, -4, -5
RECORDS = [Record(b"k", b"one", 1000, ((b"h", b"x"), (b"n", None))), Record(None, None, 3000), Record(b"", b"", 2000)]


def each(key: int) -> list[int]:
    api = kinds.APIS[key]
    return list(range(api.served, api.last + 1))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {"partitions_by_topic": {"two": 2}, "fetch_max_wait_ms": 60_000, "max_inflated_bytes": 1 << 22}
    with Workers(tmp_path_factory.mktemp("log"), slots=256, **settings) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        yield connected


class Client:
    """A connection that speaks today's protocol."""

    def __init__(self, workers: Workers, processor: int = 0) -> None:
        self.raw = workers.connect(processor)
        self.socket = self.raw.socket
        self.ask(today.API_VERSIONS, 0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        return today.asked(self.socket, key, version, **fields)

    def make(self, *topics: str) -> list[Any]:
        """Have topics made as clients do, by asking for them; what is said of each."""
        fields = {
            "topics": [{"topic_id": None, "name": topic} for topic in topics],
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        }
        return list(self.ask(today.METADATA, 12, **fields).topics)

    def produce(self, *parts: tuple[str, int, bytes | None], version: int = 9, **fields: Any) -> list[Any]:
        """What is said of each part, in the order of the request."""
        found = self.ask(today.PRODUCE, version, **today.produced(*parts, **fields))
        return [part for topic in found.responses for part in topic.partition_responses]

    def fetch(self, *parts: tuple[str, int, int], version: int = 12, **fields: Any) -> list[Any]:
        found = self.ask(today.FETCH, version, **today.fetched(*parts, **fields))
        return [part for topic in found.responses for part in topic.partitions]

    def offset(self, topic: str, partition: int, when: int, version: int = 7, epoch: int = -1) -> Any:
        found = self.ask(today.LIST_OFFSETS, version, **today.listed((topic, partition, when), epoch=epoch))
        return found.topics[0].partitions[0]


def batch(*values: bytes, codec: int = 0, time_ms: int = 1000) -> bytes:
    return record_batches.build([Record(None, value, time_ms) for value in values], codec=codec)


def values_of(part: Any) -> list[tuple[int, bytes | None]]:
    """Offsets and values of the records that a part of a fetch got."""
    found = []
    for _, data in record_batches.batches(bytes(part.records or b"")):
        found += [(record.offset, record.value) for record in record_batches.records(bytes(data))]
    return found


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


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 3000])
def test_compressed_batches(workers: Workers, client: Client, codec: str, count: int) -> None:
    """Small ones are looked into at once, large ones by a thread; what is in them does not change."""
    topic = f"codec-{codec}-{count}"
    client.make(topic)
    before = workers.count("inflated_off_loop")
    values = [b"%d" % number * (100 if CODECS[codec] else 50) for number in range(count)]
    data = batch(*values, codec=CODECS[codec])
    (told,) = client.produce((topic, 0, data), acks=-1)
    assert (told.error_code, told.base_offset) == (0, 0)
    assert (workers.count("inflated_off_loop") > before) == (codec != "none" and count == 3000)
    (found,) = client.fetch((topic, 0, 0), max_bytes=1 << 30, limit=1 << 30)
    assert bytes(found.records)[61:] == data[61:]
    assert client.offset(topic, 0, LARGEST).timestamp == 1000


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_largest_time_that_is_misstated_is_put_right(client: Client, codec: str) -> None:
    """As Kafka does: consumers find records by it."""
    topic = f"misstated-{codec}"
    client.make(topic)
    data = bytearray(record_batches.build(RECORDS, codec=CODECS[codec]))
    struct.pack_into(">q", data, 35, 9_999_999)
    struct.pack_into(">I", data, 17, record_batches.crc32c(bytes(data[21:])))
    assert client.produce((topic, 0, bytes(data)), acks=-1)[0].error_code == 0
    (found,) = client.fetch((topic, 0, 0))
    (header,) = [header for header, _ in record_batches.batches(bytes(found.records))]
    assert header.max_timestamp == 3000
    assert list(record_batches.records(bytes(found.records)))
    assert (client.offset(topic, 0, LARGEST).timestamp, client.offset(topic, 0, LARGEST).offset) == (3000, 1)


def test_parts_of_one_produce_have_results_of_their_own(client: Client) -> None:
    client.make("two", "mixed")
    start = client.offset("two", 1, LATEST).offset
    parts = [
        ("two", 1, batch(b"x")),
        ("none", 0, batch(b"x")),
        ("two", 9, batch(b"x")),
        ("two", -1, batch(b"x")),
        ("mixed", 0, damaged(batch(b"x"), 61)),
        ("two", 1, batch(b"y", b"z")),
        ("mixed", 0, None),
        ("__own", 0, batch(b"x")),
    ]
    told = client.produce(*parts, acks=-1)
    assert [(part.index, part.error_code, part.base_offset) for part in told] == [
        (1, 0, start),
        (0, 3, -1),
        (9, 3, -1),
        (-1, 3, -1),
        (0, 2, -1),
        (1, 0, start + 1),
        (0, 87, -1),
        (0, 17, -1),
    ]
    assert values_of(client.fetch(("two", 1, start))[0]) == [(start, b"x"), (start + 1, b"y"), (start + 2, b"z")]


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def rewritten(data: bytes, at: int, layout: str, value: int) -> bytes:
    """A batch with another value in its head, and the checksum of that."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, 17, record_batches.crc32c(bytes(changed[21:])))
    return bytes(changed)


REFUSED: dict[str, tuple[bytes, int]] = {
    "none": (b"", 87),
    "half of it": (batch(b"x" * 100)[:-1], 2),
    "less than a head": (batch(b"x")[:60], 2),
    "two batches": (batch(b"x") * 2, 87),
    "magic 1": (batch(b"x")[:16] + b"\1" + batch(b"x")[17:], 87),
    "another checksum": (damaged(batch(b"x"), 18), 2),
    "no record": (rewritten(batch(b"x"), 57, ">i", 0), 87),
    "more records than offsets": (rewritten(batch(b"x"), 57, ">i", 2), 87),
    "a record too few": (rewritten(rewritten(batch(b"x", b"y"), 57, ">i", 3), 23, ">i", 2), 87),
    "a codec that nobody has": (rewritten(batch(b"x"), 21, ">h", 7), 87),
    "a control batch": (rewritten(batch(b"x"), 21, ">h", 0x20), 87),
    "a producer below -1": (rewritten(batch(b"x"), 43, ">q", -2), 87),
    "a producer without an epoch": (rewritten(rewritten(batch(b"x"), 43, ">q", 7), 53, ">i", 0), 87),
    "a producer without numbers": (rewritten(rewritten(batch(b"x"), 43, ">q", 7), 51, ">h", 0), 87),
    "the broker's time": (rewritten(batch(b"x"), 21, ">h", 8), 32),
    "records that are not gzip": (rewritten(batch(b"x"), 21, ">h", 1), 87),
    "larger than a batch may be": (batch(bytes(1_048_588)), 10),
    "a bomb": (batch(bytes(1 << 22), bytes(1 << 22), codec=1), 10),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing(
    client: Client, caplog: pytest.LogCaptureFixture, data: bytes, code: int
) -> None:
    client.make("refused")
    start = client.offset("refused", 0, LATEST).offset
    for version in (3, 8, 11):
        (told,) = client.produce(("refused", 0, data), version=version)
        assert (told.error_code, told.base_offset) == (code, -1)
        if version >= 8:
            assert told.error_message
            assert told.record_errors == ()  # it is refused as a whole
    assert client.offset("refused", 0, LATEST).offset == start


REASONS = {
    "half of it": "the length that the batch tells",
    "less than a head": "the length that the batch tells",
    "magic 1": "an older format than magic 2",
    "another checksum": "the checksum",
    "no record": "the batch tells of no record",
    "more records than offsets": "another number of records than of offsets",
    "a control batch": "a codec that nobody has, or a control or transactional batch",
    "a producer below -1": "producer id, epoch and sequence number do not go together",
    "the broker's time": "the time of its append",
}


@pytest.mark.parametrize(("name", "reason"), REASONS.items(), ids=REASONS)
def test_the_answer_says_what_is_wrong_with_a_batch(client: Client, name: str, reason: str) -> None:
    """Each fault by its own words: of two that have one error code nobody else tells which it was."""
    client.make("refused")
    (told,) = client.produce(("refused", 0, REFUSED[name][0]))
    assert reason in told.error_message


def test_the_log_names_where_what_cannot_be_decompressed_was_for(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.make("one", "another")
    bad = REFUSED["records that are not gzip"][0]
    fine = batch(b"x", codec=CODECS["gzip"])  # what was found of one says nothing of the next
    assert [told.error_code for told in client.produce(("one", 0, fine), ("another", 0, bad))] == [0, 87]
    (line,) = [each.getMessage() for each in caplog.records if "invalid compressed" in each.getMessage()]
    assert "topic='another' partition=0" in line and "'one'" not in line


def test_what_stands_beside_no_producer_means_nothing(client: Client) -> None:
    """sarama, franz-go and kafkajs leave zeroes there; whatever it is, each batch is stored and followed by nobody."""
    client.make("unnumbered")
    sent = [
        rewritten(rewritten(batch(b"x"), 51, ">h", epoch), 53, ">i", sequence)
        for epoch, sequence in ((0, 0), (0, 0), (-1, 0), (0, -1), (5, 9), (5, 9), (-7, -7))
    ]
    answers = [client.produce(("unnumbered", 0, data))[0] for data in sent]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, number) for number in range(len(sent))]


def test_zstd_is_for_those_who_know_it(client: Client) -> None:
    client.make("zstd")
    data = batch(b"x", codec=ZSTD)
    assert [client.produce(("zstd", 0, data), version=version)[0].error_code for version in (6, 7)] == [76, 0]


def test_what_a_produce_cannot_ask_for(client: Client) -> None:
    client.make("asked")
    assert client.produce(("asked", 0, batch(b"x")), acks=2)[0].error_code == 21
    assert client.produce(("asked", 0, batch(b"x")), transactional_id="t")[0].error_code == 53
    assert client.offset("asked", 0, LATEST).offset == 0


def test_without_acks_there_is_no_answer(client: Client) -> None:
    """The next answer is that to the next request; and all is there, in order."""
    client.make("silent")
    for number in range(10):
        fields = today.produced(("silent", 0, batch(b"%d" % number)), acks=0)
        client.socket.sendall(today.request(today.PRODUCE, 9, fields))
    assert client.offset("silent", 0, LATEST).offset == 10
    assert [value for _, value in values_of(client.fetch(("silent", 0, 0))[0])] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("data", [damaged(batch(b"x"), 61), None])
def test_without_acks_an_error_ends_the_connection(
    workers: Workers, client: Client, caplog: pytest.LogCaptureFixture, data: bytes | None
) -> None:
    """As in Kafka: nothing else would tell the producer. What came before is stored."""
    client.make("broken")
    start = client.offset("broken", 0, LATEST).offset
    with Client(workers) as producer:
        for one in (batch(b"a"), data, batch(b"b")):
            producer.socket.sendall(today.request(today.PRODUCE, 9, today.produced(("broken", 0, one), acks=0)))
        assert drain(producer.raw) == b""
    assert client.offset("broken", 0, LATEST).offset == start + 1


def test_answers_to_produces_come_in_order_whatever_they_wait_for(client: Client) -> None:
    """Those that wait for the disk keep those behind them, and requests of other kinds too."""
    client.make("order", "two")
    requests = b""
    for number in range(200):
        acks, topic = (-1, "order") if number % 3 else (1, "two")
        fields = today.produced((topic, 0, batch(b"%d" % number)), acks=acks)
        requests += today.request(today.PRODUCE, 9, fields, correlation=number)
        if number % 50 == 49:
            requests += today.request(
                today.LIST_OFFSETS, 7, today.listed(("order", 0, LATEST)), correlation=1000 + number
            )
    client.socket.sendall(requests)
    base = -1
    for number in range(200):
        correlation, found = today.decoded(today.PRODUCE, 9, today.answer_of(client.socket))
        assert correlation == number
        told = found.responses[0].partition_responses[0]
        assert told.error_code == 0
        if number % 3:
            assert told.base_offset == base + 1
            base += 1
        if number % 50 == 49:
            correlation, listing = today.decoded(today.LIST_OFFSETS, 7, today.answer_of(client.socket))
            assert correlation == 1000 + number
            assert listing.topics[0].partitions[0].offset == base + 1


def test_a_batch_larger_than_a_run_is_written_from_where_it_was_received(client: Client) -> None:
    client.make("large", "two")
    large = batch(bytes(900_000))
    start = client.offset("two", 0, LATEST).offset
    told = client.produce(("two", 0, batch(b"a")), ("large", 0, large), ("two", 0, batch(b"b")), ("large", 0, large))
    assert [part.error_code for part in told] == [0, 0, 0, 0]
    assert [part.base_offset for part in told] == [start, 0, start + 1, 1]
    (found,) = client.fetch(("large", 0, 1), max_wait=10_000, limit=10)
    assert [len(value or b"") for _, value in values_of(found)] == [900_000]
    # and those that fill a run together, before the next one has begun
    told = client.produce(*[("large", 0, batch(bytes(200_000)))] * 5)
    assert [(part.error_code, part.base_offset) for part in told] == [(0, 2 + number) for number in range(5)]


def test_a_connection_may_produce_without_end(client: Client) -> None:
    """More than it may be owed at once: what was answered is owed no more."""
    request = today.request(today.PRODUCE, 9, today.produced(("none", 0, b"x")))
    client.socket.sendall(request)
    answer = today.answer_of(client.socket)
    for _ in range(10):
        client.socket.sendall(request * 500)
        assert client.raw.recv_exactly(500 * len(answer)) == answer * 500


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


def make_with(workers: Workers, topic: str, **settings: Any) -> None:
    """A topic with one partition and settings of its own."""
    config = workers.processors[0].config
    LogManager(config, workers.arena).create_partition(
        topic,
        0,
        format_name="record-batches",
        topic_id=uuid.uuid4().bytes,
        settings=config.for_topic(topic)._replace(**settings),
    )


def test_records_get_the_time_of_their_append_where_their_topic_says_so(workers: Workers, client: Client) -> None:
    make_with(workers, "append-time", append_time=True)
    before = round(time.time() * 1000) - 20  # the clock for files is a coarse one
    (told,) = client.produce(("append-time", 0, batch(b"x", codec=1, time_ms=5)), acks=-1)
    assert told.error_code == 0
    stamped = client.offset("append-time", 0, LARGEST).timestamp
    assert before <= stamped <= time.time() * 1000
    (found,) = client.fetch(("append-time", 0, 0))
    (record,) = record_batches.records(bytes(found.records))
    assert (record.timestamp, record.value) == (stamped, b"x")
    assert told.log_append_time.timestamp() * 1000 == pytest.approx(stamped)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_time_more_than_an_hour_ahead_is_refused(workers: Workers, client: Client, codec: str) -> None:
    """It would keep its segment for good; where records get the time of their append, theirs is no matter."""
    client.make("ahead")
    make_with(workers, f"ahead-{codec}", append_time=True)
    now = round(time.time() * 1000)
    late = batch(b"x", codec=CODECS[codec], time_ms=now + 3_700_000)
    assert client.produce(("ahead", 0, late))[0].error_code == 32
    assert client.produce((f"ahead-{codec}", 0, late))[0].error_code == 0
    assert client.produce(("ahead", 0, batch(b"x", codec=CODECS[codec], time_ms=now + 3_500_000)))[0].error_code == 0


def test_a_topic_has_its_own_bound_for_batches(workers: Workers, client: Client) -> None:
    data = batch(bytes(50))
    make_with(workers, "bounded", max_message_bytes=len(data))
    assert [client.produce(("bounded", 0, one))[0].error_code for one in (data, batch(bytes(51)))] == [0, 10]


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


# -- fetching ----------------------------------------------------------------------------------------------------------


def filled(client: Client, topic: str, count: int, *, size: int = 100, partition: int = 0) -> None:
    """Batches of one record, so many in all."""
    client.make(topic)
    while (have := client.offset(topic, partition, LATEST).offset) < count:
        client.produce((topic, partition, batch(b"%d" % have * (size // len(b"%d" % have)))), acks=-1)


def test_a_fetch_waits_for_what_is_wanted(workers: Workers, client: Client) -> None:
    client.make("wait")
    client.socket.sendall(today.request(today.FETCH, 12, today.fetched(("wait", 0, 0), max_wait=50_000, min_bytes=100)))
    with Client(workers) as producer:
        producer.produce(("wait", 0, batch(b"x")), acks=-1)
        workers.wait_still()
        assert is_silent(client.raw)
        assert workers.held()["pins"] == 0, "what it has found is not kept open for it"
        producer.produce(("wait", 0, batch(b"y")), acks=1)
    _, found = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
    assert values_of(found.responses[0].partitions[0]) == [(0, b"x"), (1, b"y")]


def test_a_fetch_ends_when_its_time_is_over(client: Client) -> None:
    filled(client, "over", 1)
    (found,) = client.fetch(("over", 0, 1), max_wait=30)
    assert (found.error_code, found.high_watermark, bytes(found.records or b"")) == (0, 1, b"")


def test_who_knows_an_end_that_is_not_visible_waits_and_no_longer_than_the_broker_lets_it(tmp_path: Path) -> None:
    with Workers(tmp_path, flusher=False, fetch_max_wait_ms=30) as workers, Client(workers) as client:
        client.make("t")
        assert client.produce(("t", 0, batch(b"x", b"y")))[0].error_code == 0
        for offset, code in ((0, 0), (1, 0), (2, 0), (3, 1)):
            (found,) = client.fetch(("t", 0, offset), max_wait=10_000_000)
            assert (found.error_code, found.high_watermark) == (code, -1 if code else 0)


def test_a_client_that_knows_another_leader_epoch_is_told_which_is_newer(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers, Client(workers) as client:
        client.make("t")
        assert client.produce(("t", 0, batch(b"x")), acks=-1)[0].error_code == 0
    write_epochs(tmp_path / "t-0", [(0, 0), (3, 1)], FileOps())
    with Workers(tmp_path, makes_topics=False) as workers, Client(workers) as client:
        LogManager(workers.processors[0].config, workers.arena).load([{}])
        epoch = workers.arena.view(0).epoch
        assert epoch >= 3
        for asked, code in ((epoch - 1, 74), (epoch, 0), (epoch + 1, 75)):
            assert client.fetch(("t", 0, 0), epoch=asked)[0].error_code == code
            assert client.offset("t", 0, LATEST, epoch=asked).error_code == code
        # of the end it is that of now, of a record that of its batch
        assert [client.offset("t", 0, when).leader_epoch for when in (LATEST, LARGEST, 1000)] == [epoch, 0, 0]
        assert client.make("t")[0].partitions[0].leader_epoch == epoch


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


def test_a_fetch_of_several_waits_for_any_of_them(workers: Workers, client: Client) -> None:
    client.make("two", "some")
    parts = [(topic, partition, client.offset(topic, partition, LATEST).offset) for topic, partition in (
        ("two", 0), ("two", 1), ("some", 0))]  # fmt: skip
    for topic, partition, _ in parts:
        client.socket.sendall(today.request(today.FETCH, 12, today.fetched(*parts, max_wait=50_000)))
        workers.wait_still()
        with Client(workers) as producer:
            assert producer.produce((topic, partition, batch(b"new")), acks=-1)[0].error_code == 0
        _, found = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
        got = {one.topic: one.partitions for one in found.responses}
        assert sum(len(values_of(part)) for one in found.responses for part in one.partitions) == 1, got
        parts = [(name, number, at + (name == topic and number == partition)) for name, number, at in parts]


def test_whatever_its_limits_a_fetch_has_one_whole_batch(client: Client) -> None:
    filled(client, "limits", 3, size=5000)
    for limits in ({"limit": 1}, {"max_bytes": 1}, {"limit": 0, "max_bytes": 0}):
        (found,) = client.fetch(("limits", 0, 1), **limits)
        assert [offset for offset, _ in values_of(found)] == [1]
    several = client.fetch(("limits", 0, 0), ("limits", 0, 1), ("limits", 0, 2), max_bytes=1)
    assert sum(len(values_of(part)) for part in several) == 1
    assert all(part.high_watermark == 3 for part in several)


def test_none_of_several_goes_short_for_ever(client: Client) -> None:
    """Where an answer holds one batch, each of the partitions is the first in its turn."""
    filled(client, "fair", 1, size=2000)
    filled(client, "fair2", 1, size=2000)
    filled(client, "fair3", 1, size=2000)
    parts = [("fair", 0, 0), ("fair2", 0, 0), ("fair3", 0, 0)]
    got = [[len(values_of(part)) for part in client.fetch(*parts, max_bytes=1)] for _ in range(3)]
    assert sorted(got) == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_what_is_not_in_memory_is_fetched_as_well(workers: Workers, client: Client) -> None:
    """Of several partitions too; whether the kernel has forgotten their pages is its own affair."""
    topics = ["cold", "cold2", "cold3"]
    for topic in topics:
        filled(client, topic, 40, size=5000)
    for offset in (0, 17, 39):
        for limit, count in ((1, 1), (1 << 20, 3 * (40 - offset))):
            for path in workers.directory.glob("cold*/*"):
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found = client.fetch(*[(topic, 0, offset) for topic in topics], limit=limit, max_bytes=limit)
            got = [values_of(part) for part in found]
            assert sum(map(len, got)) == count
            assert {values[0][0] for values in got if values} == {offset}


def test_a_walk_of_a_thread_keeps_no_file_pinned(workers: Workers, client: Client) -> None:
    """Neither the segment nor its index, which here is empty, so that the walk is long."""
    filled(client, "walked", 200, size=1000)
    with next(workers.directory.glob("walked-0/*.index")).open("r+b") as index:
        index.truncate(0)
    workers.wait_still()
    pins, walks = workers.held()["pins"], workers.count("read_ahead")
    (part,) = client.fetch(("walked", 0, 190), max_wait=0)
    assert values_of(part)[0][0] == 190
    workers.wait_still()
    assert workers.count("read_ahead") > walks
    assert workers.held()["pins"] == pins


def test_many_partitions_that_are_not_in_memory_come_in_one_answer(workers: Workers, client: Client) -> None:
    """Each is read ahead, however many have been for those before it."""
    topics = [f"frozen{number}" for number in range(7)]
    for topic in topics:
        filled(client, topic, 1, size=5000)
    workers.wait_still()
    before = workers.count("read_ahead")
    # where it begins is found, and is not in memory: then a thread reads, and it is found once more and is there
    _files.arm(",".join(f"pread@{2 + 5 * number}=EAGAIN" for number in range(len(topics))), "test")
    found = client.fetch(*[(topic, 0, 0) for topic in topics], max_wait=0)
    _files.arm("", "test")
    assert [len(values_of(part)) for part in found] == [1] * len(topics)
    assert workers.count("read_ahead") - before == len(topics)


@pytest.mark.parametrize("number", range(1, 9))
def test_whichever_read_fails_the_others_have_their_answer(workers: Workers, client: Client, number: int) -> None:
    """Bytes that are lost on their way into the answer are an error of their partition, in a whole frame."""
    topics = [f"lost{number}", f"kept{number}"]
    for topic in topics:
        filled(client, topic, 1)
    failures = workers.count("read_failures")
    _files.arm(f"pread@{number}=EIO", "test")
    found = client.fetch(*[(topic, 0, 0) for topic in topics], max_wait=0)
    _files.arm("", "test")
    codes = [part.error_code for part in found]
    assert codes in ([0, 0], [Code.KAFKA_STORAGE_ERROR, 0], [0, Code.KAFKA_STORAGE_ERROR])
    assert [len(values_of(part)) for part in found] == [int(not code) for code in codes]
    assert workers.count("read_failures") - failures == sum(map(bool, codes))
    assert [len(values_of(part)) for part in client.fetch(*[(topic, 0, 0) for topic in topics], max_wait=0)] == [1, 1]


def test_what_is_in_memory_is_found_without_a_thread(workers: Workers, client: Client) -> None:
    """Reads that may not wait for a disk are not those that can come short."""
    client.make("near")
    for _ in range(3):
        client.produce(("near", 0, batch(b"x")), acks=-1)
    with next(workers.directory.glob("near-0/*.log")).open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("the file system cannot say what is in memory")
    before = workers.count("read_ahead")
    _files.arm("pread@1-=short", "test")
    (part,) = client.fetch(("near", 0, 2))
    _files.arm("", "test")
    assert [offset for offset, _ in values_of(part)] == [2]
    assert workers.count("read_ahead") == before


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


def test_sessions_are_not_made(client: Client) -> None:
    found = client.ask(today.FETCH, 12, **today.fetched(("errors", 0, 0), session_id=5))
    assert (found.error_code, found.session_id, found.responses) == (70, 0, ())
    assert client.ask(today.FETCH, 12, **today.fetched()).session_id == 0


def test_a_log_begins_where_it_is_wanted_to(workers: Workers, client: Client) -> None:
    """At once, for every request that says where it begins; inside a batch the whole batch is sent, as always."""
    filled(client, "begin", 2)
    client.produce(("begin", 0, batch(b"a", b"b", b"c")), acks=-1)
    (view,) = (view for view in workers.arena.views() if view.topic == "begin")
    assert client.fetch(("begin", 0, 0))[0].log_start_offset == 0
    for start, first in ((1, 1), (3, 2), (4, 2), (5, None)):
        workers.arena.want_start(view.index, start)
        below, there = client.fetch(("begin", 0, start - 1), ("begin", 0, start), max_wait=0)
        assert (below.error_code, there.error_code, there.log_start_offset) == (1, 0, start)
        assert (values_of(there) or [(None, None)])[0][0] == first
        assert client.offset("begin", 0, EARLIEST).offset == start
        assert client.offset("begin", 0, 0).offset == (start if first is not None else -1)
    (told,) = client.produce(("begin", 0, batch(b"d")), acks=-1)
    assert (told.base_offset, told.log_start_offset) == (5, 5)
    assert values_of(client.fetch(("begin", 0, 5))[0]) == [(5, b"d")]


def test_many_partitions_in_one_fetch(workers: Workers, client: Client) -> None:
    """More than are looked at in one turn; the same one may be named again and again."""
    filled(client, "many", 1, size=20)
    found = client.fetch(*[("many", 0, number % 2) for number in range(2000)], max_bytes=1 << 30)
    assert [len(values_of(part)) for part in found] == [1, 0] * 1000
    workers.wait_still()
    assert workers.held()["pins"] == 0


def test_who_goes_away_in_the_middle_leaves_nothing(workers: Workers, client: Client) -> None:
    filled(client, "gone", 1)
    workers.wait_still()
    before = workers.held()
    for fields in (
        today.fetched(("gone", 0, 1), max_wait=60_000),
        today.fetched(*[("gone", 0, 1)] * 100, max_wait=60_000),
    ):
        with Client(workers) as other:
            other.socket.sendall(today.request(today.FETCH, 12, fields))
            workers.wait_still()
    workers.wait_held(before)


def test_one_who_stops_sending_is_answered_at_once(workers: Workers) -> None:
    with Client(workers) as other:
        filled(other, "stops", 1)
        other.socket.sendall(today.request(today.FETCH, 12, today.fetched(("stops", 0, 1), max_wait=60_000)))
        other.socket.shutdown(1)
        assert len(drain(other.raw)) > 20


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
