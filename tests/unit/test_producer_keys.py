"""A list of values with a key for each of them: every value goes where it goes by itself, with its own key."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

import fastlog.aio
from fastlog import envelope
from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    MessageTooLargeError,
    QueueFullError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.producer import CallbackHandler, Producer, ProducerData
from fastlog.producer.hooks import Delivery
from fastlog.producer.partitioners import Murmur2Partitioner
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.fake_kafka import FakeKafka
from tests.harness.timing import PATIENCE

KEYS: list[Any] = [b"a", "b", "Ö", b"", b"a", b"e" * 300, "b", b"c", b"d", b"a"]
VALUES = [b"value %d" % number for number in range(len(KEYS))]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(4) as made:
        yield made


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=4) as made:
        yield made


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The calls that the compiled path has left to Python."""
    calls: list[tuple[Any, ...]] = []
    send_slowly = Producer._send_slowly

    def counted(producer: Producer, *arguments: Any) -> Any:
        calls.append(arguments)
        return send_slowly(producer, *arguments)

    monkeypatch.setattr(Producer, "_send_slowly", counted)
    yield calls


def records(kafka: FakeKafka) -> dict[int, list[tuple[Any, Any]]]:
    return {number: [(record.key, record.value) for record in log] for number, log in sorted(kafka.logs.items()) if log}


def messages(broker: FakeBroker) -> dict[int, list[bytes]]:
    return {number: found for number in range(-1, 4) if (found := stored(broker, "t", number))}


def as_bytes(key: Any) -> bytes | None:
    return key.encode() if isinstance(key, str) else b"%d" % key if isinstance(key, int) else key


def by_singles(address: str, keys: list[Any], values: list[Any], **settings: Any) -> None:
    with Producer(address, **settings) as producer:
        for key, value in zip(keys, values, strict=True):
            producer.send("t", value, key=key)


# --- where they go ---


@pytest.mark.parametrize("producer_type", ["sync", "async"])
@pytest.mark.parametrize("form", [list, tuple])
def test_records_go_where_single_sends_put_them(kafka: FakeKafka, producer_type: str, form: Any) -> None:
    keys, values = [*KEYS, 7, -7], [*VALUES, b"seven", None]
    with FakeKafka(4) as other, Producer(kafka.address, producer_type=producer_type) as producer:
        by_singles(other.address, keys, values)
        for _ in range(2):
            producer.send("t", form(values), keys=form(keys))
        if producer_type == "async":
            producer.flush(PATIENCE)
        expected = {number: found * 2 for number, found in records(other).items()}
    assert records(kafka) == expected
    assert len(expected) > 1


@pytest.mark.parametrize("producer_type", ["sync", "async"])
def test_messages_go_where_single_sends_put_them(broker: FakeBroker, producer_type: str) -> None:
    with FakeBroker(partitions=4) as other, Producer(broker.address, producer_type=producer_type) as producer:
        by_singles(other.address, [*KEYS, 7], [*VALUES, b"seven"])
        for _ in range(2):
            producer.send("t", [*VALUES, b"seven"], keys=[*KEYS, 7])
        if producer_type == "async":
            producer.flush(PATIENCE)
        expected = {number: found * 2 for number, found in messages(other).items()}
    assert messages(broker) == expected
    assert len(expected) > 1


def test_what_is_simple_is_compiled_from_the_second_call_on(
    kafka: FakeKafka, broker: FakeBroker, slow: list[Any]
) -> None:
    for server in (kafka, broker):
        with Producer(server.address, producer_type="async") as producer:
            slow.clear()
            producer.send("t", VALUES, keys=KEYS)
            assert len(slow) == 1
            for _ in range(3):
                producer.send("t", VALUES, keys=KEYS)
                producer.send("t", VALUES[:2], keys=[None, "k"])
            assert len(slow) == 1
            producer.send("t", VALUES, keys=KEYS, partition=2)
            producer.send("t", VALUES, keys=KEYS, partition=2)
            assert len(slow) == 2
    with Producer(kafka.address, producer_type="async") as producer:
        producer.send("t", VALUES, keys=KEYS)
        slow.clear()
        producer.send("t", [None, b"v"], keys=[b"k", None], headers=[("h", "1")], timestamp=5)
        producer.send("t", [None], keys=[None], timestamp=5)
        producer.send("t", [None, None], keys=[b"", ""])
        producer.send("t", b"v")
        producer.send("t", [b"v", b"w"])
        producer.send("t", None, key="k")
        assert not slow


