"""R-1 and R-29: signals at any moment. Ctrl-C ends a blocking call at once; a handler may close what it interrupted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastlog.wire import requests as rq
from tests.fault.programs import run_program
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.fake_broker import FakeBroker

MOST_SECONDS = 15.0
"""Far more than the 200 ms of the promise, for a machine that does other things as well; far less than a time-out."""
MESSAGES = 300
AT_ONCE = 25
ROUND_SECONDS = 240.0


@scenario("interrupts", "SIGINT at random moments of each blocking call", small=3, nightly=50, release=1000)
def interrupts(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` moments in each call of ``interrupted_program``."""
    outcome = Outcome()
    with Broker(directory, settings={"num.partitions": 3}) as broker, silent_broker() as silent:
        with broker.connect() as client:
            data = raw.message_set([b"%d" % number * 10 for number in range(MESSAGES)])
            client.produce_ack("t", 0, data, raw.FLUSHED)
            client.wait_visible("t", 0, len(data))
        for done in range(0, count, AT_ONCE):
            moments = min(AT_ONCE, count - done)
            answer = run_program(
                "tests.fault.interrupted_program",
                ROUND_SECONDS,
                seed=f"{seed} {done}",
                moments=moments,
                port=broker.port,
                silent=silent.port,
                topic="t",
                messages=MESSAGES,
            )
            outcome.runs += moments * answer.get("calls", 0)
            outcome.violations += answer["violations"]
            for name, seconds in answer.get("worst", {}).items():
                outcome.expect(seconds < MOST_SECONDS, f"{name} went on for {seconds:.2f} s after SIGINT")
    return outcome


@contextmanager
def silent_broker() -> Iterator[FakeBroker]:
    """Answers nothing but metadata."""
    release = threading.Event()

    def stall(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.MetadataRequest):
            release.wait()
            raise ConnectionError
        return None

    with FakeBroker(hook=stall) as silent:
        try:
            yield silent
        finally:
            release.set()


@scenario("signal-close", "close() in a signal handler at random moments", small=25, nightly=500, release=10_000)
def signal_close(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` clients, each closed by a handler that interrupts it; every program ends with some left open."""
    outcome = Outcome()
    with Broker(directory, settings={"num.partitions": 3}) as broker:
        with broker.connect() as client:
            data = raw.message_set([b"%d" % number for number in range(MESSAGES)])
            client.produce_ack("read", 0, data, raw.FLUSHED)
            client.wait_visible("read", 0, len(data))
        for number, done in enumerate(range(0, count, 4 * AT_ONCE)):
            rounds = min(4 * AT_ONCE, count - done)
            topic = f"written{number}"
            answer = run_program(
                "tests.fault.closed_program",
                ROUND_SECONDS,
                seed=f"{seed} {done}",
                rounds=rounds,
                port=broker.port,
                topic=topic,
            )
            outcome.runs += answer.get("rounds", 0)
            outcome.violations += answer["violations"]
            if "promised" in answer:
                stored = sum(
                    len(raw.deep_payloads(broker.stored_bytes(topic, partition)))
                    for partition in range(3)
                    if broker.has_directory(topic, partition)
                )
                low, high = answer["promised"]
                outcome.expect(low <= stored <= high, f"{low} to {high} messages were delivered, the log has {stored}")
    return outcome
