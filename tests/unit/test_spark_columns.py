"""Record batches out of spans: the same rows as the deep walk of the message module, in the schema that Spark wants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import message
from fastlog._segment import pack
from fastlog.codecs import GZIP, SNAPPY, compress
from fastlog.message import encode_set
from fastlog.spark import _columns, columns, schema
from fastlog.spark.columns import BatchMaker

ALL = [(name, True) for name in (*schema.USUAL, "nextOffset")]
PLAIN = st.lists(st.binary(max_size=40), min_size=1, max_size=8)
PIECES = st.lists(
    st.one_of(
        st.builds(encode_set, PLAIN, st.just(0), st.integers(0, 1)),
        st.builds(encode_set, PLAIN, st.sampled_from([GZIP, SNAPPY])),
        PLAIN.map(lambda payloads: pack([compress(GZIP, encode_set(payloads, SNAPPY) + encode_set([b"in"]))], GZIP)),
    ),
    max_size=6,
)


def rows_of(data: bytes, base: int, fields: Any = ALL) -> list[dict[str, Any]]:
    made = list(BatchMaker(fields, "logs", 3, 1).batches(message.spans(data, base)))
    return pa.Table.from_batches(made).to_pylist() if made else []


def expected_rows(data: bytes, base: int) -> list[dict[str, Any]]:
    """From the walk that makes an object for each message."""
    rows = []
    at = base
    for top, after in message.shallow(data, base):
        for index, (inner, next_offset) in enumerate(message.deep(top.encode(), at)):
            rows.append(
                {
                    "topic": "logs",
                    "broker": 3,
                    "partition": 1,
                    "offset": at,
                    "idx": index,
                    "timestamp": None,
                    "key": None,
                    "value": inner.payload,
                    "nextOffset": next_offset,
                }
            )
        at = after
    return rows


@pytest.mark.slow
@settings(deadline=None)
@given(PIECES, st.integers(0, 2**40), st.integers(1, 200))
def test_rows_are_those_of_the_deep_walk(pieces: list[bytes], base: int, batch_bytes: int) -> None:
    """Plain messages, sets and nested sets, however they are cut into batches."""
    data = b"".join(pieces)
    expected = expected_rows(data, base)
    assert rows_of(data, base) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BATCH_BYTES", batch_bytes)
        assert rows_of(data, base) == expected


def test_the_schema_is_the_one_that_spark_compares_with() -> None:
    (batch,) = BatchMaker([("value", False), ("timestamp", True), ("idx", True)], "t", 0, 0).batches(
        message.spans(encode_set([b"a"]))
    )
    assert batch.schema == pa.schema(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("idx", pa.int32()),
        ]
    )
    batch.validate(full=True)


def test_every_subset_of_columns_has_the_same_values() -> None:
    data = encode_set([b"a", b"", b"ccc"], GZIP) + encode_set([b"plain"])
    expected = expected_rows(data, 7)
    for name, _ in ALL:
        assert rows_of(data, 7, [(name, True)]) == [{name: row[name]} for row in expected]


def test_a_batch_is_about_two_mebibytes() -> None:
    sets = b"".join(encode_set([bytes(1000)] * 500, SNAPPY) for _ in range(20))
    batches = list(BatchMaker(ALL, "t", 0, 0).batches(message.spans(sets)))
    assert sum(batch.num_rows for batch in batches) == 10_000
    assert len(batches) == 5
    assert max(batch.nbytes for batch in batches) < 3 * 2**20


def test_what_comes_before_damage_is_not_lost() -> None:
    data = bytearray(encode_set([b"good", b"bad"]))
    data[-1] ^= 1
    with pytest.raises(message.InvalidMessageError):
        list(BatchMaker(ALL, "t", 0, 0).batches(message.spans(bytes(data))))


# -- the compiled part -------------------------------------------------------------------------------------------------


def arrays(rows: int, room: int) -> list[Any]:
    return [
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int32),
        np.zeros(rows + 1, np.int32),
        np.zeros(room, np.uint8),
    ]


ENTRIES = encode_set([b"one", b"three"])


def test_rows_are_written_where_they_belong() -> None:
    """Behind what is there already; nothing beyond."""
    made = arrays(5, 12)
    made[3][1] = 2
    made[4][:2] = list(b"ab")
    _columns.fill(ENTRIES, 2, 100, 200, True, 7, 1, *made)
    assert made[0].tolist() == [0, 100, 100, 0, 0]
    assert made[1].tolist() == [0, 100, 200, 0, 0]
    assert made[2].tolist() == [0, 7, 8, 0, 0]
    assert made[3].tolist() == [0, 2, 5, 10, 0, 0]
    assert made[4].tobytes() == b"abonethree\0\0"


@pytest.mark.parametrize("cut", range(len(ENTRIES)))
def test_entries_that_are_not_there(cut: int) -> None:
    """A span that changes while it is read is an error, never a read behind it."""
    with pytest.raises(BufferError):
        _columns.fill(bytes(ENTRIES[:cut]), 2, 0, 0, False, 0, 0, *arrays(2, 100))


@pytest.mark.parametrize("room", range(8))
def test_values_without_room(room: int) -> None:
    with pytest.raises(BufferError):
        _columns.fill(ENTRIES, 2, 0, 0, False, 0, 0, *arrays(2, room))


@pytest.mark.parametrize("short", range(4))
def test_columns_that_are_too_short(short: int) -> None:
    made = arrays(3, 100)
    made[short] = made[short][:-1]
    with pytest.raises(ValueError, match=r"too short|fewer ends"):
        _columns.fill(ENTRIES, 2, 0, 0, False, 0, 1, *made)


@pytest.mark.parametrize(("count", "row"), [(0, 0), (-1, 0), (2, -1)])
def test_rows_that_make_no_sense(count: int, row: int) -> None:
    with pytest.raises(ValueError, match=r"no rows|negative"):
        _columns.fill(ENTRIES, count, 0, 0, False, 0, row, *arrays(4, 100))
