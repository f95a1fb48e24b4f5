"""Catching up from a cold disk beside a producer: ``python -m perf.beside_kafka.cold``.

A topic is filled, its files are dropped from the page cache, and one reader reads all of it while producers go on at a
fixed pace on the same partitions. The reader is held against the disk (the same files, dropped and read with nothing
else going on, by a thread for each partition), the producers against themselves alone. Each broker has its turns.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from perf.beside_kafka import connections
from perf.beside_kafka.__main__ import create, delete
from perf.beside_kafka.systems import CLASSPATH, Fastlog, Kafka, System
from perf.ceiling import batches, programs
from perf.command import run, say

PRODUCERS, RATE, LINGER_SECONDS = 12, 4000.0, 0.025
"""How many producers, records a second of each (48,000 together), and how long each gathers a batch."""
SIZE = 1000
PIECE_BYTES = 1 << 20
ALONE_SECONDS = 10.0
FILL_WINDOW = 16


def drop(files: list[Path]) -> None:
    """Out of the page cache; what is not on the disk yet goes there first."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_rate(files: list[Path], readers: int) -> float:
    """Bytes a second of reading them from the disk, ``readers`` of them at once."""
    drop(files)
    began = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        count = sum(pool.map(_read, files))
    return count / (time.monotonic() - began)


def _read(path: Path) -> int:
    buffer = bytearray(PIECE_BYTES)
    count = 0
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            count += size
    return count


def segments(directory: Path, topic: str) -> list[Path]:
    """The files of a topic's records, partition after partition."""
    return sorted(directory.glob(f"data/{topic}-*/*.log"))


def one_turn(system: System, directory: Path, number: int, size: int, partitions: int) -> dict[str, float]:
    """Fill, drop, and read beside producers."""
    topic = f"cold-{number}"
    create(system, topic, partitions)
    host, _, port = system.address.rpartition(":")
    place: dict[str, object] = {"host": host, "port": port, "topic": topic, "partitions": partitions}
    filling = {**place, "messages": size // SIZE, "size": SIZE, "batch_bytes": 64 << 10, "window": FILL_WINDOW}
    batches.run("produce", filling)
    files = segments(directory, topic)
    one_thread, disk = read_rate(files, 1), read_rate(files, partitions)

    def produce(seconds: float) -> dict[str, float]:
        asked = (system.address, topic, partitions, PRODUCERS, RATE, LINGER_SECONDS, seconds, SIZE)
        return connections.run(connections.Paced(*asked))

    alone = produce(ALONE_SECONDS)
    drop(files)
    beside: dict[str, float] = {}
    producing = threading.Thread(target=lambda: beside.update(produce(max(ALONE_SECONDS, size / disk))))
    producing.start()
    read: dict[str, Any] = batches.run("fetch", {**place, "max_bytes": PIECE_BYTES})
    producing.join()
    delete(system, topic)
    return {
        "disk_mb_per_second": disk / 1e6,
        "disk_mb_per_second_one_thread": one_thread / 1e6,
        "reader_mb_per_second": read["bytes"] / read["seconds"] / 1e6,
        "reader_share_of_disk": read["bytes"] / read["seconds"] / disk,
        "producers_share_of_pace": beside["share_of_pace"],
        "producers_share_of_alone": beside["share_of_pace"] / alone["share_of_pace"],
        "p99_ms_alone": alone["p99_ms"],
        "p99_ms_beside_the_reader": beside["p99_ms"],
    }


@click.command()
@click.option("--gigabytes", default=10.0, show_default=True, help="Of records that are read; twice as much is free.")
@click.option("--partitions", default=4, show_default=True, help="Of the topic.")
@click.option("--rounds", default=3, show_default=True, help="That count; there is no other.")
@click.option("--only", type=click.Choice(["fastlog", "kafka"]), help="One of the two.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where the logs lie; a temporary one by default.")
def cold(gigabytes: float, partitions: int, rounds: int, only: str | None, directory: Path | None) -> int:
    """Catch up from a cold disk beside a producer; JSON on stdout.

    FASTLOG_KAFKA_CLASSPATH names Kafka's jars; without it, fastlog alone.
    """
    systems: list[tuple[System, Path]] = []
    place = Path(tempfile.mkdtemp(prefix="fastlog-cold-", dir=directory))
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    try:
        programs.build(batches.GENERATOR)
        if only != "kafka":
            systems.append((Fastlog(place / "fastlog", 2), place / "fastlog"))
        if only != "fastlog" and CLASSPATH in os.environ:
            systems.append((Kafka(place / "kafka"), place / "kafka"))
        elif only != "fastlog":
            say(f"NOT RUN: kafka: {CLASSPATH} names no jars; scripts/compat fetches them")
        for number in range(rounds):
            for system, own in systems if number % 2 == 0 else systems[::-1]:
                found[system.name].append(one_turn(system, own, number, int(gigabytes * 1e9), partitions))
                say(f"round {number + 1} of {rounds}: {system.name}: {found[system.name][-1]}")
    finally:
        for system, _ in systems:
            system.stop()
        shutil.rmtree(place, ignore_errors=True)
    medians = {
        name: {figure: round(statistics.median(turn[figure] for turn in turns), 3) for figure in turns[0]}
        for name, turns in found.items()
    }
    click.echo(json.dumps({"gigabytes": gigabytes, "rounds": rounds, "medians": medians, "turns": found}, indent=2))
    return 0


if __name__ == "__main__":
    run(cold, "python -m perf.beside_kafka.cold")
