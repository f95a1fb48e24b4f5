"""Answers to produce requests as a connection brings them: cut at every byte, split, for something else, too many.

And a long random life of what is on its way, after which every message has come to one end.
"""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import struct
import sys
import termios
import threading
from collections import Counter

import pytest

from fastlog._segment import payloads
from fastlog.errors import ProtocolError, StorageError, TransportError
from fastlog.producer._flight import Flight
from fastlog.producer._frames import Chunk
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.frames import FrameReader
from tests.harness.timing import PATIENCE
from tests.unit.test_producer_flight import EVERYTHING, chunk_of, pair

ANSWER_BYTES = 30


def answer(number: int, *, code: int = 0, base: int = 0) -> bytes:
    if code:
        return wire07.encode_produce_ack(rs.ProduceAckAnswer(number, code, 0, -1, -1))
    return wire07.encode_produce_ack(rs.ProduceAckAnswer(number, 0, 0, base, base + 11))


def requests_in(peer: socket.socket, count: int) -> list[wire07.ProduceAckRequest]:
    reader, found = FrameReader(10**7), []
    while len(found) < count:
        reader.feed(peer.recv(1 << 16))
        while (body := reader.frame_or_none()) is not None:
            request = wire07.decode_request(body)
            assert isinstance(request, wire07.ProduceAckRequest)
            found.append(request)
    return found


STREAM = answer(0, base=0) + answer(1, code=101) + answer(2, base=22)


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_answers_that_are_cut_count_as_far_as_they_are_whole(cut: int) -> None:
    """At every byte; then the rest comes, or the end, after which exactly the others are written again."""
    for comes in (True, False):
        whole = cut // ANSWER_BYTES
        flight = Flight(True)
        flight.report = True
        flight.add(chunk_of([b"0", b"1", b"2"]))
        with pair() as (ours, theirs):
            flight.write(ours.fileno(), EVERYTHING)
            sent = requests_in(theirs, 3)
            theirs.sendall(STREAM[:cut])
            assert flight.receive(ours.fileno()) == (cut or -1)
            assert (flight.finished_frames, flight.unfinished_frames(), flight.messages) == (
                whole,
                3 - whole,
                3 - whole,
            )
            if comes:
                theirs.sendall(STREAM[cut:])
                if cut < len(STREAM):
                    assert flight.receive(ours.fileno()) == len(STREAM) - cut
                assert (flight.delivered, flight.failed, flight.messages, flight.bytes) == (2, 1, 0, 0)
                assert [(event[3], event[5]) for event in flight.take_events() if isinstance(event, tuple)] == [
                    (None, 0),
                    (101, -1),
                    (None, 22),
                ]
                continue
            theirs.close()
            assert flight.receive(ours.fileno()) == 0
            assert flight.rewind() == 3 - whole
        with pair() as (ours, theirs):
            flight.write(ours.fileno(), EVERYTHING)
            if whole < 3:
                again = requests_in(theirs, 3 - whole)
                assert again == sent[whole:]
                theirs.sendall(STREAM[whole * ANSWER_BYTES :])
                flight.receive(ours.fileno())
        assert (flight.delivered, flight.failed, flight.messages, flight.bytes) == (2, 1, 0, 0)
        assert flight.head() is None


def test_answers_may_come_byte_by_byte() -> None:
    flight = Flight(True)
    flight.add(chunk_of([b"0", b"1", b"2"]))
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), EVERYTHING)
        for at in range(len(STREAM)):
            theirs.sendall(STREAM[at : at + 1])
            assert flight.receive(ours.fileno()) == 1
            assert flight.finished_frames == (at + 1) // ANSWER_BYTES
            assert flight.has_answers() == ((at + 1) % ANSWER_BYTES >= 4)


def short(number: int, code: int, size: int) -> bytes:
    """An answer with a body of so many bytes."""
    return struct.pack(">i", size) + (struct.pack(">ih", number, code) + bytes(40))[:size]


