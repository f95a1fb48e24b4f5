"""The synchronous producer, and what holds for both kinds: where messages go, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import os
import socket
import sys
from collections.abc import Callable

import pytest

from fastlog import codecs
from fastlog._segment import payloads
from fastlog.client.connection import ConnectionEnded, ConnectionRefused
from fastlog.errors import (
    ConfigError,
    InvalidTopicError,
    MessageTooLargeError,
    PartitionOfflineError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.message import Message
from fastlog.producer import Crc32Partitioner, Delivery, Producer, ProducerData, StringEncoder, SyncProducer
from fastlog.producer.brokers import Directory
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored


def test_send_returns_where_the_messages_went() -> None:
    """A value, a list, a hand-chosen partition, several ProducerData: one delivery for each set, in order."""
    with FakeBroker(partitions=4) as broker, Producer(broker.address) as producer:
        (one,) = producer.send("t", b"a", partition=2)
        assert one == Delivery("t", 0, 2, 0, 11, 1)
        (two,) = producer.send("t", [b"b", b"c"], partition=2)
        assert (two.offset, two.next_offset, two.messages) == (11, 33, 2)
        found = producer.send([ProducerData("t", b"d", partition=1), ProducerData("u", [b"e", b"f"])])
        assert [(each.topic, each.messages) for each in found] == [("t", 1), ("u", 2)]
        assert producer.send("t", []) == ()
        assert producer.send(ProducerData("t", b"g", partition=1))[0].offset == 11
        assert stored(broker, "t", 2) == [b"a", b"b", b"c"]
        assert stored(broker, "t", 1) == [b"d", b"g"]
        assert producer.stats().delivered == 7


def test_keys_choose_among_the_sorted_list_of_brokers_and_partitions() -> None:
    """The partitioner's index counts through (broker, partition) in order of broker id, then partition."""
    with (
        FakeBroker(partitions=2) as first,
        FakeBroker(partitions=3) as second,
        Producer(f"9:{second.address},4:{first.address}") as producer,
    ):
        places = [(4, 0), (4, 1), (9, 0), (9, 1), (9, 2)]
        seen = set()
        for number in range(40):
            key = f"key-{number}"
            expected = places[Crc32Partitioner().partition(key, 5)]
            (delivery,) = producer.send("t", key.encode(), key=key)
            assert (delivery.broker, delivery.partition) == expected
            seen.add(expected)
        assert seen == set(places)
        assert producer.send("t", b"x", partition=(9, 2))[0].broker == 9
        with pytest.raises(ConfigError, match="which broker"):
            producer.send("t", b"x", partition=1)


def test_a_partitioner_of_ones_own() -> None:
    """It is asked for keys alone; an index outside the list is an error."""

    class Fixed:
        def partition(self, key: object, count: int) -> int:
            return int(str(key))

    with FakeBroker(partitions=4) as broker, Producer(broker.address, partitioner=Fixed()) as producer:
        assert producer.send("t", b"x", key=3)[0].partition == 3
        producer.send("t", b"x")
        with pytest.raises(WrongPartitionError, match="chose 4 of 4"):
            producer.send("t", b"x", key=4)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_cannot_be_sent_is_refused_before_anything_is(kind: str) -> None:
    """Wrong topic, partition, type or size raises at send(), and no part of the call is sent."""
    with FakeBroker(partitions=2) as broker:
        with Producer(broker.address, producer_type=kind, max_message_bytes=100) as producer:
            for send, error in (
                (lambda: producer.send("a/b", b"x"), InvalidTopicError),
                (lambda: producer.send("t", b"x", partition=2), WrongPartitionError),
                (lambda: producer.send("t", b"x", partition=-2), WrongPartitionError),
                (lambda: producer.send("t", b"x", partition=(7, 0)), WrongPartitionError),
                (lambda: producer.send("t", "text"), TypeError),
                (lambda: producer.send("t", [b"x", None]), TypeError),
                (lambda: producer.send(5, b"x"), TypeError),  # type: ignore[arg-type]
                (lambda: producer.send([ProducerData("t", b"x")], b"y"), TypeError),
                (lambda: producer.send(["t"]), TypeError),  # type: ignore[list-item]
                (lambda: producer.send("t", b"x", key=1.5), TypeError),
                (lambda: producer.send("t", bytes(101)), MessageTooLargeError),
                (lambda: producer.send([ProducerData("t", b"x"), ProducerData("t", bytes(101))]), MessageTooLargeError),
                (lambda: producer.send("t", Message(b"x", attributes=1)), TypeError),
            ):
                with pytest.raises(error):
                    send()
            producer.send("t", [bytes(100), bytearray(b"y"), memoryview(b"z"), Message(b"m")], partition=1)
        assert stored(broker, "t", 1) == [bytes(100), b"y", b"z", b"m"]
        assert producer.stats().accepted == 4


