"""FETCH of today's protocol: what it waits for, its limits, and batches that are not in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import write_epochs
from fastlog.log.manager import LogManager
from tests.harness import today
from tests.harness.today_client import (
    EARLIEST,
    LARGEST,
    LATEST,
    Client,
    batch,
    filled,
    values_of,
)
from tests.harness.workers import Workers, drain, is_silent


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {"partitions_by_topic": {"two": 2}, "fetch_max_wait_ms": 60_000, "max_inflated_bytes": 1 << 22}
    with Workers(tmp_path_factory.mktemp("log"), slots=256, **settings) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        yield connected


def test_a_fetch_waits_for_what_is_wanted(workers: Workers, client: Client) -> None:
    client.make("wait")
    client.socket.sendall(today.request(today.FETCH, 12, today.fetched(("wait", 0, 0), max_wait=50_000, min_bytes=100)))
    with Client(workers) as producer:
        producer.produce(("wait", 0, batch(b"x")), acks=-1)
        workers.wait_still()
        assert is_silent(client.raw)
        assert workers.held()["pins"] == 0, "what it has found is not kept open for it"
        producer.produce(("wait", 0, batch(b"y")), acks=1)
    _, found = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
    assert values_of(found.responses[0].partitions[0]) == [(0, b"x"), (1, b"y")]


def test_a_fetch_ends_when_its_time_is_over(client: Client) -> None:
    filled(client, "over", 1)
    (found,) = client.fetch(("over", 0, 1), max_wait=30)
    assert (found.error_code, found.high_watermark, bytes(found.records or b"")) == (0, 1, b"")


def test_who_knows_an_end_that_is_not_visible_waits_and_no_longer_than_the_broker_lets_it(tmp_path: Path) -> None:
    with Workers(tmp_path, flusher=False, fetch_max_wait_ms=30) as workers, Client(workers) as client:
        client.make("t")
        assert client.produce(("t", 0, batch(b"x", b"y")))[0].error_code == 0
        for offset, code in ((0, 0), (1, 0), (2, 0), (3, 1)):
            (found,) = client.fetch(("t", 0, offset), max_wait=10_000_000)
            assert (found.error_code, found.high_watermark) == (code, -1 if code else 0)


def test_a_client_that_knows_another_leader_epoch_is_told_which_is_newer(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers, Client(workers) as client:
        client.make("t")
        assert client.produce(("t", 0, batch(b"x")), acks=-1)[0].error_code == 0
    write_epochs(tmp_path / "t-0", [(0, 0), (3, 1)], FileOps())
    with Workers(tmp_path, makes_topics=False) as workers, Client(workers) as client:
        LogManager(workers.processors[0].config, workers.arena).load([{}])
        epoch = workers.arena.view(0).epoch
        assert epoch >= 3
        for asked, code in ((epoch - 1, 74), (epoch, 0), (epoch + 1, 75)):
            assert client.fetch(("t", 0, 0), epoch=asked)[0].error_code == code
            assert client.offset("t", 0, LATEST, epoch=asked).error_code == code
        # of the end it is that of now, of a record that of its batch
        assert [client.offset("t", 0, when).leader_epoch for when in (LATEST, LARGEST, 1000)] == [epoch, 0, 0]
        assert client.make("t")[0].partitions[0].leader_epoch == epoch


def test_a_fetch_of_several_waits_for_any_of_them(workers: Workers, client: Client) -> None:
    client.make("two", "some")
    parts = [(topic, partition, client.offset(topic, partition, LATEST).offset) for topic, partition in (
        ("two", 0), ("two", 1), ("some", 0))]  # fmt: skip
    for topic, partition, _ in parts:
        client.socket.sendall(today.request(today.FETCH, 12, today.fetched(*parts, max_wait=50_000)))
        workers.wait_still()
        with Client(workers) as producer:
            assert producer.produce((topic, partition, batch(b"new")), acks=-1)[0].error_code == 0
        _, found = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
        got = {one.topic: one.partitions for one in found.responses}
        assert sum(len(values_of(part)) for one in found.responses for part in one.partitions) == 1, got
        parts = [(name, number, at + (name == topic and number == partition)) for name, number, at in parts]


def test_whatever_its_limits_a_fetch_has_one_whole_batch(client: Client) -> None:
    filled(client, "limits", 3, size=5000)
    for limits in ({"limit": 1}, {"max_bytes": 1}, {"limit": 0, "max_bytes": 0}):
        (found,) = client.fetch(("limits", 0, 1), **limits)
        assert [offset for offset, _ in values_of(found)] == [1]
    several = client.fetch(("limits", 0, 0), ("limits", 0, 1), ("limits", 0, 2), max_bytes=1)
    assert sum(len(values_of(part)) for part in several) == 1
    assert all(part.high_watermark == 3 for part in several)


def test_none_of_several_goes_short_for_ever(client: Client) -> None:
    """Where an answer holds one batch, each of the partitions is the first in its turn."""
    filled(client, "fair", 1, size=2000)
    filled(client, "fair2", 1, size=2000)
    filled(client, "fair3", 1, size=2000)
    parts = [("fair", 0, 0), ("fair2", 0, 0), ("fair3", 0, 0)]
    got = [[len(values_of(part)) for part in client.fetch(*parts, max_bytes=1)] for _ in range(3)]
    assert sorted(got) == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_what_is_not_in_memory_is_fetched_as_well(workers: Workers, client: Client) -> None:
    """Of several partitions too; whether the kernel has forgotten their pages is its own affair."""
    topics = ["cold", "cold2", "cold3"]
    for topic in topics:
        filled(client, topic, 40, size=5000)
    for offset in (0, 17, 39):
        for limit, count in ((1, 1), (1 << 20, 3 * (40 - offset))):
            for path in workers.directory.glob("cold*/*"):
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found = client.fetch(*[(topic, 0, offset) for topic in topics], limit=limit, max_bytes=limit)
            got = [values_of(part) for part in found]
            assert sum(map(len, got)) == count
            assert {values[0][0] for values in got if values} == {offset}


def test_a_walk_of_a_thread_keeps_no_file_pinned(workers: Workers, client: Client) -> None:
    """Neither the segment nor its index, which here is empty, so that the walk is long."""
    filled(client, "walked", 200, size=1000)
    with next(workers.directory.glob("walked-0/*.index")).open("r+b") as index:
        index.truncate(0)
    workers.wait_still()
    pins, walks = workers.held()["pins"], workers.count("read_ahead")
    (part,) = client.fetch(("walked", 0, 190), max_wait=0)
    assert values_of(part)[0][0] == 190
    workers.wait_still()
    assert workers.count("read_ahead") > walks
    assert workers.held()["pins"] == pins


def test_many_partitions_that_are_not_in_memory_come_in_one_answer(workers: Workers, client: Client) -> None:
    """Each is read ahead, however many have been for those before it."""
    topics = [f"frozen{number}" for number in range(7)]
    for topic in topics:
        filled(client, topic, 1, size=5000)
    workers.wait_still()
    before = workers.count("read_ahead")
    # where it begins is found, and is not in memory: then a thread reads, and it is found once more and is there
    _files.arm(",".join(f"pread@{2 + 5 * number}=EAGAIN" for number in range(len(topics))), "test")
    found = client.fetch(*[(topic, 0, 0) for topic in topics], max_wait=0)
    _files.arm("", "test")
    assert [len(values_of(part)) for part in found] == [1] * len(topics)
    assert workers.count("read_ahead") - before == len(topics)


@pytest.mark.parametrize("number", range(1, 9))
def test_whichever_read_fails_the_others_have_their_answer(workers: Workers, client: Client, number: int) -> None:
    """Bytes that are lost on their way into the answer are an error of their partition, in a whole frame."""
    topics = [f"lost{number}", f"kept{number}"]
    for topic in topics:
        filled(client, topic, 1)
    failures = workers.count("read_failures")
    _files.arm(f"pread@{number}=EIO", "test")
    found = client.fetch(*[(topic, 0, 0) for topic in topics], max_wait=0)
    _files.arm("", "test")
    codes = [part.error_code for part in found]
    assert codes in ([0, 0], [Code.KAFKA_STORAGE_ERROR, 0], [0, Code.KAFKA_STORAGE_ERROR])
    assert [len(values_of(part)) for part in found] == [int(not code) for code in codes]
    assert workers.count("read_failures") - failures == sum(map(bool, codes))
    assert [len(values_of(part)) for part in client.fetch(*[(topic, 0, 0) for topic in topics], max_wait=0)] == [1, 1]


def test_what_is_in_memory_is_found_without_a_thread(workers: Workers, client: Client) -> None:
    """Reads that may not wait for a disk are not those that can come short."""
    client.make("near")
    for _ in range(3):
        client.produce(("near", 0, batch(b"x")), acks=-1)
    with next(workers.directory.glob("near-0/*.log")).open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("the file system cannot say what is in memory")
    before = workers.count("read_ahead")
    _files.arm("pread@1-=short", "test")
    (part,) = client.fetch(("near", 0, 2))
    _files.arm("", "test")
    assert [offset for offset, _ in values_of(part)] == [2]
    assert workers.count("read_ahead") == before


def test_sessions_are_not_made(client: Client) -> None:
    found = client.ask(today.FETCH, 12, **today.fetched(("errors", 0, 0), session_id=5))
    assert (found.error_code, found.session_id, found.responses) == (70, 0, ())
    assert client.ask(today.FETCH, 12, **today.fetched()).session_id == 0


def test_a_log_begins_where_it_is_wanted_to(workers: Workers, client: Client) -> None:
    """At once, for every request that says where it begins; inside a batch the whole batch is sent, as always."""
    filled(client, "begin", 2)
    client.produce(("begin", 0, batch(b"a", b"b", b"c")), acks=-1)
    (view,) = (view for view in workers.arena.views() if view.topic == "begin")
    assert client.fetch(("begin", 0, 0))[0].log_start_offset == 0
    for start, first in ((1, 1), (3, 2), (4, 2), (5, None)):
        workers.arena.want_start(view.index, start)
        below, there = client.fetch(("begin", 0, start - 1), ("begin", 0, start), max_wait=0)
        assert (below.error_code, there.error_code, there.log_start_offset) == (1, 0, start)
        assert (values_of(there) or [(None, None)])[0][0] == first
        assert client.offset("begin", 0, EARLIEST).offset == start
        assert client.offset("begin", 0, 0).offset == (start if first is not None else -1)
    (told,) = client.produce(("begin", 0, batch(b"d")), acks=-1)
    assert (told.base_offset, told.log_start_offset) == (5, 5)
    assert values_of(client.fetch(("begin", 0, 5))[0]) == [(5, b"d")]


def test_many_partitions_in_one_fetch(workers: Workers, client: Client) -> None:
    """More than are looked at in one turn; the same one may be named again and again."""
    filled(client, "many", 1, size=20)
    found = client.fetch(*[("many", 0, number % 2) for number in range(2000)], max_bytes=1 << 30)
    assert [len(values_of(part)) for part in found] == [1, 0] * 1000
    workers.wait_still()
    assert workers.held()["pins"] == 0


def test_who_goes_away_in_the_middle_leaves_nothing(workers: Workers, client: Client) -> None:
    filled(client, "gone", 1)
    workers.wait_still()
    before = workers.held()
    for fields in (
        today.fetched(("gone", 0, 1), max_wait=60_000),
        today.fetched(*[("gone", 0, 1)] * 100, max_wait=60_000),
    ):
        with Client(workers) as other:
            other.socket.sendall(today.request(today.FETCH, 12, fields))
            workers.wait_still()
    workers.wait_held(before)


def test_one_who_stops_sending_is_answered_at_once(workers: Workers) -> None:
    with Client(workers) as other:
        filled(other, "stops", 1)
        other.socket.sendall(today.request(today.FETCH, 12, today.fetched(("stops", 0, 1), max_wait=60_000)))
        other.socket.shutdown(1)
        assert len(drain(other.raw)) > 20
