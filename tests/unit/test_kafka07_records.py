"""Producers of 0.7, and fastlog's own of messages, at topics of record batches; and consumers of 0.7 at the same."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from fastlog import message, record_batches
from fastlog.log.formats import _batches
from fastlog.record_batches import BatchHeader, Record
from tests.harness import raw_client as raw
from tests.harness.today_client import Client, make_with
from tests.harness.workers import Workers

WRONG_PARTITION, INVALID_MESSAGE, TOO_LARGE = 3, 2, 102
MOST_PAYLOAD = 1 << 20
BATCH_BYTES = 1 << 19
CODECS = {"gzip": 1, "snappy": 2}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {
        "max_message_bytes": MOST_PAYLOAD,
        "max_batch_bytes": BATCH_BYTES,
        "max_inflated_bytes": 1 << 22,
        "fetch_max_wait_ms": 60_000,
        "flush_interval_ms": 50,
    }
    with Workers(tmp_path_factory.mktemp("log"), slots=256, **settings) as running:
        yield running


@pytest.fixture
def old(workers: Workers) -> Iterator[raw.RawClient]:
    with workers.connect() as connected:
        yield connected


@pytest.fixture
def topic(workers: Workers, request: pytest.FixtureRequest) -> str:
    """A topic of record batches with one partition."""
    name = f"t{uuid.uuid4().hex}"
    make_with(workers, name)
    return name


def stored(workers: Workers, topic: str, partition: int = 0) -> list[tuple[BatchHeader, list[Record]]]:
    """The batches in the files of a topic, each checked as strictly as a produced one."""
    found = []
    for path in sorted(workers.directory.glob(f"{topic}-{partition}/*.log")):
        for header, data in record_batches.batches(path.read_bytes()):
            if not header.is_log_append_time:
                assert _batches.validate(bytes(data))[6] == 0
            found.append((header, list(record_batches.records(bytes(data)))))
    return found


def values(workers: Workers, topic: str) -> list[bytes | None]:
    return [record.value for _, records in stored(workers, topic) for record in records]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_set_becomes_one_batch(workers: Workers, old: raw.RawClient, topic: str, magic: int) -> None:
    """Null keys, no headers, the time of now for each; offsets go on from set to set."""
    before = round(time.time() * 1000) - 20  # the clock for files is a coarse one
    payloads = [b"one", b"", b"three" * 50]
    old.produce(topic, 0, raw.message_set(payloads, magic))
    told = old.produce_ack(topic, 0, raw.message_set([b"four"], magic), raw.FLUSHED)
    assert (told.error, told.partition, told.base_offset, told.next_offset) == (0, 0, 3, 4)
    (first, records), (second, _) = stored(workers, topic)
    assert [record[:2] for record in records] == [(None, payload) for payload in payloads]
    assert [(record.offset, record.headers) for record in records] == [(0, ()), (1, ()), (2, ())]
    assert {record.timestamp for record in records} == {first.max_timestamp}
    assert before <= first.max_timestamp <= round(time.time() * 1000)
    assert (first.attributes, first.producer_id, first.producer_epoch, first.base_sequence) == (0, -1, -1, -1)
    assert (second.base_offset, second.leader_epoch) == (3, 0)
    with Client(workers) as client:
        (found,) = client.fetch((topic, 0, 2))
        assert found.high_watermark == 4 and len(found.records) > 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("nested", [False, True])
def test_compressed_sets_are_opened_and_compressed_again(
    workers: Workers, old: raw.RawClient, topic: str, codec: str, nested: bool
) -> None:
    """In their order with what stands beside them; small ones and large ones, which a thread opens."""
    number = CODECS[codec]
    inner = [b"compressible " * 4 + b"%d" % at for at in range(40)]
    wrapped = raw.wrapper(raw.message_set(inner, 0), number)
    if nested:
        wrapped = raw.wrapper(raw.entry(b"before") + wrapped + raw.entry(b"after"), 3 - number)
    sent = [*inner] if not nested else [b"before", *inner, b"after"]
    old.produce(topic, 0, raw.entry(b"plain") + wrapped + raw.entry(b"last"))
    large = [bytes([at % 251]) * 1000 for at in range(3000)]
    assert old.produce_ack(topic, 0, message.encode_set(large, number), raw.FLUSHED).error == 0
    assert values(workers, topic) == [b"plain", *sent, b"last", *large]
    headers = [header for header, _ in stored(workers, topic)]
    assert [header.base_offset for header in headers] == sorted(header.base_offset for header in headers)
    assert {header.codec for header in headers} == ({number} if not nested else {number, 3 - number})
    # of what is stored no batch takes more than it may, decompressed too
    assert len(headers) > 3 and all(header.size_bytes <= BATCH_BYTES for header in headers)


@pytest.mark.parametrize("size", [70_000, 300_000, 2_000_000])
def test_large_sets_are_converted_by_a_thread(workers: Workers, old: raw.RawClient, topic: str, size: int) -> None:
    """As a whole and in order, with the time of now; what is larger than a run stands where it was made."""
    before = round(time.time() * 1000) - 20
    sent = [b"%08d" % at * 40 for at in range(size // 330)]
    old.produce(topic, 0, raw.message_set(sent))
    told = old.produce_ack(topic, 0, raw.entry(b"end"), raw.FLUSHED)
    assert told.base_offset == len(sent)
    assert values(workers, topic) == [*sent, b"end"]
    sizes = [header.size_bytes for header, _ in stored(workers, topic)]
    assert max(sizes) <= BATCH_BYTES and len(sizes) == 1 + -(-size // BATCH_BYTES)
    times = [record.timestamp for _, records in stored(workers, topic) for record in records]
    assert before <= min(times) <= max(times) <= round(time.time() * 1000)


def test_a_message_that_no_batch_may_hold_is_dropped(workers: Workers, old: raw.RawClient) -> None:
    """As one above max.message.size is: 0.7's connection goes on, whoever waits for an answer is told."""
    name = f"small-{uuid.uuid4().hex}"
    make_with(workers, name, max_message_bytes=1000)
    fits = bytes(1000 - 61 - 9)
    for data in (raw.entry(fits + b"x"), raw.message_set([b"a", bytes(2000), b"b"]), raw.entry(bytes(100_000))):
        old.produce(name, 0, data)
        assert old.produce_ack(name, 0, data).error == TOO_LARGE
    assert old.produce_ack(name, 0, raw.entry(fits), raw.FLUSHED).next_offset == 1
    assert old.produce_ack(name, 0, raw.entry(bytes(MOST_PAYLOAD + 1))).error == TOO_LARGE
    # sets that take several batches are in the log as a whole
    many = [b"%d" % at * 30 for at in range(200)]
    assert old.produce_ack(name, 0, raw.message_set(many), raw.FLUSHED).next_offset == 201
    assert values(workers, name) == [fits, *many]
    assert all(header.size_bytes <= 1000 for header, _ in stored(workers, name))


