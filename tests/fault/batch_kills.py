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
SETTINGS = {"num.partitions": 2, "log.file.size": 30_000, "log.retention.hours": 1_000_000}
"""The batches' times are those of an old day, and retention goes by them."""
CALLS = (
    "processor:pwrite",
    "flusher:fdatasync",
    "processor:open",
    "flusher:fsync",
    "processor:ftruncate",
    "flusher:open",
    "processor:pread",
    "flusher:rename",
    "processor:sendfile",
    "flusher:fallocate",
)
ERRORS = ("EIO", "ENOSPC", "EMFILE", "EDQUOT")
STORAGE, TIMED_OUT = 56, 7
FAULT_SECONDS = 3.0
OTHERS = ("acceptor", "flusher", "keeper", "coordinator")


@contextlib.contextmanager
def _under_load(outcome: Outcome, directory: Path, *, acks: int, seed: int) -> Iterator[tuple[Broker, BatchLoad]]:
    with Broker(directory, processors=3, settings=SETTINGS) as broker:
        _make_topics(broker)
        with BatchLoad(broker, PLACES, acks=acks, seed=seed) as load:
            load.wait_acked(50)
            yield broker, load
            load.wait_acked(50)
        outcome.expect(not load.errors, f"batches were refused: {load.errors[:5]}")
        _check(outcome, broker, load)


def _make_topics(broker: Broker) -> None:
    client = Client(broker.port)
    for topic in ("a", "b"):
        assert client.make_topic(topic) == 2
    client.close()


def _check(outcome: Outcome, broker: Broker, load: BatchLoad, what: str = "") -> None:
    """After the load: stop, and hold the history against the files."""
    code = broker.stop()
    outcome.expect(code == 0, f"{what}the last stop ended with {code}")
    stored = {
        (topic, partition): b"".join(
            path.read_bytes()
            for directory in broker.log_dirs
            for path in sorted((directory / f"{topic}-{partition}").glob("*.log"))
        )
        for topic, partition in PLACES
    }
    outcome.violations += [what + line for line in load.check(stored)]
    outcome.expect(any(load.shown.values()), f"{what}the consumers saw nothing")


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


@scenario(
    "batches-disk-errors",
    "calls of a kind fail or are short under clients of today, then the broker is killed",
    small=8,
    nightly=300,
    release=3000,
)
def disk_errors(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` brokers with a fault each, on a disk that is well again after a kill and a new start."""
    outcome = Outcome()
    source = random.Random(seed)
    for number in range(count):
        call = CALLS[number % len(CALLS)] if number < len(CALLS) else source.choice(CALLS)
        first = source.randrange(1, 60)
        faults = f"{call}@{first}-{first + source.choice((0, 0, 3, 200))}={source.choice(ERRORS)}"
        if source.random() < 0.3:
            faults += f",processor:pwrite@1-{first}=short"
        with Broker(directory / str(number), processors=2, settings=SETTINGS) as broker:
            _make_topics(broker)
            broker.kill_all()
            broker.environment["FASTLOG_FAULTS"] = faults
            broker.start()
            with BatchLoad(broker, PLACES, acks=-1, seed=seed + number, may_answer=(0, STORAGE)) as load:
                _until_it_is_felt(load)
                broker.kill_all()
                broker.environment.clear()
                broker.start()
                load.wait_acked(50)
            others = set(load.errors) - {STORAGE, TIMED_OUT}
            outcome.expect(not others, f"{faults}: batches were refused by {others}")
            _check(outcome, broker, load, f"{faults}: ")
        outcome.runs += 1
    return outcome


def _until_it_is_felt(load: BatchLoad) -> None:
    """Until some batches have been refused, or many taken, or neither for a while."""
    deadline = time.monotonic() + FAULT_SECONDS
    while time.monotonic() < deadline and len(load.errors) < 5 and load.acked_count() < 1500:
        time.sleep(0.005)
