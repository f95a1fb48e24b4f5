"""The demo of the Python clients: an access log by four producers and five readers, while processors are killed.

    publish    a sync, an async, a gzip and a snappy producer, a process each, send all lines to a topic of four
               partitions, by client address
    read       five processes read all topics from the start, again and again: as messages, lists, numpy, Arrow, and
               from the segment files
    kill       every second one of the two processors is killed with SIGKILL, in turn, from the first line sent to the
               last one read
    check      with acknowledgements no line is lost or out of order; what was stored twice was sent twice, and counted;
               every reading found exactly what the files hold

Producers send for a given time, the log over and over, so that there is something to kill; and the broker flushes on
demand no more often than every 20 ms, so that requests which wait for that are always on their way.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from fastlog import SimpleConsumer
from fastlog.testing import RunningBroker
from scripts.demo_clients_check import (
    Stored,
    by_partition,
    check_partition,
    digests,
    is_equal,
    stored_bytes,
    stored_messages,
)
from scripts.demo_clients_work import KINDS, MODES, PARTITIONS, Pass, Published, key_of, publish, read
from scripts.demo_command import Say, parse_paced, show
from scripts.demo_text import CheckFailed, DemoFailed, find_source

PROCESSORS = 2
KILL_SECONDS = 1.0
BACK_SECONDS = 10.0
LEAST_PUBLISHING_KILLS = 3
LEAST_READING_KILLS = 2
SEGMENT_BYTES = 1 << 20
FLUSH_INTERVAL_MS = 20
MOST_LINES = 200_000
START_SECONDS = 60.0
PUBLISH_SECONDS = 300.0
FLUSH_SECONDS = 30.0
READ_SECONDS = 300.0
STEP_SECONDS = 0.02


class ProducerRow(NamedTuple):
    """A row of the table of producers."""

    name: str
    lines: int
    seconds: float
    kills: int
    """How often something was killed while it was sending."""
    retries: int
    """How often its connection broke, and it sent again what was not acknowledged."""
    possible_duplicates: int
    """Messages it counted as sent again although they may have been stored."""
    duplicates: int
    """Messages that really were stored and never acknowledged."""


class ReaderRow(NamedTuple):
    """A row of the table of readers."""

    mode: str
    passes: int
    lines: int
    """Of the last pass, which read everything."""
    seconds: float
    """How long the last pass took."""
    kills: int
    """How often something was killed while it was reading."""
    equal: bool
    remark: str
    """What was not as it should be, though the messages were."""


class Shown(NamedTuple):
    """The tables of one run."""

    producers: list[ProducerRow]
    readers: list[ReaderRow]
    kills: int


class Killer(threading.Thread):
    """Kills the processors of a broker, one a second and in turn, from ``start()`` to ``stop()``."""

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__(name="killer", daemon=True)
        self.moments: list[float] = []
        self._broker = broker
        self._stop_asked = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """The thread's function."""
        try:
            due = time.monotonic() + KILL_SECONDS
            while not self._stop_asked.wait(max(0.0, due - time.monotonic())):
                role = f"processor-{len(self.moments) % PROCESSORS}"
                pid = self._broker.kill(role)
                self.moments.append(time.monotonic())
                self._broker.wait_replaced(role, pid, BACK_SECONDS)
                due = self.moments[-1] + KILL_SECONDS
        except Exception as error:
            self._error = error

    def stop(self) -> None:
        """End it; raises ``DemoFailed`` when a processor was not replaced."""
        self._stop_asked.set()
        if self.ident is not None:
            self.join(2 * BACK_SECONDS)
        if self._error is not None:
            raise DemoFailed(f"killing went wrong: {self._error}") from self._error

    @property
    def is_dead(self) -> bool:
        """Whether it gave up; ``stop`` says why."""
        return self._error is not None

    def between(self, began: float, ended: float) -> int:
        """How many kills there were between two moments."""
        return sum(began <= moment <= ended for moment in self.moments)


class Worker(NamedTuple):
    """A process and the pipe to it."""

    name: str
    process: BaseProcess
    pipe: Connection

    def receive(self) -> Any:
        """What it says next. Raises ``DemoFailed`` when that is an error, or it is gone."""
        try:
            said = self.pipe.recv()
        except EOFError:
            self.process.join(1)
            raise DemoFailed(f"{self.name} ended with exit code {self.process.exitcode}") from None
        if isinstance(said, str):
            raise DemoFailed(f"{self.name}: {said}")
        return said


@contextlib.contextmanager
def _workers(function: Callable[..., None], arguments: dict[str, tuple[Any, ...]]) -> Iterator[list[Worker]]:
    """A process each for these names, gone after the block."""
    context = multiprocessing.get_context("spawn")
    workers: list[Worker] = []
    try:
        for name, given in arguments.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=function, args=(*given, theirs), name=name, daemon=True)
            process.start()
            theirs.close()
            workers.append(Worker(name, process, ours))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.process.close()
            worker.pipe.close()


