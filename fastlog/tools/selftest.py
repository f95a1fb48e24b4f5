"""``fastlog selftest``: whether fastlog works on this machine, shown with a broker of its own, which is killed."""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from fastlog.counts import counted
from fastlog.escaping import in_json, printable
from fastlog.tools import options
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, note

if TYPE_CHECKING:
    from fastlog.testing import RunningBroker

COUNT = 20_000
"""Messages of each protocol before anything is killed."""
BATCH = 200
WRITE_SECONDS = 0.5
"""How long messages are written before the whole broker is killed among them."""
PATIENCE_SECONDS = 30.0
"""What any answer may take: a disk that has other things to do is no fault."""
OLD_TOPIC, NEW_TOPIC = "selftest", "selftest-today"
_TAIL_LINES = 20


class _Enough(Exception):
    """Raised from a client's callback to end its writing."""


class SelfTestError(Exception):
    """Something did not work; the text says what was expected and what was found."""


class SelfTestClient(Protocol):
    """Writes numbered messages and reads all of a topic's; each has its own thread while it writes."""

    name: str
    topic: str

    def write(self, address: str, numbers: range, acknowledged: Callable[[int], object]) -> None:
        """Send the numbers, batch by batch; ``acknowledged`` is told the last one of each. Raises when that fails."""

    def read(self, address: str, count: int) -> list[bytes]:
        """At least ``count`` messages, or those that come within ``PATIENCE_SECONDS``."""


@click.command(
    cls=options.Command,
    name="selftest",
    examples=("fastlog selftest", "fastlog selftest --directory /data --json"),
    exit_codes=(
        ("0", "everything works"),
        ("1", "something does not; the files are kept, and named"),
        ("2", "wrong usage"),
        ("130, 143", "stopped by SIGINT, by SIGTERM"),
    ),
)
@options.option(
    "--directory",
    group="Selection",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    metavar="DIR",
    help="Where its files lie meanwhile, to try that disk. Default: the system's place for temporary files.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object a line.")
def selftest_command(directory: Path | None, as_json: bool) -> int:
    """Start a broker on a free port, write, read, kill it, and see that nothing is lost.

    It needs nothing that runs and leaves nothing behind; it takes some seconds. Kafka 0.7's protocol is tried, and
    today's where confluent-kafka or kafka-python is installed. Acknowledged messages must be there after kill -9 of
    one process and of the whole broker, and fsck must find the files in order.
    """
    from fastlog.testing import RunningBroker  # after --help, which should be quick

    place = Path(tempfile.mkdtemp(prefix="fastlog-selftest-", dir=directory))
    running = RunningBroker(directory=place)
    begun = time.monotonic()
    failed = ""
    try:
        with _quiet():
            failed = _passed_through(SelfTest(running), as_json)
    finally:
        running.close()
        if not failed:
            shutil.rmtree(place, ignore_errors=True)
    if not failed:
        print(f"everything works ({time.monotonic() - begun:.1f} s)", file=sys.stderr)
        return EXIT_DONE
    tail = _tail(place / "broker.log")
    remedy = f"fastlog doctor --log-dir {place}/data; then report it with that directory and fastlog info"
    note(f"{tail}fastlog: the self-test failed: {failed}\n  why: see above, and {place}/broker.log\n  do:  {remedy}")
    return EXIT_FAILED


