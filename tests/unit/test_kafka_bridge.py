"""Clients of today at topics of 0.7: what they read, from where they may begin, and what they cannot do."""

from __future__ import annotations

import logging
import random
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import message, record_batches
from fastlog.log import _files
from fastlog.log._append import end_life
from fastlog.log._shared_memory import FLUSHER
from fastlog.log.manager import LogManager
from fastlog.log.slots import SlotSpec
from fastlog.record_batches import BatchHeader
from tests import reference
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.shared_log import LIMITS, SharedLog, in_child, wait_until
from tests.harness.today_client import EARLIEST, EARLIEST_HERE, LARGEST, LATEST, Client, batch, each, values_of
from tests.harness.workers import Workers, is_silent
from tests.unit.test_upconvert import records_of

OUT_OF_RANGE, CORRUPT, UNKNOWN_TOPIC, INVALID_TOPIC, FORMAT, UNKNOWN_ID = 1, 2, 3, 17, 43, 100
SEGMENT_BYTES = 1 << 23
LARGE_BYTES = 3 << 20
PARTITIONS = 3


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {
        "partitions": PARTITIONS,
        "max_message_bytes": LARGE_BYTES,
        "segment_bytes": SEGMENT_BYTES,
        "fetch_max_wait_ms": 60_000,
        "flush_interval_ms": 50,
    }
    with Workers(tmp_path_factory.mktemp("log"), slots=256, **settings) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        yield connected


@pytest.fixture
def topic() -> str:
    return f"old-{uuid.uuid4().hex}"


def write(workers: Workers, topic: str, data: bytes, partition: int = 0) -> int:
    """Have a set stored as a client of 0.7 does, and visible; where the log ends."""
    with workers.connect() as old:
        told = old.produce_ack(topic, partition, data, raw.FLUSHED)
        assert told.error == 0
    return told.next_offset


def sample(seed: int = 0) -> bytes:
    """A set of everything that 0.7's clients write."""
    source = random.Random(seed)
    parts = []
    for number in range(6):
        inner = [source.randbytes(source.randrange(60)) for _ in range(source.randrange(1, 9))]
        nested = raw.entry(b"in front") + raw.wrapper(raw.message_set(inner, 0), 1) + raw.entry(b"behind")
        parts += [
            raw.entry(source.randbytes(number * 40), number % 2),
            raw.entry(b"", 1),
            raw.wrapper(raw.message_set(inner, 1), 1),
            raw.wrapper(raw.message_set(inner, 0), 2),
            raw.wrapper(nested, 2),
            raw.wrapper(b"", 1),
        ]
    return b"".join(parts)


def read(client: Client, topic: str, offset: int = 0, most_bytes: int = 1 << 20, partition: int = 0) -> list[Any]:
    """What a consumer gets that reads from an offset to the high watermark, and stops there."""
    found = []
    while True:
        (part,) = client.fetch((topic, partition, offset), limit=most_bytes, max_wait=0)
        assert part.error_code == 0
        assert part.last_stable_offset == part.high_watermark
        if offset == part.high_watermark:
            assert not part.records
            return found
        data = bytes(part.records)
        got = [one for one in records_of(data) if one[0] >= offset]
        assert all(one[0] >= offset for one in records_of(data))
        found += got
        following = BatchHeader.parse(data).next_offset
        assert following > offset
        offset = following


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_bytes", [1, 150, 1 << 20])
def test_all_is_read_and_the_end_is_reached(workers: Workers, client: Client, topic: str, most_bytes: int) -> None:
    """Every codec and magic, sets in sets, empty messages and sets, in answers of any size."""
    data = sample()
    end = write(workers, topic, data)
    assert read(client, topic, 0, most_bytes) == reference.as_records(data)
    (part,) = client.fetch((topic, 0, end), max_wait=0)
    assert (part.high_watermark, part.log_start_offset, part.error_code) == (end, 0, 0)


