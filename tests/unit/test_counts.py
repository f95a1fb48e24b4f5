"""What a request adds to the counters, exactly: the report of the broker and the bound of a flush rest on them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._shared_memory import FLUSHER
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.workers import Workers

ONE = raw.entry(b"one")
BAD = raw.entry(b"bad", crc=3)
THREE = raw.message_set([b"a", b"b", b"c"], codec=raw.GZIP)
NESTED = raw.wrapper(THREE + ONE + THREE, raw.SNAPPY)
MANY = raw.wrapper(raw.entry(bytes(400_000)) * 5, raw.GZIP)
"""It inflates to so much that the helper does it."""
LARGE = raw.entry(bytes(40_000))
SUSPICIOUS = raw.entry(raw.compress(ONE, raw.GZIP))
"""A message without a codec whose payload is compressed."""


def own(kind: int, body: bytes, version: int = 1) -> bytes:
    return raw.own_frame(kind, body, version=version, correlation=1)


def acked(messages: bytes, acks: int = raw.APPENDED, partition: int = 0, topic: str = "t") -> bytes:
    return own(raw.PRODUCE_ACK, raw.produce_ack_body(topic, partition, messages, acks))


def read(request: bytes, answer: int, **counts: int) -> tuple[bytes, int, dict[str, int]]:
    return request, answer, counts


def appends(request: bytes, count: int, size: int, answer: int = 0, **counts: int) -> tuple[bytes, int, dict[str, int]]:
    return request, answer, {"appends": 1, "messages_in": count, "bytes_in": size} | counts


P, L, F, A = "produce_requests", "offsets_requests", "fetch_requests", "own_requests"
FAILED, INVALID = "failed_produce_requests", "invalid_requests"
CASES: dict[str, tuple[bytes, int, dict[str, int]]] = {
    "produce": appends(raw.produce_frame("t", 0, ONE * 5), 5, 5 * len(ONE), **{P: 1}),
    "two in one write": appends(raw.produce_frame("t", 0, ONE) * 2, 2, 2 * len(ONE), **{P: 2}),
    "a cut tail": appends(raw.produce_frame("t", 0, ONE + ONE[:-1]), 1, len(ONE), **{P: 1}),
    "a compressed set": appends(raw.produce_frame("t", 0, THREE), 3, len(THREE), **{P: 1}),
    "sets in sets": appends(raw.produce_frame("t", 0, ONE + NESTED), 8, len(ONE + NESTED), **{P: 1}),
    "a large compressed set": appends(
        raw.produce_frame("t", 0, MANY), 5, len(MANY), **{P: 1, "inflated_off_loop": 1}
    ),
    "two partitions": appends(
        raw.multiproduce_frame([("t", 0, ONE), ("t", 1, THREE)]), 4, len(ONE + THREE), **{P: 1, "appends": 2}
    ),
    "an empty set": (raw.produce_frame("t", 0, b""), 0, {P: 1}),
    "no parts": (raw.multiproduce_frame([]), 0, {P: 1}),
    "suspicious": appends(
        raw.produce_frame("t", 0, SUSPICIOUS), 1, len(SUSPICIOUS), **{P: 1, "suspicious_messages": 1}
    ),
    "appended": appends(acked(ONE), 1, len(ONE), 30, **{P: 1, A: 1}),
    "flushed": appends(acked(THREE, raw.FLUSHED), 3, len(THREE), 30, **{P: 1, A: 1}),
    "empty, flushed": (acked(b"", raw.FLUSHED), 30, {P: 1, A: 1}),
    "too large": (raw.produce_frame("t", 0, raw.entry(bytes(50_001))), 0, {P: 1, FAILED: 1, "too_large_messages": 1}),
    "too large, acknowledged": (
        acked(raw.entry(bytes(50_001))), 30, {P: 1, A: 1, FAILED: 1, "too_large_messages": 1}
    ),
    "invalid": (raw.produce_frame("t", 0, BAD), -1, {P: 1, FAILED: 1, "invalid_messages": 1}),
    "invalid, acknowledged": (acked(ONE + BAD), 30, {P: 1, A: 1, FAILED: 1, "invalid_messages": 1}),
    "invalid inside": (acked(raw.wrapper(ONE + BAD, raw.GZIP)), 30, {P: 1, A: 1, FAILED: 1, "invalid_messages": 1}),
    "a part of three is invalid": appends(
        raw.multiproduce_frame([("t", 0, ONE), ("t", 1, BAD), ("t", 0, ONE)]), 1, len(ONE), -1,
        **{P: 1, FAILED: 1, "invalid_messages": 1}
    ),
    "a wrong partition": (raw.produce_frame("t", 9, ONE), -1, {P: 1, FAILED: 1}),
    "a wrong partition, acknowledged": (acked(ONE, 1, 9), 30, {P: 1, A: 1, FAILED: 1}),
    "an illegal name": (acked(ONE, topic="a/b"), 30, {P: 1, A: 1, FAILED: 1}),
    "malformed": (raw.frame(raw.PRODUCE, b"\0\x05t"), -1, {P: 1, FAILED: 1, INVALID: 1}),
    "malformed, acknowledged": (acked(ONE)[:3] + bytes([len(acked(ONE)) - 5]) + acked(ONE)[4:-1], 30,
                                {P: 1, A: 1, FAILED: 1, INVALID: 1}),
    "fewer than no parts": (raw.frame(raw.MULTIPRODUCE, b"\xff\xff"), -1, {INVALID: 1}),
    "without a correlation id": (raw.frame(raw.PRODUCE_ACK, b"\0\1\0"), -1, {INVALID: 1}),
    "acks of no kind": (acked(ONE, 3), 30, {A: 1, FAILED: 1, INVALID: 1}),
    "another version": (own(raw.PRODUCE_ACK, b"", 2), 30, {A: 1, FAILED: 1, INVALID: 1}),
    "a producer id": (
        own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, ONE, 1, (1, -1, -1))), 30, {A: 1, FAILED: 1, INVALID: 1}
    ),
    "fetch": read(raw.fetch_frame("still", 0, 0, 100), 6 + 100, **{F: 1, "bytes_out": 100}),
    "a large fetch": read(raw.fetch_frame("still", 0, 0), 6 + 3 * len(LARGE), **{F: 1, "bytes_out": 3 * len(LARGE)}),
    "an empty fetch": read(raw.fetch_frame("nobody", 0, 0), 6, **{F: 1}),
    "a fetch out of range": read(raw.fetch_frame("still", 0, 1 << 40), 6, **{F: 1, "failed_fetch_requests": 1}),
    "a fetch inside a message": read(raw.fetch_frame("still", 0, 5), 6, **{F: 1, "failed_fetch_requests": 1}),
    "a malformed fetch": (raw.frame(raw.FETCH, b"\0"), -1, {F: 1, INVALID: 1}),
    "multifetch": read(
        raw.multifetch_frame([("still", 0, 0, 50), ("still", 9, 0, 9), ("still", 0, 0, -1), ("still", 0, 0, 60)]),
        6 + 4 * 6 + 110, **{F: 1, "bytes_out": 110, "failed_fetch_requests": 2}
    ),
    "a malformed multifetch": (raw.frame(raw.MULTIFETCH, b"\0\1\0"), -1, {F: 1, INVALID: 1}),
    "held fetch": read(
        own(raw.HELD_FETCH, raw.held_fetch_body("still", 0, 0, 70, 1000, 1)), 26 + 70,
        **{A: 1, "held_fetches": 1, "bytes_out": 70}
    ),
    "a held fetch that waits": read(
        own(raw.HELD_FETCH, raw.held_fetch_body("nobody", 0, 0, 70, 20, 1)), 26, **{A: 1, "held_fetches": 1}
    ),
    "a held fetch out of range": read(
        own(raw.HELD_FETCH, raw.held_fetch_body("still", 0, 7 << 40, 70, 20, 1)), 26,
        **{A: 1, "held_fetches": 1, "failed_fetch_requests": 1}
    ),
    "a malformed held fetch": read(own(raw.HELD_FETCH, b""), 26, **{A: 1, INVALID: 1}),
    "offsets": read(raw.offsets_frame("still", 0, raw.LATEST, 1), 18, **{L: 1}),
    "malformed offsets": (raw.frame(raw.OFFSETS, b"\0"), -1, {L: 1, INVALID: 1}),
    "metadata of another version": read(own(raw.METADATA, raw.metadata_body([]), 9), 10, **{A: 1, INVALID: 1}),
    "metadata": read(own(raw.METADATA, raw.metadata_body([])), 49, **{A: 1}),
    "malformed metadata": read(own(raw.METADATA, b""), 10, **{A: 1, INVALID: 1}),
    "cut points": read(own(raw.CUT_POINTS, raw.cut_points_body("still", 0, 0, 0, 1, 1)), 22, **{A: 1}),
    "create topic": read(own(raw.CREATE_TOPIC, raw.place("still", 1)), 14, **{A: 1}),
    "delete topic": read(own(raw.DELETE_TOPIC, raw.text("none")), 10, **{A: 1}),
    "an unknown kind": (raw.frame(77, b""), -1, {INVALID: 1}),
    "today's": (raw.frame(18, b""), -1, {"kafka_requests": 1, "invalid_requests": 1}),
    "TLS": (b"\x16\3\1\0", -1, {"protocol_strangers": 1}),
    "an impossible size": (struct.pack(">i", -1), -1, {INVALID: 1}),
}  # fmt: skip


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with (
        Workers(tmp_path_factory.mktemp("log"), partitions=4, max_message_bytes=50_000) as running,
        running.connect() as client,
    ):
        for partition in range(2):
            assert client.produce_ack("t", partition, ONE, raw.FLUSHED).error == 0
        assert client.produce_ack("still", 0, LARGE * 3, raw.FLUSHED).error == 0
        assert client.fetch("still", 0, 0).error == 0
        running.wait_still()
        yield running


def counted(workers: Workers, work: Callable[[], None]) -> dict[str, int]:
    """What is counted more after the work than before; a connection that is gone has counted all of it."""
    before, connections = workers.counts(), workers.held()["connections"]
    work()
    wait_until("its connection is gone", lambda: workers.held()["connections"] == connections)
    found = {name: value - before.get(name, 0) for name, value in workers.counts().items()}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_request(workers: Workers, case: tuple[bytes, int, dict[str, int]]) -> None:
    """Twice, for what is only counted the first time."""
    request, answer, counts = case
    for _ in range(2):

        def ask() -> None:
            with workers.connect() as client:
                client.send_raw(request)
                if answer >= 0:
                    client.recv_exactly(answer)
                    client.finish_sending()
                assert client.is_closed()

        expected = {**counts, "handovers": 1, "received_bytes": len(request)}
        if answer > 0:
            expected["sent_bytes"] = answer
        assert counted(workers, ask) == expected


def test_what_a_disk_refuses(workers: Workers) -> None:
    """A write that fails is a failed request, a read that fails a failed fetch; neither has brought or given bytes."""

    def write() -> None:
        with workers.connect() as client:
            _files.arm("pwrite@1-=ENOSPC", "test")
            assert client.produce_ack("t", 0, ONE).error == 103
            client.produce("t", 0, ONE)
            assert client.is_closed()

    def read_small() -> None:
        with workers.connect() as client:
            _files.arm("pread@1-=EIO", "test")
            assert client.fetch("still", 0, 0, 100) == (-1, b"")

    def read_small_later() -> None:
        with workers.connect() as client:
            _files.arm("pread@2-=EIO", "test")
            assert client.fetch("still", 0, 0, 100) == (-1, b"")
            assert client.multifetch([("still", 0, 0, 100), ("nobody", 0, 0, 100)]) == [(-1, b""), (0, b"")]

    def read_large() -> None:
        with workers.connect() as client:
            _files.arm("sendfile@1=EIO", "test")
            client.send_raw(raw.fetch_frame("still", 0, 0))
            with pytest.raises(raw.ConnectionClosed):
                client.recv_exactly(7)

    try:
        sizes = ("received_bytes", "sent_bytes", "handovers")
        found = {one.__name__: counted(workers, one) for one in (write, read_small, read_small_later, read_large)}
    finally:
        _files.arm("", "test")
    assert {
        name: {key: value for key, value in counts.items() if key not in sizes} for name, counts in found.items()
    } == {
        "write": {P: 2, A: 1, FAILED: 2},
        "read_small": {F: 1, "failed_fetch_requests": 1, "read_failures": 1},
        "read_small_later": {F: 2, "failed_fetch_requests": 2, "read_failures": 2},
        "read_large": {F: 1, "bytes_out": 3 * len(LARGE), "read_failures": 1, "short_sends_closed": 1},
    }


def test_what_came_during_a_flush_is_not_counted_as_flushed(tmp_path: Path) -> None:
    """In messages, those inside compressed sets among them: what may be unflushed is bounded by that number."""
    with Workers(tmp_path, flush_interval_messages=40) as workers, workers.connect() as client:
        assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
        workers.wait_still()
        _files.arm("fdatasync@1=slow:300", "test")
        client.send_raw(acked(ONE, raw.FLUSHED))
        wait_until("a flush is under way", lambda: workers.arena.wake(FLUSHER) or workers.arena.disk_since(FLUSHER))
        client.send_raw(raw.produce_frame("t", 0, NESTED) + acked(ONE))
        wait_until("more is appended", lambda: workers.arena.view(0).appended_messages == 10)
        assert workers.arena.view(0).flushed_messages == 1
        wait_until("the flush came through", lambda: workers.arena.view(0).flushed_messages > 1)
        view = workers.arena.view(0)
        assert (view.flushed_messages, view.flushed_end) == (2, 2 * len(ONE))
        assert client.recv_own()[1].error == client.recv_own()[1].error == 0
        assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
        assert (workers.arena.view(0).flushed_messages, workers.arena.view(0).appended_messages) == (11, 11)
        flushed = workers.flushes()
        assert (flushed["flushes"], flushed["flushed_bytes"]) == (3, 4 * len(ONE) + len(NESTED))


def test_the_bound_of_unflushed_messages_counts_those_in_compressed_sets(tmp_path: Path) -> None:
    """Of what is appended and what waits: one more than fits is not let in."""
    with Workers(tmp_path, flusher=False, flush_interval_messages=8) as workers, workers.connect() as client:
        client.produce("t", 0, NESTED)
        client.send_raw(acked(ONE) + acked(ONE))
        assert client.recv_own()[1].error == 0
        wait_until("one waits", lambda: workers.count("append_waits") == 1)
        workers.wait_still()
        assert workers.arena.view(0).appended_messages == workers.count("messages_in") == 8
        workers.start_flusher()
        assert client.recv_own()[1].error == 0


def test_connections_are_counted_where_they_are(tmp_path: Path) -> None:
    """Handed over, open, and refused by the limit of one processor."""
    with Workers(tmp_path, processors=2, connection_limit=3) as workers:
        clients = [workers.connect(0) for _ in range(5)] + [workers.connect(1)]
        for client in clients[:3] + clients[5:]:
            assert client.offsets("t", 0) == [0]
        assert all(client.is_closed() for client in clients[3:5])
        assert [processor.open_connections for processor in workers.processors] == [3, 1]
        assert (workers.count("handovers"), workers.count("refused_connections")) == (6, 2)
        assert [workers.arena.handed_over(processor.number) for processor in workers.processors] == [5, 1]
        for client in clients:
            client.close()
        wait_until("none is open", lambda: [one.open_connections for one in workers.processors] == [0, 0])
        with workers.connect(0) as client:
            assert client.offsets("t", 0) == [0]


def test_a_write_that_fails_beside_a_set_that_is_looked_into_elsewhere(workers: Workers) -> None:
    """It can be told in no other way than by the end; the set behind it, which a thread counts, is not stored."""
    behind = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, MANY))
    before = workers.count("inflated_off_loop")
    with workers.connect() as client:
        assert client.produce_ack("t", 0, ONE).error == 0
        _files.arm("pwrite@1-=EIO", "test")
        try:
            client.send_raw(raw.produce_frame("t", 0, ONE) + behind)
            size, _, error = struct.unpack(">iih", client.recv_exactly(10))
            client.recv_exactly(size - 6)
            assert error == 103
            assert client.is_closed()
        finally:
            _files.arm("", "test")
        assert workers.count("inflated_off_loop") == before + 1
