"""A mirror of record batches that is killed, stopped and doubled, and brokers that fail around it: each record once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from fastlog import record_batches
from fastlog.client.addresses import Address
from fastlog.client.kafka_fields import Place
from fastlog.client.records import EARLIEST, LATEST, RecordBroker, RecordsError
from fastlog.errors import TransportError
from fastlog.record_batches import Record
from tests.fault.mirrors import limit_files
from tests.fault.registry import Outcome, scenario
from tests.harness.batch_load import BatchLoad
from tests.harness.broker import Broker, wait_until
from tests.harness.mirrors import CAUGHT_UP_SECONDS, MirrorProgram, pause_up_to
from tests.harness.ports import unused_port

PLACES: list[Place] = [("a", 0), ("a", 1), ("b", 0)]
GROUP = "mirror"
SESSION_MS = 700
AT_ONCE = 50
"""Faults on the same brokers."""
AWAY_SECONDS = 0.3
SHOWN = 3
_SETTINGS = {"num.partitions": 2, "group.min.session.timeout.ms": 100, "flush.min.interval.ms": 1}


class Cell:
    """Two brokers, a load on the first, and two programs that can start a mirror each; while the block lasts."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.pid = 0
        """Of the mirror that the first program runs."""
        self._seed = seed
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.source, self.target = (
                stack.enter_context(Broker(self.directory / name, processors=2, settings=_SETTINGS, port=unused_port()))
                for name in ("source", "target")
            )
            with self.client(self.source) as there:
                for topic in ("a", "b"):
                    there.create(topic, sum(place[0] == topic for place in PLACES), {})
            self._load = stack.enter_context(ExitStack())
            self._load.enter_context(BatchLoad(self.source, PLACES, acks=-1, producers=2, consumers=0, seed=self._seed))
            self.programs = [
                stack.enter_context(MirrorProgram(self._told(), self.directory / f"mirror-{number}.said"))
                for number in range(2)
            ]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def said(self) -> str:
        """What the mirrors have said last."""
        return "\n".join(program.said for program in self.programs)

    def _told(self) -> dict[str, object]:
        consumer = {
            "bootstrap.servers": f"127.0.0.1:{self.source.port}",
            "groupid": GROUP,
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": "50",
            "metadata.max.age.ms": "500",
            "autocommit.interval.ms": str(self.random.choice((10, 100, 1000))),
            "fetch.size": str(self.random.choice((2000, 20_000, 1_000_000))),
        }
        return {
            "sources": {"one": consumer},
            "target": {"bootstrap.servers": f"127.0.0.1:{self.target.port}"},
            "settings": {
                "mirror.topics.whitelist": "a,b",
                "mirror.consumer.numthreads": str(self.random.choice((1, 2))),
            },
            "report": str(self.directory / "report.json"),
        }

    @staticmethod
    def client(broker: Broker) -> RecordBroker:
        """A client of one of the brokers."""
        return RecordBroker([Address("127.0.0.1", broker.port)], timeout=10.0)

    def ends(self, broker: Broker) -> dict[Place, int]:
        """Where the partitions end; 0 of what is not there, or does not answer now."""
        found = dict.fromkeys(PLACES, 0)
        with contextlib.suppress(TransportError), self.client(broker) as there:
            for place in PLACES:
                with contextlib.suppress(RecordsError):
                    found[place] = there.offsets([place], LATEST)[place]
        return found

    def wait_forwarded(self) -> None:
        """Something came into the target since now."""
        before = sum(self.ends(self.target).values())
        self._wait("something is forwarded", lambda: sum(self.ends(self.target).values()) > before)

    def finish(self) -> list[str]:
        """End the load, let the mirrors come to the end, and compare."""
        self._load.close()
        for broker in (self.source, self.target):  # what answers an end has flushed all before it
            wait_until("all answer", lambda broker=broker: all(self.ends(broker).values()), CAUGHT_UP_SECONDS)  # type: ignore[misc]
        wanted = self.ends(self.source)
        with contextlib.suppress(AssertionError):  # what is missing is named by the comparison
            self._wait("all is forwarded", lambda: self.ends(self.target) == wanted)
        time.sleep(0.2)  # for what would come twice
        violations = []
        for place in PLACES:
            violations += compared(place, self.read(self.source, place), self.read(self.target, place))
        return [*violations, self.said] if violations else []

    def read(self, broker: Broker, place: Place) -> list[Record]:
        """All records of a partition, with the codec of their batch in place of the offset."""
        found: list[Record] = []
        with self.client(broker) as there:
            at, end = there.offsets([place], EARLIEST)[place], there.offsets([place], LATEST)[place]
            while at < end:
                fetched = there.fetch({place: at})[place]
                assert fetched.code == 0, fetched
                for header, batch in record_batches.batches(fetched.batches):
                    rows = [record for record in record_batches.records(batch) if record.offset >= at]
                    found += [record._replace(offset=header.codec) for record in rows]
                    at = header.next_offset
        return found

    def _wait(self, what: str, condition: Callable[[], object]) -> None:
        try:
            wait_until(what, condition, CAUGHT_UP_SECONDS, 0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said}") from None


