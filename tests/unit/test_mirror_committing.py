"""When a source's offsets move: never before the observer has kept what it was told, at once where a lane waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastlog.consumer._delivery import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import CoordinationError, TransportError
from fastlog.mirror import committing
from fastlog.mirror.committing import Committer
from fastlog.zkpaths import PartitionId
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE


def place(number: int = 0) -> Place:
    """Of a partition that begins at 100."""
    return Place(TopicPartition("t", PartitionId(0, number)), 100, by_hand=True)


class Keeper:
    """An observer that keeps; ``keeping`` is called meanwhile, and may raise."""

    def __init__(self, keeping: Callable[[], object] = lambda: None) -> None:
        self.keeping = keeping
        self.calls = 0

    def __call__(self, run: object) -> None:
        pass

    def keep(self) -> None:
        self.calls += 1
        self.keeping()


class Commits:
    """The consumer, as far as it is asked: counts commits; ``failures`` are raised one after the other."""

    def __init__(self, *failures: Exception) -> None:
        self.calls = 0
        self.failures = list(failures)

    def commit_offsets(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)


@contextmanager
def running(committer: Committer, consumer: Commits, committed: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Its thread for the length of the block; it ends when it is told to."""
    given: Any = consumer, committed
    thread = threading.Thread(target=committer.run, args=given, daemon=True)
    thread.start()
    try:
        yield
    finally:
        committer.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_without_a_keeper_what_was_acknowledged_counts_at_once() -> None:
    for observer in (None, lambda run: None):
        committer = Committer("a", observer, lambda: False)
        given = place()
        committer.settled(given, 120)
        assert given.consumed == 120
        committer.keep()
        assert given.consumed == 120


def test_nothing_counts_before_it_was_kept() -> None:
    """Not even while it is being kept; afterwards all of it, of every partition, to the byte."""
    places = [place(0), place(1)]
    seen: list[list[int]] = []
    keeper = Keeper(lambda: seen.append([given.consumed for given in places]))
    committer = Committer("a", keeper, lambda: False)
    for end in (110, 120):
        committer.settled(places[0], end)
    committer.settled(places[1], 101)
    assert [given.consumed for given in places] == [100, 100]
    committer.keep()
    assert seen == [[100, 100]]
    assert [given.consumed for given in places] == [120, 101]
    committer.keep()
    assert keeper.calls == 1  # there was nothing new


def test_what_comes_while_it_is_kept_waits_for_the_next_time() -> None:
    given, other = place(0), place(1)

    def meanwhile() -> None:
        if keeper.calls == 1:
            committer.settled(given, 130)
            committer.settled(other, 140)

    keeper = Keeper(meanwhile)
    committer = Committer("a", keeper, lambda: False)
    committer.settled(given, 120)
    committer.keep()
    assert (given.consumed, other.consumed) == (120, 100)
    committer.keep()
    assert (given.consumed, other.consumed) == (130, 140)
    assert keeper.calls == 2


def test_what_could_not_be_kept_stays() -> None:
    allowed: list[bool] = []

    def refuse() -> None:
        if not allowed:
            raise TransportError("not now")

    given = place()
    committer = Committer("a", Keeper(refuse), lambda: False)
    committer.settled(given, 120)
    for _ in range(2):
        with pytest.raises(TransportError):
            committer.keep()
        assert given.consumed == 100
    allowed.append(True)
    committer.keep()
    assert given.consumed == 120


@pytest.mark.parametrize("grew", [False, True])
@pytest.mark.parametrize("first", ["thread", "end"])
def test_the_end_keeps_while_the_thread_is_at_it(grew: bool, first: str) -> None:
    """Both have taken the same in hand; the second to come through finds nothing of it any more, or what came since."""
    release = {"thread": threading.Event(), "end": threading.Event()}
    inside = threading.Semaphore(0)

    def slow() -> None:
        inside.release()
        assert release[threading.current_thread().name].wait(PATIENCE)

    committer = Committer("a", Keeper(slow), lambda: True)
    given = place()
    errors: list[BaseException] = []

    def work(keep: Callable[[], None]) -> None:
        try:
            keep()
        except BaseException as error:
            errors.append(error)

    committer.settled(given, 120)
    threads = {
        name: threading.Thread(target=work, args=[committer.keep], name=name, daemon=True) for name in ("thread", "end")
    }
    for name in threads:
        threads[name].start()
        assert inside.acquire(timeout=PATIENCE)
    if grew:
        committer.settled(given, 125)
    for name in sorted(threads, key=lambda name: name != first):
        release[name].set()
        threads[name].join(PATIENCE)
        assert given.consumed == 120
    assert errors == []
    release[threading.current_thread().name] = release["end"]
    committer.keep()
    assert given.consumed == (125 if grew else 120)


