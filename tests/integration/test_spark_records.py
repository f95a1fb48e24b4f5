"""Spark's source over topics of record batches of a real broker: its classes called as Spark calls them, no session."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import struct
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from fastlog.client.addresses import Address
from fastlog.client.records import EARLIEST, LATEST, RecordBroker
from fastlog.errors import ConfigError, DataLossError, RangeIncompleteError
from fastlog.message import encode_set
from fastlog.record_batches import HEAD, Record, batches, build
from fastlog.spark import record_files
from fastlog.spark.cluster import QueryCluster
from fastlog.spark.options import parse_options
from fastlog.spark.plans import BatchPlan, StreamPlan, Task
from fastlog.spark.record_files import NotHereError, RecordFiles
from fastlog.spark.source import FastlogDataSource
from fastlog.spark.task_rows import read_rows
from tests.harness import today
from tests.harness.broker import KEPT, Broker
from tests.harness.raw_client import FLUSHED

CODECS = range(5)
PER_BATCH = 10
ROWS = [("key", True), ("value", True), ("offset", True), ("timestamp", True)]
QUICK = {"fetch.numRetries": "2", "fetch.retryIntervalMs": "10", "fetch.timeout.ms": "20000"}
KAFKA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
TIME = 1_700_000_000_000
DELETE_RECORDS = 21


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), settings=KEPT) as made:
        yield made


@pytest.fixture
def records(broker: Broker) -> Iterator[RecordBroker]:
    with RecordBroker([Address("127.0.0.1", broker.port)], timeout=20) as made:
        yield made


def fill(records: RecordBroker, topic: str, count: int, partition: int = 0, first: int = 0, **given: Any) -> None:
    """So many batches, of each codec in turn; values are numbers, times follow one another by a second."""
    for number in range(first, first + count):
        made = [
            Record(b"k%d" % at, b"%d" % at, TIME + 1000 * at)
            for at in range(number * PER_BATCH, (number + 1) * PER_BATCH)
        ]
        records.append({(topic, partition): build(made, codec=number % len(CODECS), **given)}, is_flushed=True)


def options(broker: Broker, topic: str, **given: object) -> dict[str, str]:
    chosen = {} if {"subscribePattern", "assign"} & given.keys() else {"subscribe": topic}
    return {"brokers": f"127.0.0.1:{broker.port}", **QUICK, **chosen, **{k: str(v) for k, v in given.items()}}


def tasks_of(broker: Broker, topic: str, **given: object) -> list[Task]:
    parsed = parse_options(options(broker, topic, schema="kafka", **given), streaming=False)
    with closing(QueryCluster(parsed)) as cluster:
        return BatchPlan(parsed, cluster).tasks()


def read(broker: Broker, tasks: list[Task], **given: object) -> list[int]:
    """The values of tasks, which were pickled as Spark does it."""
    parsed = parse_options(options(broker, "any", schema="kafka", **given), streaming=None)
    found = []
    for task in pickle.loads(pickle.dumps(tasks)):
        for batch in read_rows(task, parsed, ROWS):
            found += [int(value) for value in batch.column("value").to_pylist()]
    return found


# -- which columns -----------------------------------------------------------------------------------------------------


def test_columns_by_the_kind_of_topic(broker: Broker, records: RecordBroker) -> None:
    records.create("kind-records", 1, {})
    with broker.connect() as client:
        client.produce_ack("kind-messages", 0, encode_set([b"1"]), acks=FLUSHED)

    def columns(**given: object) -> str:
        return FastlogDataSource(options(broker, "kind-records", **given)).schema()

    messages = "topic string, broker int, partition int, offset bigint, idx int, timestamp timestamp, key binary"
    assert columns() == KAFKA
    assert columns(includeHeaders="true") == f"{KAFKA}, headers array<struct<key:string,value:binary>>"
    assert columns(schema="fastlog").startswith(messages)
    assert columns(subscribe="kind-messages").startswith(messages)
    assert columns(subscribe="not-there").startswith(messages)
    assert columns(subscribe="kind-messages", schema="kafka") == KAFKA
    assert columns(columns="offset,value") == "offset bigint, value binary"
    both = {"subscribePattern": "kind-.*"}
    with pytest.raises(ConfigError, match=r"'kind-records' consists of record batches, 'kind-messages' of messages"):
        columns(**both)
    with pytest.raises(ConfigError, match=r"give schema=kafka .* or schema=fastlog"):
        columns(**both)
    assert columns(**both, schema="kafka") == KAFKA


def test_both_kinds_in_one_frame(broker: Broker, records: RecordBroker) -> None:
    records.create("both-records", 1, {})
    fill(records, "both-records", 1)
    with broker.connect() as client:
        client.produce_ack("both-messages", 0, encode_set([b"70", b"71"]), acks=FLUSHED)
    for name in ("kafka", "fastlog"):
        given = options(broker, "", subscribePattern="both-.*", schema=name)
        parsed = parse_options(given, streaming=False)
        with closing(QueryCluster(parsed)) as cluster:
            tasks = BatchPlan(parsed, cluster).tasks()
        fields = [(column, True) for column in parsed.columns]
        rows = [row for task in tasks for batch in read_rows(task, parsed, fields) for row in batch.to_pylist()]
        assert [(row["topic"], int(row["value"])) for row in rows] == [
            *(("both-messages", number) for number in (70, 71)),
            *(("both-records", number) for number in range(10)),
        ]
        assert [row["offset"] for row in rows][2:] == list(range(10))
        if name == "kafka":
            assert [row["timestampType"] for row in rows] == [-1] * 2 + [0] * 10


def test_columns_that_do_not_fit_what_comes_later(broker: Broker, records: RecordBroker) -> None:
    """A stream over a pattern, and topics that are not there yet: what was not known is told when it is."""
    usual = {
        "topic": StringType(),
        **dict.fromkeys(("broker", "partition"), IntegerType()),
        "offset": LongType(),
        "idx": IntegerType(),
        "timestamp": TimestampType(),
        **dict.fromkeys(("key", "value"), BinaryType()),
    }
    schema = StructType([StructField(name, kind) for name, kind in usual.items()])
    source = FastlogDataSource(options(broker, "", subscribePattern="later-.*", startingOffsets="earliest"))
    reader = source.streamReader(schema)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    records.create("later-records", 1, {})
    with pytest.raises(ConfigError, match=r"schema=fastlog to keep those, or schema=kafka"):
        reader.latestOffset(start, ReadAllAvailable())
    chosen = FastlogDataSource(options(broker, "", subscribePattern="later-.*", schema="fastlog")).streamReader(schema)
    assert chosen.latestOffset(start, ReadAllAvailable())["topics"] == {"later-records": {"0-0": [0, 0]}}
    reader.stop()
    chosen.stop()
    value = FastlogDataSource(options(broker, "later-records")).reader(StructType([StructField("value", BinaryType())]))
    assert value.partitions() == [], "who names columns has chosen"


# -- batch reads -------------------------------------------------------------------------------------------------------


def test_every_way_to_read(broker: Broker, records: RecordBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Fetch and from files, over segments, in pieces that end with batches; every record once and in order."""
    records.create("ways", 2, {"segment.bytes": "2000"})
    fill(records, "ways", 30)
    fill(records, "ways", 3, partition=1)
    monkeypatch.setattr(record_files, "_WINDOW_BYTES", 300)
    whole = tasks_of(broker, "ways")
    assert [(task.partition, task.start, task.end) for task in whole] == [(0, 0, 300), (1, 0, 30)]
    cut = tasks_of(broker, "ways", maxRecordsPerPartition=45)
    assert all(task.start % PER_BATCH == 0 for task in cut) and len(cut) > 6
    assert [task.start for task in cut if not task.partition] == [0, *(task.end for task in cut if not task.partition)][
        :-1
    ]
    assert len(tasks_of(broker, "ways", minPartitions=4)) >= 4
    assert len(tasks_of(broker, "ways", maxBytesPerPartition=1000)) > 5
    for tasks, direct in itertools.product((whole, cut), ("off", "auto", "shared", "only")):
        assert read(broker, tasks, direct=direct) == [*range(300), *range(30)]
        assert read(broker, tasks, direct=direct, **{"fetch.size": 100}) == [*range(300), *range(30)]


