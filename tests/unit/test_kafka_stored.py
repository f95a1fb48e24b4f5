"""PRODUCE with acks -2: batches as another log has them, each at its own offset or not at all."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog import record_batches
from fastlog.record_batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader, Record
from tests.harness import today
from tests.harness.today_client import CODECS, LATEST, Client, batch, make_with, values_of
from tests.harness.workers import Workers

STORED = -2
INVALID = 87


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log"), slots=64, max_batch_bytes=20_000) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        yield connected


def stored(offset: int, count: int = 1, *, codec: str = "none", attributes: int = 0) -> bytes:
    """A batch with the offset, whose largest time is that of no record where the append's is in it."""
    records = [Record(b"k", b"%d" % (offset + number), 1000 + number) for number in range(count)]
    data = record_batches.build(records, codec=CODECS[codec], base_offset=offset, attributes=attributes)
    return rewritten(data, 35, ">q", 5000) if attributes & LOG_APPEND_TIME else data


def rewritten(data: bytes, at: int, form: str, value: int) -> bytes:
    """Another value in the header, and the checksum that fits it."""
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    struct.pack_into(">I", changed, 17, record_batches.crc32c(bytes(changed[21:])))
    return bytes(changed)


def codes(client: Client, topic: str, *batches: bytes) -> list[int]:
    return [int(part.error_code) for part in client.produce(*((topic, 0, data) for data in batches), acks=STORED)]


def fetched(client: Client, topic: str, offset: int = 0) -> bytes:
    """What the log has, without leader epochs."""
    client.offset(topic, 0, LATEST)
    (part,) = client.fetch((topic, 0, offset))
    data = bytearray(part.records or b"")
    at = 0
    while at < len(data):
        data[at + 12 : at + 16] = b"\xff" * 4
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return bytes(data)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_stored_as_they_are(workers: Workers, client: Client, codec: str) -> None:
    """Marks of transactions and times of appends too, whether the topic would set these itself or not."""
    for stamps in (False, True):
        topic = f"as-{codec}-{stamps}"
        make_with(workers, topic, append_time=stamps)
        batches = [
            stored(0, 2, codec=codec, attributes=LOG_APPEND_TIME),
            stored(2, codec=codec, attributes=TRANSACTIONAL),
            stored(3, attributes=TRANSACTIONAL | CONTROL),
            stored(4, 300, codec=codec),
        ]
        assert codes(client, topic, *batches) == [0] * 4
        assert fetched(client, topic) == b"".join(batches)
        assert (client.offset(topic, 0, 4000).offset, client.offset(topic, 0, LATEST).offset) == (0, 304)


def test_one_that_a_thread_looks_into_stays_what_it_is(workers: Workers, client: Client) -> None:
    client.make("large")
    before = workers.count("inflated_off_loop")
    records = [Record(None, b"x" * 500, 1000) for _ in range(3000)]
    made = record_batches.build(records, codec=CODECS["zstd"], attributes=LOG_APPEND_TIME)
    data = rewritten(made, 35, ">q", 5000)
    assert codes(client, "large", data, rewritten(data, 23, ">i", 0)) == [0, INVALID]
    assert workers.count("inflated_off_loop") > before
    assert fetched(client, "large") == data


def test_the_answer_waits_for_no_flush(tmp_path: Path) -> None:
    with Workers(tmp_path, flusher=False) as workers, Client(workers) as client:
        client.make("t")
        assert codes(client, "t", stored(0)) == [0]


def test_what_does_not_follow_the_log_is_refused(client: Client) -> None:
    """And stands in nobody's way: what was sent twice is there once."""
    client.make("follow")
    assert codes(client, "follow", stored(1), stored(0, 2), stored(2), stored(2), stored(4), stored(3)) == [
        45, 0, 0, 45, 45, 0,
    ]  # fmt: skip
    assert codes(client, "follow", stored(0, 2), stored(2), stored(3), stored(4)) == [45, 45, 45, 0]
    assert client.produce(("follow", 0, batch(b"another's")))[0].base_offset == 5
    assert codes(client, "follow", stored(5), stored(6)) == [45, 0]
    client.offset("follow", 0, LATEST)
    found = values_of(client.fetch(("follow", 0, 0))[0])
    assert found == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3"), (4, b"4"), (5, b"another's"), (6, b"6")]


def test_both_kinds_on_one_connection_keep_their_times(workers: Workers, client: Client) -> None:
    """They are written together, and only those of producers get the time of their append."""
    make_with(workers, "together", append_time=True)
    before = round(time.time() * 1000) - 20
    sent = [(1, batch(b"a")), (STORED, stored(1)), (1, batch(b"b")), (STORED, stored(3, 2)), (1, batch(b"c"))]
    requests = b"".join(
        today.request(today.PRODUCE, 9, today.produced(("together", 0, data), acks=acks), correlation=number)
        for number, (acks, data) in enumerate(sent)
    )
    client.socket.sendall(requests)
    for number in range(len(sent)):
        correlation, found = today.decoded(today.PRODUCE, 9, today.answer_of(client.socket))
        assert (correlation, found.responses[0].partition_responses[0].error_code) == (number, 0)
    client.offset("together", 0, LATEST)
    (part,) = client.fetch(("together", 0, 0))
    headers = [header for header, _ in record_batches.batches(bytes(part.records))]
    assert [header.is_log_append_time for header in headers] == [True, False, True, False, True]
    assert [header.max_timestamp >= before for header in headers] == [True, False, True, False, True]
    assert [header.max_timestamp for header in headers][1::2] == [1000, 1001]


def test_what_a_log_cannot_have_is_refused(client: Client) -> None:
    client.make("never")
    good = stored(0, 3)
    gap = rewritten(good, 23, ">i", 5)
    for wrong, code in (
        (rewritten(good, 43, ">q", 7), INVALID),  # the id of a producer
        (b"\xff" + good[1:], INVALID),  # an offset below 0
        (rewritten(good, 21, ">h", 0x80), INVALID),
        (rewritten(good, 21, ">h", 5), INVALID),
        (gap, INVALID),
        (rewritten(good, 57, ">i", 2), INVALID),
        (good[:-1] + b"x", 2),
        (good[:-1], 2),
        (good + stored(3), INVALID),
        (stored(0, 2000), 10),
        (rewritten(stored(0, 3, codec="gzip"), 57, ">i", 2), INVALID),
    ):
        assert codes(client, "never", wrong) == [code], wrong[:61].hex()
    assert client.offset("never", 0, LATEST).offset == 0
    assert codes(client, "never", good) == [0]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_largest_time_and_one_far_ahead_stay_what_they_are(client: Client, codec: str) -> None:
    """Another broker has looked at them when they came."""
    topic = f"times-{codec}"
    client.make(topic)
    ahead = round(time.time() * 1000) + 10**9
    data = rewritten(stored(0, 2, codec=codec), 35, ">q", ahead)
    assert codes(client, topic, data) == [0]
    assert BatchHeader.parse(fetched(client, topic)).max_timestamp == ahead
