"""The load job is killed with all its processes, and brokers under it, at random moments: the table has each message
once.

Producers go on all the time, and remember what was acknowledged as flushed. In the end the job runs once more to the
end of the topic, and what four readers see in the table is what lies in the segment files behind the place at which
the first run said that it begins. Beside it a second topic, whose producers tell how much they send, goes into the same
table: the audit job finds nothing missing. A third topic, of one of the brokers, consists of record batches.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from fastlog import Producer
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker, RecordsError
from fastlog.errors import TransportError
from fastlog.record_batches import Record, build
from tests.fault.programs import environment
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness import raw_records, stored_batches
from tests.harness.broker import Broker
from tests.harness.history import History
from tests.harness.lake import run_job
from tests.harness.load import Load, stored
from tests.harness.ports import unused_port
from tests.harness.raw_batches import HEADER
from tests.harness.raw_format import NONE, deep_payloads, entries, inflate
from tests.harness.spark_driver import END_SECONDS, Driver, as_arguments
from tests.harness.spark_start import LOCAL_SETTINGS, quick_home

TOPIC = "t"
AUDITED, TOLD = "audited", "told"
"""A topic with envelopes, and the one in which its producers tell what they sent."""
RECORDS = "records"
"""A topic of record batches, of the first broker."""
WINDOW_MS = 1000
PARTITIONS = 2
BROKERS = 2
SMALL_BATCHES = (1, 100_000)
LARGE_BATCH = "64MiB"

Row = tuple[int, int, int, int, bytes]
"""Broker, partition, offset, place in the set, value."""

Finish = Callable[[Path, list[Broker]], tuple[int, dict[str, Any]]]
"""Runs the job to the end of the topics; its exit code and its summary."""


def arguments(directory: Path, brokers: list[Broker], *more: object) -> list[str]:
    """What every run of the job is told. Bare messages are all value, so one run reads both topics."""
    given = ["--brokers", _addresses(brokers), "--topic", TOPIC, "--topic", AUDITED, "--topic", RECORDS]
    given += ["--table", directory / "table"]
    for option in ("fetch.numRetries=3", "direct=off", "envelope=true", "failOnBadEnvelope=false"):
        given += ["-o", option]
    given += ["-o", "includeEnvelope=true", "--column", "deduplicationId=deduplicationId"]
    return [str(item) for item in (*given, "--starting", "latest", "--attempts", 50, *more)]


def by_itself(directory: Path, brokers: list[Broker]) -> tuple[int, dict[str, Any]]:
    """The last run as one more process."""
    return Job(directory, brokers, "--max-bytes", LARGE_BATCH).end()


def in_this_process(directory: Path, brokers: list[Broker]) -> tuple[int, dict[str, Any]]:
    """The last run in the session that this process has."""
    summary = run_job("load", *arguments(directory, brokers, "--max-bytes", LARGE_BATCH, "--no-progress"))
    return summary["code"], summary


class Job(Driver):
    """One life of the load job."""

    def __init__(self, directory: Path, brokers: list[Broker], *more: object) -> None:
        command = [sys.executable, "-m", "fastlog.spark.jobs.load", *arguments(directory, brokers, *more)]
        command += ["--master", "local[2,4]"]
        command += as_arguments({**LOCAL_SETTINGS, "spark.local.dir": str(directory / "scratch")})
        known = {**environment(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(quick_home())}
        super().__init__(command, directory / "load.log", directory=directory, environment=known)


class Audited:
    """A producer for each broker, which sends and tells of it until it is stopped; broken connections do not end it."""

    def __init__(self, brokers: list[Broker]) -> None:
        self._stopped = threading.Event()
        self._failed: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(broker.port,)) for broker in brokers]
        for broker in brokers:
            with broker.connect() as client:
                for topic in (AUDITED, TOLD):
                    assert client.create_topic(topic)[0] == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """What is sent before the job knows where the topic begins would be missing in its table."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[str]:
        """What is on the way arrives, and the last windows are told; returns what went wrong."""
        self._stopped.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(END_SECONDS)
        return [f"an audited producer failed: {error}" for error in self._failed]

    def _run(self, port: int) -> None:
        fields = {"audit_topic": TOLD, "audit_window_ms": WINDOW_MS, "audit_interval_ms": 200, "acks": "flushed"}
        try:
            with Producer(f"127.0.0.1:{port}", producer_type="async", server=f"web-{port}", **fields) as producer:
                number = 0
                while not self._stopped.wait(0.02):
                    producer.send(AUDITED, [b"audited %d" % at for at in range(number, number + 5)])
                    number += 5
        except Exception as error:  # a thread's errors are for who waits for it
            self._failed.append(error)


