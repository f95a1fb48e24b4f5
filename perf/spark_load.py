"""``python -m perf.spark_load``: topics into tables, beside what Spark alone writes and reads of the same messages.

One warm session with two cores loads a topic of each kind into a new Delta table, plainly and with a column that an
expression makes; Spark itself writes the values of the same topic into Parquet, and sums their lengths, from the topic
and from that Parquet. In each round every step is done once, in an order that turns round from one to the next. What
counts are ratios of medians. The start of Java, of Spark and of its Python is outside of every figure.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as parquet_file  # type: ignore[import-untyped]

from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.perf.payloads import random_payloads
from fastlog.record_batches import Record, build
from perf.ceiling import loadgen
from perf.command import run, say
from perf.replay.in_spark import CORES, MASTER
from perf.replay.prebuilt import NAME, PrebuiltSource
from perf.replay.scenarios import PAGE_CACHE
from perf.spark_records import append_batches, create_topic

VALUE_BYTES = 200
PER_BATCH = 500
PARQUET = "value into Parquet, by Spark"
LOAD, LOAD_COLUMN = "load", "load --column"
SUM, SUM_OF_PARQUET = "sum(length(value))", "sum(length(value)) of Parquet"
SUM_OF_PREBUILT = "sum(length(value)) of a prebuilt batch"
"""By a source in Python that has nothing to do: what Spark takes from any."""
RATIOS = ((LOAD, PARQUET), (LOAD_COLUMN, PARQUET), (SUM, SUM_OF_PARQUET), (SUM_OF_PREBUILT, SUM_OF_PARQUET))
"""The pairs of steps whose ratio is printed: the first against the second."""
KINDS = ("messages", "records")

Step = Callable[[], int]


def fill(kind: str, address: Address, messages: int, partitions: int) -> None:
    """A topic named as its kind: random values, which no codec makes shorter."""
    if kind == "messages":
        place = {"port": address.port, "topic": kind, "batch": 50, "size": VALUE_BYTES}
        loadgen.run("produce", {**place, "messages": messages})
        return
    create_topic(address, kind, partitions)
    now = time.time_ns() // 1_000_000
    values = random_payloads(VALUE_BYTES)
    made = [
        build([Record(b"%08d" % at, value, now) for at, value in enumerate(values[begin : begin + PER_BATCH])])
        for begin in range(0, len(values), PER_BATCH)
    ]
    append_batches(address, kind, partitions, [made[number % len(made)] for number in range(messages // PER_BATCH)])


def steps_of(session: Any, kind: str, address: Address, messages: int, place: Path) -> dict[str, Step]:
    """What is timed; each returns how many rows it has seen."""
    from fastlog.spark.jobs.load import load

    chosen = {"brokers": str(address), "subscribe": kind, "minPartitions": str(CORES), "columns": "value"}
    prebuilt = {"rows": messages, "value_bytes": VALUE_BYTES}
    frame = session.read.format("fastlog").options(**chosen).load()
    parquet = place / "parquet"

    def write() -> int:
        frame.write.mode("overwrite").parquet(str(parquet))
        return sum(parquet_file.read_metadata(path).num_rows for path in parquet.glob("*.parquet"))

    def loaded(columns: dict[str, str]) -> int:
        table = place / "table"
        shutil.rmtree(table, ignore_errors=True)
        return int(load(kind, table, brokers=str(address), columns=columns)["rows"])

    def summed(of: Any) -> int:
        return int(of.selectExpr("sum(length(value))").first()[0]) // VALUE_BYTES

    return {
        PARQUET: write,
        LOAD: lambda: loaded({}),
        LOAD_COLUMN: lambda: loaded({"size": "length(value)"}),
        SUM: lambda: summed(frame),
        SUM_OF_PARQUET: lambda: summed(session.read.parquet(str(parquet))),
        SUM_OF_PREBUILT: lambda: summed(session.read.format(NAME).options(**prebuilt).load()),
    }


def measured(steps: dict[str, Step], messages: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step in all rounds but the first, which warms up and makes what others read."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name in list(steps)[:: 1 if number % 2 == 0 else -1]:
            began = time.monotonic()
            found = steps[name]()
            taken = time.monotonic() - began
            if found != messages:
                raise click.ClickException(f"{name} has {found} rows instead of {messages}")
            if number:
                seconds[name].append(taken)
        say(f"round {number} of {rounds}{'' if number else ', which warms up'}")
    return seconds


def reported(seconds: dict[str, list[float]], messages: int) -> dict[str, Any]:
    """Rates by the medians, and how those of ``RATIOS`` compare, with the lowest and the highest of a round."""
    rates = {name: round(messages / statistics.median(taken)) for name, taken in seconds.items()}
    ratios = {}
    for one, other in RATIOS:
        if one in seconds and other in seconds:
            each = sorted(theirs / ours for ours, theirs in zip(seconds[one], seconds[other], strict=True))
            ratios[f"{one} / {other}"] = [round(statistics.median(each), 2), round(each[0], 2), round(each[-1], 2)]
    return {"rows_per_second": rates, "ratios_median_lowest_highest": ratios}


@click.command()
@click.option("--messages", default=5_000_000, show_default=True, help="Of 200 random bytes, of each kind of topic.")
@click.option("--partitions", default=2, show_default=True, help="Of the topic of record batches.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--kind", type=click.Choice(KINDS), multiple=True, default=KINDS, help="Of topics.  [default: both]")
@click.option("--step", multiple=True, help="Only steps whose name has this in it; may be repeated.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark.")
def spark_load(
    messages: int, partitions: int, rounds: int, kind: tuple[str, ...], step: tuple[str, ...], conf: tuple[str, ...]
) -> int:
    """Time topics into tables in Spark; JSON on stdout, with the rate of each step and how they compare."""
    from fastlog.spark import session

    messages -= messages % (PER_BATCH * partitions)
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "2g"}
    settings |= dict(item.split("=", 1) for item in conf)
    place = Path(tempfile.mkdtemp(prefix="fastlog-spark-load-"))
    report = {}
    try:
        with testing.broker(properties={name: str(value) for name, value in PAGE_CACHE.items()}) as broker:
            address = Address(broker.host, broker.port)
            made = session("perf", master=MASTER, settings=settings)
            made.sparkContext.setLogLevel("ERROR")
            made.dataSource.register(PrebuiltSource)
            for one in kind:
                fill(one, address, messages, partitions)
                steps = steps_of(made, one, address, messages, place)
                chosen = {name: work for name, work in steps.items() if not step or any(part in name for part in step)}
                report[one] = reported(measured(chosen, messages, rounds), messages)
                say(f"{one}: {report[one]}")
            made.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    click.echo(json.dumps({"messages": messages, "rounds": rounds, "topics": report}, indent=2))
    return 0


if __name__ == "__main__":
    run(spark_load, "python -m perf.spark_load")
