"""A broker's day: producers and groups of four client libraries, topics that come and go, and kills all along.

What producers sent and an auditor reads must be the same, record by record and in order, since all of them number their
batches; every group must read every record, and nobody may begin below what was committed. Segments are removed all the
time, so that nothing but what a group still needs is kept. At the end memory and descriptors are what they were.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.fault.day_writer import CLIENTS
from tests.fault.registry import Outcome, scenario
from tests.harness import foreign_clients
from tests.harness.broker import Broker, die_with_parent, wait_until
from tests.harness.checkout import ROOT
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE
from tests.harness.today_members import Members

TOPIC, PARTITIONS = "day", 12
SETTINGS = {
    "num.partitions": PARTITIONS,
    "group.initial.rebalance.delay.ms": 0,
    "log.file.size": 500_000,
    "log.retention.size": 5_000_000,
    "log.cleanup.interval.mins": 1,
}
"""At 100 records of 1,000 bytes a second a record stays for ten minutes: longer than any group rests."""
GROUPS = ("confluent", "kafka-python", "aiokafka", "franz-go")
OTHERWISE = "cooperative"
"""Instead of a client that was not built: confluent-kafka with cooperative-sticky."""
MEMBERS = 2
"""Of each group."""
ROLES = ("coordinator", "processor-0", "processor-1", "flusher", "keeper", "acceptor")
FAULT_SECONDS = 5.0, 15.0
SAMPLE_SECONDS = 10.0
FEWEST_SAMPLES = 60
"""Ten minutes: before, a broker still fills what it keeps."""
MORE_BYTES, MORE_DESCRIPTORS = 16 * 2**20, 30
VISITORS = 500
"""Records of a topic that comes and goes."""
SETTLE_SECONDS = 20 * PATIENCE
QUIET = {"log_level": 0}
"""librdkafka's words about connections that break, all on purpose here."""


