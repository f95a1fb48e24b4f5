"""What a producer writes to topics of record batches: bytes, numbers, and what it takes for an answer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import batch_codecs, record_batches
from fastlog.errors import (
    ProtocolError,
)
from fastlog.producer._buffer import Quota
from fastlog.producer._frames import Chunk
from fastlog.producer._lane import Lane
from fastlog.producer._outbox import Outbox
from fastlog.producer._parts import Parts
from fastlog.producer._record_buffer import RecordBuffer
from fastlog.producer._record_flight import RecordFlight
from fastlog.producer.brokers import batch_header
from tests.harness.fake_kafka import Produced, answer, sized

FIELDS = st.one_of(st.none(), st.binary(max_size=300))
EVERYTHING = 2**62


def buffer_of(
    outbox: Outbox,
    *,
    limit: int = 5,
    batch: int = 1,
    batch_bytes: int = 1 << 20,
    codec: int = 0,
    partition: int = 0,
    first: int = 0,
) -> RecordBuffer:
    header = batch_header("t", partition, 1, 1000)
    return RecordBuffer(outbox, 0, "t", partition, codec, header, True, batch, batch_bytes, 1 << 20, Lane(limit, first))


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


@pytest.mark.parametrize("border", [1 << 6, 1 << 13, 1 << 20])
def test_records_whose_length_takes_one_byte_or_another(border: int) -> None:
    """With all that stands beside the value as short as can be, and longer: for some the guess of its room is wrong."""
    for size, time in ((size, time) for size in range(border - 19, border - 2) for time in (0, 1 << 40)):
        outbox = Outbox(Quota(10**9, 10**12), 0)
        buffer = buffer_of(outbox, batch=2, batch_bytes=1 << 21)
        rows = [(0, 0), (size, time)]
        for length, at in rows:
            buffer.extend([bytes(length)], parts=Parts(None, None, at))
        (request,) = [request for chunk in outbox.take(True) for request in sent(chunk)]
        outbox.retire()
        assert [(len(record.value or b""), record.timestamp) for record in request.records] == rows


def sent(chunk: Chunk) -> list[Produced]:
    """The requests of a chunk, as a flight writes them to a broker that stores them."""
    wire = Wire()
    wire.flight.add(chunk)
    found: list[Produced] = []
    try:
        while written := wire.written():
            wire.answered(*map(answer, written))
            found += written
        return found
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
    wire.flight.add(chunk_of([b"%d" % number for number in range(18)], batch=2))
    wire.flight.add(chunk_of([b"other"] * 3, partition=1))
    (very_first,) = wire.written()
    assert not wire.flight.has_unsent(), "a broker that does not know the producer would take the second one alone"
    wire.answered(answer(very_first))
    first = wire.written()
    assert [(request.header.producer_id, request.header.producer_epoch) for request in first] == [(9, 0)] * 5
    assert [request.header.base_sequence for request in first] == [2, 4, 6, 8, 10]
    assert not wire.flight.has_unsent()
    assert wire.flight.is_behind()
    wire.answered(*(answer(request, offset=7 + 2 * place) for place, request in enumerate(first[:2])))
    assert wire.flight.has_unsent()
    second = wire.written()
    assert [request.header.base_sequence for request in second] == [12, 14]
    wire.answered(*(answer(request) for request in first[2:]))
    third = wire.written()
    assert [(request.partition, request.header.base_sequence) for request in third] == [(0, 16), (1, 0)]
    wire.answered(*(answer(request) for request in second + third))
    fourth = wire.written()
    assert [(request.partition, request.header.base_sequence) for request in fourth] == [(1, 1), (1, 2)]
    wire.answered(*map(answer, fourth))
    assert (wire.flight.delivered, wire.flight.head(), wire.flight.is_behind()) == (21, None, False)


@pytest.mark.parametrize(("before_end", "numbers"), [(6, [-6, -3, 0, 3]), (5, [-5, -2, 1, 4]), (4, [-4, -1, 2, 5])])
def test_the_numbers_begin_anew_behind_the_last_one(wire: Wire, before_end: int, numbers: list[int]) -> None:
    """At 2^31, inside a batch too: 0 follows 2^31 - 1, as brokers count."""
    wire.flight.add(chunk_of([b"%d" % number for number in range(12)], batch=3, first=2**31 - before_end))
    (first,) = wire.written()
    wire.answered(answer(first))
    found = [first, *wire.written()]
    assert [request.header.base_sequence for request in found] == [number % 2**31 for number in numbers]
    assert [record.value for request in found for record in request.records] == [b"%d" % n for n in range(12)]
    wire.answered(*map(answer, found[1:]))
    assert (wire.flight.delivered, wire.flight.head()) == (12, None)
    with pytest.raises(ValueError, match="not negative"):
        Lane(5, -1)


@pytest.mark.parametrize("code", [45, 56])
def test_one_batch_is_on_its_way_until_the_broker_has_stored_one_with_these_numbers(wire: Wire, code: int) -> None:
    wire.flight.retried = frozenset((code,))
    wire.flight.add(chunk_of([b"%d" % number for number in range(9)]))
    (refused,) = wire.written()
    wire.answered(answer(refused, code))
    ((_, _, _, chunk),) = wire.flight.take_outcomes()
    (second,) = wire.written()
    wire.answered(answer(second))
    assert len(wire.written()) == 5
    wire.flight.rewind()
    wire.connect()
    assert len(wire.written()) == 5, "the broker is the same one after a break"
    wire.flight.rewind()
    assert chunk.lane is not None
    wire.flight.renew(chunk.lane)
    wire.connect()
    assert len(wire.written()) == 1, "other numbers"


def test_what_is_written_again_keeps_its_numbers(wire: Wire) -> None:
    wire.flight.add(chunk_of([b"%d" % number for number in range(7)]))
    wire.answered(*map(answer, wire.written()))
    first = wire.written()
    wire.answered(answer(first[0]))
    assert wire.flight.rewind() == 0, "nothing of it can be stored twice"
    wire.connect()
    again = wire.written()
    assert [request.batch for request in again[:4]] == [request.batch for request in first[1:]]
    assert [request.header.base_sequence for request in again] == [2, 3, 4, 5, 6]


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


def test_a_partition_keeps_the_id_0_when_others_get_another(plain_wire: Wire) -> None:
    """0 is an id as any other, which a broker's first producer has."""
    wire = plain_wire
    wire.flight.number_with(0, 2)
    wire.flight.add(chunk_of([b"a", b"b"]))
    found = wire.written()
    wire.answered(*map(answer, found))
    wire.flight.number_with(5, 0)
    found += wire.written()
    assert [(r.header.producer_id, r.header.producer_epoch, r.header.base_sequence) for r in found] == [
        (0, 2, 0),
        (0, 2, 1),
    ]


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
    assert [request.records for request in again] == [request.records for request in first]
    wire.answered(*map(answer, again))
    again += wire.written()
    assert [(request.header.producer_epoch, request.header.base_sequence) for request in again] == [(1, 0), (1, 1)]
    while not wire.flight.wants_producer:
        wire.flight.rewind()
        wire.flight.renew(lane)
    assert lane.generation == 32769, "all epochs were used"
    other = chunk_of([b"c"]).lane
    assert other is not None
    wire.flight.renew(other)
    assert wire.flight.wants_producer, "of another lane, which has epochs left, it is not needed"
    wire.connect()
    assert wire.written() == []
    wire.flight.number_with(10, 0)
    assert [(r.header.producer_id, r.header.producer_epoch) for r in wire.written()] == [(10, 0)]


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
    wire.flight.add(chunk_of([b"", b"a", b"b"]))
    wire.answered(*map(answer, wire.written()))
    first, second = wire.written()
    data = answer(first, offset=4) + answer(second, offset=5)
    for place in range(len(data)):
        wire.answered(data[place : place + 1])
        assert wire.flight.delivered == 1 + (place + 1) // 53
    assert wire.flight.delivered == 3
