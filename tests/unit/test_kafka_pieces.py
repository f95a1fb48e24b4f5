"""A connection of today's protocol from its first byte to its end: pieces of requests, waits, and what fails."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fastlog.log import _files
from tests.harness import today
from tests.harness.broker import wait_until
from tests.harness.today_client import Client, batch, values_of
from tests.harness.workers import Workers, drain

pytestmark = pytest.mark.usefixtures("no_faults")

ONE = batch(b"one")
HOURS_MS = 4 * 3_600_000


def produce(acks: int = 1, records: bytes = ONE) -> bytes:
    return today.request(today.PRODUCE, 9, today.produced(("t", 0, records), acks=acks))


def fetch(offset: int, max_wait: int = 0, limit: int = 1 << 20) -> bytes:
    return today.request(today.FETCH, 12, today.fetched(("t", 0, offset), max_wait=max_wait, limit=limit))


def error_of(answer: bytes) -> int:
    """Of a PRODUCE."""
    _, found = today.decoded(today.PRODUCE, 9, answer)
    return int(found.responses[0].partition_responses[0].error_code)


def test_a_request_in_two_pieces_behind_a_whole_one(tmp_path: Path) -> None:
    """Cut at every byte, those of its size among them: each is answered once, and in order."""
    request = today.request(today.API_VERSIONS, 0, {})
    with Workers(tmp_path) as workers, Client(workers) as client:
        client.socket.sendall(request)
        expected = today.answer_of(client.socket)
        for cut in range(1, len(request)):
            client.socket.sendall(request + request[:cut])
            assert today.answer_of(client.socket) == expected
            client.raw.wait_received()
            workers.wait_still()
            client.socket.sendall(request[cut:])
            assert today.answer_of(client.socket) == expected


@pytest.mark.parametrize("size", [-1, 0, 1, 1 << 30])
def test_a_size_that_cannot_be_behind_a_request_that_waits(size: int, tmp_path: Path) -> None:
    """What is in front of it is answered when it is due, then the connection ends, and says so in the counts."""
    with Workers(tmp_path, fetch_max_wait_ms=HOURS_MS) as workers, Client(workers) as client, Client(workers) as other:
        client.make("t")
        client.socket.sendall(fetch(0, HOURS_MS) + struct.pack(">i", size) + b"x")
        client.raw.wait_received()
        workers.wait_still()
        assert workers.count("invalid_requests") == 0
        (produced,) = other.produce(("t", 0, ONE), acks=-1)
        assert produced.error_code == 0
        _, found = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
        assert values_of(found.responses[0].partitions[0]) == [(0, b"one")]
        assert client.raw.is_closed()
        assert workers.count("invalid_requests") == 1


def test_produces_that_wait_for_room_are_written_and_told_in_order(tmp_path: Path) -> None:
    """As many as may be unflushed are appended at once, the others when there is room; so does a fetch behind."""
    with Workers(tmp_path, flusher=False, flush_interval_messages=20) as workers, Client(workers) as client:
        client.make("t")
        client.socket.sendall(produce() * 50 + fetch(0))
        wait_until("they wait", lambda: workers.arena.view(0).log_offset == 20)
        workers.start_flusher()
        answers = [today.answer_of(client.socket) for _ in range(50)]
        offsets = []
        for answer in answers:
            _, found = today.decoded(today.PRODUCE, 9, answer)
            (part,) = found.responses[0].partition_responses
            offsets.append((part.error_code, part.base_offset))
        assert offsets == [(0, number) for number in range(50)]
        _, found = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
        assert found.responses[0].partitions[0].error_code == 0


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait for room"])
@pytest.mark.parametrize("acks", [0, 1])
def test_a_write_that_fails_is_told_or_ends_the_connection(acks: int, waits: bool, tmp_path: Path) -> None:
    """Who waits for no answer can be told in no other way; what is behind it is not begun."""
    with Workers(tmp_path, flusher=False, flush_interval_messages=20) as workers, Client(workers) as client:
        client.make("t")
        client.socket.sendall(produce() * 20)
        assert [error_of(today.answer_of(client.socket)) for _ in range(20)] == [0] * 20
        if waits:
            client.socket.sendall(produce(acks))
            client.raw.wait_received()
            workers.wait_still()
            _files.arm("pwrite@1-=EIO", "test")
            workers.start_flusher()
        else:
            workers.start_flusher()
            wait_until("there is room", lambda: workers.arena.view(0).visible_offset == 20)
            _files.arm("pwrite@1-=EIO", "test")
            client.socket.sendall(produce(acks))
        if acks:
            assert error_of(today.answer_of(client.socket)) == 56
        else:
            assert client.raw.is_closed()
        _files.arm("", "test")
        with Client(workers) as other:
            assert values_of(other.fetch(("t", 0, 19))[0]) == [(19, b"one")]


def test_a_write_that_fails_beside_a_produce_that_is_looked_into_elsewhere(tmp_path: Path) -> None:
    """It can be told in no other way than by the end; the one behind it, which a thread checks, is not waited for."""
    packed = batch(*[b"packed" * 100] * 3000, codec=1)
    with Workers(tmp_path) as workers, Client(workers) as client:
        client.make("t")
        (produced,) = client.produce(("t", 0, ONE), acks=-1)
        assert produced.error_code == 0
        _files.arm("pwrite@1-=EIO", "test")
        client.socket.sendall(produce(0) + produce(1, packed))
        assert client.raw.is_closed()
        _files.arm("", "test")
        with Client(workers) as other:
            assert values_of(other.fetch(("t", 0, 0))[0]) == [(0, b"one")]
            assert workers.count("inflated_off_loop") == 1


def test_an_answer_that_the_disk_breaks_off(tmp_path: Path) -> None:
    """The connection ends in the middle of it; the next answer ends before the place, and that place is an error."""
    values = [bytes([65 + number]) * 200_000 for number in range(10)]
    with Workers(tmp_path, processors=2) as workers, Client(workers) as writer:
        writer.make("t")
        for value in values:
            (produced,) = writer.produce(("t", 0, batch(value)), acks=-1)
            assert produced.error_code == 0
        with workers.connect_narrow(1) as client:
            client.send_raw(today.request(today.API_VERSIONS, 0, {}))
            today.answer_of(client.socket)
            client.send_raw(
                today.request(today.FETCH, 12, today.fetched(("t", 0, 0), max_bytes=1 << 24, limit=1 << 24))
            )
            client.recv_exactly(500_000)
            _files.arm("sendfile@1-=EIO,pread@1-=EIO", "test")
            came = 500_000 + len(drain(client))
            _files.arm("", "test")
        assert came < 10 * 200_000
        assert workers.count("read_failures") == 1
        with Client(workers) as other:  # of the first processor, which has not met it
            (part,) = other.fetch(("t", 0, 0), max_bytes=1 << 24, limit=1 << 24)
            assert [value for _, value in values_of(part)] == values


def test_a_connection_that_rests_gives_back_what_a_busy_time_took(tmp_path: Path) -> None:
    """And serves on as before."""
    with Workers(tmp_path, heartbeat_ms=50) as workers, Client(workers) as client:
        client.make("t")
        assert client.produce(("t", 0, ONE))[0].error_code == 0
        wait_until("it rests", lambda: workers.held()["memory"] == 0)
        client.socket.sendall(produce(records=batch(bytes(20_000))) * 100)
        assert [error_of(today.answer_of(client.socket)) for _ in range(100)] == [0] * 100
        wait_until("it rests again", lambda: workers.held()["memory"] == 0)
        assert client.produce(("t", 0, ONE))[0].base_offset == 101
