"""Spark's classes for reading and writing, called as Spark calls them, without a session."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from fastlog._segment import pack
from fastlog.errors import ConfigError, DataLossError, FastlogError
from fastlog.producer.rows import Stretch
from fastlog.spark import source as source_module
from fastlog.spark import stream_reader as streams_module
from fastlog.spark.cluster import QueryCluster
from fastlog.spark.plans import Task
from fastlog.spark.sink import FastlogStreamWriter, FastlogWriter, WrittenRows
from fastlog.spark.source import FastlogDataSource
from fastlog.spark.stream_reader import FastlogStreamReader
from tests.harness.fake_broker import FakeBroker, stored

PAYLOADS = [b"message %03d" % number for number in range(40)]
LOG = bytes(pack(PAYLOADS))
ENTRY = len(LOG) // len(PAYLOADS)
VALUE = StructType([StructField("value", BinaryType(), True)])


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        fake.logs["t", 0] = LOG
        yield fake


def data_source(broker: FakeBroker, **given: str) -> FastlogDataSource:
    return FastlogDataSource({"brokers": f"127.0.0.1:{broker.port}", "subscribe": "t", **given})


def values(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def at(*ends: int) -> dict[str, Any]:
    """The end of a batch that covers this of the partition."""
    return {"v": 1, "topics": {"t": {"0-0": list(ends)}}}


# -- batch reads -------------------------------------------------------------------------------------------------------


def test_the_name_and_the_columns() -> None:
    assert FastlogDataSource.name() == "fastlog"
    made = FastlogDataSource({"brokers": "h:1", "subscribe": "t", "columns": "value,offset"})
    assert made.schema().replace(" NOT NULL", "") == "value binary, offset bigint"


def test_a_batch_read_is_all_there_is_in_pieces(broker: FakeBroker) -> None:
    reader = data_source(broker, minPartitions="4").reader(VALUE)
    partitions = reader.partitions()
    assert isinstance(partitions, list)
    assert len(partitions) == 4
    tasks = [partition.value for partition in partitions]
    assert all(isinstance(task, Task) for task in tasks)
    assert [task.start for task in tasks] == [0, *(task.end for task in tasks)][:-1]
    assert tasks[-1].end == len(LOG)
    copy = pickle.loads(pickle.dumps(reader))
    found = [value for partition in partitions for value in values(copy.read(partition))]
    assert found == PAYLOADS


def test_an_empty_list_is_a_task_without_anything(broker: FakeBroker) -> None:
    """Spark makes one where there are none."""
    broker.logs["t", 0] = b""
    reader = data_source(broker).reader(VALUE)
    assert reader.partitions() == []
    from pyspark.sql.datasource import InputPartition

    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        (StructType([StructField("value", StringType())]), {}),
        (StructType([StructField("values", BinaryType())]), {}),
        (StructType([StructField("value", BinaryType()), StructField("value", BinaryType())]), {}),
        (StructType([StructField("producerTime", TimestampType())]), {}),
        (VALUE, {"columns": "value,offset"}),
        (VALUE, {"columns": "offset"}),
    ],
)
def test_a_schema_that_does_not_fit(broker: FakeBroker, schema: StructType, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        data_source(broker, **given).reader(schema)
    with pytest.raises(ConfigError):
        data_source(broker, **given).streamReader(schema)


def test_a_column_that_may_not_be_null_is_not(broker: FakeBroker) -> None:
    schema = StructType([StructField("value", BinaryType(), False), StructField("partition", IntegerType(), False)])
    reader = data_source(broker).reader(schema)
    (partition,) = reader.partitions()
    (batch,) = list(reader.read(partition))
    assert [(field.name, field.nullable) for field in batch.schema] == [("value", False), ("partition", False)]


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_in_the_order_that_spark_has(broker: FakeBroker) -> None:
    """Batches meet, in whole messages, up to the end; then the end is the same object again and again."""
    reader = data_source(broker, startingOffsets="earliest").streamReader(VALUE)
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    assert start == {"v": 1, "initial": "earliest"}
    found: list[bytes] = []
    limit = ReadMaxBytes(15 * ENTRY)
    for count in (15, 15, 10):
        end = reader.latestOffset(start, limit)
        copy = pickle.loads(pickle.dumps(reader))
        rows = [value for partition in reader.partitions(start, end) for value in values(copy.read(partition))]
        assert len(rows) == count
        found += rows
        reader.commit(end)
        start = end
    assert found == PAYLOADS
    assert start["topics"] == at(30 * ENTRY, len(LOG))["topics"]
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["topics"] == at(len(LOG), len(LOG))["topics"]
    broker.logs["t", 0] += LOG
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["topics"] == at(len(LOG), 2 * len(LOG))["topics"]
    reader.stop()


def test_a_batch_is_planned_anew_by_another_process(broker: FakeBroker) -> None:
    """From its end alone, whatever the start is that Spark remembers."""
    reader = data_source(broker).streamReader(VALUE)
    end = at(10 * ENTRY, 20 * ENTRY)
    (partition,) = reader.partitions({"v": 1, "initial": "latest"}, end)
    assert values(reader.read(partition)) == PAYLOADS[10:20]
    assert reader.partitions(end, at(5 * ENTRY, 5 * ENTRY)) == []


def test_a_query_begins_again_though_its_last_batch_cannot_be_read_any_more(broker: FakeBroker) -> None:
    """Spark says where its log ends as a batch from there to there; retention may have removed what that read."""
    end = at(0, len(LOG))
    reader = data_source(broker).streamReader(VALUE)
    broker.logs["t", 0] = b""
    with pytest.raises(DataLossError):
        reader.partitions({"v": 1, "initial": "earliest"}, end)
    assert reader.partitions(end, end) == []


def test_available_now_is_what_was_there_when_it_was_prepared(broker: FakeBroker) -> None:
    reader = data_source(broker, startingOffsets="earliest").streamReader(VALUE)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    broker.logs["t", 0] += LOG
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["topics"] == at(0, len(LOG))["topics"]
    assert reader.latestOffset(end, ReadAllAvailable()) is end


@pytest.fixture
def spark_41(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were Spark 4.1, which does not have that module."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)


def test_a_stream_in_the_order_that_spark_4_1_has(broker: FakeBroker, spark_41: None) -> None:
    """It says nowhere where a batch begins: that is where the one before ended, or where the log of a query ends that
    begins again."""
    reader = data_source(broker, startingOffsets="earliest").streamReader(VALUE)
    assert type(reader) is FastlogStreamReader
    first = reader.latestOffset()  # type: ignore[call-arg]
    assert first["topics"] == at(0, len(LOG))["topics"]
    (partition,) = reader.partitions(reader.initialOffset(), first)
    assert values(pickle.loads(pickle.dumps(reader)).read(partition)) == PAYLOADS
    assert reader.latestOffset() is first  # type: ignore[call-arg]
    broker.logs["t", 0] += LOG
    second = reader.latestOffset()  # type: ignore[call-arg]
    assert second["topics"] == at(len(LOG), 2 * len(LOG))["topics"]
    reader.commit(first)
    broker.logs["t", 0] += LOG
    # The tasks of a batch are not always wanted, and those of an earlier one perhaps once more.
    reader.partitions(reader.initialOffset(), first)
    assert reader.latestOffset()["topics"] == at(2 * len(LOG), 3 * len(LOG))["topics"]  # type: ignore[call-arg]
    again = data_source(broker, startingOffsets="earliest").streamReader(VALUE)
    assert again.partitions(second, second) == []
    assert len(again.partitions(first, second)) == 1
    third = again.latestOffset()  # type: ignore[call-arg]
    assert third["topics"] == at(2 * len(LOG), 3 * len(LOG))["topics"]
    again.stop()
    wrapped = data_source(broker, startingOffsets="earliest").streamReader(VALUE)
    wrapped.latestOffset()  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"triggerAvailableNowWrapper\.enabled: set it to false"):
        wrapped.partitions(second, second)
    wrapped.stop()


def test_what_spark_4_1_asks_first_is_answered_when_all_is_flushed(
    broker: FakeBroker, spark_41: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since it may be the one question of ``availableNow``; what comes after is what is visible."""
    calls: list[str] = []
    for name in ("visible_bounds", "bounds"):
        original = getattr(QueryCluster, name)

        def noted(self: Any, *given: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(self, *given)

        monkeypatch.setattr(QueryCluster, name, noted)
    reader = data_source(broker, startingOffsets="earliest").streamReader(VALUE)
    reader.latestOffset()  # type: ignore[call-arg]
    assert "visible_bounds" in calls
    del calls[:]
    reader.latestOffset()  # type: ignore[call-arg]
    assert calls == ["bounds"]
    reader.stop()


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "maxOffsetsPerTrigger"])
def test_a_limit_is_refused_where_spark_knows_none(broker: FakeBroker, spark_41: None, name: str) -> None:
    for call in ("schema", "streamReader"):
        with pytest.raises(ConfigError, match=f"{name}: Spark 4.2 or newer limits batches"):
            getattr(data_source(broker, **{name: "5"}), call)(*[VALUE][: call == "streamReader"])