@pytest.mark.parametrize("size", [-1, 0, 4, 5, 6, 7, 25, 26, 27, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("code", [0, 2])
def test_sizes_of_answers(size: int, code: int) -> None:
    """All of it, or as an error the code alone; the places between are nobody's."""
    flight = Flight(True)
    flight.add(chunk_of([b"0"]))
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), EVERYTHING)
        theirs.sendall(short(0, code, size) if 0 <= size < 100 else struct.pack(">i", size) + bytes(40))
        if size == 26 or (code and 6 <= size <= 26):
            flight.receive(ours.fileno())
            assert (flight.delivered, flight.failed) == ((0, 1) if code else (1, 0))
            return
        with pytest.raises(ProtocolError, match=f"an answer of {size} bytes"):
            flight.receive(ours.fileno())
        assert (flight.delivered, flight.failed, flight.rewind()) == (0, 0, 1)


@pytest.mark.parametrize("number", [1, -1, 2**31 - 1, 256])
def test_an_answer_for_something_else_finishes_nothing(number: int) -> None:
    flight = Flight(True)
    flight.add(chunk_of([b"0", b"1"]))
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), EVERYTHING)
        theirs.sendall(answer(number))
        with pytest.raises(ProtocolError, match=rf"the answer to request 0 says it is for {number}"):
            flight.receive(ours.fileno())
        assert (flight.finished_frames, flight.rewind()) == (0, 2)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_an_answer_too_many_finishes_nothing(written: int) -> None:
    """Of what is not written yet, and of nothing at all; what was rightly answered before it is finished."""
    flight = Flight(True)
    flight.add(chunk_of([b"0", b"1"]))
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), written)
        theirs.sendall(b"".join(answer(number) for number in range(written + 1)))
        with pytest.raises(ProtocolError, match="nothing was asked for"):
            flight.receive(ours.fileno())
        assert (flight.delivered, flight.rewind()) == (written, 0)


def test_errors_of_the_connection_are_raised() -> None:
    for does in ("write", "receive"):
        flight = Flight(True)
        flight.add(chunk_of([b"0"]))
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as ours,
        ):
            theirs, _ = listener.accept()
            ours.setblocking(False)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()
            with pytest.raises(OSError, match=r"reset|pipe|Broken"):
                for _ in range(100):
                    getattr(flight, does)(ours.fileno(), *([EVERYTHING] if does == "write" else []))
        assert (flight.delivered, flight.failed, flight.messages) == (0, 0, 1)


def test_bytes_where_nothing_is_acknowledged_are_an_error() -> None:
    flight = Flight(False)
    with pair() as (ours, theirs):
        assert flight.receive(ours.fileno()) == -1
        theirs.sendall(b"x")
        with pytest.raises(ProtocolError, match="1 bytes came that answer nothing"):
            flight.receive(ours.fileno())
        theirs.close()


@pytest.mark.parametrize("most", [1, 31, 32, 33, 64, 65, 99, 100, 101])
def test_no_more_frames_are_written_than_allowed_over_many_chunks(most: int) -> None:
    """More chunks than go out with one call, of one frame and of several."""
    flight = Flight(True)
    for number in range(40):
        flight.add(chunk_of([b"%d" % number] * (1 + number % 4)))
    assert flight.messages == 100
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), most)
        assert (flight.written_frames, flight.unfinished_frames()) == (min(most, 100), min(most, 100))
        assert flight.handed_over == min(most, 100)
        assert flight.has_unsent() == (most < 100)
        found = requests_in(theirs, min(most, 100))
        assert len(found) == min(most, 100)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def test_more_answers_than_fit_are_read_in_turns() -> None:
    """A broker that answers 10,000 requests while the producer goes on writing: no byte is lost, none overwritten."""
    messages = [b"%05d" % number for number in range(10_000)]
    flight = Flight(True)
    # every chunk counts its requests from 0, so one chunk has them all
    flight.add(chunk_of([*messages, *[bytes(40_000)] * 10]))
    with pair(4096) as (ours, theirs):

        def serve() -> None:
            found = requests_in(theirs, 10_000)
            theirs.sendall(b"".join(answer(request.correlation_id) for request in found))
            while theirs.recv(1 << 16):
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        while flight.has_unsent():
            flight.write(ours.fileno(), EVERYTHING)
            flight.receive(ours.fileno())
        while flight.finished_frames < 10_000:
            flight.receive(ours.fileno())
        ours.shutdown(socket.SHUT_WR)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert (flight.delivered, flight.messages) == (10_000, 10)


