"""The demo of a cluster: an access log through three brokers to two groups, while a broker and a consumer are killed.

    brokers    three, with two processors and two partitions each, registered in a real ZooKeeper
    publish    one producer, which finds them there, sends the lines, numbered, the log over and over; a line's client
               chooses its partition
    consume    the group "one" has one consumer, the group "three" three; each group writes what it gets to a database
    kill       in the middle one broker and one consumer of the three are killed with SIGKILL; both come back, the
               consumer once the others have got lines of every partition that it had
    check      each group got every line once; the lines of a client lie in one partition and came in order, those of a
               partition through one consumer at a time

A line is there twice when the producer had no answer and sent it again; those are counted, and checked against what
the producer said it might have doubled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from fastlog import Producer
from fastlog.client.connection import Broker
from fastlog.errors import error_for
from fastlog.message import deep
from fastlog.testing import RunningBroker, RunningZooKeeper
from fastlog.wire import requests, responses
from scripts.demo_cluster_work import LINE_TABLE, TOPIC, client_of, connect, numbered
from scripts.demo_command import Say, parse_paced, show
from scripts.demo_text import CheckFailed, DemoFailed, find_source

BROKERS = 3
PROCESSORS = 2
PARTITIONS = 2
GROUPS = {"one": 1, "three": 3}
SESSION_MS = 2000
BROKER_SESSION_MS = 20_000
"""A broker that is back before its old session ends takes its place without anybody seeing it gone, so that keys keep
choosing the partitions that they chose."""
DOWN_SECONDS = 1.0
MOST_LINES = 100_000
SLICE_LINES = 50
START_SECONDS = 60.0
SEND_SECONDS = 120.0
TAKE_SECONDS = 60.0
READ_SECONDS = 120.0
LEAVE_SECONDS = 20.0
STEP_SECONDS = 0.05
ROOT = Path(__file__).resolve().parents[1]


class Row(NamedTuple):
    """A row of the table of groups."""

    group: str
    lines: int
    """How many different lines it has read."""
    doubled: int
    """Lines that it got twice, since they are stored twice."""
    consumers: int
    handovers: int
    """How often a partition went from one consumer to another."""
    pause: float
    """The longest time, in seconds, in which it got nothing of a partition."""


class Shown(NamedTuple):
    """The outcome of one run."""

    lines: int
    clients: int
    possible_duplicates: int
    """What the producer says it may have stored twice."""
    stored_twice: int
    rows: list[Row]


class Sender(threading.Thread):
    """Sends the lines, over and over, at a rate; for a time that begins when everybody is there to read them."""

    def __init__(self, zookeeper: str, lines: Sequence[bytes], seconds: float, rate: int) -> None:
        super().__init__(name="sender", daemon=True)
        self.sent = 0
        self.possible_duplicates = 0
        self.error: Exception | None = None
        self._zookeeper = zookeeper
        self._lines = lines
        self._seconds = seconds
        self._rate = rate
        self._end: float | None = None
        self._is_asked_to_stop = False

    def begin_time(self) -> None:
        """Begin the time for which lines are sent."""
        self._end = self.sent + self._rate * self._seconds

    def stop(self) -> None:
        """Send no more; what is not delivered by now is given up."""
        self._is_asked_to_stop = True
        self.join(LEAVE_SECONDS)

    def run(self) -> None:
        """The thread's function."""
        try:
            self._send()
        except Exception as error:
            self.error = error

    def _send(self) -> None:
        endless = itertools.cycle(self._lines)
        settings = {"producer_type": "async", "queue_time_ms": 5, "close_timeout_ms": 5000}
        with Producer(zk_connect=self._zookeeper, **settings) as producer:
            self._wait_announced(producer)
            began = time.monotonic()
            while (self._end is None or self.sent < self._end) and not self._is_asked_to_stop:
                for line in itertools.islice(endless, SLICE_LINES):
                    producer.send(TOPIC, numbered(self.sent, line), key=client_of(line))
                    self.sent += 1
                time.sleep(max(0.0, began + self.sent / self._rate - time.monotonic()))
            if not self._is_asked_to_stop:
                producer.flush()
            stats = producer.stats()
        self.possible_duplicates = stats.possible_duplicates
        if stats.failed or stats.dropped:
            raise DemoFailed(f"{stats.failed + stats.dropped} lines could not be sent")

    def _wait_announced(self, producer: Producer) -> None:
        """Until every broker is known to have the topic: keys choose among what there is, and each client is to stay
        where it is."""
        deadline = time.monotonic() + START_SECONDS
        while len(producer.partitions(TOPIC)) < BROKERS * PARTITIONS and not self._is_asked_to_stop:
            if time.monotonic() > deadline:
                raise DemoFailed(f"ZooKeeper shows only {producer.partitions(TOPIC)} of {TOPIC}")
            time.sleep(STEP_SECONDS)


