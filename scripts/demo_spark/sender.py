"""``python -m scripts.demo_spark.sender JSON``: the producer of a datacenter, until SIGTERM.

A batch has one time, that of its sending, and goes into the diary once it is acknowledged: the audit is told of no
other. A report that could not be sent is sent again, under its number; the audit counts it once.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fastlog import Producer
from fastlog.errors import FastlogError
from scripts.demo_spark.lines import EVENTS, TOPIC, WINDOW_MS, Sent, value_of

BATCH_LINES = 50
REPORT_SECONDS = 1.0
DELIVERY_MS = 60_000


class Sender:
    """For one thread. ``told``: the address of the cluster, the sender's name, lines a second, and files: the lines,
    and the diary."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._lines = Path(told["lines"]).read_bytes().split(b"\n")
        self._producer_id = time.time_ns()
        self._counts: Counter[int] = Counter()
        self._reports: list[bytes] = []
        self._seq = 0

    def run(self, over: threading.Event) -> None:
        """Send until it is over, and tell of everything then."""
        limits = {"delivery_timeout_ms": DELIVERY_MS, "num_retries": 1000, "connect_timeout_ms": DELIVERY_MS}
        with (
            Producer(self._told["address"], acks="flushed", **limits) as producer,
            Path(self._told["diary"]).open("a") as diary,
        ):
            number = 0
            began = reported = time.monotonic()
            while not over.is_set():
                sent = self._send(producer, number)
                diary.write(f"{' '.join(map(str, sent))}\n")
                diary.flush()
                if sent.acknowledged_ms:
                    self._counts[sent.time_ms // WINDOW_MS * WINDOW_MS] += sent.count
                number += sent.count
                if time.monotonic() - reported > REPORT_SECONDS:
                    self._report(producer)
                    reported = time.monotonic()
                over.wait(max(0.0, began + number / self._told["rate"] - time.monotonic()))
            self._report(producer)
            if self._reports:
                raise SystemExit(f"{self._told['name']}: the last reports could not be sent")

    def _send(self, producer: Producer, number: int) -> Sent:
        values = [value_of(self._told["name"], number + at, self._lines) for at in range(BATCH_LINES)]
        time_ms = _now_ms()
        try:
            producer.send(TOPIC, values, timestamp=time_ms)
        except FastlogError:
            return Sent(number, BATCH_LINES, time_ms, 0)  # nobody knows whether it is there
        return Sent(number, BATCH_LINES, time_ms, _now_ms())

    def _report(self, producer: Producer) -> None:
        for window, count in sorted(self._counts.items()):
            told = {"topic": TOPIC, "server": self._told["name"], "window_start": window, "window_ms": WINDOW_MS}
            event = {**told, "n": count, "producer_id": self._producer_id, "seq": self._seq}
            self._reports.append(json.dumps(event).encode())
            self._seq += 1
        self._counts.clear()
        if self._reports:
            try:
                producer.send(EVENTS, self._reports)
            except FastlogError:
                return
            self._reports = []


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    """Run one sender, in a process of its own."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    Sender(json.loads(sys.argv[1])).run(over)


if __name__ == "__main__":
    main()
