"""Both worlds meet while processes are killed: today's clients read topics of 0.7, and 0.7's write batches.

What a reader of today is given is held against the files in the end: between the offset that it asked for and the one
where it is to go on stand exactly the messages that 0.7's own consumer gets there, with the offsets that this one would
commit.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from fastlog.record_batches import BatchHeader
from tests import reference
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.batch_load import ANSWER_SECONDS, BatchLoad, Client, Place
from tests.harness.broker import Broker, wait_until
from tests.harness.load import Load, stored
from tests.harness.timing import PATIENCE
from tests.unit.test_upconvert import records_of

OLD: list[Place] = [("old", 0), ("old", 1)]
NEW: list[Place] = [("new", 0), ("new", 1)]
SETTINGS = {"num.partitions": 2, "log.file.size": 30_000, "log.retention.hours": 1_000_000}
PROCESSORS = 3
ROLES = [*(f"processor-{number}" for number in range(PROCESSORS)), "acceptor", "flusher", "keeper", "coordinator"]
OUT_OF_RANGE, UNKNOWN_TOPIC, STORAGE = 1, 3, 56
SHOWN = 5


class Shown(NamedTuple):
    """What one fetch got: offsets from ``wanted`` up to ``following``, the place to go on."""

    wanted: int
    following: int
    records: list[tuple[int, bytes]]


class BridgeReaders:
    """Clients of today that read topics of 0.7, on from where they are or from anywhere, while the block lasts."""

    def __init__(
        self,
        broker: Broker,
        places: Sequence[Place],
        *,
        count: int = 2,
        seed: int = 1,
        may_answer: Collection[int] = (0,),
    ) -> None:
        """``may_answer``: the codes that a fetch may have; with others than 0, the log may be another one later."""
        self.broker = broker
        self.places = places
        self.seed = seed
        self.may_answer = may_answer
        self.shown: list[tuple[Place, Shown]] = []
        self.lost_connections = 0
        self._ends: dict[Place, int] = dict.fromkeys(places, 0)
        self.violations: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(n,), daemon=True) for n in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS + 5)
            assert not thread.is_alive(), "a reader hangs"
        if kind is None and self._failures:
            raise self._failures[0]

    def wait_shown(self, more: int) -> None:
        """Returns once so many further answers had records."""
        wanted = len(self.shown) + more
        deadline = time.monotonic() + PATIENCE
        while len(self.shown) < wanted:
            assert not self._failures, self._failures[0]
            assert time.monotonic() < deadline, f"not {more} answers with records in time"
            time.sleep(0.002)

    def check(self, files: dict[Place, bytes]) -> list[str]:
        """A line for each answer that had other records than the files say."""
        found = list(self.violations)
        for place in self.places:
            expected = reference.as_records(files[place])
            assert expected is not None
            values = dict(expected)
            offsets = sorted(values)
            for name, got in self.shown:
                if name != place:
                    continue
                wrong = [one for one in got.records if values.get(one[0]) != one[1]]
                if wrong:
                    found.append(f"{place}: shown at {wrong[0][0]} and not there: {wrong[0][1][:30]!r}")
                here = offsets[bisect_left(offsets, got.wanted) : bisect_left(offsets, got.following)]
                if [offset for offset, _ in got.records] != here:
                    found.append(
                        f"{place}: from {got.wanted} to {got.following} {len(got.records)} of {len(here)} records"
                    )
        return found[:SHOWN]

    def _guarded(self, number: int) -> None:
        try:
            self._read(number)
        except BaseException as error:
            self._failures.append(error)

    def _read(self, number: int) -> None:
        source = random.Random(f"{self.seed} reader {number}")
        offsets = dict.fromkeys(self.places, 0)
        client = None
        while not self._stop.is_set():
            try:
                client = client or Client(self.broker.port)
                place = source.choice(self.places)
                if source.random() < 0.1:  # anywhere, also inside a message or a set
                    offsets[place] = source.randrange(offsets[place] + 1)
                with self._lock:
                    known = self._ends[place]
                error, end, data = client.fetch(place, offsets[place], 20)
            except TimeoutError:
                raise AssertionError(f"reader {number}: no answer within {ANSWER_SECONDS} s") from None
            except (OSError, EOFError):
                if client is not None:
                    client.close()
                    client = None
                    with self._lock:
                        self.lost_connections += 1
                time.sleep(0.002)
                continue
            assert error in self.may_answer, f"reader {number}: {place} at {offsets[place]} answered {error}"
            if error:
                offsets[place] = source.choice((0, known))
                time.sleep(0.002)
                continue
            with self._lock:
                if end < known and len(self.may_answer) == 1:
                    self.violations.append(f"{place}: the high watermark went back from {known} to {end}")
                self._ends[place] = end
                if data:
                    got = Shown(offsets[place], BatchHeader.parse(data).next_offset, records_of(data))
                    self.shown.append((place, got))
                    offsets[place] = got.following
        if client is not None:
            client.close()


class OldWriters(BatchLoad):
    """As ``BatchLoad``, with producers that speak 0.7's protocol, and compress some of their sets."""

    def _produce(self, number: int) -> None:
        source = random.Random(f"{self.seed} writer {number}")
        sent = 0
        client: raw.RawClient | None = None
        while not self._stop.is_set():
            place = source.choice(self.places)
            values = []
            for _ in range(source.randrange(1, 8)):
                values.append(b"p%d %d " % (number, sent) + b"x" * source.randrange(60))
                sent += 1
            codec = source.choice((raw.NONE, raw.NONE, raw.GZIP))
            try:
                client = client or self.broker.connect(timeout=ANSWER_SECONDS)
                answer = client.produce_ack(*place, raw.message_set(values, codec=codec), raw.FLUSHED)
            except TimeoutError:
                raise AssertionError(f"writer {number}: no answer within {ANSWER_SECONDS} s") from None
            except (raw.ConnectionClosed, OSError):
                if client is not None:
                    client.close()
                    client = None
                    with self._lock:
                        self.lost_connections += 1
                time.sleep(0.002)
                continue
            with self._lock:
                if answer.error:
                    self.errors.append(answer.error)
                else:
                    if answer.next_offset - answer.base_offset != len(values):
                        self.violations.append(f"{place}: an answer names {answer} for {len(values)} messages")
                    self.acked[place].update(enumerate(values, answer.base_offset))
            self._stop.wait(0.0005)
        if client is not None:
            client.close()


