"""What a task writes: each row as it is, in its topic and partition, in order; and what it cannot write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog._segment import payloads
from fastlog.errors import ConfigError, DeliveryError, TransportError
from fastlog.producer.partitioners import Crc32Partitioner
from fastlog.producer.rows import RowSender
from fastlog.spark import sink_options
from fastlog.spark.sink_options import check_columns, parse_sink_options
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness.fake_broker import FakeBroker

pa = pytest.importorskip("pyarrow")

from fastlog.spark.packing import WriteReport, write_batches  # noqa: E402
from tests.harness import wire07  # noqa: E402

KINDS = {"value": pa.binary(), "key": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "broker": pa.int32()}


def batch(**columns: Any) -> Any:
    arrays = [pa.array(values, KINDS[name]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def written(broker: FakeBroker, *batches: Any, **given: str) -> WriteReport:
    options = parse_sink_options(
        {"brokers": broker.address, "topic": "t", "acks": "appended"}
        | {name.replace("__", "."): text for name, text in given.items()}
    )
    return write_batches(iter(batches), options, batches[0].schema.names if batches else ["value"])


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=4) as running:
        yield running


def found(broker: FakeBroker) -> dict[tuple[str, int], list[bytes]]:
    return {place: payloads(log) for place, log in broker.logs.items() if log}


def test_values_in_order(broker: FakeBroker) -> None:
    """Over several batches, also slices of larger ones and empty ones; text as its bytes."""
    values = [b"%03d" % number for number in range(300)]
    whole = batch(value=values[:200])
    text = pa.RecordBatch.from_arrays([pa.array([value.decode() for value in values[200:]])], ["value"])
    large = pa.RecordBatch.from_arrays([pa.array([b"large"], pa.large_binary())], ["value"])
    report = written(broker, whole.slice(0, 50), whole.slice(50), whole.slice(0, 0), text, large)
    assert found(broker) == {("t", 0): [*values, b"large"]}
    assert (report.messages, report.value_bytes, report.possible_duplicates) == (301, 905, 0)
    ((place, stretch),) = report.partitions.items()
    assert (place, stretch.offset, stretch.messages) == (("t", 0, 0), 0, 301)


def test_no_rows_need_no_broker() -> None:
    with FakeBroker() as gone:
        pass
    assert written(gone) == WriteReport(0, 0, {}, 0)
    assert written(gone, batch(value=[])) == WriteReport(0, 0, {}, 0)


def test_keys_and_partitions_by_hand(broker: FakeBroker) -> None:
    """A partition goes before a key; a row with neither may go anywhere."""
    keys = [b"a", b"b", None, b"a", b"c", None]
    partitions = [None, -1, None, 3, None, 2]
    written(broker, batch(value=[b"0", b"1", b"2", b"3", b"4", b"5"], key=keys, partition=partitions))
    expected: dict[tuple[str, int], list[bytes]] = {("t", 3): [b"3"], ("t", 2): [b"5"]}
    for value, key in ((b"0", b"a"), (b"1", b"b"), (b"4", b"c")):
        expected.setdefault(("t", Crc32Partitioner().partition(key, 4)), []).append(value)
    rows = found(broker)
    (place,) = [place for place, values in rows.items() if b"2" in values]
    assert place == ("t", 0), "the fake puts what may go anywhere into its first partition"
    rows[place].remove(b"2")
    assert {place: sorted(values) for place, values in rows.items() if values} == {
        place: sorted(values) for place, values in expected.items()
    }


def test_topics_of_a_column_unless_an_option_names_one(broker: FakeBroker) -> None:
    rows = batch(value=[b"a", b"b", b"c"], topic=["x", "y", "x"], partition=[0, 1, 0], broker=[0, None, 0])
    options = parse_sink_options({"brokers": broker.address, "acks": "appended"})
    write_batches(iter([rows, rows]), options, rows.schema.names)
    assert found(broker) == {("x", 0): [b"a", b"c", b"a", b"c"], ("y", 1): [b"b", b"b"]}
    broker.logs.clear()
    written(broker, rows)
    assert found(broker) == {("t", 0): [b"a", b"c"], ("t", 1): [b"b"]}


def test_rows_without_a_key_need_no_buffers_for_keys(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those may not all be reachable just now, which is no matter where no row has a key."""

    def unreachable(self: RowSender, topic: str) -> None:
        raise TransportError(f"the brokers of topic {topic!r} change")

    monkeypatch.setattr(RowSender, "by_key", unreachable)
    written(broker, batch(value=[b"a", b"b"], key=pa.array([None, None], pa.binary())))
    assert sorted(value for values in found(broker).values() for value in values) == [b"a", b"b"]
    with pytest.raises(TransportError, match="change"):
        written(broker, batch(value=[b"a", b"b"], key=[None, b"k"]))