def test_the_brokers_own_limit_counts_too() -> None:
    """A broker that takes less than the client's setting would drop larger messages in silence."""
    with (
        FakeBroker(max_message_bytes=50) as broker,
        Producer(broker.address, acks="none") as producer,
        pytest.raises(MessageTooLargeError, match="limit of 50"),
    ):
        producer.send("t", bytes(51))


def test_size_limits_of_07() -> None:
    """0.7's vectors: limit 100 refuses 101 bytes, and ten payloads of 20 that gzip to more than 100 in one wrapper."""
    values = [os.urandom(20) for _ in range(10)]
    with FakeBroker() as broker:
        with Producer(broker.address, max_message_bytes=100, compression="gzip") as producer:
            with pytest.raises(MessageTooLargeError, match="as one compressed set"):
                producer.send("t", values)
            assert producer.stats().failed == 10
        with SyncProducer("127.0.0.1", broker.port, max_message_bytes=100) as plain:
            with pytest.raises(MessageTooLargeError, match="a message of 101 bytes"):
                plain.send("t", bytes(101))
            with pytest.raises(MessageTooLargeError, match="a compressed set"):
                plain.send("t", values, codec=codecs.GZIP)
            plain.send("t", bytes(100))
        wait_until("the message", lambda: stored(broker))
        assert stored(broker) == [bytes(100)]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_compressed_topics(kind: str, codec: str) -> None:
    """Only the topics of the list are compressed, on the synchronous path as well."""
    with FakeBroker() as broker:
        settings = {
            "broker.list": f"0:{broker.address}",
            "compression.codec": codec,
            "compressed.topics": "small",
            "producer.type": kind,
        }
        with Producer(settings) as producer:
            producer.send("small", [b"abc"] * 50)
            producer.send("plain", [b"abc"] * 50)
        assert stored(broker, "plain") == [b"abc"] * 50
        (inner,) = stored(broker, "small")
        assert payloads(codecs.decompress({"gzip": 1, "snappy": 2}[codec], inner, 10**6)) == [b"abc"] * 50


def test_an_error_answer_is_raised() -> None:
    """The broker's code becomes its exception; nothing is sent again, and the producer goes on."""
    codes = [101]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and codes:
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, codes.pop(), 0, -1, -1))
        return None

    with FakeBroker(hook=hook) as broker, Producer(broker.address) as producer:
        with pytest.raises(PartitionOfflineError):
            producer.send("t", b"x")
        producer.send("t", b"y")
        assert stored(broker) == [b"y"]
        assert (producer.stats().failed, producer.stats().delivered) == (1, 1)


def test_no_broker_at_all() -> None:
    """R-2: the error lists every address with its own reason."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    with Producer(f"127.0.0.1:{port},no-such-host.invalid:1", connect_timeout_ms=100) as producer:
        with pytest.raises(TransportError) as caught:
            producer.send("t", b"x")
        assert f"127.0.0.1:{port}" in str(caught.value)
        assert "no-such-host.invalid:1" in str(caught.value)


def test_a_broker_that_refuses_connections_is_tried_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there yet when the first message is sent."""
    ask, failures = Directory.partitions_or_none, [ConnectionRefused("no"), ConnectionEnded("no"), TransportError("no")]

    def refused_first(directory: Directory, topic: str) -> int | None:
        if failures:
            raise failures.pop()
        return ask(directory, topic)

    monkeypatch.setattr(Directory, "partitions_or_none", refused_first)
    with FakeBroker() as broker, Producer(broker.address) as producer:
        producer.send("t", b"x")
        assert stored(broker) == [b"x"]
    assert not failures