def test_every_offset_is_one_to_begin_at(workers: Workers, client: Client, topic: str) -> None:
    """Inside of a message it is that message, inside of a set the rest of it; what is behind the end is refused."""
    data = raw.entry(b"one") + raw.wrapper(raw.message_set([b"%d" % at for at in range(9)]), 1) + raw.entry(b"x", 0)
    data += raw.wrapper(raw.message_set([b"a", b"bc"]), 2)
    end = write(workers, topic, data)
    expected = reference.as_records(data)
    assert expected is not None
    for offset in range(end):
        assert read(client, topic, offset) == [one for one in expected if one[0] >= offset]
    assert [client.fetch((topic, 0, offset))[0].error_code for offset in (end + 1, -1)] == [OUT_OF_RANGE] * 2


def test_a_message_in_a_message_is_no_place_to_begin(workers: Workers, client: Client, topic: str) -> None:
    """Bytes that are whole and valid messages, as a set that snappy stores as it is has them, are not taken for any."""
    inner = raw.message_set([b"inner %02d" % at for at in range(30)])
    stored = reference.encode(reference.snappy_literal(inner), 1, 2)
    data = raw.entry(b"before") + raw.entry(inner) + stored + raw.entry(b"after")
    write(workers, topic, data)
    expected = reference.as_records(data)
    assert expected is not None
    for offset in range(len(data)):
        assert read(client, topic, offset) == [one for one in expected if one[0] >= offset]


def test_a_reader_of_07_goes_on_from_the_same_numbers(workers: Workers, client: Client, topic: str) -> None:
    """A record's offset and one is 0.7's next offset, and the other way round."""
    data = sample(1)
    end = write(workers, topic, data)
    with workers.connect() as old:
        for entry in reference.walk(data)[0]:
            if entry.next_offset < end:
                body = old.fetch_ok(topic, 0, entry.next_offset)
                assert body == data[entry.next_offset :]
        for offset, _ in read(client, topic):
            following = offset + 1
            if following in {entry.next_offset for entry in reference.walk(data)[0]} and following < end:
                assert old.fetch_ok(topic, 0, following) == data[following:]


def test_far_into_a_segment(workers: Workers, topic: str) -> None:
    """By a processor that has seen nothing of it: the message is searched for from the segment's beginning, once."""
    source = random.Random(5)
    payloads = [source.randbytes(source.randrange(300)) for _ in range(40_000)]
    for start in range(0, len(payloads), 5000):
        write(workers, topic, raw.message_set(payloads[start : start + 5000]))
    expected = reference.as_records(raw.message_set(payloads))
    assert expected is not None
    with Workers(workers.directory, slots=256, partitions=PARTITIONS, makes_topics=False) as other:
        LogManager(other.processors[0].config, other.arena).load([{}])
        with Client(other) as client:
            for number in (39_000, 20_000, 20_001, 35_000, 100, 39_990):
                offset = expected[number][0]
                (part,) = client.fetch((topic, 0, offset - 3), limit=2000)
                inside = offset - 3 > expected[number - 1][0]
                assert records_of(bytes(part.records))[0] == expected[number if inside else number - 1]
            assert read(client, topic, expected[39_000][0]) == expected[39_000:]


def test_fetches_of_every_version(workers: Workers, client: Client, topic: str) -> None:
    """By name, and by the id that Metadata tells."""
    data = sample(2)
    write(workers, topic, data)
    (described,) = client.make(topic)
    assert described.error_code == 0
    for version in each(today.FETCH):
        (part,) = client.fetch((topic, 0, 0), version=version, ids={topic: described.topic_id})
        assert records_of(bytes(part.records)) == reference.as_records(data)


