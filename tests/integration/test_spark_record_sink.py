"""Rows written to topics of record batches of a real broker, as a task of Spark writes them; no session."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from fastlog import record_batches
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import ConfigError, DeliveryError, MessageTooLargeError
from fastlog.message import encode_set
from fastlog.producer.partitioners import murmur2
from fastlog.record_batches import Record
from fastlog.spark.packing import WriteReport, write_batches
from fastlog.spark.sink_options import check_columns, parse_sink_options
from tests.harness.broker import KEPT, Broker
from tests.harness.raw_client import FLUSHED

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
KINDS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "broker": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}
SQL = {
    **{"key": "binary", "value": "binary", "topic": "string", "partition": "int", "broker": "int"},
    **{"timestamp": "timestamp", "headers": "array<struct<key:string,value:binary>>"},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), settings={"num.partitions": 2} | KEPT) as made:
        yield made


@pytest.fixture
def records(broker: Broker) -> Iterator[RecordBroker]:
    with RecordBroker([Address("127.0.0.1", broker.port)], timeout=20) as made:
        yield made


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(rows, KINDS[name]) for name, rows in columns.items()], list(columns))


def written(broker: Broker, *batches: pa.RecordBatch, **given: str) -> WriteReport:
    chosen = {"brokers": f"127.0.0.1:{broker.port}"} | {name.replace("__", "."): text for name, text in given.items()}
    options = parse_sink_options(chosen)
    names = batches[0].schema.names
    return write_batches(iter(batches), options, check_columns([(name, SQL[name]) for name in names], options))


def stored(records: RecordBroker, topic: str) -> dict[int, list[Record]]:
    """Every record of a topic, by its partition."""
    found = {}
    for number in records.known_topics([topic])[topic].partitions:
        at, found[number] = 0, list[Record]()
        while data := records.fetch({(topic, number): at})[topic, number].batches:
            for header, one in record_batches.batches(data):
                found[number] += record_batches.records(one)
                at = header.next_offset
    return found


def test_every_column(broker: Broker, records: RecordBroker) -> None:
    """Over several batches of Arrow, of slices, and of every codec; keys go where Java's clients send them."""
    records.create("all", 3, {})
    keys = [None if at % 4 == 0 else b"k%d" % (at % 7) for at in range(300)]
    values = [None if at % 5 == 0 else b"%d" % at for at in range(300)]
    times = [None if at % 50 == 0 else at * 1_000_000 + 999 for at in range(300)]
    pairs = [
        None if at % 3 == 0 else [{"key": "ä", "value": b"%d" % at}, {"key": "", "value": None}] for at in range(300)
    ]
    whole = batch(key=keys, value=values, timestamp=times, headers=pairs)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        report = written(
            broker, whole.slice(0, 90), whole.slice(90, 0), whole.slice(90), topic="all", compression=codec
        )
        assert (report.messages, report.possible_duplicates) == (300, 0)
        assert sum(stretch.messages for stretch in report.partitions.values()) == 300
    found = stored(records, "all")
    every = sorted(
        (record for rows in found.values() for record in rows if record.value), key=lambda one: int(one.value or 0)
    )
    assert len(every) == 240 * len(codecs)
    for at, record in enumerate(every):
        number = int(record.value or b"")
        assert number == [n for n in range(300) if n % 5][at // len(codecs)]
        assert record.key == keys[number]
        assert record.headers == (() if number % 3 == 0 else (("ä".encode(), b"%d" % number), (b"", None)))
        assert record.timestamp == number * 1000 if number % 50 else record.timestamp > 1_600_000_000_000
    for partition, rows in found.items():
        assert {(murmur2(row.key) & 0x7FFFFFFF) % 3 for row in rows if row.key is not None} <= {partition}
        assert [row.offset for row in rows] == list(range(len(rows)))
    assert sum(record.value is None for rows in found.values() for record in rows) == 60 * len(codecs)
    (topic, number, partition), stretch = next(iter(report.partitions.items()))
    assert (topic, number) == ("all", 0)
    assert stretch.next_offset == len(found[partition])
    assert stretch.offset == len(found[partition]) - stretch.messages


def test_partitions_by_hand_and_topics_of_a_column(broker: Broker, records: RecordBroker) -> None:
    """Also of both kinds in one frame."""
    records.create("hand", 2, {})
    with broker.connect() as client:
        client.produce_ack("messages", 0, encode_set([b"before"]), acks=FLUSHED)
    rows = batch(value=[b"a", b"b", b"c"], topic=["hand", "messages", "hand"], partition=[1, 1, 0], broker=[None, 0, 0])
    assert written(broker, rows).messages == 3
    assert {number: [one.value for one in found] for number, found in stored(records, "hand").items()} == {
        0: [b"c"],
        1: [b"a"],
    }
    with broker.connect() as client:
        assert b"b" in client.fetch("messages", 1, 0).body
    with pytest.raises(ConfigError, match="column partition: 'hand' has 2 partitions, and not 7"):
        written(broker, batch(value=[b"a"], partition=[7]), topic="hand")
    with pytest.raises(ConfigError, match="column broker: the topic 'hand' is one of broker 0 alone"):
        written(broker, batch(value=[b"a"], partition=[1], broker=[3]), topic="hand")
    with pytest.raises(ConfigError, match="column topic: a row is null"):
        written(broker, batch(value=[b"a", b"b"], topic=["hand", None]))


def test_topics_that_are_not_there(broker: Broker, records: RecordBroker) -> None:
    """Are made of messages, as ever, or of record batches, where that is asked for."""
    assert written(broker, batch(value=[b"a"], key=[b"k"]), topic="new", schema="kafka").messages == 1
    assert sum(map(len, stored(records, "new").values())) == 1
    assert written(broker, batch(value=[b"a"]), topic="old").messages == 1
    assert written(broker, batch(value=[b"b"]), topic="old", schema="kafka").messages == 1
    with broker.connect() as client:
        assert any(b"b" in client.fetch("old", partition, 0).body for partition in range(2))
    with pytest.raises(ConfigError, match=r"column headers: messages of Kafka 0.7 have none"):
        written(broker, batch(value=[b"a"], headers=[None]), topic="old")
    with pytest.raises(ConfigError, match=r"compression: messages of Kafka 0.7 know gzip and snappy, not zstd"):
        written(broker, batch(value=[b"a"]), topic="old", compression="zstd")
    with pytest.raises(ConfigError, match=r"envelope: records of 'new' have keys"):
        written(broker, batch(value=[b"a"]), topic="new", envelope="true")
    with pytest.raises(ConfigError, match=r"acks: batches of records, of which 'new' consists"):
        written(broker, batch(value=[b"a"]), topic="new", acks="none")


def test_limits(broker: Broker, records: RecordBroker) -> None:
    """Batches as small as is asked for; one that the topic does not take is an error that says so."""
    records.create("small", 1, {"max.message.bytes": "5000"})
    written(broker, batch(value=[b"x" * 100] * 200), topic="small", batch__size="7")
    written(broker, batch(value=[b"x" * 100] * 200), topic="small", batch__bytes="1500")
    written(broker, batch(value=[b"x" * 100] * 200), topic="small")
    sizes, at = [], 0
    while data := records.fetch({("small", 0): at})["small", 0].batches:
        for header, _ in record_batches.batches(data):
            sizes.append((header.record_count, header.size_bytes))
            at = header.next_offset
    assert sum(count for count, _ in sizes) == 600
    assert [count for count, _ in sizes[:29]] == [7] * 28 + [4]
    assert max(size for _, size in sizes[29:]) <= 5000
    assert len(sizes) < 29 + 20 + 10
    with pytest.raises(MessageTooLargeError, match="too large for the topic"):
        written(broker, batch(value=[b"x" * 6000]), topic="small")


def test_processes_are_killed_meanwhile(broker: Broker, records: RecordBroker) -> None:
    """What is sent again because a connection broke is stored once."""
    records.create("killed", 2, {})
    stopped = threading.Event()

    def kill() -> None:
        while not stopped.wait(0.1):
            role = "processor-0"
            broker.wait_replaced(role, broker.kill(role), within=30)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        rows = (batch(value=[b"%d" % at for at in range(start, start + 100)]) for start in range(0, 10_000, 100))

        def slowly() -> Iterator[pa.RecordBatch]:
            for one in rows:
                time.sleep(0.01)
                yield one

        options = parse_sink_options({"brokers": f"127.0.0.1:{broker.port}", "topic": "killed"})
        assert write_batches(slowly(), options, ["value"]).messages == 10_000
    finally:
        stopped.set()
        thread.join(60)
    found = [int(record.value or b"") for one in stored(records, "killed").values() for record in one]
    assert sorted(found) == list(range(10_000))


def test_a_topic_that_is_deleted_meanwhile(broker: Broker, records: RecordBroker) -> None:
    records.create("deleted", 1, {})

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(value=[b"a"])
        records.delete("deleted")
        yield batch(value=[b"b"])

    options = parse_sink_options(
        {"brokers": f"127.0.0.1:{broker.port}", "topic": "deleted", "delivery.timeout.ms": "1000"}
    )
    with pytest.raises(DeliveryError, match="1 records were not delivered: topic deleted, partition 0"):
        write_batches(rows(), options, ["value"])
