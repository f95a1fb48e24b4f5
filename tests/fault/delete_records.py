"""Records are deleted while processes are killed: a start that was answered holds, and nothing behind it is lost.

Clients of today write, read on, and move the starts of their partitions up; a client of 0.7 writes beside them, whose
topic nobody can delete from. The history of all of them is held against what a new start of the broker serves.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fastlog.kafka_codes import Code
from tests.fault.batch_kills import PLACES
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.batch_load import BatchLoad, Client, Place, records_of
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE

SETTINGS = {"num.partitions": 2, "log.file.size": 1000, "log.retention.hours": 1_000_000}
"""The load's records are years old, and nothing else than deletions may take them."""
DELETE_RECORDS, DELETE_VERSION, LIST_VERSION = 21, 2, 7
EARLIEST = -2
TO_THE_END: Place = ("b", 0)
"""Here all that there is gets deleted now and then; elsewhere the offset is said, and so is known without an answer."""
OLD: Place = ("old", 0)
ROLES = ("coordinator", "keeper", "flusher", "processor-0", "processor-1", "broker")
POINTS = ("starts_file.write", "starts.kept", "starts.published", "retention.published", "retention.unlink")
DELETERS, READERS = 3, 2
KILLS_OF_ROUND = 6
LINES = 5

Result = TypeVar("Result")