def test_ranges_by_offset_and_time(broker: Broker, records: RecordBroker) -> None:
    records.create("places", 2, {})
    fill(records, "places", 6)
    fill(records, "places", 1, partition=1)

    def found(**given: object) -> list[int]:
        chosen = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in given.items()}
        return read(broker, tasks_of(broker, "places", **chosen))

    assert found(startingOffsets={"places": {"0": 13, "1": -1}}, endingOffsets={"places": {"0": 27, "0-1": -1}}) == [
        *range(13, 27)
    ]
    assert found(startingTimestamp=TIME + 5000 + 1) == [*range(6, 60), *range(6, 10)]
    assert found(startingTimestamp=TIME + 58_000, startingOffsetsByTimestampStrategy="latest") == [58, 59]
    with pytest.raises(ConfigError, match=r"nothing was appended to places/0-1"):
        found(startingTimestamp=TIME + 58_000)
    assert found(endingTimestamp=TIME + 3000) == [0, 1, 2] * 2
    assert found(startingOffsetsByTimestamp={"places": {"0": TIME + 50_000, "1": TIME + 8000}}) == [
        *range(50, 60),
        8,
        9,
    ]
    assert found(assign={"places": [1]}) == [*range(10)]
    assert found(assign={"places": ["0-1"]}) == [*range(10)]
    with pytest.raises(ConfigError, match=r"assign: there is no places/5"):
        found(assign={"places": [5]})
    with pytest.raises(ConfigError, match=r"places/0-1 is to be read, and not named"):
        found(startingOffsets={"places": {"0": 13}})
    with pytest.raises(ConfigError, match=r"named twice, with its broker and without"):
        found(startingOffsets={"places": {"0": 13, "0-0": 4, "1": 0}})
    with pytest.raises(ConfigError, match=r"places/0-0 ends at 60, before 61"):
        found(endingOffsets={"places": {"0": 61, "1": 1}})


