"""Consumers that write to a database and are killed or stopped anywhere: every message is in it exactly once (T-36).

Each message has a number of its own; a consumer puts the numbers into a table, in the transaction that saves the
offset. In the end the table holds the numbers below each saved offset, each once, and no others.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from fastlog.consumer.database import DatabaseOffsets
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import OwnershipLostError
from fastlog.zkpaths import PartitionId
from tests.fault.registry import Outcome, scenario
from tests.harness.shared_log import start, wait, wait_until

T = TypeVar("T")

GROUP = "counters"
PLACES = [TopicPartition("t", PartitionId(0, number)) for number in range(3)]
SET_SIZE = 3
"""Messages of a compressed set: they all have the set's offset, and go on at it, but for the last one."""
LOST = 3
WAYS = {"killed": 70, "stopped and woken": 15, "stopped and killed": 15}
"""What happens to a consumer, and how often in a hundred."""


class Message(NamedTuple):
    """A message of a log without end, whose offsets are the numbers of messages."""

    source: TopicPartition
    number: int

    @property
    def offset(self) -> int:
        return self.number // SET_SIZE * SET_SIZE

    @property
    def next_offset(self) -> int:
        is_last = self.number % SET_SIZE == SET_SIZE - 1
        return self.number + 1 if is_last else self.offset


def connect(path: Path) -> sqlite3.Connection:
    """A connection that survives kills of its process; what a power cut would do is SQLite's matter."""

    def connected() -> sqlite3.Connection:
        made = sqlite3.connect(path, timeout=0.05)
        try:
            made.execute("PRAGMA synchronous = OFF")  # also this waits where another one repairs after a kill
        except BaseException:
            made.close()
            raise
        return made

    return patiently(connected)


def consumer(path: Path, seed: int) -> Callable[[], int]:
    """Takes the partitions over and consumes for ever; ends when it has lost one."""

    def work() -> int:
        source = random.Random(seed)
        store = DatabaseOffsets(lambda: connect(path))
        database = connect(path)
        once = store.exactly_once(database, GROUP)
        positions = {place: patiently(lambda place=place: store.load(GROUP, place)) or 0 for place in PLACES}  # type: ignore[misc]
        began(path, os.getpid()).touch()
        while True:
            time.sleep(source.uniform(0.0, 0.001))  # SQLite lets others wait who ask while it is busy
            batch = []
            for place in source.sample(PLACES, source.randint(1, len(PLACES))):
                begin = positions[place]
                batch += [Message(place, begin + number) for number in range(SET_SIZE * source.randint(1, 4))]
            try:
                with once(batch) as fresh:
                    rows = [(str(message.source), message.number) for message in fresh]
                    at = source.randint(0, len(rows))
                    database.executemany("INSERT INTO seen VALUES (?, ?)", rows[:at])
                    if source.random() < 0.2:
                        time.sleep(0.001)
                    database.executemany("INSERT INTO seen VALUES (?, ?)", rows[at:])
            except OwnershipLostError:
                return LOST
            except sqlite3.OperationalError:
                continue  # locked by one that is stopped; the same messages again
            positions.update({message.source: message.next_offset for message in batch})

    return work


def began(path: Path, pid: int) -> Path:
    """Is there when the consumer has taken everything over."""
    return path.with_name(f"{pid}.began")


def patiently(load: Callable[[], T]) -> T:
    """As a group does: again until it works."""
    while True:
        try:
            return load()
        except sqlite3.OperationalError:
            time.sleep(0.002)


@scenario(
    "exactly-once", "kill -9 or SIGSTOP of consumers that write to SQLite", small=20, nightly=1000, release=10_000
)
def exactly_once(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills; a part of the killed are stopped first, and some wake when their successor has begun."""
    outcome = Outcome()
    source = random.Random(seed)
    path = directory / "effects.db"
    with contextlib.closing(connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE seen (partition TEXT, number INT)")
    successors = iter(range(1, 10**9))
    living = start(consumer(path, seed))
    try:
        for way in schedule(count, source):
            time.sleep(source.uniform(0.002, 0.04))
            before = stands(path)
            if way == "killed":
                os.kill(living, signal.SIGKILL)
                os.waitpid(living, 0)
                living = start(consumer(path, seed + next(successors)))
            else:
                # In a group nobody takes over what it was going to before it was stopped; here it would.
                wait_until(began(path, living).exists, 20, "a consumer began")
                os.kill(living, signal.SIGSTOP)
                stopped, living = living, start(consumer(path, seed + next(successors)))
                time.sleep(source.uniform(0.0, 0.05))
                os.kill(stopped, signal.SIGCONT)
                time.sleep(source.uniform(0.0, 0.03))
                if way == "stopped and woken":
                    outcome.violations += not_lost(stopped)
                else:
                    os.kill(stopped, signal.SIGKILL)
                    os.waitpid(stopped, 0)
            outcome.runs += 1
            after = stands(path)
            outcome.expect(
                all(after.get(name, 0) >= offset for name, offset in before.items()),
                f"an offset went back: {before}, then {after}",
            )
        wait_until(lambda: everything_moved(path), 20, "the last consumer saved an offset for each partition")
    finally:
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)
    outcome.violations += check(path)
    return outcome


def schedule(count: int, source: random.Random) -> list[str]:
    """What happens to each consumer: every way at least once, the others and the order by chance."""
    ways = list(WAYS)[:count]
    ways += source.choices(list(WAYS), list(WAYS.values()), k=count - len(ways))
    source.shuffle(ways)
    return ways


def everything_moved(path: Path) -> bool:
    """True when messages of every partition have been counted."""
    now = stands(path)
    return len(now) == len(PLACES) and min(now.values()) > 0


def not_lost(pid: int) -> list[str]:
    """What is wrong with how a consumer ends that has lost its partitions."""
    try:
        code = wait(pid, 20)
    except AssertionError:
        return ["a consumer that had lost its partitions went on"]
    return [] if code == LOST else [f"a consumer that had lost its partitions ended with {code}"]


def stands(path: Path) -> dict[str, int]:
    """The offset saved for each partition."""
    with contextlib.closing(connect(path)) as database:
        try:
            rows = database.execute("SELECT broker_partition, next_offset FROM fastlog_offsets").fetchall()
        except sqlite3.OperationalError:
            return {}  # not made yet
    return {name: offset for name, offset in rows if offset is not None}


def check(path: Path) -> list[str]:
    """What is there twice, not at all, or beyond what was saved."""
    found = []
    with contextlib.closing(connect(path)) as database:
        for name, offset in stands(path).items():
            rows = database.execute("SELECT number FROM seen WHERE partition = ? ORDER BY number", (f"t/{name}",))
            numbers = [number for (number,) in rows]
            if numbers != list(range(offset)):
                twice = len(numbers) - len(set(numbers))
                missing = len(set(range(offset)) - set(numbers))
                beyond = len([number for number in numbers if number >= offset])
                found.append(f"t/{name} up to {offset}: {twice} twice, {missing} missing, {beyond} beyond")
            if not numbers:
                found.append(f"t/{name}: nothing was done")
    return found or ([] if stands(path) else ["nothing was saved"])
