"""The run of the demo: everything is started, hurt for a while, let come to its end, and judged."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from fastlog import Producer
from fastlog.client.addresses import one_broker
from fastlog.client.records import LATEST, RecordBroker
from fastlog.errors import FastlogError
from fastlog.spark.lake import Lake
from fastlog.spark.storage import TableLocation, located
from fastlog.testing import RunningBroker
from scripts.demo_command import Say
from scripts.demo_spark.evidence import judged, read_commits, read_rows, windows_of
from scripts.demo_spark.kills import Killer, Victim, broker_victim, program_victim, store_victim
from scripts.demo_spark.lines import (
    CENTRAL,
    DATACENTERS,
    EVENTS,
    MOST_LINES,
    PARTITIONS,
    TICK,
    TOPIC,
    WINDOW_MS,
    Sent,
    made_up,
    read_diary,
    value_of,
)  # fmt: skip
from scripts.demo_spark.processes import ObjectStore, Program
from scripts.demo_text import CheckFailed, DemoFailed, Source, find_source

LATE_SECONDS = 20
"""How much later than those of the other datacenter messages may come to be counted."""
CAUGHT_UP_SECONDS = 120.0
LONGEST = 2.5
"""How many times as long as asked for a run goes on, until everybody was hurt once."""
STEP_SECONDS, LOOK_SECONDS = 0.1, 0.5
TICK_AHEAD_MS = 3_600_000
CLUSTER = {"group.min.session.timeout.ms": "100", "num.partitions": str(PARTITIONS)}
MIRROR = {"session.timeout.ms": "1000", "heartbeat.interval.ms": "100", "metadata.max.age.ms": "1000"}
SPARK = {
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
"""For little data: its programs are over before the best of Java's compilers has been worth its time."""
BROUGHT = r"batch \d+: \d+ rows"
"""What jobs say when they have brought a batch."""


@dataclass(frozen=True)
class DemoOptions:
    """What is asked for; ``seconds`` of sending, ``rate`` in lines a second of each datacenter."""

    file: Path | None = None
    seconds: float = 60.0
    rate: int = 1000
    seed: int = 7
    page: Path = Path("demo-spark.html")


class Job(Protocol):
    """A Spark job of the pipeline, with the methods of ``Program``."""

    name: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *given: object) -> None: ...
    def start(self) -> None: ...
    def kill(self) -> int: ...
    def said(self, pattern: str) -> int: ...
    def check(self) -> None: ...
    def stop(self) -> dict[str, Any]: ...

    def catch_up(self) -> None:
        """Nothing more comes into its topics: one that does not run by itself does its work now."""


class SparkJob(Program):
    """A job by itself, as a user starts it."""

    def __init__(self, name: str, given: Sequence[str], directory: Path) -> None:
        settings = [word for setting in SPARK.items() for word in ("--conf", "=".join(setting))]
        command = [f"fastlog.spark.jobs.{name}", *given, "--every", "1s", "--attempts", "1000", *settings]
        super().__init__(name, [*command, "--master", "local[2,4]"], directory)

    def catch_up(self) -> None:
        """Nothing to do: it runs all the time."""


MakeJob = Callable[[str, Sequence[str], Path], Job]


class Watch(threading.Thread):
    """Looks at how many records of the topic the central cluster has, again and again."""

    def __init__(self, cluster: RunningBroker) -> None:
        super().__init__(name="watch", daemon=True)
        self.totals: list[tuple[float, int]] = [(time.time(), 0)]
        self._cluster = cluster
        self._over = threading.Event()

    def stop(self) -> None:
        """Stop the job."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """The thread's function."""
        while not self._over.wait(LOOK_SECONDS):
            with contextlib.suppress(FastlogError):  # it may be away
                self.totals.append((time.time(), sum(_ends(self._cluster, TOPIC))))


def _client(cluster: RunningBroker) -> RecordBroker:
    return RecordBroker([one_broker(cluster.host, cluster.port)], timeout=10.0)


def _ends(cluster: RunningBroker, topic: str) -> list[int]:
    """Where the partitions of a topic end. Raises ``FastlogError`` while the cluster is away."""
    with _client(cluster) as client:
        return list(client.offsets([(topic, number) for number in range(PARTITIONS)], LATEST).values())


