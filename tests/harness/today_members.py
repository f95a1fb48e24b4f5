"""Groups of members that are programs: started, killed, stopped; and what their diaries must say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from tests.harness.checkout import ROOT
from tests.harness.timing import PATIENCE

KINDS = ("confluent", "cooperative", "kafka-python", "aiokafka")


class Line(NamedTuple):
    """A line of a diary."""

    what: str
    time: float
    partition: int
    offset: int


class Members:
    """The members of one group, and the diaries of all there have been."""

    def __init__(self, address: str, kind: str, topic: str, directory: Path, group: str = "g") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._address, self._kind, self._topic, self._directory, self._group = address, kind, topic, directory, group
        self.running: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for member in list(self.running):
            self.kill(member)

    def start(self, instance: str | None = None) -> subprocess.Popen[bytes]:
        """One more."""
        path = self._directory / f"{self._count}"
        self._count += 1
        arguments = [self._kind, self._address, self._group, self._topic, str(path), *([instance] if instance else [])]
        command = [sys.executable, "-m", "tests.harness.today_member", *arguments]
        with (self._directory / "errors").open("ab") as errors:
            member = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors)
        self.running.append(member)
        return member

    def kill(self, member: subprocess.Popen[bytes]) -> None:
        """As with kill -9."""
        self.running.remove(member)
        member.kill()
        member.wait(PATIENCE)

    def end(self, member: subprocess.Popen[bytes]) -> int:
        """It leaves; its exit code."""
        self.running.remove(member)
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGCONT)
        member.terminate()
        return member.wait(2 * PATIENCE)

    def errors(self) -> str:
        """What members have printed."""
        return (self._directory / "errors").read_text()

    def diaries(self) -> list[list[Line]]:
        """Of each member so far, in order; the line that a kill cut short is left out."""
        found = []
        for number in range(self._count):
            path = self._directory / f"{number}"
            text = path.read_text() if path.exists() else ""
            rows = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
            found.append([Line(row[0], float(row[1]), int(row[2]), int(row[3]) if row[3:] else -1) for row in rows])
        return found

    def seen(self) -> set[tuple[int, int]]:
        """The partitions and offsets that anybody has read."""
        return {(line.partition, line.offset) for diary in self.diaries() for line in diary if line.what == "read"}

    def wrong(self) -> list[str]:
        """Who began to read below what had been committed, and answered, before it was assigned the partition."""
        diaries = self.diaries()
        commits = [line for diary in diaries for line in diary if line.what == "committed"]
        found = []
        for number, diary in enumerate(diaries):
            assigned: dict[int, float] = {}
            for line in diary:
                if line.what == "assigned":
                    assigned[line.partition] = line.time
                elif line.what == "read" and line.partition in assigned:
                    when = assigned.pop(line.partition)
                    before = [each.offset for each in commits if each.partition == line.partition and each.time < when]
                    if before and line.offset < max(before):
                        found.append(f"{number} began {line.partition} at {line.offset}, {max(before)} was committed")
        return found


def produce(address: str, topic: str, partitions: int, count: int) -> None:
    """So many records for each partition, acknowledged."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 5})
    for number in range(count):
        for partition in range(partitions):
            producer.produce(topic, b"%d" % number, partition=partition)
            producer.poll(0)
    assert producer.flush(PATIENCE) == 0