def _tell(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.pipe.send(None)


class Shower:
    """One run, in an empty directory."""

    def __init__(self, lines: Sequence[bytes], directory: Path) -> None:
        self._lines = list(lines)
        self._topics = {f"lines-{kind.name}": kind for kind in KINDS}
        settings = {
            "partitions": PARTITIONS,
            "processors": PROCESSORS,
            "segment_bytes": SEGMENT_BYTES,
            "flush_min_interval_ms": FLUSH_INTERVAL_MS,
        }
        self._broker = RunningBroker(directory=directory, settings=settings)
        self._killer = Killer(self._broker)
        self._passes: dict[str, list[Pass]] = {mode: [] for mode in MODES}

    def run(self, seconds: float, rate: int) -> Shown:
        """Everything, one step after the other."""
        with self._broker as broker, contextlib.ExitStack() as stack:
            reading = {mode: ((broker.host, broker.port), mode, list(self._topics)) for mode in MODES}
            readers = stack.enter_context(_workers(read, reading))
            stack.callback(self._killer.stop)
            self._gather(readers, "every reader is at work", lambda: all(self._passes.values()), START_SECONDS)
            publishing = {
                kind.name: (broker.address, kind, topic, self._lines, rate) for topic, kind in self._topics.items()
            }
            with _workers(publish, publishing) as producers:
                self._gather_said(producers, readers, "every producer is ready", START_SECONDS)
                self._killer.start()
                _tell(producers)
                end = time.monotonic() + seconds
                self._gather(readers, "enough kills", lambda: self._is_enough(end), PUBLISH_SECONDS + seconds)
                _tell(producers)
                published = self._gather_said(producers, readers, "every producer is done", PUBLISH_SECONDS)
            self._read_to_the_end(readers)
            self._killer.stop()
            code = broker.stop()
            if code != 0:
                raise DemoFailed(f"the broker left with exit code {code}")
            return self._shown(published)

    # --- while it runs ---

    def _gather(self, readers: Sequence[Worker], what: str, enough: Callable[[], bool], within: float) -> None:
        """Take what the readers report until it is enough; ``what`` is waited for."""
        deadline = time.monotonic() + within
        by_pipe: dict[object, Worker] = {worker.pipe: worker for worker in readers}
        while not enough():
            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {within:g} s: {what}")
            for pipe in multiprocessing.connection.wait([worker.pipe for worker in readers], STEP_SECONDS):
                worker = by_pipe[pipe]
                self._passes[worker.name].append(worker.receive())

    def _gather_said(
        self, producers: Sequence[Worker], readers: Sequence[Worker], what: str, within: float
    ) -> dict[str, Any]:
        """Meanwhile, take what each of the producers says next."""
        said: dict[str, Any] = {}

        def all_said() -> bool:
            for worker in producers:
                if worker.name not in said and worker.pipe.poll():
                    said[worker.name] = worker.receive()
            return len(said) == len(producers)

        self._gather(readers, what, all_said, within)
        return {worker.name: said[worker.name] for worker in producers}

    def _is_enough(self, end: float) -> bool:
        kills = len(self._killer.moments)
        return self._killer.is_dead or (time.monotonic() >= end and kills >= LEAST_PUBLISHING_KILLS)

    def _read_to_the_end(self, readers: Sequence[Worker]) -> None:
        """Until every reader has read everything, and some processors were killed meanwhile."""
        self._wait_flushed()
        complete = time.monotonic()

        def all_read() -> bool:
            kills = self._killer.between(complete, time.monotonic())
            read_all = all(passes[-1].began > complete for passes in self._passes.values())
            return self._killer.is_dead or (read_all and kills >= LEAST_READING_KILLS)

        self._gather(readers, "every reader has read everything, under kills", all_read, READ_SECONDS)

    def _wait_flushed(self) -> None:
        """Until consumers may see everything that was acknowledged."""
        deadline = time.monotonic() + FLUSH_SECONDS
        with SimpleConsumer(self._broker.host, self._broker.port) as consumer:
            while True:
                answer = consumer.metadata(list(self._topics))
                partitions = [each for topic in answer.topics for each in topic.partitions] if answer else []
                if partitions and all(each.high_watermark == each.log_end for each in partitions):
                    return
                if time.monotonic() > deadline:
                    raise DemoFailed(f"not everything was flushed within {FLUSH_SECONDS:g} s")
                time.sleep(0.01)

    # --- afterwards ---

    def _shown(self, published: Mapping[str, Published]) -> Shown:
        """Compare what is stored with what was sent, told and read. Raises ``CheckFailed`` for a broken promise."""
        doubled = dict.fromkeys(published, 0)
        equal = dict.fromkeys(MODES, True)
        for topic, kind in self._topics.items():
            done = published[kind.name]
            expected = by_partition(itertools.islice(itertools.cycle(self._lines), done.lines))
            for partition in range(PARTITIONS):
                stored = stored_bytes(self._broker.data_directory / f"{topic}-{partition}")
                messages = stored_messages(stored)
                acks = [ack for ack in done.acks if ack.partition == partition]
                try:
                    doubled[kind.name] += check_partition(stored, messages, acks, expected[partition])
                except CheckFailed as error:
                    raise CheckFailed(f"{kind.name} producer, partition {partition}: {error}") from error
                self._compare_readings((topic, partition), messages, equal)
        producers = [self._producer_row(name, done, doubled[name]) for name, done in published.items()]
        readers = [self._reader_row(mode, equal[mode]) for mode in MODES]
        return Shown(producers, readers, len(self._killer.moments))

    def _compare_readings(self, place: tuple[str, int], messages: Sequence[Stored], equal: dict[str, bool]) -> None:
        """Clear ``equal`` of readers that found something else in a partition, or whose last pass found not all."""
        found = {mode: [one.found[place] for one in passes] for mode, passes in self._passes.items()}
        expected = digests(messages, {each.lines for many in found.values() for each in many})
        for mode, many in found.items():
            equal[mode] &= many[-1].lines == len(messages) and all(is_equal(each, expected) for each in many)

    def _producer_row(self, name: str, done: Published, doubled: int) -> ProducerRow:
        kills = self._killer.between(done.began, done.ended)
        seconds = done.ended - done.began
        return ProducerRow(name, done.lines, seconds, kills, done.connections - 1, done.possible_duplicates, doubled)

    def _reader_row(self, mode: str, equal: bool) -> ReaderRow:
        passes = self._passes[mode]
        last = passes[-1]
        lines = sum(found.lines for found in last.found.values())
        kills = self._killer.between(passes[0].began, last.ended)
        remark = next((one.remark for one in passes if one.remark), "")
        return ReaderRow(mode, len(passes), lines, last.ended - last.began, kills, equal, remark)


def check_shown(shown: Shown) -> None:
    """Raise ``CheckFailed`` when a reader found something else, or no kill hit anything, which would show nothing."""
    wrong = [row.mode for row in shown.readers if not row.equal]
    if wrong:
        raise CheckFailed(f"read differently from what is stored: {', '.join(wrong)}")
    remarks = [f"{row.mode}: {row.remark}" for row in shown.readers if row.remark]
    if remarks:
        raise CheckFailed("; ".join(remarks))
    doubtful = [row.name for row in shown.producers if row.duplicates > row.possible_duplicates]
    if doubtful:
        raise CheckFailed(f"stored more lines twice than it counted: {', '.join(doubtful)}")
    unharmed = [row.name for row in shown.producers if not row.kills]
    if unharmed or not sum(row.retries for row in shown.producers):
        raise CheckFailed(f"no kill came while it was sending ({', '.join(unharmed)}): give more --seconds")


def tables(shown: Shown) -> Iterator[str]:
    """Yield the lines of the tables."""
    widths = f"{'lines':>10}{'seconds':>9}{'lines/s':>10}{'kills':>7}"
    yield f"{'producer':9}{widths}{'retries':>9}{'counted':>9}{'doubled':>9}"
    for row in shown.producers:
        yield (
            f"{row.name:9}{row.lines:10,}{row.seconds:9.2f}{row.lines / row.seconds:10,.0f}{row.kills:7}"
            f"{row.retries:9}{row.possible_duplicates:9,}{row.duplicates:9,}"
        )
    yield f"{'reader':9}{widths}{'passes':>9}{'equal':>9}"
    for reader in shown.readers:
        yield (
            f"{reader.mode:9}{reader.lines:10,}{reader.seconds:9.2f}{reader.lines / reader.seconds:10,.0f}"
            f"{reader.kills:7}{reader.passes:9}{'yes' if reader.equal else 'NO':>9}"
        )


def run(file: Path | None, seconds: float, rate: int, directory: Path, say: Say) -> Shown:
    """Run the demo in an empty directory; returns when every promise was kept, raises ``DemoFailed`` otherwise."""
    source = find_source(file)
    lines = list(itertools.islice(source.lines(), MOST_LINES))
    if not lines:
        raise DemoFailed(f"{source.name} has no lines")
    say(f"text       {len(lines):,} lines of {len(set(map(key_of, lines))):,} clients: {source.name}")
    say(f"broker     {PROCESSORS} processors, {PARTITIONS} partitions; a processor is killed with kill -9 every second")
    shown = Shower(lines, directory).run(seconds, rate)
    for line in tables(shown):
        say(line)
    check_shown(shown)
    say(f"checked    {shown.kills} kills: no line lost, changed or out of order; what was stored twice (doubled)")
    say("           was sent twice, and is among what the producer counted; all readers found exactly what is stored")
    return shown


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0, or 1 with one line on stderr."""
    chosen = parse_paced(
        "demo-clients",
        "The Python clients under kill -9.",
        arguments,
        seconds_help="how long producers send",
        rate=15_000,
        rate_help="lines/s each, at most",
    )
    return show("demo-clients", lambda directory, say: run(chosen.file, chosen.seconds, chosen.rate, directory, say))


if __name__ == "__main__":
    sys.exit(main())
