"""A producer and a broker of today's protocol that refuses, breaks or lies: what is stored, and what is told of it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fastlog.client.records import RecordsError
from fastlog.errors import (
    ClosedError,
    ConfigError,
    InvalidMessageError,
    InvalidTopicError,
    MessageTooLargeError,
    NotAuthorizedError,
    StorageError,
    TransportError,
    WrongPartitionError,
)
from fastlog.producer import Producer
from tests.harness.broker import wait_until
from tests.harness.fake_kafka import FakeKafka, Produced, answer
from tests.harness.timing import PATIENCE


def delivered(kafka: FakeKafka, count: int = 60, **settings: Any) -> tuple[Producer, list[Any]]:
    """Send so many records, one in each batch, and wait for the end of all."""
    told: list[Any] = []
    options: dict[str, Any] = {"producer_type": "async", "batch_messages": 1, "queue_time_ms": 0} | settings
    producer = Producer(kafka.address, **options)
    with producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=0, on_delivery=told.append)
        producer.flush(PATIENCE)
    assert len(told) == count
    return producer, told


def numbers(count: int, without: set[int] = frozenset()) -> list[bytes]:  # type: ignore[assignment]
    return [b"%d" % number for number in range(count) if number not in without]


def at(wanted: set[int], said: Any) -> Callable[[Produced], Any]:
    """Say it once at each of these requests, counted from 0."""
    counter = itertools.count()

    def script(request: Produced) -> Any:
        if next(counter) not in wanted:
            return None
        if isinstance(said, type) and issubclass(said, Exception):
            raise said
        return said(request) if callable(said) else said

    return script


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "trouble",
    [
        ConnectionError,
        lambda request: answer(request)[:20],
        lambda request: answer(request, number=77),
        lambda request: answer(request, topic="u"),
        lambda request: b"\x7f\xff\xff\xff rubbish",
    ],
)
def test_what_breaks_a_connection_loses_and_doubles_nothing(when: str, trouble: Any) -> None:
    """A batch that was stored and whose answer was lost is known again; one that was not is stored now."""
    with FakeKafka() as kafka:
        setattr(kafka, when, at({0, 7, 8, 30}, trouble))
        if trouble is not ConnectionError:
            script = at({0, 7, 8, 30}, trouble)

            def both(request: Produced) -> Any:
                said = script(request)
                if said is not None and len(said) < 53:
                    kafka.cut()
                return said

            setattr(kafka, when, both)
        producer, told = delivered(kafka)
        assert kafka.values() == numbers(60)
        assert all(row.error is None for row in told)
        assert [row.offset for row in told] == list(range(60))
        assert producer.stats().possible_duplicates == 0
        assert kafka.ids == 1, "the id is kept over connections"


@pytest.mark.parametrize("code", [5, 6, 7, 14, 15, 19, 20, 56, 74])
def test_errors_that_pass_are_waited_for(code: int) -> None:
    with FakeKafka(before=at({0, 4, 5, 20}, code)) as kafka:
        _, told = delivered(kafka)
        assert kafka.values() == numbers(60)
        assert all(row.error is None for row in told)
        assert {request.header.producer_epoch for request in kafka.requests} == {0}, "no number was lost"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, InvalidMessageError),
        (3, WrongPartitionError),
        (10, MessageTooLargeError),
        (18, MessageTooLargeError),
        (29, NotAuthorizedError),
        (31, NotAuthorizedError),
        (32, InvalidMessageError),
        (42, RecordsError),
        (87, InvalidMessageError),
    ],
)
def test_a_batch_that_is_refused_for_good_fails_alone(code: int, kind: type[Exception]) -> None:
    """What is behind it comes behind a gap in the numbers: it is sent with others."""
    with FakeKafka(before=at({5, 30}, code)) as kafka:
        _, told = delivered(kafka)
        failed = [row for row in told if row.error is not None]
        assert [type(row.error) for row in failed] == [kind] * 2
        lost = {number for number in range(60) if b"%d" % number not in kafka.values()}
        assert len(lost) == 2
        assert kafka.values() == numbers(60, lost)


def test_one_try_is_all_where_no_more_are_allowed() -> None:
    """What follows a batch that fails is none the worse for it."""
    with FakeKafka(before=at({5}, 56)) as kafka:
        _, told = delivered(kafka, num_retries=0)
        assert [type(row.error) for row in told if row.error is not None] == [StorageError]
        assert kafka.values() == numbers(60, {5})


def test_a_sequence_that_the_broker_has_lost_is_begun_anew() -> None:
    with FakeKafka(before=at({4}, 59)) as kafka:
        _, told = delivered(kafka)
        assert all(row.error is None for row in told)
        assert kafka.values() == numbers(60)
        epochs = [request.header.producer_epoch for request in kafka.requests]
        assert epochs == sorted(epochs)
        assert set(epochs) == {0, 1}


def test_a_sequence_that_is_lost_while_batches_wait_is_begun_anew_once() -> None:
    """The first of five passes by at first, and is lost then; what waits behind it goes on with it in one new epoch."""
    said = {b"3": iter([56, 59, 56])}

    def script(request: Produced) -> int | None:
        return next(said.get(request.records[0].value or b"", iter(())), None)

    with FakeKafka(before=script) as kafka:
        _, told = delivered(kafka, 20)
        assert all(row.error is None for row in told)
        assert kafka.values() == numbers(20)
        assert {request.header.producer_epoch for request in kafka.requests} == {0, 1}


class SecondTry:
    """The batch with the value 5 is stored, and its answer is lost; when it comes again it is refused once."""

    def __init__(self, kafka: FakeKafka, code: int, is_forgotten: bool) -> None:
        self.kafka, self.code, self.is_forgotten = kafka, code, is_forgotten
        self.tries = 0
        kafka.before, kafka.after = self.before, self.after

    def before(self, request: Produced) -> int | None:
        if request.records[0].value != b"5":
            return None
        self.tries += 1
        if self.tries != 2:
            return None
        if self.is_forgotten:
            self.kafka.forget()
        return self.code

    def after(self, request: Produced) -> None:
        if request.records[0].value == b"5" and self.tries == 1:
            raise ConnectionError


@pytest.mark.parametrize("num_retries", [None, 3])
def test_a_stored_batch_that_is_refused_when_it_comes_again_is_known_at_last(num_retries: int | None) -> None:
    """What follows it is stored meanwhile, which says that it is, too."""
    with FakeKafka() as kafka:
        SecondTry(kafka, 56, False)
        _, told = delivered(kafka, 20, num_retries=num_retries)
        assert [row.error for row in told] == [None] * 20
        assert sorted(row.offset for row in told) == list(range(20))
        assert kafka.values() == numbers(20)


@pytest.mark.parametrize("code", [45, 56, 59])
def test_nothing_is_stored_behind_what_followed_it(code: int) -> None:
    """The broker does not know any more whether it has the batch: it is given up, and not stored anew."""
    with FakeKafka() as kafka:
        SecondTry(kafka, code, True)
        _, told = delivered(kafka, 20)
        (failed,) = [row for row in told if row.error is not None]
        assert "what follows is stored; whether the records are stored as well is not known" in str(failed.error)
        assert kafka.values() == numbers(20)
        assert {request.header.producer_epoch for request in kafka.requests} == {0}


def test_batches_hold_as_many_records_as_they_are_to() -> None:
    with FakeKafka() as kafka:
        with Producer(kafka.address) as producer:
            producer.send("t", [b"a"] * 20)
        with Producer(kafka.address, producer_type="async", batch_messages=5) as producer:
            producer.partitions("t")
            producer.send("t", [b"b"] * 12)
        assert [len(request.records) for request in kafka.requests] == [20, 5, 5, 2]


def test_a_broker_that_refuses_every_number_is_not_asked_for_ever() -> None:
    with FakeKafka(before=lambda request: 45) as kafka:
        _, told = delivered(kafka, 3, delivery_timeout_ms=300)
        assert all(isinstance(row.error, StorageError) for row in told)
        assert len(kafka.requests) < 40, "there are pauses between"


def test_a_duplicate_is_delivered_without_an_offset() -> None:
    with FakeKafka(before=at({1}, 46)) as kafka:
        _, told = delivered(kafka, 2, producer_type="sync", batch_messages=200, num_retries=0)
        assert [(row.offset, row.next_offset, row.error) for row in told] == [(0, 1, None), (-1, -1, None)]


def test_acknowledgements_and_numbers_are_asked_for_as_the_settings_say() -> None:
    for acks, idempotence, wanted in (
        (None, True, (1, 1001)),
        ("all", True, (-1, 1001)),
        ("flushed", False, (-1, -1)),
        ("none", True, (0, -1)),
    ):
        with FakeKafka() as kafka:
            with Producer(kafka.address, acks=acks, idempotence=idempotence) as producer:
                producer.send("t", b"a")
            wait_until("it is there", lambda kafka=kafka: len(kafka.requests) == 1)
            (request,) = kafka.requests
            assert (request.acks, request.header.producer_id) == wanted
            assert kafka.ids == (wanted[1] > 0)


def test_no_id_is_a_reason_to_try_again() -> None:
    with FakeKafka() as kafka:
        kafka.id_code = 15
        with Producer(kafka.address, connect_timeout_ms=400) as producer:
            with pytest.raises(TransportError, match="gives no id to a producer"):
                producer.send("t", b"a")
            kafka.id_code = 0
            producer.send("t", b"b")
        assert kafka.values() == [b"b"]


@pytest.mark.parametrize(("found", "epoch"), [(-1, 0), (5, -1)])
def test_an_id_that_is_none(found: int, epoch: int) -> None:
    with FakeKafka() as kafka, Producer(kafka.address, connect_timeout_ms=400) as producer:
        kafka.id_given = found, epoch
        with pytest.raises(TransportError, match=f"gives a producer the id {found} and the epoch {epoch}"):
            producer.send("t", b"a")
        assert kafka.requests == []


def test_topics_and_settings_that_are_not_told() -> None:
    with FakeKafka() as kafka, Producer(kafka.address, connect_timeout_ms=400) as producer:
        kafka.topic_code = 3
        with pytest.raises(WrongPartitionError, match="has no topic 't'"):
            producer.send("t", b"a")
        kafka.topic_code = 5
        with pytest.raises(TransportError, match="the topic is being made"):
            producer.send("t", b"a")
        for code, kind in ((17, InvalidTopicError), (29, NotAuthorizedError), (42, RecordsError)):
            kafka.topic_code = code
            with pytest.raises(kind, match="topic t, "):
                producer.send("t", b"a")
        kafka.topic_code, kafka.settings_code = 0, 29
        assert producer.send("t", b"a")[0].offset == 0


def test_a_cluster_of_apache_kafka_is_refused() -> None:
    with (
        FakeKafka() as one,
        FakeKafka() as two,
        Producer(f"{one.address},{two.address}") as producer,
        pytest.raises(ConfigError, match="name one broker of an Apache Kafka"),
    ):
        producer.send("t", b"a")


def test_what_waits_at_the_end_is_given_up() -> None:
    held = threading.Event()
    with FakeKafka(before=lambda request: held.wait() and None) as kafka:
        producer = Producer(kafka.address, producer_type="async")
        told: list[Any] = []
        producer.send("t", b"a", on_delivery=told.append)
        producer.close(0.3)
        held.set()
        assert [type(row.error) for row in told] == [ClosedError]
