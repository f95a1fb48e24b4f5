"""A producer and topics of record batches: the bytes it makes, and what it does when a broker refuses or lies."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import batch_codecs, record_batches
from fastlog.client.records import RecordsError
from fastlog.errors import (
    ClosedError,
    ConfigError,
    InvalidMessageError,
    MessageTooLargeError,
    NotAuthorizedError,
    ProtocolError,
    StorageError,
    TransportError,
    WrongPartitionError,
)
from fastlog.producer import Producer
from fastlog.producer._buffer import Quota
from fastlog.producer._frames import Chunk
from fastlog.producer._lane import Lane
from fastlog.producer._outbox import Outbox
from fastlog.producer._parts import Parts
from fastlog.producer._record_buffer import RecordBuffer
from fastlog.producer._record_flight import RecordFlight
from fastlog.producer.brokers import batch_header
from tests.harness.broker import wait_until
from tests.harness.fake_kafka import FakeKafka, Produced, answer, sized
from tests.harness.timing import PATIENCE

FIELDS = st.one_of(st.none(), st.binary(max_size=300))
EVERYTHING = 2**62


def buffer_of(
    outbox: Outbox, *, limit: int = 5, batch: int = 1, batch_bytes: int = 1 << 20, codec: int = 0, partition: int = 0
) -> RecordBuffer:
    header = batch_header("t", partition, 1, 1000)
    return RecordBuffer(outbox, 0, "t", partition, codec, header, True, batch, batch_bytes, 1 << 20, Lane(limit))


def chunk_of(values: list[bytes | None], *, lane: Lane | None = None, **options: Any) -> Chunk:
    outbox = Outbox(Quota(10**9, 10**12), 0)
    buffer = buffer_of(outbox, **options)
    buffer.extend(values)
    (chunk,) = outbox.take(True)
    outbox.retire()
    return chunk


def requests_in(data: bytes) -> list[Produced]:
    """The requests that were written, each with a batch that is right."""
    found = []
    while data:
        size, key, version, number, client = struct.unpack_from(">ihhih", data)
        assert (key, version) == (0, 7)
        body, data = data[14 + client : 4 + size], data[4 + size :]
        _, acks, _, topics, length = struct.unpack_from(">hhiih", body)
        topic = body[14 : 14 + length].decode()
        partitions, partition, rest = struct.unpack_from(">iii", body, 14 + length)
        assert (topics, partitions, rest) == (1, 1, len(body) - 26 - length)
        found.append(Produced(number, acks, topic, partition, body[26 + length :]))
        record_batches.check_deep(found[-1].batch)
    return found


class Wire:
    """A flight over a socket pair."""

    def __init__(self, producer: int | None = 9) -> None:
        self.flight = RecordFlight(True)
        if producer is not None:
            self.flight.number_with(producer, 0)
        self._sockets: list[socket.socket] = []
        self.connect()

    def connect(self) -> None:
        self.close()
        self.ours, self.theirs = self._sockets = list(socket.socketpair())
        for one in self._sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            one.setblocking(False)

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def written(self) -> list[Produced]:
        self.flight.write(self.ours.fileno(), EVERYTHING)
        try:
            return requests_in(self.theirs.recv(1 << 24))
        except BlockingIOError:
            return []

    def answered(self, *answers: bytes) -> None:
        self.theirs.sendall(b"".join(answers))
        self.flight.receive(self.ours.fileno())


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.fixture
def plain_wire() -> Iterator[Wire]:
    made = Wire(producer=None)
    yield made
    made.close()


@given(
    st.lists(
        st.tuples(
            FIELDS,
            FIELDS,
            st.one_of(st.none(), st.lists(st.tuples(st.binary(max_size=20), FIELDS), max_size=3)),
            st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_batches_hold_what_was_put_in(rows: list[tuple[Any, Any, Any, int]]) -> None:
    outbox = Outbox(Quota(10**9, 10**12), 0)
    buffer = buffer_of(outbox, batch=7)
    for key, value, headers, time in rows:
        buffer.extend([value], parts=Parts(key, headers, time))
    found = [record for chunk in outbox.take(True) for request in sent(chunk) for record in request.records]
    outbox.retire()
    assert [(record.key, record.value, list(record.headers), record.timestamp) for record in found] == [
        (key, value, headers or [], time) for key, value, headers, time in rows
    ]


def sent(chunk: Chunk) -> list[Produced]:
    """The requests of a chunk, as a flight writes them."""
    wire = Wire()
    wire.flight.add(chunk)
    try:
        return wire.written()
    finally:
        wire.close()


@pytest.mark.parametrize("codec", range(1, 5))
def test_batches_are_compressed_where_that_makes_them_smaller(codec: int) -> None:
    values = [b"a" * 1000, bytes(range(9)), b"b" * 1000]
    chunk = chunk_of(list(values), codec=codec)
    made = chunk.compressed_batches(batch_codecs.compress)
    assert made.size < chunk.size
    assert (made.messages, made.frame_count, made.codec, made.lane) == (3, 3, codec, chunk.lane)
    found = sent(made)
    assert [request.header.codec for request in found] == [codec, 0, codec]
    assert [record.value for request in found for record in request.records] == values


def test_a_batch_grows_while_those_before_it_wait() -> None:
    outbox = Outbox(Quota(10**9, 10**12), 10**15)
    buffer = buffer_of(outbox, batch=2)
    buffer.extend([b"1", b"2", b"3"])
    outbox.behind = True
    buffer.extend([b"4", b"5", b"6"])
    assert [chunk.messages for chunk in outbox.take()] == [2], "the open one has more than it is to have"
    outbox.behind = False
    assert outbox.sleep(-1, False, False, -1) == 0, "it is due at once"
    assert [chunk.messages for chunk in outbox.take()] == [4]
    outbox.retire()


def test_a_batch_ends_before_it_is_larger_than_it_may_be() -> None:
    found = sent(chunk_of([b"x" * 100] * 10, batch=1000, batch_bytes=300))
    assert all(len(request.batch) <= 300 + record_batches.HEADER_BYTES for request in found)
    assert sum(len(request.records) for request in found) == 10
    assert len(sent(chunk_of([b"x" * 100] * 2, batch=1000, batch_bytes=300))) == 1


def test_batches_of_a_partition_are_numbered_five_at_a_time(wire: Wire) -> None:
    """The numbers go on with the records; answers make room; partitions do not wait for each other's."""
    wire.flight.add(chunk_of([b"%d" % number for number in range(16)], batch=2))
    wire.flight.add(chunk_of([b"other"] * 2, partition=1))
    first = wire.written()
    assert [(request.header.producer_id, request.header.producer_epoch) for request in first] == [(9, 0)] * 5
    assert [request.header.base_sequence for request in first] == [0, 2, 4, 6, 8]
    assert not wire.flight.has_unsent()
    assert wire.flight.is_behind()
    wire.answered(*(answer(request, offset=7 + 2 * place) for place, request in enumerate(first[:2])))
    assert wire.flight.has_unsent()
    second = wire.written()
    assert [request.header.base_sequence for request in second] == [10, 12]
    wire.answered(*(answer(request) for request in first[2:]))
    third = wire.written()
    assert [(request.partition, request.header.base_sequence) for request in third] == [(0, 14), (1, 0), (1, 1)]
    wire.answered(*(answer(request) for request in second + third))
    assert (wire.flight.delivered, wire.flight.head(), wire.flight.is_behind()) == (18, None, False)