def test_a_plain_07_broker() -> None:
    """No acknowledgement, and an error where one is wanted; keys are left to the broker, partitions by hand are not."""
    with FakeBroker(own=False) as broker:
        with Producer(broker.address) as producer:
            (delivery,) = producer.send("t", [b"a", b"b"])
            assert (delivery.partition, delivery.offset, delivery.messages) == (-1, -1, 2)
            producer.send("t", b"c", partition=7)
            producer.send("t", b"d", key="k")
        assert stored(broker, "t", 0) == [b"a", b"b", b"d"]
        assert stored(broker, "t", 7) == [b"c"]
        with Producer(broker.address, acks="flushed") as producer, pytest.raises(UnsupportedFeatureError):
            producer.send("t", b"x")

        class Any:
            def partition(self, key: object, count: int) -> int:
                return 0

        with Producer(broker.address, partitioner=Any()) as producer, pytest.raises(UnsupportedFeatureError):
            producer.send("t", b"x", key="k")


def test_producer_data_takes_a_key_between_topic_and_value() -> None:
    """The order of Kafka 0.7 by place; (topic, value) and names as well, and nothing that could be misread."""
    expected = ProducerData(topic="t", value="v", key="k")
    assert (expected.topic, expected.key, expected.value, expected.partition) == ("t", "k", "v", None)
    assert ProducerData("t", "k", "v") == ProducerData("t", "v", key="k") == expected
    assert ProducerData("t", "k", "v", partition=1) == dataclasses.replace(expected, partition=1)
    assert ProducerData("t", None, "v") == ProducerData("t", "v") == copy.copy(ProducerData("t", value="v"))
    wrong: list[Callable[[], object]] = [
        lambda: ProducerData("t"),  # type: ignore[call-overload]
        lambda: ProducerData("t", "k", value="v"),  # type: ignore[call-overload]
        lambda: ProducerData("t", "k", "v", key="k"),  # type: ignore[call-overload]
        lambda: ProducerData("t", "k", "v", 1),  # type: ignore[call-overload]
    ]
    for make in wrong:
        with pytest.raises(TypeError, match=r"\(topic, key, value\)"):
            make()
    with FakeBroker(partitions=5) as broker, Producer(broker.address) as producer:
        producer.send(ProducerData("t", "test-key", b"test-message"))
        assert stored(broker, "t", Crc32Partitioner().partition("test-key", 5)) == [b"test-message"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_nobody_asks_for_the_hash_of_what_is_no_topic(kind: str) -> None:
    """A list of ProducerData has none. What the look raised was suppressed, which Python reports from 3.13 on."""
    asked, unraisable = [], []

    class Items(list[ProducerData]):
        def __hash__(self) -> int:  # type: ignore[override]
            asked.append(1)
            raise TypeError

    with pytest.MonkeyPatch.context() as patch, FakeBroker() as broker:
        patch.setattr(sys, "unraisablehook", unraisable.append)
        with Producer(broker.address, producer_type=kind) as producer:
            for _ in range(2):
                producer.send(Items([ProducerData("t", b"x"), ProducerData("t", [b"y"])]))
                producer.send([ProducerData("t", b"x")])
                producer.send(ProducerData("t", [b"x"]))
    assert not asked
    assert not unraisable
    assert len(stored(broker)) == 8


def test_encoder_is_used_for_each_value() -> None:
    """An encoder turns each event of a list into a payload."""
    with FakeBroker() as broker, Producer(broker.address, encoder=StringEncoder()) as producer:
        producer.send("t", ["ä", "b"])
        with pytest.raises(TypeError):
            producer.send("t", b"bytes")
        assert stored(broker) == ["ä".encode(), b"b"]
