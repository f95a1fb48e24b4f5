"""What the tests of the audit share: copies of topics with messages left out or doubled, and running the command."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from fastlog import Producer, SimpleConsumer
from tests.harness import command_process


def consumer_of(address: str) -> SimpleConsumer:
    """A consumer of the broker at ``host:port``."""
    host, _, port = address.rpartition(":")
    return SimpleConsumer(host, int(port))


def copy_topic(source: str, target: str, topic: str, *, lost: Collection[int] = (), twice: Collection[int] = ()) -> int:
    """Copy all messages but some, counted over all partitions in their order; how many there were.

    Partitions keep their numbers.
    """
    at = 0
    with consumer_of(source) as consumer, Producer(target, producer_type="async", batch_messages=5000) as producer:
        metadata = consumer.metadata([topic])
        assert metadata is not None
        for item in sorted(metadata.topics[0].partitions, key=lambda item: item.partition):
            for batch in consumer.batches(topic, item.partition):
                end = at + len(batch)
                for index in sorted((one for one in {*lost, *twice} if at <= one < end), reverse=True):
                    one = batch[index - at]
                    batch[index - at : index - at + 1] = [one] * (2 * (index in twice) + (index not in {*lost, *twice}))
                producer.send(topic, batch, partition=item.partition)
                at = end
    return at


def audit(*arguments: str, timeout: float = 60) -> tuple[int, list[dict[str, Any]], str]:
    """``fastlog audit --json …``: exit code, rows, stderr."""
    code, out, err = command_process.run("audit", "--json", *arguments, timeout=timeout)
    return code, [json.loads(line) for line in out.splitlines()], err


def totals(rows: list[dict[str, Any]], stage: str = "brokers") -> dict[str, int]:
    """The sums of one stage over its windows."""
    names = ("sent", "received", "missing", "duplicates", "unreported", "pending", "expired")
    return {name: sum(row[name] for row in rows if row["stage"] == stage) for name in names}
