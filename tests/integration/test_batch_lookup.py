"""Fetching from any offset of a long segment: with its index, without one, and where a thread looks for the place."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.batch_load import Client, records_of
from tests.harness.broker import Broker
from tests.harness.stored_batches import batch

PLACE = ("t", 0)
PAGE = os.sysconf("SC_PAGESIZE")
BATCH_HEAD = 61
BATCHES = 3000
"""Of one record each: their heads are more than the loop's thread walks over."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, processors=1) as made:
        yield made


def values(number: int) -> bytes:
    return b"record %d" % number


def threads(broker: Broker) -> int:
    """Of the processor: one is started with the first job for a disk."""
    return len(list(Path(f"/proc/{broker.pids()['processor-0']}/task").iterdir()))


def forget(directory: Path) -> None:
    """Have the kernel drop the pages of a partition's files; what is flushed it can."""
    for path in directory.iterdir():
        if path.suffix == ".tmp":  # which has another name soon
            continue
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.parametrize("cold", [False, True], ids=["in memory", "on the disk"])
@pytest.mark.parametrize("index", ["as it is", "removed", "of zeros", "of another log"])
def test_any_offset_is_answered_with_the_batch_that_holds_it(broker: Broker, index: str, cold: bool) -> None:
    client = Client(broker.port)
    client.make_topic("t")
    number = 0
    while number < BATCHES:
        error, base = client.produce(PLACE, batch(values(number)), -1 if number == BATCHES - 1 else 1)
        assert (error, base) == (0, number)
        number += 1
    path = broker.log_dirs[0] / "t-0" / "00000000000000000000.index"
    content = path.read_bytes()
    assert len(content) > 40 * 8
    if index == "removed":
        path.unlink()
    elif index == "of zeros":
        path.write_bytes(bytes(len(content)))
    elif index == "of another log":
        path.write_bytes(b"".join(content[i : i + 7] + bytes([content[i + 7] ^ 8]) for i in range(0, len(content), 8)))
    stored = path.with_suffix(".log").read_bytes()
    assert records_of(stored) == [(at, values(at)) for at in range(BATCHES)]
    starts = [0]
    for _ in range(BATCHES - 1):
        starts.append(starts[-1] + 12 + int.from_bytes(stored[starts[-1] + 8 : starts[-1] + 12], "big"))
    source = random.Random(5)
    before = threads(broker)
    for offset in [BATCHES - 1, 0, 1, *(source.randrange(BATCHES) for _ in range(60))]:
        if cold:
            forget(path.parent)
        error, end, data = client.fetch(PLACE, offset, 0)
        assert (error, end) == (0, BATCHES)
        assert len(data) > BATCH_HEAD
        assert data == stored[starts[offset] : starts[offset] + len(data)]
    assert client.fetch(PLACE, BATCHES, 0) == (0, BATCHES, b"")
    assert client.fetch(PLACE, BATCHES + 1, 0)[0] == 1
    client.close()
    if cold or index.startswith("of "):  # one that is removed stays open with the writer
        assert threads(broker) == before + 1, "no thread looked for anything"


def test_a_place_that_was_found_is_not_that_of_the_topic_made_anew(broker: Broker) -> None:
    """The slot, the segment's name and the offset are the same; the batches are longer."""
    for length in (1, 7, 3):
        client = Client(broker.port)
        client.make_topic("t")
        for number in range(BATCHES):
            acks = -1 if number == BATCHES - 1 else 1
            assert client.produce(PLACE, batch(values(number) * length), acks) == (0, number)
        path = broker.log_dirs[0] / "t-0" / "00000000000000000000.index"
        path.write_bytes(bytes(path.stat().st_size))
        for offset in (BATCHES - 1, BATCHES - 200):
            error, _, data = client.fetch(PLACE, offset, 0)
            assert (error, records_of(data)[0]) == (0, (offset, values(offset) * length))
        client.close()
        with broker.connect() as raw:
            assert raw.delete_topic("t")[0] == 0


def test_a_head_of_which_the_second_page_is_not_in_memory(broker: Broker) -> None:
    """What a read without waiting gives of it is not taken for the end of the file, nor for damage."""
    client = Client(broker.port)
    client.make_topic("t")
    ends, size = [], 0
    for number in range(BATCHES):
        data = batch(values(number))
        assert client.produce(PLACE, data, -1 if number == BATCHES - 1 else 1) == (0, number)
        size += len(data)
        ends.append(size)
    path = broker.log_dirs[0] / "t-0" / "00000000000000000000.log"
    crossing = [n + 1 for n, end in enumerate(ends[:-1]) if 0 < -end % PAGE < BATCH_HEAD]
    assert len(crossing) > 10
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for offset in crossing:
        forget(path.parent)
        for _ in range(2):  # a thread finds the place, which is known then
            error, end, data = client.fetch(PLACE, offset, 0)
            assert (error, end) == (0, BATCHES)
            assert records_of(data)[0] == (offset, values(offset))
            forget(path.parent)
            os.pread(fd, 1, ends[offset - 1] // PAGE * PAGE)
    os.close(fd)
    client.close()


@pytest.mark.parametrize("records", [1, 10], ids=["by the index", "by walking"])
def test_a_walk_comes_to_a_head_of_which_the_second_page_is_not_in_memory(broker: Broker, records: int) -> None:
    """The index names a batch by its last record: one before that is walked to, from the beginning of the file."""
    client = Client(broker.port)
    client.make_topic("t")
    first = batch(bytes(8 * PAGE - 100))
    assert 0 < -len(first) % PAGE < BATCH_HEAD
    assert client.produce(PLACE, first, 1) == (0, 0)
    assert client.produce(PLACE, batch(*[b"x"] * records), 1) == (0, 1)
    assert client.produce(PLACE, batch(b"last" * PAGE), -1) == (0, 1 + records)
    path = broker.log_dirs[0] / "t-0" / "00000000000000000000.log"
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    forget(path.parent)
    for position in (0, len(first)):
        os.pread(fd, 1, position // PAGE * PAGE)
    os.close(fd)
    assert len(path.with_suffix(".index").read_bytes()) >= 8
    error, end, data = client.fetch(PLACE, 1, 0)
    assert (error, end) == (0, 2 + records)
    assert records_of(data)[:records] == [(1 + at, b"x") for at in range(records)]
    client.close()
