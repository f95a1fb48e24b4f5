"""A Spark session, and brokers with a ZooKeeper, for all modules that need one: to start them takes long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.real_kafka07 import VARIABLE
from tests.harness.site import Site, Tools, open_site
from tests.harness.spark_start import LOCAL_SETTINGS, quick_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
CONNECTOR_JARS = "FASTLOG_SPARK_KAFKA_JARS"
"""Names the jars of Spark's own source and sink for Kafka, with commas between them; ``scripts/compat`` does."""
collect_ignore = [] if VARIABLE in os.environ else ["test_kafka07.py", "test_kafka07_answers.py"]
"""Kafka 0.7 is in no package index: who has built it names it."""


@pytest.fixture(autouse=True)
def active_session(request: pytest.FixtureRequest) -> None:
    """Whatever a test before has done to the session of the thread."""
    if "spark" in request.fixturenames:
        from fastlog.spark.environment import activate

        activate(request.getfixturevalue("spark"))


# The one that Spark takes by itself starts a program, readlink, four times for each file of a checkpoint.
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

# Each query of a test is a new one, over a few rows: to compile Java for it takes longer than to run it. Programs that
# tests start have sessions of their own, which do compile.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Small, and as a user's: workers find the source as an installed one, by its name."""
    from fastlog.spark import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        scratch = str(tmp_path_factory.mktemp("spark"))
        settings = {
            **LOCAL_SETTINGS,
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": scratch,
            "spark.sql.shuffle.partitions": "2",
            "spark.python.daemon.module": "tests.harness.spark_daemon",
            "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
            **INTERPRETED,
        }
        if CONNECTOR_JARS in os.environ:
            settings["spark.jars"] = os.environ[CONNECTOR_JARS]
        with pytest.MonkeyPatch.context() as starting:
            starting.setenv("SPARK_HOME", str(quick_home()))
            made = session("fastlog-tests", master="local[2,4]", settings=settings)
        made.sparkContext.setLogLevel("ERROR")
        yield made
        gateway = made.sparkContext._gateway
        made.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(30)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Two brokers with two partitions for each topic, and the topic ``logs``, which nobody changes."""
    with open_site() as made:
        yield made


@pytest.fixture
def tools(site: Site, capfd: pytest.CaptureFixture[str]) -> Tools:
    """The commands, with the site's ZooKeeper."""
    return Tools(capfd, site.connect)