def test_a_message_larger_than_the_limit_comes_as_a_whole(workers: Workers, client: Client, topic: str) -> None:
    """Whatever it takes, and alone; behind another it waits for its turn. So does what a large set holds."""
    payloads = [b"small", bytes(range(256)) * (LARGE_BYTES // 256), b"next", bytes(70_000)]
    data = raw.message_set(payloads)
    write(workers, topic, data)
    assert [value for _, value in read(client, topic, 0, 1)] == payloads
    (part,) = client.fetch((topic, 0, 0))
    assert [value for _, value in records_of(bytes(part.records))] == [b"small"]
    for _ in range(2):  # whichever is the first in its turn
        nothing, part = client.fetch((topic, 2, 0), (topic, 0, len(raw.entry(b"small"))), limit=1000)
        assert not nothing.records and [value for _, value in records_of(bytes(part.records))] == payloads[1:2]
    large = message.encode_set([bytes([at % 256]) * 1000 for at in range(4000)], 1)
    write(workers, topic, large, 1)
    assert read(client, topic, 0, 1 << 16, partition=1) == reference.as_records(large)


def test_limits_count_what_is_answered(workers: Workers, client: Client, topic: str) -> None:
    """Of a part and of all parts together; those that get nothing are first in their turn later."""
    for partition in range(PARTITIONS):
        write(workers, topic, raw.message_set([b"%d" % partition * 100] * 200), partition)
    every = [(topic, partition, 0) for partition in range(PARTITIONS)]
    (part, *_) = client.fetch(*every, limit=1000)
    assert 800 < len(part.records) <= 1000
    served = set()
    for _ in range(PARTITIONS):
        parts = client.fetch(*every, max_bytes=3000)
        sizes = [len(one.records or b"") for one in parts]
        assert 2500 < sum(sizes) <= 3000
        served |= {one.partition_index for one in parts if one.records}
    assert served == set(range(PARTITIONS))


def test_who_waits_gets_what_comes(workers: Workers, client: Client, topic: str) -> None:
    """Also where nobody has written yet: such a partition is empty, and is there when somebody does."""
    write(workers, topic, raw.entry(b"first"), 1)
    begun = time.monotonic()
    fields = today.fetched((topic, 0, 0), (topic, 1, len(raw.entry(b"first"))), (topic, 2, 0), max_wait=50_000)
    client.socket.sendall(today.request(today.FETCH, 12, fields))
    assert is_silent(client.raw)
    write(workers, topic, raw.entry(b"made"), 2)
    _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
    parts = {part.partition_index: part for response in answer.responses for part in response.partitions}
    assert [parts[number].error_code for number in range(3)] == [0, 0, 0]
    assert records_of(bytes(parts[2].records)) == [(len(raw.entry(b"made")) - 1, b"made")]
    assert (parts[0].high_watermark, bytes(parts[0].records or b"")) == (0, b"")
    assert time.monotonic() - begun < 40
    # and again, now that they are there
    fields = today.fetched((topic, 1, len(raw.entry(b"first"))), max_wait=50_000)
    client.socket.sendall(today.request(today.FETCH, 12, fields))
    assert is_silent(client.raw)
    write(workers, topic, raw.entry(b"second"), 1)
    _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
    assert [value for _, value in records_of(bytes(answer.responses[0].partitions[0].records))] == [b"second"]


def test_who_has_waited_for_long_gets_as_much_as_at_once(workers: Workers, client: Client, topic: str) -> None:
    """What each look found counts once against what an answer may have."""
    entry = raw.entry(b"x" * 10_000)
    write(workers, topic, entry * 90)
    fields = today.fetched((topic, 0, 0), limit=1 << 20, max_wait=20_000, min_bytes=1_000_000)
    looks = workers.count("fetch_looks")
    client.socket.sendall(today.request(today.FETCH, 12, fields))
    for number in range(8):
        wait_until(lambda least=looks + number: workers.count("fetch_looks") > least)
        assert is_silent(client.raw)
        write(workers, topic, raw.entry(b"y"))
    write(workers, topic, entry * 15)
    _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
    (part,) = answer.responses[0].partitions
    values = [value for _, value in records_of(bytes(part.records))]
    assert values[:98] == [b"x" * 10_000] * 90 + [b"y"] * 8


def test_a_wait_for_a_partition_that_is_not_there_ends(workers: Workers, client: Client, topic: str) -> None:
    write(workers, topic, raw.entry(b"x"))
    (part,) = client.fetch((topic, 1, 0), max_wait=50)
    assert (part.error_code, part.high_watermark, bytes(part.records or b"")) == (0, 0, b"")
    assert [client.fetch((topic, 1, offset))[0].error_code for offset in (5, -1)] == [OUT_OF_RANGE] * 2
    assert client.fetch((topic, PARTITIONS, 0))[0].error_code == UNKNOWN_TOPIC


def test_a_wait_for_a_partition_that_goes_before_the_rest_of_its_topic(tmp_path: Path) -> None:
    """Until the rest goes too it is one that nobody has written to, and is looked at as such."""
    with Workers(tmp_path, partitions=PARTITIONS, flusher=False, fetch_max_wait_ms=60_000) as workers:
        with workers.connect() as old:
            for partition in (0, 1):
                assert old.produce_ack("t", partition, raw.entry(b"x")).error == 0
        with Client(workers) as client:
            parts = today.fetched(("t", 0, 0), ("t", 1, 0), max_wait=60_000)
            client.raw.send_raw(today.request(today.FETCH, 12, parts))
            wait_until(lambda: workers.count("held_fetches") == 1)
            workers.wait_still()
            end(workers, "t", 0)
            workers.wait_still()
            assert is_silent(client.raw)
            looks = workers.count("fetch_looks")
            workers.arena.wake_creators()
            wait_until(lambda: workers.count("fetch_looks") > looks)
            end(workers, "t", 1)
            _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
            codes = [part.error_code for found in answer.responses for part in found.partitions]
            assert codes == [UNKNOWN_TOPIC] * 2


@pytest.mark.parametrize("point", ["wait.hold", "wait.hold_nobody"])
@pytest.mark.parametrize("acks", [raw.FLUSHED, raw.APPENDED], ids=["visible", "appended"])
def test_a_partition_that_is_made_while_many_others_are_waited_for(tmp_path: Path, acks: int, point: str) -> None:
    """Between two of the turns that this takes; from then on it is waited for as they are, and is flushed at once."""
    entry = raw.entry(b"x")
    with (
        Workers(tmp_path, processors=2, partitions=2, fetch_max_wait_ms=60_000) as workers,
        workers.connect(1) as old,
        Client(workers) as client,
    ):
        assert old.produce_ack("t", 1, entry, raw.FLUSHED).error == 0
        parts = [("t", 0, 0)] + [("t", 1, len(entry))] * 1000
        fields = today.fetched(*parts, max_wait=60_000, min_bytes=LARGE_BYTES)
        _files.arm(f"{point}@1=slow:200", "test")
        client.raw.send_raw(today.request(today.FETCH, 12, fields))
        wait_until(lambda: workers.count("held_fetches") == 1)
        assert old.produce_ack("t", 0, entry, acks).error == 0
        wait_until(lambda: workers.count("fetch_looks") > len(parts))
        workers.wait_still()
        looks = workers.count("fetch_looks")
        assert old.produce_ack("t", 0, entry, acks).error == 0
        wait_until(lambda: workers.count("fetch_looks") > looks)


def end(workers: Workers, topic: str, partition: int) -> None:
    """The first that the keeper does to delete a partition."""
    (index,) = [view.index for view in workers.arena.views() if (view.topic, view.partition) == (topic, partition)]
    assert workers.arena.create_lock()
    assert end_life(SharedLog.over(workers.arena).appender, index)
    workers.arena.create_unlock()


def test_both_kinds_in_one_fetch(workers: Workers, client: Client, topic: str) -> None:
    new = f"new-{uuid.uuid4().hex}"
    client.make(new)
    assert client.produce((new, 0, batch(b"new")), acks=-1)[0].error_code == 0
    write(workers, topic, raw.entry(b"old"))
    first, second = client.fetch((new, 0, 0), (topic, 0, 0))
    assert [record.value for record in record_batches.records(bytes(first.records))] == [b"new"]
    assert [value for _, value in records_of(bytes(second.records))] == [b"old"]


# -- what cannot be read -----------------------------------------------------------------------------------------------


def test_damage_is_an_error_of_its_partition(
    workers: Workers, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once what is before it has been read; the log says where. What is behind can be read from there."""
    data = raw.message_set([b"%03d" % at * 20 for at in range(50)])
    write(workers, topic, data)
    write(workers, topic, raw.entry(b"other"), 1)
    size = len(data) // 50
    path = workers.directory / f"{topic}-0" / f"{0:020}.kafka"
    with path.open("r+b") as file:
        file.seek(20 * size + 30)
        file.write(b"!")
    for _ in range(2):
        (part,) = client.fetch((topic, 0, 0))
        assert len(records_of(bytes(part.records))) == 20
        with caplog.at_level(logging.ERROR):
            broken, whole = client.fetch((topic, 0, 20 * size), (topic, 1, 0))
        assert (broken.error_code, broken.high_watermark, bytes(broken.records or b"")) == (CORRUPT, -1, b"")
        assert whole.error_code == 0 and len(records_of(bytes(whole.records))) == 1
    assert f"topic='{topic}' partition=0 offset={20 * size} reason=no valid message" in caplog.text
    assert len(read(client, topic, 21 * size)) == 29
    # a length that is wrong, which nobody can walk past: where a valid message is asked for, it is believed
    with path.open("r+b") as file:
        file.seek(30 * size)
        file.write(b"\x7f\xff\xff\xff")
    assert client.fetch((topic, 0, 30 * size))[0].error_code == CORRUPT
    assert len(read(client, topic, 31 * size)) == 19


def test_damage_inside_of_a_set(workers: Workers, client: Client, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """A set that was stored before sets were checked: its own checksum is right."""
    bad = raw.wrapper(raw.entry(b"x", crc=7), 1)
    fine = raw.entry(bytes(len(bad) - 10))
    end = write(workers, topic, raw.entry(b"before") + fine + raw.entry(b"after"))
    path = workers.directory / f"{topic}-0" / f"{0:020}.kafka"
    begin = len(raw.entry(b"before"))
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bad)
    with caplog.at_level(logging.ERROR):
        assert client.fetch((topic, 0, begin))[0].error_code == CORRUPT
    assert "of what it holds is damaged" in caplog.text
    assert [value for _, value in read(client, topic, begin + len(bad))] == [b"after"] and end


def test_a_set_with_more_messages_than_bytes_is_refused_and_says_so(
    workers: Workers, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """0.7's clients may write it, and read it; for today's there are no offsets. They can go on behind it."""
    unfit = raw.wrapper(raw.message_set([b"the same"] * 5000), 1)
    assert len(unfit) < 5000
    data = raw.entry(b"before") + unfit + raw.entry(b"after")
    end = write(workers, topic, data)
    assert [value for _, value in records_of(bytes(client.fetch((topic, 0, 0))[0].records))] == [b"before"]
    begin = len(raw.entry(b"before"))
    with caplog.at_level(logging.ERROR):
        for offset in (begin, begin + 1, begin + len(unfit) - 1):
            assert client.fetch((topic, 0, offset))[0].error_code == FORMAT
    assert f"offset={begin} reason=a compressed set of {len(unfit)} bytes holds 5000 messages" in caplog.text
    assert [value for _, value in read(client, topic, begin + len(unfit))] == [b"after"]
    with workers.connect() as old:
        assert len(raw.deep_payloads(old.read_all(topic, 0))) == 5002 and end == len(data)


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_offsets_by_place_and_by_time(workers: Workers, client: Client, topic: str) -> None:
    """A time leads to the segment that was appended to then or later, and never behind a newer message."""
    before = round(time.time() * 1000) - 20
    data = raw.message_set([b"x" * 100] * 50)
    end = write(workers, topic, data)
    now = round(time.time() * 1000)
    for version in each(today.LIST_OFFSETS):
        assert client.offset(topic, 0, EARLIEST, version).offset == 0
        assert client.offset(topic, 0, LATEST, version).offset == end
    largest = client.offset(topic, 0, LARGEST)
    assert largest.offset == end - 1 and before <= largest.timestamp <= now + 20
    found = client.offset(topic, 0, before)
    assert found.offset == 0 and found.timestamp >= before
    assert found.leader_epoch == largest.leader_epoch == 0
    assert client.offset(topic, 0, now + 60_000).offset == -1
    LogManager(workers.processors[0].config, workers.arena).create_partition(topic, 2, count=PARTITIONS)
    for partition in (1, 2):  # nobody has written to either, and one is there
        for when, offset in ((EARLIEST, 0), (EARLIEST_HERE, 0), (LATEST, 0), (LARGEST, -1), (before, -1)):
            empty = client.offset(topic, partition, when)
            assert (empty.error_code, empty.offset, empty.timestamp) == (0, offset, -1)
    assert client.offset(topic, PARTITIONS, LATEST).error_code == UNKNOWN_TOPIC


def test_a_segment_is_as_new_as_its_newest_append_though_the_clock_was_set_back(tmp_path: Path) -> None:
    with Workers(tmp_path, makes_topics=False) as workers, Client(workers) as client:
        segments = [(0, 2000, 1000), (50, 1500, 1600)]
        assert workers.arena.create_lock()
        workers.arena.add(SlotSpec("t", 0, 0, 0, 1, segments=segments, log_end=100, **LIMITS))  # type: ignore[arg-type]
        workers.arena.create_unlock()
        for when, offset, timestamp in ((2000, 0, 2000), (1700, 0, 2000), (2001, -1, -1), (LARGEST, 99, 1600)):
            found = client.offset("t", 0, when)
            assert (found.offset, found.timestamp) == (offset, timestamp), when


def test_the_end_is_a_place_to_begin_whatever_comes_then(workers: Workers, client: Client, topic: str) -> None:
    """A consumer that asks for the end and begins there is served, when the log has gone on, without a search."""
    end = write(workers, topic, raw.message_set([b"x"] * 100))
    assert client.offset(topic, 0, LATEST).offset == end
    write(workers, topic, raw.message_set([b"y"] * 3))
    assert [value for _, value in read(client, topic, end)] == [b"y"] * 3


def test_who_has_met_the_end_goes_on_there_without_a_search(workers: Workers, topic: str) -> None:
    """Each reader, though another one has met an earlier end and nobody has read what lies between the two."""
    end = write(workers, topic, raw.message_set([b"x"] * 100))
    with Client(workers) as first, Client(workers) as second:
        assert not first.fetch((topic, 0, end), max_wait=0)[0].records
        end = write(workers, topic, raw.message_set([b"y"] * 3))
        assert not second.fetch((topic, 0, end), max_wait=0)[0].records
        write(workers, topic, raw.message_set([b"z"] * 3))
        begun = workers.processors[0].loop.job_steps
        assert second.fetch((topic, 0, 0))[0].records
        known = workers.processors[0].loop.job_steps
        (part,) = second.fetch((topic, 0, end))
        assert [value for _, value in records_of(bytes(part.records))] == [b"z"] * 3
        assert workers.processors[0].loop.job_steps - known == known - begun


def test_what_retention_dropped_is_out_of_range(workers: Workers, client: Client, topic: str) -> None:
    one = raw.message_set([bytes(100_000)] * 20)
    for _ in range(6):
        end = write(workers, topic, one)
    segments = sorted((workers.directory / f"{topic}-0").glob("*.kafka"))
    assert len(segments) > 1
    second = int(segments[1].stem)
    values = read(client, topic)
    assert len(values) == 120
    assert [one for one in read(client, topic, second)] == [one for one in values if one[0] >= second] and end


def test_other_requests_after_a_thread_has_read(workers: Workers, client: Client, topic: str) -> None:
    """What a job has pinned is let go once: the next job of the connection stands where that one did."""
    write(workers, topic, raw.wrapper(raw.message_set([b"x"] * 9), 1))
    for _ in range(3):
        assert client.fetch((topic, 0, 0))[0].error_code == 0
        assert client.make(f"new-{uuid.uuid4().hex}")[0].error_code == 0
    workers.wait_still()
    assert workers.held()["pins"] == 0


# -- what else they are told -------------------------------------------------------------------------------------------


def test_metadata_shows_topics_as_kafka_has_them(workers: Workers, client: Client, topic: str) -> None:
    """With all the partitions that they may have and an id; the same whoever asks, and however often."""
    write(workers, topic, raw.entry(b"x"), 1)
    (found,) = client.make(topic)
    assert (found.error_code, found.name, found.is_internal) == (0, topic, False)
    assert [part.partition_index for part in found.partitions] == list(range(PARTITIONS))
    assert {(part.leader_id, part.leader_epoch, part.error_code) for part in found.partitions} == {(0, 0, 0)}
    assert found.topic_id is not None and found.topic_id.int
    write(workers, topic, raw.entry(b"x"), 0)
    assert client.make(topic) == [found]
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    every = client.ask(today.METADATA, 12, topics=None, **fields).topics
    assert found in every
    by_id = [{"topic_id": found.topic_id, "name": None}]
    assert client.ask(today.METADATA, 12, topics=by_id, **fields).topics == (found,)


def test_the_longest_name_that_kafka_has_is_shown(workers: Workers, client: Client) -> None:
    write(workers, "x" * 249, raw.entry(b"x"))
    assert client.make("x" * 249)[0].error_code == 0


@pytest.mark.parametrize("name", ["a b", "\u00e9", "x" * 250, "a:b", "__mine"])
def test_names_that_kafka_has_not_stay_hidden(workers: Workers, client: Client, name: str) -> None:
    if name.startswith("__"):  # only found at a start
        assert workers.arena.create_lock()
        words = {"format": 0, "created_ms": 1, "segments": [(0, 1, 0)], "log_end": 0, "topic_id": b"m" * 16}
        workers.arena.add(SlotSpec(name, 0, 0, **words, **LIMITS))  # type: ignore[arg-type]
        workers.arena.create_unlock()
    else:
        write(workers, name, raw.entry(b"x"))
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    every = client.ask(today.METADATA, 12, topics=None, **fields).topics
    assert name not in {topic.name for topic in every}
    (topic_id,) = {view.topic_id for view in workers.arena.views() if view.topic == name}
    by_id = [{"topic_id": uuid.UUID(bytes=topic_id), "name": None}]
    assert client.ask(today.METADATA, 12, topics=by_id, **fields).topics[0].error_code == UNKNOWN_ID
    asked = [{"topic_id": None, "name": name}]
    (found,) = client.ask(today.METADATA, 12, topics=asked, **fields).topics
    assert found.error_code in (UNKNOWN_TOPIC, INVALID_TOPIC) and found.partitions == ()
    assert client.fetch((name, 0, 0))[0].error_code == FORMAT
    assert client.offset(name, 0, LATEST).error_code == FORMAT


@pytest.mark.parametrize("version", each(today.PRODUCE))
def test_todays_producers_are_told_why_they_cannot(workers: Workers, client: Client, topic: str, version: int) -> None:
    """In words from version 8 on; nothing is stored, of an idempotent producer neither."""
    end = write(workers, topic, raw.entry(b"x"))
    numbered = record_batches.build(
        [record_batches.Record(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0
    )
    for data in (batch(b"y"), numbered):
        (told,) = client.produce((topic, 0, data), version=version, acks=-1)
        assert told.error_code == FORMAT
        if version >= 8:
            assert "a topic of Kafka 0.7" in told.error_message
    assert client.offset(topic, 0, LATEST).offset == end


# -- who goes away -----------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_readers_that_go(workers: Workers, topic: str) -> None:
    """While a thread converts for them, and while they wait, also for a partition that is not there."""
    write(workers, topic, message.encode_set([bytes([at % 256]) * 1000 for at in range(4000)], 1))
    with Client(workers) as client:
        client.fetch((topic, 0, 0))
    workers.wait_still()
    before = workers.held()
    for parts in (((topic, 0, 0),), ((topic, 0, 0), (topic, 1, 0)), ((topic, 1, 0),)):
        for _ in range(3):
            with Client(workers) as client:
                fields = today.fetched(*parts, max_wait=50_000, min_bytes=1 << 30)
                client.socket.sendall(today.request(today.FETCH, 12, fields))
    workers.wait_held(before)


def test_many_readers_of_one_log(workers: Workers, topic: str) -> None:
    """Each at its own place, all in one processor: they get what they would get alone."""
    source = random.Random(9)
    data = b"".join(sample(seed) for seed in range(3)) + raw.message_set(
        [source.randbytes(source.randrange(400)) for _ in range(3000)]
    )
    write(workers, topic, data)
    expected = reference.as_records(data)
    assert expected is not None
    clients = [Client(workers) for _ in range(12)]
    places = [0] * len(clients)
    found: list[list[Any]] = [[] for _ in clients]
    try:
        while any(place < len(data) for place in places):
            for number, client in enumerate(clients):
                fields = today.fetched((topic, 0, places[number]), max_wait=0, limit=source.randrange(1, 90_000))
                client.socket.sendall(today.request(today.FETCH, 12, fields))
            for number, client in enumerate(clients):
                _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
                part = answer.responses[0].partitions[0]
                if part.records:
                    found[number] += records_of(bytes(part.records))
                    places[number] = BatchHeader.parse(bytes(part.records)).next_offset
    finally:
        for client in clients:
            client.__exit__()
    assert all(one == expected for one in found)


def test_a_wait_goes_on_where_its_partition_lives_next(tmp_path: Path) -> None:
    """Nothing else wakes whoever waits for the slot that it has left."""
    entry = raw.entry(b"x")
    spec = SlotSpec("t", 0, 0, 0, 1, segments=[(0, 1, 0)], log_end=len(entry), **LIMITS)  # type: ignore[arg-type]
    with Workers(tmp_path, partitions=1, flusher=False, fetch_max_wait_ms=60_000) as workers, Client(workers) as client:
        arena, log = workers.arena, SharedLog.over(workers.arena)
        with workers.connect() as old:
            assert old.produce_ack("t", 0, entry).error == 0 and log.flush() == 0
        fields = today.fetched(("t", 0, len(entry)), max_wait=60_000)
        client.raw.send_raw(today.request(today.FETCH, 12, fields))
        wait_until(lambda: workers.count("held_fetches") == 1)
        workers.wait_still()
        assert arena.create_lock()
        try:
            assert end_life(log.appender, 0, True)
            workers.wait_still()
            assert arena.add(spec) == 1
            arena.succeed(0)
            workers.wait_still()
            assert log.append(entry, slot=1) == 0 and log.flush(1) == 0
            _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
        finally:
            arena.create_unlock()
        (part,) = (part for found in answer.responses for part in found.partitions)
        assert part.error_code == 0 and part.records


def test_a_wait_at_a_topic_of_07_goes_on_at_one_of_batches_that_has_its_name_next(tmp_path: Path) -> None:
    """It is deleted, and the other one made, between two looks of one fetch."""
    with Workers(tmp_path, partitions=1, flusher=False, fetch_max_wait_ms=60_000) as workers, Client(workers) as client:
        arena, log = workers.arena, SharedLog.over(workers.arena)
        old = LogManager(workers.processors[0].config, arena).create_partition("t", 0, count=1)
        fields = today.fetched(("t", 0, 0), max_wait=60_000)
        client.raw.send_raw(today.request(today.FETCH, 12, fields))
        wait_until(lambda: workers.count("held_fetches") == 1)
        workers.wait_still()

        def end() -> None:
            assert arena.create_lock()
            end_life(log.appender, old)

        assert in_child(end, "life.announced@1=kill") == -signal.SIGKILL  # who waits is not woken
        arena.wake_all()
        wait_until(lambda: arena.is_past(old))
        assert arena.create_lock()
        (tmp_path / "t-0").rename(tmp_path / "gone")
        arena.free(old)
        arena.create_unlock()
        with Client(workers) as other:
            assert other.make("t")[0].error_code == 0
            assert other.produce(("t", 0, batch(b"new")), acks=1)[0].error_code == 0
        (slot,) = (view.index for view in arena.views())
        assert log.flush(slot) == 0
        arena.end_incarnation(FLUSHER)
        arena.wake_all()
        _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
        (part,) = (part for found in answer.responses for part in found.partitions)
        assert (part.error_code, values_of(part)) == (0, [(0, b"new")])
