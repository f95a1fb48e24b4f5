"""Delta's and Iceberg's own code for Spark: a stream of the source into a table by Delta's sink is exact through kills;
what ``load`` writes as Iceberg, Spark's Iceberg and DuckDB's read, and Iceberg's tools rewrite between loads."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.spark.iceberg import IcebergLake
from fastlog.spark.upkeep import JoinOptions, join_files
from tests.fault.programs import ROOT
from tests.fault.upkeep_program import loader_of
from tests.harness.broker import Broker
from tests.harness.fake_broker import FakeBroker
from tests.harness.small_loads import expected, put
from tests.harness.spark_driver import LOCAL_SETTINGS, Driver
from tests.harness.spark_jobs import produce

LAKES = "FASTLOG_SPARK_LAKES"
"""Names a directory with jars, a pyspark of each version that they are for, and a DuckDB; ``scripts/compat`` does."""

pytestmark = [
    pytest.mark.java,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(LAKES not in os.environ, reason=f"{LAKES} names no jars and Sparks: scripts/compat does"),
]

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
    assert given
    settings = {
        **LOCAL_SETTINGS,
        "spark.jars": given,
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        **told.pop("settings"),
    }
    path = f"{lakes / f'pyspark-{version}'}:{ROOT}"
    known = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    known = {name: value for name, value in known.items() if name != "SPARK_HOME"}
    command = [sys.executable, "-m", f"tests.compat.lakes.{name}", json.dumps({**told, "settings": settings})]
    return Driver(command, directory / f"{name}.log", directory=directory, environment=known)


def test_a_stream_into_delta_is_exact_through_kills(tmp_path: Path) -> None:
    """Of its driver with all that belongs to it, and of the broker."""
    from deltalake import DeltaTable

    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    source = random.Random(seed)
    sent = 0

    def send() -> None:
        nonlocal sent
        for partition in range(2):
            produce(broker, "t", partition, sent, sent + 500)
            sent += 500

    with Broker(tmp_path / "broker", settings={"num.partitions": 2}) as broker:
        options = {"brokers": f"127.0.0.1:{broker.port}", "subscribe": "t", "startingOffsets": "earliest"}
        options |= {"maxBytesPerTrigger": "5000", "fetch.numRetries": "20", "columns": "topic,partition,offset,value"}
        given = {"settings": DELTA, "source": options}
        given |= {"checkpoint": str(tmp_path / "checkpoint"), "table": str(tmp_path / "table")}
        send()
        for life in range(3):
            driver = program("sink_program", "4.2", "delta- unitycatalog-", tmp_path, **given, to_the_end=False)
            try:
                driver.wait_said(r"batch \d+", source.randint(1, 2))
                send()
                if life == 1:
                    broker.kill_all()
                    broker._wanted_port = broker.port
                    broker.start()
                    driver.wait_said(r"batch \d+", driver.count(r"batch \d+") + 1)
            finally:
                driver.kill()
        driver = program("sink_program", "4.2", "delta- unitycatalog-", tmp_path, **given, to_the_end=True)
        assert driver.end()[0] == 0
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    assert sorted(int(value) for value in rows["value"].to_pylist()) == list(range(sent))
    assert len(set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))) == sent


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg", reason="pip install '.[iceberg]'")
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # a process reads the environment once


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as made:
        yield made


def test_what_a_load_writes_as_iceberg_is_read_by_others(catalog: None, fake: FakeBroker, tmp_path: Path) -> None:
    """Also once files were joined. When Iceberg's own tools have rewritten files and let snapshots go, the load goes on
    where it was, and files are joined again."""
    settings = {
        **ICEBERG,
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "spark.sql.catalog.lake.warehouse": f"file://{tmp_path}/warehouse",
    }
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
