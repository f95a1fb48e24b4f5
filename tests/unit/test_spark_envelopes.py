"""Envelopes as columns, and back: the same as one message at a time gives, and messages that have none."""

from __future__ import annotations

import datetime
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import message
from fastlog.codecs import GZIP
from fastlog.envelope import Envelope, server_id_of, unwrap, wrap
from fastlog.errors import ConfigError, EnvelopeError, RangeIncompleteError
from fastlog.message import encode_set
from fastlog.spark import _enveloped
from fastlog.spark.options import parse_options
from fastlog.spark.plans import Task
from fastlog.spark.ranges import read_task
from fastlog.spark.sink_options import check_columns, parse_sink_options
from tests.harness.consumers import with_log
from tests.harness.fake_broker import FakeBroker, stored

pa = pytest.importorskip("pyarrow")

from fastlog.spark import columns as columns_module  # noqa: E402
from fastlog.spark.columns import BatchMaker  # noqa: E402
from fastlog.spark.packing import write_batches  # noqa: E402

FIELDS = [
    (name, True) for name in ("offset", "idx", "timestamp", "server", "schemaId", "key", "deduplicationId", "value")
]
MOST_MS = 253_402_300_799_999  # what Python's datetime can say
ENVELOPES = st.builds(
    Envelope,
    st.integers(0, MOST_MS),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
)
MESSAGES = st.lists(st.tuples(ENVELOPES, st.binary(max_size=30)), min_size=1, max_size=8)


def time_of(time_ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=time_ms)


def row_of(envelope: Envelope, value: bytes) -> dict[str, Any]:
    return {
        "timestamp": time_of(envelope.time_ms),
        "server": envelope.server_id,
        "schemaId": envelope.schema_id,
        "key": envelope.key,
        "deduplicationId": envelope.deduplication_id,
        "value": value,
    }


def rows_of(data: bytes, fields: Any = FIELDS, **options: Any) -> list[dict[str, Any]]:
    maker = BatchMaker(fields, "logs", 3, 1, envelope=True, **options)
    made = list(maker.batches(message.spans(data, 0)))
    return pa.Table.from_batches(made).to_pylist() if made else []


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(MESSAGES, st.sampled_from([0, GZIP])), min_size=1, max_size=5), st.integers(1, 200))
def test_columns_are_those_of_single_messages(sets: Any, batch_bytes: int) -> None:
    data = b"".join(encode_set([wrap(value, envelope) for envelope, value in found], codec) for found, codec in sets)
    expected = [row_of(envelope, value) for found, _ in sets for envelope, value in found]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "BATCH_BYTES", batch_bytes)
        rows = rows_of(data)
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    few = rows_of(data, [("deduplicationId", True), ("offset", True), ("timestamp", True)])
    assert few == [{name: row[name] for name in ("deduplicationId", "offset", "timestamp")} for row in rows]


GOOD = wrap(b"good", Envelope(5, 7))


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize(
    ("payload", "why"),
    [(b"bare", "begins with 62 61 instead of fe 01"), (b"", "ends after 0 bytes"), (GOOD[:10], "ends after 10 bytes")],
)
def test_a_message_without_an_envelope(payload: bytes, why: str, codec: int) -> None:
    """An error that names its place, also where no column needs the envelope; or it is all value, and counted."""
    first = encode_set([GOOD, GOOD])
    data = first + encode_set([GOOD, payload, payload, GOOD], codec)
    place = f"offset {len(first)}, index 1" if codec else f"offset {len(first) + len(first) // 2}"
    for fields in (FIELDS, [("offset", True)]):
        with pytest.raises(EnvelopeError, match=f"the message of logs/3-1 at {place}: .*{why}"):
            rows_of(data, fields)
    maker = BatchMaker(FIELDS, "logs", 3, 1, envelope=True, fail=False)
    rows = pa.Table.from_batches(list(maker.batches(message.spans(data, 0)))).to_pylist()
    assert [row["value"] for row in rows] == [b"good"] * 3 + [payload] * 2 + [b"good"]
    assert [row["timestamp"] for row in rows] == [time_of(5)] * 3 + [None] * 2 + [time_of(5)]
    assert [row["server"] for row in rows] == [7] * 3 + [None] * 2 + [7]
    assert maker.without_envelope == 2
    assert maker.first_without is not None
    assert place in maker.first_without


@pytest.mark.parametrize("payload", [GOOD, b"bare"])
def test_what_was_read_is_let_go_of(payload: bytes) -> None:
    """Bytes that somebody still looks at could not grow."""
    data = bytearray(encode_set([payload]))
    maker = BatchMaker(FIELDS, "logs", 3, 1, envelope=True, fail=False)
    assert sum(batch.num_rows for batch in maker.batches(message.spans(data, 0))) == 1
    gc.collect()
    data.append(0)


@pytest.mark.parametrize("schema_id", [None, 0, 1])
def test_a_number_that_is_zero_is_a_number(schema_id: int | None) -> None:
    """And is told apart from one that is not given, as an empty key is."""
    envelope = Envelope(0, 0, schema_id, None if schema_id is None else b"", None if schema_id is None else b"")
    (row,) = rows_of(encode_set([wrap(b"", envelope)]))
    assert {name: row[name] for name in row_of(envelope, b"")} == row_of(envelope, b"")


def test_a_time_that_spark_cannot_say_is_none() -> None:
    data = encode_set([wrap(b"v", Envelope(time_ms, 0)) for time_ms in (2**63 - 1, -(2**63), 1)])
    assert [row["timestamp"] for row in rows_of(data)] == [None, None, time_of(1)]


