"""The load job's columns by Spark's SQL: one that comes later, the ones a table is partitioned by, and messages that an
expression cannot take, each of which is in one of two tables, once, whatever was killed when."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.errors import ConfigError
from fastlog.message import encode_set
from fastlog.spark.iceberg import IcebergLake
from fastlog.spark.jobs.expressions import Expressions
from fastlog.spark.lake import Lake, TableChange
from fastlog.spark.schema import USUAL, ddl
from fastlog.spark.upkeep import JoinOptions, join_files
from fastlog.tools.report import CommandError
from tests.harness.broker import Broker
from tests.harness.lake import rows_of, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

NUMBER = "n=cast(cast(value as string) as int)"
HALF = "half=100 div (cast(cast(value as string) as int) - 7)"


class Killed(BaseException):
    """The process is gone."""


class Job:
    """The load of one topic into one table, with the session that is there."""

    def __init__(self, broker: Broker, topic: str, directory: Path) -> None:
        self._given = ["--brokers", f"127.0.0.1:{broker.port}", "--topic", topic]
        self._broker = broker
        self.topic = topic
        self.table: Any = directory / "table"
        self.rejected: Any = directory / "rejected"

    def put(self, *values: object, partition: int = 0) -> None:
        with self._broker.connect() as client:
            client.produce_ack(self.topic, partition, encode_set([str(value).encode() for value in values]), acks=2)

    def run(self, *more: object) -> dict[str, Any]:
        """The summary of one run."""
        return run_job("load", *self._given, "--table", self.table, "--no-progress", *more)

    def reject(self, *more: object) -> dict[str, Any]:
        """The same with the other table."""
        return self.run("--rejected", self.rejected, *more)

    def rows(self) -> list[dict[str, Any]]:
        """Of the table."""
        return rows_of(self.table)

    def rejects(self) -> list[dict[str, Any]]:
        """Of the other table."""
        return rows_of(self.rejected) if (self.rejected / "_delta_log").exists() else []

    def reasons(self) -> dict[str, str]:
        """Of the messages that were rejected; fails where one is there twice."""
        rows = self.rejects()
        found = {row["value"].decode(): row["reason"] for row in rows}
        assert len(found) == len(rows)
        return found

    def values(self) -> list[str]:
        """Of the table, sorted."""
        return sorted(row["value"].decode() for row in self.rows())


class IcebergJob(Job):
    """The same into tables of Iceberg."""

    def __init__(self, broker: Broker, topic: str, directory: Path) -> None:
        super().__init__(broker, topic, directory)
        self.table, self.rejected = "iceberg:tried/lake.logs", "iceberg:tried/lake.rejected"

    def rows(self) -> list[dict[str, Any]]:
        return self._rows_of("logs")

    def rejects(self) -> list[dict[str, Any]]:
        return self._rows_of("rejected")

    def _rows_of(self, name: str) -> list[dict[str, Any]]:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("tried")
        if not catalog.table_exists(f"lake.{name}"):
            return []
        rows: list[dict[str, Any]] = catalog.load_table(f"lake.{name}").scan().to_arrow().to_pylist()
        return rows


@pytest.fixture
def job(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Job:
    """A load of this test's topic."""
    return Job(broker, topic, tmp_path)