def test_limits_that_are_of_the_other_kind(broker: Broker, records: RecordBroker) -> None:
    with broker.connect() as client:
        client.produce_ack("limits", 0, encode_set([b"1"]), acks=FLUSHED)
    with pytest.raises(
        ConfigError, match=r"maxRecordsPerPartition: offsets of 'limits' are bytes: maxBytesPerPartition"
    ):
        tasks_of(broker, "limits", maxRecordsPerPartition=5)


def test_what_was_deleted(broker: Broker, records: RecordBroker) -> None:
    records.create("gone", 1, {})
    fill(records, "gone", 5)
    (task,) = tasks_of(broker, "gone")
    with broker.connect() as client:
        fields = {
            "topics": [{"name": "gone", "partitions": [{"partition_index": 0, "offset": 25}]}],
            "timeout": timedelta(seconds=20),
        }
        answer = today.asked(client.socket, DELETE_RECORDS, 1, **fields)
        assert answer.topics[0].partitions[0].error_code == 0
    places = [("gone", 0)]
    assert (records.offsets(places, EARLIEST), records.offsets(places, LATEST)) == ({places[0]: 25}, {places[0]: 50})
    for direct in ("off", "only"):
        with pytest.raises(DataLossError, match=r"gone/0-0, records 0 to 50: records 0 to 25 cannot be read any more"):
            read(broker, [task], direct=direct)
        assert read(broker, [task], direct=direct, failOnDataLoss="false") == [*range(25, 50)]
    assert read(broker, tasks_of(broker, "gone")) == [*range(25, 50)]


def test_a_topic_that_is_made_anew(broker: Broker, records: RecordBroker) -> None:
    """Under its name and with as many records: whatever was planned for the one before is not read of it."""
    records.create("anew", 1, {})
    fill(records, "anew", 3)
    (task,) = tasks_of(broker, "anew")
    records.delete("anew")
    records.create("anew", 1, {})
    fill(records, "anew", 3)
    for direct in ("off", "auto"):
        with pytest.raises(RangeIncompleteError, match=r"was deleted, or made anew"):
            read(broker, [task], direct=direct)
    with pytest.raises(RangeIncompleteError, match=r"is not the directory of the topic"):
        read(broker, [task], direct="only")
    short = task._replace(end=100)
    with pytest.raises(RangeIncompleteError, match=r"could not be read beyond 30: the log ends there"):
        read(broker, [short], direct="off")


