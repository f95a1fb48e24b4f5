"""Apache Kafka: one KRaft node from an unpacked distribution (3.3 or later), driven by its own performance tools.

``FASTLOG_KAFKA_HOME`` names the directory that holds ``bin/`` and ``libs/``. Messages are acknowledged when they are
appended (``acks=1``), and flushed by the operating system, which is Kafka's default.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import ClassVar

from perf.peers.base import Child, Figures, PeerFailed, free_port, run

HOME_VARIABLE = "FASTLOG_KAFKA_HOME"
SCRIPTS = ("server-start", "storage", "topics", "producer-perf-test", "consumer-perf-test")
RECORD_OVERHEAD = 10  # of a record of 200 bytes, in the format of today's Kafka
BATCH_HEADER = 61
TOTAL = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec .*$", re.MULTILINE)
COLUMNS = ("data.consumed.in.nMsg", "fetch.time.ms", "fetch.nMsg.sec", "nMsg.sec")


def home_or_none() -> Path | None:
    """The directory of Kafka's distribution, by the environment; None where it is not set."""
    value = os.environ.get(HOME_VARIABLE)
    return Path(value) if value else None


def configuration(directory: Path, port: int, controller_port: int) -> str:
    """The text of server.properties: one node that is broker and controller, one copy of everything."""
    return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


def producer_properties(port: int, size: int, batch: int) -> list[str]:
    """The producer's settings for batches of about ``batch`` messages; 1 means that each message travels alone."""
    batch_bytes = batch * (size + RECORD_OVERHEAD) + BATCH_HEADER if batch > 1 else 0
    return [
        f"bootstrap.servers=127.0.0.1:{port}",
        "acks=1",
        "enable.idempotence=false",
        f"batch.size={batch_bytes}",
        f"linger.ms={5 if batch > 1 else 0}",
        "compression.type=none",
    ]


def parse_producer(output: str, messages: int) -> Figures:
    """The last line of ``kafka-producer-perf-test``; its clock ends when every message was acknowledged.

    Raises ``PeerFailed`` when there is none, or it counts other messages.
    """
    totals: list[tuple[str, str]] = TOTAL.findall(output)
    if not totals or int(totals[-1][0]) != messages:
        raise PeerFailed(f"kafka-producer-perf-test did not send {messages} messages: {output.strip()[-300:]!r}")
    rate = float(totals[-1][1])
    return {"messages": messages, "rate": rate, "seconds": messages / rate}


def parse_consumer(output: str, messages: int) -> Figures:
    """The table of ``kafka-consumer-perf-test``; ``rate`` is that of fetching, without the wait for the group.

    Kafka's consumer checks checksums by default. Its tool ends with the fetch in which the last message came, so the
    count may be higher. Raises ``PeerFailed`` when there is no table, or fewer messages came.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    header = next((row for row in rows if row[0] == "start.time"), None)
    row = next((row for row in reversed(rows) if header is not None and len(row) == len(header)), None)
    if header is None or row is None or row is header or any(name not in header for name in COLUMNS):
        raise PeerFailed(f"kafka-consumer-perf-test printed no table: {output.strip()[-300:]!r}")
    cells = dict(zip(header, row, strict=True))
    count, fetch_ms, rate, with_group = (float(cells[name]) for name in COLUMNS)
    if count < messages:
        raise PeerFailed(f"kafka-consumer-perf-test read {count:.0f} of {messages} messages")
    return {"messages": int(count), "seconds": fetch_ms / 1000, "rate": rate, "rate_with_group": with_group}


class Kafka:
    """One topic with one partition and one copy, made anew for each ``produce``."""

    name: ClassVar[str] = "kafka"
    title: ClassVar[str] = "Apache Kafka"
    default_messages: ClassVar[int] = 10_000_000

    def __init__(self) -> None:
        self._broker: Child | None = None
        self._port = 0
        self._topics = 0
        self._environment: dict[str, str] = {}

    def available(self) -> str | None:
        home = home_or_none()
        if home is None:
            return f"{HOME_VARIABLE} does not name an unpacked distribution of Apache Kafka"
        missing = [name for name in SCRIPTS if not os.access(self._script(name), os.X_OK)]
        if missing:
            return f"{HOME_VARIABLE}={home} has no bin/kafka-{missing[0]}.sh"
        if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
            return "Apache Kafka needs Java: apt-get install default-jre-headless"
        return None

    def version(self) -> str:
        """With the number that the client's jar carries in its name."""
        names = sorted(path.stem for path in ((home_or_none() or Path()) / "libs").glob("kafka-clients-*.jar"))
        return f"Apache Kafka {names[-1].rpartition('clients-')[2]}" if names else "Apache Kafka"

    def _script(self, name: str) -> str:
        return str((home_or_none() or Path()) / "bin" / f"kafka-{name}.sh")

    def start(self, directory: Path) -> None:
        if self._broker is not None:
            raise PeerFailed("Kafka is already started")
        self._port, controller_port = free_port(), free_port()
        settings = directory / "server.properties"
        settings.write_text(configuration(directory, self._port, controller_port))
        self._environment = {"LOG_DIR": str(directory / "logs"), "LC_ALL": "C"}  # numbers with a point
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        run(
            "kafka-storage",
            [self._script("storage"), "format", f"--cluster-id={cluster}", "-c", str(settings)],
            self._environment,
        )
        heap = {"KAFKA_HEAP_OPTS": "-Xms1g -Xmx1g"}  # as in its own start script
        command = [self._script("server-start"), str(settings)]
        self._broker = Child("kafka", command, self._environment | heap, directory / "kafka.log")
        try:
            self._broker.wait_port(self._port)
        except BaseException:
            self.stop()
            raise

    def _tool(self, name: str, *arguments: str) -> str:
        if self._broker is None:
            raise PeerFailed("Kafka is not started")
        return run(f"kafka-{name}", [self._script(name), *arguments], self._environment)

    def _topic(self) -> str:
        return f"fastlog-peer-{self._topics}"

    @property
    def place(self) -> tuple[str, str]:
        """Its address, and the topic that was produced to last."""
        return f"127.0.0.1:{self._port}", self._topic()

    def produce(self, messages: int, size: int = 200, batch: int = 50) -> Figures:
        place = ("--bootstrap-server", f"127.0.0.1:{self._port}")
        if self._topics:
            self._tool("topics", *place, "--delete", "--topic", self._topic())
        self._topics += 1
        self._tool("topics", *place, "--create", "--topic", self._topic(), "--partitions", "1")
        load = ("--num-records", str(messages), "--record-size", str(size), "--throughput", "-1")
        properties = ("--producer-props", *producer_properties(self._port, size, batch))
        output = self._tool("producer-perf-test", "--topic", self._topic(), *load, *properties)
        return {**parse_producer(output, messages), "client": "kafka-producer-perf-test", "broker": self.version()}

    def consume(self, messages: int) -> Figures:
        place = ("--bootstrap-server", f"127.0.0.1:{self._port}", "--topic", self._topic())
        output = self._tool("consumer-perf-test", *place, "--messages", str(messages), "--timeout", "60000")
        return {**parse_consumer(output, messages), "client": "kafka-consumer-perf-test", "broker": self.version()}

    def stop(self) -> None:
        broker, self._broker = self._broker, None
        self._topics = 0
        if broker is not None:
            broker.stop(30.0)