@pytest.mark.parametrize(
    "data",
    [
        raw.entry(b"x", crc=1),
        raw.entry(b"x", magic=2),
        raw.entry(b"no gzip", attributes=1),
        raw.wrapper(raw.message_set([b"x" * 9])[:-1], 1),
    ],
    ids=["checksum", "magic", "no gzip", "cut inside"],
)
def test_damage_ends_the_connection_and_leaves_nothing(workers: Workers, topic: str, data: bytes) -> None:
    with workers.connect() as old:
        assert old.produce_ack(topic, 0, data).error == INVALID_MESSAGE
        old.produce(topic, 0, raw.entry(b"fine"))
        old.produce(topic, 0, data)
        assert old.is_closed()
    with workers.connect() as again:
        assert again.produce_ack(topic, 0, b"", raw.FLUSHED).next_offset == 1
    assert values(workers, topic) == [b"fine"]


def test_a_cut_last_message_is_left_out(workers: Workers, old: raw.RawClient, topic: str) -> None:
    """As 0.7 does, without a word."""
    old.produce(topic, 0, raw.entry(b"whole") + raw.entry(b"cut")[:-1])
    assert old.produce_ack(topic, 0, raw.entry(b"next"), raw.FLUSHED).base_offset == 1
    assert values(workers, topic) == [b"whole", b"next"]


def test_both_kinds_in_one_request(workers: Workers, old: raw.RawClient, topic: str) -> None:
    """Each part as if it had come alone; a broker that is to choose does."""
    other = f"old-{uuid.uuid4().hex}"
    sets = [(topic, 0, raw.entry(b"a")), (other, 0, raw.entry(b"b")), (topic, -1, raw.message_set([b"c"] * 9, 1, 1))]
    sets.append((topic, 0, raw.message_set([b"d" * 100] * 4000)))
    old.send_raw(raw.multiproduce_frame(sets))
    assert old.produce_ack(topic, 0, raw.entry(b"e"), raw.FLUSHED).error == 0
    assert values(workers, topic) == [b"a", *[b"c"] * 9, *[b"d" * 100] * 4000, b"e"]
    old.wait_visible(other, 0, len(raw.entry(b"b")))
    assert raw.deep_payloads(old.read_all(other, 0)) == [b"b"]


def test_what_has_no_such_partition_is_refused(workers: Workers, topic: str) -> None:
    """A partition is not made by its first message there; the broker's own topics are nobody's."""
    make_with(workers, "__internal")
    for name, partition in ((topic, 1), (topic, -2), ("__internal", 0)):
        with workers.connect() as old:
            assert old.produce_ack(name, partition, raw.entry(b"x")).error == WRONG_PARTITION
            old.produce(name, partition, raw.entry(b"x"))
            assert old.is_closed()
    assert not list(workers.directory.glob(f"{topic}-1"))
    assert values(workers, "__internal") == []


def test_a_topic_that_stamps_its_records_does(workers: Workers, old: raw.RawClient) -> None:
    name = f"stamped-{uuid.uuid4().hex}"
    make_with(workers, name, append_time=True)
    assert old.produce_ack(name, 0, raw.message_set([b"a", b"b"]), raw.FLUSHED).error == 0
    ((header, records),) = stored(workers, name)
    assert header.is_log_append_time and {record.timestamp for record in records} == {header.max_timestamp}


def test_consumers_of_07_are_told(workers: Workers, old: raw.RawClient, topic: str) -> None:
    """With 0.7's code, by every request that reads; METADATA does not list such a topic."""
    assert old.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
    assert old.fetch(topic, 0, 0).error == WRONG_PARTITION
    assert [part.error for part in old.multifetch([(topic, 0, 0, 100), ("nobody", 0, 0, 100)])] == [WRONG_PARTITION, 0]
    assert old.held_fetch(topic, 0, 0).error == WRONG_PARTITION
    assert old.ask(raw.offsets_frame(topic, 0, raw.LATEST, 1)).error == WRONG_PARTITION
    assert topic not in old.metadata().topics


def test_who_goes_away_meanwhile_leaves_nothing_behind(workers: Workers, topic: str) -> None:
    """Sets that a thread converts, of connections that close before it has."""
    with workers.connect() as old:
        assert old.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
    workers.wait_still()
    before = workers.held()
    data = raw.produce_frame(topic, 0, raw.message_set([bytes([at % 251]) * 1000 for at in range(3000)], 1, 1))
    for end in (len(data), len(data) - 1):
        with workers.connect() as old:
            old.send_raw(data[:end])
    workers.wait_held(before)
