"""The load job: topics in a Delta table, each message once, whatever is tried again; and what others read in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.codecs import GZIP
from fastlog.errors import ConfigError, DataLossError, TableConflictError
from fastlog.message import encode_set
from fastlog.spark import row_files
from fastlog.spark.lake import Lake
from fastlog.tools.report import CommandError
from tests.harness.broker import Broker, wait_until
from tests.harness.lake import rows_of, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def produce(broker: Broker, topic: str, partition: int, numbers: Sequence[int], codec: int = 0) -> None:
    """Messages that are numbers of ten digits: 20 bytes each in the log."""
    with broker.connect() as client:
        payloads = [b"%010d" % number for number in numbers]
        client.produce_ack(topic, partition, encode_set(payloads, codec), acks=2)


class Job:
    """The load of one topic into one table, with the session that is there."""

    def __init__(self, broker: Broker, topic: str, table: Path) -> None:
        self._given = ["--brokers", f"127.0.0.1:{broker.port}", "--topic", topic, "--table", str(table)]
        self.table = table

    def run(self, *more: object) -> dict[str, Any]:
        """The summary of one run."""
        return run_job("load", *self._given, "--no-progress", *more)

    def lake(self) -> Lake:
        """The table, as it is now."""
        return Lake(self.table)

    @property
    def numbers(self) -> list[int]:
        """What the table holds, sorted."""
        return sorted(int(row["value"]) for row in rows_of(self.table))


@pytest.fixture
def job(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Job:
    """A load of this test's topic."""
    return Job(broker, topic, tmp_path / "table")


def test_a_topic_and_what_comes_later(job: Job, broker: Broker, topic: str) -> None:
    """In batches of a limited size; again for what is new, also in a new partition; and nothing where nothing is."""
    produce(broker, topic, 0, range(300), GZIP)
    produce(broker, topic, 1, range(300, 900))
    summary = job.run("--max-bytes", 6000)
    assert job.numbers == list(range(900))
    assert summary["rows"] == 900
    assert summary["batches"] >= 2
    assert summary["ranges"][topic]["0-1"] == [0, 12000]
    assert summary["lost_bytes"] == 0
    produce(broker, topic, 3, range(900, 950))
    summary = job.run()
    assert (summary["rows"], summary["batches"]) == (50, 1)
    assert job.numbers == list(range(950))
    again = job.run()
    assert (again["rows"], again["version"]) == (0, summary["version"])


def test_a_topic_that_begins_at_its_end(job: Job, broker: Broker, topic: str) -> None:
    """Where "latest" was is written down before anything is read: what comes afterwards is loaded, whenever that is."""
    produce(broker, topic, 0, range(40))
    assert job.run("--starting", "latest")["rows"] == 0
    produce(broker, topic, 0, range(40, 44))
    assert job.run("--starting", "latest", "--max-bytes", 1)["batches"] == 4, "less than a message: one at a time"
    assert job.numbers == list(range(40, 44))


def test_again_from_an_offset(job: Job, broker: Broker, topic: str) -> None:
    """The rows from there on are replaced in one transaction, and no others; what is new comes behind them."""
    produce(broker, topic, 0, range(100))
    produce(broker, topic, 1, range(100, 200))
    doubled = ("--column", "twice=2 * cast(cast(value as string) as int)")
    job.run("--max-bytes", 1500, *doubled)
    produce(broker, topic, 1, range(200, 210))
    tripled = ("--column", "twice=3 * cast(cast(value as string) as int)")
    summary = job.run("--from", json.dumps({topic: {"0-1": 1000}}), *tripled)
    assert (summary["replaced_rows"], summary["rows"], summary["batches"]) == (50, 60, 2)
    rows = {int(row["value"]): row["twice"] for row in rows_of(job.table)}
    assert rows == {n: (3 if n >= 150 else 2) * n for n in range(210)}
    assert job.numbers == list(range(210))
    with pytest.raises(ConfigError, match=f"the table has nothing of {topic}/0-2"):
        job.run("--from", json.dumps({topic: {"0-2": 0}}), *doubled)


