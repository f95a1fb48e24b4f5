"""``SimpleConsumer`` and ``Consumer`` on topics of record batches: what today's clients write, to the last header."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fastlog
from fastlog import testing
from fastlog.client import record_fetching
from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import connected
from fastlog.client.records import RecordBroker
from fastlog.consumer.simple import EARLIEST, LATEST
from fastlog.consumer.stream import GroupMessage, NoMessage, Stream
from fastlog.errors import (
    ClosedError,
    OffsetOutOfRangeError,
    TransportError,
    WrongPartitionError,
)
from fastlog.record_batches import Record, build
from fastlog.testing import RunningBroker
from fastlog.zkpaths import PartitionId
from tests.harness.broker import KEPT, wait_until
from tests.harness.timing import PATIENCE

PROPERTIES = {"group.min.session.timeout.ms": "300"} | KEPT
FAST: dict[str, Any] = {"heartbeat_interval_ms": 50, "metadata_max_age_ms": 100, "fetcher_backoff_ms": 100}
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, properties=PROPERTIES) as running:
        yield running


@pytest.fixture
def records(broker: RunningBroker) -> Iterator[RecordBroker]:
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as made:
        yield made


@pytest.fixture
def simple(broker: RunningBroker) -> Iterator[fastlog.SimpleConsumer]:
    with fastlog.SimpleConsumer(broker.host, broker.port, timeout=PATIENCE) as made:
        yield made


def made(count: int, first: int = 0, name: str = "v") -> list[Record]:
    """Records of every kind: without a key, with headers, with a null for a value."""
    return [
        Record(
            None if number % 3 == 1 else b"k%d" % number,
            None if number % 5 == 4 else f"{name}{number}".encode() * (number % 4),
            1_700_000_000_000 + number,
            ((b"n", b"%d" % number), (b"null", None)) if number % 2 else (),
        )
        for number in range(first, first + count)
    ]


def put(records: RecordBroker, topic: str, items: list[Record], *, partition: int = 0, **how: int) -> None:
    place = topic, partition
    (found,) = records.append({place: build(items, **how)}, is_flushed=True).values()
    assert found.code == 0


def filled(
    records: RecordBroker, topic: str, *, codecs: tuple[int, ...] = (0, 1, 2, 3, 4), each: int = 7
) -> list[Record]:
    """A topic with a batch of each codec; returns its records."""
    records.create(topic, 2, {})
    items = made(each * len(codecs))
    for number, codec in enumerate(codecs):
        put(records, topic, items[number * each : (number + 1) * each], codec=codec)
    return items


def rows(items: list[Record], first: int = 0) -> Rows:
    return [
        (number, item.key, item.value, item.timestamp, item.headers) for number, item in enumerate(items, first)
    ]  # fmt: skip


def rows_of(messages: Any) -> Rows:
    return [(found.offset, found.key, found.payload, found.timestamp, found.headers) for found in messages]


# -- one broker, partition by partition --------------------------------------------------------------------------------


def test_every_form_has_every_record(records: RecordBroker, simple: fastlog.SimpleConsumer) -> None:
    """One at a time, in lists, as arrays, as Arrow: from the beginning, and from inside a batch of each codec."""
    items = filled(records, "forms")
    for start in (0, 3, 10, 17, 24, 31, 34, 35):
        expected = rows(items)[start:]
        found = list(simple.messages("forms", 0, start))
        assert rows_of(found) == expected
        assert [message.next_offset for message in found] == [row[0] + 1 for row in expected]
        assert {(message.magic, message.codec) for message in found} <= {(2, 0)}
        assert rows_of(simple.messages("forms", 0, start, shallow=True)) == expected
        values = [row[2] for row in expected]
        assert list(simple.payloads("forms", 0, start)) == values
        assert [value for batch in simple.batches("forms", 0, start) for value in batch] == values
        arrays = list(simple.numpy_batches("forms", 0, start))
        assert [row for found in arrays for row in rows_in(found)] == expected
        assert not arrays or arrays[-1].next_offset == 35
    table = simple.fetch_arrow("forms", 0, 3)
    assert table.schema.names == ["partition", "offset", "next_offset", "payload", "key", "timestamp"]
    columns = table.to_pydict()
    assert list(zip(*(columns[name] for name in ("offset", "key", "payload", "timestamp")), strict=True)) == [
        row[:4] for row in rows(items)[3:]
    ]


def rows_in(found: Any) -> Rows:
    numbers = range(len(found))
    times = found.timestamps.tolist()
    return [
        (int(found.offsets[n]), found.key(n), found.payload(n), times[n], found.headers(n)) for n in numbers
    ]  # fmt: skip


def test_arrays_of_what_is_not_compressed_lie_in_what_was_fetched(
    records: RecordBroker, simple: fastlog.SimpleConsumer
) -> None:
    items = filled(records, "plain-arrays", codecs=(0, 0))
    found = simple.fetch("plain-arrays", 0, 5)
    arrays = found.to_numpy()
    assert rows_in(arrays) == rows(items)[5:]
    assert np.shares_memory(arrays.buffer, np.frombuffer(found.data, np.uint8))
    assert not arrays.buffer.flags.writeable
    assert arrays.next_offsets.tolist() == list(range(6, 15))


def test_a_set_goes_as_far_as_its_batches(records: RecordBroker, simple: fastlog.SimpleConsumer) -> None:
    items = filled(records, "sets", codecs=(0, 1, 0))
    found = simple.fetch("sets", 0, 3)
    assert (found.offset, found.next_offset, found.valid_bytes) == (3, 21, len(found.data))
    assert rows_of(found) == rows_of(found.shallow()) == rows(items)[3:]
    assert found.payloads() == [item.value for item in items[3:]]
    assert rows_of(found.before(8)) == rows(items)[3:14]
    assert found.before(8).next_offset == 14
    assert rows_of(found.before(21)) == rows(items)[3:]
    assert rows_of(simple.fetch("sets", 0, 3, 1)) == rows(items)[3:7], "one batch comes whatever was asked for"
    end = simple.fetch("sets", 0, 21)
    assert (len(end.data), end.next_offset, list(end), len(end.to_numpy())) == (0, 21, [], 0)
    one, other = simple.multifetch([("sets", 0, 3), ("sets", 1, 0)])
    assert rows_of(one) == rows(items)[3:]
    assert list(other) == []


def test_places_are_offsets_of_records_and_times_are_theirs(
    records: RecordBroker, simple: fastlog.SimpleConsumer
) -> None:
    filled(records, "places", codecs=(0, 1))
    assert simple.partition_count("places") == 2
    assert simple.get_offsets_before("places", 0, LATEST, 9) == [14, 0]
    assert simple.get_offsets_before("places", 0, LATEST) == [14]
    assert simple.get_offsets_before("places", 0, EARLIEST, 9) == [0]
    assert simple.get_offsets_before("places", 0, 1_700_000_000_005) == [5]
    assert simple.get_offsets_before("places", 0, 1_800_000_000_000) == [14], "no record is so late"
    assert simple.get_offsets_before("places", 1, LATEST, 9) == [0]
    assert [found.offset for found in simple.messages("places", 0, LATEST)] == []
    assert simple.source_of("places", 0) == ("socket", "record batches are read through the socket")


def test_what_is_refused_leaves_the_consumer_whole(records: RecordBroker, simple: fastlog.SimpleConsumer) -> None:
    items = filled(records, "refused", codecs=(0,))
    for partition in (2, 100):
        with pytest.raises(WrongPartitionError, match=f"topic refused, partition {partition}"):
            simple.fetch("refused", partition, 0)
        with pytest.raises(WrongPartitionError):
            list(simple.messages("refused", partition, 0))
    with pytest.raises(OffsetOutOfRangeError, match="before the first record or behind the last one") as caught:
        simple.fetch("refused", 0, 99)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("refused", 0, 99)
    with pytest.raises(OffsetOutOfRangeError):
        list(simple.messages("refused", 0, 99))
    assert rows_of(simple.messages("refused", 0)) == rows(items)
    assert rows_of(simple.fetch("refused", 0, 6)) == rows(items)[6:]


def test_an_iteration_waits_for_what_comes(records: RecordBroker, simple: fastlog.SimpleConsumer) -> None:
    items = filled(records, "following", codecs=(0,))
    found = simple.messages("following", 0, wait=PATIENCE)
    assert rows_of(next(found) for _ in items) == rows(items)
    put(records, "following", made(3, 7))
    assert rows_of(next(found) for _ in range(3)) == rows(made(3, 7), 7)
    assert rows_of(simple.messages("following", 0, 8, wait=0.05)) == rows(made(2, 8), 8)


def test_what_was_appended_and_not_flushed_is_waited_for(records: RecordBroker, simple: fastlog.SimpleConsumer) -> None:
    """As of 0.7: whoever reads to the end has what was acknowledged before."""
    records.create("unflushed", 1, {"flush.ms": "3600000", "flush.messages": "100000"})
    for number in range(5):
        (found,) = records.append({("unflushed", 0): build(made(1, number))}, is_flushed=False).values()
        assert found == (0, number)
        assert rows_of(simple.messages("unflushed", 0, number)) == rows(made(1, number), number)


def test_many_batches_are_fetched_ahead(records: RecordBroker, simple: fastlog.SimpleConsumer) -> None:
    records.create("ahead", 1, {})
    for _ in range(60):
        put(records, "ahead", [Record(None, b"x" * 500, 1)] * 10)
    found = [message.offset for message in simple.messages("ahead", 0, fetch_bytes=10_000)]
    assert found == list(range(600))
    assert [len(batch) for batch in simple.numpy_batches("ahead", 0, 5, fetch_bytes=1)] == [5] + [10] * 59


def test_a_topic_made_anew_is_another_one(records: RecordBroker, simple: fastlog.SimpleConsumer) -> None:
    """A fetch is of the topic that there is; an iteration does not go on in it as if nothing had happened."""
    items = filled(records, "anew", codecs=(0, 0))
    assert rows_of(simple.fetch("anew", 0, 3)) == rows(items)[3:]
    found = simple.messages("anew", 0, wait=PATIENCE)
    assert rows_of(next(found) for _ in items) == rows(items)
    records.delete("anew")
    assert list(simple.fetch("anew", 0, 0)) == [], "as of any topic that nobody has written to"
    other = made(20, name="w")
    records.create("anew", 1, {})
    put(records, "anew", other)
    assert rows_of(simple.fetch("anew", 0, 3)) == rows(other)[3:]
    with pytest.raises(WrongPartitionError, match="anew"):
        next(found)
    assert rows_of(simple.messages("anew", 0, 14)) == rows(other)[14:]
    assert simple.get_offsets_before("anew", 0, LATEST) == [20]


def test_kinds_are_not_taken_for_each_other(
    broker: RunningBroker, records: RecordBroker, simple: fastlog.SimpleConsumer
) -> None:
    """One consumer, both kinds, and a name that changes its kind."""
    items = filled(records, "kind-records", codecs=(0,))
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        producer.send("kind-messages", [b"a", b"b"])
        for _ in range(2):
            assert [(found.payload, found.key, found.headers, found.timestamp, found.magic)
                    for found in simple.messages("kind-messages", 0)] == [
                (b"a", None, None, None, 1), (b"b", None, None, None, 1)
            ]  # fmt: skip
            assert rows_of(simple.messages("kind-records", 0)) == rows(items)
        for call in (
            lambda name: list(simple.payloads(name, 0)),
            lambda name: simple.fetch(name, 0, 0).payloads(),
            lambda name: simple.get_offsets_before(name, 0, LATEST),
        ):
            name = f"kind-changes-{producer.stats().accepted}"
            filled(records, name, codecs=(0,))
            before = call(name)
            records.delete(name)
            producer.send(name, b"a message")
            after = call(name)
            assert (before, after) in (([7], [19]), ([item.value for item in items], [b"a message"]))
    arrays = simple.fetch_numpy("kind-messages", 0, 0)
    assert (arrays.key_starts, arrays.timestamps, arrays.key(0), arrays.headers(0)) == (None, None, None, None)


def test_a_broker_that_was_killed_is_read_on(records: RecordBroker) -> None:
    with (
        testing.broker(processors=1) as broker,
        RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as other,
        fastlog.SimpleConsumer(broker.host, broker.port, timeout=PATIENCE) as simple,
    ):
        items = filled(other, "killed", codecs=(0, 1))
        found = simple.messages("killed", 0, wait=PATIENCE)
        assert rows_of(next(found) for _ in items) == rows(items)
        broker.kill()
        with pytest.raises(TransportError):
            simple.fetch("killed", 0, 0)
        broker.restart()
        assert rows_of(simple.fetch("killed", 0, 9)) == rows(items)[9:]
        put(other, "killed", made(4, 14))
        assert rows_of(simple.messages("killed", 0, 10)) == rows(items + made(4, 14))[10:]


def test_close_ends_a_fetch_that_waits(broker: RunningBroker, records: RecordBroker) -> None:
    filled(records, "closing", codecs=(0,))
    with testing_thread(broker) as (simple, thread):
        simple.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with pytest.raises(ClosedError):
        simple.fetch("closing", 0, 0)


class testing_thread:
    """A consumer, and a thread that waits in one of its fetches."""

    def __init__(self, broker: RunningBroker) -> None:
        self.simple = fastlog.SimpleConsumer(broker.host, broker.port, timeout=PATIENCE)

    def __enter__(self) -> tuple[fastlog.SimpleConsumer, Any]:
        import threading

        assert self.simple.fetch("closing", 0, 0).next_offset == 7

        def wait() -> None:
            with pytest.raises(ClosedError):
                self.simple.fetch("closing", 0, 7, wait=PATIENCE)

        self.thread = threading.Thread(target=wait)
        self.thread.start()
        return self.simple, self.thread

    def __exit__(self, *_: object) -> None:
        self.simple.close()


# -- groups ------------------------------------------------------------------------------------------------------------


def member(broker: RunningBroker, group: str, topic: str, **how: Any) -> tuple[fastlog.Consumer, Stream]:
    made = fastlog.Consumer(brokers=broker.address, group_id=group, **(FAST | {"auto_offset_reset": "smallest"} | how))
    (stream,) = made.create_message_streams({topic: 1})[topic]
    return made, stream


def taken(stream: Stream, count: int) -> Rows:
    found = []
    for _ in range(count):
        message = stream.poll(PATIENCE)
        assert isinstance(message, GroupMessage), message
        found.append(message)
    return rows_of(found)


def test_a_group_goes_on_inside_a_batch(broker: RunningBroker, records: RecordBroker) -> None:
    """What is committed is the offset behind the last record that was taken, in the middle of batches of any codec."""
    items = filled(records, "resumed")
    at = 0
    for step in (3, 7, 7, 7, 7, 4):
        consumer, stream = member(broker, "resuming", "resumed")
        with consumer:
            assert taken(stream, step) == rows(items)[at : at + step]
            assert stream.poll(0.0) is not None
        at += step  # what is polled and not followed by another call is not consumed
    assert at == len(items)
    with fastlog.SimpleConsumer(broker.host, broker.port) as simple:
        assert simple.get_offsets_before("resumed", 0, LATEST) == [35]


def test_every_form_of_a_stream(broker: RunningBroker, records: RecordBroker) -> None:
    items = filled(records, "stream-forms")
    consumer, stream = member(broker, "forms", "stream-forms")
    with consumer:
        assert taken(stream, 3) == rows(items)[:3]
        batch = next(stream.batches(5))
        assert (list(batch), batch.offset, batch.next_offset) == ([item.value for item in items[3:8]], 3, 8)
        arrays = next(stream.numpy_batches())
        assert rows_in(arrays) == rows(items)[8:]
        assert (arrays.next_offset, arrays.source.partition) == (35, PartitionId(0, 0))
        assert stream.poll(0.0) in (NoMessage.NO_DATA, NoMessage.AT_END)
        (place,) = [item for item in consumer.owned if item.partition.partition == 0]
        consumer.seek(place, 17)
        run = stream.run(PATIENCE)
        assert run is not None
        assert (run.offset, run.next_offset, run.entries) == (17, 35, 3 if run.wrappers == 3 else run.entries)
        consumer.seek(place, 33)
        assert taken(stream, 2) == rows(items)[33:]


def test_two_members_share_and_hand_over(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("shared", 4, {})
    for partition in range(4):
        put(records, "shared", made(6), partition=partition)
    first, one = member(broker, "sharing", "shared")
    second, two = member(broker, "sharing", "shared")
    with first, second:
        wait_until("each has two", lambda: len(first.owned) == len(second.owned) == 2)
        before = {partition: 0 for partition in range(4)}
        for stream in (one, two):
            for message in (stream.poll(PATIENCE) for _ in range(4)):
                assert isinstance(message, GroupMessage)
                before[message.partition.partition] += 1
        assert sum(before.values()) >= 8
        first.shutdown()
        wait_until("one has all", lambda: len(second.owned) == 4)
        put(records, "shared", made(1, 6))
        seen = set()
        while len(seen) < 1 or (0, 6) not in seen:
            message = two.poll(PATIENCE)
            assert isinstance(message, GroupMessage), (message, seen)
            seen.add((message.partition.partition, message.offset))


def test_a_group_notices_that_its_topic_is_another_one(
    broker: RunningBroker, records: RecordBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    items = filled(records, "remade", codecs=(0,))
    consumer, stream = member(broker, "noticing", "remade")
    with consumer:
        assert taken(stream, 7) == rows(items)
        records.delete("remade")
        records.create("remade", 2, {})
        other = made(12, name="w")
        put(records, "remade", other)
        assert taken(stream, 12) == rows(other)
        for jump in consumer.jumps:  # none where it was given up meanwhile, as its committed offset went with the topic
            assert jump.new == 0
            assert "the topic was made anew" in jump.reason


def test_a_filter_sees_both_kinds(broker: RunningBroker, records: RecordBroker) -> None:
    filled(records, "filter-records", codecs=(0,))
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        producer.send("filter-messages", [b"a", b"b"])
    consumer = fastlog.Consumer(brokers=broker.address, group_id="filter", auto_offset_reset="smallest", **FAST)
    (stream,) = consumer.create_message_streams_by_filter(whitelist="filter-.*")
    with consumer:
        found = [message for message in (stream.poll(PATIENCE) for _ in range(9)) if isinstance(message, GroupMessage)]
        by_topic = {topic: [m for m in found if m.topic == topic] for topic in ("filter-records", "filter-messages")}
        assert rows_of(by_topic["filter-records"]) == rows(made(7))
        assert [message.payload for message in by_topic["filter-messages"]] == [b"a", b"b"]
        assert consumer.topics == {"filter-records": 2, "filter-messages": 1} or len(consumer.topics) == 2


def test_nothing_is_asked_for_by_requests_of_0_7(records: RecordBroker, broker: RunningBroker) -> None:
    """Whichever way a topic is met first: the broker would log a warning for each."""
    ways: dict[str, Callable[[fastlog.SimpleConsumer, str], Any]] = {
        "fetch": lambda consumer, topic: list(consumer.fetch(topic, 0, 0)),
        "multifetch": lambda consumer, topic: list(consumer.multifetch([(topic, 0, 0)])[0]),
        "messages": lambda consumer, topic: list(consumer.messages(topic, 0)),
        "numpy": lambda consumer, topic: list(consumer.numpy_batches(topic, 0, 0)),
        "offsets": lambda consumer, topic: consumer.get_offsets_before(topic, 0, LATEST),
        "partitions": lambda consumer, topic: consumer.partition_count(topic),
    }
    before = len(broker.log_text())
    for name, way in ways.items():
        records.create(f"quiet-{name}", 1, {})
        put(records, f"quiet-{name}", made(1))
        with fastlog.SimpleConsumer(broker.host, broker.port, timeout=PATIENCE) as consumer:
            assert way(consumer, f"quiet-{name}")
    assert "quiet-" not in "".join(line for line in broker.log_text()[before:].splitlines() if "WARNING" in line)


def test_a_part_of_a_multifetch_that_fails_raises_when_it_is_used(
    records: RecordBroker, simple: fastlog.SimpleConsumer
) -> None:
    items = filled(records, "failing-part", codecs=(0,))
    before, behind, after = simple.multifetch([("failing-part", 0, 1), ("failing-part", 0, 99), ("failing-part", 0, 6)])
    assert rows_of(before) == rows(items)[1:]
    assert isinstance(behind.error, OffsetOutOfRangeError)
    with pytest.raises(OffsetOutOfRangeError):
        list(behind)
    assert rows_of(after) == rows(items)[6:]


def test_batches_that_do_not_fit_do_not_come_again_and_again(
    records: RecordBroker, broker: RunningBroker, simple: fastlog.SimpleConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large ones in turns: nearly all of each second fetch was cut off. Up to four times as much is asked."""
    asked: list[int] = []
    fetch = record_fetching.fetch

    def noted(*place: Any, max_bytes: int, **how: Any) -> Any:
        asked.append(max_bytes)
        return fetch(*place, max_bytes=max_bytes, **how)

    records.create("cut", 1, {})
    large, small = b"x" * 9_900, b"y"
    for value in [large, small] * 15:
        put(records, "cut", [Record(None, value)])
    monkeypatch.setattr(record_fetching, "fetch", noted)
    assert list(simple.payloads("cut", 0, fetch_bytes=10_000)) == [large, small] * 15
    assert asked[0] == 10_000
    assert 19_000 < asked[-1] == max(asked) <= 40_000
    assert len(asked) < 20
    asked.clear()
    assert [found.payload for found in simple.fetch("cut", 0, 1, 10_000)] == [small]
    assert [found.payload for found in simple.fetch("cut", 0, 1, 10_000)] == [small]
    assert set(asked) == {10_000}
    asked.clear()
    with fastlog.Consumer(
        brokers=broker.address, group_id="cut", fetch_bytes=10_000, queued_chunks=1, **FAST
    ) as consumer:
        (stream,) = consumer.create_message_streams({"cut": 1})["cut"]
        assert [next(stream).payload for _ in range(30)] == [large, small] * 15
    assert max(asked) > 10_000