class Pipeline:
    """Everything that runs, from entering the block to leaving it."""

    def __init__(self, options: DemoOptions, lines: Sequence[bytes], directory: Path, make_job: MakeJob) -> None:
        self._options = options
        self._directory = directory
        self._make_job = make_job
        self._lines = directory / "lines"
        self._lines.write_bytes(b"\n".join(lines))
        self._first = lines[0]
        self._stack = ExitStack()
        self._tick: list[Sent] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.store = stack.enter_context(ObjectStore(self._directory))
            self.store.start()
            self.clusters = {name: stack.enter_context(self._cluster(name)) for name in (*DATACENTERS, CENTRAL)}
            for cluster in self.clusters.values():
                with _client(cluster) as client:
                    for topic in (TOPIC, EVENTS):
                        client.create(topic, PARTITIONS, {})
            self.jobs = {name: stack.enter_context(job) for name, job in self._jobs().items()}
            for name in ("load", "counts"):
                self.jobs[name].start()
            self.mirror = stack.enter_context(self._mirror())
            self.mirror.start()
            self.senders = {name: stack.enter_context(self._sender(name)) for name in DATACENTERS}
            self.began = time.time()
            for sender in self.senders.values():
                sender.start()
            self.watch = Watch(self.clusters[CENTRAL])
            stack.callback(self.watch.stop)
            self.watch.start()
            self.wait("the audit has something to read", lambda: sum(self._ends(CENTRAL, EVENTS)) > 0)
            self.jobs["audit"].start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what there is ---

    def place(self, table: str) -> TableLocation:
        """The location of a table in the store."""
        return located(self.store.url(table), self.store.options)

    @property
    def diaries(self) -> dict[str, list[Sent]]:
        """What each sender has recorded in its diary, by its name."""
        return {name: read_diary(self._diary(name)) for name in DATACENTERS} | {TICK: self._tick}

    def victims(self) -> list[Victim]:
        """The processes that may be hurt."""
        load, counts, audit = (self.jobs[name] for name in ("load", "counts", "audit"))
        return [
            *(broker_victim(name, cluster) for name, cluster in self.clusters.items()),
            program_victim("mirror", self.mirror),
            program_victim("job", load, lambda: load.said(BROUGHT) > 0),
            program_victim("job", counts, lambda: counts.said(BROUGHT) > 0, most=1),
            program_victim("job", audit, lambda: audit.said(BROUGHT) > 0, most=1),
            store_victim(self.store),
        ]

    # --- how it goes ---

    def run_for(self, killer: Killer, names: Iterable[str]) -> None:
        """Let it be hurt for the time that was asked for, and longer where not everybody of ``names`` was hurt yet."""
        wanted = set(names)
        asked, most = (self.began + self._options.seconds * times for times in (1, LONGEST))

        def is_over() -> bool:
            self._check()
            now = time.time()
            return now > most or (now > asked and wanted <= killer.hurt)

        killer.run(is_over)

    def come_to_the_end(self) -> None:
        """Nothing more is sent: wait until it is everywhere, or for as long as that may take."""
        for sender in self.senders.values():
            sender.stop()
        self._wait_mirrored()
        self._send_tick()
        self._wait_mirrored()
        for job in self.jobs.values():
            job.catch_up()
        total = sum(self._ends(CENTRAL, TOPIC))
        with contextlib.suppress(DemoFailed):  # what is missing the verdict tells
            self.wait("all is loaded", lambda: self._rows("clicks") >= total)
            self.wait("all is counted", lambda: self._sum("counts", "n") + len(self.rows("late")) >= total - 1)
            self.wait("all is audited", lambda: self._sum("audit", "arrived") >= total - 1)

    def stop(self) -> dict[str, dict[str, Any]]:
        """End everything in order; the summaries of the jobs."""
        found = {name: job.stop() for name, job in self.jobs.items()}
        self.mirror.stop()
        for name, cluster in self.clusters.items():
            if code := cluster.stop():
                raise DemoFailed(f"the cluster {name} left with exit code {code}")
        return found

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a small table."""
        return read_rows(self.place(table))

    def wait(self, what: str, holds: Callable[[], bool], within: float = CAUGHT_UP_SECONDS) -> None:
        """Raises ``DemoFailed`` when that does not come, or something has ended by itself."""
        end = time.monotonic() + within
        while not holds():
            self._check()
            if time.monotonic() > end:
                raise DemoFailed(f"not within {within:g} s: {what}")
            time.sleep(STEP_SECONDS)

    # --- inside ---

    def _cluster(self, name: str) -> RunningBroker:
        directory = self._directory / name
        return RunningBroker(directory=directory, properties=CLUSTER, settings={"processors": 1}, start_timeout=60.0)

    def _sender(self, name: str) -> Program:
        told = {"name": name, "address": self.clusters[name].address, "rate": self._options.rate}
        told |= {"lines": str(self._lines), "diary": str(self._diary(name))}
        return Program(f"sender-{name}", ["scripts.demo_spark.sender", json.dumps(told)], self._directory)

    def _diary(self, name: str) -> Path:
        return self._directory / f"{name}.diary"

    def _mirror(self) -> Program:
        command = ["fastlog", "mirror", "--whitelist", f"{TOPIC}|{EVENTS}", "--existing-records", "append"]
        for name in DATACENTERS:
            source = {"bootstrap.servers": self.clusters[name].address, "groupid": f"mirror-{name}", **MIRROR}
            command += ["--consumer-config", str(_properties(self._directory / f"{name}.properties", source))]
        target = {"bootstrap.servers": self.clusters[CENTRAL].address}
        command += ["--producer-config", str(_properties(self._directory / "central.properties", target))]
        return Program("mirror", command, self._directory)

    def _jobs(self) -> dict[str, Job]:
        shared = ["--brokers", self.clusters[CENTRAL].address, "--topic", TOPIC]
        shared += [word for item in self.store.options.items() for word in ("--storage-option", "=".join(item))]
        timed = ["--late", f"{LATE_SECONDS}s"]
        windows = ["--window", f"{WINDOW_MS}ms", "--late-table", self.store.url("late")]
        given = {
            "load": ["--table", self.store.url("clicks")],
            "counts": [*self._kept("counts"), *timed, *windows],
            "audit": [*self._kept("audit"), *timed, "--events", EVENTS],
        }
        return {name: self._make_job(name, [*shared, *words], self._directory) for name, words in given.items()}

    def _kept(self, name: str) -> list[str]:
        return ["--table", self.store.url(name), "--checkpoint", str(self._directory / f"{name}-state")]

    def _check(self) -> None:
        for one in (self.store, self.mirror, *self.senders.values(), *self.jobs.values()):
            one.check()

    def _ends(self, name: str, topic: str) -> list[int]:
        """The end of each partition; empty while the cluster is unavailable."""
        with contextlib.suppress(FastlogError):
            return _ends(self.clusters[name], topic)
        return []

    def _wait_mirrored(self) -> None:
        def is_there() -> bool:
            for topic in (TOPIC, EVENTS):
                sent = [self._ends(name, topic) for name in DATACENTERS]
                if not all(sent) or self._ends(CENTRAL, topic) != [sum(ends) for ends in zip(*sent, strict=True)]:
                    return False
            return True

        self.wait("all is mirrored", is_there)

    def _send_tick(self) -> None:
        """A line of a later time, so that the windows before it are over."""
        now_ms = time.time_ns() // 1_000_000
        with Producer(self.clusters[DATACENTERS[0]].address, acks="flushed") as producer:
            producer.send(TOPIC, value_of(TICK, 0, [self._first]), timestamp=now_ms + TICK_AHEAD_MS)
        self._tick.append(Sent(0, 1, now_ms + TICK_AHEAD_MS, now_ms))

    def _rows(self, table: str) -> int:
        return sum(file.rows or 0 for file in Lake(self.place(table)).files())

    def _sum(self, table: str, column: str) -> int:
        return sum(row[column] for row in self.rows(table))


def _properties(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def lines_of(file: Path | None) -> tuple[Source, list[bytes]]:
    """What is sent, and where it is from. Raises ``DemoFailed`` where there are none."""
    source = Source("made up lines of an access log", made_up) if file is None else find_source(file)
    lines = [line.replace(b"\r", b" ") for line in itertools.islice(source.lines(), MOST_LINES)]
    if not lines:
        raise DemoFailed(f"{source.name} has no lines")
    return source, lines


def run(options: DemoOptions, directory: Path, say: Say, make_job: MakeJob = SparkJob) -> None:
    """Run the demo in an empty directory, and write the page.

    Raises:
        CheckFailed: a promise was broken.
        DemoFailed: it could not be run.
    """
    try:
        from scripts.demo_spark import page
    except ModuleNotFoundError as error:
        raise DemoFailed(f"{error.name} is missing, which the page needs: pip install '.[spark,demo]'") from error

    source, lines = lines_of(options.file)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        say(text)

    tell(f"text       {len(lines):,} lines, over and over: {source.name}")
    with Pipeline(options, lines, directory, make_job) as pipeline:
        tell(
            f"started    {len(DATACENTERS)} datacenters, a mirror, a central cluster, an object store, 3 jobs of Spark"
        )
        victims = pipeline.victims()
        killer = Killer(victims, options.seed)
        pipeline.run_for(killer, [victim.name for victim in victims])
        hits = killer.hits
        kinds = {kind: sum(hit.kind == kind for hit in hits) for kind in sorted({hit.kind for hit in hits})}
        tell(f"hurt       {len(hits)} times: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
        pipeline.come_to_the_end()
        ended = time.time()
        sent = sum(batch.count for diary in pipeline.diaries.values() for batch in diary)
        tell(f"sent       {sent:,} lines; all of it in {ended - pipeline.began:.0f} s")
        commits = read_commits(pipeline.place("clicks"))
        tables = [pipeline.rows(name) for name in ("counts", "late", "audit")]
        pipeline.stop()
        diaries = pipeline.diaries
    windows = windows_of([batch for name in DATACENTERS for batch in diaries[name]], commits, *tables)
    verdict = judged(diaries, lines, commits, windows)
    latency = verdict.latency_ms
    tell(f"latency    from the producer to the row: {latency['p50'] / 1000:.1f} s, 99 % {latency['p99'] / 1000:.1f} s")
    states = ", ".join(f"{count} {state}" for state, count in sorted(windows.states.items()))
    tell(f"counted    {windows.counted.total():,} in windows, {windows.late.total():,} late; the audit: {states}")
    shown = page.Run(
        pipeline.began, ended, diaries, pipeline.watch.totals, commits, windows, hits, verdict, [*told, str(verdict)]
    )
    options.page.write_text(page.page_of(shown))
    tell(f"page       {options.page}")
    if not verdict.is_right:
        raise CheckFailed(str(verdict))
    tell(f"checked    {verdict}")
