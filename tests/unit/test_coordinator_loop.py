"""The coordinator's loop: what tasks wait for and are given, timers, and the thread for steps, which ends with it."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from fastlog.workers.coordinator.loop import Given, Loop, Step, Until, Wait
from fastlog.workers.coordinator.promises import Promise
from tests.harness.timing import PATIENCE


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[Loop]:
    made = Loop(clock)
    yield made
    made.close()


def task(wanted: Wait, seen: list[Any]) -> Generator[Wait, Any, None]:
    """Waits for one thing, and says what came of it."""
    try:
        seen.append((yield wanted))
    except OSError as error:
        seen.append(error.errno)


def turn_until(loop: Loop, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        loop.turn(0.01)
        assert time.monotonic() < deadline


def test_timers_are_due_at_their_time_in_its_order(loop: Loop, clock: Clock) -> None:
    done: list[str] = []
    loop.at(103.0, lambda: done.append("later"))
    loop.at(102.0, lambda: done.append("first"))
    loop.at(102.0, lambda: done.append("second"))
    loop.at(101.0, lambda: done.append("never")).cancel()
    clock.now = 101.999
    loop.turn(0.0)
    assert done == []
    clock.now = 102.0
    loop.turn(0.0)
    assert done == ["first", "second"]
    clock.now = 103.0
    loop.turn(0.0)
    assert done == ["first", "second", "later"]


def test_a_turn_ends_with_the_next_timer() -> None:
    loop = Loop()
    done: list[float] = []
    began = time.monotonic()
    loop.at(began + 0.05, lambda: done.append(time.monotonic() - began))
    while not done:
        loop.turn(PATIENCE)
    assert done[0] < PATIENCE / 2
    loop.close()


def test_a_step_is_done_by_the_thread_and_its_task_goes_on_here(loop: Loop) -> None:
    """In the order in which they were asked for; an error is the task's as well."""
    seen: list[Any] = []
    threads: list[threading.Thread] = []

    def refuse() -> None:
        raise OSError(28, "full")

    def name() -> int:
        threads.append(threading.current_thread())
        return 7

    loop.start(task(Step(name), seen))
    loop.start(task(Step(refuse), seen))
    loop.start(task(Step(lambda: 9), seen))
    assert (loop.tasks, seen) == (3, [])
    turn_until(loop, lambda: not loop.tasks)
    assert seen == [7, 28, 9]
    assert threads != [threading.current_thread()] and loop.step_mark is None


def test_what_holds_or_is_late_already_is_not_waited_for(loop: Loop, clock: Clock) -> None:
    seen: list[Any] = []
    loop.start(task(Until(lambda: True, 0.0), seen))
    loop.start(task(Until(lambda: False, clock.now), seen))
    assert (seen, loop.tasks) == ([True, False], 0)


def test_a_wait_ends_by_a_look_or_when_it_is_due(loop: Loop, clock: Clock) -> None:
    """When it is due it is asked once more."""
    seen: list[Any] = []
    words: set[str] = set()
    for word, deadline in (("a", 105.0), ("b", 106.0), ("c", 107.0)):
        loop.start(task(Until(lambda word=word: word in words, deadline), seen))  # type: ignore[misc]
    loop.turn(0.0)
    words.add("a")
    loop.look()
    assert (seen, loop.tasks) == ([True], 2)
    clock.now = 106.0
    loop.turn(0.0)
    assert (seen, loop.tasks) == ([True, False], 1)
    words.add("c")
    clock.now = 107.0
    loop.turn(0.0)
    assert (seen, loop.tasks) == ([True, False, True], 0)


def test_the_end_of_a_task_is_looked_at_by_those_that_wait(loop: Loop) -> None:
    """In the same turn: nobody else would say that anything has changed."""
    seen: list[Any] = []
    done: list[int] = []
    loop.start(task(Until(lambda: bool(done), 10**9), seen))
    loop.start(task(Step(lambda: done.append(1)), []))
    turn_until(loop, lambda: loop.tasks < 2)
    assert seen == [True]


def test_a_value_is_given_once(loop: Loop, clock: Clock) -> None:
    """Before it is asked for, while it is waited for, or not in time; what comes later is too late."""
    seen: list[Any] = []
    given, late = Promise[Any](), Promise[Any]()
    given.give(5)
    loop.start(task(Given(given), seen))
    assert seen == [5]
    loop.start(task(Given(late, 101.0), seen))
    clock.now = 101.0
    loop.turn(0.0)
    assert seen == [5, None]
    late.give(6)
    loop.turn(0.0)
    assert (seen, loop.tasks) == ([5, None], 0)
    waited = Promise[Any]()
    loop.start(task(Given(waited, 1e6), seen))
    waited.give(8)
    assert seen == [5, None], "not from within give"
    begun = time.monotonic()
    loop.turn(PATIENCE)
    assert seen == [5, None, 8] and time.monotonic() - begun < PATIENCE / 2, "the next turn waits for nothing else"
    clock.now = 1e6 + 1
    loop.turn(0.0)
    assert seen == [5, None, 8]


def test_a_descriptor_is_watched_for_what_was_asked_last(loop: Loop) -> None:
    events: list[int] = []
    fd = os.eventfd(1)
    loop.watch(fd, 0, events.append)
    loop.watch(fd, selectors.EVENT_WRITE, events.append)
    loop.turn(0.0)
    loop.watch(fd, selectors.EVENT_READ, events.append)
    loop.turn(0.0)
    loop.watch(fd, 0, events.append)
    loop.turn(0.0)
    assert events == [selectors.EVENT_WRITE, selectors.EVENT_READ]
    os.close(fd)


class Slow(threading.Semaphore):
    """Whoever waits has run before ``release`` comes back."""

    def release(self, n: int = 1) -> None:
        super().release(n)
        time.sleep(0.1)


def test_the_thread_that_is_woken_by_a_close_sees_it(clock: Clock) -> None:
    """However quickly it is: it would take a step that is not there, or wait for one, and the close for it."""
    loop = Loop(clock)
    loop._step_wanted = Slow(0)
    seen: list[Any] = []
    loop.start(task(Step(lambda: 1), seen))
    turn_until(loop, lambda: seen == [1])
    failed: list[object] = []
    former, threading.excepthook = threading.excepthook, failed.append
    try:
        closing = threading.Thread(target=loop.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
    finally:
        threading.excepthook = former
    assert not closing.is_alive()
    assert failed == []