def compared(place: Place, source: list[Record], target: list[Record]) -> list[str]:
    """A line where the target has not exactly what the source has, in its order."""
    if source == target:
        return []
    first = next((i for i, (one, other) in enumerate(zip(source, target, strict=False)) if one != other), None)
    lost = [row for row in source if row not in set(target)]
    twice = len(target) - len(set(target))
    return [
        f"{place}: {len(source)} records in the source, {len(target)} in the target; the first that differs: {first};"
        f" lost: {lost[:SHOWN]}; twice: {twice}"
    ]


def _rounds(count: int) -> list[int]:
    return [min(AT_ONCE, count - done) for done in range(0, count, AT_ONCE)]


@scenario("record-mirror-kill", "kill -9 of a mirror of record batches", small=10, nightly=100, release=1000)
def record_mirror_kill(count: int, seed: int, directory: Path) -> Outcome:
    """Every other one once it forwards; the others wherever they are."""
    outcome = Outcome()
    for number, kills in enumerate(_rounds(count)):
        with Cell(_made(directory / str(number)), seed + number) as cell:
            program = cell.programs[0]
            try:
                for kill in range(kills):
                    program.start()
                    if kill % 2 == 0:
                        cell.wait_forwarded()
                        pause_up_to(cell.random, 0.2)
                    else:
                        pause_up_to(cell.random, 2 * SESSION_MS / 1000)
                    program.kill()
                    outcome.runs += 1
                program.start()
                cell.wait_forwarded()
                outcome.violations += cell.finish()
                code = program.stop()
                outcome.expect(code == 0, f"the last mirror ended with {code}\n{cell.said}")
            except AssertionError as error:
                outcome.violations += [f"round {number}: {error}", cell.said]
    return outcome


@scenario(
    "record-mirror-faults", "brokers fail under mirrors of record batches, which are doubled", small=8, nightly=80,
    release=800,
)  # fmt: skip
def record_mirror_faults(count: int, seed: int, directory: Path) -> Outcome:
    """In turn: each broker killed, a process of it killed, the target's disk full, a mirror stopped, and one asleep."""
    outcome = Outcome()
    for number, faults in enumerate(_rounds(count)):
        with Cell(_made(directory / str(number)), seed + number) as cell:
            try:
                cell.pid = cell.programs[0].start()
                cell.wait_forwarded()
                for fault in range(faults):
                    _FAULTS[fault % len(_FAULTS)](cell, outcome)
                    cell.wait_forwarded()
                    outcome.runs += 1
                outcome.violations += cell.finish()
            except AssertionError as error:
                outcome.violations += [f"round {number}: {error}", cell.said]
    return outcome


def _sleep_over_another(cell: Cell, outcome: Outcome) -> None:
    """A mirror that is stopped for longer than its session goes on beside the one that has its partitions now."""
    pause_up_to(cell.random, 0.1)
    asleep = cell.pid
    os.kill(asleep, signal.SIGSTOP)
    try:
        cell.programs[1].start()
        cell.wait_forwarded()
    finally:
        os.kill(asleep, signal.SIGCONT)
    pause_up_to(cell.random, 0.5)
    if cell.random.random() < 0.5:
        cell.programs[0].kill()
        cell.pid = cell.programs[0].start()
    cell.wait_forwarded()
    cell.programs[1].kill()


def _kill_target(cell: Cell, outcome: Outcome) -> None:
    _kill(cell, cell.target)


def _kill_source(cell: Cell, outcome: Outcome) -> None:
    _kill(cell, cell.source)


def _kill(cell: Cell, broker: Broker) -> None:
    broker.kill_all()
    pause_up_to(cell.random, AWAY_SECONDS)
    broker.start()


def _kill_processes(cell: Cell, outcome: Outcome) -> None:
    for broker, role in ((cell.target, "processor-0"), (cell.target, "coordinator"), (cell.source, "processor-1")):
        pid = broker.kill(role)
        broker.wait_replaced(role, pid)


def _fill_target(cell: Cell, outcome: Outcome) -> None:
    limit_files(cell.target, 0)
    try:
        pause_up_to(cell.random, 0.5)
    finally:
        limit_files(cell.target, None)


def _restart_mirror(cell: Cell, outcome: Outcome) -> None:
    code = cell.programs[0].stop()
    outcome.expect(code == 0, f"SIGTERM ended the mirror with {code}\n{cell.said}")
    cell.pid = cell.programs[0].start()


_FAULTS: list[Callable[[Cell, Outcome], None]] = [
    _sleep_over_another,
    _kill_target,
    _kill_source,
    _restart_mirror,
    _kill_processes,
    _fill_target,
]


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