@scenario(
    "bridge-kill",
    "kill -9 of processes, and of the whole broker, while each world reads or writes the other's topics",
    small=16,
    nightly=500,
    release=5000,
)
def kill(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills, every fourth one of everything."""
    outcome = Outcome()
    source = random.Random(seed)
    with Broker(directory, processors=PROCESSORS, settings=SETTINGS) as broker:
        client = Client(broker.port)
        assert client.make_topic("new") == len(NEW)
        client.close()
        with (
            Load(broker, OLD, acks=raw.FLUSHED, compressed=0.4, seed=seed) as load,
            OldWriters(broker, NEW, acks=-1, seed=seed) as writers,
            contextlib.ExitStack() as stack,
        ):
            load.wait_acked(1)
            readers = stack.enter_context(BridgeReaders(broker, OLD, seed=seed))
            _wait_for_all(load, writers, readers)
            for number in range(count):
                time.sleep(source.uniform(0.005, 0.1))
                if number % 4 == 3:
                    broker.kill_all()
                    broker.start()
                else:
                    role = source.choice(ROLES)
                    pid = broker.pids()[role]
                    broker.kill(role)
                    broker.wait_replaced(role, pid, PATIENCE)
                load.wait_acked(1)
                outcome.runs += 1
            _wait_for_all(load, writers, readers)
            outcome.expect(not load.errors and not writers.errors, f"refused: {load.errors} {writers.errors[:5]}")
        outcome.expect(readers.lost_connections >= count // 4, "the readers did not run while the broker was killed")
        outcome.expect(broker.stop() == 0, "the last stop failed")
        _check(outcome, broker, load, writers, readers)
    return outcome


def _wait_for_all(load: Load, writers: OldWriters, readers: BridgeReaders) -> None:
    """Until each kind of client has got on."""
    load.wait_acked(20)
    writers.wait_acked(20)
    readers.wait_shown(20)


def _check(outcome: Outcome, broker: Broker, load: Load, writers: OldWriters, readers: BridgeReaders) -> None:
    """What clients were told, against what lies there."""
    files = stored(broker, load.history)
    outcome.violations += readers.check(files)
    outcome.violations += load.history.check(files)
    batches = {
        (topic, partition): b"".join(
            path.read_bytes()
            for log_dir in broker.log_dirs
            for path in sorted((log_dir / f"{topic}-{partition}").glob("*.log"))
        )
        for topic, partition in NEW
    }
    outcome.violations += writers.check(batches)
    outcome.expect(any(writers.shown.values()), "nobody saw what 0.7's producers wrote")


@scenario(
    "bridge-removed",
    "segments and topics of 0.7 are removed under readers of today, and processors are killed",
    small=12,
    nightly=300,
    release=3000,
)
def removed(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` deletions of a topic whose old segments retention removes all the time."""
    outcome = Outcome()
    source = random.Random(seed)
    settings = {
        **SETTINGS,
        "log.file.size": 8_000,
        "log.retention.size": 20_000,
        "log.cleanup.interval.mins": 0.001,
    }
    known: dict[Place, set[bytes]] = {place: set() for place in OLD}
    with Broker(directory, processors=PROCESSORS, settings=settings) as broker:
        may = (0, OUT_OF_RANGE, UNKNOWN_TOPIC, STORAGE)
        with BridgeReaders(broker, OLD, seed=seed, count=3, may_answer=may) as readers:
            for number in range(count):
                _write_a_life(broker, known, number)
                readers.wait_shown(10)
                _wait_dropped(broker)
                if number % 4 == 3:
                    role = source.choice(ROLES[:PROCESSORS])
                    pid = broker.pids()[role]
                    broker.kill(role)
                    broker.wait_replaced(role, pid, PATIENCE)
                _until_done(broker, lambda client: client.delete_topic("old")[0] in (0, UNKNOWN_TOPIC))
                outcome.runs += 1
        for place, got in readers.shown:
            if not {value for _, value in got.records} <= known[place]:
                outcome.violations.append(f"{place}: a reader got what nobody wrote there")
            if any(not got.wanted <= offset < got.following for offset, _ in got.records):
                outcome.violations.append(f"{place}: offsets outside of {got.wanted} to {got.following}")
        wait_until("no process has a removed file open", lambda: not list(_removed_and_open(broker)), PATIENCE)
        outcome.expect(broker.stop() == 0, "the last stop failed")
    del outcome.violations[SHOWN:]
    return outcome


def _write_a_life(broker: Broker, known: dict[Place, set[bytes]], number: int) -> None:
    """Several segments of messages and sets; what is written is known before it is sent."""
    for part in range(12):
        for place in OLD:
            values = [b"%s-%d %d %d %d " % (place[0].encode(), place[1], number, part, at) * 9 for at in range(40)]
            known[place].update(values)
            data = raw.message_set(values, codec=raw.GZIP if part % 2 else raw.NONE)
            _until_done(broker, lambda client, place=place, data=data: _is_told(client, place, data))  # type: ignore[misc]


def _wait_dropped(broker: Broker) -> None:
    """Until retention has removed the beginning of the topic."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            client = Client(broker.port)
            try:
                if client.fetch(OLD[0], 0, 0)[0] == OUT_OF_RANGE:
                    return
            finally:
                client.close()
        except (OSError, EOFError):
            pass
        time.sleep(0.01)
    raise AssertionError("retention removes nothing")


def _is_told(client: raw.RawClient, place: Place, data: bytes) -> bool:
    return client.produce_ack(*place, data, raw.FLUSHED).error == 0


def _until_done(broker: Broker, what: Callable[[raw.RawClient], bool]) -> None:
    """Try again, on a new connection, until it is done."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with broker.connect() as client:
                if what(client):
                    return
        except (raw.ConnectionClosed, OSError):
            pass
        time.sleep(0.005)
    raise AssertionError(f"not done within {PATIENCE} s")


def _removed_and_open(broker: Broker) -> Iterable[str]:
    """Files that are gone and that a processor still has open."""
    for role, pid in broker.pids().items():
        if role.startswith("processor"):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    target = str(link.readlink())
                except OSError:
                    continue
                if target.endswith(".kafka (deleted)"):
                    yield f"{role}: {target}"
