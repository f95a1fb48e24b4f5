"""What today's readers of topics of 0.7 take of a processor: memory counts before it is used, sets are opened once."""

from __future__ import annotations

import gc
import random
import socket
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fastlog import codecs, message
from fastlog.log import _files
from fastlog.record_batches import BatchHeader
from tests import reference
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import wait_until
from tests.harness.shared_log import in_child
from tests.harness.timing import PATIENCE
from tests.harness.today_client import Client
from tests.harness.workers import Workers
from tests.unit.test_kafka_bridge import read
from tests.unit.test_upconvert import records_of

pytestmark = pytest.mark.usefixtures("no_faults")

BUDGET = 1 << 20
MEGABYTE = 1 << 20
LARGEST = 3 * MEGABYTE + 1000
READERS = 6
SLOW_MS = 1500
LEFT = 64 << 10
"""What a connection may keep of an answer that has left."""
KEPT = 8
"""Sets that one processor keeps for readers that are in the middle of them."""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path, partitions=2, request_memory_bytes=BUDGET, max_message_bytes=LARGEST) as running:
        yield running


def write(workers: Workers, data: bytes, partition: int = 0) -> None:
    with workers.connect() as old:
        assert old.produce_ack("t", partition, data, raw.FLUSHED).error == 0


def answer_bytes(workers: Workers) -> int:
    return workers.processors[0].loop.answer_bytes


def ask(socket: Any, **fields: Any) -> None:
    socket.sendall(today.request(today.FETCH, 12, today.fetched(("t", 0, 0), **fields)))


def answered(socket: Any) -> bytes:
    """The records of the one part of an answer."""
    _, answer = today.decoded(today.FETCH, 12, today.answer_of(socket))
    (part,) = answer.responses[0].partitions
    assert part.error_code == 0
    return bytes(part.records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (raw.message_set([b"%04d" % at * 100 for at in range(6000)]), MEGABYTE),
        (raw.entry(bytes(MEGABYTE)), 1),
        (raw.entry(bytes(LARGEST - 1000)), 1),
    ],
    ids=["messages", "larger than the limit", "the largest"],
)
def test_readers_that_take_nothing_hold_little_more_than_the_budget(workers: Workers, data: bytes, limit: int) -> None:
    """However many ask at the same time: what is still to be converted counts, so that most wait for room."""
    write(workers, data)
    with ExitStack() as stack:
        ends: list[socket.socket] = []
        clients = [stack.enter_context(workers.connect_narrow(ends=ends)) for _ in range(READERS)]
        for client in clients:
            today.asked(client.socket, today.API_VERSIONS, 0)
        for client in clients:
            ask(client.socket, limit=limit)
        wait_until("the first have theirs", lambda: answer_bytes(workers) > BUDGET)
        workers.wait_still()
        # two answers at the most, in buffers that grow by doubling
        assert answer_bytes(workers) <= 2 * (2 * max(len(data) if limit == 1 else 0, MEGABYTE) + (256 << 10))
        for end in ends:  # by a few bytes at a time it would be long until the last one hears anything
            with end:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MEGABYTE)
        with ThreadPoolExecutor(len(clients)) as pool:
            (records,) = set(pool.map(lambda client: answered(client.socket), clients))
        expected = reference.as_records(data)
        assert expected is not None
        got = records_of(records)
        assert got and got == expected[: len(got)]
    wait_until("all is given back", lambda: answer_bytes(workers) == 0)
    assert not workers.held()["over budget"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "limit", "least", "slow"),
    [
        (raw.message_set([bytes(1000)] * 3000), 700_000, 700_000, 1),
        (raw.entry(bytes(3 * MEGABYTE)), 1, 6 * MEGABYTE, 4),
        (raw.entry(bytes(300_000)), 1, 600_000, 4),
    ],
    ids=["messages", "a large one", "larger than the limit"],
)
@pytest.mark.parametrize("leaves", [False, True])
def test_what_is_converted_counts_meanwhile(
    workers: Workers, data: bytes, limit: int, least: int, slow: int, leaves: bool
) -> None:
    """And is given back when the answer stands for it, or nobody waits for one. It is known by the read ``slow``."""
    write(workers, data)
    with Client(workers) as client:
        assert client.fetch(("t", 0, 0), limit=limit)[0].error_code == 0
        wait_until("the answer has left", lambda: answer_bytes(workers) < LEFT)
        before = answer_bytes(workers)
        _files.arm(f"pread@{slow}-=slow:{SLOW_MS}", "test")
        ask(client.socket, limit=limit)
        wait_until("it counts", lambda: workers.held()["jobs"] == 1 and answer_bytes(workers) - before >= least)
        assert answer_bytes(workers) - before < least + LEFT
        _files.arm("", "test")
        if not leaves:
            assert records_of(answered(client.socket))
    wait_until("all is given back", lambda: answer_bytes(workers) == 0)
    assert workers.held()["pins"] == 0


