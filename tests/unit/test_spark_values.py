"""Single values of options, addresses and columns at their limits: the last that is taken and the first that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastlog.client.addresses import Address
from fastlog.errors import ConfigError
from fastlog.spark import addresses, schema, spans, values
from fastlog.spark.addresses import NamedAddress, check_addresses, parse_named
from fastlog.spark.schema import USUAL
from tests.harness.timing import patch_time

KAFKA = schema.SETS[schema.KAFKA]


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (values.counted(3, 5), "3", 3), (values.counted(3, 5), " 5 ", 5), (values.sized(2048), "1", 1),
        (values.sized(2048), "2KiB", 2048), (values.seconds, "1", 0.001), (values.seconds, "5s", 5.0),
        (values.truth, " TRUE ", True), (values.truth, "False", False), (values.one_of("a", "b"), " B ", "b"),
        (values.parse_json, '{"a": {"b": 1}}', {"a": {"b": 1}}),
    ],
)  # fmt: skip
def test_what_is_taken(parse: Any, text: str, value: object) -> None:
    found = parse("name", text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (values.counted(3, 5), "2", "2 is not from 3 to 5"), (values.counted(3, 5), "6", "6 is not from 3 to 5"),
        (values.counted(3, 5), "x", "'x' is no whole number"), (values.sized(2048), "0", "0 is not from 1 to 2048"),
        (values.sized(2048), "2049", "2049 is not from 1 to 2048"), (values.sized(2048), "x", ""),
        (values.seconds, "0", "'0' is not above 0"), (values.seconds, "-1", ""), (values.seconds, "x", ""),
        (values.truth, "yes", "'yes' is neither true nor false"), (values.one_of("a", "b"), "c", "'c' is none of a, b"),
        (values.parse_json, "{", "'{' is no JSON"), (values.parse_json, '{"a": {"b": 1, "b": 2}}', "is named twice"),
    ],
)  # fmt: skip
def test_what_is_refused_begins_with_the_name_of_its_option(parse: Any, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("name", text)
    assert str(caught.value).startswith("name: ") and said in str(caught.value)


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_brokers_with_and_without_their_ids() -> None:
    found = parse_named("brokers", f" a:1 ,, 0@b:2,{2**31 - 1}@c:3,")
    assert found == (
        NamedAddress(Address("a", 1)), NamedAddress(Address("b", 2), 0), NamedAddress(Address("c", 3), 2**31 - 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "none is named"), (" , ", "none is named"),
        ("a:1:2", "'a:1:2' is none; write host:port, or id@host:port"),
        ("-1@a:1", "-1 is not from 0"), (f"{2**31}@a:1", "is not from 0 to 2147483647"),
        ("x@a:1", "'x' is no whole number"), ("a:1,a:1", "names a broker twice"),
        ("1@a:1,1@b:1", "names a broker twice"), ("1@a:1,2@a:1", "names a broker twice"),
        ("0@a:1,0@b:1", "names a broker twice"),
    ],
)  # fmt: skip
def test_brokers_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_named("brokers", text)
    assert str(caught.value).startswith("brokers: ") and said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("brokers",), None), (("zookeeper",), None), (("zk.connect", "zookeeper.timeout.ms"), None), ((), "not given"),
        (("brokers", "zookeeper"), "brokers and zookeeper contradict each other"),
        (("zookeeper", "zk.connect"), "zookeeper and zk.connect contradict each other"),
        (("brokers", "zookeeper.timeout.ms"), "brokers are named, so no ZooKeeper is asked"),
    ],
)  # fmt: skip
def test_one_way_to_the_brokers(given: tuple[str, ...], said: str | None) -> None:
    options = dict.fromkeys(given, "x")
    if said is None:
        check_addresses(options)
        return
    with pytest.raises(ConfigError, match=said):
        check_addresses(options)


def test_a_zookeeper_is_refused_under_the_name_that_was_given() -> None:
    parse = {name: how for name, _, how in addresses.ADDRESS_OPTIONS}
    assert parse["zookeeper"]("zookeeper", "a:1/b") == "a:1/b"
    with pytest.raises(ConfigError) as caught:
        parse["zookeeper"]("zookeeper", "a:b:c")
    assert str(caught.value).startswith("zookeeper: ") and "zk.connect" not in str(caught.value)


# -- columns -----------------------------------------------------------------------------------------------------------


def test_columns_by_name() -> None:
    assert schema.parse_columns("VALUE, nextoffset,,topic") == ("value", "nextOffset", "topic")
    for text, said in (
        ("value,x", "there is no column 'x'"),
        ("value,Value", "value is named twice"),
        (",", "none is"),
    ):
        with pytest.raises(ConfigError, match=f"columns: {said}"):
            schema.parse_columns(text)


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (USUAL, "fastlog"), ((*USUAL, "nextOffset", "headers", "server", "schemaId", "deduplicationId"), "fastlog"),
        (KAFKA, "kafka"), ((*KAFKA, "headers"), "kafka"), ((*USUAL, "timestampType"), None), (USUAL[:-1], None),
        ((*KAFKA, "idx"), None), (tuple(reversed(USUAL)), None),
    ],
)  # fmt: skip
def test_which_set_columns_are(columns: tuple[str, ...], name: str | None) -> None:
    assert schema.usual_set(columns) == name


@pytest.mark.parametrize("name", [*schema.TYPES])
def test_a_column_of_a_schema_that_is_given(name: str) -> None:
    """Those that may be null have to be said to be so."""
    kind = schema.TYPES[name]
    schema.check_schema([(name, kind, True)])
    if name in ("timestamp", "key", "headers", "server", "schemaId", "deduplicationId"):
        with pytest.raises(ConfigError, match=f"the column {name} may be null"):
            schema.check_schema([(name, kind, False)])
    else:
        schema.check_schema([(name, kind, False)])
    with pytest.raises(ConfigError, match=f"the column {name} is"):
        schema.check_schema([(name, "double", True)])
    with pytest.raises(ConfigError, match="a column stands there twice"):
        schema.check_schema([(name, kind, True)] * 2)


def test_columns_of_envelopes_need_them() -> None:
    schema.check_envelope((*USUAL, "server"), True)
    schema.check_envelope(USUAL, False)
    for name in ("server", "schemaId", "deduplicationId"):
        with pytest.raises(ConfigError, match=f"{name}: it comes from envelopes"):
            schema.check_envelope(("value", name), False)


# -- columns as arrays -------------------------------------------------------------------------------------------------


def test_rows_of_bytes_lie_where_they_are() -> None:
    """Of a slice too; of a text, and of one with long offsets; null is said of each row."""
    whole = pa.array([b"a", b"bc", None, b"", b"def"])
    for column, rows in ((whole, [b"a", b"bc", None, b"", b"def"]), (whole.slice(1, 3), [b"bc", None, b""])):
        found = spans.spans_of(column)
        assert found.valid is not None
        ends = found.ends.tolist()
        made = [
            bytes(found.data[begin:end]) if there else None
            for begin, end, there in zip(ends, ends[1:], found.valid, strict=False)
        ]
        assert made == rows
        assert found.size_bytes == sum(len(row or b"") for row in rows)
        assert found.source()[2].tolist() == [row is not None for row in rows]
    for kind in (pa.string(), pa.large_string(), pa.large_binary()):
        found = spans.spans_of(pa.array(["a", "bc"], pa.string()).cast(kind))
        assert (found.valid, found.ends.tolist(), bytes(found.data[:3])) == (None, [0, 1, 3], b"abc")
        assert found.source()[2] is None
    assert bytes(spans.spans_of(pa.array([b"\xff\xfe"], pa.large_binary())).data[:2]) == b"\xff\xfe", "no text"


def test_a_column_without_rows_may_have_no_offsets() -> None:
    """The format allows it, and older writers in Java make use of that: of headers, where no row has any."""
    bare = pa.Array.from_buffers(pa.binary(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    for column in (bare, pa.array([], pa.binary()), pa.array([b"a"]).slice(1), pa.array([], pa.large_binary())):
        found = spans.spans_of(column)
        assert (found.size_bytes, found.ends.tolist(), len(found.data), found.valid) == (0, [0], 0, None)


def test_numbers_of_brokers_and_partitions() -> None:
    assert spans.numbers_of(pa.array([0, None, 7, -1], pa.int16())).tolist() == [0, -1, 7, -1]
    assert spans.numbers_of(pa.array([3], pa.int64())).dtype == np.int64
    with pytest.raises(ConfigError, match="-3 is no number of a broker"):
        spans.numbers_of(pa.array([1, -2, -3]))


def test_times_are_milliseconds_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_time(monkeypatch, spans, time_ns=lambda: 7_999_999)
    assert spans.times_of(None, 2).tolist() == [7, 7]
    given = pa.array([1_999, None, -1, 0], pa.timestamp("us", "UTC"))
    assert spans.times_of(given, 4).tolist() == [1, 7, -1, 0]
    assert spans.times_of(pa.array([5], pa.timestamp("s")), 1).tolist() == [5000]
    last = 253_402_300_799_999_999  # of the year 9999, which no float has
    assert spans.times_of(pa.array([last, None], pa.timestamp("us")), 2).tolist() == [last // 1000, 7]