@pytest.fixture
def iceberg_job(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Job:
    """The same of a catalog of this test's own."""
    pytest.importorskip("pyiceberg", reason="pip install '.[iceberg]'")
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__TRIED__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__TRIED__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # a process reads the environment once
    return IcebergJob(broker, topic, tmp_path)


@pytest.fixture(params=["job", "iceberg_job"])
def either(request: pytest.FixtureRequest) -> Job:
    """A load into tables of each kind."""
    found: Job = request.getfixturevalue(request.param)
    return found


def test_a_column_that_comes_later(job: Job) -> None:
    """Null in the rows before; ``--from`` fills it; joined files have it as it is."""
    job.put(1, 2)
    job.run()
    job.put(3)
    job.run("--column", NUMBER)
    assert {row["value"]: row["n"] for row in rows_of(job.table)} == {b"1": None, b"2": None, b"3": 3}
    job.put(4)
    with pytest.raises(ConfigError, match="the column n is int32 in the table, and not there in what is to be added"):
        job.run()
    assert join_files(Lake(job.table), JoinOptions()).files_before == 2
    assert {row["value"]: row["n"] for row in rows_of(job.table)} == {b"1": None, b"2": None, b"3": 3}
    summary = job.run("--column", NUMBER, "--from", json.dumps({job.topic: {"0-0": 11}}))
    assert (summary["replaced_rows"], summary["rows"]) == (2, 3)
    assert {row["value"]: row["n"] for row in rows_of(job.table)} == {b"1": None, b"2": 2, b"3": 3, b"4": 4}
    names = Lake(job.table).column_names
    assert names.count("n") == 1
    assert [notes["columns"] for _, notes in Lake(job.table).history() if "columns" in notes] == [["n"]]


@pytest.mark.parametrize(
    ("time", "columns", "needed"),
    [
        (None, {"size": "length(value)"}, ("value",)),
        (None, {"a": "1", "b": "offset + 1"}, ()),
        ("timestamp_millis(length(value))", {"day": "date(timestamp)", "k": "key"}, ("key", "value")),
        ("timestamp + interval 1 hour", {}, ("timestamp",)),
        (None, {"one": "explode(array(value, key))"}, None),
        (None, {"n": "row_number() over (order by offset)"}, None),
        (None, {"a": "length(key)", "b": "a + 1"}, ("key",)),
    ],
)
def test_what_spark_is_given_for_an_expression(
    spark: SparkSession, time: str | None, columns: dict[str, str], needed: tuple[str, ...] | None
) -> None:
    frame = spark.createDataFrame([], ddl(USUAL))
    assert Expressions(time, columns, ("value",)).needed(frame) == needed


def test_several_rows_of_one_message(job: Job) -> None:
    """Whole rows go through Spark then, and each message gives what the expression says."""
    job.put("a b", "c")
    job.run("--column", "word=explode(split(cast(value as string), ' '))")
    assert sorted((row["value"], row["word"]) for row in rows_of(job.table)) == [
        (b"a b", "a"),
        (b"a b", "b"),
        (b"c", "c"),
    ]


def test_partition_columns_of_ones_choice(job: Job, spark: SparkSession) -> None:
    """Every reader finds their values, an empty text is null, and ``--from`` finds the rows that it replaces."""
    import duckdb
    import polars
    from deltalake import DeltaTable

    from fastlog.spark.lake import read_table

    job.put("a b=c%2F", "a", "a", "b", "")
    kind = ("--column", "kind=cast(value as string)", "--column", "size=length(value)")
    for columns, told in (
        ("kind,nosuch", "--partition-by nosuch: the columns are topic, date, broker"),
        ("value", "--partition-by value: is binary; a text, a whole number or a day"),
        ("kind,Kind", "names a column twice"),
    ):
        with pytest.raises(ConfigError, match=told):
            job.run(*kind, "--partition-by", columns)
    job.run(*kind, "--partition-by", "kind,size")
    expected = {("a b=c%2F", 8, 1), ("a", 1, 2), ("b", 1, 1), (None, 0, 1)}
    dataset = DeltaTable(str(job.table)).to_pyarrow_dataset()
    question = "SELECT kind, size, count(*) FROM {} GROUP BY ALL"
    assert dataset is not None
    with closing(duckdb.connect()) as connection:
        assert set(connection.sql(question.format("dataset")).fetchall()) == expected
    assert set(polars.read_delta(str(job.table)).group_by("kind", "size").len().rows()) == expected
    read_table(spark, job.table).createOrReplaceTempView("parted")
    assert {tuple(row) for row in spark.sql(question.format("parted")).collect()} == expected
    assert {tuple(file.values) for file in Lake(job.table).files()} == {("kind", "size")}
    job.put("b")
    summary = job.run(*kind, "--from", "earliest")
    assert (summary["replaced_rows"], summary["rows"]) == (5, 6)
    assert job.values() == ["", "a", "a", "a b=c%2F", "b", "b"]


def test_by_topic_alone(job: Job) -> None:
    """Without expressions, too; the date is a column of the files then."""
    job.put(1, 2)
    job.run("--partition-by", "topic")
    (file,) = Lake(job.table).files()
    assert dict(file.values) == {"topic": job.topic}
    assert {row["date"] for row in rows_of(job.table)} == {datetime.now(UTC).date()}
    job.put(3)
    job.run()
    assert job.values() == ["1", "2", "3"]


def test_messages_that_an_expression_cannot_take(job: Job) -> None:
    """Each with where it is and why; the others are rows, and of both each once."""
    job.put(1, "x", 7, 3)
    job.put("y", partition=1)
    given = ("--column", NUMBER, "--column", HALF)
    with pytest.raises(CommandError, match="CAST_INVALID_INPUT"):
        job.run(*given)
    summary = job.reject(*given)
    assert (summary["rows"], summary["rejected"], summary["failures"]) == (2, 3, 0)
    assert {row["value"]: (row["n"], row["half"]) for row in rows_of(job.table)} == {b"1": (1, -16), b"3": (3, -25)}
    reasons = job.reasons()
    assert sorted(reasons) == ["7", "x", "y"]
    assert reasons["7"].startswith("half: [DIVIDE_BY_ZERO]")
    assert reasons["x"].startswith("n: [CAST_INVALID_INPUT] The value 'x'") and "; half: [CAST_INV" in reasons["x"]
    places = {
        row["value"]: (row["topic"], row["broker"], row["partition"], row["offset"]) for row in rows_of(job.rejected)
    }
    assert places == {b"x": (job.topic, 0, 0, 11), b"7": (job.topic, 0, 0, 22), b"y": (job.topic, 0, 1, 0)}
    notes = next(notes for _, notes in Lake(job.table).history() if "rejected" in notes)
    assert (notes["rows"], notes["rejected"]["rows"]) == (2, 3)
    job.put(8, "z")
    assert job.reject(*given)["rejected"] == 1
    assert job.reject(*given)["batches"] == 0
    assert (job.values(), sorted(job.reasons())) == (["1", "3", "8"], ["7", "x", "y", "z"])


def test_a_time_that_cannot_be_read(job: Job) -> None:
    """The rejected message has the time of the source, and none of its own."""
    job.put("2026-05-17T08:00:00Z", "yesterday")
    job.reject("--time", "cast(value as string)")
    assert [(row["value"], str(row["date"])) for row in rows_of(job.table)] == [(b"2026-05-17T08:00:00Z", "2026-05-17")]
    (row,) = rows_of(job.rejected)
    assert row["timestamp"] is None and row["reason"].startswith("timestamp: [CAST_INVALID_INPUT]")


def test_an_expression_that_is_wrong_rejects_nothing(job: Job) -> None:
    """One that Spark does not know, and one that fails on too many messages: the table is as it was."""
    job.put(*"abcdef")
    with pytest.raises(Exception, match="nosuch"):
        job.reject("--column", "x=nosuch(value)")
    with pytest.raises(
        ConfigError, match=r"more than 5 messages of a batch would be rejected, such as one with n: \[CAST"
    ):
        job.reject("--column", NUMBER, "--most-rejected", 5)
    assert job.reasons() == {}
    assert job.reject("--column", NUMBER, "--most-rejected", 6)["rejected"] == 6
    assert len(job.reasons()) == 6


def test_again_replaces_what_was_rejected(either: Job) -> None:
    """With an expression that takes more, and with one that takes less; before the place nothing changes."""
    job = either
    job.put(1, "x", 2, "y", "z")
    job.reject("--column", NUMBER)
    assert sorted(job.reasons()) == ["x", "y", "z"]
    better = "n=cast(replace(cast(value as string), 'y', '25') as int)"
    place = json.dumps({job.topic: {"0-0": 22}})
    summary = job.reject("--column", better, "--from", place)
    assert (summary["rows"], summary["rejected"]) == (2, 1)
    assert sorted(job.reasons()) == ["x", "z"]
    assert {row["value"]: row["n"] for row in job.rows()} == {b"1": 1, b"2": 2, b"y": 25}
    job.reject("--column", "n=cast(try_cast(cast(value as string) as int) as int)", "--from", "earliest")
    assert job.reasons() == {}
    assert job.values() == ["1", "2", "x", "y", "z"]


def test_a_replacement_that_is_killed(iceberg_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see the old rows or the new ones; small files may be joined meanwhile."""
    job = iceberg_job
    job.put(1, 2, 3)
    job.run("--column", NUMBER)
    job.put(4)
    assert job.run("--column", NUMBER, "--optimize-at", 2)["joined_files"] == 2
    attempt = IcebergLake._attempt

    def before_it(self: IcebergLake, change: TableChange, identity: str) -> None:
        raise Killed

    def behind_it(self: IcebergLake, change: TableChange, identity: str) -> None:
        attempt(self, change, identity)
        raise Killed

    again = ("--column", "n=-cast(cast(value as string) as int)", "--from", json.dumps({job.topic: {"0-0": 22}}))
    old, new = [(1, 1), (2, 2), (3, 3), (4, 4)], [(1, 1), (2, 2), (3, -3), (4, -4)]
    for killing, found in ((before_it, old), (behind_it, new)):
        with monkeypatch.context() as patch:
            patch.setattr(IcebergLake, "_attempt", killing)
            with pytest.raises(Killed):
                job.run(*again)
        assert sorted((int(row["value"]), row["n"]) for row in job.rows()) == found
    summary = job.run(*again)
    assert (summary["replaced_rows"], summary["rows"]) == (2, 2)
    assert sorted((int(row["value"]), row["n"]) for row in job.rows()) == new


def test_killed_between_the_two_tables(either: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is in one of them, once; also when the next load takes what this one has rejected.

    Killed elsewhere: tests/unit/test_spark_rejects.py, test_spark_loader.py and test_spark_iceberg.py, without Spark.
    """
    job = either
    job.put(1, "x", 2)
    kind: Any = IcebergLake if isinstance(job, IcebergJob) else Lake
    commit = kind.commit

    def killing(self: Any, change: TableChange) -> None:
        if str(self) == str(job.rejected) and change.added:
            raise Killed
        commit(self, change)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "commit", killing)
        with pytest.raises(Killed):
            job.reject("--column", NUMBER)
    assert (job.values(), job.reasons()) == (["1", "2"], {})
    job.put("y")
    job.reject("--column", "n=cast(replace(cast(value as string), 'x', '24') as int)")
    assert (job.values(), sorted(job.reasons())) == (["1", "2"], ["x", "y"])