def large_set(seed: int, count: int = 4000) -> bytes:
    """A set of some megabytes, compressed to less than one."""
    source = random.Random(seed)
    return message.encode_set([source.randbytes(60) + bytes(source.randrange(900)) for _ in range(count)], 1)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The checksums of all sets that are opened from now on."""
    found: list[int] = []
    real = codecs.decompress_slices

    def noted(codec: int, data: Any, budget: Any, **options: Any) -> Iterator[bytes]:
        found.append(zlib.crc32(data))
        return real(codec, data, budget, **options)

    monkeypatch.setattr(codecs, "decompress_slices", noted)
    return found


@pytest.mark.parametrize("limit", [1, 3000, 1 << 16])
def test_a_reader_goes_on_in_the_middle_of_a_set(workers: Workers, opened: list[int], limit: int) -> None:
    """Which is opened to count what it holds and once more to read it, in however many answers: not for each."""
    count = 4000 if limit > 1 else 300
    data = raw.entry(b"before") + large_set(1, count) + raw.entry(b"between") + large_set(2, count) + raw.entry(b"last")
    write(workers, data)
    opened.clear()
    with Client(workers) as client:
        assert read(client, "t", 0, limit) == reference.as_records(data)
    assert len(set(opened)) == 2
    assert len(opened) <= 4


def test_more_readers_than_sets_are_kept(workers: Workers, opened: list[int]) -> None:
    """Whoever is displaced opens the set again, and goes on where it was."""
    data = large_set(3, 2000) + large_set(4, 500) + raw.entry(b"last")
    write(workers, data)
    opened.clear()
    expected = reference.as_records(data)
    assert expected is not None
    source = random.Random(4)
    with Client(workers) as client:
        places = [0] * (KEPT + 3)
        found: list[list[Any]] = [[] for _ in places]
        while any(place < len(data) for place in places):
            number = source.randrange(len(places))
            (part,) = client.fetch(("t", 0, places[number]), limit=source.randrange(1, 200_000))
            if part.records:
                found[number] += records_of(bytes(part.records))
                places[number] = BatchHeader.parse(bytes(part.records)).next_offset
    assert all(one == expected for one in found)


def test_readers_of_one_place_do_not_share_a_set(workers: Workers) -> None:
    """Both go on from where they have stopped, one after the other, in answers of another size, into the next set."""
    data = large_set(5, 300) + large_set(6, 300) + raw.entry(b"last")
    write(workers, data)
    expected = reference.as_records(data)
    assert expected is not None
    with Client(workers) as first, Client(workers) as second:
        for client in (first, second):
            (part,) = client.fetch(("t", 0, 0), limit=20_000)
            place = BatchHeader.parse(bytes(part.records)).next_offset
        rest = [one for one in expected if one[0] >= place]
        assert 0 < len(rest) < 300 + 300
        for client in (first, second, first):
            assert read(client, "t", place, 7000) == rest
        assert read(second, "t", place, MEGABYTE) == rest
        (part,) = first.fetch(("t", 0, expected[5][0]), limit=20_000)
        got = records_of(bytes(part.records))
        assert got == expected[5 : 5 + len(got)]


def test_a_set_that_compresses_badly_is_opened_again(workers: Workers, opened: list[int]) -> None:
    """Or what is kept would take much memory."""
    source = random.Random(7)
    data = message.encode_set([source.randbytes(1000) for _ in range(2000)], 1)
    write(workers, data)
    opened.clear()
    with Client(workers) as client:
        assert read(client, "t", 0, 300_000) == reference.as_records(data)
    assert len(opened) > 6


# -- disks that fail ---------------------------------------------------------------------------------------------------

UNREADABLE = 56


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("the log cannot be read topic='t' partition=0 ")]


def test_a_segment_that_cannot_be_opened_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By each fetch that meets it; the next one tries again."""
    with Workers(tmp_path, processors=2) as workers:
        write(workers, raw.entry(b"x"))
        with Client(workers, 1) as client:  # whose processor has not opened it
            _files.arm("open@1=EIO", "test")
            assert client.fetch(("t", 0, 0))[0].error_code == UNREADABLE
            assert records_of(bytes(client.fetch(("t", 0, 0))[0].records)) == [(10, b"x")]
        assert workers.count("read_failures") == 1
    path = tmp_path / "t-0" / f"{0:020}.kafka"
    assert f"offset=0 path={path} position=0 errno=EIO" in failures(caplog)[0]