def test_a_task_names_its_range_and_the_offset(caplog: pytest.LogCaptureFixture) -> None:
    data = encode_set([GOOD]) + encode_set([b"bare"])
    with with_log(data) as fake:
        task = Task("t", 0, 0, "127.0.0.1", fake.port, 0, len(data))
        given = {"brokers": fake.address, "subscribe": "t", "envelope": "true"}
        options = parse_options(given, streaming=False)
        maker = BatchMaker(FIELDS, "t", 0, 0, envelope=True)
        with pytest.raises(
            RangeIncompleteError, match=rf"t/0-0, bytes 0 to {len(data)}: .* at offset {len(data) - 14}:"
        ):
            list(read_task(task, options, maker))
        maker = BatchMaker(FIELDS, "t", 0, 0, envelope=True, fail=False)
        assert sum(found.num_rows for found in read_task(task, options, maker)) == 2
        assert "1 messages without a valid envelope are all value" in caplog.text


# -- writing them ------------------------------------------------------------------------------------------------------


def written(broker: FakeBroker, rows: Any, **given: str) -> list[tuple[Envelope, bytes]]:
    options = parse_sink_options(
        {"brokers": broker.address, "topic": "t", "acks": "appended", "envelope": "true", **given}
    )
    kinds = {"timestamp": "timestamp", "schemaId": "bigint"}
    names = check_columns([(name, kinds.get(name, "binary")) for name in rows.schema.names], options)
    write_batches(iter([rows]), options, names)
    return [unwrap(payload) for payload in stored(broker)]


def arrays(rows: Sequence[dict[str, Any]]) -> Any:
    kinds = {"timestamp": pa.timestamp("us", "UTC"), "schemaId": pa.int64()}
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in rows], kinds.get(name, pa.binary())) for name in rows[0]], list(rows[0])
    )


@settings(deadline=None, max_examples=20)
@given(MESSAGES)
def test_what_is_written_is_what_was_read(messages: Any) -> None:
    rows = [row_of(envelope, value) for envelope, value in messages]
    for row in rows:
        del row["server"]
    with FakeBroker() as broker:
        found = written(broker, arrays(rows), server="front7")
    expected = [(envelope._replace(server_id=server_id_of("front7")), value) for envelope, value in messages]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_keys_and_ids_that_are_all_empty_are_written_as_such() -> None:
    """Their column has no bytes, and no place where these would be: nothing is copied from there."""
    rows = [{"value": b"a", "key": b"", "deduplicationId": b""}] * 2
    with FakeBroker() as broker:
        found = written(broker, arrays(rows))
    assert [(envelope.key, envelope.deduplication_id, value) for envelope, value in found] == [(b"", b"", b"a")] * 2


def test_the_time_is_that_of_writing_where_there_is_none() -> None:
    before = datetime.datetime.now(datetime.UTC).timestamp() * 1000
    with FakeBroker() as broker:
        (envelope, value), (given, _) = written(
            broker, arrays([{"value": b"a", "timestamp": None}, {"value": b"b", "timestamp": time_of(5)}])
        )
    assert int(before) <= envelope.time_ms <= datetime.datetime.now(datetime.UTC).timestamp() * 1000
    assert (value, given.time_ms, envelope.key) == (b"a", 5, None)


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("deduplicationId", b"x" * 256, "column deduplicationId: .* at most 255 bytes, not 256"),
        ("schemaId", 2**32, "column schemaId: a number is not from 0"),
    ],
)
def test_what_does_not_fit_an_envelope(column: str, value: Any, what: str) -> None:
    with FakeBroker() as broker, pytest.raises(ConfigError, match=what):
        written(broker, arrays([{"value": b"a", column: value}]))


def test_without_an_envelope_there_is_no_place_for_an_id() -> None:
    plain = parse_sink_options({"brokers": "h", "topic": "t"})
    fields = [("value", "binary"), ("timestamp", "timestamp"), ("schemaId", "bigint"), ("server", "bigint")]
    assert check_columns(fields, plain) == ("value", "timestamp", "", "")  # records have times without one
    with pytest.raises(ConfigError, match="column deduplicationId: it is carried in envelopes"):
        check_columns([("value", "binary"), ("deduplicationId", "string")], plain)
    with pytest.raises(ConfigError, match="server: it is written into envelopes"):
        parse_sink_options({"brokers": "h", "server": "front7"})


def test_columns_that_do_not_fit_each_other() -> None:
    ends = np.array([0, 1], np.int32)
    one = _enveloped.Source(b"a", ends, None)
    with pytest.raises(ValueError, match="not one time"):
        _enveloped.wrap(one, np.zeros(2, np.int64), 0, None, None, None)
    with pytest.raises(ValueError, match="different lengths"):
        _enveloped.wrap(one, np.zeros(1, np.int64), 0, None, _enveloped.Source(b"", ends[:1], None), None)
    with pytest.raises(ValueError, match="outside the data"):
        _enveloped.Source(b"", ends, None)
    with pytest.raises(ValueError, match="not one flag"):
        _enveloped.Source(b"a", ends, np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="more room than ends can say"):
        _enveloped.Bytes(1, 2**31)
    entries = encode_set([GOOD])
    with pytest.raises(ValueError, match="a column is too short"):
        _enveloped.fill(entries, 1, 1, _enveloped.Numbers(1), None, None, None, None, None)
    with pytest.raises(BufferError):
        _enveloped.fill(entries, 1, 0, None, None, None, None, None, _enveloped.Bytes(1, 3))
    with pytest.raises(BufferError):
        _enveloped.fill(entries, 2, 0, None, None, None, None, None, _enveloped.Bytes(2, 30))
