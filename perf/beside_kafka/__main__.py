"""``python -m perf.beside_kafka``: the same clients on the same machine, against fastlog and against Apache Kafka.

Both brokers run all the time. In each round every client writes a topic of its own in both and reads it, first against
the one and in the next round first against the other; what counts are medians and the ratio of each round. The first
round warms up and is not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import click

from perf.beside_kafka import connections
from perf.beside_kafka.steps import CLIENTS, LATENCY, LATENCY_MESSAGES, Load, Step, why_not
from perf.beside_kafka.systems import (
    CLASSPATH,
    Fastlog,
    Kafka,
    System,
    busy_seconds,
    memory_bytes,
    processor_seconds,
    settle,
)
from perf.command import run, say

PACED = (
    ("from produce to consume at 10,000/s, acks=all", LATENCY, LATENCY_MESSAGES),
    ("200 producers of 500/s each, acks=all", connections.many_producers(-1), connections.RECORDS),
    ("200 producers of 500/s each, acks=1", connections.many_producers(1), connections.RECORDS),
)
"""Rows at a fixed pace: the step, and how many records it writes."""
Rows = dict[str, dict[str, list[dict[str, float]]]]
"""By step and system, each round's figures."""


def create(system: System, topic: str, partitions: int) -> None:
    """Make a topic, and wait until it can be written."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": system.address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    time.sleep(0.5)


def delete(system: System, topic: str) -> None:
    """Delete a topic, so that its disk space is free for the next step."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": system.address})
    admin.delete_topics([topic])[topic].result(60)


def measure(system: System, step: Step, load: Load) -> dict[str, float]:
    """One step's rate, and processor seconds for a million records: the broker's, with its flushes and without them,
    and the whole machine's, which has the client in it, and what the kernel does for a broker in threads of its own."""
    everybody, flushing = system.processes(), system.flushing()
    before = processor_seconds(everybody), processor_seconds(flushing), busy_seconds()
    done = step(load)
    busy = busy_seconds() - before[2]
    used = processor_seconds(everybody) - before[0]
    beside = used - (processor_seconds(flushing) - before[1])
    millions = load.messages / 1e6
    figures = {
        "broker_cpu_per_million": used / millions,
        "broker_cpu_but_flushes": beside / millions,
        "machine_cpu_per_million": busy / millions,
    }
    return {"rate": done.rate, **figures, **done.more}


def in_turn(systems: list[System], number: int) -> list[System]:
    """The systems in the order of this round, which is the other way round in the next."""
    return systems if number % 2 else systems[::-1]


def clients_round(
    number: int, systems: list[System], names: list[str], messages: int, partitions: int, rows: Rows
) -> None:
    """Measure every client against every system once, as fast as it goes, and add the rows."""
    ordered = in_turn(systems, number)
    for name in names:
        pair = CLIENTS[name]
        count = max(1000, int(messages * pair.share))
        for system in ordered:
            load = Load(system.address, f"{name}-{partitions}-{number}", partitions, count)
            create(system, load.topic, partitions)
            written = measure(system, pair.produce, load)
            read = measure(system, pair.consume, load)
            delete(system, load.topic)
            if number:
                rows[f"{name}, written, {partitions} partitions"][system.name].append(written)
                rows[f"{name}, read, {partitions} partitions"][system.name].append(read)


def paced_round(number: int, systems: list[System], partitions: int, rows: Rows) -> None:
    """Measure every system once at each fixed pace, and add the rows."""
    for row, step, count in PACED:
        for system in in_turn(systems, number):
            topic = f"paced-{partitions}-{number}"
            create(system, topic, partitions)
            settle()
            found = measure(system, step, Load(system.address, topic, partitions, count))
            delete(system, topic)
            if number:
                rows[f"{row}, {partitions} partitions"][system.name].append(found)


def table(rows: Rows) -> dict[str, dict[str, object]]:
    """Medians of each figure by system, and of the rounds' ratios, fastlog over Kafka."""
    found: dict[str, dict[str, object]] = {}
    for row, by_system in rows.items():
        ours, theirs = by_system["fastlog"], by_system["kafka"]
        figures: dict[str, object] = {}
        for figure in ours[0]:
            pairs = [(one[figure], other[figure]) for one, other in zip(ours, theirs, strict=True)]
            ratios = [one / other for one, other in pairs if other]
            figures[figure] = {
                "fastlog": round(statistics.median(one for one, _ in pairs), 3),
                "kafka": round(statistics.median(other for _, other in pairs), 3),
                "ratio": round(statistics.median(ratios), 3) if ratios else None,
                "ratios": [round(each, 3) for each in ratios],
            }
        found[row] = figures
    return found


@click.command()
@click.option(
    "--messages", default=1_000_000, show_default=True, help="Records of 200 bytes; Python's clients get fewer."
)
@click.option("--partitions", default=[12, 1], multiple=True, show_default=True, help="Of each topic; may be repeated.")
@click.option("--rounds", default=5, show_default=True, help="That count, besides the first.")
@click.option("--processors", default=2, show_default=True, help="Of fastlog's broker.")
@click.option("--only", multiple=True, type=click.Choice(list(CLIENTS)), help="One client; may be repeated.")
@click.option("--paced/--no-paced", default=True, help="The rows at a fixed pace, too.", show_default=True)
def beside_kafka(
    messages: int, partitions: tuple[int, ...], rounds: int, processors: int, only: tuple[str, ...], paced: bool
) -> int:
    """Measure fastlog beside Apache Kafka; JSON on stdout.

    FASTLOG_KAFKA_CLASSPATH names Kafka's jars, FASTLOG_RDKAFKA_PERFORMANCE librdkafka's program; clients that are not
    there are named and left out.
    """
    if CLASSPATH not in os.environ:
        raise click.ClickException(f"{CLASSPATH} names no jars; scripts/compat fetches them")
    names = []
    for name in only or CLIENTS:
        reason = why_not(name)
        if reason is None:
            names.append(name)
        else:
            say(f"NOT RUN: {name}: {reason}")
    rows: Rows = defaultdict(lambda: defaultdict(list))
    place = Path(tempfile.mkdtemp(prefix="fastlog-beside-kafka-"))
    systems: list[System] = []
    try:
        systems.append(Fastlog(place / "fastlog", processors))
        systems.append(Kafka(place / "kafka"))
        for count in partitions:
            for number in range(rounds + 1):
                clients_round(number, systems, names, messages, count, rows)
                if paced:
                    paced_round(number, systems, count, rows)
                say(f"{count} partitions: round {number} of {rounds}{'' if number else ', which warms up'}")
        around = {
            system.name: {
                "first_answer_seconds": round(system.first_answer, 3),
                "memory_pss_bytes": memory_bytes(system.processes()),
            }
            for system in systems
        }
    finally:
        for system in systems:
            system.stop()
        shutil.rmtree(place, ignore_errors=True)
    click.echo(json.dumps({"messages": messages, "rounds": rounds, "rows": table(rows), "brokers": around}, indent=2))
    return 0


if __name__ == "__main__":
    run(beside_kafka, "python -m perf.beside_kafka")