def test_limits(broker: FakeBroker) -> None:
    limit = data_source(broker).streamReader(VALUE).getDefaultReadLimit()
    assert isinstance(limit, ReadAllAvailable)
    reader = data_source(broker, maxBytesPerTrigger="1MiB").streamReader(VALUE)
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxBytes)
    assert limit.max_bytes == 2**20
    with pytest.raises(ConfigError, match="ReadMaxRows"):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))


def test_one_cluster_for_a_query_and_none_in_a_copy(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are made once and closed once; what goes to workers has none; it can be used again behind that."""
    made: list[Any] = []
    closed: list[Any] = []
    original = source_module.QueryCluster

    class Noted(original):  # type: ignore[valid-type,misc]
        def __init__(self, options: Any) -> None:
            made.append(self)
            super().__init__(options)

        def close(self) -> None:
            closed.append(self)
            super().close()

    for module in (source_module, streams_module):
        monkeypatch.setattr(module, "QueryCluster", Noted)
    reader = data_source(broker, startingOffsets="earliest").streamReader(VALUE)
    reader.stop()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    partitions = reader.partitions(start, end)
    reader.reportLatestOffset()
    reader.commit(end)
    assert len(made) == 1
    copy = pickle.loads(pickle.dumps(reader))
    assert values(copy.read(partitions[0])) == PAYLOADS
    assert len(made) == 1
    reader.stop()
    reader.stop()
    assert closed == made
    reader.latestOffset(end, ReadAllAvailable())
    assert len(made) == 2
    batch = data_source(broker).reader(VALUE)
    batch.partitions()
    assert closed == [made[0], made[2]]
    reader.stop()
    broker.logs.clear()
    with pytest.raises(FastlogError):
        batch.partitions()
    assert len(closed) == len(made) == 4


def test_the_place_of_a_query_is_shown_as_a_group_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked once; where the next batch begins is what was done, and shown before that is planned; nothing without a
    group."""
    calls: list[Any] = []

    class Progress:
        def __init__(self, coordination: object, group: str) -> None:
            calls.append((coordination, group))

        def check(self) -> None:
            calls.append("check")

        def show(self, end: object) -> None:
            calls.append(("show", end))

    class Plan:
        def __init__(self, *_: object) -> None:
            pass

        def latest(self, start: object, most: object) -> object:
            calls.append(("plan", start, most))
            return "end"

    class Cluster:
        coordination = "zookeeper"

        def __init__(self, *_: object) -> None:
            pass

        def close(self) -> None:
            calls.append("close")

    monkeypatch.setattr(streams_module, "GroupProgress", Progress)
    monkeypatch.setattr(streams_module, "StreamPlan", Plan)
    monkeypatch.setattr(streams_module, "QueryCluster", Cluster)
    given = {"zookeeper": "zk:1", "subscribe": "t"}
    reader = FastlogDataSource({**given, "group": "g"}).streamReader(VALUE)
    assert reader.latestOffset("start", ReadMaxBytes(7)) == "end"  # type: ignore[arg-type,comparison-overlap]
    reader.commit("end")  # type: ignore[arg-type]
    assert calls == [
        ("zookeeper", "g"), "check", ("show", "start"), ("plan", "start", 7), ("show", "end"),
    ]  # fmt: skip
    reader.stop()
    del calls[:]
    plain = FastlogDataSource(given).streamReader(VALUE)
    plain.latestOffset("start", ReadAllAvailable())  # type: ignore[arg-type]
    plain.commit("end")  # type: ignore[arg-type]
    assert calls == [("plan", "start", None)]


# -- writing -----------------------------------------------------------------------------------------------------------


def rows(*found: bytes) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_arrays([pa.array(list(found), pa.binary())], ["value"])])


