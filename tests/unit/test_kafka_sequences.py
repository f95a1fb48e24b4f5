"""PRODUCE by idempotent producers: what comes again is answered as the first time, what is missing is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.log import _files
from fastlog.record_batches import Record
from tests.harness import today
from tests.harness.stored_batches import batch
from tests.harness.today_client import Client, make_with, values_of
from tests.harness.workers import Workers, drain, is_silent, wait_until

OUT_OF_SEQUENCE, OLD_EPOCH, STORAGE = 45, 47, 56
LATEST = -1
LONG = record_batches.build([Record(None, b"%d" % number * 100) for number in range(3000)], codec=1)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log"), slots=64) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        yield connected


def numbered(sequence: int, *values: bytes, producer: int = 5, epoch: int = 0) -> bytes:
    return batch(*values or (b"%d" % sequence,), producer_id=producer, epoch=epoch, sequence=sequence)


def send(client: Client, topic: str, *batches: bytes, acks: int = 1, version: int = 9) -> None:
    """One produce for each, all at once."""
    requests = [today.request(today.PRODUCE, version, today.produced((topic, 0, data), acks=acks)) for data in batches]
    client.socket.sendall(b"".join(requests))


def told(client: Client, count: int, version: int = 9) -> list[tuple[int, int]]:
    """Error and base offset of the next answers."""
    found = []
    for _ in range(count):
        _, answer = today.decoded(today.PRODUCE, version, today.answer_of(client.socket))
        (part,) = answer.responses[0].partition_responses
        found.append((int(part.error_code), int(part.base_offset)))
    return found


def stored(client: Client, topic: str) -> list[bytes | None]:
    """The values in a topic, all of which are flushed first."""
    assert client.offset(topic, 0, LATEST).error_code == 0
    (part,) = client.fetch((topic, 0, 0))
    return [value for _, value in values_of(part)]


def count(workers: Workers, name: str) -> int:
    return workers.count(name)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 5, 9, 11])
def test_a_batch_that_comes_again_is_answered_as_the_first_time(client: Client, version: int, acks: int) -> None:
    topic = f"again-{version}-{acks}"
    client.make(topic)
    first, second = numbered(0, b"a", b"b"), numbered(2, b"c")
    for _ in range(3):
        send(client, topic, first, second, acks=acks, version=version)
        assert told(client, 2, version) == [(0, 0), (0, 2)]
    assert stored(client, topic) == [b"a", b"b", b"c"]


def test_one_that_is_refused_hurts_no_other_of_its_run(workers: Workers, client: Client) -> None:
    """Copies of what is still under way, gaps, and an old epoch, in one write, between batches of others."""
    client.make("run")
    before = {name: count(workers, name) for name in ("duplicate_batches", "out_of_sequence_batches")}
    batches = [
        numbered(0),
        numbered(1),
        numbered(0),
        batch(b"plain"),
        numbered(3),
        numbered(9, b"other", producer=6, epoch=1),
        numbered(10, b"old", producer=6, epoch=0),
        numbered(2),
        numbered(1),
        batch(b"plain"),
        numbered(3),
        numbered(10, b"other", producer=6, epoch=1),
        numbered(1, b"new", epoch=1),
        numbered(0, b"new", epoch=1),
    ]
    send(client, "run", *batches)
    assert told(client, len(batches)) == [
        (0, 0),
        (0, 1),
        (0, 0),
        (0, 2),
        (OUT_OF_SEQUENCE, -1),
        (0, 3),
        (OLD_EPOCH, -1),
        (0, 4),
        (0, 1),
        (0, 5),
        (0, 6),
        (0, 7),
        (OUT_OF_SEQUENCE, -1),
        (0, 8),
    ]
    assert stored(client, "run") == [b"0", b"1", b"plain", b"other", b"2", b"plain", b"3", b"other", b"new"]
    after = {name: count(workers, name) - value for name, value in before.items()}
    assert after == {"duplicate_batches": 2, "out_of_sequence_batches": 3}


def test_parts_of_one_produce_are_judged_each_by_its_partition(client: Client) -> None:
    client.make("one", "two")
    first = client.produce(("one", 0, numbered(0)), ("two", 0, numbered(7)))
    again = client.produce(("one", 0, numbered(2)), ("two", 0, numbered(7)), ("one", 0, numbered(1)))
    assert [(part.error_code, part.base_offset) for part in first] == [(0, 0), (0, 0)]
    assert [(part.error_code, part.base_offset) for part in again] == [(OUT_OF_SEQUENCE, -1), (0, 0), (0, 1)]


def test_a_batch_larger_than_a_run_is_known_again(client: Client) -> None:
    client.make("large")
    large = numbered(0, bytes(600_000))
    send(client, "large", large, large, numbered(1), large)
    assert told(client, 4) == [(0, 0), (0, 0), (0, 1), (0, 0)]


def test_without_acks_a_copy_says_nothing_and_a_gap_ends_the_connection(
    workers: Workers, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.make("silent")
    send(client, "silent", numbered(0), numbered(0), numbered(1), acks=0)
    assert stored(client, "silent") == [b"0", b"1"]
    with Client(workers) as producer:
        requests = [
            today.request(today.PRODUCE, 9, today.produced(("silent", 0, data), acks=acks))
            for acks, data in ((0, numbered(0, b"x", producer=6)), (0, numbered(3)), (1, LONG))
        ]
        producer.socket.sendall(b"".join(requests))
        assert drain(producer.raw) == b"", "what a thread looks into meanwhile is not answered either, or in part"
    assert stored(client, "silent") == [b"0", b"1", b"x"]
    assert client.produce(("silent", 0, numbered(2)))[0].error_code == 0
    assert "out of its producer's sequence" in caplog.text


def test_a_copy_has_the_time_of_the_append_of_its_original(workers: Workers, client: Client) -> None:
    make_with(workers, "append-time", append_time=True)
    fields: Any = today.produced(("append-time", 0, numbered(0)))
    times = {
        client.ask(today.PRODUCE, 9, **fields).responses[0].partition_responses[0].log_append_time for _ in range(3)
    }
    assert len(times) == 1
    assert times.pop() is not None
    client.make("create-time")
    fields = today.produced(("create-time", 0, numbered(0)))
    assert {
        client.ask(today.PRODUCE, 9, **fields).responses[0].partition_responses[0].log_append_time for _ in range(2)
    } == {None}


def test_a_copy_waits_for_the_flush_that_its_original_waits_for(tmp_path: Path) -> None:
    """Of ``acks=all`` nobody is told before; of ``acks=1`` at once."""
    with Workers(tmp_path, flusher=False) as workers, Client(workers) as client, Client(workers) as other:
        client.make("t")
        send(client, "t", numbered(0))
        assert told(client, 1) == [(0, 0)]
        send(client, "t", numbered(0))
        assert told(client, 1) == [(0, 0)]
        send(other, "t", numbered(0), acks=-1)
        wait_until("the copy is judged", lambda: count(workers, "duplicate_batches") == 2)
        send(client, "t", numbered(1))
        assert told(client, 1) == [(0, 1)]
        assert is_silent(other.raw)
        workers.start_flusher()
        assert told(other, 1) == [(0, 0)]


def test_a_copy_fails_with_the_flush_of_its_original(tmp_path: Path) -> None:
    with Workers(tmp_path, flusher=False) as workers, Client(workers) as client, Client(workers) as other:
        client.make("t")
        send(client, "t", numbered(0))
        assert told(client, 1) == [(0, 0)]
        send(other, "t", numbered(0), acks=-1)
        wait_until("the copy is judged", lambda: count(workers, "duplicate_batches") == 1)
        _files.arm("fdatasync@1-=EIO", "test")
        workers.start_flusher()
        assert told(other, 1) == [(STORAGE, -1)]
        assert client.produce(("t", 0, numbered(0)))[0].error_code == STORAGE
