"""``fastlog.Producer`` on topics of record batches: all that records have, each of them stored once and in order."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastlog
import fastlog.aio
from fastlog import envelope, testing
from fastlog.audit import events
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import (
    ArgumentError,
    ConfigError,
    InvalidMessageError,
    MessageTooLargeError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.producer import Delivery, ProducerData
from fastlog.testing import RunningBroker
from tests.harness import real_kafka
from tests.harness.broker import wait_until
from tests.harness.lossy_proxy import LossyProxy
from tests.harness.timing import PATIENCE

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1) as running:
        yield running


@pytest.fixture
def records(broker: RunningBroker) -> Iterator[RecordBroker]:
    with records_of(broker) as made:
        yield made


def records_of(broker: RunningBroker) -> RecordBroker:
    return RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE)


def stored(broker: RunningBroker, topic: str, partition: int = 0) -> list[Any]:
    with fastlog.SimpleConsumer(broker.host, broker.port, timeout=PATIENCE) as simple:
        return list(simple.messages(topic, partition))


def arrived(broker: RunningBroker, topic: str, partition: int, count: int) -> list[Any]:
    """What is stored, once there are so many; what is only appended is not visible at once."""
    wait_until("they are there", lambda: len(stored(broker, topic, partition)) >= count)
    return stored(broker, topic, partition)


def parts(message: Any) -> tuple[Any, ...]:
    return message.key, message.payload, message.headers, message.timestamp


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer_type", ["sync", "async"])
def test_records_are_stored_as_they_were_given(
    broker: RunningBroker, records: RecordBroker, codec: str, producer_type: str
) -> None:
    """Key, value, headers and time of each, nulls among them, in their order and with offsets that deliveries tell."""
    topic = f"whole-{codec}-{producer_type}"
    records.create(topic, 1, {})
    told: list[Delivery] = []
    before = round(time.time() * 1000)
    with fastlog.Producer(
        broker.address, producer_type=producer_type, compression=codec, acks="all", on_delivery=told.append
    ) as producer:
        producer.send(topic, b"v" * 300, key="k\u00e9y", headers=[("name", "v\u00e4lue"), (b"name", None)], timestamp=5)
        producer.send(topic, [b"a", b"b", None], key=b"", headers={"x": b"\xff"}, timestamp=4)
        producer.send(topic, None, key=7)
        producer.send(topic, b"")
        producer.send(
            [ProducerData(topic, b"key", b"data", headers={"h": "1"}, timestamp=9), ProducerData(topic, b"z")]
        )
        future = producer.submit(topic, None, key=b"gone", headers=(), timestamp=2**40)
        producer.flush()
        assert (future.result().offset, future.result().next_offset) == (8, 9)
    found = stored(broker, topic)
    name = ((b"name", b"v\xc3\xa4lue"), (b"name", None))
    assert [parts(message)[:3] for message in found] == [
        ("k\u00e9y".encode(), b"v" * 300, name),
        (b"", b"a", ((b"x", b"\xff"),)),
        (b"", b"b", ((b"x", b"\xff"),)),
        (b"", None, ((b"x", b"\xff"),)),
        (b"7", None, ()),
        (None, b"", ()),
        (b"key", b"data", ((b"h", b"1"),)),
        (None, b"z", ()),
        (b"gone", None, ()),
    ]
    times = [message.timestamp for message in found]
    assert [times[place] for place in (0, 1, 2, 3, 6, 8)] == [5, 4, 4, 4, 9, 2**40]
    assert all(before <= times[place] <= time.time() * 1000 for place in (4, 5, 7)), "others have that of their send"
    assert [message.offset for message in found] == list(range(9))
    covered = sorted((row.offset, row.offset + row.messages) for row in told if row.error is None)
    assert covered[0][0] == 0
    assert sum(row.messages for row in told) == 9


def test_deliveries_of_single_records_have_their_offsets(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("single", 1, {})
    told: list[tuple[int, int]] = []
    with fastlog.Producer(broker.address, producer_type="async", compression="zstd") as producer:
        for number in range(500):
            producer.send(
                "single", b"%d" % number, on_delivery=lambda row, number=number: told.append((number, row.offset))
            )
    assert told == [(number, number) for number in range(500)]


def test_keys_choose_the_partition_as_librdkafka_does(broker: RunningBroker, records: RecordBroker) -> None:
    """All bits of the CRC-32 count: 3 is no power of two, and some have the highest."""
    records.create("keyed", 3, {})
    keys = [b"key-%d" % number for number in range(60)]
    assert any(zlib.crc32(key) >> 31 for key in keys)
    for kind in ("sync", "async"):
        with fastlog.Producer(broker.address, producer_type=kind) as producer:
            for key in keys:
                producer.send("keyed", b"v", key=key)
    for partition in range(3):
        wanted = [key for key in keys if zlib.crc32(key) % 3 == partition]
        found = arrived(broker, "keyed", partition, 2 * len(wanted))
        assert [message.key for message in found] == wanted * 2


def test_records_without_a_key_go_to_every_partition(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("spread", 4, {})
    with fastlog.Producer(broker.address, producer_type="async", batch_messages=10, acks="all") as producer:
        for number in range(2000):
            producer.send("spread", b"%d" % number)
    found = [stored(broker, "spread", partition) for partition in range(4)]
    assert all(found)
    assert sorted(int(message.payload) for rows in found for message in rows) == list(range(2000))


def test_a_partitioner_of_the_program_chooses(broker: RunningBroker, records: RecordBroker) -> None:
    class Last:
        def partition(self, key: object, count: int) -> int:
            return count - 1

    records.create("own-choice", 3, {})
    with fastlog.Producer(broker.address, partitioner=Last(), acks="all") as producer:
        assert producer.send("own-choice", b"v", key=b"k")[0].partition == 2
        with pytest.raises(ArgumentError, match="a key is bytes, str or int"):
            producer.send("own-choice", b"v", key=1.5)


@pytest.mark.parametrize("producer_type", ["sync", "async"])
def test_topics_of_0_7_keep_what_they_can(broker: RunningBroker, producer_type: str) -> None:
    """A key chooses there as ever; what a message has no room for is an error, and nothing is sent."""
    topic = f"old-{producer_type}"
    with fastlog.Producer(broker.address, producer_type=producer_type) as producer:
        producer.send(topic, b"a", key=b"k")
        for extra in ({"headers": {"a": "b"}}, {"timestamp": 5}):
            with pytest.raises(UnsupportedFeatureError, match="a topic of record batches has"):
                producer.send(topic, b"x", **extra)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="a payload is bytes, not NoneType"):
            producer.send(topic, None, key=b"k")
        with pytest.raises(ArgumentError, match="a payload is bytes, not NoneType"):
            producer.send(topic)
        with pytest.raises(ArgumentError, match="a payload is bytes, not NoneType"):
            producer.send(topic, [b"x", None], key=b"k")
        producer.send(topic, [b"b", b"c"])
        producer.flush()
    wait_until("all are there", lambda: [m.payload for m in stored(broker, topic)] == [b"a", b"b", b"c"])


def test_codecs_of_today_are_for_record_batches(broker: RunningBroker) -> None:
    with (
        fastlog.Producer(broker.address, compression="lz4") as producer,
        pytest.raises(UnsupportedFeatureError, match=r"messages of Kafka 0\.7 know gzip and snappy, not lz4"),
    ):
        producer.send("old-codec", b"x")
    with pytest.raises(ConfigError, match=r"Kafka 0\.7 has gzip and snappy, not zstd"):
        fastlog.SyncProducer(broker.host, broker.port, compression="zstd")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"headers": "text"}, "headers are pairs"),
        ({"headers": 5}, "headers are pairs"),
        ({"headers": [("a", "b", "c")]}, "a header is a pair"),
        ({"headers": [5]}, "a header is a pair"),
        ({"headers": [(None, "b")]}, "the name of a header is bytes or str, not NoneType"),
        ({"headers": [("a", 5)]}, "the value of a header is bytes or str, not int"),
        ({"headers": [("a", "\ud800")]}, "without a form in UTF-8"),
        ({"timestamp": -1}, "a timestamp lies between 0 and"),
        ({"timestamp": 2**63}, "a timestamp lies between 0 and"),
        ({"timestamp": 1.5}, "a whole number of milliseconds since 1970, not float"),
        ({"timestamp": True}, "not bool"),
        ({"key": 1.5}, "a key is bytes, str or int"),
        ({"value": 5}, "a payload is bytes, not int"),
        ({"value": None}, "a payload is bytes, not NoneType"),
        ({"value": [b"a", None]}, "a payload is bytes, not NoneType"),
    ],
)
@pytest.mark.parametrize("producer_type", ["sync", "async"])
def test_what_no_record_can_have_is_refused_before_anything_is_sent(
    broker: RunningBroker, records: RecordBroker, producer_type: str, given: dict[str, Any], said: str
) -> None:
    topic = "wrong"
    if topic not in records.known_topics():
        records.create(topic, 1, {})
    with fastlog.Producer(broker.address, producer_type=producer_type) as producer:
        producer.partitions(topic)
        with pytest.raises(ArgumentError, match=said):
            producer.send(topic, **({"value": b"v"} | given))
    assert stored(broker, topic) == []


def test_sizes(broker: RunningBroker, records: RecordBroker) -> None:
    """A key and headers count as a payload does; what the topic refuses fails alone, and what follows is stored."""
    records.create("sizes", 1, {"max.message.bytes": "2000"})
    with fastlog.Producer(broker.address, max_message_bytes=5000, acks="all") as producer:
        for extra in ({"key": b"k" * 5000}, {"headers": {"h": b"x" * 5000}}):
            with pytest.raises(MessageTooLargeError, match="larger than the limit of 5000"):
                producer.send("sizes", b"v", **extra)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLargeError, match=r"raise its max\.message\.bytes"):
            producer.send("sizes", b"x" * 3000)
        with pytest.raises(WrongPartitionError, match="there is no partition 7"):
            producer.send("sizes", b"v", partition=7)
        with pytest.raises(InvalidMessageError, match="the time of a record is not one that the topic takes"):
            producer.send("sizes", b"v", timestamp=2**42)
        assert producer.send("sizes", [b"y" * 500] * 20)[-1].next_offset == 20, "in as many batches as it takes"
    assert [message.payload for message in stored(broker, "sizes")] == [b"y" * 500] * 20
    told: list[Any] = []
    with fastlog.Producer(broker.address, producer_type="async", batch_messages=1, acks="all") as producer:
        for number in range(30):
            value = b"x" * 3000 if number % 7 == 3 else b"%d" % number
            producer.send("sizes", value, on_delivery=told.append)
    fates = [row.error is None for row in told]
    assert sorted(fates) == sorted(number % 7 != 3 for number in range(30))
    found = [int(message.payload) for message in stored(broker, "sizes")[20:]]
    assert found == [number for number in range(30) if number % 7 != 3], "none twice, none lost, all in order"


@pytest.mark.parametrize("idempotence", [True, False])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks_in_todays_words(broker: RunningBroker, records: RecordBroker, acks: str, idempotence: bool) -> None:
    topic = f"acks-{acks}-{idempotence}"
    records.create(topic, 1, {})
    with fastlog.Producer(broker.address, producer_type="async", acks=acks, idempotence=idempotence) as producer:
        for number in range(3000):
            producer.send(topic, b"%d" % number, key=b"k")
        producer.flush()
    wait_until("all are there", lambda: len(stored(broker, topic)) == 3000)
    assert [int(message.payload) for message in stored(broker, topic)] == list(range(3000))


def test_coroutines_send_records(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("coroutines", 1, {})

    async def run() -> tuple[Delivery, ...]:
        async with fastlog.aio.Producer(broker.address) as producer:
            await producer.send("coroutines", b"a", key="k", headers={"h": "1"}, timestamp=1)
            await producer.send("coroutines", b"b", key="k", headers={"h": "2"}, timestamp=2)
            return await producer.send_and_wait("coroutines", None, key="k", headers={"h": "3"}, timestamp=3)

    (row,) = asyncio.run(run())
    assert (row.offset, row.next_offset) == (2, 3)
    assert [parts(message) for message in stored(broker, "coroutines")] == [
        (b"k", b"a", ((b"h", b"1"),), 1),
        (b"k", b"b", ((b"h", b"2"),), 2),
        (b"k", None, ((b"h", b"3"),), 3),
    ]


def test_values_in_envelopes_are_reported_by_numbers(broker: RunningBroker, records: RecordBroker) -> None:
    """An audited producer writes its envelopes as values, with the key beside them; what failed is known by number."""
    records.create("audited", 1, {"max.message.bytes": "2000"})
    told: list[Any] = []
    with fastlog.Producer(
        broker.address, producer_type="async", audit_topic="audit", batch_messages=1, on_delivery=told.append
    ) as producer:
        producer.send("audited", b"fine", key=b"k", headers={"h": "1"})
        producer.send("audited", b"x" * 3000)
        with pytest.raises(ArgumentError, match="a payload is bytes, not NoneType"):
            producer.send("audited", None, key=b"k")
    assert sorted(row.error is None for row in told if row.topic == "audited") == [False, True]
    (message,) = stored(broker, "audited")
    assert (message.key, message.headers) == (b"k", ((b"h", b"1"),))
    assert envelope.unwrap(message.payload)[1] == b"fine"
    found = [events.decode(each.payload) for each in stored(broker, "audit")]
    assert [(event.n, event.failed) for event in found if isinstance(event, events.SentEvent)] == [(1, [(1, 1)])]


# --- trouble ---


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_nothing_is_lost_doubled_or_out_of_order_over_connections_that_break(
    broker: RunningBroker, records: RecordBroker, codec: str
) -> None:
    topic = f"lossy-{codec}"
    records.create(topic, 2, {})
    with LossyProxy(lambda: broker.port, rate=0.0, seed=5) as proxy:
        producer = fastlog.Producer(proxy.address, producer_type="async", compression=codec, batch_messages=7, acks="1")
        with producer:
            producer.partitions(topic)
            proxy.rate = 0.03
            for number in range(4000):
                producer.send(topic, b"%d" % number, partition=number % 2)
            producer.flush(PATIENCE)
            proxy.rate = 0.0
            stats = producer.stats()
        assert stats.connections > 5, proxy.faults
        assert (stats.delivered, stats.failed, stats.possible_duplicates) == (4000, 0, 0)
    for partition in range(2):
        found = arrived(broker, topic, partition, 2000)
        assert [int(message.payload) for message in found] == list(range(partition, 4000, 2))


def test_the_same_producer_goes_on_through_kills_of_the_broker() -> None:
    """With acknowledgements of what is on the disk: each record once and in order, under kill -9 again and again."""
    with testing.broker(processors=1) as broker, records_of(broker) as records:
        records.create("killed", 1, {})
        with fastlog.Producer(broker.address, producer_type="async", acks="all", batch_messages=20) as producer:
            ended = threading.Event()

            def kill() -> None:
                try:
                    for number in range(1, 4):
                        wait_until("it has connected", lambda number=number: producer.stats().connections >= number)  # type: ignore[misc]
                        time.sleep(0.3)
                        broker.kill()
                        broker.restart()
                finally:
                    ended.set()

            thread = threading.Thread(target=kill)
            thread.start()
            sent = 0
            while not ended.is_set() or sent < 2000:
                producer.send("killed", b"%d" % sent, key=b"k")
                sent += 1
                if sent % 50 == 0:
                    time.sleep(0.005)
            thread.join()
            producer.flush(PATIENCE)
            stats = producer.stats()
        assert (stats.delivered, stats.failed, stats.possible_duplicates) == (sent, 0, 0)
        assert stats.connections > 3
        assert [int(message.payload) for message in stored(broker, "killed")] == list(range(sent))


def test_a_full_disk_is_waited_for() -> None:
    with testing.broker(processors=1) as broker, records_of(broker) as records:
        records.create("full", 1, {})
        with fastlog.Producer(broker.address, producer_type="async", acks="all", batch_messages=10) as producer:
            producer.send("full", b"0")
            producer.flush(PATIENCE)
            broker.fill_disk()
            for number in range(1, 200):
                producer.send("full", b"%d" % number)
            time.sleep(0.5)
            broker.free_disk()
            producer.flush(PATIENCE)
            stats = producer.stats()
        assert (stats.delivered, stats.failed) == (200, 0)
        assert [int(message.payload) for message in stored(broker, "full")] == list(range(200))


def test_what_is_given_up_leaves_no_gap_behind_which_nothing_is_stored() -> None:
    """A delivery time that is over fails records, and those behind them go on with other numbers."""
    with testing.broker(processors=1) as broker, records_of(broker) as records:
        records.create("gap", 1, {})
        told: list[Any] = []
        with fastlog.Producer(
            broker.address,
            producer_type="async",
            acks="all",
            batch_messages=1,
            queue_time_ms=0,
            delivery_timeout_ms=700,
        ) as producer:
            producer.send("gap", b"0", on_delivery=told.append)
            producer.flush(PATIENCE)
            broker.fill_disk()
            for number in range(1, 20):
                producer.send("gap", b"%d" % number, on_delivery=told.append)
            wait_until("they are given up", lambda: len(told) == 20)
            broker.free_disk()
            for number in range(20, 40):
                producer.send("gap", b"%d" % number, on_delivery=told.append)
            producer.flush(PATIENCE)
        assert [row.error is None for row in told] == [True] + [False] * 19 + [True] * 20
        assert [int(message.payload) for message in stored(broker, "gap")] == [0, *range(20, 40)]


def test_a_topic_that_is_deleted_fails_and_others_go_on(broker: RunningBroker, records: RecordBroker) -> None:
    for topic in ("leaves", "stays"):
        records.create(topic, 1, {})
    with fastlog.Producer(broker.address, acks="all", delivery_timeout_ms=20_000) as producer:
        producer.send("leaves", b"a")
        records.delete("leaves")
        with pytest.raises(WrongPartitionError, match="does not exist on this broker"):
            producer.send("leaves", b"b")
        assert producer.send("stays", b"c")[0].offset == 0


@real_kafka.is_there
@pytest.mark.timeout(600)
def test_apache_kafka_takes_the_same_from_the_same_producer(tmp_path: Path) -> None:
    """Every codec, keys and headers; and a kill -9 of it, after which the producer goes on and doubles nothing."""
    house = real_kafka.Kafka(tmp_path)
    with house:
        address = Address("127.0.0.1", house.port)
        with RecordBroker([address], timeout=real_kafka.SECONDS) as records:
            for codec in CODECS:
                records.create(codec, 2, {})
                with fastlog.Producer(house.address, compression=codec, acks="all") as producer:
                    producer.send(codec, [b"v" * 100] * 50, key=b"k", headers={"h": "1"}, timestamp=7)
                    producer.send(codec, None, key=b"k")
            records.create("killed", 1, {})
        producer = fastlog.Producer(house.address, producer_type="async", acks="all", batch_messages=5)
        for number in range(500):
            producer.send("killed", b"%d" % number)
        assert house.process is not None
        house.process.kill()
        house.process.wait()
    with house:
        for number in range(500, 1000):
            producer.send("killed", b"%d" % number)
        producer.flush(real_kafka.SECONDS)
        producer.close()
        assert producer.stats().failed == 0
        with fastlog.SimpleConsumer("127.0.0.1", house.port, timeout=PATIENCE) as simple:
            assert [int(message.payload) for message in simple.messages("killed", 0)] == list(range(1000))
            for codec in CODECS:
                found = list(simple.messages(codec, zlib.crc32(b"k") % 2))
                assert [parts(message)[:3] for message in found[:-1]] == [(b"k", b"v" * 100, ((b"h", b"1"),))] * 50
                assert {message.timestamp for message in found[:-1]} == {7}
                assert (found[-1].key, found[-1].payload) == (b"k", None)
