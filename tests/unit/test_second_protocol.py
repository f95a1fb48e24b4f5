"""A second protocol beside Kafka 0.7, on the same processor and the same log, which no line of the package knows of."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.workers.kafka07._exchange import transitions
from fastlog.workers.net._protocol import Protocol
from fastlog.workers.net.handover import HandOver
from tests import toy_protocol
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.processor import answered
from tests.harness.timing import PATIENCE
from tests.harness.workers import Workers

ONE, TWO = raw.entry(b"one"), raw.entry(b"two")
OUTPUT_BYTES = 1024
"""A connection's buffer for answers has at least so many."""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log"), more=(toy_protocol.make,)) as running:
        yield running


@pytest.fixture
def toy(workers: Workers) -> Iterator[socket.socket]:
    """A connection through the listener that speaks the second one."""
    ours, theirs = socket.socketpair()
    with theirs:
        workers.processors[0].send_record(theirs, HandOver(1, "10.1.2.3", 7))
    ours.settimeout(PATIENCE)
    with ours:
        yield ours


def write(topic: bytes, messages: bytes) -> bytes:
    return b"w" + bytes([len(topic)]) + topic + struct.pack(">i", len(messages)) + messages


def read(topic: bytes, offset: int) -> bytes:
    return b"r" + bytes([len(topic)]) + topic + struct.pack(">q", offset)


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data)) or pytest.fail("it has ended")
    return data


def test_what_one_protocol_writes_the_other_reads(workers: Workers, toy: socket.socket) -> None:
    toy.sendall(write(b"a", ONE) + write(b"a", TWO))
    ends = struct.unpack(">qq", received(toy, 16))
    assert ends == (len(ONE), len(ONE + TWO))
    with workers.connect() as client:
        assert client.produce_ack("a", 0, ONE, raw.FLUSHED).error == 0
        assert client.fetch("a", 0, 0) == (0, ONE + TWO + ONE)
    assert answered(toy, read(b"a", len(ONE))) == struct.pack(">i", len(TWO + ONE)) + TWO + ONE


def test_a_long_poll_of_one_protocol_hears_of_the_other(workers: Workers, toy: socket.socket) -> None:
    toy.sendall(write(b"b", ONE) + read(b"b", 0))
    assert received(toy, 8 + 4 + len(ONE))[12:] == ONE
    toy.sendall(read(b"b", len(ONE)))
    with workers.connect() as client:
        assert client.produce_ack("b", 0, TWO, raw.FLUSHED).error == 0
    assert received(toy, 4 + len(TWO))[4:] == TWO


@pytest.mark.parametrize(
    "request_bytes", [b"xx", write(b"a/b", ONE), write(b"c", raw.entry(b"", crc=1)), read(b"no", 0)]
)
def test_what_it_refuses_ends_its_connection_alone(workers: Workers, toy: socket.socket, request_bytes: bytes) -> None:
    with workers.connect() as client:
        toy.sendall(request_bytes)
        assert toy.recv(1) == b""
        assert client.fetch("quiet", 0, 0) == (0, b"")


def test_bytes_that_cannot_be_sent_end_their_connection_alone(workers: Workers, toy: socket.socket) -> None:
    """A protocol may have nothing to say about that."""
    large = raw.entry(bytes(200_000))
    toy.sendall(write(b"e", large))
    assert received(toy, 8) == struct.pack(">q", len(large))
    with workers.connect() as client:
        assert client.produce_ack("e", 0, ONE, raw.FLUSHED).error == 0
        _files.arm("sendfile@1=EIO", "test")
        toy.sendall(read(b"e", 0))
        came = b""
        while piece := toy.recv(1 << 20):
            came += piece
        _files.arm("", "test")
        assert came == struct.pack(">i", len(large + ONE))
        assert client.fetch_ok("e", 0, 0) == large + ONE


def test_a_connection_that_rests_gives_its_buffer_back_and_goes_on(tmp_path: Path) -> None:
    """Though its protocol has nothing of its own to give back."""
    with Workers(tmp_path, more=(toy_protocol.make,), heartbeat_ms=50) as workers:
        with workers.connect() as client:
            assert client.produce_ack("f", 0, ONE, raw.FLUSHED).error == 0
        ours, theirs = socket.socketpair()
        with theirs:
            workers.processors[0].send_record(theirs, HandOver(1, "10.1.2.3", 7))
        ours.settimeout(PATIENCE)
        with ours:
            for _ in range(2):
                assert answered(ours, read(b"f", 0)) == struct.pack(">i", len(ONE)) + ONE
                wait_until("it rests", lambda: workers.processors[0].loop.answer_bytes < OUTPUT_BYTES)


def test_half_a_request_is_no_request(workers: Workers, toy: socket.socket) -> None:
    workers.wait_still()
    before = workers.held()
    for data in (write(b"d", ONE)[:3], write(b"d", ONE)[3:9], write(b"d", ONE)[9:]):
        toy.sendall(data)
        workers.wait_still()
    assert received(toy, 8) == struct.pack(">q", len(ONE))
    workers.wait_still()
    assert workers.held()["memory"] == before["memory"]


def test_a_connection_that_speaks_kafka_07_comes_back_from_every_state() -> None:
    """A request that waits can always be refused or done; and one that waits may have to wait anew."""
    for state, following in transitions().items():
        assert {state, "BETWEEN"} <= following, state
    reached = {"BETWEEN"}
    while more := set().union(*(transitions()[state] for state in reached)) - reached:
        reached |= more
    assert reached == set(transitions())


def test_a_protocol_that_knows_nothing_refuses_what_comes(tmp_path: Path) -> None:
    """What every protocol may leave out: nothing is kept of a connection, and its first bytes end it alone."""
    with Workers(tmp_path, more=(lambda engine: Protocol(),)) as workers, workers.connect() as client:
        ours, theirs = socket.socketpair()
        with theirs:
            workers.processors[0].send_record(theirs, HandOver(1, "10.1.2.3", 7))
        ours.settimeout(PATIENCE)
        with ours:
            assert client.produce_ack("t", 0, ONE).error == 0
            ours.sendall(b"x")
            assert ours.recv(1) == b""
        assert client.fetch("quiet", 0, 0) == (0, b"")
        workers.wait_still()


def test_a_loop_that_knows_no_other_process_serves_and_ends(tmp_path: Path) -> None:
    """It has nobody to ask, and nothing comes from there."""
    with Workers(tmp_path, is_alone=True, makes_topics=False) as workers, workers.connect() as client:
        assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
        assert client.fetch_ok("t", 0, 0) == ONE
        workers.wait_still()
        assert workers.held()["jobs"] == 0