def test_a_full_inbox_is_not_the_end_of_the_connection() -> None:
    """So many answers came during one write that none more fit: what is there is read, and the others after it."""
    flight = Flight(True)
    flight.add(chunk_of([*[b"x"] * 9000, *[bytes(40_000)] * 10]))
    inbox_bytes = 1 << 18
    answers = memoryview(b"".join(map(answer, range(9000))))
    with pair() as (ours, theirs):
        for _ in range(9):
            flight.write(ours.fileno(), 1000)
            requests_in(theirs, 1000)
        theirs.setblocking(False)
        sent = 0
        while sent < inbox_bytes or unread_bytes(ours):  # the write that nobody reads takes them all
            if not unread_bytes(ours):
                sent += theirs.send(answers[sent:inbox_bytes])
            flight.write(ours.fileno(), EVERYTHING)
            assert flight.has_unsent()
        theirs.send(answers[inbox_bytes:])
        assert flight.receive(ours.fileno()) == inbox_bytes
        assert flight.receive(ours.fileno()) == len(answers) - inbox_bytes
    assert (flight.delivered, flight.messages) == (9000, 10)


def unread_bytes(connection: socket.socket) -> int:
    """What has come to it and was not received."""
    found = bytearray(4)
    fcntl.ioctl(connection, termios.FIONREAD, found)
    return int.from_bytes(found, sys.byteorder)


def test_frames_without_acknowledgement_are_finished_by_the_kernel() -> None:
    flight = Flight(False)
    flight.report = True
    flight.add(chunk_of([b"0", b"1", b"2"], batch=2))
    with pair() as (ours, _):
        flight.write(ours.fileno(), 1)
        assert (flight.delivered, flight.messages, flight.handed_over) == (2, 1, 2)
        flight.write(ours.fileno(), EVERYTHING)
        assert (flight.delivered, flight.messages, flight.handed_over) == (3, 0, 3)
        assert [event[2:6] for event in flight.take_events() if isinstance(event, tuple)] == [
            (2, None, 0, -1),
            (1, None, 0, -1),
        ]
        assert flight.take_events() == []
    assert flight.rewind() == 0
    assert flight.handed_over == 0


def test_tries_are_counted_for_what_was_written_and_not_finished() -> None:
    flight = Flight(True)
    chunks = [chunk_of([b"0", b"1"]), chunk_of([b"2"]), chunk_of([b"3"])]
    for chunk in chunks:
        flight.add(chunk)
    with pair() as (ours, theirs):
        flight.write(ours.fileno(), 3)
        theirs.sendall(answer(0))
        flight.receive(ours.fileno())
        with pytest.raises(ValueError, match="being written"):
            flight.drop_head(TransportError("no"))
        assert flight.rewind() == 2
        assert [chunk.attempts for chunk in chunks] == [1, 1, 0]
        assert flight.rewind() == 0
        assert [chunk.attempts for chunk in chunks] == [1, 1, 0]
    flight.drop_head(TransportError("no"))
    assert (flight.delivered, flight.failed, flight.messages, flight.finished_up_to()) == (1, 1, 2, 1)
    assert flight.head() is chunks[1]


