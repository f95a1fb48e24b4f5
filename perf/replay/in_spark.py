"""Jobs of Spark with two cores: reading a topic and writing one in a warm session, which is not timed; loading one into
a table in a process of its own, which is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.replay.stage import MESSAGE_BYTES, ReplayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
MASTER = f"local[{CORES}]"
JARS_VARIABLE = "FASTLOG_SPARK_KAFKA_JARS"
"""Names the jars of Spark's own source for Kafka: files separated by commas, or a directory of them."""

JARS = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
"""How the names of those begin that Spark does not have by itself."""

_WARM_RUNS = 2
_ID_DIGITS = 20

Work = Callable[[], dict[str, Any]]


def connector_jars() -> str | None:
    """The jars of Spark's source for Kafka as Spark wants them, or None."""
    value = os.environ.get(JARS_VARIABLE, "")
    if Path(value).is_dir() and value:
        return ",".join(sorted(str(path) for path in Path(value).glob("*.jar"))) or None
    return value or None


def without_connector() -> str | None:
    """What is missing before Spark can be given the jars, in one line; None when the files are there."""
    named = connector_jars()
    if named is None:
        return f"{JARS_VARIABLE} does not name the jars of Spark's source for Kafka"
    lost = [one for one in named.split(",") if not Path(one).is_file()]
    if lost:
        return f"{JARS_VARIABLE} names {lost[0]}, which is no file"
    lacking = [name for name in JARS if not any(Path(one).name.startswith(name) for one in named.split(","))]
    return f"{JARS_VARIABLE} names no {lacking[0]}….jar" if lacking else None


def counting(port: int, topic: str, messages: int, runs: int, direct: str) -> Work:
    """Count a topic's messages with their offsets and values, ``runs`` times."""
    spark = _session()
    chosen = {"brokers": f"127.0.0.1:{port}", "subscribe": topic, "columns": "offset,value", "direct": direct}
    return _timed(lambda: spark.read.format("fastlog").options(**chosen).load().count(), messages, runs)


def counting_kafka(address: str, topic: str, messages: int, runs: int, jars: str) -> Work:
    """The same of a topic of Apache Kafka by Spark's own source, which is told to give each core a part of it."""
    spark = _session({"spark.jars": jars})
    chosen = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.read.format("kafka").options(**chosen, minPartitions=CORES)
    return _timed(lambda: frame.load().select("offset", "value").count(), messages, runs)


def counting_prebuilt(messages: int, runs: int) -> Work:
    """The same count of rows that are there already: what Spark takes from any source in Python."""
    from perf.replay.prebuilt import NAME, PrebuiltSource

    spark = _session()
    spark.dataSource.register(PrebuiltSource)
    chosen = {"rows": messages, "value_bytes": MESSAGE_BYTES}
    return _timed(lambda: spark.read.format(NAME).options(**chosen).load().count(), messages, runs)


def writing(port: int, topic: str, messages: int, runs: int, acks: str) -> Work:
    """Write that many rows to a topic, ``runs`` times; they are made on the way, which is part of the time."""
    spark = _session()
    rest = "x" * (MESSAGE_BYTES - _ID_DIGITS)
    frame = spark.range(0, messages, numPartitions=2).selectExpr(
        f"concat(lpad(id, {_ID_DIGITS}, '0'), '{rest}') AS value"
    )
    chosen = {"brokers": f"127.0.0.1:{port}", "topic": topic, "acks": acks}

    def write() -> int:
        frame.write.format("fastlog").mode("append").options(**chosen).save()
        return messages  # a task that cannot write all of its rows fails

    return _timed(write, messages, runs)


def loading(port: int, topic: str, messages: int, runs: int, directory: str) -> Work:
    """Load a topic into a new table as a user does, ``runs`` times: from the start of the process to its end."""

    def once(number: int) -> float:
        command = [sys.executable, "-m", "fastlog.spark.jobs.load", "--brokers", f"127.0.0.1:{port}", "--topic", topic]
        command += ["--table", str(Path(directory) / f"table{number}"), "--master", MASTER, "--no-progress"]
        started = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        seconds = time.monotonic() - started
        if done.returncode:
            raise ReplayError(_reason(done.stderr))
        rows = json.loads(done.stdout.splitlines()[-1])["rows"]
        if rows != messages:
            raise ReplayError(f"{rows} rows instead of {messages}")
        return seconds

    return lambda: _middle([once(number) for number in range(runs)], messages)


def _session(settings: dict[str, str] | None = None) -> SparkSession:
    from fastlog.spark import session

    made = session(
        "fastlog-perf",
        master=MASTER,
        settings={"spark.ui.enabled": "false", "spark.driver.memory": "2g", **(settings or {})},
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def _timed(run: Callable[[], int], messages: int, runs: int) -> Work:
    def once() -> float:
        started = time.monotonic()
        try:
            found = run()
        except Exception as error:  # Spark's own kinds; the replay shows one line
            raise ReplayError(_reason(str(error))) from error
        if found != messages:
            raise ReplayError(f"{found} rows instead of {messages}")
        return time.monotonic() - started

    for _ in range(_WARM_RUNS):  # the first ones wait for Java's compiler and for the workers to be started
        once()

    return lambda: _middle([once() for _ in range(runs)], messages)


def _middle(seconds: list[float], messages: int) -> dict[str, Any]:
    middle = statistics.median(seconds)
    return {"rate": messages / middle, "seconds": middle, "slowest_seconds": max(seconds), "messages": messages}


def _reason(text: str) -> str:
    """The line of an error of Spark's that says what went wrong in a worker, or its first one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("fastlog.errors.")]
    return (ours or lines or ["no reason was given"])[-1 if ours else 0]
