"""A producer that is audited, or a counter of a stage, until it is killed; told as JSON what to do.

A counter commits to a file how far it has read, each time after its counts are published.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from fastlog import Producer
from fastlog.audit import Auditor
from fastlog.errors import ConsumerTimeout
from tests.harness.audit import consumer_of

WINDOW_MS = 1000
STAGE = "load"


def produce(told: dict[str, Any]) -> None:
    """Send without end, by a clock that is off by ``shift_ms``; nothing is sent before it is."""
    fields = {"audit_topic": "audit", "audit_window_ms": WINDOW_MS, "audit_interval_ms": 50, "queue_time_ms": 5}
    with Producer(told["address"], producer_type="async", batch_messages=50, **fields) as producer:
        assert producer._stamps is not None
        stamp = producer._stamps.of("t")
        assert stamp is not None
        stamp.shift_ms = told["shift_ms"]
        for number in range(10**9):
            producer.send("t", [b"x"] * 7, partition=number % 2)
            if number % 20 == 0:
                time.sleep(0.005)


def count(told: dict[str, Any]) -> None:
    """Count one partition without end, beginning where the last life has committed."""
    place = Path(told["place"])
    offset = int(place.read_text()) if place.exists() else 0
    with Producer(told["address"]) as producer, consumer_of(told["address"]) as consumer:
        auditor = Auditor(STAGE, producer, window_ms=WINDOW_MS)
        while True:
            try:
                for batch in consumer.numpy_batches("t", told["partition"], offset, wait=1, fetch_bytes=50_000):
                    auditor.count(batch)
                    auditor.publish()
                    offset = batch.next_offset
                    fresh = place.with_suffix(".new")
                    fresh.write_text(str(offset))
                    fresh.rename(place)
            except ConsumerTimeout:
                continue


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    (produce if given["role"] == "producer" else count)(given)