def test_batches_of_one_size_come_whole(
    records: RecordBroker, simple: fastlog.SimpleConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first fetch as many are asked for as it takes, and none comes in part."""
    asked: list[int] = []
    fetch = record_fetching.fetch

    def noted(*place: Any, max_bytes: int, **how: Any) -> Any:
        asked.append(max_bytes)
        return fetch(*place, max_bytes=max_bytes, **how)

    records.create("even", 1, {})
    values = [b"%03d" % number * 1000 for number in range(13)]
    for value in values:
        put(records, "even", [Record(None, value)])
    batch_bytes = len(simple.fetch("even", 0, 0, 1).data)
    monkeypatch.setattr(record_fetching, "fetch", noted)
    assert list(simple.payloads("even", 0, fetch_bytes=10_000)) == values
    assert asked[0] == 10_000
    assert set(asked[1:]) == {3 * batch_bytes}
    asked.clear()
    assert list(simple.payloads("even", 0, fetch_bytes=2_000)) == values, "each is larger than that"
    assert set(asked) == {2_000}


# -- answers that make no sense ----------------------------------------------------------------------------------------


def test_batches_come_as_today_s_protocol_has_them(broker: RunningBroker, records: RecordBroker) -> None:
    """The request with tagged fields, against a real broker: of the topic with that id, and of no other."""
    filled(records, "ids", codecs=(0,))
    topic = records.known_topics(["ids"])["ids"].id
    connection = connected(Address(broker.host, broker.port), "test", deadline())
    connection.begin("tests are run", deadline())

    def fetched(topic: bytes, partition: int) -> record_fetching.Batches:
        request = record_fetching.fetch(topic, partition, 2, max_wait_ms=0, min_bytes=1, max_bytes=1000)
        number = connection.send(request)
        answer = connection._connection.receive_view(1 << 20)
        return record_fetching.parse_batches(answer, number, topic, partition)

    found = fetched(topic, 0)
    assert found[:3] == (0, 7, 0)
    assert bytes(found.data[8:12]) == (len(found.data) - 12).to_bytes(4, "big")
    assert fetched(b"x" * 16, 0).code == 100
    assert fetched(topic, 9).code == 3
    connection.close()


def deadline() -> float:
    import time

    return time.monotonic() + PATIENCE
