"""``python -m perf.spark_files``: sizes of the row groups and of the files of a load, by what they cost.

The way of a worker from a topic to Parquet files, without Spark: each pair of sizes, of row groups and of tasks, which
become a file each, in a process of its own. Then DuckDB adds up the lengths of all values, and looks for the rows of a
few offsets. What counts is processor time, which a busy machine changes less than seconds; in each round every pair
of sizes is there once, in an order that turns round from one to the next.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fastlog import testing
from fastlog.client.addresses import Address
from perf.command import Size, run, say
from perf.replay.scenarios import PAGE_CACHE
from perf.spark_load import KINDS, PER_BATCH, fill

COLUMNS = ("broker", "partition", "offset", "idx", "timestamp", "key", "value")
FOUND = 1000
"""How many rows in a row the search looks for."""
MIB = 2**20

Sizes = tuple[int, int]
"""Bytes of a row group, before it is written, and of a task."""


def measured(kind: str, address: str, sizes: Sizes, place: str, codec: str) -> dict[str, float]:
    """What one pair of sizes costs: for a process of its own, whose memory counts."""
    import duckdb

    from fastlog.spark import table_files
    from fastlog.spark.cluster import QueryCluster
    from fastlog.spark.options import parse_options
    from fastlog.spark.plans import BatchPlan
    from fastlog.spark.row_files import RowFiles

    table_files.ROW_GROUP_BYTES = sizes[0]
    given = {"brokers": address, "subscribe": kind, "schema": "fastlog", "maxBytesPerPartition": str(sizes[1])}
    options = parse_options(given, streaming=False)
    with closing(QueryCluster(options)) as cluster:
        tasks = BatchPlan(options, cluster).tasks()
    files = RowFiles(Path(place), COLUMNS, codec, datetime.now(UTC).date(), options)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    made = [file for task in tasks for file in files.write(task)]
    written = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    rows = sum(file.rows for file in made)
    paths = [str(Path(place) / file.path) for file in made]
    asked = duckdb.connect(config={"threads": 1})

    def timed(question: str, *values: object) -> tuple[float, Any]:
        began = time.process_time()
        found = asked.execute(question, [paths, *values]).fetchone()
        return time.process_time() - began, found

    add_up, found = timed("SELECT count(*), sum(octet_length(value)) FROM read_parquet($1)")
    if found[0] != rows:
        raise click.ClickException(f"{found[0]} of {rows} rows were read")
    at = asked.execute('SELECT "offset", broker, partition FROM read_parquet($1) LIMIT 1 OFFSET $2', [paths, rows // 2])
    first, *_ = at.fetchone() or (0,)
    search, _ = timed('SELECT sum(octet_length(value)) FROM read_parquet($1) WHERE "offset" BETWEEN $2 AND $3',
                      first, first + FOUND)  # fmt: skip
    return {
        "write_us_a_row": written / rows * 1e6,
        "sum_us_a_row": add_up / rows * 1e6,
        "search_ms": search * 1000,
        "memory_mib": memory / 1024,
        "files": len(made),
        "bytes_a_row": sum(file.size_bytes for file in made) / rows,
    }


def reported(found: dict[Sizes, list[dict[str, float]]], base: Sizes) -> list[dict[str, Any]]:
    """A line for each pair of sizes: medians, and how the costs compare with those of ``base`` in the same round."""
    lines = []
    for sizes, rounds in found.items():
        line: dict[str, Any] = {"row_group_mib": sizes[0] / MIB, "task_mib": sizes[1] / MIB}
        line |= {name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]}
        for name in ("write_us_a_row", "sum_us_a_row", "search_ms"):
            ratios = [one[name] / other[name] for one, other in zip(rounds, found[base], strict=True)]
            line[f"{name.partition('_')[0]}_ratio"] = round(statistics.median(ratios), 2)
        lines.append(line)
    return lines


@click.command()
@click.option("--messages", default=1_000_000, show_default=True, help="Of 200 random bytes.")
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="Of the topic.")
@click.option("--group", type=Size(), multiple=True, default=("8MiB", "16MiB", "32MiB", "64MiB", "128MiB"))
@click.option("--task", type=Size(), multiple=True, default=("64MiB",), help="Bytes that become a file.")
@click.option("--codec", default="snappy", show_default=True)
@click.option("--rounds", default=3, show_default=True)
def spark_files(
    messages: int, kind: str, group: tuple[int, ...], task: tuple[int, ...], codec: str, rounds: int
) -> int:
    """Measure row groups and files of several sizes; JSON on stdout. Ratios are to the first pair of sizes."""
    messages -= messages % (PER_BATCH * 2)
    pairs = list(itertools.product(group, task))
    found: dict[Sizes, list[dict[str, float]]] = {pair: [] for pair in pairs}
    fresh = multiprocessing.get_context("spawn")
    with testing.broker(properties={name: str(value) for name, value in PAGE_CACHE.items()}) as broker:
        address = Address(broker.host, broker.port)
        fill(kind, address, messages, 2)
        for number in range(rounds):
            for pair in pairs[:: 1 if number % 2 == 0 else -1]:
                place = tempfile.mkdtemp(prefix="fastlog-spark-files-")
                try:
                    with fresh.Pool(1) as pool:
                        found[pair].append(pool.apply(measured, (kind, str(address), pair, place, codec)))
                finally:
                    shutil.rmtree(place, ignore_errors=True)
                say(f"round {number + 1}: {pair[0] / MIB:g} MiB, {pair[1] / MIB:g} MiB: {found[pair][-1]}")
    click.echo(json.dumps({"messages": messages, "kind": kind, "sizes": reported(found, pairs[0])}, indent=2))
    return 0


if __name__ == "__main__":
    run(spark_files, "python -m perf.spark_files")