class Life:
    """A flight that does at random what a link does with one, and the books of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.flight = Flight(True)
        self.flight.retried = frozenset({StorageError.code})
        self.flight.report = True
        self.flight.keep_failed = True
        self.added = 0
        self.aside: list[Chunk] = []
        self.next = 0
        self.ended: Counter[bytes] = Counter()
        self.stored: list[tuple[int, bytes]] = []
        self.failures = 0

    def add(self) -> None:
        count, batch = self.random.randint(1, 9), self.random.randint(1, 3)
        messages = [b"%05d" % (self.next + number) for number in range(count)]
        self.next += count
        self.flight.add(chunk_of(messages, partition=self.random.randrange(3), batch=batch, ticket=object()))
        self.added += count

    def put_back(self) -> None:
        for chunk in self.aside:
            self.flight.add(chunk)
        self.aside.clear()

    def set_aside(self) -> None:
        self.aside += self.flight.pull_back("t", self.random.randrange(3))

    def settle(self) -> None:
        told = sum(event[2] for event in self.flight.take_events() if isinstance(event, tuple) and event[0] is None)
        own = sum(chunk.messages for chunk in self.flight.take_failures())
        self.failures += own
        assert told == self.flight.delivered + self.flight.failed - self.ended.total()
        self.ended[b"any"] += told
        for _, _, code, chunk in self.flight.take_outcomes():
            if chunk is not None:
                assert code == StorageError.code
                self.aside.append(chunk)

    def check(self) -> None:
        flight = self.flight
        aside = sum(chunk.messages for chunk in self.aside)
        assert flight.delivered + flight.failed + flight.messages + aside == self.added
        assert self.failures == flight.failed
        assert (flight.head() is None) == (flight.messages == 0) == (flight.bytes == 0)

    def connection(self, ends: bool) -> None:
        """Some turns on one connection, which breaks at the end, or lives until nothing is left."""
        asked: list[wire07.ProduceAckRequest] = []
        reader = FrameReader(10**7)
        with pair(self.random.choice([0, 3000])) as (ours, theirs):
            theirs.setblocking(False)
            for _ in range(10**6 if ends else self.random.randint(1, 12)):
                self.flight.write(ours.fileno(), EVERYTHING if ends else self.random.choice([1, 2, 5, 10**6]))
                with contextlib.suppress(BlockingIOError):
                    reader.feed(theirs.recv(self.random.choice([10, 70, 10**6])))
                while (body := reader.frame_or_none()) is not None:
                    request = wire07.decode_request(body)
                    assert isinstance(request, wire07.ProduceAckRequest)
                    asked.append(request)
                said = b""
                while asked and (ends or self.random.random() < 0.6):
                    request = asked.pop(0)
                    code = 0 if ends else self.random.choice([0, 0, 0, 2, StorageError.code])
                    if not code:
                        self.stored += [(request.partition, payload) for payload in payloads(request.message_set)]
                    said += answer(request.correlation_id, code=code)
                cut = len(said) if ends else self.random.choice([len(said), len(said), max(0, len(said) - 7)])
                theirs.setblocking(True)
                theirs.sendall(said[:cut])
                theirs.setblocking(False)
                self.flight.receive(ours.fileno())
                if cut < len(said):
                    break
                self.settle()
                self.check()
                if ends and self.flight.head() is None:
                    if not self.aside:
                        return
                    self.put_back()
                elif self.random.random() < 0.2:
                    self.set_aside()
                elif self.random.random() < 0.3:
                    self.add()
        doubtful = self.flight.unfinished_frames()
        assert (self.flight.rewind() > 0) == (doubtful > 0)
        self.settle()
        self.check()
        if self.flight.head() is not None and self.random.random() < 0.2:
            self.flight.drop_head(TransportError("given up"))
            self.settle()
            self.check()


@pytest.mark.parametrize("seed", range(12))
def test_after_any_life_every_message_has_come_to_one_end(seed: int) -> None:
    life = Life(seed)
    for _ in range(12):
        life.add()
        if life.random.random() < 0.4:
            life.put_back()
        life.connection(ends=False)
        life.check()
    life.connection(ends=True)
    flight = life.flight
    assert flight.delivered + flight.failed == life.added
    assert (flight.messages, flight.bytes, flight.head(), flight.unfinished_frames()) == (0, 0, None, 0)
    assert flight.finished_up_to() == flight.added_chunks
    assert len({payload for _, payload in life.stored}) >= flight.delivered