def test_several_brokers() -> None:
    """Numbers count for each broker by itself, so a partition needs its broker; keys spread over all of them."""
    with FakeBroker(own=False) as one, FakeBroker(own=False) as two:
        options = parse_sink_options({"brokers": f"3@{one.address},5@{two.address}", "topic": "t", "acks": "none"})
        rows = batch(value=[b"a", b"b"], partition=[1, 1], broker=[5, 3])
        write_batches(iter([rows]), options, rows.schema.names)
        assert (found(one), found(two)) == ({("t", 1): [b"b"]}, {("t", 1): [b"a"]})
        rows = batch(value=[b"a"], partition=[1])
        with pytest.raises(ConfigError, match="partition 1 of which broker"):
            write_batches(iter([rows]), options, rows.schema.names)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"value": [b"a", None]}, "column value: a row is null"),
        ({"value": [b"a", b"b"], "topic": ["t", None]}, "column topic: a row is null"),
        ({"value": [b"a"], "partition": [-2], "topic": ["t"]}, "-2 is no number of a broker or of a partition"),
    ],
)
def test_rows_that_cannot_be_written(broker: FakeBroker, columns: dict[str, Any], what: str) -> None:
    rows = batch(**columns)
    options = parse_sink_options(
        {"brokers": broker.address, "acks": "appended"} | ({} if "topic" in columns else {"topic": "t"})
    )
    with pytest.raises(ConfigError, match=re.escape(what)):
        write_batches(iter([rows]), options, rows.schema.names)


def test_what_fails_ends_the_task() -> None:
    """A broker that refuses, one that is not there, and a source that breaks in the middle."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 3, -1, -1, -1))
        return None

    with FakeBroker(hook=hook) as refusing, pytest.raises(DeliveryError, match="1 message was not delivered"):
        written(refusing, batch(value=[b"a"]))
    with pytest.raises(TransportError):
        written(refusing, batch(value=[b"a"]), connect__timeout__ms="50")

    def breaking() -> Iterator[Any]:
        yield batch(value=[b"a"])
        raise RuntimeError("the task before has failed")

    with FakeBroker() as working, pytest.raises(RuntimeError, match="has failed"):
        write_batches(breaking(), parse_sink_options({"brokers": working.address, "topic": "t"}), ["value"])


# -- options and columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"Topics": "t"}, "'Topics'; did you mean 'topic'"),
        ({"path": "t"}, "path: save.. takes no path"),
        ({"includeHeaders": "true"}, "no headers"),
        ({"kafka.bootstrap.servers": "h"}, "brokers is meant"),
        ({"topic": "a/b"}, "topic: the topic name has the illegal character"),
        ({"acks": "all"}, "acks: 'all' is none of flushed, appended, none"),
        ({"compression": "brotli"}, "compression: 'brotli' is none of"),
        ({"batch.size": "0"}, "batch.size: 0 is not from 1"),
        ({"zookeeper": "h"}, "brokers and zookeeper contradict"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(given: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_sink_options({"brokers": "h", **given})


def test_options_become_settings_of_a_producer() -> None:
    options = parse_sink_options(
        {
            "ZOOKEEPER": "h/x",
            "zookeeper.timeout.ms": "2s",
            "acks": "none",
            "compression": "snappy",
            "batch.size": "50",
            "batch.bytes": "64KiB",
            "max.message.size": "2MB",
            "delivery.timeout.ms": "5s",
            "connect.timeout.ms": "700",
            "checkpointLocation": "/somewhere",
        }
    )
    config = options.producer_config({})
    assert (config.zk_connect, config.zk_session_timeout_ms, config.broker_list) == ("h:2181/x", 2000, None)
    assert (config.acks, config.compression, config.batch_messages) == ("none", "snappy", 50)
    assert (config.batch_bytes, config.max_message_bytes) == (65536, 2_000_000)
    assert (config.delivery_timeout_ms, config.connect_timeout_ms) == (5000, 700)


def test_every_option_is_described() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    writing = text[text.index("## Writing") :]
    assert [name for name in sink_options.OPTION_NAMES if f"`{name}`" not in writing] == []


def test_a_column_of_nothing_is_passed_over() -> None:
    """``NULL AS key`` has no type of a key's."""
    options = parse_sink_options({"brokers": "h", "topic": "t"})
    fields = [("key", "void"), ("value", "binary"), ("partition", "void"), ("topic", "void")]
    assert check_columns(fields, options) == ("", "value", "", "")


@pytest.mark.parametrize(
    ("fields", "given", "what"),
    [
        ([("key", "binary")], {"topic": "t"}, "column value: there is none"),
        ([("value", "void")], {"topic": "t"}, "column value: it is void and must be binary or string"),
        ([("value", "binary"), ("topic", "void")], {}, "topic: not given, and there is no column"),
        ([("value", "int")], {"topic": "t"}, "column value: it is int and must be binary or string"),
        ([("value", "binary"), ("size", "int")], {"topic": "t"}, "column size: nothing can be written of it"),
        ([("value", "binary"), ("Value", "binary")], {"topic": "t"}, "column Value: it is there twice"),
        ([("value", "binary")], {}, "topic: not given, and there is no column"),
        ([("value", "binary"), ("broker", "int")], {"topic": "t"}, "column broker: .* only with a column partition"),
    ],
)
def test_columns_that_cannot_be_written(fields: Any, given: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check_columns(fields, parse_sink_options({"brokers": "h", **given}))


def test_a_frame_that_was_read_can_be_written() -> None:
    """What a broker gives anew is passed over."""
    fields = [("topic", "string"), ("VALUE", "string"), ("offset", "bigint"), ("idx", "int"), ("nextOffset", "bigint")]
    found = check_columns(fields, parse_sink_options({"brokers": "h"}))
    assert found == ("topic", "value", "", "", "")
