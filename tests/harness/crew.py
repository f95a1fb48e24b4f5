"""Members of a group in processes of their own (``member_program``), and what ZooKeeper shows of them."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fastlog.consumer.assignment import assign_group
from fastlog.consumer.broker_groups.view import BrokerGroups
from fastlog.errors import CoordinationError
from fastlog.zkpaths import PartitionId, member_path, members_path, offset_path
from tests.fault.programs import ROOT, environment
from tests.harness.broker import die_with_parent
from tests.harness.diaries import Diaries, read_diaries
from tests.harness.groups import GROUP, expected_owners, shown_owners
from tests.harness.registration import SESSION_SECONDS, Tree

LEAVE_SECONDS = 20.0
ANSWER_SECONDS = 5.0
_SHOWN_CHARACTERS = 2000


@dataclass
class MemberProcess:
    """A member that was started. Its diary is named as it is."""

    name: str
    process: subprocess.Popen[bytes]
    diary: Path

    @property
    def consumer_id(self) -> str:
        """The consumer id that it has in ZooKeeper."""
        return f"{GROUP}_{self.name.partition('+')[0]}"

    @property
    def said_path(self) -> Path:
        """The file that its stderr goes to."""
        return self.diary.with_suffix(".said")

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process with SIGKILL; returns when it is gone."""
        self.process.kill()
        self.process.wait(LEAVE_SECONDS)


