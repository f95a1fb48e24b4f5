"""PRODUCE of today's protocol: what is stored, what is refused and in which words, at which time it is answered."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from fastlog import record_batches
from tests.harness import today
from tests.harness.today_client import (
    CODECS,
    LARGEST,
    LATEST,
    RECORDS,
    REFUSED,
    ZSTD,
    Client,
    batch,
    damaged,
    make_with,
    rewritten,
    values_of,
)
from tests.harness.workers import Workers, drain


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {"partitions_by_topic": {"two": 2}, "fetch_max_wait_ms": 60_000, "max_inflated_bytes": 1 << 22}
    with Workers(tmp_path_factory.mktemp("log"), slots=256, **settings) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        yield connected


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 3000])
def test_compressed_batches(workers: Workers, client: Client, codec: str, count: int) -> None:
    """Small ones are looked into at once, large ones by a thread; what is in them does not change."""
    topic = f"codec-{codec}-{count}"
    client.make(topic)
    before = workers.count("inflated_off_loop")
    values = [b"%d" % number * (100 if CODECS[codec] else 50) for number in range(count)]
    data = batch(*values, codec=CODECS[codec])
    (told,) = client.produce((topic, 0, data), acks=-1)
    assert (told.error_code, told.base_offset) == (0, 0)
    assert (workers.count("inflated_off_loop") > before) == (codec != "none" and count == 3000)
    (found,) = client.fetch((topic, 0, 0), max_bytes=1 << 30, limit=1 << 30)
    assert bytes(found.records)[61:] == data[61:]
    assert client.offset(topic, 0, LARGEST).timestamp == 1000


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_largest_time_that_is_misstated_is_put_right(client: Client, codec: str) -> None:
    """As Kafka does: consumers find records by it."""
    topic = f"misstated-{codec}"
    client.make(topic)
    data = bytearray(record_batches.build(RECORDS, codec=CODECS[codec]))
    struct.pack_into(">q", data, 35, 9_999_999)
    struct.pack_into(">I", data, 17, record_batches.crc32c(bytes(data[21:])))
    assert client.produce((topic, 0, bytes(data)), acks=-1)[0].error_code == 0
    (found,) = client.fetch((topic, 0, 0))
    (header,) = [header for header, _ in record_batches.batches(bytes(found.records))]
    assert header.max_timestamp == 3000
    assert list(record_batches.records(bytes(found.records)))
    assert (client.offset(topic, 0, LARGEST).timestamp, client.offset(topic, 0, LARGEST).offset) == (3000, 1)


def test_parts_of_one_produce_have_results_of_their_own(client: Client) -> None:
    client.make("two", "mixed")
    start = client.offset("two", 1, LATEST).offset
    parts = [
        ("two", 1, batch(b"x")),
        ("none", 0, batch(b"x")),
        ("two", 9, batch(b"x")),
        ("two", -1, batch(b"x")),
        ("mixed", 0, damaged(batch(b"x"), 61)),
        ("two", 1, batch(b"y", b"z")),
        ("mixed", 0, None),
        ("__own", 0, batch(b"x")),
    ]
    told = client.produce(*parts, acks=-1)
    assert [(part.index, part.error_code, part.base_offset) for part in told] == [
        (1, 0, start),
        (0, 3, -1),
        (9, 3, -1),
        (-1, 3, -1),
        (0, 2, -1),
        (1, 0, start + 1),
        (0, 87, -1),
        (0, 17, -1),
    ]
    assert values_of(client.fetch(("two", 1, start))[0]) == [(start, b"x"), (start + 1, b"y"), (start + 2, b"z")]


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing(
    client: Client, caplog: pytest.LogCaptureFixture, data: bytes, code: int
) -> None:
    client.make("refused")
    start = client.offset("refused", 0, LATEST).offset
    for version in (3, 8, 11):
        (told,) = client.produce(("refused", 0, data), version=version)
        assert (told.error_code, told.base_offset) == (code, -1)
        if version >= 8:
            assert told.error_message
            assert told.record_errors == ()  # it is refused as a whole
    assert client.offset("refused", 0, LATEST).offset == start


REASONS = {
    "half of it": "the length that the batch tells",
    "less than a head": "the length that the batch tells",
    "magic 1": "an older format than magic 2",
    "another checksum": "the checksum",
    "no record": "the batch tells of no record",
    "more records than offsets": "another number of records than of offsets",
    "a control batch": "a codec that nobody has, or a control or transactional batch",
    "a producer below -1": "producer id, epoch and sequence number do not go together",
    "the broker's time": "the time of its append",
}


@pytest.mark.parametrize(("name", "reason"), REASONS.items(), ids=REASONS)
def test_the_answer_says_what_is_wrong_with_a_batch(client: Client, name: str, reason: str) -> None:
    """Each fault by its own words: of two that have one error code nobody else tells which it was."""
    client.make("refused")
    (told,) = client.produce(("refused", 0, REFUSED[name][0]))
    assert reason in told.error_message


def test_the_log_names_where_what_cannot_be_decompressed_was_for(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.make("one", "another")
    bad = REFUSED["records that are not gzip"][0]
    fine = batch(b"x", codec=CODECS["gzip"])  # what was found of one says nothing of the next
    assert [told.error_code for told in client.produce(("one", 0, fine), ("another", 0, bad))] == [0, 87]
    (line,) = [each.getMessage() for each in caplog.records if "invalid compressed" in each.getMessage()]
    assert "topic='another' partition=0" in line and "'one'" not in line


def test_what_stands_beside_no_producer_means_nothing(client: Client) -> None:
    """sarama, franz-go and kafkajs leave zeroes there; whatever it is, each batch is stored and followed by nobody."""
    client.make("unnumbered")
    sent = [
        rewritten(rewritten(batch(b"x"), 51, ">h", epoch), 53, ">i", sequence)
        for epoch, sequence in ((0, 0), (0, 0), (-1, 0), (0, -1), (5, 9), (5, 9), (-7, -7))
    ]
    answers = [client.produce(("unnumbered", 0, data))[0] for data in sent]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, number) for number in range(len(sent))]


def test_zstd_is_for_those_who_know_it(client: Client) -> None:
    client.make("zstd")
    data = batch(b"x", codec=ZSTD)
    assert [client.produce(("zstd", 0, data), version=version)[0].error_code for version in (6, 7)] == [76, 0]


def test_what_a_produce_cannot_ask_for(client: Client) -> None:
    client.make("asked")
    assert client.produce(("asked", 0, batch(b"x")), acks=2)[0].error_code == 21
    assert client.produce(("asked", 0, batch(b"x")), transactional_id="t")[0].error_code == 53
    assert client.offset("asked", 0, LATEST).offset == 0


def test_without_acks_there_is_no_answer(client: Client) -> None:
    """The next answer is that to the next request; and all is there, in order."""
    client.make("silent")
    for number in range(10):
        fields = today.produced(("silent", 0, batch(b"%d" % number)), acks=0)
        client.socket.sendall(today.request(today.PRODUCE, 9, fields))
    assert client.offset("silent", 0, LATEST).offset == 10
    assert [value for _, value in values_of(client.fetch(("silent", 0, 0))[0])] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("data", [damaged(batch(b"x"), 61), None])
def test_without_acks_an_error_ends_the_connection(
    workers: Workers, client: Client, caplog: pytest.LogCaptureFixture, data: bytes | None
) -> None:
    """As in Kafka: nothing else would tell the producer. What came before is stored."""
    client.make("broken")
    start = client.offset("broken", 0, LATEST).offset
    with Client(workers) as producer:
        for one in (batch(b"a"), data, batch(b"b")):
            producer.socket.sendall(today.request(today.PRODUCE, 9, today.produced(("broken", 0, one), acks=0)))
        assert drain(producer.raw) == b""
    assert client.offset("broken", 0, LATEST).offset == start + 1


def test_answers_to_produces_come_in_order_whatever_they_wait_for(client: Client) -> None:
    """Those that wait for the disk keep those behind them, and requests of other kinds too."""
    client.make("order", "two")
    requests = b""
    for number in range(200):
        acks, topic = (-1, "order") if number % 3 else (1, "two")
        fields = today.produced((topic, 0, batch(b"%d" % number)), acks=acks)
        requests += today.request(today.PRODUCE, 9, fields, correlation=number)
        if number % 50 == 49:
            requests += today.request(
                today.LIST_OFFSETS, 7, today.listed(("order", 0, LATEST)), correlation=1000 + number
            )
    client.socket.sendall(requests)
    base = -1
    for number in range(200):
        correlation, found = today.decoded(today.PRODUCE, 9, today.answer_of(client.socket))
        assert correlation == number
        told = found.responses[0].partition_responses[0]
        assert told.error_code == 0
        if number % 3:
            assert told.base_offset == base + 1
            base += 1
        if number % 50 == 49:
            correlation, listing = today.decoded(today.LIST_OFFSETS, 7, today.answer_of(client.socket))
            assert correlation == 1000 + number
            assert listing.topics[0].partitions[0].offset == base + 1


def test_a_batch_larger_than_a_run_is_written_from_where_it_was_received(client: Client) -> None:
    client.make("large", "two")
    large = batch(bytes(900_000))
    start = client.offset("two", 0, LATEST).offset
    told = client.produce(("two", 0, batch(b"a")), ("large", 0, large), ("two", 0, batch(b"b")), ("large", 0, large))
    assert [part.error_code for part in told] == [0, 0, 0, 0]
    assert [part.base_offset for part in told] == [start, 0, start + 1, 1]
    (found,) = client.fetch(("large", 0, 1), max_wait=10_000, limit=10)
    assert [len(value or b"") for _, value in values_of(found)] == [900_000]
    # and those that fill a run together, before the next one has begun
    told = client.produce(*[("large", 0, batch(bytes(200_000)))] * 5)
    assert [(part.error_code, part.base_offset) for part in told] == [(0, 2 + number) for number in range(5)]


def test_a_connection_may_produce_without_end(client: Client) -> None:
    """More than it may be owed at once: what was answered is owed no more."""
    request = today.request(today.PRODUCE, 9, today.produced(("none", 0, b"x")))
    client.socket.sendall(request)
    answer = today.answer_of(client.socket)
    for _ in range(10):
        client.socket.sendall(request * 500)
        assert client.raw.recv_exactly(500 * len(answer)) == answer * 500


def test_records_get_the_time_of_their_append_where_their_topic_says_so(workers: Workers, client: Client) -> None:
    make_with(workers, "append-time", append_time=True)
    before = round(time.time() * 1000) - 20  # the clock for files is a coarse one
    (told,) = client.produce(("append-time", 0, batch(b"x", codec=1, time_ms=5)), acks=-1)
    assert told.error_code == 0
    stamped = client.offset("append-time", 0, LARGEST).timestamp
    assert before <= stamped <= time.time() * 1000
    (found,) = client.fetch(("append-time", 0, 0))
    (record,) = record_batches.records(bytes(found.records))
    assert (record.timestamp, record.value) == (stamped, b"x")
    assert told.log_append_time.timestamp() * 1000 == pytest.approx(stamped)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_time_more_than_an_hour_ahead_is_refused(workers: Workers, client: Client, codec: str) -> None:
    """It would keep its segment for good; where records get the time of their append, theirs is no matter."""
    client.make("ahead")
    make_with(workers, f"ahead-{codec}", append_time=True)
    now = round(time.time() * 1000)
    late = batch(b"x", codec=CODECS[codec], time_ms=now + 3_700_000)
    assert client.produce(("ahead", 0, late))[0].error_code == 32
    assert client.produce((f"ahead-{codec}", 0, late))[0].error_code == 0
    assert client.produce(("ahead", 0, batch(b"x", codec=CODECS[codec], time_ms=now + 3_500_000)))[0].error_code == 0


def test_a_topic_has_its_own_bound_for_batches(workers: Workers, client: Client) -> None:
    data = batch(bytes(50))
    make_with(workers, "bounded", max_message_bytes=len(data))
    assert [client.produce(("bounded", 0, one))[0].error_code for one in (data, batch(bytes(51)))] == [0, 10]