def test_files_that_are_not_the_broker_s(broker: Broker, records: RecordBroker, tmp_path: Path) -> None:
    """A copy that has gone its own way has the topic's id, and other bytes."""
    records.create("copied", 1, {})
    fill(records, "copied", 3)
    (task,) = tasks_of(broker, "copied")
    assert task.records is not None
    copy = tmp_path / "copied-0"
    shutil.copytree(Path(task.records.directory) / "copied-0", copy)
    (segment,) = copy.glob("*.log")
    segment.write_bytes(b"".join(build([Record(None, b"other")] * PER_BATCH, base_offset=n * 10) for n in range(3)))
    moved = task._replace(records=task.records._replace(directory=str(tmp_path)))
    assert read(broker, [moved]) == [*range(30)], "by the socket"
    with pytest.raises(RangeIncompleteError, match=r"has not the bytes that the broker sends"):
        read(broker, [moved], direct="only")
    for directory, what in ((str(tmp_path / "none"), "No such file"), ("relative", "no absolute path")):
        away = task._replace(records=task.records._replace(directory=directory))
        assert read(broker, [away]) == [*range(30)]
        with pytest.raises(RangeIncompleteError, match=what):
            read(broker, [away], direct="only")


def test_files_that_are_damaged_are_an_error(broker: Broker, records: RecordBroker, tmp_path: Path) -> None:
    """Not passed over, and not taken from somewhere else: the broker has the same files."""
    records.create("torn", 1, {})
    fill(records, "torn", 6)
    (task,) = tasks_of(broker, "torn")
    assert task.records is not None
    (segment,) = (Path(task.records.directory) / "torn-0").glob("*.log")
    whole = segment.read_bytes()
    copy = tmp_path / "torn-0"
    shutil.copytree(segment.parent, copy)
    moved = task._replace(records=task.records._replace(directory=str(tmp_path)))
    (copied,) = copy.glob("*.log")
    copied.write_bytes(whole[:-30] + b"?" + whole[-29:])
    with pytest.raises(RangeIncompleteError, match=r"could not be read beyond 50: .*the batch there is damaged"):
        read(broker, [moved], direct="only")
    copied.write_bytes(whole[:-5])
    with pytest.raises(RangeIncompleteError, match=r"could not be read beyond 50: .*it ends inside a batch"):
        read(broker, [moved], direct="only")


def test_an_index_is_a_help_alone(broker: Broker, records: RecordBroker) -> None:
    records.create("indexed", 1, {})
    fill(records, "indexed", 20)
    (task,) = tasks_of(broker, "indexed")
    assert task.records is not None
    (segment,) = (Path(task.records.directory) / "indexed-0").glob("*.log")
    index, right, position = segment.with_suffix(".index"), b"", 0
    for header, batch in batches(segment.read_bytes()):
        right += struct.pack(">ii", header.next_offset - 1, position)
        position += len(batch)
    files = RecordFiles(task.records.directory, "indexed", 0, task.records.topic_id)
    for made in (right, b"", right + bytes(800), right[:3], bytes(16), (10**6).to_bytes(4) + bytes(4), right[:8] * 3):
        index.write_bytes(made)
        for offset in (0, 9, 10, 55, 199):
            files.seek(offset)
            base = HEAD.unpack_from(files.read(offset))[0]
            assert base == offset // PER_BATCH * PER_BATCH
    with pytest.raises(NotHereError):
        RecordFiles(task.records.directory, "indexed", 0, bytes(16))
    files.close()
    files.close()


# -- streams -----------------------------------------------------------------------------------------------------------


def stream(broker: Broker, topic: str, **given: object) -> tuple[StreamPlan, QueryCluster]:
    given = {"startingOffsets": "earliest", "schema": "kafka", **given}
    parsed = parse_options(options(broker, topic, **given), streaming=True)
    cluster = QueryCluster(parsed)
    return StreamPlan(parsed, cluster), cluster


