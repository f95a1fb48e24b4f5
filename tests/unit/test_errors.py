"""What an error says: where, what, and what to do; in its text and in its attributes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from fastlog import errors, kafka_codes
from fastlog._segment import pack
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import (
    CLASS_BY_CODE,
    BrokerError,
    DecompressionLimitError,
    DeliveryError,
    FastlogError,
    InvalidMessageError,
    LogError,
    PartitionOfflineError,
    TransportError,
    UnknownServerError,
    error_for,
)
from fastlog.producer import Delivery, Producer
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker


@pytest.mark.parametrize("code", [*CLASS_BY_CODE, 999])
def test_a_code_becomes_a_place_a_reason_and_an_advice(code: int) -> None:
    error = error_for(code, topic="c29", partition=4, offset=7, broker="h:1")
    assert isinstance(error, CLASS_BY_CODE.get(code, UnknownServerError))
    first, advice = str(error).splitlines()
    assert first == f"topic c29, partition 4, offset 7, broker h:1: {error.reason}"
    assert advice == error.what_to_do
    assert (error.code, error.topic, error.partition, error.offset, error.broker) == (code, "c29", 4, 7, "h:1")
    assert len(error.reason) > 5
    assert error_for(code, "why", topic="c29").reason == f"{error.reason}; why"


def test_what_is_known_already_stays() -> None:
    """A place is told once; text of several lines says itself what to do; the error that is asked stays as it is."""
    plain = TransportError("no answer\nbecause\ntry again")
    placed = plain.at(topic="t", partition=-1, broker="h:1").at(topic="other", partition=2)
    assert str(placed) == "partition 2: topic t, broker h:1: no answer\nbecause\ntry again"
    assert (placed.topic, placed.partition, placed.reason) == ("t", 2, "no answer")
    assert (str(plain), plain.topic, plain.reason) == ("no answer\nbecause\ntry again", None, "no answer")
    assert str(TransportError("x").at()) == "x"
    assert str(FastlogError("x").at(topic="\x1b[2J")) == r"topic \x1b[2J: x"


@pytest.mark.parametrize("error", [LogError("x", path="/p", position=3), DeliveryError("x", 5)])
def test_errors_with_more_to_say_keep_it(error: FastlogError) -> None:
    placed = pickle.loads(pickle.dumps(error.at(topic="t")))
    assert {**vars(error), "topic": "t", "_reason": error.reason} == vars(placed)
    assert placed.topic == "t"


def refused(request: rq.Request) -> bytes | None:
    if isinstance(request, wire07.ProduceAckRequest):
        return wire07.encode_produce_ack(
            rs.ProduceAckAnswer(request.correlation_id, PartitionOfflineError.code, 0, -1, -1)
        )
    return None


def check_place(error: FastlogError | None, broker: FakeBroker, kind: type[FastlogError]) -> None:
    assert isinstance(error, kind)
    assert (error.topic, error.partition, error.broker) == ("c29", 0, broker.address)
    assert "takes no appends" in error.reason
    assert f"topic c29, partition 0, broker {broker.address}: {error.reason}" in str(error)
    assert PartitionOfflineError.what_to_do in str(error)


def test_a_refused_message_names_its_place() -> None:
    """However it is told: raised by send(), in a callback, in a future, by flush()."""
    with FakeBroker(hook=refused) as broker:
        with Producer(broker.address) as producer, pytest.raises(PartitionOfflineError) as caught:
            producer.send("c29", b"x")
        check_place(caught.value, broker, PartitionOfflineError)
        told: list[Delivery] = []
        with Producer(broker.address, producer_type="async") as producer:
            producer.send("c29", b"x", on_delivery=told.append)
            future = producer.submit("c29", b"x")
            producer.flush()
            check_place(told[0].error, broker, PartitionOfflineError)
            check_place(future.exception(), broker, PartitionOfflineError)  # type: ignore[arg-type]
            producer.send("c29", b"x")
            with pytest.raises(DeliveryError) as lost:
                producer.flush()
            check_place(lost.value, broker, DeliveryError)


def test_a_broker_that_cannot_be_reached_is_named_with_the_topic() -> None:
    with Producer("127.0.0.1:1", connect_timeout_ms=1) as producer, pytest.raises(TransportError) as caught:
        producer.send("c29", b"x")
    error = caught.value
    assert (error.topic, error.broker, error.reason) == ("c29", "127.0.0.1:1", "127.0.0.1:1: Connection refused")
    assert "is the broker running?" in str(error)
    with SimpleConsumer("127.0.0.1", 1) as consumer, pytest.raises(TransportError) as caught:
        consumer.fetch("c29", 0, 0)
    assert (caught.value.topic, caught.value.partition, caught.value.broker) == ("c29", 0, "127.0.0.1:1")


@pytest.mark.parametrize(
    "read",
    [
        lambda consumer: list(consumer.messages("c29", 0)),
        lambda consumer: list(consumer.payloads("c29", 0)),
        lambda consumer: list(consumer.batches("c29", 0)),
        lambda consumer: list(consumer.numpy_batches("c29", 0)),
        lambda consumer: consumer.fetch("c29", 0, 0).payloads(),
        lambda consumer: list(consumer.fetch("c29", 0, 0).shallow()),
        lambda consumer: consumer.fetch("c29", 0, 22),
        lambda consumer: consumer.fetch_numpy("c29", 0, 22),
    ],
)
def test_a_damaged_message_names_its_place(read: Callable[[SimpleConsumer], Any]) -> None:
    """Whichever way it is read."""
    with FakeBroker() as broker, SimpleConsumer("127.0.0.1", broker.port) as consumer:
        broker.logs["c29", 0] = pack([b"a", b"b"]) + pack([b"c"])[:-1] + b"x" + pack([b"d"])
        with pytest.raises(InvalidMessageError) as caught:
            read(consumer)
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("c29", 0, 22)
    assert error.broker in (broker.address, None)
    assert "topic c29, partition 0" in str(error)
    assert "22" in str(error)
    assert isinstance(error, BrokerError)
    assert str(error).endswith(InvalidMessageError.what_to_do)


def test_the_former_name_of_an_error_is_the_same_class_and_warns() -> None:
    """A program that catches it by that name goes on, and hears of the new one."""
    with pytest.warns(DeprecationWarning, match="DecompressionLimitError") as caught:
        found = errors.InflateLimitError  # type: ignore[attr-defined]
    assert found is DecompressionLimitError
    assert caught[0].filename == __file__, "the line that is to be changed"
    with pytest.warns(DeprecationWarning, match="InflateLimitError"):
        from fastlog.errors import InflateLimitError  # type: ignore[attr-defined]
    assert InflateLimitError is DecompressionLimitError
    with pytest.raises(AttributeError, match="has no attribute 'InflateLimit'"):
        errors.InflateLimit  # type: ignore[attr-defined]  # noqa: B018


def test_each_code_of_todays_protocol_has_one_name() -> None:
    assert len({int(code) for code in kafka_codes.Code}) == len(kafka_codes.Code.__members__)