class Deletions:
    """Clients that work while the ``with`` block lasts, and what each was told."""

    def __init__(self, broker: Broker, source: random.Random) -> None:
        self.broker = broker
        self.answered: dict[Place, int] = defaultdict(int)
        self.wanted: dict[Place, int] = defaultdict(int)
        self.shown: dict[Place, dict[int, bytes]] = defaultdict(dict)
        self.old: dict[int, bytes] = {}
        self.violations: list[str] = []
        self.done = 0
        self.overtaken = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._load = BatchLoad(broker, PLACES, acks=-1, consumers=0, seed=source.randrange(1 << 30))
        works = [self._delete] * DELETERS + [self._read] * READERS + [self._write_old]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work, random.Random(source.random()))) for work in works
        ]

    def __enter__(self) -> Deletions:
        self._load.__enter__()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            if thread.is_alive():
                self.violations.append("a client hangs")
        self._load.__exit__(*error)
        if self._load.errors:
            self.violations.append(f"batches were refused: {self._load.errors[:LINES]}")

    def wait_done(self, more: int) -> None:
        """Until so many more deletions were answered."""
        wanted = self.done + more
        wait_until("records are deleted", lambda: self.done >= wanted or self.violations)

    def wait_overtaken(self) -> None:
        """Until a reader has met a deletion that went past it."""
        wait_until("a reader is overtaken by a deletion", lambda: self.overtaken or self.violations)

    def _guarded(self, work: Callable[[Caller, random.Random], None], source: random.Random) -> None:
        caller = Caller(self.broker, self._over)
        try:
            while not self._over.is_set() and not self.violations:
                work(caller, source)
        except Exception as error:
            self.violations.append(f"a client failed: {error!r}")
        finally:
            caller.close()

    # -- who deletes ---------------------------------------------------------------------------------------------------

    def _delete(self, caller: Caller, source: random.Random) -> None:
        """One deletion, and what holds once it is answered."""
        place = source.choice(PLACES)
        end = self._load.end_of(place)
        with self._lock:
            before = self.answered[place]
            offset = source.randint(min(before, end), end) if source.random() < 0.8 else source.randint(0, end)
            if place == TO_THE_END and source.random() < 0.3:
                offset = -1
            self.wanted[place] = max(self.wanted[place], offset)
        found = caller.once(lambda client: deleted(client, {place: offset, OLD: 0}))
        if found is None:
            return
        code, low = found[place]
        self.expect(found[OLD] == (Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1), f"a topic of 0.7 answered {found[OLD]}")
        self.expect(code == Code.NONE, f"{place}: deleting up to {offset} of {end} answered {code}")
        self.expect(low >= max(before, offset), f"{place}: {low} was answered after {before}, {offset} was wanted")
        with self._lock:
            self.answered[place] = max(self.answered[place], low)
            self.done += 1
        self._look_at_start(caller, place, low)

    def _look_at_start(self, caller: Caller, place: Place, low: int) -> None:
        """ListOffsets and Fetch agree on where the partition begins."""
        start = caller.once(lambda client: earliest(client, place))
        if start is None:
            return
        self.expect(start >= low, f"{place}: begins at {start}, and {low} was answered")
        fetched = caller.once(lambda client: client.fetch(place, start, 0))
        if fetched is not None and fetched[0]:
            moved = caller.once(lambda client: earliest(client, place))
            is_out = fetched[0] == Code.OFFSET_OUT_OF_RANGE and (moved is None or moved > start)
            self.expect(is_out, f"{place}: a fetch of the earliest, {start}, answered {fetched[0]}; it is {moved} now")
        if low > 0:
            gone = caller.once(lambda client: client.fetch(place, low - 1, 0))
            self.expect(
                gone is None or gone[0] == Code.OFFSET_OUT_OF_RANGE, f"{place}: {low - 1} is served, {low} was answered"
            )

    # -- who reads and writes ------------------------------------------------------------------------------------------

    def _read(self, caller: Caller, source: random.Random) -> None:
        """Follow one partition for a while; only what was deleted before it was read is out of range."""
        place = source.choice(PLACES)
        with self._lock:
            offset = source.randint(0, max(self.shown[place], default=0))
        for _ in range(20):
            with self._lock:
                known = self.answered[place]
            fetched = caller.once(lambda client, at=offset: client.fetch(place, at, 5))  # type: ignore[misc]
            if fetched is None:
                continue
            code, _, data = fetched
            with self._lock:
                wanted = self.wanted[place]
            if code == Code.OFFSET_OUT_OF_RANGE:
                self.overtaken += 1
                if place != TO_THE_END:
                    self.expect(offset < wanted, f"{place}: {offset} is out of range, at most {wanted} was deleted")
                offset = max(offset, caller.once(lambda client: earliest(client, place)) or 0)
                continue
            self.expect(code == Code.NONE, f"{place}: a fetch of {offset} answered {code}")
            self.expect(offset >= known, f"{place}: {offset} was served, and {known} was answered before")
            got = [(at, value) for at, value in records_of(data) if at >= offset]
            self.expect(
                [at for at, _ in got] == list(range(offset, offset + len(got))), f"{place}: a gap behind {offset}"
            )
            with self._lock:
                changed = [at for at, value in got if self.shown[place].setdefault(at, value) != value]
            self.expect(not changed, f"{place}: two records at {changed[:LINES]}")
            offset += len(got)

    def _write_old(self, caller: Caller, source: random.Random) -> None:
        """A client of 0.7, which notices deaths of its processor alone."""
        entry = raw.entry(b"%d" % source.randrange(1 << 60))
        try:
            with self.broker.connect() as client:
                while not self._over.is_set():
                    answer = client.produce_ack(*OLD, entry, raw.FLUSHED)
                    self.expect(answer.error == 0, f"a produce of 0.7 answered {answer.error}")
                    self.old[answer.base_offset] = entry
                    time.sleep(0.005)
        except (raw.ConnectionClosed, OSError):
            time.sleep(0.005)

    # -- the end -------------------------------------------------------------------------------------------------------

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            with self._lock:
                self.violations.append(what)

    def check(self, when: str) -> list[str]:
        """One line for each broken promise, of a broker that nobody uses any more."""
        for place in PLACES:
            self._check_place(place, when)
        with self.broker.connect() as client:
            data = client.read_all(*OLD)
        lost = [at for at, entry in self.old.items() if data[at : at + len(entry)] != entry]
        self.expect(not lost, f"{when}: of the topic of 0.7, these are lost: {lost[:LINES]}")
        return self.violations

    def _check_place(self, place: Place, when: str) -> None:
        caller = Caller(self.broker, threading.Event())
        start = caller.do(lambda client: earliest(client, place))
        answered, wanted = self.answered[place], self.wanted[place]
        self.expect(start >= answered, f"{when}: {place} begins at {start}, and {answered} was answered")
        self.expect(
            place == TO_THE_END or start <= wanted, f"{when}: {place} begins at {start}, {wanted} was wanted at most"
        )
        if start > 0:
            code = caller.do(lambda client: client.fetch(place, start - 1, 0))[0]
            self.expect(code == Code.OFFSET_OUT_OF_RANGE, f"{when}: {place} serves {start - 1}, and begins at {start}")
        log: dict[int, bytes] = {}
        at = start
        while True:
            code, end, data = caller.do(lambda client, at=at: client.fetch(place, at, 0))  # type: ignore[misc]
            self.expect(code == Code.NONE, f"{when}: {place} answers {code} for {at}, and begins at {start}")
            more = [record for record in records_of(data) if record[0] >= at]
            if not more:
                break
            log |= more
            at = more[-1][0] + 1
        caller.close()
        self.expect(at == end and len(log) == end - start, f"{when}: {place} has {len(log)} of {start} to {end}")
        self.expect(len(set(log.values())) == len(log), f"{when}: {place} has a record twice")
        for what, known in (("acknowledged", self._load.acked[place]), ("shown", self.shown[place])):
            wrong = [offset for offset, value in known.items() if offset >= start and log.get(offset) != value]
            self.expect(not wrong, f"{when}: {place}: {what} and not there: {wrong[:LINES]}")

        def is_clean() -> bool:
            bases = sorted(int(path.stem) for path in self.broker.partition_directory(*place).glob("*.log"))
            return not any(base < following <= start for base, following in zip(bases, [*bases[1:], at], strict=True))

        wait_until(f"{when}: what is below {start} of {place} has gone", is_clean)