def test_what_retention_took(
    spark: SparkSession, start_broker: Callable[..., Broker], topic: str, tmp_path: Path
) -> None:
    """It is an error that names the bytes, or is written down in the table, and the rest is loaded."""
    settings = {"log.file.size": 2000, "log.retention.size": 4000, "log.cleanup.interval.mins": 0.001}
    broker = start_broker(settings={**settings, "num.partitions": 1})
    job = Job(broker, topic, tmp_path / "table")
    produce(broker, topic, 0, range(10))
    assert job.run()["rows"] == 10
    for start in range(10, 1010, 100):
        produce(broker, topic, 0, range(start, start + 100))
    begin = 14_200  # of 20,200 bytes in segments of 4,000, the last of 2,000: one more would leave less than stays
    wait_until("retention", lambda: min(broker.segments(topic, 0)) == begin)
    with pytest.raises(DataLossError, match=rf"{topic}/0-0: bytes 200 to {begin} cannot be read any more"):
        job.run()
    summary = job.run("--skip-lost")
    assert summary["lost"] == {topic: {"0-0": [[200, begin]]}}
    assert summary["lost_bytes"] == begin - 200
    assert job.numbers == [*range(10), *range(begin // 20, 1010)]
    lake = job.lake()
    assert lake.number(f"fastlog.lost:{topic}/0-0") == begin - 200
    notes = [notes for _, notes in lake.history() if "lost" in notes]
    assert [(item["lost_bytes"], item["rows"]) for item in notes] == [(begin - 200, 1010 - begin // 20)]


def test_a_log_that_was_made_anew(
    spark: SparkSession, start_broker: Callable[..., Broker], topic: str, tmp_path: Path
) -> None:
    """It has grown past the place where the table stands: not a message of it is missing, and not in silence."""
    broker = start_broker(settings={"num.partitions": 1})
    job = Job(broker, topic, tmp_path / "table")
    produce(broker, topic, 0, range(10))
    assert job.run()["rows"] == 10
    broker.stop()
    shutil.rmtree(broker.partition_directory(topic, 0))
    broker.start()
    job = Job(broker, topic, job.table)  # it has another port
    produce(broker, topic, 0, range(100, 120))
    with pytest.raises(DataLossError, match=rf"{topic}/0-0: the log was deleted and made anew .*; --skip-lost goes on"):
        job.run()
    summary = job.run("--skip-lost")
    assert (summary["rows"], summary["lost"]) == (20, {topic: {"0-0": [[200, 200]]}})
    assert job.numbers == [*range(10), *range(100, 120)]
    assert job.run()["rows"] == 0


def test_readers_of_the_table(
    spark: SparkSession, broker: Broker, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Topics whose names need quoting and days of the messages' own: everybody reads the same rows."""
    import duckdb
    import polars
    from deltalake import DeltaTable

    from fastlog.spark.lake import read_table

    topics = [f"{new_topic()} a=b%2F", new_topic()]
    for topic in topics:
        produce(broker, topic, 0, range(0, 500_000, 1000))
    moment = "timestamp_seconds(1431820800 + cast(cast(value as string) as bigint))"
    job = Job(broker, topics[0], tmp_path / "table")
    job.run("--topic", topics[1], "--time", moment, "--compression", "zstd")
    table = DeltaTable(str(job.table))
    everything = table.to_pyarrow_table()
    assert everything.num_rows == 1000
    assert {(row["topic"], str(row["date"])) for row in everything.select(["topic", "date"]).to_pylist()} == {
        (topic, f"2015-05-{day}") for topic in topics for day in range(17, 23)
    }
    question = "SELECT topic, date, count(*) AS n FROM {} GROUP BY ALL ORDER BY ALL"
    dataset = table.to_pyarrow_dataset()
    assert dataset is not None
    with closing(duckdb.connect()) as connection:
        expected = connection.sql(question.format("dataset")).fetchall()
    assert sum(count for *_, count in expected) == 1000
    by_polars = polars.read_delta(str(job.table)).group_by("topic", "date").len().sort("topic", "date")
    assert by_polars.rows() == expected
    found = read_table(spark, job.table)
    found.createOrReplaceTempView("lake")
    assert [tuple(row) for row in spark.sql(question.format("lake")).collect()] == expected
    assert found.select("value").distinct().count() == 500
    later = polars.read_delta(str(job.table)).filter(
        polars.col("timestamp") >= polars.datetime(2015, 5, 22, time_zone="UTC")
    )
    assert later.height == 2 * (500 - 432)


def test_one_loader_at_a_time_and_what_a_dead_one_left(job: Job, broker: Broker, topic: str) -> None:
    """A second one is refused; what a killed one had written and not added is removed, or never seen."""
    from fastlog.spark.staging import TableStaging

    produce(broker, topic, 0, range(10))
    job.run()
    (row,) = job.table.rglob("*.parquet")
    left = job.lake().work_directory / "dead"
    left.mkdir()
    (left / "part-0.parquet").write_bytes(b"half")
    (row.parent / "part-1.parquet").write_bytes(row.read_bytes())
    with TableStaging(job.lake(), (), "none").alone(), pytest.raises(TableConflictError, match="fills this table"):
        job.run()
    produce(broker, topic, 0, range(10, 20))
    left.mkdir(exist_ok=True)
    assert job.run()["rows"] == 10
    assert job.numbers == list(range(20))
    assert not left.exists()


def test_a_transaction_whose_answer_is_lost(
    job: Job, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the table and the library fails: nobody brings the batch in again. It is not: it is tried again."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    produce(broker, topic, 0, range(30))
    job.run()
    real = DeltaTable.create_write_transaction
    calls: list[bool] = []

    def failing(self: DeltaTable, *given: Any, **named: Any) -> None:
        calls.append(True)
        if len(calls) == 2:
            real(self, *given, **named)
        if len(calls) <= 2:
            raise DeltaError("made up")
        real(self, *given, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    produce(broker, topic, 0, range(30, 50))
    assert job.run()["rows"] == 20
    assert len(calls) == 2
    assert job.numbers == list(range(50))


def test_a_disk_that_is_full(job: Job, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error that names it; the table is as it was, and goes on with what is missing once there is room."""
    produce(broker, topic, 0, range(10))
    job.run()
    produce(broker, topic, 0, range(10, 20))

    class Full(row_files.RowFiles):
        def write(self, task: Any) -> Any:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(row_files, "RowFiles", Full)
        with pytest.raises(CommandError, match=r"failed 2 times\nOSError: \[Errno 28\] No space left on device\n"):
            job.run("--attempts", 2)
    assert job.numbers == list(range(10))
    assert job.run()["rows"] == 10
    assert job.numbers == list(range(20))


def test_another_writer_of_the_table(job: Job, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are joined while a batch is written: both are in. The offsets are moved: that batch is not."""
    from deltalake import CommitProperties, DeltaTable, Transaction

    from fastlog.spark.staging import TableStaging

    for start in (0, 10):
        produce(broker, topic, 0, range(start, start + 10))
        job.run()
    real = TableStaging.write_messages
    others: list[Callable[[DeltaTable], object]] = [lambda table: table.optimize.compact()]

    def slow(self: TableStaging, *given: Any) -> Any:
        found = real(self, *given)
        if others:
            others.pop()(DeltaTable(str(job.table)))
        return found

    monkeypatch.setattr(TableStaging, "write_messages", slow)
    produce(broker, topic, 0, range(20, 30))
    job.run()
    assert job.numbers == list(range(30))
    assert len(DeltaTable(str(job.table)).file_uris()) == 2

    def move(table: DeltaTable) -> None:
        moved = CommitProperties(app_transactions=[Transaction(f"fastlog:{topic}/0-0", 700)])
        table.create_write_transaction([], "append", table.schema(), ["topic", "date"], commit_properties=moved)

    others.append(move)
    produce(broker, topic, 0, range(30, 50))
    summary = job.run()
    assert (summary["failures"], summary["rows"]) == (1, 15)
    assert job.numbers == [*range(30), *range(35, 50)]


def test_errors(job: Job, broker: Broker, topic: str) -> None:
    with pytest.raises(ConfigError, match=f"no broker has the topic '{topic}'"):
        job.run()
    with pytest.raises(ConfigError, match="--from: there is no table"):
        job.run("--from", "earliest")
    with pytest.raises(ConfigError, match="the job sets it itself"):
        job.run("-o", "endingOffsets=latest")
    produce(broker, topic, 0, range(3))
    with pytest.raises(Exception, match="nosuch"):
        job.run("--column", "x=nosuch(value)")
    job.run("--column", "x=cast(value as string)")
    version = job.lake().version
    produce(broker, topic, 0, range(3, 4))
    for column, told in (
        ("x=length(value)", "the column x is string in the table, and int32 in what is to be added"),
        ("y=length(value)", "the column x is string in the table, and not there in what is to be added"),
    ):
        with pytest.raises(ConfigError, match=told):
            job.run("--column", column)
    with pytest.raises(ConfigError, match="--rejected: there is no --column"):
        job.run("--rejected", job.table / "other")
    with pytest.raises(ConfigError, match="is the table that is filled"):
        job.run("--column", "x=cast(value as string)", "--rejected", job.table)
    with pytest.raises(ConfigError, match="is partitioned by topic,date, which stays"):
        job.run("--partition-by", "topic")
    assert job.lake().version == version
    assert job.lake().column_names[-1] == "x"
    assert job.numbers == [0, 1, 2]


@pytest.mark.parametrize("name", ["t[1] {a,b}*", "50%?ü#"])
def test_a_table_is_read_in_a_directory_of_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark takes what it is to read for a pattern."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fastlog.spark.entries import NewFile, stats_of
    from fastlog.spark.lake import Lake, TableChange, read_table

    lake = Lake(tmp_path / name)
    lake.create(pa.schema([("n", pa.int64()), ("p", pa.string())]), ["p"])
    path = lake.directory / "p=%5B" / "x.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"n": pa.array([7], pa.int64())}), path)
    file = NewFile("p=%5B/x.parquet", path.stat().st_size, {"p": "["}, 1, stats_of(1))
    lake.commit(TableChange({}, [file]))
    assert [tuple(row) for row in read_table(spark, tmp_path / name).collect()] == [(7, "[")]