def _passed_through(test: SelfTest, as_json: bool) -> str:
    """Take each step and show it; what failed, empty where nothing did."""
    for name, step in test.steps():
        begun = time.monotonic()
        failed = ""
        try:
            said = step()
        except Exception as error:
            said = failed = str(error) or type(error).__name__
        _show(name, not failed, said, time.monotonic() - begun, as_json)
        if failed:
            return f"{name}: {failed}"
    return ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of our own clients, whose connections are to break here."""
    logger = logging.getLogger("fastlog")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


class SelfTest:
    """The steps, in order, on one broker; each raises when something does not work, or says what it did."""

    def __init__(self, running: RunningBroker) -> None:
        self._running = running
        today = today_client()
        self._is_today_missing = not today
        self._clients: list[SelfTestClient] = [Kafka07Client(), *today]
        self._sent = dict.fromkeys((client.topic for client in self._clients), 0)

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the name of each step, and the function that does it and returns what it found."""
        yield "start", self._start
        for client in self._clients:
            yield f"write {client.name}", partial(self._write, client)
            yield f"read {client.name}", partial(self._read, client)
        if self._is_today_missing:
            yield "write today's Kafka", lambda: "not tried: pip install confluent-kafka (or kafka-python)"
        yield "kill a process", self._kill_process
        yield "kill the broker", self._kill_broker
        yield "stop", self._stop
        yield "fsck", self._check_files

    def _start(self) -> str:
        self._running.open()
        return f"{self._running.address}, {len(self._running.pids())} processes"

    def _write(self, client: SelfTestClient) -> str:
        begun = time.monotonic()
        first = self._sent[client.topic]
        last = -1

        def acknowledged(number: int) -> None:
            nonlocal last
            last = number

        client.write(self._running.address, range(first, first + COUNT), acknowledged)
        if last != first + COUNT - 1:
            raise SelfTestError(f"{first + COUNT - 1} was sent as the last message, and {last} is acknowledged")
        self._sent[client.topic] += COUNT
        return f"{COUNT} messages acknowledged, {COUNT / (time.monotonic() - begun):,.0f} a second"

    def _read(self, client: SelfTestClient) -> str:
        begun = time.monotonic()
        found = client.read(self._running.address, self._sent[client.topic])
        check(found, self._sent[client.topic], self._sent[client.topic], repeats=False)
        return f"{len(found)} messages as they were sent, {len(found) / (time.monotonic() - begun):,.0f} a second"

    def _kill_process(self) -> str:
        old = self._running.kill("processor-0")
        new = self._running.wait_replaced("processor-0", old, PATIENCE_SECONDS)
        for client in self._clients:
            self._write(client)
            self._read(client)
        return f"kill -9 {old} (processor-0), replaced by {new}; wrote and read again"

    def _kill_broker(self) -> str:
        """Kill everything while messages are being written; what was acknowledged has to be there afterwards."""
        address = self._running.address
        known = dict(self._sent)
        endless = 10**9
        enough = threading.Event()
        failures: list[str] = []

        def write(client: SelfTestClient) -> None:
            def acknowledged(number: int) -> None:
                known[client.topic] = number + 1
                if enough.is_set():
                    raise _Enough

            try:
                client.write(address, range(self._sent[client.topic], endless), acknowledged)
            except _Enough:
                return
            except Exception as error:
                failures.append(f"{client.name} did not go on after the kill: {error}")

        threads = [threading.Thread(target=write, args=(client,), daemon=True) for client in self._clients]
        for thread in threads:
            thread.start()
        time.sleep(WRITE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(known[topic] == sent for topic, sent in self._sent.items()):
            if time.monotonic() > deadline:
                raise SelfTestError(f"nothing was acknowledged within {PATIENCE_SECONDS:g} s before the kill")
            time.sleep(0.02)
        pid = self._running.kill()
        before = dict(known)
        begun = time.monotonic()
        self._running.start()
        recovered = time.monotonic() - begun
        enough.set()
        for thread in threads:
            thread.join(2 * PATIENCE_SECONDS)
        if failures or any(thread.is_alive() for thread in threads):
            raise SelfTestError("; ".join(failures) or "a client did not go on after the kill")
        for client in self._clients:
            found = client.read(self._running.address, known[client.topic])
            check(found, known[client.topic], endless, repeats=True)
        acknowledged = sum(before.values()) - sum(self._sent.values())
        return f"kill -9 {pid} and all others; back in {recovered:.2f} s; all of {acknowledged} acknowledged are there"

    def _stop(self) -> str:
        code = self._running.stop()
        if code:
            raise SelfTestError(f"the broker ended with the code {code}, and not with 0")
        return "in order, everything flushed"

    def _check_files(self) -> str:
        command = [sys.executable, "-P", "-m", "fastlog", "fsck", str(self._running.data_directory), "--json"]
        # of this fastlog: the working directory may hold another, as in a checkout that is not installed
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        reports = [json.loads(line) for line in ran.stdout.splitlines()]
        found = [report["directory"] for report in reports if not report["ok"]]
        if ran.returncode or found or len(reports) < len(self._clients):
            raise SelfTestError(f"fsck ends with {ran.returncode}: {', '.join(found) or ran.stderr or reports}")
        return f"{sum(report['messages'] for report in reports)} messages in {len(reports)} partitions are in order"


def check(found: Sequence[bytes], acknowledged: int, sent: int, *, repeats: bool) -> None:
    """Raise unless messages are the numbers from 0 on, in order, up to at least ``acknowledged`` and below ``sent``.

    ``repeats``: after a broken connection a batch may be there twice.
    """
    following = 0
    for place, message in enumerate(found):
        if not message.isdigit() or len(message) != 12:
            raise SelfTestError(f"message {place} is {message[:40]!r}, which nobody sent")
        number = int(message)
        if number == following < sent:
            following += 1
        elif not repeats or number > following:
            raise SelfTestError(f"message {place} is number {number}, and {following} was to come")
    if following < acknowledged:
        raise SelfTestError(f"{counted(acknowledged, 'message', 'was')} acknowledged, and {following} are there")


def batches(numbers: range) -> Iterator[list[bytes]]:
    """The messages of these numbers, ``BATCH`` at a time."""
    for first in range(numbers.start, numbers.stop, BATCH):
        yield [b"%012d" % number for number in range(first, min(first + BATCH, numbers.stop))]


class Kafka07Client:
    """fastlog's own clients, in Kafka 0.7's protocol."""

    name = "Kafka 0.7"
    topic = OLD_TOPIC

    def write(self, address: str, numbers: range, acknowledged: Callable[[int], object]) -> None:
        from fastlog.producer.producer import Producer

        with Producer(address, acks="appended", delivery_timeout_ms=int(PATIENCE_SECONDS * 1000)) as producer:
            for batch in batches(numbers):
                producer.send(self.topic, batch, partition=0)
                acknowledged(int(batch[-1]))

    def read(self, address: str, count: int) -> list[bytes]:
        from fastlog.consumer.simple import SimpleConsumer

        host, _, port = address.rpartition(":")
        with SimpleConsumer(host, int(port), local="off") as consumer:
            return list(consumer.payloads(self.topic, 0))


class Confluent:
    """confluent-kafka, which is librdkafka."""

    name = "today's Kafka (confluent-kafka)"
    topic = NEW_TOPIC

    def __init__(self, library: Any) -> None:
        self._library = library

    def write(self, address: str, numbers: range, acknowledged: Callable[[int], object]) -> None:
        failures: list[Any] = []

        def delivered(error: Any, _: object) -> None:
            if error is not None:
                failures.append(error)

        producer = self._library.Producer({"bootstrap.servers": address, "linger.ms": 1,
                                           "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
                                           "max.in.flight.requests.per.connection": 1,
                                           "logger": _silent()})  # fmt: skip
        for batch in batches(numbers):
            for message in batch:
                producer.produce(self.topic, message, on_delivery=delivered)
            if producer.flush(PATIENCE_SECONDS) or failures:
                producer.purge()
                raise SelfTestError(f"confluent-kafka: {failures[0] if failures else 'no answer'}")
            acknowledged(int(batch[-1]))

    def read(self, address: str, count: int) -> list[bytes]:
        consumer = self._library.Consumer({"bootstrap.servers": address, "group.id": "selftest",
                                           "enable.partition.eof": True, "enable.auto.commit": False,
                                           "logger": _silent()})  # fmt: skip
        try:
            consumer.assign([self._library.TopicPartition(self.topic, 0, 0)])
            found: list[bytes] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                for message in consumer.consume(10_000, 0.1):
                    if message.error() is None:
                        found.append(message.value())
                    elif len(found) >= count:
                        return found  # the end of the partition
            return found
        finally:
            consumer.close()


class KafkaPython:
    """kafka-python, where confluent-kafka is not installed."""

    name = "today's Kafka (kafka-python)"
    topic = NEW_TOPIC

    def __init__(self, library: Any) -> None:
        self._library = library

    def write(self, address: str, numbers: range, acknowledged: Callable[[int], object]) -> None:
        producer = self._library.KafkaProducer(bootstrap_servers=address, linger_ms=1,
                                               max_in_flight_requests_per_connection=1)  # fmt: skip
        try:
            for batch in batches(numbers):
                for future in [producer.send(self.topic, message, partition=0) for message in batch]:
                    future.get(PATIENCE_SECONDS)
                acknowledged(int(batch[-1]))
        finally:
            producer.close(1)

    def read(self, address: str, count: int) -> list[bytes]:
        consumer = self._library.KafkaConsumer(bootstrap_servers=address)
        try:
            place = self._library.TopicPartition(self.topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            found: list[bytes] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline and len(found) < count:
                for messages in consumer.poll(100).values():
                    found += [message.value for message in messages]
            return found
        finally:
            consumer.close()


def today_client() -> list[SelfTestClient]:
    """A client of today's protocol, the first that is installed; none where none is."""
    for module, client in (("confluent_kafka", Confluent), ("kafka", KafkaPython)):
        try:
            return [client(importlib.import_module(module))]
        except ImportError:
            continue
    return []


def _silent() -> Any:
    """A logger for libraries that complain about every broken connection: here connections are to break."""
    logger = logging.getLogger("fastlog.selftest.client")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger


def _show(name: str, passed: bool, said: str, seconds: float, as_json: bool) -> None:
    if as_json:
        print(in_json({"step": name, "passed": passed, "said": said, "seconds": round(seconds, 3)}), flush=True)
    else:
        print(printable(f"{'ok' if passed else 'FAILED':6}  {name}: {said} ({seconds:.2f} s)"), flush=True)


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return ""
    return "".join(f"    {line}\n" for line in lines)