class Consumer:
    """A consumer's process."""

    def __init__(self, directory: Path, zookeeper: str, group: str, name: str) -> None:
        self.group = group
        self.name = name
        self._said = directory / f"{name}.said"
        told = {
            "zookeeper": zookeeper,
            "group": group,
            "name": name,
            "database": str(database_of(directory, group)),
            "session_ms": SESSION_MS,
        }
        self._command = [sys.executable, "-P", "-m", "scripts.demo_cluster_work", json.dumps(told)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, again if it was killed."""
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def check(self) -> None:
        """Raise ``DemoFailed`` when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise DemoFailed(f"consumer {self.name} ended with {self._process.returncode}: {self._words()}")

    def leave(self) -> None:
        """Let it end in order. Raises ``DemoFailed`` when it does not."""
        self.check()
        if self._process is not None:
            self._process.terminate()
            try:
                code = self._process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"consumer {self.name} did not leave within {LEAVE_SECONDS:g} s") from None
            if code:
                raise DemoFailed(f"consumer {self.name} left with {code}: {self._words()}")
            self._process = None

    def _words(self) -> str:
        return " ".join(self._said.read_text(errors="replace").split())[-2000:] or "without a word"


def database_of(directory: Path, group: str) -> Path:
    """Where a group writes its lines."""
    return directory / f"{group}.db"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Cluster:
    """One run, in an empty directory."""

    def __init__(self, lines: Sequence[bytes], directory: Path, say: Say) -> None:
        self._lines = list(lines)
        self._directory = directory
        self._say = say
        self._databases: dict[str, sqlite3.Connection] = {}

    def run(self, seconds: float, rate: int) -> Shown:
        """Everything, one step after the other."""
        with contextlib.ExitStack() as stack:
            zookeeper = stack.enter_context(RunningZooKeeper())
            brokers = [stack.enter_context(self._broker(number, zookeeper.connect)) for number in range(BROKERS)]
            for broker in brokers:
                _create_topic(broker)
            for group in GROUPS:
                database = connect(database_of(self._directory, group))
                stack.callback(database.close)
                database.execute("PRAGMA journal_mode = WAL")
                database.execute(LINE_TABLE)
                self._databases[group] = database
            consumers = [
                stack.enter_context(Consumer(self._directory, zookeeper.connect, group, f"{group}-{number}"))
                for group, count in GROUPS.items()
                for number in range(count)
            ]
            sender = Sender(zookeeper.connect, self._lines, seconds, rate)
            stack.callback(sender.stop)
            sender.start()
            self._wait("every consumer has got lines", consumers, sender, self._all_at_work, START_SECONDS)
            sender.begin_time()
            self._wait("a third is sent", consumers, sender, lambda: sender.sent * 3 >= rate * seconds, SEND_SECONDS)
            self._kill_two(brokers[1], consumers, sender)
            self._wait("all is sent", consumers, sender, lambda: not sender.is_alive(), SEND_SECONDS + seconds)
            self._wait(
                "all is read",
                consumers,
                sender,
                lambda: all(self._is_all_read(group, sender) for group in GROUPS),
                READ_SECONDS,
            )
            for consumer in consumers:
                consumer.leave()
            for broker in brokers:
                code = broker.stop()
                if code:
                    raise DemoFailed(f"a broker left with exit code {code}")
            return self._shown(brokers, sender)

    def _broker(self, number: int, zookeeper: str) -> RunningBroker:
        settings = {
            "broker_id": number,
            "partitions": PARTITIONS,
            "processors": PROCESSORS,
            "zk_connect": zookeeper,
            "zk_sessiontimeout_ms": BROKER_SESSION_MS,
        }
        return RunningBroker(directory=self._directory / f"broker-{number}", settings=settings)

    def _kill_two(self, broker: RunningBroker, consumers: Sequence[Consumer], sender: Sender) -> None:
        """Kill the broker and the last consumer, and start both again; the consumer when its share has gone to others,
        since one that is back before its session ends keeps it."""
        consumer = consumers[-1]
        self._wait("the consumer to kill has a share", consumers, sender, lambda: self._share(consumer), START_SECONDS)
        before = sender.sent
        broker.kill()
        consumer.kill()
        killed = time.monotonic()
        share = self._share(consumer)
        time.sleep(DOWN_SECONDS)
        broker.start()

        def is_taken() -> bool:
            # A small file may have no more lines for one of the partitions.
            return not share & self._share(consumer) or self._is_all_read(consumer.group, sender)

        self._wait("others have the killed consumer's share", consumers, sender, is_taken, TAKE_SECONDS)
        taken = time.monotonic() - killed
        consumer.start()
        taken_over = len(share - self._share(consumer))
        self._say(f"killed     broker 1 and consumer {consumer.name} with kill -9 after {before:,} lines;")
        self._say(
            f"           the broker was back after {DOWN_SECONDS:g} s, the consumer after {taken:.1f} s, when others"
        )
        self._say(f"           had got lines of {taken_over} of its {len(share)} partitions")

    def _wait(
        self, what: str, consumers: Sequence[Consumer], sender: Sender, holds: Callable[[], object], within: float
    ) -> None:
        deadline = time.monotonic() + within
        while not holds():
            for consumer in consumers:
                consumer.check()
            if sender.error is not None:
                raise DemoFailed(f"sending failed: {sender.error}") from sender.error
            if time.monotonic() > deadline:
                got = {group: self._count(group) for group in GROUPS}
                raise CheckFailed(f"not within {within:g} s: {what}; {sender.sent} sent, got {got}")
            time.sleep(STEP_SECONDS)
        if sender.error is not None:
            raise DemoFailed(f"sending failed: {sender.error}") from sender.error

    def _all_at_work(self) -> bool:
        return all(
            database.execute("SELECT count(DISTINCT consumer) FROM line").fetchone()[0] == GROUPS[group]
            for group, database in self._databases.items()
        )

    def _count(self, group: str) -> int:
        return int(self._databases[group].execute("SELECT count(DISTINCT number) FROM line").fetchone()[0])

    def _is_all_read(self, group: str, sender: Sender) -> bool:
        return not sender.is_alive() and self._count(group) == sender.sent

    def _share(self, consumer: Consumer) -> set[str]:
        """The partitions of which this one got the last line."""
        lines = "SELECT broker_partition, consumer, max(rowid) FROM line GROUP BY broker_partition"
        rows = self._databases[consumer.group].execute(lines).fetchall()
        return {partition for partition, name, _ in rows if name == consumer.name}

    # --- afterwards ---

    def _shown(self, brokers: Sequence[RunningBroker], sender: Sender) -> Shown:
        stored = {
            f"{number}-{partition}": [
                each.message.payload
                for path in sorted((broker.data_directory / f"{TOPIC}-{partition}").glob("*.kafka"))
                for each in deep(path.read_bytes())
            ]
            for number, broker in enumerate(brokers)
            for partition in range(PARTITIONS)
        }
        sent = [numbered(number, line) for number, line in zip(range(sender.sent), itertools.cycle(self._lines))]
        twice = check_stored(stored, sent)
        if twice > sender.possible_duplicates:
            raise CheckFailed(f"{twice} lines are stored twice, the producer counted {sender.possible_duplicates}")
        rows = [check_group(group, got_by(database), stored) for group, database in self._databases.items()]
        clients = len(set(map(client_of, self._lines)))
        return Shown(sender.sent, clients, sender.possible_duplicates, twice, rows)


