"""Delta's and Iceberg's own code for Spark: streams of the source into tables by their sinks are exact through kills;
what ``load`` writes as Iceberg, Spark's Iceberg and DuckDB's read, and Iceberg's tools rewrite between loads."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.message import shallow
from fastlog.record_batches import Record, build
from fastlog.spark.iceberg import IcebergLake
from fastlog.spark.upkeep import JoinOptions, join_files
from tests.fault.programs import ROOT
from tests.fault.upkeep_program import loader_of
from tests.harness.broker import Broker
from tests.harness.fake_broker import FakeBroker
from tests.harness.ports import unused_port
from tests.harness.small_loads import expected, put
from tests.harness.spark_driver import Driver
from tests.harness.spark_jobs import produce
from tests.harness.spark_start import LOCAL_SETTINGS

LAKES = "FASTLOG_SPARK_LAKES"
"""Names a directory with jars, a pyspark of each version that they are for, and a DuckDB; ``scripts/compat`` does."""

pytestmark = [
    pytest.mark.java,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(LAKES not in os.environ, reason=f"{LAKES} names no jars and Sparks: scripts/compat does"),
]

MESSAGES, RECORDS = "messages", "records"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
ICEBERG = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "jdbc",
}


def program(name: str, version: str, jars: str, directory: Path, **told: Any) -> Driver:
    """One of those in tests/compat/lakes, in the Spark of a version with jars of names that begin so."""
    lakes = Path(os.environ[LAKES])
    given = ",".join(str(path) for path in (lakes / "jars").glob("*.jar") if path.name.startswith(tuple(jars.split())))
    assert bool(given) == bool(jars)
    settings = {
        **LOCAL_SETTINGS,
        **({"spark.jars": given} if given else {}),
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.shuffle.partitions": "1",
        **told.pop("settings"),
    }
    path = f"{lakes / f'pyspark-{version}'}:{ROOT}"
    known = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    known = {name: value for name, value in known.items() if name != "SPARK_HOME"}
    command = [sys.executable, "-m", f"tests.compat.lakes.{name}", json.dumps({**told, "settings": settings})]
    return Driver(command, directory / f"{name}.log", directory=directory, environment=known)


def sent_through_kills(
    directory: Path, version: str, jars: str, settings: dict[str, str], tables: Mapping[str, str], **source: str
) -> list[int]:
    """Stream topics of both kinds into tables through three kills of the driver with all that belongs to it, one of the
    broker between them, and from there to their ends. ``tables``: format and table.

    Returns the messages of each topic, which are numbers.
    """
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    sent = 0

    def send() -> None:
        nonlocal sent
        for partition in range(2):
            produce(broker, MESSAGES, partition, sent, sent + 500)
            batch = build([Record(None, b"%d" % number, 0) for number in range(sent, sent + 500)])
            with RecordBroker([Address("127.0.0.1", broker.port)], timeout=20) as records:
                records.append({(RECORDS, partition): batch}, is_flushed=True)
            sent += 500

    with Broker(directory / "broker", settings={"num.partitions": 2}, port=unused_port()) as broker:
        with RecordBroker([Address("127.0.0.1", broker.port)], timeout=20) as records:
            records.create(RECORDS, 2, {})
        options = {"brokers": f"127.0.0.1:{broker.port}", "startingOffsets": "earliest", "fetch.numRetries": "20"}
        options |= {"columns": "topic,partition,offset,value", **source}
        streams = [
            {
                "source": {**options, "subscribe": topic},
                "checkpoint": str(directory / f"checkpoint-{topic}"),
                "format": tables["format"],
                "table": tables[topic],
            }
            for topic in (MESSAGES, RECORDS)
        ]
        send()
        for life in range(3):
            driver = program("sink_program", version, jars, directory, settings=settings, streams=streams, ends=0)
            try:
                for topic in (MESSAGES, RECORDS):
                    driver.wait_said(f"{topic}: batch")
                send()
                if life == 1:
                    broker.kill_all()
                    broker.start()
                    driver.wait_said("s: batch", driver.count("s: batch") + 1)
                time.sleep(chosen.uniform(0, 2))  # somewhere in a batch
            finally:
                driver.kill()
            send()
        # Spark 4.1 ends behind a batch that was begun before.
        driver = program(
            "sink_program",
            version,
            jars,
            directory,
            settings=settings,
            streams=streams,
            ends=2 if version == "4.1" else 1,
        )
        assert driver.end()[0] == 0
    return list(range(sent))


def check_rows(rows: Any, sent: list[int]) -> None:
    """Each message once, in a row of its own."""
    assert sorted(int(value) for value in rows["value"].to_pylist()) == sent
    assert len(set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))) == len(sent)


def test_streams_into_delta_are_exact_through_kills(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    tables = {topic: str(tmp_path / topic) for topic in (MESSAGES, RECORDS)}
    limit = {"maxBytesPerTrigger": "5000"}
    jars = "delta- unitycatalog-"
    sent = sent_through_kills(tmp_path, "4.2", jars, DELTA, {"format": "delta", **tables}, **limit)
    for table in tables.values():
        check_rows(DeltaTable(table).to_pyarrow_table(), sent)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg", reason="pip install '.[iceberg]'")
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # a process reads the environment once


def iceberg_in(directory: Path) -> dict[str, str]:
    """Spark's settings for that catalog."""
    return {
        **ICEBERG,
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{directory}/catalog.db",
        "spark.sql.catalog.lake.warehouse": f"file://{directory}/warehouse",
    }


