"""Which record of a refused batch the answer to its produce names, and with which words.

Kafka's own producer fails that record with these words, and the others of the batch as its neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fastlog import batch_codecs
from fastlog.batch_codecs import GZIP, NONE, ZSTD
from tests.harness import raw_batches, raw_records, today
from tests.harness.raw_records import Record, encode_fields, sized, varint
from tests.harness.today_client import LATEST, Client, each
from tests.harness.workers import Workers

INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
NAMED_SINCE = 8
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log"), slots=16) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[Client]:
    with Client(workers) as connected:
        connected.make("t")
        yield connected


def packed(plain: bytes, count: int, codec: int, **fields: int) -> bytes:
    """A batch that says it has so many records; these are their bytes."""
    payload = batch_codecs.compress(codec, plain) if codec else plain
    made = raw_batches.Batch(
        attributes=codec, last_offset_delta=count - 1, record_count=count, payload=payload, **fields
    )
    return made.encode()


def good(delta: int, value: bytes = b"value") -> bytes:
    return sized(encode_fields(Record(1000, b"k", value), delta))


HEAD = b"\0" + varint(1000)
LENGTH, FIELD, OFFSET, VARINT = "longer or shorter", "length of a field", "offset deltas", "does not fit its type"
DAMAGED: dict[str, tuple[bytes, str]] = {
    "null": (varint(-1), LENGTH),
    "of no bytes": (varint(0), LENGTH),
    "another offset delta": (good(3), OFFSET),
    "a key of -2 bytes": (sized(HEAD + varint(2) + varint(-2) + sized(b"v") + varint(0)), FIELD),
    "a value of -2 bytes": (sized(HEAD + varint(2) + sized(b"k") + varint(-2) + varint(0)), FIELD),
    "a key longer than the record": (sized(HEAD + varint(2) + varint(9) + sized(b"v") + varint(0)), LENGTH),
    "a value longer than the record": (sized(HEAD + varint(2) + sized(b"k") + varint(9) + varint(0)), LENGTH),
    "fewer than no headers": (sized(HEAD + varint(2) + sized(b"k") + sized(b"v") + varint(-1)), FIELD),
    "headers that are not there": (sized(HEAD + varint(2) + sized(b"k") + sized(b"v") + varint(1)), LENGTH),
    "a header without a key": (sized(HEAD + varint(2) + sized(None) * 2 + varint(1) + sized(None) * 2), FIELD),
    "a byte behind its fields": (sized(encode_fields(Record(1000, b"k", b"v"), 2) + b"\0"), LENGTH),
    "a number of 33 bits": (sized(HEAD + b"\xff\xff\xff\xff\x1f" + sized(b"k") + sized(b"v") + varint(0)), VARINT),
    "a length of 33 bits": (b"\xff\xff\xff\xff\x1f", VARINT),
    "longer than what is left": (varint(1 << 20), "ends before its last record does"),
}


@pytest.mark.parametrize(
    ("codec", "version"),
    [(codec, version) for codec in (NONE, GZIP, ZSTD) for version in (3, 7, 8, 9, 11) if codec != ZSTD or version >= 7],
)
@pytest.mark.parametrize(("record", "reason"), DAMAGED.values(), ids=DAMAGED)
def test_the_damaged_record_is_named(client: Client, record: bytes, reason: str, codec: int, version: int) -> None:
    """The third of four here; from version 8 on, and nothing of its batch is stored."""
    data = packed(good(0) + good(1) + record + good(3), 4, codec)
    (told,) = client.produce(("t", 0, data), version=version)
    assert (told.error_code, told.base_offset) == (INVALID_RECORD, -1)
    if version >= NAMED_SINCE:
        assert [named.batch_index for named in told.record_errors] == [2]
        assert reason in told.record_errors[0].batch_index_error_message
        assert reason in told.error_message
    assert client.offset("t", 0, LATEST).offset == 0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_the_first_and_the_last_record_are_named_too(client: Client, codec: int, count: int) -> None:
    data = packed(b"".join(good(delta) for delta in range(count - 1)) + good(7), count, codec)
    (told,) = client.produce(("t", 0, data))
    assert [named.batch_index for named in told.record_errors] == [count - 1]


def test_a_record_is_named_that_a_thread_has_found(workers: Workers, client: Client) -> None:
    """Batches that decompress to much are looked into off the loop."""
    before = workers.count("inflated_off_loop")
    count = 3000
    plain = b"".join(good(delta if delta != 2998 else 0, bytes(1000)) for delta in range(count))
    (told,) = client.produce(("t", 0, packed(plain, count, GZIP)))
    assert workers.count("inflated_off_loop") == before + 1
    assert (told.error_code, [named.batch_index for named in told.record_errors]) == (INVALID_RECORD, [2998])
    assert "offset deltas" in told.error_message


WHOLE: dict[str, tuple[bytes, int]] = {
    "a record less": (good(0) + good(1), 3),
    "bytes behind the last": (good(0) + good(1) + b"\0", 2),
    "nothing": (b"", 1),
}


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
@pytest.mark.parametrize(("plain", "count"), WHOLE.values(), ids=WHOLE)
def test_no_record_is_named_for_what_is_none_of_its_faults(
    client: Client, plain: bytes, count: int, codec: int
) -> None:
    (told,) = client.produce(("t", 0, packed(plain, count, codec)))
    assert (told.error_code, told.record_errors) == (INVALID_RECORD, ())
    assert "its last record" in told.error_message


def test_no_record_is_named_where_the_compressed_data_is_damaged(client: Client) -> None:
    """Even behind whole records: nobody knows which one the damage would have been."""
    data = packed(b"".join(good(delta, bytes([delta % 251]) * 500) for delta in range(200)), 200, GZIP)
    cut = raw_batches.reseal(data[:-8] + bytes([data[-8] ^ 0xFF]) + data[-7:])
    (told,) = client.produce(("t", 0, cut))
    assert (told.error_code, told.record_errors) == (INVALID_RECORD, ())
    assert "gzip" in told.error_message


def test_no_record_is_named_among_two_batches(client: Client) -> None:
    """Its number would be that of either."""
    bad = packed(good(0) + good(7), 2, NONE)
    (told,) = client.produce(("t", 0, packed(good(0), 1, NONE) + bad))
    assert (told.error_code, told.record_errors) == (INVALID_RECORD, ())
    assert "more than one batch" in told.error_message


@pytest.mark.parametrize("version", [7, *range(NAMED_SINCE, each(today.PRODUCE)[-1] + 1)])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_the_record_whose_time_is_too_far_ahead_is_named(client: Client, codec: int, version: int) -> None:
    """The first one with the largest, of several."""
    now = int(time.time() * 1000)
    times = [now, now + 2 * HOUR_MS, now + 3 * HOUR_MS, now + 3 * HOUR_MS, 1000]
    records = [Record(each_time, b"k", b"v") for each_time in times]
    plain = batch_codecs.compress(codec, raw_records.encode(records, now)) if codec else None
    (told,) = client.produce(("t", 0, raw_batches.of(records, codec, plain).encode()), version=version)
    assert (told.error_code, told.base_offset) == (INVALID_TIMESTAMP, -1)
    if version >= NAMED_SINCE:
        assert [named.batch_index for named in told.record_errors] == [2]
        assert "more than an hour" in told.record_errors[0].batch_index_error_message
        assert "more than an hour" in told.error_message


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_time_that_is_none_is_refused_as_such(client: Client, codec: int) -> None:
    """The head says another, so the records have to be looked at; -1 is that of records without a time."""
    for times, stored in (([-7, -3, -2], False), ([-7, -1, -2], True)):
        records = [Record(each_time) for each_time in times]
        plain = raw_records.encode(records)
        start = client.offset("t", 0, LATEST).offset
        (told,) = client.produce(("t", 0, packed(plain, 3, codec, max_timestamp=5)), acks=-1)
        assert told.error_code == (0 if stored else INVALID_TIMESTAMP)
        assert [named.batch_index for named in told.record_errors] == ([] if stored else [2])
        assert client.offset("t", 0, LATEST).offset == start + 3 * stored
