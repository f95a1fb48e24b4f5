"""Groups of members that are programs: started, killed, stopped; and what their diaries must say."""

from __future__ import annotations

import bisect
import contextlib
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from tests.harness import foreign_clients
from tests.harness.broker import die_with_parent
from tests.harness.checkout import ROOT
from tests.harness.timing import PATIENCE

KINDS = ("confluent", "cooperative", "kafka-python", "aiokafka")
KEEPS_POSITIONS = ("kafka-python",)
"""Of a partition that it had and is given again it does not ask what is committed, not even where others had it
meanwhile (SubscriptionState._apply_assignment): one that its group gave up while it joined, when what it has is not
taken from it again (BaseCoordinator.join_group_async, ``rejoining``), goes on where it was, and commits from there.
Whoever has the partition next begins where that was."""


class Line(NamedTuple):
    """A line of a diary."""

    what: str
    time: float
    partition: int
    offset: int


class Diary:
    """One member's, read on from where it was read before."""

    def __init__(self, path: Path) -> None:
        self.lines: list[Line] = []
        self._path, self._at = path, 0

    def read(self) -> list[Line]:
        """What is new; a line that is not whole, or that a kill cut short, is left out."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        rows = [line.split() for line in whole.decode().splitlines()]
        new = [Line(row[0], float(row[1]), int(row[2]), int(row[3]) if row[3:] else -1) for row in rows]
        self.lines += new
        return new


class Members:
    """The members of one group, and the diaries of all there have been; each is of ``kind``, or what its start says."""

    def __init__(self, address: str, kind: str, topic: str, directory: Path, group: str = "g") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._address, self._kind, self._topic, self._directory, self._group = address, kind, topic, directory, group
        self.running: list[subprocess.Popen[bytes]] = []
        self.kinds: list[str] = []
        """Of each so far, in the order of the diaries."""
        self._diaries: list[Diary] = []
        self._seen: set[tuple[int, int]] = set()

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for member in list(self.running):
            self.kill(member)

    def start(self, instance: str | None = None, kind: str | None = None) -> subprocess.Popen[bytes]:
        """Start one more member."""
        path = self._directory / f"{len(self._diaries)}"
        kind = kind or self._kind
        words = [self._address, self._group, self._topic, str(path)]
        if kind in foreign_clients.MEMBERS:
            command = [*foreign_clients.member_command(kind), *words, foreign_clients.MEMBERS[kind][1]]
        else:
            command = [sys.executable, "-m", "tests.harness.today_member", kind, *words]
        with (self._directory / "errors").open("ab") as errors:
            command += [instance] if instance else []
            member = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=errors,
                stderr=errors,
                preexec_fn=die_with_parent,
                # a stopped process would have its group, the broker too, told to end when a terminal goes
                start_new_session=True,
            )
        self._diaries.append(Diary(path))
        self.kinds.append(kind)
        self.running.append(member)
        return member

    def kill(self, member: subprocess.Popen[bytes]) -> None:
        """Kill a member with SIGKILL."""
        self.running.remove(member)
        member.kill()
        member.wait(PATIENCE)

    def end(self, member: subprocess.Popen[bytes]) -> int:
        """Let a member leave the group; returns its exit code."""
        self.running.remove(member)
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGCONT)
        member.terminate()
        return member.wait(2 * PATIENCE)

    def errors(self) -> str:
        """What members have printed."""
        return (self._directory / "errors").read_text()

    def diaries(self) -> list[list[Line]]:
        """The diary of each member so far, in the order in which they were started."""
        for diary in self._diaries:
            self._seen |= {(line.partition, line.offset) for line in diary.read() if line.what == "read"}
        return [diary.lines for diary in self._diaries]

    def seen(self) -> set[tuple[int, int]]:
        """The partitions and offsets that anybody has read."""
        self.diaries()
        return self._seen

    def wrong(self) -> list[str]:
        """Who began to read below what had been committed, and answered, before it was assigned the partition."""
        diaries = self.diaries()
        commits: dict[int, list[tuple[float, int, bool]]] = defaultdict(list)
        for number, diary in enumerate(diaries):
            for line, goes_on in self._judged(number, diary):
                if line.what == "committed":
                    commits[line.partition].append((line.time, line.offset, goes_on))
        kept = {}
        for partition, rows in commits.items():
            rows.sort()
            kept[partition] = [row[0] for row in rows], list(_kept(rows))
        found = []
        for number, diary in enumerate(diaries):
            assigned: dict[int, float] = {}
            for line, goes_on in self._judged(number, diary):
                if line.what == "assigned":
                    assigned[line.partition] = line.time
                elif line.what == "read" and line.partition in assigned:
                    times, offsets = kept.get(line.partition, ([], []))
                    before = bisect.bisect_left(times, assigned.pop(line.partition))
                    if before and line.offset < offsets[before - 1] and not goes_on:
                        began = f"{number} ({self.kinds[number]}) began {line.partition} at {line.offset}"
                        found.append(f"{began}, {offsets[before - 1]} was committed")
        return found

    def _judged(self, number: int, diary: list[Line]) -> Iterator[tuple[Line, bool]]:
        """Each line of a member, and whether it began the line's partition where it had been there itself."""
        positions: dict[int, int] = {}
        began: dict[int, bool] = {}
        for line in diary:
            if line.what == "assigned":
                began.pop(line.partition, None)
            elif line.what == "read":
                keeps = self.kinds[number] in KEEPS_POSITIONS
                began.setdefault(line.partition, keeps and positions.get(line.partition) == line.offset)
                positions[line.partition] = line.offset + 1
            yield line, began.get(line.partition, False)


def _kept(commits: Iterable[tuple[float, int, bool]]) -> Iterator[int]:
    """What is kept after each commit: the most so far, or what one commits who went on where it was."""
    kept = 0
    for _, offset, goes_on in commits:
        kept = offset if goes_on else max(kept, offset)
        yield kept


def produce(address: str, topic: str, partitions: int, count: int) -> None:
    """So many records for each partition, acknowledged."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 5})
    for number in range(count):
        for partition in range(partitions):
            producer.produce(topic, b"%d" % number, partition=partition)
            producer.poll(0)
    assert producer.flush(PATIENCE) == 0
