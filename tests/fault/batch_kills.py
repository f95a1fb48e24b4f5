"""Processes of a broker are killed under clients of today: what was acknowledged stays, and nothing is there twice."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness.batch_load import BatchLoad, Client
from tests.harness.broker import Broker
from tests.harness.timing import PATIENCE

PLACES = [("a", 0), ("a", 1), ("b", 0)]
SETTINGS = {"num.partitions": 2, "log.file.size": 30_000}
OTHERS = ("acceptor", "flusher", "keeper", "coordinator")


@contextlib.contextmanager
def _under_load(outcome: Outcome, directory: Path, *, acks: int, seed: int) -> Iterator[tuple[Broker, BatchLoad]]:
    with Broker(directory, processors=3, settings=SETTINGS) as broker:
        client = Client(broker.port)
        for topic in ("a", "b"):
            assert client.make_topic(topic) == 2
        client.close()
        with BatchLoad(broker, PLACES, acks=acks, seed=seed) as load:
            load.wait_acked(50)
            yield broker, load
            load.wait_acked(50)
        outcome.expect(not load.errors, f"batches were refused: {load.errors[:5]}")
        code = broker.stop()
        outcome.expect(code == 0, f"the last stop ended with {code}")
        stored = {
            (topic, partition): b"".join(
                path.read_bytes()
                for directory in broker.log_dirs
                for path in sorted((directory / f"{topic}-{partition}").glob("*.log"))
            )
            for topic, partition in PLACES
        }
        outcome.violations += load.check(stored)
        outcome.expect(any(load.shown.values()), "the consumers saw nothing")


@scenario(
    "batches-kill-process", "kill -9 of one process under clients of today", small=20, nightly=1000, release=10_000
)
def kill_process(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills of processors, and a quarter as many of each other process."""
    outcome = Outcome()
    source = random.Random(seed)
    roles = [f"processor-{source.randrange(3)}" for _ in range(count)]
    roles += [role for role in OTHERS for _ in range(max(1, count // 4))]
    source.shuffle(roles)
    with _under_load(outcome, directory, acks=1, seed=seed) as (broker, _):
        for role in roles:
            time.sleep(source.uniform(0.005, 0.1))
            pid = broker.pids()[role]
            broker.kill(role)
            broker.wait_replaced(role, pid, PATIENCE)
            outcome.runs += 1
    return outcome


@scenario(
    "batches-kill-broker",
    "kill -9 of the whole broker under clients of today, and a new start",
    small=10,
    nightly=1000,
    release=5000,
)
def kill_broker(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills of every process at once, on the same log."""
    outcome = Outcome()
    source = random.Random(seed)
    with _under_load(outcome, directory, acks=-1, seed=seed) as (broker, load):
        for _ in range(count):
            load.wait_acked(5)
            time.sleep(source.uniform(0.005, 0.1))
            broker.kill_all()
            broker.start()
            outcome.runs += 1
    outcome.expect(load.lost_connections >= count, "the load did not run while the broker was killed")
    return outcome