FRONT = raw.entry(b"in front")
SMALL_SET = raw.wrapper(raw.message_set([b"%d" % at for at in range(900)]), 1)
LARGE = raw.entry(bytes(300_000))


@pytest.mark.parametrize(
    ("data", "fault", "comes"),
    [
        (SMALL_SET, "pread@3=short", "all"),
        (SMALL_SET, "pread@3=EIO", "front"),
        (SMALL_SET, "pread@2=EIO", "nothing"),
        (LARGE, "pread@2=short", "all"),
        (LARGE, "pread@2=EIO", "front"),
        (LARGE, "pread@1=EIO", "nothing"),
    ],
)
def test_a_read_that_fails_or_is_short(
    workers: Workers, caplog: pytest.LogCaptureFixture, data: bytes, fault: str, comes: str
) -> None:
    """What is before it comes, then an error that the log explains; and all of it once the disk is well."""
    write(workers, FRONT + data)
    expected = reference.as_records(FRONT + data)
    assert expected is not None
    with Client(workers) as client:
        _files.arm(fault, "test")
        (part,) = client.fetch(("t", 0, 0), limit=MEGABYTE)
        assert part.error_code == (UNREADABLE if comes == "nothing" else 0)
        wanted = {"all": expected, "front": expected[:1], "nothing": []}[comes]
        assert records_of(bytes(part.records or b"")) == wanted
        assert workers.count("read_failures") == (comes == "nothing")
        if comes != "all":
            _files.arm("pread@1-=EIO", "test")
            assert client.fetch(("t", 0, len(FRONT)), limit=MEGABYTE)[0].error_code == UNREADABLE
            # where nothing was read before, the message is looked for from the beginning on
            assert f"position={len(FRONT) if comes == 'front' else 0} errno=EIO" in failures(caplog)[-1]
        _files.arm("", "test")
        assert read(client, "t", 0, MEGABYTE) == expected


def test_what_can_be_read_before_a_bad_page_comes(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """Though both lie in what is read at once: a bad page cuts a read short, and fails the next one."""
    data = raw.message_set([b"%08d" % at for at in range(5_000)])  # all of it in one read
    write(workers, data)
    expected = reference.as_records(data)
    assert expected is not None
    with Client(workers) as client:
        _files.arm("pread@1=short,pread@2-=EIO", "test")
        (part,) = client.fetch(("t", 0, 0), limit=MEGABYTE)
        found = records_of(bytes(part.records or b""))
        assert part.error_code == 0 and found == expected[: len(found)] and 1_000 < len(found) < 5_000
        _files.arm("pread@1-=EIO", "test")
        assert client.fetch(("t", 0, expected[len(found)][0]), limit=MEGABYTE)[0].error_code == UNREADABLE
        assert workers.count("read_failures") == 1 and len(failures(caplog)) == 1
        _files.arm("", "test")
        assert read(client, "t", 0, MEGABYTE) == expected


def test_an_offset_is_looked_for_in_what_a_read_brings(workers: Workers) -> None:
    """The lengths in front of it are read: one read is cut short, the next one fails, and those behind do not."""
    data = raw.message_set([b"%08d" % at for at in range(5_000)])
    write(workers, data)
    expected = reference.as_records(data)
    assert expected is not None
    with Client(workers) as client:
        _files.arm("pread@1=short,pread@2=EIO", "test")
        (part,) = client.fetch(("t", 0, expected[4_000][0]), limit=MEGABYTE)
        _files.arm("", "test")
        assert part.error_code == 0
        wanted = expected[4_000:]
        assert [found for found in records_of(bytes(part.records)) if found[0] >= wanted[0][0]] == wanted


@pytest.mark.slow
def test_a_thread_at_work_outlives_its_processor(tmp_path: Path) -> None:
    """On a disk that stands still for longer than a stop waits: what the thread goes on with then is still there."""

    def stop() -> None:
        with Workers(tmp_path) as workers:
            write(workers, FRONT + LARGE)
            with Client(workers) as client:
                today.asked(client.socket, today.API_VERSIONS, 0)
                _files.arm("pread@2=slow:8000", "test")  # of the large message, by the thread
                ask(client.socket, limit=MEGABYTE)
                wait_until("a thread reads", lambda: workers.held()["jobs"] == 1)
                workers.stop()

    def bridges() -> int:
        gc.collect()
        return sum(type(one).__name__ == "Bridge" for one in gc.get_objects())

    def work() -> None:
        before = bridges()
        stop()
        is_there = bridges() == before + 1
        threads = [one for one in threading.enumerate() if one.name.startswith("helper-")]
        assert is_there or not threads
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    assert in_child(work) == 0
