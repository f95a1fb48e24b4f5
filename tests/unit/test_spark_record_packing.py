"""Records out of columns, against what a slow reader finds in them; and keys, against the hash in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import _records
from fastlog.errors import ConfigError
from fastlog.producer.partitioners import murmur2
from fastlog.spark._record_packing import Headers, Source, hash_keys, pack_rows
from fastlog.spark.record_packing import _headers
from fastlog.spark.spans import spans_of

PAIRS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
FIELDS = st.one_of(st.none(), st.binary(max_size=200))
ROWS = st.lists(
    st.tuples(
        FIELDS,
        FIELDS,
        st.integers(-(10**15), 10**15),
        st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), FIELDS), max_size=3)),
    ),
    min_size=1,
    max_size=30,
)


def source(values: list[bytes | None]) -> Source:
    return Source(*spans_of(pa.array(values, pa.binary())).source())


def headers(rows: list[Any]) -> Headers:
    made = [None if row is None else [{"key": name, "value": value} for name, value in row] for row in rows]
    return _headers(pa.array(made, PAIRS))


@settings(deadline=None, max_examples=80)
@given(ROWS, st.data())
def test_records_are_those_of_the_columns(rows: list[Any], data: st.DataObject) -> None:
    """Of any rows in any order, in as many batches as their sizes and numbers ask for."""
    keys, values, times, pairs = zip(*rows, strict=True)
    order = data.draw(st.permutations(range(len(rows))).flatmap(lambda all: st.just(all[: max(1, len(all) // 2)])))
    most_bytes, most_rows = data.draw(st.sampled_from([(10**6, 100), (10**6, 3), (1, 100), (300, 100)]))
    with_keys, with_headers = data.draw(st.booleans()), data.draw(st.booleans())
    chosen = np.array(order, np.int32)
    at, found = 0, []
    while at < len(order):
        packed, taken, base, latest = pack_rows(
            chosen,
            at,
            source(list(keys)) if with_keys else None,
            source(list(values)),
            np.array(times, np.int64),
            headers(list(pairs)) if with_headers else None,
            most_bytes,
            most_rows,
        )
        assert _records.walk(packed, taken, base).status == _records.RECORDS_OK
        assert 0 < taken <= most_rows and (len(packed) <= most_bytes or taken == 1)
        inside = [times[row] for row in order[at : at + taken]]
        assert (base, latest) == (inside[0], max(inside))
        found += [entry[:4] for entry in _records.entries(packed, taken, base)]
        if at + taken < len(order) and taken < most_rows:
            rest = pack_rows(
                chosen, at + taken, source(list(keys)) if with_keys else None, source(list(values)),
                np.array(times, np.int64), headers(list(pairs)) if with_headers else None, 1, 1,
            )[0]  # fmt: skip
            assert len(packed) + len(rest) + 12 > most_bytes, "it is full"
        at += taken
    assert found == [
        (
            keys[row] if with_keys else None,
            values[row],
            times[row],
            tuple((name.encode(), value) for name, value in pairs[row] or ()) if with_headers else (),
        )
        for row in order
    ]


def test_what_does_not_fit_together() -> None:
    one, two = source([b"a"]), source([b"a", b"b"])
    row, time = np.zeros(1, np.int32), np.zeros(1, np.int64)
    times, pairs = np.zeros(2, np.int64), headers([[("a", b"b")]])
    for wrong in (
        (row, 1, None, one, time, None, 10, 10),
        (row, -1, None, one, time, None, 10, 10),
        (row, 0, None, one, time, None, 10, 0),
        (row, 0, two, one, time, None, 10, 10),
        (row, 0, None, one, times, None, 10, 10),
        (row, 0, None, two, times, pairs, 10, 10),
        (row + 1, 0, None, one, time, None, 10, 10),
        (row - 1, 0, None, one, time, None, 10, 10),
    ):
        with pytest.raises(ValueError):
            pack_rows(*wrong)
    data, ends = np.zeros(3, np.uint8), np.array([0, 2, 1, 3], np.int32)
    for bad in (
        (data, ends, None),
        (data, np.array([0, 4], np.int32), None),
        (data, np.array([-1, 2], np.int32), None),
    ):
        with pytest.raises(ValueError):
            Source(*bad)
    with pytest.raises(ValueError):
        Source(data, np.array([0, 1], np.int32), np.ones(2, np.uint8))
    for bad_ends in ([0, 2], [1, 0], [-1, 1]):
        with pytest.raises(ValueError):
            Headers(np.array(bad_ends, np.int32), None, one, one)
    with pytest.raises(ValueError):
        Headers(np.array([0, 1], np.int32), None, one, two)
    with pytest.raises(ValueError):
        Headers(np.array([0, 1], np.int32), np.ones(2, np.uint8), one, one)
    with pytest.raises(ConfigError, match="column headers: a header has no key"):
        _headers(pa.array([[{"key": None, "value": b"x"}]], PAIRS))


@given(st.lists(FIELDS, max_size=20))
def test_keys_go_where_java_s_clients_send_them(keys: list[bytes | None]) -> None:
    found = hash_keys(source(keys)).tolist()
    assert found == [-1 if key is None else murmur2(key) & 0x7FFFFFFF for key in keys]