def test_a_lane_that_waits_is_committed_for_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit for a ring, none without one that is wanted."""
    wanted = [True]
    told = threading.Semaphore(0)
    committer = Committer("a", None, lambda: bool(wanted))
    commits = Commits()
    with running(committer, commits, told.release):
        committer.wake()
        assert told.acquire(timeout=PATIENCE)
        assert commits.calls == 1
        wanted.clear()
        monkeypatch.setattr(committing, "_GATHER_SECONDS", 0.001)
        committer.wake()
        assert told.acquire(timeout=PATIENCE)
        assert commits.calls == 1


def test_what_a_lane_waits_for_is_kept_before_it_is_committed() -> None:
    """Else the commit has nothing new, and the lane waits for another one."""
    given, consumed = place(), list[int]()
    done = threading.Semaphore(0)

    class Noting(Commits):
        def commit_offsets(self) -> None:
            super().commit_offsets()
            consumed.append(given.consumed)

    committer = Committer("a", Keeper(), lambda: True)
    committer.settled(given, 120)
    with running(committer, Noting(), done.release):
        assert done.acquire(timeout=PATIENCE)
    assert consumed == [120]


def test_keeping_alone_is_gathered_for_a_while_and_a_lane_hurries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits: it may take its time. Somebody does: at once."""
    monkeypatch.setattr(committing, "_GATHER_SECONDS", 1000.0)
    wanted: list[bool] = []
    keeper = Keeper()
    committer = Committer("a", keeper, lambda: bool(wanted))
    commits = Commits()
    given = place()
    with running(committer, commits):
        committer.settled(given, 120)
        wanted.append(True)
        committer.wake()
        wait_until("it was kept", lambda: given.consumed == 120)
        wait_until("and committed", lambda: commits.calls == 1)
    assert keeper.calls == 1


def test_what_nobody_waits_for_is_kept_when_it_was_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "_GATHER_SECONDS", 0.01)
    keeper = Keeper()
    committer = Committer("a", keeper, lambda: False)
    commits = Commits()
    given = place()
    with running(committer, commits):
        for end in (120, 130):
            committer.settled(given, end)
            wait_until("it was kept", lambda end=end: given.consumed == end)
    assert commits.calls == 0


def test_what_failed_is_tried_again_by_itself_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No ring comes but the first; the commits fail twice, then hold."""
    monkeypatch.setattr(committing, "_RETRY_SECONDS", 0.01)
    commits = Commits(CoordinationError("away\nfor now"), CoordinationError("still away"))
    wanted = [True]
    committer = Committer("the source", None, lambda: bool(wanted))
    caplog.set_level(logging.WARNING)
    with running(committer, commits):
        committer.wake()
        wait_until("it was committed", lambda: commits.calls == 3)
        wanted.clear()
    assert [record.getMessage() for record in caplog.records] == ["source=the source: offsets wait: away for now"]


def test_a_failure_pauses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is woken: an unavailable ZooKeeper is not asked again at once; the end does not wait for it."""
    monkeypatch.setattr(committing, "_RETRY_SECONDS", 1000.0)
    commits = Commits(CoordinationError("away"))
    committer = Committer("a", None, lambda: True)
    with running(committer, commits):
        committer.wake()
        wait_until("it failed", lambda: commits.calls == 1)
        for _ in range(20):
            committer.wake()
        assert not threading.Event().wait(0.05)
        assert commits.calls == 1


def test_rings_in_a_row_are_not_a_commit_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that always wants one gets one after each pause."""
    monkeypatch.setattr(committing, "_LEAST_PAUSE", 1000.0)
    commits = Commits()
    committer = Committer("a", None, lambda: True)
    with running(committer, commits):
        committer.wake()
        wait_until("it was committed", lambda: commits.calls == 1)
        for _ in range(20):
            committer.wake()
        assert not threading.Event().wait(0.05)
        assert commits.calls == 1


def test_it_does_nothing_before_it_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "_GATHER_SECONDS", 0.001)
    looks: list[bool] = []
    with running(Committer("a", None, lambda: bool(looks.append(True))), Commits()):
        assert not threading.Event().wait(0.05)
        assert looks == []


def test_it_ends_from_any_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first ring, while it gathers; and nothing is kept behind the end by the thread."""
    monkeypatch.setattr(committing, "_GATHER_SECONDS", 1000.0)
    with running(Committer("a", None, lambda: False), Commits()):
        pass
    keeper = Keeper()
    committer = Committer("a", keeper, lambda: False)
    with running(committer, Commits()):
        committer.settled(place(), 120)
        assert not threading.Event().wait(0.05)
        assert keeper.calls == 0
    assert keeper.calls == 0
