"""The two brokers: started, asked when they first answer, and looked at from outside."""

from __future__ import annotations

import base64
import os
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import psutil

from fastlog.java import find_java
from perf.peers.base import Child, PeerFailed, free_port
from perf.peers.kafka import configuration
from tests.harness.broker import Broker

CLASSPATH = "FASTLOG_KAFKA_CLASSPATH"
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""As Kafka's own start script has it."""
START_SECONDS = 120.0
SETTLE_SECONDS = 1.5
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # 10 bytes: ApiVersions version 0 of no client


class System(Protocol):
    """A broker to measure, which begins without topics."""

    name: str
    address: str
    first_answer: float
    """Seconds from its start to its first answer."""

    def processes(self) -> list[psutil.Process]:
        """All of its processes, those that it started too."""

    def flushing(self) -> list[psutil.Process]:
        """Those of them that do nothing but write to the disk, which others leave to the kernel's threads."""

    def stop(self) -> None:
        """Stop the broker's processes."""


def java(*arguments: str) -> list[str]:
    """The words that run a program of Apache Kafka's.

    Raises:
        KeyError: ``FASTLOG_KAFKA_CLASSPATH`` names no jars.
    """
    return [str(find_java()), "-cp", os.environ[CLASSPATH], *arguments]


def wait_answer(port: int, since: float) -> float:
    """Seconds from ``since`` until ApiVersions is answered."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as asking:
                asking.sendall(_API_VERSIONS)
                if len(asking.recv(4)) == 4:
                    return time.monotonic() - since
        except OSError:
            pass
        if time.monotonic() - since > START_SECONDS:
            raise PeerFailed(f"port {port}: no answer in {START_SECONDS:g} s")
        time.sleep(0.005)


class Fastlog:
    """With its defaults but for the partitions of new topics, which the clients make themselves."""

    name = "fastlog"

    def __init__(self, directory: Path, processors: int) -> None:
        directory.mkdir(parents=True)
        self._broker = Broker(directory, processors=processors, settings={"group.initial.rebalance.delay.ms": 0})
        began = time.monotonic()
        self._broker.__enter__()
        self.first_answer = wait_answer(self._broker.port, began)
        self.address = f"127.0.0.1:{self._broker.port}"

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self._broker.pids().values()]

    def flushing(self) -> list[psutil.Process]:
        return [psutil.Process(self._broker.pids()["flusher"])]

    def stop(self) -> None:
        self._broker.__exit__()


class Kafka:
    """One node that is broker and controller, its settings its own: nothing is flushed by it."""

    name = "kafka"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        port, controller = free_port(), free_port()
        settings = directory / "server.properties"
        # it removes the files of a deleted topic a minute later, which would hold up whoever is measured then
        settings.write_text(configuration(directory, port, controller) + "log.segment.delete.delay.ms=1000\n")
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if cluster.startswith("-"):
            cluster = f"a{cluster[1:]}"
        formatting = java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings))
        done = subprocess.run(formatting, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        if done.returncode:
            raise PeerFailed(f"Kafka's StorageTool: {(done.stdout + done.stderr)[-500:]}")
        began = time.monotonic()
        first, *rest = java("kafka.Kafka", str(settings))
        self._child = Child("kafka", [first, *HEAP, *rest], {}, directory / "kafka.log")
        self.first_answer = wait_answer(port, began)
        self.address = f"127.0.0.1:{port}"

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._child.pid)]

    def flushing(self) -> list[psutil.Process]:
        return []

    def stop(self) -> None:
        self._child.stop(30.0)


def processor_seconds(processes: Sequence[psutil.Process]) -> float:
    """User and system time that they have taken."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def busy_seconds() -> float:
    """Time that the processors of this machine have not been idle, the kernel's own threads and interrupts included."""
    times = psutil.cpu_times()
    # a guest's time is in its user time, too
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice - times.steal


def settle() -> None:
    """Wait until the disk has nothing to do for what came before: files that are removed, pages that nobody flushed."""
    time.sleep(SETTLE_SECONDS)
    os.sync()
    time.sleep(SETTLE_SECONDS)


def memory_bytes(processes: Sequence[psutil.Process]) -> int:
    """Proportional set size: what each has for itself and its share of what several map."""
    return sum(int(process.memory_full_info().pss) for process in processes)
