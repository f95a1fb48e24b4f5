"""How the threads of a producer wait for each other: no wake-up is lost, none comes early, nothing is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from fastlog.errors import TransportError
from fastlog.producer import waiting
from fastlog.producer.waiting import Background, Gate, OwnedThread, Turnstile, wait_ended
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE


def in_threads(count: int, work: Callable[[], object]) -> list[threading.Thread]:
    made = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in made:
        thread.start()
    return made


def test_a_gate_lets_everybody_through_now_and_later() -> None:
    gate, through = Gate(), []
    threads = in_threads(5, lambda: through.append(gate.wait()))
    wait_until("all wait", lambda: len(gate._waiters) == 5)
    assert not gate.is_open
    assert through == []
    gate.open()
    for thread in threads:
        thread.join(PATIENCE)
    assert through == [True] * 5
    assert gate.is_open
    assert gate.wait(0.0)
    gate.open()
    assert not gate._waiters


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.15])
def test_a_wait_that_is_over_says_so_and_leaves_nothing(seconds: float) -> None:
    """As long as was asked for, however often; a program that asks again and again costs no memory."""
    gate, turnstile = Gate(), Turnstile()
    for _ in range(3):
        begun = time.monotonic()
        assert gate.wait(seconds) is False
        assert turnstile.wait(lambda: False, seconds) is False
        assert time.monotonic() - begun >= 2 * seconds
    assert (len(gate._waiters), len(turnstile._waiters)) == (0, 0)


def test_a_condition_that_comes_true_as_one_begins_to_wait_is_seen() -> None:
    """It comes true, and all are woken, between the look at it and the sleep."""
    turnstile = Turnstile()
    looks = []

    def condition() -> bool:
        looks.append(1)
        if len(looks) == 1:
            turnstile.wake_all()  # who waits is not there yet
            return False
        return True

    assert turnstile.wait(condition)
    assert len(looks) == 3
    assert not turnstile._waiters


def test_who_is_woken_for_nothing_waits_on() -> None:
    turnstile = Turnstile()
    looks: list[int] = []
    found: list[bool] = []
    over = threading.Event()

    def condition() -> bool:
        looks.append(1)
        return over.is_set()

    (thread,) = in_threads(1, lambda: found.append(turnstile.wait(condition, PATIENCE)))
    for _ in range(3):
        wait_until("it waits", lambda: len(turnstile._waiters) == 1)
        before = len(looks)
        turnstile.wake_all()
        wait_until("it has looked", lambda n=before: len(looks) > n)  # type: ignore[misc]
        assert found == []
    over.set()
    wait_until("it waits or has ended", lambda: bool(turnstile._waiters) or bool(found))
    turnstile.wake_all()
    thread.join(PATIENCE)
    assert found == [True]


def test_everybody_is_woken_though_many_wake_at_once() -> None:
    turnstile, over, through = Turnstile(), threading.Event(), []
    threads = in_threads(20, lambda: through.append(turnstile.wait(over.is_set, PATIENCE)))
    wait_until("all wait", lambda: len(turnstile._waiters) == 20)
    over.set()
    for thread in in_threads(4, turnstile.wake_all) + threads:
        thread.join(PATIENCE)
    assert through == [True] * 20
    assert not turnstile._waiters


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
    gate = Gate()

    def interrupted(seconds: float) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(waiting, "slice_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gate.wait()
    assert not gate._waiters