class Caller:
    """A connection of today's protocol; a new one where the former was closed."""

    def __init__(self, broker: Broker, over: threading.Event) -> None:
        self._broker = broker
        self._over = over
        self._client: Client | None = None

    def once(self, ask: Callable[[Client], Result]) -> Result | None:
        """The answer; None when the connection was closed before it came."""
        try:
            if self._client is None:
                self._client = Client(self._broker.port)
            return ask(self._client)
        except TimeoutError as error:
            raise AssertionError("a request is not answered") from error
        except (EOFError, OSError):
            self.close()
            self._over.wait(0.005)
            return None

    def do(self, ask: Callable[[Client], Result]) -> Result:
        """The answer, of the first try that gets one."""
        deadline = time.monotonic() + PATIENCE
        while (answer := self.once(ask)) is None:
            assert time.monotonic() < deadline, "no answer"
        return answer

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def deleted(client: Client, offsets: dict[Place, int]) -> dict[Place, tuple[int, int]]:
    """Error code and low watermark of each partition."""
    topics = [
        {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
        for (topic, partition), offset in offsets.items()
    ]
    found = client.ask(DELETE_RECORDS, DELETE_VERSION, topics=topics, timeout=today.seconds(PATIENCE))
    return {
        (topic.name, part.partition_index): (int(part.error_code), part.low_watermark)
        for topic in found.topics
        for part in topic.partitions
    }


def earliest(client: Client, place: Place) -> int:
    """Where a partition begins."""
    (found,) = client.ask(today.LIST_OFFSETS, LIST_VERSION, **today.listed((*place, EARLIEST))).topics[0].partitions
    assert found.error_code == 0, f"the earliest offset of {place}: error {found.error_code}"
    return int(found.offset)


@scenario(
    "delete-records",
    "kill -9 of each process, also at each step of a deletion, and of the broker, while clients delete records",
    small=12,
    nightly=300,
    release=5000,
)
def delete_records(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills, in rounds of a few: in turn by the clock, and at a named point of the keeper."""
    outcome = Outcome()
    source = random.Random(seed)
    points = list(POINTS)
    source.shuffle(points)
    number = 0
    while outcome.runs < count and not outcome.violations:
        kills = min(KILLS_OF_ROUND, count - outcome.runs)
        if number % 2 == 0:
            roles = [source.choice(ROLES) for _ in range(kills - 1)] + ["broker"]
            _round(roles, "", source, directory / str(number), outcome)
        else:
            point = points[number // 2 % len(points)]
            faults = f"keeper:{point}@{source.randrange(2, 8)}=kill"
            _round(["keeper"] * min(kills, 2), faults, source, directory / str(number), outcome)
        number += 1
    return outcome


def _round(roles: list[str], faults: str, source: random.Random, directory: Path, outcome: Outcome) -> None:
    with Broker(directory, processors=2, settings=SETTINGS) as broker:
        client = Client(broker.port)
        for topic in ("a", "b"):
            client.make_topic(topic)
        client.close()
        with broker.connect() as old:
            assert old.produce_ack(*OLD, raw.entry(b"first"), raw.FLUSHED).error == 0
        if faults:
            broker.kill_all()
            broker.environment["FASTLOG_FAULTS"] = faults
            broker.start()
        with Deletions(broker, source) as clients:
            for role in roles:
                if role == "broker":
                    clients.wait_done(3)
                    time.sleep(source.uniform(0, 0.05))
                    broker.kill_all()
                    broker.start()
                else:
                    pid = broker.pids()[role]
                    if not faults:  # else it kills itself when it has come so far
                        clients.wait_done(3)
                        time.sleep(source.uniform(0, 0.05))
                        pid = broker.pids()[role]
                        broker.kill(role)
                    broker.wait_replaced(role, pid, PATIENCE)
                outcome.runs += 1
            clients.wait_done(3)
            clients.wait_overtaken()
        when = f"{faults or roles}"
        broker.environment.clear()
        if not clients.violations:
            if not faults:  # else a keeper that removes segments is killed again and again
                clients.check(f"{when}, running")
            broker.kill_all()
            broker.start()
            clients.check(f"{when}, another start")
        outcome.violations += clients.violations[:LINES]
        code = broker.stop()
        outcome.expect(code == 0, f"{when}: the stop ended with {code}")