def test_a_stream_in_batches(broker: Broker, records: RecordBroker) -> None:
    records.create("flow", 2, {})
    fill(records, "flow", 6)
    fill(records, "flow", 3, partition=1)
    value = StructType([StructField("value", BinaryType())])
    source = FastlogDataSource(options(broker, "flow", startingOffsets="earliest", maxOffsetsPerTrigger=30))
    reader = source.streamReader(value)
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows) and limit.max_rows == 30
    start, seen = json.loads(json.dumps(reader.initialOffset())), []
    for _ in range(3):
        end = json.loads(json.dumps(reader.latestOffset(start, limit)))
        tasks = [partition.value for partition in reader.partitions(start, end)]
        assert sum(task.end - task.start for task in tasks) == 30
        seen += read(broker, tasks)
        start = end
    assert sorted(seen) == sorted([*range(60), *range(30)])
    assert reader.latestOffset(start, limit) is start
    other, cluster = stream(broker, "flow")
    with closing(cluster):
        assert sorted(read(broker, other.tasks(end))) == sorted(read(broker, tasks)), "a batch that runs again"
        fill(records, "flow", 1, first=6)
        more = other.latest(end, None)
        assert more["topics"]["flow"] == {"0-0": [60, 70], "0-1": [30, 30]}
    by_bytes = FastlogDataSource(options(broker, "flow", startingOffsets="earliest", maxBytesPerTrigger=300))
    limited = by_bytes.streamReader(value)
    taken = limited.latestOffset(limited.initialOffset(), ReadMaxBytes(300))["topics"]["flow"]
    assert 0 < sum(end - start for start, end in taken.values()) < 50, "about"
    reader.stop()
    limited.stop()


def test_a_checkpoint_notices(broker: Broker, records: RecordBroker) -> None:
    """That its topic is another one now, of either kind, or that records are gone."""
    records.create("kept", 1, {})
    fill(records, "kept", 4)
    plan, cluster = stream(broker, "kept")
    end = plan.latest(plan.initial(), None)
    fill(records, "kept", 2, first=4)
    with broker.connect() as client:
        fields = {
            "topics": [{"name": "kept", "partitions": [{"partition_index": 0, "offset": 50}]}],
            "timeout": timedelta(seconds=20),
        }
        today.asked(client.socket, DELETE_RECORDS, 1, **fields)
    with pytest.raises(DataLossError, match=r"records 40 to 50 cannot be read any more: the log begins at 50"):
        plan.latest(end, None)
    records.delete("kept")
    records.create("kept", 1, {})
    fill(records, "kept", 9)
    for late in (plan.latest, lambda end, _: plan.tasks(end)):
        with pytest.raises(DataLossError, match=r"kept/0-0: the log was deleted and made anew: offset .* had before"):
            late(end, None)
    going_on, other = stream(broker, "kept", failOnDataLoss="false")
    assert going_on.latest(end, None)["topics"] == {"kept": {"0-0": [0, 90]}}
    records.delete("kept")
    with broker.connect() as client:
        client.produce_ack("kept", 0, encode_set([b"1"] * 50), acks=FLUSHED)
    with pytest.raises(
        DataLossError, match=r"made anew at 20.*: offset 40 is of the one that consisted of record batches"
    ):
        plan.latest(end, None)
    of_messages = going_on.latest(end, None)
    assert of_messages["topics"]["kept"]["0-0"][0] == 0
    with broker.connect() as client:
        assert client.delete_topic("kept")[0] == 0
    records.create("kept", 1, {})
    with pytest.raises(DataLossError, match=r"that was made at 20.*, of messages and not of record batches"):
        plan.latest(of_messages, None)
    cluster.close()
    other.close()


def test_a_reading_without_a_broker_is_patient_and_then_fails(broker: Broker, records: RecordBroker) -> None:
    records.create("away", 1, {})
    fill(records, "away", 1)
    (task,) = tasks_of(broker, "away")
    nowhere = task._replace(port=1)
    with pytest.raises(RangeIncompleteError, match=r"records 0 to 10: could not be read beyond 0"):
        read(broker, [nowhere])