def test_a_topic_cannot_be_overwritten() -> None:
    for writer in (FastlogDataSource.writer, FastlogDataSource.streamWriter):
        made = FastlogDataSource({"brokers": "h:1", "topic": "t"})
        with pytest.raises(ConfigError, match="append"):
            writer(made, VALUE, True)
        with pytest.raises(ConfigError):
            writer(made, StructType([StructField("value", IntegerType())]), False)
        writer(made, VALUE, False)


def test_a_task_returns_when_all_is_confirmed(broker: FakeBroker) -> None:
    """With what it wrote, and where; once more brings everything once more."""
    made = FastlogDataSource({"brokers": f"127.0.0.1:{broker.port}", "topic": "out", "acks": "appended"})
    for writer in (made.writer(VALUE, False), made.streamWriter(VALUE, False)):
        copy = pickle.loads(pickle.dumps(writer))
        found = copy.write(rows(b"one", b"four"))
        assert (found.messages, found.value_bytes, found.possible_duplicates) == (2, 7, 0)
        assert sum(stretch.messages for stretch in found.partitions.values()) == 2
    assert sorted(stored(broker, "out", 0) + stored(broker, "out", 1)) == [b"four", b"four", b"one", b"one"]


def test_what_was_written_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """With the sums of the tasks; also when the write failed, since nothing can be taken back."""
    caplog.set_level(logging.INFO)
    made = FastlogDataSource({"brokers": "h:1", "topic": "t"})
    messages = [
        WrittenRows(3, 30, {("t", 0, 0): Stretch(0, 30, 3)}, 1),
        None,
        WrittenRows(4, 41, {}, 0),
    ]
    batch, stream = made.writer(VALUE, False), made.streamWriter(VALUE, False)
    assert isinstance(batch, FastlogWriter)
    assert isinstance(stream, FastlogStreamWriter)
    batch.commit(messages)
    batch.abort(messages)
    stream.commit(messages, 7)
    stream.abort([None], 8)
    sums = "tasks=2 failed_tasks=1 messages=7 value_bytes=71 possible_duplicates=1"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"event=written {sums}"),
        ("WARNING", f"event=write_failed stays=yes {sums}"),
        ("INFO", f"event=written batch=7 {sums}"),
        (
            "WARNING",
            "event=write_failed batch=8 stays=yes"
            " tasks=0 failed_tasks=1 messages=0 value_bytes=0 possible_duplicates=0",
        ),
    ]
