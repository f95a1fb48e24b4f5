"""Topics as data frames: all, parts, in tasks, through sockets and files; and what a user sees of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.codecs import GZIP
from fastlog.message import encode_set
from tests.harness.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

COUNT = 3000
PLAIN = 2 * COUNT // 3
SET = 100


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with the id 4, whose topic ``logs`` has plain messages in partition 0 and compressed sets in 1."""
    settings = {"num.partitions": 2, "log.file.size": 20_000, "brokerid": 4}
    with Broker(tmp_path_factory.mktemp("filled"), settings=settings) as running:
        with running.connect() as client:
            for start in range(0, PLAIN, SET):
                client.produce_ack("logs", 0, encode_set([b"p%06d" % n for n in range(start, start + SET)]), acks=2)
            for start in range(PLAIN, COUNT, SET):
                payloads = [b"p%06d" % n for n in range(start, start + SET)]
                client.produce_ack("logs", 1, encode_set(payloads, GZIP), acks=2)
        yield running


@pytest.fixture
def frame(spark: SparkSession, filled: Broker) -> Callable[..., DataFrame]:
    """A data frame of the topic with options."""

    def make(**given: Any) -> DataFrame:
        chosen = {"brokers": f"127.0.0.1:{filled.port}"} | ({} if "assign" in given else {"subscribe": "logs"})
        chosen |= {name.replace("__", "."): str(value) for name, value in given.items()}
        return spark.read.format("fastlog").options(**chosen).load()

    return make


def test_rows_of_a_topic(frame: Callable[..., DataFrame], filled: Broker) -> None:
    """Every message with its place, in order within a partition; nulls where there is no envelope."""
    found = frame(includeNextOffset=True)
    assert [field.simpleString() for field in found.schema.fields] == [
        "topic:string",
        "broker:int",
        "partition:int",
        "offset:bigint",
        "idx:int",
        "timestamp:timestamp",
        "key:binary",
        "value:binary",
        "nextOffset:bigint",
    ]
    rows = found.toArrow().sort_by([("partition", "ascending"), ("offset", "ascending"), ("idx", "ascending")])
    columns = {name: rows.column(name).to_pylist() for name in rows.column_names}
    assert columns["value"] == [b"p%06d" % number for number in range(COUNT)]
    assert set(columns["topic"]) == {"logs"}
    assert set(columns["broker"]) == {4}
    assert columns["partition"] == [0] * PLAIN + [1] * (COUNT - PLAIN)
    assert columns["offset"][:3] == [0, 17, 34]
    assert columns["nextOffset"][:PLAIN] == [*columns["offset"][1:PLAIN], 17 * PLAIN]
    assert columns["idx"] == [0] * PLAIN + list(range(SET)) * ((COUNT - PLAIN) // SET)
    assert len(set(columns["offset"][PLAIN:])) == (COUNT - PLAIN) // SET
    assert columns["nextOffset"][-2:] == [columns["offset"][-1], len(filled.stored_bytes("logs", 1))]
    assert rows.column("timestamp").null_count == rows.column("key").null_count == COUNT


def test_columns_and_a_schema_of_the_users(
    frame: Callable[..., DataFrame], spark: SparkSession, filled: Broker
) -> None:
    assert frame(columns="value,idx").columns == ["value", "idx"]
    assert frame(columns="offset,topic").agg({"offset": "max"}).first()[0] == 17 * (PLAIN - 1)
    read = spark.read.format("fastlog").option("brokers", f"127.0.0.1:{filled.port}").option("subscribe", "logs")
    assert sorted(row.value for row in read.schema("value binary").load().limit(5).collect())
    with pytest.raises(Exception, match="the column offset is bigint, not int"):
        read.schema("offset int").load().count()


def test_a_part_of_one_partition_in_tasks(frame: Callable[..., DataFrame]) -> None:
    """Between two offsets, cut into as many tasks as asked for; and nothing at all is no row, not an error."""
    first = {"assign": '{"logs": ["4-0"]}', "startingOffsets": '{"logs": {"4-0": 1700}}'}
    part = frame(**first, endingOffsets='{"logs": {"4-0": 8500}}', minPartitions=4)
    assert part.rdd.getNumPartitions() == 4
    assert sorted(row.value for row in part.select("value").collect()) == [b"p%06d" % n for n in range(100, 500)]
    assert frame(**first, endingOffsets='{"logs": {"4-0": 1700}}').count() == 0


def test_direct_and_through_the_socket(frame: Callable[..., DataFrame]) -> None:
    """The same rows, from the files alone and from the socket alone."""
    from_files = frame(direct="only", minPartitions=3, columns="partition,offset,idx,value").collect()
    from_socket = frame(direct="off", fetch__size=1000, columns="partition,offset,idx,value").collect()
    assert sorted(from_files) == sorted(from_socket)
    assert len(set(from_files)) == COUNT


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"maxBytesPerTrigger": "1MB"}, "maxBytesPerTrigger: only for a streaming query"),
        ({"assign": '{"logs": ["4-0"]}', "startingOffsets": '{"logs": {"4-0": 18}}'}, "the next one begins at 34"),
        ({"assign": '{"logs": ["0-0"]}'}, "assign: there is no logs/0-0"),
    ],
)
def test_errors_end_with_their_reason(frame: Callable[..., DataFrame], given: dict[str, str], what: str) -> None:
    with pytest.raises(Exception, match=what):
        frame(**given).count()


def test_a_damaged_message_fails_the_task_with_its_range(
    spark: SparkSession, start_broker: Callable[..., Broker], topic: str
) -> None:
    """No row of the range comes out, also not those before the damage."""
    broker = start_broker(processors=1)
    with broker.connect() as client:
        client.produce_ack(topic, 0, encode_set([b"%04d" % number for number in range(100)]), acks=2)
    (path,) = broker.segments(topic, 0).values()
    data = bytearray(path.read_bytes())
    data[50 * 14 + 12] ^= 1
    path.write_bytes(data)
    read = spark.read.format("fastlog").option("brokers", f"127.0.0.1:{broker.port}").option("subscribe", topic)
    with pytest.raises(Exception, match=rf"{topic}/0-0, bytes 0 to 1400: could not be read beyond 0: .* byte 700"):
        read.load().count()