def test_what_is_written_again_keeps_its_numbers(wire: Wire) -> None:
    wire.flight.add(chunk_of([b"%d" % number for number in range(7)]))
    first = wire.written()
    wire.answered(answer(first[0]))
    assert wire.flight.rewind() == 0, "nothing of it can be stored twice"
    wire.connect()
    again = wire.written()
    assert [request.batch for request in again[:4]] == [request.batch for request in first[1:]]
    assert [request.header.base_sequence for request in again] == [1, 2, 3, 4, 5]


def test_without_numbers_everything_is_written_at_once_and_may_be_stored_twice(plain_wire: Wire) -> None:
    wire = plain_wire
    wire.flight.add(chunk_of([b"%d" % number for number in range(20)], limit=0))
    found = wire.written()
    assert [(request.header.producer_id, request.header.base_sequence) for request in found] == [(-1, -1)] * 20
    assert wire.flight.rewind() == 20


def test_nothing_is_written_before_there_is_an_id(plain_wire: Wire) -> None:
    wire = plain_wire
    wire.flight.add(chunk_of([b"a"]))
    assert not wire.flight.has_unsent()
    assert wire.written() == []
    wire.flight.number_with(3, 4)
    (request,) = wire.written()
    assert (request.header.producer_id, request.header.producer_epoch, request.header.base_sequence) == (3, 4, 0)


def test_numbers_begin_anew_in_the_next_epoch_and_at_last_with_another_id(wire: Wire) -> None:
    chunk = chunk_of([b"a", b"b"])
    lane = chunk.lane
    assert lane is not None
    wire.flight.add(chunk)
    first = wire.written()
    wire.flight.rewind()
    wire.flight.renew(lane)
    assert not wire.flight.wants_producer
    wire.connect()
    again = wire.written()
    assert [(request.header.producer_epoch, request.header.base_sequence) for request in again] == [(1, 0), (1, 1)]
    assert [request.records for request in again] == [request.records for request in first]
    while not wire.flight.wants_producer:
        wire.flight.rewind()
        wire.flight.renew(lane)
    assert lane.generation == 32769, "all epochs were used"
    wire.connect()
    assert wire.written() == []
    wire.flight.number_with(10, 0)
    assert [(r.header.producer_id, r.header.producer_epoch) for r in wire.written()] == [(10, 0), (10, 0)]


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda r: answer(r, number=r.number + 1), "says it is for"),
        (lambda r: answer(r, topic="u"), "another topic"),
        (lambda r: answer(r, topic="tt"), "an answer of 50 bytes"),
        (lambda r: answer(r, partition=1), "another partition"),
        (lambda r: answer(r, offset=-2), "stored at offset -2"),
        (lambda r: sized(b""), "an answer of 0 bytes"),
        (lambda r: b"\xff\xff\xff\xff", "an answer of -1 bytes"),
        (lambda r: answer(r)[:8] + struct.pack(">i", 2) + answer(r)[12:], "another topic"),
        (lambda r: answer(r)[:15] + struct.pack(">i", 2) + answer(r)[19:], "another partition"),
        (lambda r: answer(r) + answer(r), "nothing was asked for"),
    ],
)
def test_answers_that_are_none(wire: Wire, lie: Callable[[Produced], bytes], said: str) -> None:
    wire.flight.add(chunk_of([b"a"]))
    (request,) = wire.written()
    with pytest.raises(ProtocolError, match=said):
        wire.answered(lie(request))


def test_an_answer_in_pieces(wire: Wire) -> None:
    wire.flight.add(chunk_of([b"a", b"b"]))
    first, second = wire.written()
    data = answer(first, offset=4) + answer(second, offset=5)
    for place in range(len(data)):
        wire.answered(data[place : place + 1])
        assert wire.flight.delivered == (place + 1) // 53
    assert wire.flight.delivered == 2


# --- the whole producer, and a broker that is told what to do ---


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
    with FakeKafka(before=at({3, 4, 20}, code)) as kafka:
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