class Recording:
    """Writes records to both partitions of their topic until it is stopped; what becomes of each the files tell."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        with self._reached() as records:
            records.create(RECORDS, PARTITIONS, {"segment.bytes": "100000"})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(END_SECONDS)

    def _reached(self) -> RecordBroker:
        return RecordBroker([Address("127.0.0.1", self._broker.port)], timeout=10)

    def _run(self) -> None:
        number = 0
        with self._reached() as records:
            while not self._stopped.wait(0.05):
                made = [Record(b"%d" % at, b"record %d" % at, at) for at in range(number, number + 10)]
                number += 10
                # The broker, or the process that was asked, may have been killed.
                with contextlib.suppress(TransportError, RecordsError):
                    records.append({(RECORDS, number // 10 % PARTITIONS): build(made)}, is_flushed=True)


@scenario("spark-load", "kill -9 of the load job, of processors and of brokers", small=3, nightly=12, release=60)
def spark_load(count: int, seed: int, directory: Path, finish: Finish = by_itself) -> Outcome:
    """``count`` kills of the job; every third time a broker or one of its processes is killed before."""
    outcome = Outcome()
    source = random.Random(seed)
    with ExitStack() as stack:
        brokers = [stack.enter_context(_broker(directory, number)) for number in range(BROKERS)]
        histories = [History() for _ in brokers]
        places = [(TOPIC, partition) for partition in range(PARTITIONS)]
        for broker, history in zip(brokers, histories, strict=True):
            with broker.connect() as client:
                for place in places:
                    payloads = [b"before the first run %d %d" % (place[1], index) for index in range(50)]
                    history.sent(place, f"before {place[1]}", payloads)
                    client.produce_ack(*place, raw.message_set(payloads), raw.FLUSHED)
        before = _ends(brokers)
        producers = [
            stack.enter_context(
                Load(
                    broker,
                    places,
                    producers=1,
                    consumers=0,
                    acks=raw.FLUSHED,
                    batch=10,
                    size=200,
                    compressed=0.3,
                    pause=0.05,
                    seed=seed + number,
                    history=histories[number],
                    name=f"b{number}p",
                )
            )
            for number, broker in enumerate(brokers)
        ]
        audited = stack.enter_context(Audited(brokers))
        recording = stack.enter_context(Recording(brokers[0]))
        begun_before: dict[tuple[int, int], int] = {}
        for life in range(count):
            batch = source.choice(SMALL_BATCHES) if life < 2 else source.choice([*SMALL_BATCHES, LARGE_BATCH])
            job = Job(directory, brokers, "--every", "100ms", "--max-bytes", batch)
            try:
                if not life:
                    job.wait_said("begins with")
                    begun_before = _ends(brokers)
                    audited.start()
                else:
                    job.wait_said(r"batch \d+: ", times=source.randint(1, 6))
                if life % 3 == min(1, count - 1):
                    _hurt(source, brokers)
                    outcome.runs += 1
                _moment(source, job)
            finally:
                job.kill()
            outcome.runs += 1
        for producer in producers:
            producer.stop()
        outcome.violations += audited.stop()
        recording.__exit__()
        code, summary = finish(directory, brokers)
        outcome.expect(code == 0, f"the last run ended with {code}")
        outcome.expect(not summary["lost"], f"the last run found messages lost: {summary['lost']}")
        for broker, history in zip(brokers, histories, strict=True):
            outcome.violations += history.check(stored(broker, history))
        begun = _begun(directory / "table")
        for place, at in begun.items():
            outcome.expect(
                before[place] <= at <= begun_before[place],
                f"{place} begins at {at}, not between {before[place]} and {begun_before[place]}",
            )
        expected = Counter(row for number, broker in enumerate(brokers) for row in _stored_rows(number, broker, begun))
        outcome.expect(len(expected) > 0, "nothing was sent")
        outcome.violations += compare(directory / "table", expected)
        outcome.violations += audit(directory / "table", brokers)
        recorded = Counter(_stored_records(brokers[0], _begun(directory / "table", RECORDS)))
        outcome.expect(len(recorded) > 0, "no record was stored")
        outcome.violations += compare(directory / "table", recorded, RECORDS)
    return outcome


def audit(table: Path, brokers: list[Broker]) -> list[str]:
    """What the audit job finds missing in the audited topic, and in its rows of the table."""
    given = ["--brokers", _addresses(brokers), "--topic", AUDITED, "--events", TOLD, "--late", "0s"]
    given += ["-o", "envelope=true", "-o", "includeEnvelope=true", "-o", "direct=off"]
    found = run_job("audit", *given, "--loaded", table)
    right = found["code"] == 0 and found["windows"].get("OK", 0) > 1 and set(found["windows"]) <= {"OK", "OPEN"}
    return [] if right else [f"the audit is not green: {found['windows']}, {found['lines'][:5]}"]


def compare(table: Path, expected: Counter[Row], topic: str = TOPIC) -> list[str]:
    """What each reader of the table misses, has twice, or invents."""
    found = []
    for name, rows in _readers(table, topic):
        seen = Counter(rows)
        missing, extra = expected - seen, seen - expected
        if missing or extra:
            some = [row[:4] for row in [*missing, *extra][:5]]
            found.append(f"{topic}, {name}: {missing.total()} missing, {extra.total()} too many, such as {some}")
    return found


def _readers(table: Path, topic: str) -> Iterator[tuple[str, list[Row]]]:
    import duckdb
    import polars
    from deltalake import DeltaTable
    from pyarrow.dataset import field as dataset_field  # type: ignore[import-untyped]

    from fastlog.spark import session
    from fastlog.spark.lake import read_table

    names = ["broker", "partition", "offset", "idx", "value"]
    dataset = DeltaTable(str(table)).to_pyarrow_dataset()
    columns = dataset.to_table(columns=names, filter=dataset_field("topic") == topic)
    yield "pyarrow", list(zip(*(columns.column(name).to_pylist() for name in names), strict=True))
    yield "polars", polars.read_delta(str(table)).filter(polars.col("topic") == topic).select(names).rows()
    with contextlib.closing(duckdb.connect()) as connection:
        quoted = ", ".join(f'"{name}"' for name in names)
        yield "DuckDB", connection.sql(f"SELECT {quoted} FROM dataset WHERE topic = '{topic}'").fetchall()
    frame = read_table(session("spark-load", master="local[2]"), table).where(f"topic = '{topic}'")
    columns = frame.select(*names).toArrow()
    yield "Spark", list(zip(*(columns.column(name).to_pylist() for name in names), strict=True))


def _broker(directory: Path, number: int) -> Broker:
    settings = {"num.partitions": PARTITIONS, "brokerid": number, "log.file.size": 400_000}
    return Broker(directory / f"broker{number}", settings=settings, port=unused_port())


def _hurt(source: random.Random, brokers: list[Broker]) -> None:
    """Kill a processor, or a whole broker and start it again on its port."""
    broker = source.choice(brokers)
    if source.random() < 0.5:
        old = broker.kill("processor-0")
        broker.wait_replaced("processor-0", old, within=30)
    else:
        broker.kill_all()
        time.sleep(source.uniform(0, 1))
        broker.start()


def _moment(source: random.Random, job: Job) -> None:
    """Wait for one at which to kill: anywhere in a batch, or about when its transaction is made."""
    lines = job.count(r"batch \d+: ")
    if source.random() < 0.5:
        job.wait_said(r"adding \d+ files", times=job.count(r"adding \d+ files") + 1)
        time.sleep(source.uniform(0, 0.03))
    else:
        job.wait_said(r"batch \d+: ", times=lines + 1)
        time.sleep(source.uniform(0, 1.5))


def _addresses(brokers: list[Broker]) -> str:
    return ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)


def _ends(brokers: list[Broker]) -> dict[tuple[int, int], int]:
    """How far each partition goes now."""
    found = {}
    for number, broker in enumerate(brokers):
        with broker.connect() as client:
            for partition in range(PARTITIONS):
                found[number, partition] = client.log_end(TOPIC, partition)
    return found


def _begun(table: Path, topic: str = TOPIC) -> dict[tuple[int, int], int]:
    """Where the table says that it begins."""
    from fastlog.spark.lake import Lake

    notes = [notes["begun"] for _, notes in Lake(table).history() if "begun" in notes]
    assert len(notes) == 1, notes
    found = {}
    for name, at in notes[0].items():
        if name.rpartition("/")[0] != topic:
            continue
        broker, _, partition = name.rpartition("/")[2].partition("-")
        found[int(broker), int(partition)] = at
    return found


def _stored_records(broker: Broker, begun: dict[tuple[int, int], int]) -> Iterator[Row]:
    for partition in range(PARTITIONS):
        for path in sorted(broker.partition_directory(RECORDS, partition).glob("*.log")):
            for found in stored_batches.batches(path.read_bytes()):
                records, _, _ = raw_records.decode(found.data[HEADER.size :], found.last - found.base + 1)
                for offset, record in enumerate(records, found.base):
                    if offset >= begun[0, partition] and record.value is not None:
                        yield 0, partition, offset, 0, record.value


def _stored_rows(number: int, broker: Broker, begun: dict[tuple[int, int], int]) -> Iterator[Row]:
    for partition in range(PARTITIONS):
        for item in entries(broker.stored_bytes(TOPIC, partition)):
            codec = item.attributes & 3
            payloads = [item.payload] if codec == NONE else deep_payloads(inflate(item.payload, codec))
            if item.offset >= begun[number, partition]:
                yield from ((number, partition, item.offset, idx, value) for idx, value in enumerate(payloads))
