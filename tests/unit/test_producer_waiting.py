"""How the threads of a producer wait for each other: no wake-up is lost, none comes early, nothing is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from fastlog.errors import TransportError
from fastlog.producer import waiting
from fastlog.producer.waiting import Background, LocklessCondition, OneShotEvent, OwnedThread, wait_ended
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE


def in_threads(count: int, work: Callable[[], object]) -> list[threading.Thread]:
    made = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in made:
        thread.start()
    return made


def test_an_event_lets_everybody_through_now_and_later() -> None:
    event, through = OneShotEvent(), []
    threads = in_threads(5, lambda: through.append(event.wait()))
    wait_until("all wait", lambda: len(event._waiters) == 5)
    assert not event.is_set()
    assert through == []
    event.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert through == [True] * 5
    assert event.is_set()
    assert event.wait(0.0)
    event.set()
    assert not event._waiters


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.15])
def test_a_wait_that_is_over_says_so_and_leaves_nothing(seconds: float) -> None:
    """As long as was asked for, however often; a program that asks again and again costs no memory."""
    event, lockless = OneShotEvent(), LocklessCondition()
    for _ in range(3):
        begun = time.monotonic()
        assert event.wait(seconds) is False
        assert lockless.wait_for(lambda: False, seconds) is False
        assert time.monotonic() - begun >= 2 * seconds
    assert (len(event._waiters), len(lockless._waiters)) == (0, 0)


def test_a_condition_that_comes_true_as_one_begins_to_wait_is_seen() -> None:
    """It comes true, and all are woken, between the look at it and the sleep."""
    lockless = LocklessCondition()
    looks = []

    def condition() -> bool:
        looks.append(1)
        if len(looks) == 1:
            lockless.notify_all()  # who waits is not there yet
            return False
        return True

    assert lockless.wait_for(condition)
    assert len(looks) == 3
    assert not lockless._waiters


def test_who_is_woken_for_nothing_waits_on() -> None:
    lockless = LocklessCondition()
    looks: list[int] = []
    found: list[bool] = []
    over = threading.Event()

    def condition() -> bool:
        looks.append(1)
        return over.is_set()

    (thread,) = in_threads(1, lambda: found.append(lockless.wait_for(condition, PATIENCE)))
    for _ in range(3):
        wait_until("it waits", lambda: len(lockless._waiters) == 1)
        before = len(looks)
        lockless.notify_all()
        wait_until("it has looked", lambda n=before: len(looks) > n)  # type: ignore[misc]
        assert found == []
    over.set()
    wait_until("it waits or has ended", lambda: bool(lockless._waiters) or bool(found))
    lockless.notify_all()
    thread.join(PATIENCE)
    assert found == [True]


def test_everybody_is_woken_though_many_wake_at_once() -> None:
    lockless, over, through = LocklessCondition(), threading.Event(), []
    threads = in_threads(20, lambda: through.append(lockless.wait_for(over.is_set, PATIENCE)))
    wait_until("all wait", lambda: len(lockless._waiters) == 20)
    over.set()
    for thread in in_threads(4, lockless.notify_all) + threads:
        thread.join(PATIENCE)
    assert through == [True] * 20
    assert not lockless._waiters


def test_work_in_the_background_returns_raises_or_is_late() -> None:
    assert Background(lambda: 3, "fastlog-test").result(PATIENCE) == 3

    def fails() -> None:
        raise SystemExit(5)

    with pytest.raises(SystemExit, match="5"):
        Background(fails, "fastlog-test").result(PATIENCE)
    release = threading.Event()
    late = Background(lambda: release.wait(PATIENCE), "fastlog-test")
    with pytest.raises(TransportError, match="no answer in time"):
        late.result(0.01)
    release.set()
    assert late.result(PATIENCE) is True


def test_only_the_threads_of_an_owner_are_waited_for() -> None:
    owner, other, release = object(), object(), threading.Event()
    threads = [OwnedThread(whose, lambda: release.wait(PATIENCE), "fastlog-test") for whose in (owner, owner, other)]
    assert all(thread.daemon for thread in threads)
    assert wait_ended(owner, 0.0)
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    assert not wait_ended(owner, 0.15)
    assert time.monotonic() - begun >= 0.15
    assert wait_ended(object(), 0.0)
    release.set()
    assert wait_ended(owner, PATIENCE)
    assert not any(thread.is_alive() for thread in threads[:2])
    found: list[bool] = []
    own = OwnedThread(owner, lambda: found.append(wait_ended(owner, 0.0)), "fastlog-test")
    own.start()
    own.join(PATIENCE)
    assert found == [True], "a thread does not wait for itself"
    threads[2].join(PATIENCE)


def test_whoever_is_interrupted_while_it_waits_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    event = OneShotEvent()

    def interrupted(seconds: float) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(waiting, "slice_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            event.wait()
    assert not event._waiters