def test_streams_into_iceberg_are_exact_through_kills(catalog: None, tmp_path: Path) -> None:
    """In Spark 4.1, which is the newest that Iceberg is made for, and limits no batches."""
    import pyarrow as pa
    from pyiceberg.catalog import load_catalog

    lake = load_catalog("lake")
    lake.create_namespace("db")
    columns = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "value": pa.binary()}
    tables = {topic: f"lake.db.{topic}" for topic in (MESSAGES, RECORDS)}
    for topic in tables:
        lake.create_table(f"db.{topic}", pa.schema(list(columns.items())))
    tables["format"] = "iceberg"
    sent = sent_through_kills(tmp_path, "4.1", "iceberg- sqlite-", iceberg_in(tmp_path), tables)
    for topic in (MESSAGES, RECORDS):
        check_rows(lake.load_table(f"db.{topic}").scan().to_arrow(), sent)


def test_what_works_in_spark_4_1(tmp_path: Path) -> None:
    """A batch read, a batch write, a stream from topic to topic that is begun twice, and a load; a limit is refused."""
    from deltalake import DeltaTable

    with Broker(tmp_path / "broker", settings={"num.partitions": 2}) as broker:
        for partition in range(2):
            produce(broker, MESSAGES, partition, 500 * partition, 500 * partition + 500)
        told = {"topic": MESSAGES, "brokers": f"127.0.0.1:{broker.port}", "table": str(tmp_path / "table")}
        told |= {"checkpoint": str(tmp_path / "checkpoint"), "settings": {}}
        code, found = program("everything_program", "4.1", "", tmp_path, **told).end()
        assert code == 0
        assert found["spark"].startswith("4.1.")
        assert (found["counted"], found["loaded"]) == (1000, 1000)
        assert "maxBytesPerTrigger: Spark 4.2 or newer limits batches" in found["refused"]
        for topic in ("copy", "stream"):
            written = [at for at in range(2) if broker.has_directory(f"{MESSAGES}-{topic}", at)]
            logs = b"".join(broker.stored_bytes(f"{MESSAGES}-{topic}", at) for at in written)
            assert sorted(int(item.message.payload) for item in shallow(logs)) == list(range(1000))
    rows = DeltaTable(told["table"]).to_pyarrow_table()
    assert sorted(map(int, rows["value"].to_pylist())) == list(range(1000))
    assert set(rows["size"].to_pylist()) == {10}


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as made:
        yield made


def test_what_a_load_writes_as_iceberg_is_read_by_others(catalog: None, fake: FakeBroker, tmp_path: Path) -> None:
    """Also once files were joined. When Iceberg's own tools have rewritten files and let snapshots go, the load goes on
    where it was, and files are joined again."""
    settings = iceberg_in(tmp_path)
    name = "iceberg:lake/db.logs"

    def load(first: int, count: int) -> None:
        put(fake, first, count)
        loader_of(IcebergLake(name), fake.port).run()

    def read(*, rewrite: bool) -> dict[str, Any]:
        told = {"settings": settings, "table": "lake.db.logs", "day": "2023-11-14"}
        code, found = program("read_program", "4.1", "iceberg- sqlite-", tmp_path, **told, rewrite=rewrite).end()
        assert code == 0
        return found

    def read_by_duckdb() -> dict[str, Any]:
        path = IcebergLake(name)._opened.metadata_location.removeprefix("file://")
        command = [sys.executable, "-m", "tests.compat.lakes.duckdb_program", path, "2023-11-14"]
        known = {**os.environ, "PYTHONPATH": f"{Path(os.environ[LAKES]) / 'duckdb'}:{ROOT}"}
        found: dict[str, Any] = json.loads(subprocess.run(command, env=known, stdout=-1, check=True, cwd=ROOT).stdout)
        return found

    load(0, 20)
    load(20, 20)
    join_files(IcebergLake(name), JoinOptions())
    load(40, 10)
    assert sorted(read_by_duckdb()["rows"]) == sorted((found := read(rewrite=True))["rows"])
    assert [row[4].encode() for row in sorted(found["rows"], key=lambda row: row[3])] == expected((0, 50))
    assert {(row[0], row[1]) for row in found["rows"]} == {("t", "2023-11-14"), ("t", "2023-11-15")}
    assert found["of_a_day"] == 25
    assert found["operations"].count("replace") == 1
    load(50, 10)
    assert join_files(IcebergLake(name), JoinOptions()).transactions == 1
    for found in (read(rewrite=False), read_by_duckdb()):
        assert [row[4].encode() for row in sorted(found["rows"], key=lambda row: row[3])] == expected((0, 60))
        assert found["of_a_day"] == 30