class Crew:
    """Starts members below a directory, which read every topic named ``t…``; ends those that live when the block does.

    Every second one commits by calls of its own, and some read the brokers' files.
    """

    is_broker = False
    """``connect`` is the address of a broker that keeps the group, and not ZooKeeper's."""

    def __init__(self, directory: Path, connect: str, tree: Tree | None, seed: int) -> None:
        self.living: list[MemberProcess] = []
        self.violations: list[str] = []
        self._directory = directory
        self._connect = connect
        self._tree = tree
        self._source = random.Random(f"{seed} crew")
        self._started: list[MemberProcess] = []
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._started:
            if member.process.poll() is None:
                member.kill()

    def start(self, name: str | None = None) -> MemberProcess:
        """One more member, under a new name or that of one that is gone."""
        number = len(self._started)
        consumer = name or f"m{number:04}"
        unique = f"{consumer}+{number}" if name else consumer
        diary = self._directory / f"{unique}.diary"
        told = {
            "diary": str(diary),
            "name": consumer,
            "connect": self._connect,
            "is_broker": self.is_broker,
            "topics": "t.*",
            "session_ms": int(SESSION_SECONDS * 1000),
            "commits_itself": number % 2 == 0,
            "local": self._source.choice(["auto", "off"]),
            "seed": self._source.random(),
        }
        with diary.with_suffix(".said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.member_program", json.dumps(told)],
                cwd=ROOT,
                env=environment(),
                stdout=said,
                stderr=said,
                preexec_fn=die_with_parent,
            )
        member = MemberProcess(unique, process, diary)
        self._started.append(member)
        self.living.append(member)
        return member

    def kill(self, member: MemberProcess) -> None:
        """Kill a member with SIGKILL."""
        self._expect_lives(member)
        member.kill()
        self.living.remove(member)

    def leave(self, members: Collection[MemberProcess]) -> None:
        """Let them leave in order, all at once; returns when they are gone."""
        for member in members:
            self._expect_lives(member)
            member.signal(signal.SIGTERM)
        for member in list(members):
            self.living.remove(member)
            try:
                code = member.process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.violations.append(f"{member.name} did not leave within {LEAVE_SECONDS:g} s")
                member.kill()
            else:
                has_begun = member.diary.exists()
                if code and (has_begun or code != -signal.SIGTERM):
                    self.violations.append(f"{member.name} left with {code}: {_said(member)}")

    def session_of(self, member: MemberProcess) -> int | None:
        """Its session, as far as it is registered."""
        assert self._tree is not None
        node = self._tree.node(member_path(GROUP, member.consumer_id))
        return None if node is None else node.owner

    def wait_shared(
        self, partitions: Mapping[str, int], within: float, members: Collection[MemberProcess] | None = None
    ) -> float:
        """Wait until these members, or all that live, have exactly the shares that the formula gives; how long it took.

        ``partitions``: how many each topic has in all.

        Raises:
            AssertionError: not in time; says what is in ZooKeeper.
        """
        began = time.monotonic()
        wanted = {member.consumer_id for member in (self.living if members is None else members)}
        count = sum(partitions.values())
        while True:
            try:
                there, shown, expected = self._agreed(partitions)
            except CoordinationError:  # the test's own session ended, on a machine that is busy with other tests
                if time.monotonic() - began > within:
                    raise
                continue
            if there == wanted and shown == expected and len(shown) == count:
                return time.monotonic() - began
            if time.monotonic() - began > within:
                what = f"members {there ^ wanted} too many or missing; owners {shown.items() ^ expected.items()}"
                raise AssertionError(f"not within {within:g} s: {len(shown)} of {count} have an owner; {what}")
            time.sleep(0.01)

    def _agreed(self, partitions: Collection[str]) -> tuple[set[str], dict[str, str], dict[str, str]]:
        """The members that are there, who owns what, and who is to. Raises ``CoordinationError``."""
        assert self._tree is not None
        session = self._tree.session
        there = set(session.children(members_path(GROUP)) or [])
        return there, shown_owners(session, partitions), expected_owners(session, partitions)

    @contextlib.contextmanager
    def stopped(self, member: MemberProcess) -> Iterator[None]:
        """Keep a member stopped by SIGSTOP while the block runs."""
        member.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            member.signal(signal.SIGCONT)

    def diaries(self) -> Diaries:
        """What all members have written until now."""
        return read_diaries(member.diary for member in self._started)

    def wait_diaries(self, what: str, holds: Callable[[Diaries], bool], within: float) -> Diaries:
        """What they wrote, once that is as it should be. Raises ``AssertionError`` when it is not within the time."""
        deadline = time.monotonic() + within
        while True:
            found = self.diaries()
            if holds(found):
                return found
            assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
            time.sleep(0.1)

    def complaints(self) -> list[str]:
        """What went wrong with the programs themselves."""
        said = [f"{member.name} said {_said(member)}" for member in self._started if member.said_path.stat().st_size]
        return self.violations + said

    def _expect_lives(self, member: MemberProcess) -> None:
        code = member.process.poll()
        if code is not None:
            self.violations.append(f"{member.name} had ended with {code}")


class BrokerCrew(Crew):
    """The same in a group that a broker keeps, whose address is ``connect``."""

    is_broker = True

    def _agreed(self, partitions: Collection[str]) -> tuple[set[str], dict[str, str], dict[str, str]]:
        with BrokerGroups(self._connect, ANSWER_SECONDS) as groups:
            view = groups.view(GROUP)
            announced = {topic: groups.announced(topic) for topic in partitions}
        if view is None or view.garbage:
            return set(), {}, {}
        shown = {f"{topic}/{partition}": thread for (topic, partition), thread in view.owners.items()}
        expected = {
            f"{topic}/{partition}": thread
            for topic, owners in assign_group(view.members, announced).items()
            for partition, thread in owners.items()
        }
        return set(view.members), shown, expected


def saved_offsets(tree: Tree, partitions: Collection[str]) -> dict[str, int]:
    """What is committed, of partitions named ``topic/broker-partition``."""
    found = {}
    for name in partitions:
        topic, _, partition = name.partition("/")
        node = tree.node(offset_path(GROUP, topic, PartitionId.parse(partition)))
        if node is not None:
            found[name] = int(node.data)
    return found


def _said(member: MemberProcess) -> str:
    return member.said_path.read_text()[-_SHOWN_CHARACTERS:]
