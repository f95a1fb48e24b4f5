"""``python -m perf.spark_records``: topics of record batches in Spark, by fastlog's source and by its own for Kafka.

The same batches are in a broker of fastlog and in an Apache Kafka, if one is named; each source reads its own, and
Spark's own reads fastlog's broker as well. One warm session with two cores; in each round every source does every step,
in an order that turns round from one to the next, since a busy machine favours whoever comes at the right moment. What
counts are ratios of medians.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow.parquet as parquet_file  # type: ignore[import-untyped]

from fastlog import testing
from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.records import RecordBroker
from fastlog.record_batches import Record, build
from perf.command import run, say
from perf.replay.in_spark import CORES, MASTER, connector_jars, without_connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "records"
VALUE_BYTES = 200
PER_BATCH = 500
OURS, SOCKET, THEIRS, THEIRS_HERE = (
    "fastlog",
    "fastlog, by Fetch",
    "Spark's own, of Apache Kafka",
    "Spark's own, of fastlog",
)

Step = Callable[["DataFrame", Path], int]


def count(frame: DataFrame, place: Path) -> int:
    """Count rows by their offsets and values, which reads both columns."""
    return frame.select("offset", "value").count()


def length(frame: DataFrame, place: Path) -> int:
    """The bytes of all values, as a number of records."""
    return int(frame.selectExpr("sum(length(value))").first()[0]) // VALUE_BYTES  # type: ignore[index]


def parquet(frame: DataFrame, place: Path) -> int:
    """Values into Parquet files, which are removed in the end."""
    frame.select("value").write.mode("overwrite").parquet(str(place))
    return sum(parquet_file.read_metadata(path).num_rows for path in place.glob("*.parquet"))


STEPS: dict[str, Step] = {"count": count, "sum(length(value))": length, "into Parquet": parquet}


def create_topic(address: Address, topic: str, partitions: int) -> None:
    """A topic of record batches that can be written to when this returns."""
    with RecordBroker([address], timeout=60) as records:
        records.create(topic, partitions, {})
        deadline = time.monotonic() + 60
        while not records.known_topics([topic])[topic].partitions and time.monotonic() < deadline:
            time.sleep(0.2)


def append_batches(address: Address, topic: str, partitions: int, batches: Iterable[bytes]) -> None:
    """Batches in turn to the partitions of a topic."""
    with RecordBroker([address], timeout=60) as records:
        for number, batch in enumerate(batches):
            records.append({(topic, number % partitions): batch}, is_flushed=False)


def fill(address: Address, messages: int, partitions: int) -> None:
    """A topic with ``messages`` records of 200 bytes, in batches as producers make them."""
    create_topic(address, TOPIC, partitions)
    now = time.time_ns() // 1_000_000
    made = build([Record(b"%08d" % at, b"%0200d" % at, now) for at in range(PER_BATCH)])
    append_batches(address, TOPIC, partitions, itertools.repeat(made, messages // PER_BATCH))


def sources(session: Any, ours: Address, theirs: Address | None) -> Iterator[tuple[str, Callable[[], DataFrame]]]:
    """The frames that are read, each made anew whenever it is asked for."""
    chosen = {"brokers": str(ours), "subscribe": TOPIC, "minPartitions": str(CORES)}
    yield OURS, lambda: session.read.format("fastlog").options(**chosen).load()
    yield SOCKET, lambda: session.read.format("fastlog").options(**chosen, direct="off").load()
    for name, address in ((THEIRS_HERE, ours), (THEIRS, theirs)):
        if address is not None and without_connector() is None:
            given = {"kafka.bootstrap.servers": str(address), "subscribe": TOPIC, "minPartitions": str(CORES)}
            yield name, lambda given=given: session.read.format("kafka").options(**given).load()  # type: ignore[misc]


def measured(session: Any, frames: dict[str, Callable[[], DataFrame]], messages: int, rounds: int, place: Path) -> Any:
    """Seconds of each step by each source, in all rounds but the first, which warms up."""
    seconds: dict[str, dict[str, list[float]]] = {step: {name: [] for name in frames} for step in STEPS}
    for number in range(rounds + 1):
        names = list(frames) if number % 2 else list(frames)[::-1]
        for step, work in STEPS.items():
            for name in names:
                began = time.monotonic()
                found = work(frames[name](), place)
                taken = time.monotonic() - began
                if found != messages:
                    raise click.ClickException(f"{name}: {step} found {found} records instead of {messages}")
                if number:
                    seconds[step][name].append(taken)
        say(f"round {number} of {rounds}{'' if number else ', which warms up'}")
    return seconds


@click.command()
@click.option("--messages", default=1_000_000, show_default=True, help="Records of 200 bytes.")
@click.option("--partitions", default=2, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--kafka", metavar="HOST:PORT", help="An Apache Kafka, in which the topic is made and filled.")
def spark_records(messages: int, partitions: int, rounds: int, kafka: str | None) -> int:
    """Time topics of record batches in Spark; JSON on stdout, with the rate of each and how it compares.

    FASTLOG_SPARK_KAFKA_JARS names the jars of Spark's own source, which takes part then.
    """
    from fastlog.spark import session

    messages -= messages % (PER_BATCH * partitions)
    missing = without_connector()
    if missing is not None:
        say(f"Spark's own source is left out: {missing}")
    theirs = parse_brokers(kafka)[0] if kafka is not None else None
    jars = {} if missing is not None else {"spark.jars": connector_jars() or ""}
    place = Path(tempfile.mkdtemp(prefix="fastlog-spark-records-"))
    try:
        with testing.broker() as broker:
            ours = Address(broker.host, broker.port)
            for address in filter(None, (ours, theirs)):
                fill(address, messages, partitions)
            made = session(
                "perf", master=MASTER, settings={"spark.ui.enabled": "false", "spark.driver.memory": "2g", **jars}
            )
            made.sparkContext.setLogLevel("ERROR")
            seconds = measured(made, dict(sources(made, ours, theirs)), messages, rounds, place / "parquet")
            made.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report = {}
    for step, by_name in seconds.items():
        middles = {name: statistics.median(taken) for name, taken in by_name.items()}
        report[step] = {
            name: {
                "rows_per_second": round(messages / middle),
                "times_as_fast": {other: round(middles[other] / middle, 2) for other in middles if other != name},
            }
            for name, middle in middles.items()
        }
    click.echo(json.dumps({"messages": messages, "rounds": rounds, "steps": report}, indent=2))
    return 0


if __name__ == "__main__":
    run(spark_records, "python -m perf.spark_records")