@scenario(
    "day",
    "producers and groups of four client libraries, retention, deletions, and any process killed every ten seconds",
    small=4,
    nightly=360,
    release=4000,
)
def day(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` faults, ten seconds apart: 360 are an hour."""
    outcome = Outcome()
    source = random.Random(seed)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Broker(directory, processors=2, settings=SETTINGS, port=unused_port()))
        address = f"127.0.0.1:{broker.port}"
        make(address, TOPIC)
        writers = stack.enter_context(Writers(address, directory))
        kinds = [kind if kind in CLIENTS or foreign_clients.are_there(kind) else OTHERWISE for kind in GROUPS]
        groups = [
            stack.enter_context(Members(address, kind, TOPIC, directory / f"group-{kind}", f"group-{kind}"))
            for kind in kinds
        ]
        auditor = Auditor(address)
        visits = Visits(address)
        for kind in CLIENTS:
            writers.start(kind)
        for group in groups:
            for _ in range(MEMBERS):
                group.start()
        with auditor.beside(), visits.beside():
            wait_until("every group reads", lambda: all(group.seen() for group in groups), SETTLE_SECONDS, pause=0.2)
            samples: list[Sample] = []
            for _ in range(count):
                _wait(source.uniform(*FAULT_SECONDS), broker, samples)
                _fault(source, broker, groups, writers)
                outcome.runs += 1
            outcome.violations += writers.end()
            try:
                wait_until("all is read", lambda: _all_is_read(auditor, writers, groups), SETTLE_SECONDS, pause=0.5)
            except AssertionError:
                outcome.violations += [
                    f"{len(auditor.records() - group.seen())} records were not read by {kind}'s group"
                    for kind, group in zip(kinds, groups, strict=True)
                    if auditor.records() - group.seen()
                ]
        outcome.violations += auditor.violations + auditor.missing(writers) + visits.violations
        for kind, group in zip(kinds, groups, strict=True):
            outcome.violations += [f"{kind}: {line}" for line in group.wrong()]
            strange = group.seen() - auditor.records()
            outcome.expect(not strange, f"{kind} has read what is not there: {sorted(strange)[:3]}")
        outcome.expect(min(auditor.first_kept()) > 0 or count < FEWEST_SAMPLES, "retention has removed nothing")
        outcome.expect(visits.count > 0, "no topic came and went")
        outcome.violations += growth(samples)
        code = broker.stop()
        outcome.expect(code == 0, f"the stop ended with {code}")
        print(
            f"day: {len(auditor.records()):,} records by {len(writers.names)} producers, {visits.count} topics came and"
            f" went, {sum(len(group.kinds) for group in groups)} members; {_quarters(samples)}"
        )
    return outcome


def make(address: str, topic: str) -> None:
    """A topic of record batches; it may be there from a try whose answer was lost."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE)


class Writers:
    """Producers that are programs, each with a name of its own."""

    def __init__(self, address: str, directory: Path) -> None:
        self.names: list[str] = []
        """Of each so far."""
        self._address, self._directory = address, directory / "writers"
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Writers:
        self._directory.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running:
            running[1].kill()
            running[1].wait(PATIENCE)

    def start(self, kind: str) -> None:
        """One more."""
        name = f"{kind}-{len(self.names)}"
        self.names.append(name)
        told = [kind, self._address, TOPIC, str(PARTITIONS), name, str(self._directory / name)]
        with (self._directory / "errors").open("ab") as errors:
            writer = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.day_writer", *told],
                cwd=ROOT, stdout=errors, stderr=errors, preexec_fn=die_with_parent, start_new_session=True,
            )  # fmt: skip
        self._running.append((kind, writer))

    def kill(self, source: random.Random) -> None:
        """One of them, as with kill -9; another of its kind takes its place."""
        chosen = source.choice(self._running)
        self._running.remove(chosen)
        chosen[1].kill()
        chosen[1].wait(PATIENCE)
        self.start(chosen[0])

    def end(self) -> list[str]:
        """They deliver what they have and leave; what went wrong."""
        for _, writer in self._running:
            writer.terminate()
        found = []
        for kind, writer in self._running:
            try:
                code = writer.wait(SETTLE_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                said = (self._directory / "errors").read_text()[-500:]
                found.append(f"a producer of {kind} ended with {code}: {said}")
        return found

    def diary(self, name: str) -> tuple[list[int], list[str]]:
        """Of one of them: how many records of each partition were acknowledged, and the failures."""
        path = self._directory / name
        lines = path.read_text().splitlines() if path.exists() else []
        failed = [line for line in lines if line.startswith("failed")]
        counts = [line.split() for line in lines if not line.startswith("failed")]
        # what a kill cut short has fewer words, or a smaller last number
        whole = [[int(word) for word in words] for words in counts if len(words) == PARTITIONS]
        return (whole[-1] if whole else [0] * PARTITIONS), failed


class Auditor:
    """Reads everything as it comes, and holds it against what producers promise: each record once, in order."""

    def __init__(self, address: str) -> None:
        self.violations: list[str] = []
        self._address = address
        self._next: dict[tuple[str, int], int] = defaultdict(int)
        self._ends = [0] * PARTITIONS
        self._is_over = threading.Event()

    def records(self) -> set[tuple[int, int]]:
        """Partition and offset of each."""
        return {(partition, offset) for partition, end in enumerate(list(self._ends)) for offset in range(end)}

    def count_of(self, name: str, partition: int) -> int:
        """How many records of a producer are in a partition."""
        return self._next[name, partition]

    def first_kept(self) -> list[int]:
        """The first offset of each partition that is still there."""
        consumer = Consumer({"bootstrap.servers": self._address, **QUIET, "group.id": "first"})
        try:
            places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            return [consumer.get_watermark_offsets(place, PATIENCE)[0] for place in places]
        finally:
            consumer.close()

    def missing(self, writers: Writers) -> list[str]:
        """What was acknowledged and is not there, and what producers gave up."""
        found = []
        for name in writers.names:
            counts, failed = writers.diary(name)
            found += [f"{name}: {line}" for line in failed[:3]]
            for partition, count in enumerate(counts):
                if self.count_of(name, partition) < count:
                    there = self.count_of(name, partition)
                    found.append(f"{name}: {count} records of {partition} were acknowledged, {there} are there")
        return found

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Reads in a thread of its own."""
        with _thread(self._read, self._is_over):
            yield

    def _read(self) -> None:
        settings = {"bootstrap.servers": self._address, **QUIET, "group.id": "auditor", "enable.auto.commit": False}
        # an offset that retention took before it was read is a violation, not a reason to go on elsewhere
        consumer = Consumer({**settings, "auto.offset.reset": "error", "fetch.wait.max.ms": 100})
        consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        while not self._is_over.is_set():
            for message in consumer.consume(1000, 0.2):
                self._judge(message)
        consumer.close()

    def _judge(self, message: Message) -> None:
        if (error := message.error()) is not None:
            if error.name() == "_AUTO_OFFSET_RESET":
                self.violations.append(f"the auditor cannot go on: {error.str()}")
            return
        partition, offset = message.partition() or 0, message.offset() or 0
        if offset != self._ends[partition]:
            self.violations.append(f"partition {partition} goes on at {offset}, not at {self._ends[partition]}")
        self._ends[partition] = offset + 1
        name, number = (message.value() or b"").decode().split()[:2]
        expected = self._next[name, partition]
        if int(number) != expected:
            self.violations.append(f"{name} in {partition}: record {number}, and not {expected}, at {offset}")
        self._next[name, partition] = int(number) + 1


class Visits:
    """Topics that are made, written, read and deleted, one after the other, whatever happens meanwhile."""

    def __init__(self, address: str) -> None:
        self.count = 0
        self.violations: list[str] = []
        self._address = address
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Does so in a thread of its own."""
        with _thread(self._go_on, self._is_over):
            yield

    def _go_on(self) -> None:
        while not self._is_over.wait(2.0):
            # every second name has been there before
            topic = f"visitor-{self.count // 2}"
            self._until_done(lambda topic=topic: make(self._address, topic), "already exists")  # type: ignore[misc]
            if not self._is_over.is_set():
                self._write_and_read(topic)
            self._until_done(lambda topic=topic: self._delete(topic), "UNKNOWN_TOPIC")  # type: ignore[misc]
            self.count += 1

    def _until_done(self, work: Callable[[], None], done_before: str) -> None:
        """Tries again while a process is being replaced."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                return work()
            except KafkaException as error:
                if done_before in str(error):
                    return None
                if time.monotonic() > deadline:
                    self.violations.append(f"a topic that comes and goes: {error}")
                    return None
                time.sleep(0.5)

    def _delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._address, **QUIET})
        admin.delete_topics([topic])[topic].result(PATIENCE)

    def _write_and_read(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self._address, **QUIET, "enable.idempotence": True})
        for number in range(VISITORS):
            producer.produce(topic, b"%d" % number, partition=0)
        if producer.flush(SETTLE_SECONDS):
            self.violations.append(f"{topic}: not everything was acknowledged")
        consumer = Consumer(
            {"bootstrap.servers": self._address, **QUIET, "group.id": topic, "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + SETTLE_SECONDS
        while len(found) < VISITORS and time.monotonic() < deadline:
            found += [each.value() for each in consumer.consume(VISITORS, 0.2) if each.error() is None]
        consumer.close()
        if found != [b"%d" % number for number in range(VISITORS)]:
            self.violations.append(f"{topic}: {len(found)} of {VISITORS} records, or not in their order")


class Sample(NamedTuple):
    """Of all processes of the broker: what each has for itself and what they share, and how much they have open."""

    memory_bytes: int
    descriptors: int


def growth(samples: list[Sample]) -> list[str]:
    """What the last quarter of a day has more of than its second; too short a day says nothing."""
    if len(samples) < FEWEST_SAMPLES:
        return []
    early, late = _quarter(samples, 1), _quarter(samples, 3)
    found = []
    if late.memory_bytes > early.memory_bytes + MORE_BYTES:
        found.append(f"memory grew from {early.memory_bytes:,} to {late.memory_bytes:,} bytes")
    if late.descriptors > early.descriptors + MORE_DESCRIPTORS:
        found.append(f"open descriptors grew from {early.descriptors} to {late.descriptors}")
    return found


def _quarter(samples: list[Sample], number: int) -> Sample:
    size = len(samples) // 4
    part = samples[number * size : (number + 1) * size]
    return Sample(
        int(statistics.median(each.memory_bytes for each in part)),
        int(statistics.median(each.descriptors for each in part)),
    )


def _quarters(samples: list[Sample]) -> str:
    if len(samples) < FEWEST_SAMPLES:
        return "too short to judge its memory"
    found = [_quarter(samples, number) for number in range(4)]
    memory = ", ".join(f"{each.memory_bytes / 2**20:.0f}" for each in found)
    return f"memory by quarters {memory} MiB, descriptors {', '.join(str(each.descriptors) for each in found)}"


def _sample(broker: Broker) -> Sample:
    memory = descriptors = 0
    for pid in broker.pids().values():
        # one that is being replaced counts again next time
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kept = [line for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
            memory += sum(int(line.split()[1]) * 1024 for line in kept)
            descriptors += psutil.Process(pid).num_fds()
    return Sample(memory, descriptors)


def _wait(seconds: float, broker: Broker, samples: list[Sample]) -> None:
    """So long, with a sample as it ends: everybody has had the time to come back."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, SAMPLE_SECONDS))
    samples.append(_sample(broker))


def _fault(source: random.Random, broker: Broker, groups: list[Members], writers: Writers) -> None:
    """One of them."""
    match source.choice(("member", "member", "leave", "writer", "process", "process", "broker")):
        case "member":
            group = source.choice(groups)
            group.kill(source.choice(group.running))
            group.start()
        case "leave":
            group = source.choice(groups)
            group.end(source.choice(group.running))
            group.start()
        case "writer":
            writers.kill(source)
        case "process":
            role = source.choice(ROLES)
            broker.wait_replaced(role, broker.kill(role), 2 * PATIENCE)
        case "broker":
            if source.random() < 0.5:
                os.kill(broker.pids()["supervisor"], signal.SIGTERM)
                assert broker.process is not None
                broker.process.wait(2 * PATIENCE)
            broker.kill_all()
            broker.start()


def _all_is_read(auditor: Auditor, writers: Writers, groups: list[Members]) -> bool:
    """Whether the auditor has all that was acknowledged, and each group all that the auditor has."""
    return not auditor.missing(writers) and all(auditor.records() <= group.seen() for group in groups)


@contextlib.contextmanager
def _thread(work: Callable[[], None], is_over: threading.Event) -> Iterator[None]:
    running = threading.Thread(target=work, daemon=True)
    running.start()
    try:
        yield
    finally:
        is_over.set()
        running.join(2 * SETTLE_SECONDS)
        assert not running.is_alive(), f"{work} does not end"
