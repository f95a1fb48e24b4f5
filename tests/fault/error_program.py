"""The program in which everything fails, all the time."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastlog import LATEST, Producer, SimpleConsumer, SyncProducer
from fastlog.errors import FastlogError
from fastlog.message import DeepLimits
from tests.fault.overload_program import resident_bytes
from tests.harness.ports import unused_port

MOST_GROWTH_BYTES = 3 * 2**20
MOST_OBJECTS = 200
KEPT_CONNECTIONS = 4
"""Of the clients that live all the time: each has one now, or it broke just now."""
WARM_UP = 0.4
HANG_SECONDS = 120.0
SETTLE_SECONDS = 5.0
LIMITS = DeepLimits(max_inflated_bytes=2**18, max_messages=5000)


def calls(told: dict[str, Any]) -> list[Callable[[], object]]:
    """Each of them fails, or nearly each time."""
    nobody, hostile, port = unused_port(), told["hostile"], told["port"]
    consumer = SimpleConsumer("127.0.0.1", port, local="off")
    lied_to = SimpleConsumer("127.0.0.1", hostile, timeout=0.02, local="off", limits=LIMITS)
    producer = Producer(f"127.0.0.1:{port}", producer_type="async", queue_messages=10, queue_full="raise")
    closed = SimpleConsumer("127.0.0.1", port)
    closed.close()

    def of_new(make: Callable[[], Any], call: Callable[[Any], object]) -> Callable[[], object]:
        def run() -> None:
            with contextlib.closing(make()) as made:
                call(made)

        return run

    def not_delivered() -> None:
        made = Producer(
            f"127.0.0.1:{hostile}",
            producer_type="async",
            connect_timeout_ms=20,
            socket_timeout_ms=20,
            delivery_timeout_ms=20,
        )
        with contextlib.closing(made):
            made.send("t", [b"x"] * 5)
            made.flush(0.1)

    often: list[Callable[[], object]] = [
        of_new(lambda: SimpleConsumer("127.0.0.1", nobody), lambda it: it.fetch("t", 0, 0)),
        of_new(lambda: SimpleConsumer("127.0.0.1", hostile, timeout=0.02), lambda it: it.fetch("t", 0, 0)),
        of_new(lambda: Producer(f"127.0.0.1:{nobody}", connect_timeout_ms=1), lambda it: it.send("t", b"x")),
        of_new(lambda: SyncProducer("127.0.0.1", nobody, connect_timeout_ms=1), lambda it: it.send("t", b"x")),
        lambda: lied_to.fetch("t", 0, 0).payloads(),
        lambda: lied_to.multifetch([("t", 0, 0)])[0].payloads(),
        lambda: lied_to.get_offsets_before("t", 0, LATEST),
        lambda: next(lied_to.messages("t", 0, 0)),
        lambda: consumer.fetch("t", 0, 10**9),
        lambda: next(consumer.messages("t", 0, 10**9)),
        lambda: consumer.multifetch([("t", 0, 10**9)])[0].payloads(),
        lambda: closed.fetch("t", 0, 0),
        lambda: producer.send("t", bytes(2_000_000)),
        lambda: producer.send("a/b", b"x"),
        lambda: producer.send("t", b"x", partition=99),
    ]
    return often * 4 + [not_delivered]


def open_descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def main(told: dict[str, Any]) -> dict[str, Any]:
    """Make ``errors`` errors; what is held after the last of them is what was held after the first part."""
    source = random.Random(told["seed"])
    found = calls(told)
    raised: dict[str, int] = {}
    violations: list[str] = []

    def fail(count: int) -> None:
        for _ in range(count):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                source.choice(found)()
            except (FastlogError, StopIteration) as error:
                raised[type(error).__name__] = raised.get(type(error).__name__, 0) + 1

    def held() -> tuple[int, int, int, int]:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later is not held
        return threading.active_count(), open_descriptors(), len(gc.get_objects()), resident_bytes()

    fail(round(told["errors"] * WARM_UP))
    before = held()
    fail(told["errors"] - round(told["errors"] * WARM_UP))
    after = held()
    deadline = time.monotonic() + SETTLE_SECONDS
    while (after[0] > before[0] or after[1] > before[1]) and time.monotonic() < deadline:
        time.sleep(0.02)
        after = held()
    names = ("threads", "descriptors", "objects", "bytes of memory")
    limits = (0, KEPT_CONNECTIONS, MOST_OBJECTS, MOST_GROWTH_BYTES)
    for name, first, last, most in zip(names, before, after, limits, strict=True):
        if last - first > most:
            violations.append(f"{name}: {first} after {WARM_UP:.0%} of the errors, {last} at the end")
    if sum(raised.values()) < told["errors"] / 2 or len(raised) < 8:
        violations.append(f"too little went wrong: {raised}")
    return {"errors": sum(raised.values()), "violations": violations, "raised": raised}


if __name__ == "__main__":
    logging.disable()
    print(json.dumps(main(json.loads(sys.argv[1]))))
