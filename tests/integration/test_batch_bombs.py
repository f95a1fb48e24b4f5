"""Compressed batches that hold far more than they look like: refused within the limits, and nobody else waits."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fastlog.batch_codecs import CODEC_NAMES, GZIP, LZ4, SNAPPY, ZSTD, compress
from fastlog.codecs import XERIAL_HEADER
from fastlog.record_batches import Record, build, records
from tests.harness import raw_batches, raw_records, today
from tests.harness.broker import Broker
from tests.harness.sanitizer import KEPT_BYTES
from tests.harness.timing import PATIENCE

MIB = 1 << 20
LIMIT = 16 * MIB
TOO_LARGE, INVALID_RECORD = 10, 87
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
BYSTANDER_SECONDS = 2.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One processor, so that a bomb and everybody else meet there."""
    settings = {"max.inflated.bytes": LIMIT, "max.inflated.messages": 100_000}
    with Broker(tmp_path_factory.mktemp("bombs"), processors=1, settings=settings) as running:
        with connected(running) as client:
            deadline = time.monotonic() + PATIENCE
            while True:
                names = {"topics": [{"name": "t", "topic_id": today.NO_ID}], "allow_auto_topic_creation": True}
                (topic,) = today.asked(client, today.METADATA, 4, **names).topics
                if not topic.error_code and topic.partitions:
                    break
                assert time.monotonic() < deadline
                time.sleep(0.01)
        yield running
        running.stop()


def connected(broker: Broker) -> socket.socket:
    """A connection whose first request has told that it is one of today's clients."""
    client = socket.create_connection(("127.0.0.1", broker.port), PATIENCE)
    assert not today.asked(client, today.API_VERSIONS, 0).error_code
    return client


def produce(client: socket.socket, batch: bytes, acks: int = 1) -> tuple[int, int]:
    """The error code and the base offset of the answer."""
    answer = today.asked(client, today.PRODUCE, 9, **today.produced(("t", 0, batch), acks=acks))
    (part,) = answer.responses[0].partition_responses
    return int(part.error_code), int(part.base_offset)


def end_of(client: socket.socket) -> int:
    """The offset behind the last record."""
    answer = today.asked(client, today.LIST_OFFSETS, 5, **today.listed(("t", 0, -1)))
    (part,) = answer.topics[0].partitions
    assert not part.error_code
    return int(part.offset)


def held(codec: int, payload: bytes, count: int) -> bytes:
    """A batch with this compressed payload, which is to hold so many records."""
    made = raw_batches.Batch(attributes=codec, record_count=count, last_offset_delta=count - 1, payload=payload)
    return made.encode()


def of_records(codec: int, count: int, size: int) -> bytes:
    """Records of zeros; nothing is wrong with them but how many they are."""
    return build([Record(None, bytes(size), 0)] * count, codec=codec)


def pieces(codec: int) -> bytes:
    """As many members, blocks or frames with nothing in them as fit half a megabyte."""
    one = b"\0\0\0\1\0" if codec == SNAPPY else compress(codec, b"")
    return (XERIAL_HEADER if codec == SNAPPY else b"") + one * (500_000 // len(one))


def bombs(codec: int) -> dict[str, tuple[bytes, set[int]]]:
    """By name: a batch, and the codes that may refuse it."""
    record = raw_records.varint(24 * MIB) + b"\0" * 3 + b"\1" + raw_records.varint(24 * MIB - 20)
    found = {
        "records above the limit": (of_records(codec, 70, 300_000), {TOO_LARGE}),
        "one record above the limit": (held(codec, compress(codec, record + bytes(24 * MIB)), 1), {TOO_LARGE}),
        "zeros that are no records": (held(codec, compress(codec, bytes(LIMIT)), 5), {INVALID_RECORD}),
        "more records than allowed": (of_records(codec, 100_001, 0), {TOO_LARGE}),
        "fewer records than said": (held(codec, compress(codec, bytes(0)), 99_999), {INVALID_RECORD}),
    }
    if codec != LZ4:  # of which only one frame is read
        found["pieces of nothing"] = (held(codec, pieces(codec), 1), {TOO_LARGE, INVALID_RECORD})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: CODEC_NAMES[codec])
def test_bombs_are_refused_and_disturb_nobody(broker: Broker, codec: int) -> None:
    """Each gets an answer with a code, nothing of it is stored, its connection goes on; memory stays where it was."""
    process = psutil.Process(broker.pids()["processor-0"])
    with connected(broker) as client, connected(broker) as other:
        error, base = produce(other, of_records(codec, 3, 10))
        assert error == 0
        before = process.memory_info().rss
        for name, (bomb, codes) in bombs(codec).items():
            client.sendall(today.request(today.PRODUCE, 9, today.produced(("t", 0, bomb))))
            started = time.monotonic()
            assert produce(other, of_records(codec, 1, 10)) == (0, base + 3), name
            assert time.monotonic() - started < BYSTANDER_SECONDS, name
            base += 1
            _, answer = today.decoded(today.PRODUCE, 9, today.answer_of(client))
            (part,) = answer.responses[0].partition_responses
            assert part.error_code in codes, (name, part)
        assert produce(client, of_records(codec, 2, 10)) == (0, base + 3)
        assert end_of(client) == base + 5
        assert process.memory_info().rss - before < 3 * LIMIT + KEPT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: CODEC_NAMES[codec])
def test_many_bombs_at_once_take_the_memory_of_one(broker: Broker, codec: int) -> None:
    """Of forty connections that each send a record just below the limit, all are stored, one check after the other."""
    batch = of_records(codec, 1, LIMIT - MIB)
    process = psutil.Process(broker.pids()["processor-0"])
    with connected(broker) as client:
        _, base = produce(client, of_records(codec, 1, 10))
    before, most, done = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    clients = [connected(broker) for _ in range(40)]
    try:
        request = today.request(today.PRODUCE, 9, today.produced(("t", 0, batch)))
        for client in clients:
            client.sendall(request)
        bases = []
        for client in clients:
            _, answer = today.decoded(today.PRODUCE, 9, today.answer_of(client))
            (part,) = answer.responses[0].partition_responses
            assert part.error_code == 0
            bases.append(part.base_offset)
        assert sorted(bases) == list(range(base + 1, base + 41))
    finally:
        done.set()
        watching.join()
        for client in clients:
            client.close()
    assert most[0] - before < 6 * LIMIT + KEPT_BYTES


@pytest.mark.slow
def test_what_was_stored_is_what_was_sent(broker: Broker) -> None:
    """A large batch of each codec comes back byte for byte, but for what the broker writes."""
    path: Path = broker.partition_directory("t", 0)
    for codec in CODECS:
        batch = of_records(codec, 30, 200_000)
        with connected(broker) as client:
            error, base = produce(client, batch, acks=-1)
        assert error == 0
        stored = b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))
        at = stored.rindex(struct.pack(">q", base) + batch[8:12])
        assert stored[at + 16 : at + len(batch)] == batch[16:]
        assert len(list(records(stored[at : at + len(batch)]))) == 30