def test_a_partition_by_hand_takes_all_and_keeps_the_keys(kafka: FakeKafka, broker: FakeBroker) -> None:
    for producer_type in ("sync", "async"):
        with Producer(kafka.address, producer_type=producer_type) as producer:
            for _ in range(2):
                producer.send("t", VALUES, keys=KEYS, partition=(0, 3))
        with Producer(broker.address, producer_type=producer_type) as producer:
            for _ in range(2):
                producer.send("t", VALUES, keys=KEYS, partition=3)
    assert records(kafka) == {3: list(zip(map(as_bytes, KEYS), VALUES, strict=True)) * 4}
    assert messages(broker) == {3: VALUES * 4}


def test_values_without_a_key_stay_together_and_go_anywhere(kafka: FakeKafka) -> None:
    with Producer(kafka.address, producer_type="async", batch_messages=4) as producer:
        producer.partitions("t")
        for _ in range(60):
            producer.send("t", [b"1", b"2", b"3", b"k"], keys=[None, None, None, b"a"])
            producer.flush(PATIENCE)
    found = records(kafka)
    assert set(found) == {0, 1, 2, 3}
    for number in found:
        plain = [value for key, value in found[number] if key is None]
        assert plain == [b"1", b"2", b"3"] * (len(plain) // 3)


@pytest.mark.parametrize("seed", [121751464, 2891000577])  # of those that miss one if each turn were two
def test_lists_without_keys_take_turns_at_the_partitions(
    kafka: FakeKafka, slow: list[Any], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whenever one has filled a request, though it begins another: each list leaves one message more in that."""
    monkeypatch.setattr(random, "getrandbits", lambda bits: seed)
    with Producer(kafka.address, producer_type="async", batch_messages=97) as producer:
        for _ in range(90):
            producer.send("t", [b"x"] * 98, keys=[None] * 98)
        assert len(slow) == 1
    assert set(records(kafka)) == {0, 1, 2, 3}


def test_a_partitioner_of_ones_own_is_asked_for_each(kafka: FakeKafka) -> None:
    with FakeKafka(4) as other:
        by_singles(other.address, KEYS, VALUES, partitioner=Murmur2Partitioner())
        with Producer(kafka.address, producer_type="async", partitioner=Murmur2Partitioner()) as producer:
            producer.send("t", VALUES, keys=KEYS)
        assert records(kafka) == records(other)


def test_headers_and_time_are_those_of_all(kafka: FakeKafka, slow: list[Any]) -> None:
    with Producer(kafka.address, producer_type="async") as producer:
        for _ in range(2):
            producer.send("t", VALUES, keys=KEYS, headers=[("a", "1")], timestamp=77)
        assert len(slow) == 1
        producer.send("t", VALUES, keys=KEYS, headers=iter([("a", "1")]), timestamp=77)
    found = [record for log in kafka.logs.values() for record in log]
    assert len(found) == 3 * len(VALUES)
    assert {(record.headers, record.timestamp) for record in found} == {(((b"a", b"1"),), 77)}


def test_deliveries_tell_each_partition_in_order(kafka: FakeKafka) -> None:
    told: list[Delivery] = []
    with Producer(kafka.address) as producer:
        deliveries = producer.send("t", VALUES, keys=KEYS)
        producer.send("t", VALUES, keys=KEYS, on_delivery=told.append)
    counts = {number: len(found) // 2 for number, found in records(kafka).items()}
    assert {item.partition: item.messages for item in deliveries} == counts
    assert all((item.offset, item.next_offset) == (0, item.messages) for item in deliveries)
    assert {item.partition: item.messages for item in told} == counts


def test_several_topics_and_keys_in_one_call(kafka: FakeKafka) -> None:
    data = ProducerData("t", VALUES, keys=KEYS)
    assert data.keys == KEYS
    with Producer(kafka.address) as producer:
        producer.send([data, ProducerData("t", b"k", b"one")])
    assert sum(map(len, records(kafka).values())) == len(KEYS) + 1


# --- what is refused ---


@pytest.mark.parametrize("producer_type", ["sync", "async"])
@pytest.mark.parametrize(
    ("value", "fields", "error"),
    [
        ([b"a", b"b"], {"keys": [b"k"]}, "there are 1 keys for 2 values"),
        ([b"a", b"b"], {"keys": [b"k"] * 3}, "there are 3 keys for 2 values"),
        ([], {"keys": [b"k"]}, "there are 1 keys for 0 values"),
        ([b"a"], {"keys": [b"k"], "key": b"k"}, "give one of the two"),
        ([b"a"], {"keys": b"k"}, "not bytes"),
        ([b"a"], {"keys": iter([b"k"])}, "keys are a list"),
        (b"a", {"keys": [b"k"]}, "give key"),
        ([b"a", b"b"], {"keys": [b"k", 1.5]}, "a key is bytes, str or int, not float"),
        ([b"a", b"b"], {"keys": [b"k", "\ud800"]}, "UTF-8"),
        ([b"a", 5], {"keys": [b"k", b"k"]}, "a payload is bytes"),
        ([b"a", None], {"keys": [b"k", None]}, "a payload is bytes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    kafka: FakeKafka, broker: FakeBroker, producer_type: str, value: Any, fields: dict[str, Any], error: str
) -> None:
    for server in (kafka, broker):
        with Producer(server.address, producer_type=producer_type) as producer:
            producer.partitions("t")
            producer.send("t", [b"first"], keys=[b"k"])
            for topic in ("t", "t"):
                with pytest.raises(ArgumentError, match=error):
                    producer.send(topic, value, **fields)
            assert producer.stats().accepted == 1


def test_keys_without_values_send_nothing(kafka: FakeKafka) -> None:
    for producer_type in ("sync", "async"):
        with Producer(kafka.address, producer_type=producer_type) as producer:
            for _ in range(2):
                assert producer.send("t", [], keys=[]) == ()
            assert producer.stats().accepted == 0


def test_messages_have_no_nulls_headers_and_times(broker: FakeBroker) -> None:
    for producer_type in ("sync", "async"):
        with Producer(broker.address, producer_type=producer_type) as producer:
            producer.send("t", [b"first"], keys=[b"k"])
            for fields in ({"headers": {"a": "b"}}, {"timestamp": 5}):
                with pytest.raises(UnsupportedFeatureError):
                    producer.send("t", [b"x"], keys=[b"k"], **fields)
            with pytest.raises(ArgumentError, match="bytes"):
                producer.send("t", [b"x", None], keys=[b"k", b"k"])
            with pytest.raises(WrongPartitionError):
                producer.send("t", [b"x"], keys=[b"k"], partition=9)
            assert producer.stats().accepted == 1


def test_a_key_counts_in_the_size_of_its_own_record_alone(kafka: FakeKafka) -> None:
    for producer_type in ("sync", "async"):
        with Producer(kafka.address, producer_type=producer_type, max_message_bytes=1000) as producer:
            producer.send("t", [b"v"], keys=[b"k"])
            for _ in range(2):
                producer.send("t", [b"v" * 990, b"v"], keys=[b"k", b"k" * 990])
                for key, value in ((b"k" * 20, b"v" * 990), (b"k" * 1000, None)):
                    with pytest.raises(MessageTooLargeError):
                        producer.send("t", [b"v", value], keys=[b"k", key])
            assert producer.stats().accepted == 5


@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_a_queue_without_room_takes_all_or_nothing(broker: FakeBroker, policy: str) -> None:
    """Also where the first of the partitions alone would find room."""
    with Producer(
        broker.address, producer_type="async", queue_messages=5, queue_full=policy, queue_time_ms=60_000
    ) as producer:
        producer.send("t", [b"first"], keys=[b"k"])
        if policy == "raise":
            with pytest.raises(QueueFullError, match="5 more do not fit"):
                producer.send("t", VALUES[:5], keys=KEYS[:5])
        else:
            producer.send("t", VALUES[:5], keys=KEYS[:5])
        stats = producer.stats()  # there may be room by now: what waited was sent when there was none
        assert (stats.accepted, stats.dropped) == (1, 0 if policy == "raise" else 5)
        producer.send("t", VALUES[:4], keys=KEYS[:4])
        assert producer.stats().accepted == 5


def test_a_closed_producer_refuses(kafka: FakeKafka) -> None:
    producer = Producer(kafka.address, producer_type="async")
    producer.send("t", VALUES, keys=KEYS)
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("t", VALUES, keys=KEYS)


# --- envelopes, encoders, handlers, coroutines ---


@pytest.mark.parametrize("producer_type", ["sync", "async"])
def test_envelopes_have_the_key_of_their_value(kafka: FakeKafka, producer_type: str) -> None:
    with Producer(kafka.address, producer_type=producer_type, envelope=True) as producer:
        for _ in range(2):
            producer.send("t", VALUES, keys=KEYS)
        with pytest.raises(ArgumentError, match="UTF-8"):
            producer.send("t", VALUES[:2], keys=["a", "\ud800"], partition=1)
    found = [record for log in kafka.logs.values() for record in log]
    opened = [(record.key, *envelope.unwrap(record.value)) for record in found if record.value is not None]
    assert all(key == around.key for key, around, _ in opened)
    assert sorted(inside for _, _, inside in opened) == sorted(VALUES * 2)


def test_an_encoder_makes_the_values_and_not_the_keys(kafka: FakeKafka) -> None:
    with Producer(kafka.address, serializer_class="kafka.serializer.StringEncoder") as producer:
        producer.send("t", ["ä", "b"], keys=["a", None], partition=0)
    assert records(kafka) == {0: [(b"a", "ä".encode()), (None, b"b")]}


def test_handlers_get_values_for_the_partitions_of_their_keys(broker: FakeBroker, kafka: FakeKafka) -> None:
    with FakeBroker(partitions=4) as other:
        by_singles(other.address, KEYS, VALUES)
        with Producer(broker.address, producer_type="async", callback_handler=CallbackHandler()) as producer:
            producer.send("t", VALUES, keys=KEYS)
            producer.send("t", [b"any"], keys=[None])
            with pytest.raises(ArgumentError, match="2 keys for 1"):
                producer.send("t", [b"x"], keys=[b"k", b"k"])
        found = messages(broker)
        assert sorted(value for values in found.values() for value in values) == sorted([*VALUES, b"any"])
        for number, values in messages(other).items():
            assert [value for value in found[number] if value != b"any"] == values
    with Producer(kafka.address, producer_type="async", callback_handler=CallbackHandler()) as producer:
        with pytest.raises(ConfigError, match="handlers get values alone"):
            producer.send("t", VALUES, keys=KEYS)
        assert producer.stats().queued == 0


def test_coroutines_send_keys_as_well(kafka: FakeKafka, broker: FakeBroker) -> None:
    async def main(address: str) -> None:
        async with fastlog.aio.Producer(address) as producer:
            await producer.send("t", VALUES, keys=KEYS)
            deliveries = await producer.send_and_wait("t", VALUES, keys=KEYS)
            assert sum(delivery.messages for delivery in deliveries) == len(VALUES)
            await producer.send("t", [b"any"], keys=[None])
            for call in (producer.send, producer.send_and_wait):
                with pytest.raises(ArgumentError, match="1 keys for 2 values"):
                    await call("t", [b"a", b"b"], keys=[b"k"])

    with FakeKafka(4) as other, FakeBroker(partitions=4) as plain:
        for server in (other, plain):
            by_singles(server.address, KEYS, VALUES)
        asyncio.run(main(kafka.address))
        asyncio.run(main(broker.address))
        assert {number: [pair for pair in found if pair[1] != b"any"] for number, found in records(kafka).items()} == {
            number: found * 2 for number, found in records(other).items()
        } | {number: [] for number in records(kafka).keys() - records(other).keys()}
        for number, found in messages(plain).items():
            assert [value for value in messages(broker)[number] if value != b"any"] == found * 2
