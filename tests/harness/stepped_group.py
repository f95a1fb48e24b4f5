"""Members of a group without threads: the test says whose turn it is, and time goes on only when it says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from fastlog.consumer import group_session, holdings, member_session, partitions
from fastlog.consumer.group_session import GroupSession
from fastlog.consumer.member_session import GroupWork
from fastlog.consumer.offsets import OffsetStore
from fastlog.consumer.partitions import Claim, Lease, TopicPartition
from fastlog.coordination.session import SessionLostError
from fastlog.zkpaths import Subscription
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.groups import GROUP, FakeReaders, config_of


class Clock:
    """Stands in for the module ``time``, and for the clock of leases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (group_session, holdings, member_session):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(partitions.Lease, "now", staticmethod(self.monotonic))

    def monotonic(self) -> float:
        """Seconds of the clock that the test moves."""
        return self.now


class Steps:
    """What happened to one partition, in order: calls to ZooKeeper about it, and what readers were told."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.seen: list[str] = []

    def call(self, session: FakeSession, name: str, path: str) -> None:
        """For ``FakeZooKeeper.before_call``."""
        kind = next((kind for kind in ("owners", "offsets") if f"/{kind}/" in path), None)
        if kind and path.endswith(f"/{self.partition.topic}/{self.partition.partition}"):
            self.seen.append(f"{name} {kind}")

    def take(self) -> list[str]:
        """Return the steps since the last call."""
        found, self.seen = self.seen, []
        return found


class NotingReaders(FakeReaders):
    """Also notes the steps of each partition."""

    def __init__(self, steps: Steps | None) -> None:
        super().__init__()
        self.steps = steps

    def acquire(self, claims: Mapping[TopicPartition, Claim]) -> None:
        super().acquire(claims)
        if self.steps and self.steps.partition in claims:
            self.steps.seen.append("take")

    def release(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if self.steps and self.steps.partition in partitions:
            self.steps.seen.append("release")
        return super().release(partitions)


class Stepped:
    """A member whose worker the test is."""

    def __init__(
        self,
        tree: FakeZooKeeper,
        name: str,
        topics: Mapping[str, int],
        *,
        steps: Steps | None = None,
        store: OffsetStore | None = None,
        **settings: Any,
    ) -> None:
        self.tree = tree
        self.readers = NotingReaders(steps)
        config = config_of(**settings)
        self.work = GroupWork(config, f"{GROUP}_{name}", Subscription(dict(topics)), self.readers, store, Lease(6.0))
        self.work.source.uniform = lambda low, high: high  # type: ignore[method-assign]
        self.session: FakeSession | None = None
        self.life: GroupSession | None = None

    def open(self) -> GroupSession:
        """In a session, a new one where there is none."""
        if self.life is None:
            self.session = self.tree.open(self.work.inbox.wake)
            self.life = GroupSession(self.work, self.session)
        return self.life

    def turn(self) -> None:
        """What its worker does once; a session that is over is ended, and the next turn has another one."""
        life = self.open()
        assert self.session is not None
        try:
            if self.session.is_lost:
                raise SessionLostError("it is over")
            life.turn()
        except SessionLostError:
            self.end()

    def end(self) -> None:
        """End the member's session."""
        if self.life is not None:
            self.life.end()
        self.life = self.session = None

    def settle(self, clock: Clock, turns: int = 100) -> None:
        """Run steps until it reads what it is to read."""
        for _ in range(turns):
            self.turn()
            if self.life is not None and self.life.is_reconciled:
                return
            clock.now += 0.05
        raise AssertionError(f"not settled: {self.work.status}")


def run_for(member: Stepped, clock: Clock, seconds: float, at: Callable[[float], None] = lambda now: None) -> int:
    """Let its worker run for so long, by the clock; how often it looked. ``at`` is told each time it waits.

    Fails when it does not wait: more than a few looks without a pause are a spin.
    """
    inbox, end = member.work.inbox, clock.now + seconds
    turns = without_pause = 0

    def wait(pause: float) -> None:
        nonlocal turns, without_pause
        turns += 1
        without_pause = 0 if pause > 0 else without_pause + 1
        assert without_pause < 5, "it spins"
        at(clock.now)
        if inbox._is_awake:
            inbox._alarm.get_nowait()
            inbox._is_awake = False
        else:
            clock.now += max(0.0, pause)
        if clock.now >= end:
            inbox.is_stopping = True

    inbox.wait = wait  # type: ignore[method-assign]
    inbox.is_stopping = False
    member.open().run()
    inbox.is_stopping = False
    member.life = member.session = None
    return turns
