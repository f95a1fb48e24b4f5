"""What is on its way over one connection, with a socket pair for the connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fastlog._segment import payloads
from fastlog.errors import ProtocolError, StorageError
from fastlog.producer._buffer import Buffer, Quota
from fastlog.producer._flight import Flight
from fastlog.producer._frames import Chunk
from fastlog.producer._outbox import Outbox
from fastlog.producer.brokers import frame_header
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.frames import FrameReader

EVERYTHING = 2**62


def chunk_of(messages: list[bytes], *, partition: int = 0, batch: int = 1, ticket: object = None) -> Chunk:
    """Acknowledged requests of ``batch`` messages each."""
    outbox = Outbox(Quota(10**9, 10**12), 0)
    header = frame_header("t", partition, rq.ACKS_APPENDED)
    Buffer(outbox, 0, "t", partition, 0, header, True, batch, 1 << 20, 1_000_000).extend(messages, 0, ticket)
    (chunk,) = outbox.take(True)
    outbox.retire()
    return chunk


@contextmanager
def pair(buffer_bytes: int = 0) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets, the first one not blocking."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if buffer_bytes:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        ours.setblocking(False)
        theirs.settimeout(30)
        yield ours, theirs


def serve(connection: socket.socket, seen: list[bytes], requests: int) -> None:
    """Answer so many requests, one at a time, noting their messages."""
    reader = FrameReader(10**7)
    while requests:
        reader.feed(connection.recv(4096))
        while (frame := reader.frame_or_none()) is not None:
            request = wire07.decode_request(frame)
            assert isinstance(request, wire07.ProduceAckRequest)
            seen += payloads(request.message_set)
            answer = rs.ProduceAckAnswer(request.correlation_id, 0, request.partition, len(seen) - 1, len(seen))
            connection.sendall(wire07.encode_produce_ack(answer))
            requests -= 1


def test_answers_are_read_while_a_long_write_goes_on() -> None:
    """Neither side waits for the other: answers that come meanwhile are put by, and finish their requests in order."""
    messages = [b"%d" % number * 60 for number in range(3000)]
    flight = Flight(True)
    flight.add(chunk_of(messages))
    seen: list[bytes] = []
    put_by = 0
    with pair(20_000) as (ours, theirs):
        thread = threading.Thread(target=serve, args=(theirs, seen, len(messages)))
        thread.start()
        while flight.head() is not None:
            if flight.has_unsent():
                flight.write(ours.fileno(), EVERYTHING)
                put_by += flight.has_answers()
            flight.receive(ours.fileno())
        thread.join(30)
    assert seen == messages
    assert (flight.delivered, flight.messages, flight.bytes) == (3000, 0, 0)
    assert put_by > 0


def test_only_so_many_frames_are_written() -> None:
    """A connection that is about to be changed gets whole frames, and no more than it should."""
    flight = Flight(True)
    flight.add(chunk_of([b"%d" % number for number in range(10)]))
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), 3)
        assert (flight.written_frames, flight.unfinished_frames(), flight.is_torn()) == (3, 3, False)
        seen: list[bytes] = []
        serve(theirs, seen, 3)
        flight.receive(ours.fileno())
        assert seen == [b"0", b"1", b"2"]
        assert flight.delivered == 3


def test_the_end_and_nonsense_are_found_behind_answers() -> None:
    """What came before the end of a connection still counts; what answers nothing is an error."""
    with pair() as (ours, theirs):
        flight = Flight(True)
        flight.add(chunk_of([b"a", b"b"]))
        flight.write(ours.fileno(), EVERYTHING)
        theirs.sendall(wire07.encode_produce_ack(rs.ProduceAckAnswer(0, 0, 0, 0, 11)))
        theirs.shutdown(socket.SHUT_WR)
        assert flight.receive(ours.fileno()) > 0
        assert flight.receive(ours.fileno()) == 0
        assert (flight.delivered, flight.rewind()) == (1, 1)
    with pair() as (ours, theirs):
        flight = Flight(True)
        flight.add(chunk_of([b"a"]))
        assert flight.receive(ours.fileno()) == -1
        theirs.sendall(wire07.encode_produce_ack(rs.ProduceAckAnswer(0, 0, 0, 0, 11)))
        with pytest.raises(ProtocolError):
            flight.receive(ours.fileno())


@pytest.mark.parametrize("ticket", [object(), None])
@pytest.mark.parametrize(("written", "answered"), [(0, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1)])
def test_what_is_not_written_is_pulled_back(written: int, answered: int, ticket: object) -> None:
    """Frames of one partition come back in order, whole; those of others and the written ones stay."""
    flight = Flight(True)
    flight.add(chunk_of([b"0", b"1", b"2", b"3"], ticket=ticket))
    flight.add(chunk_of([b"x"], partition=1))
    flight.add(chunk_of([b"4", b"5"]))
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), written)
        for number in range(answered):
            theirs.sendall(wire07.encode_produce_ack(rs.ProduceAckAnswer(number, 0, 0, 0, 11)))
        flight.receive(ours.fileno())
        pulled = flight.pull_back("t", 0)
        assert sum(chunk.messages for chunk in pulled) == 6 - written
        assert flight.messages == 1 + written - answered
        assert flight.has_any("t", 0) == (answered < written)
        for chunk in pulled:
            flight.add(chunk)
        seen: list[bytes] = []
        thread = threading.Thread(target=serve, args=(theirs, seen, 7))
        thread.start()
        flight.write(ours.fileno(), EVERYTHING)
        wait_until("all arrived", lambda: len(seen) == 7)
        thread.join(30)
    assert [payload for payload in seen if payload != b"x"] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_refused_frame_becomes_a_chunk() -> None:
    """It keeps its messages and tickets, does not count as failed, and later answers for its partition are told."""
    ticket = object()
    flight = Flight(True)
    flight.retried = {StorageError.code}
    flight.add(chunk_of([b"a", b"b", b"c"], ticket=ticket))
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), EVERYTHING)
        for number, code in enumerate([0, StorageError.code, 0]):
            theirs.sendall(wire07.encode_produce_ack(rs.ProduceAckAnswer(number, code, 0, -1 if code else 0, 11)))
        flight.receive(ours.fileno())
        (refused, later) = flight.take_outcomes()
        assert refused[:3] == ("t", 0, StorageError.code)
        assert later == ("t", 0, None, None)
        assert (flight.delivered, flight.failed, flight.messages) == (2, 0, 0)
        assert [event[0] for event in flight.take_events()] == [ticket, ticket]
        assert refused[3] is not None
        flight.give_up(refused[3], StorageError("no"))
        events = [(found, messages, type(error)) for found, _, messages, error, *_ in flight.take_events()]
        assert events == [(ticket, 1, StorageError), (None, 1, StorageError)]  # of the message, and of its frame
        assert flight.failed == 1
