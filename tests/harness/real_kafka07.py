"""Programs of a real Kafka 0.7, run from jars or classes that ``FASTLOG_KAFKA_0_7_CLASSPATH`` names."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fastlog.java import find_java
from tests.harness.broker import die_with_parent, wait_until
from tests.harness.ports import unused_port

VARIABLE = "FASTLOG_KAFKA_0_7_CLASSPATH"
SECONDS = 120.0
"""A Java of old code starts slowly on a busy machine; sessions of 0.7 last six seconds."""
LOG_SETTINGS = """
log4j.rootLogger=INFO, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class Program:
    """One Java process of 0.7; what it prints and says goes to files below ``directory``."""

    def __init__(self, directory: Path, name: str, main: str, *arguments: str, told: bytes | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.printed_path, self.said_path = directory / f"{name}.out", directory / f"{name}.err"
        log4j = directory / "log4j.properties"
        log4j.write_text(LOG_SETTINGS)
        command = [str(find_java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # its snappy loads itself by a method that later Javas keep closed, and earlier ones know nothing of that
        command += ["-XX:+IgnoreUnrecognizedVMOptions", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        command += [f"-Dlog4j.configuration=file:{log4j}", "-cp", os.environ[VARIABLE], main, *arguments]
        told_path = directory / f"{name}.in"
        told_path.write_bytes(told or b"")
        with told_path.open("rb") as given, self.printed_path.open("wb") as out, self.said_path.open("wb") as err:
            self.process = subprocess.Popen(command, stdin=given, stdout=out, stderr=err, preexec_fn=die_with_parent)

    @property
    def lines(self) -> list[bytes]:
        """The whole lines that it has printed."""
        return self.printed_path.read_bytes().split(b"\n")[:-1]

    @property
    def said(self) -> str:
        """The text of its log."""
        return self.said_path.read_text(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and wait until it is gone."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(SECONDS)


@contextlib.contextmanager
def program(directory: Path, name: str, main: str, *arguments: str, told: bytes | None = None) -> Iterator[Program]:
    """Gone after the block, whatever happened."""
    running = Program(directory, name, main, *arguments, told=told)
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)


def console_consumer(connect: str, group: str, topic: str) -> list[str]:
    """The arguments of 0.7's consumer on the console: it reads from the start and commits once a second."""
    return [
        *("kafka.consumer.ConsoleConsumer", "--zookeeper", connect, "--group", group, "--whitelist", topic),
        *("--autocommit.interval.ms", "1000"),
    ]


@contextlib.contextmanager
def broker(directory: Path, connect: str, broker_id: int = 0, partitions: int = 1) -> Iterator[tuple[Program, int]]:
    """A broker of 0.7 and its port, once it serves."""
    directory.mkdir(parents=True, exist_ok=True)
    port = unused_port()
    properties = {
        "brokerid": broker_id,
        "hostname": "127.0.0.1",
        "port": port,
        "log.dir": directory / "data",
        "num.partitions": partitions,
        "log.flush.interval": 1,
        "zk.connect": connect,
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    with program(directory, "server", "kafka.Kafka", str(path)) as running:

        def serves() -> bool:
            assert running.process.poll() is None, running.said
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_until("the broker of 0.7 serves", serves, SECONDS)
        yield running, port