def _create_topic(broker: RunningBroker) -> None:
    """As ``fastlog topics create`` does: a broker gets messages of a topic once it has announced it."""
    with Broker(broker.address, START_SECONDS).connect() as connection:
        answer = responses.decode_create_topic(connection.request(requests.encode_create_topic(0, TOPIC, 0)))
    if answer.error:
        raise DemoFailed(f"the topic was not created: {error_for(answer.error)}")


class Got(NamedTuple):
    """A line that a group got."""

    payload: bytes
    partition: str
    consumer: str
    time: float


def got_by(database: sqlite3.Connection) -> list[Got]:
    """What a group got, in the order in which it was committed."""
    rows = database.execute("SELECT number, text, broker_partition, consumer, time FROM line ORDER BY rowid")
    return [Got(numbered(number, text), partition, consumer, when) for number, text, partition, consumer, when in rows]


def check_stored(stored: dict[str, list[bytes]], sent: Sequence[bytes]) -> int:
    """How many lines are stored twice.

    Raises:
        CheckFailed: one is lost or invented, or the first copies of a client's lines are not in order in one partition.
    """
    counts = Counter(payload for payloads in stored.values() for payload in payloads)
    if lost := set(sent) - counts.keys():
        raise CheckFailed(f"{len(lost)} lines are not stored")
    if invented := counts.keys() - set(sent):
        raise CheckFailed(f"{len(invented)} lines are stored that nobody sent")
    homes: dict[bytes, str] = {}
    for name, payloads in stored.items():
        last: dict[bytes, int] = {}
        for payload in dict.fromkeys(payloads):
            digits, _, line = payload.partition(b"\t")
            client, number = client_of(line), int(digits)
            if homes.setdefault(client, name) != name:
                raise CheckFailed(f"the lines of {client!r} lie in {homes[client]} and {name}")
            if number < last.get(client, -1):
                raise CheckFailed(f"{name}: line {number} of {client!r} follows line {last[client]}")
            last[client] = number
    return counts.total() - len(counts)


