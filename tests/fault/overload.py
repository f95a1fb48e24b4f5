"""R-4 and R-26: producers that are much faster than their broker, and errors that never end, in bounded memory."""

from __future__ import annotations

import time
from pathlib import Path

from fastlog.wire import requests as rq
from tests.fault.programs import run_program
from tests.fault.registry import Outcome, scenario
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker
from tests.harness.hostile_broker import HostileBroker

MOST_SECONDS = 1800.0
PAUSE = 0.004


@scenario(
    "overload", "ten times more messages than the broker takes, for so many seconds", small=2, nightly=60, release=600
)
def overload(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` seconds of senders that wait for room (the default): no error, bounded memory, all of it arrives."""
    outcome = Outcome()
    stored = 0

    def slow(request: rq.Request) -> bytes | None:
        nonlocal stored
        if isinstance(request, wire07.ProduceAckRequest):
            time.sleep(PAUSE)
            stored += request.message_set.count(b"overload")
        return None

    def forget(request: rq.Request) -> bytes | None:
        broker.logs.clear()
        broker.sets.clear()
        return None

    with FakeBroker(hook=slow, after=forget) as broker:
        answer = run_program("tests.fault.overload_program", MOST_SECONDS, seconds=count, seed=seed, port=broker.port)
    outcome.runs = count
    outcome.violations += answer["violations"]
    outcome.expect(stored == answer.get("sent"), f"the broker got {stored} of {answer.get('sent')} messages")
    return outcome


@scenario("error-paths", "errors of clients over and over", small=2000, nightly=100_000, release=10**6)
def error_paths(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` errors: refused connections, lies, time-outs, refusals; memory, descriptors and threads stay flat."""
    outcome = Outcome()
    with HostileBroker(seed, truth=0.0) as hostile, FakeBroker() as broker:
        answer = run_program(
            "tests.fault.error_program",
            MOST_SECONDS,
            errors=count,
            seed=seed,
            hostile=hostile.port,
            port=broker.port,
        )
    outcome.runs = answer.get("errors", 0)
    outcome.violations += answer["violations"]
    return outcome
