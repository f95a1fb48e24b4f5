"""Arrow batches out of record batches, against a slow twin that makes a Python object of each record."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fastlog import record_batches
from fastlog._record_batch import RecordSpan, RecordSpans
from fastlog.message import DEFAULT_LIMITS
from fastlog.record_batches import LOG_APPEND_TIME, Record, build
from fastlog.spark import record_columns, schema
from fastlog.spark._record_columns import Bytes, Cursor, Rows
from fastlog.spark.record_columns import RecordMaker

ALL = [(name, True) for name in schema.TYPES]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIELDS = st.one_of(st.none(), st.binary(max_size=30))
HEADERS = st.lists(st.tuples(st.binary(max_size=6), FIELDS), max_size=3).map(tuple)
TIMES = st.one_of(st.just(-1), st.integers(-5, 2**41))
RECORDS = st.lists(st.builds(Record, FIELDS, FIELDS, TIMES, HEADERS), min_size=1, max_size=12)


def log_of(*batches: tuple[list[Record], dict[str, Any]]) -> bytes:
    """Batches behind one another, with offsets from 0 on."""
    found, at = b"", 0
    for records, how in batches:
        found += build(records, base_offset=at, **how)
        at += len(records)
    return found


def made(data: bytes, start: int = 0, end: int = 2**62, fields: list[tuple[str, bool]] = ALL) -> list[pa.RecordBatch]:
    maker = RecordMaker(fields, "logs", 3, 5)
    found = list(maker.batches(RecordSpans(data, start, DEFAULT_LIMITS), end))
    for batch in found:
        batch.validate(full=True)
    return found


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def twin(data: bytes, start: int, end: int) -> Iterator[dict[str, Any]]:
    """What the columns are to hold, by the definition of each."""
    for header, batch in record_batches.batches(data):
        for record in [] if header.is_control else record_batches.records(batch):
            if start <= record.offset < end:
                yield {
                    "topic": "logs",
                    "broker": 3,
                    "partition": 5,
                    "offset": record.offset,
                    "idx": 0,
                    "timestamp": None if record.timestamp == -1 else EPOCH + timedelta(milliseconds=record.timestamp),
                    "key": record.key,
                    "value": record.value,
                    "nextOffset": record.offset + 1,
                    "server": None,
                    "schemaId": None,
                    "deduplicationId": None,
                    "timestampType": int(header.is_log_append_time),
                    "headers": [
                        {"key": name.decode(errors="replace"), "value": value} for name, value in record.headers
                    ]
                    or None,
                }


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(RECORDS, st.integers(0, 4), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([(2**21, 32768), (40, 32768), (200, 5), (1, 1)]),
)
def test_rows_are_those_of_the_twin(
    batches: list[tuple[list[Record], int, bool]], start: int, length: int, limits: tuple[int, int]
) -> None:
    """Of every codec, from any offset to any other, however the batches of Arrow are cut."""
    data = log_of(
        *((records, {"codec": codec, "attributes": LOG_APPEND_TIME * late}) for records, codec, late in batches)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_columns, "BATCH_BYTES", limits[0])
        patch.setattr(record_columns, "BATCH_ROWS", limits[1])
        found = made(data, start, start + length)
        assert all(0 < batch.num_rows <= limits[1] for batch in found)
    assert rows_of(found) == list(twin(data, start, start + length))


def test_short_batches_come_together_and_long_ones_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    data = log_of(*(([Record(None, b"x" * 10)] * 10, {}) for _ in range(5)))
    assert [batch.num_rows for batch in made(data)] == [50]
    monkeypatch.setattr(record_columns, "BATCH_BYTES", 210)
    assert [batch.num_rows for batch in made(data)] == [21, 21, 8]
    monkeypatch.setattr(record_columns, "BATCH_ROWS", 10)
    assert [batch.num_rows for batch in made(data)] == [10] * 5


def test_a_record_that_is_larger_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "BATCH_BYTES", 100)
    monkeypatch.setattr(record_columns, "BATCH_ROWS", 2)
    many = tuple((b"%d" % number, b"y") for number in range(50))
    data = log_of(([Record(b"k", b"v"), Record(b"k" * 500, b"x" * 1000, 5, many), Record(b"k", b"v")], {}))
    found = made(data)
    assert [batch.num_rows for batch in found] == [1, 2], "its headers leave room for the next one"
    assert rows_of(found) == list(twin(data, 0, 3))


def test_times_that_have_no_place() -> None:
    """One that microseconds cannot say is null, as one that is not there; the largest that they can say is not."""
    most = (2**63 - 1) // 1000
    data = log_of(([Record(None, None, time) for time in (0, -1, most, most + 1, -most, -most - 1)], {}))
    (batch,) = made(data, fields=[("timestamp", True)])
    assert batch.column(0).cast(pa.int64()).to_pylist() == [0, None, most * 1000, None, -most * 1000, None]


def test_columns_are_those_that_spark_wants() -> None:
    """Spark compares the whole schema of the first batch."""
    kinds = {
        "topic": StringType(),
        "broker": IntegerType(),
        "partition": IntegerType(),
        "idx": IntegerType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        **dict.fromkeys(("offset", "nextOffset", "server", "schemaId"), LongType()),
        **dict.fromkeys(("key", "value", "deduplicationId"), BinaryType()),
    }
    for name, kind in kinds.items():
        assert kind.simpleString() == schema.TYPES[name]
    wanted = StructType([StructField(name, kinds[name], name != "offset") for name in schema.TYPES])
    data = log_of(([Record(b"k", b"v", 1, ((b"h", b"x"),))], {}))
    (batch,) = made(data, fields=[(field.name, field.nullable) for field in wanted.fields])
    assert batch.schema == to_arrow_schema(wanted, timezone="UTC")


def test_a_few_columns() -> None:
    data = log_of(([Record(b"k", b"v"), Record(None, b"w")], {}))
    (batch,) = made(data, fields=[("value", True), ("offset", False)])
    assert batch.to_pydict() == {"value": [b"v", b"w"], "offset": [0, 1]}


def test_control_batches_are_left_out() -> None:
    data = log_of(
        ([Record(None, b"a")], {}),
        ([Record(bytes(4), bytes(6))], {"attributes": record_batches.CONTROL | record_batches.TRANSACTIONAL}),
        ([Record(None, b"b")], {}),
    )
    assert [(row["offset"], row["value"]) for row in rows_of(made(data))] == [(0, b"a"), (2, b"b")]


def test_the_last_record_before_the_end_says_where_to_go_on() -> None:
    data = log_of(([Record(None, b"%d" % number) for number in range(10)], {}))
    rows = rows_of(made(data, 3, 7))
    assert [(row["offset"], row["nextOffset"]) for row in rows] == [(3, 4), (4, 5), (5, 6), (6, 7)]
    assert rows_of(made(data, 3, 3)) == []


def test_there_is_no_more_than_is_there() -> None:
    (span,) = RecordSpans(log_of(([Record(b"k", b"v")], {})), 0, DEFAULT_LIMITS)
    assert isinstance(span, RecordSpan)
    cursor = Cursor(span, 1)
    assert (cursor.left, cursor.needed()[1]) == (1, 0)
    rows = Rows(["value"], 1, 10, 0)
    assert rows.take(cursor) and rows.count == 1
    with pytest.raises(BufferError):
        cursor.needed()
    assert not Rows(["value"], 0, 10, 0).take(Cursor(span, 1))
    with pytest.raises(ValueError, match="room"):
        Bytes(1, 2**31)