def check_group(group: str, got: Sequence[Got], stored: dict[str, list[bytes]]) -> Row:
    """What a group got.

    Raises:
        CheckFailed: that is not each partition as it is stored, message by message.
    """
    handovers = 0
    pause = 0.0
    for name, payloads in stored.items():
        mine = [each for each in got if each.partition == name]
        if [each.payload for each in mine] != payloads:
            raise CheckFailed(
                f"group {group} got {len(mine)} lines of {name}, not the {len(payloads)} stored, in order"
            )
        for before, after in itertools.pairwise(mine):
            handovers += before.consumer != after.consumer
            pause = max(pause, after.time - before.time)
    if len(got) != sum(map(len, stored.values())):
        raise CheckFailed(f"group {group} got lines of partitions that there are not")
    lines = len({each.payload for each in got})
    return Row(group, lines, len(got) - lines, len({each.consumer for each in got}), handovers, pause)


def tables(shown: Shown) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield f"{'group':9}{'consumers':>10}{'lines':>10}{'doubled':>9}{'handovers':>11}{'longest pause':>15}"
    for row in shown.rows:
        yield (f"{row.group:9}{row.consumers:10}{row.lines:10,}{row.doubled:9,}{row.handovers:11}{row.pause:13.2f} s")


def run(file: Path | None, seconds: float, rate: int, directory: Path, say: Say) -> Shown:
    """Run the demo in an empty directory; returns when every promise was kept, raises ``DemoFailed`` otherwise."""
    source = find_source(file)
    lines = list(itertools.islice(source.lines(), MOST_LINES))
    if not lines:
        raise DemoFailed(f"{source.name} has no lines")
    say(f"text       {len(lines):,} lines of {len(set(map(client_of, lines))):,} clients: {source.name}")
    say(f"cluster    {BROKERS} brokers, {PROCESSORS} processors and {PARTITIONS} partitions each; a ZooKeeper")
    shown = Cluster(lines, directory, say).run(seconds, rate)
    for line in tables(shown):
        say(line)
    say(f"checked    each of the {shown.lines:,} lines came to each group, each client's in order in one partition;")
    say(f"           {shown.stored_twice} came twice, of {shown.possible_duplicates} that the producer sent again")
    return shown


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0, or 1 with one line on stderr."""
    chosen = parse_paced(
        "demo-cluster",
        "Brokers and groups under kill -9.",
        arguments,
        seconds_help="how long lines are sent",
        rate=5000,
        rate_help="lines/s",
    )
    logging.getLogger("fastlog.producer").setLevel(logging.CRITICAL)  # that connections break is what is shown
    return show("demo-cluster", lambda directory, say: run(chosen.file, chosen.seconds, chosen.rate, directory, say))


if __name__ == "__main__":
    sys.exit(main())
