"""The coordinator's loop: descriptors, timers, and tasks, whose disk work a thread does in bounded steps.

A task is a generator. It yields what it waits for (``Step``, ``Until``) and is sent what came of it; it runs on the
loop's thread, one turn after the other, and never waits for a disk or a lock there.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from fastlog.workers.coordinator.promises import Promise

log = logging.getLogger(__name__)


class Step(NamedTuple):
    """Work for the thread: ``run`` is called there once, and what it returns or raises is the task's."""

    run: Callable[[], object]


class Until(NamedTuple):
    """Wait for something that other processes change: asked again at each wake-up; True once it holds.

    False at ``deadline``, on the monotonic clock.
    """

    holds: Callable[[], bool]
    deadline: float


class Given(NamedTuple):
    """Wait for a value that this process makes; it is the task's, or None at ``deadline``, where there is one."""

    promise: Promise[Any]
    deadline: float | None = None


Wait = Step | Until | Given
Task = Generator[Wait, Any, None]


class Timer:
    """Something to do at a time; ``cancel`` takes it back."""

    def __init__(self, when: float, act: Callable[[], object]) -> None:
        self.when = when
        self.act: Callable[[], object] | None = act

    def cancel(self) -> None:
        """Take the call out of the schedule."""
        self.act = None


class Loop:
    """For one thread, but for what its own worker does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, mark: Callable[[], int] = lambda: 0) -> None:
        """``mark`` is asked by the thread before each step."""
        self._clock = clock
        self._mark = mark
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._waiting: dict[Task, tuple[Until, Timer]] = {}
        self._promised: dict[Task, tuple[Given, Timer | None]] = {}
        self._given: collections.deque[tuple[Task, Given]] = collections.deque()  # whose values have come
        self._worker: threading.Thread | None = None
        self._steps: collections.deque[tuple[Task, Step]] = collections.deque()
        self._step_wanted = threading.Semaphore(0)
        self._done: collections.deque[tuple[Task, object, BaseException | None]] = collections.deque()
        self._done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._done_fd, selectors.EVENT_READ, self._take_done)
        self._has_ended = self._is_closed = False
        self.tasks = 0
        """The number of tasks under way."""
        self.step_mark: int | None = None
        """What ``mark`` said before the step that the thread is at; None: it is at none."""

    def close(self) -> None:
        """Give back descriptors and end the thread, which comes to the end of its step; nothing goes on any more."""
        self._is_closed = True
        self._step_wanted.release()
        if self._worker is not None:
            self._worker.join()
        self._selector.close()
        os.close(self._done_fd)

    # -- descriptors and timers ----------------------------------------------------------------------------------------

    def watch(self, fd: int, events: int, act: Callable[[int], object]) -> None:
        """Call ``act`` with the events whenever a descriptor has some; 0 for ``events``: not any more for now."""
        registered = self._selector.get_map().get(fd)
        if registered is None:
            if events:
                self._selector.register(fd, events, act)
        elif not events:
            self._selector.unregister(fd)
        elif registered.events != events:
            self._selector.modify(fd, events, act)

    def at(self, when: float, act: Callable[[], object]) -> Timer:
        """Do something at a time on the monotonic clock."""
        timer = Timer(when, act)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def turn(self, most_seconds: float) -> None:
        """Wait for something to do, so long at most, and do it."""
        pause = 0.0 if self._given else most_seconds
        if self._timers:
            pause = min(pause, self._timers[0][0] - self._clock())
        for key, events in self._selector.select(max(0.0, pause)):
            key.data(events)
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            act = heapq.heappop(self._timers)[2].act
            if act is not None:
                act()
        while self._given:
            self._take(*self._given.popleft())
        if self._has_ended:  # others may wait for what a task has done
            self._has_ended = False
            self.look()

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def start(self, task: Task) -> None:
        """Run a task up to its first wait."""
        self.tasks += 1
        self._go_on(task, None, None)

    def look(self) -> None:
        """Something in the shared memory has changed: let the tasks go on that have waited for it."""
        for task, waiting in list(self._waiting.items()):
            # one that went on meanwhile may wait for something else by now
            if self._waiting.get(task) is waiting and waiting[0].holds():
                self._waiting.pop(task)[1].cancel()
                self._go_on(task, True, None)

    def _go_on(self, task: Task, value: object, error: BaseException | None) -> None:
        while True:
            try:
                wanted = task.send(value) if error is None else task.throw(error)
            except Exception as ended:
                if not isinstance(ended, StopIteration):
                    log.exception("a task ended by an error")
                self.tasks -= 1
                self._has_ended = True
                return
            value, error = None, None
            if isinstance(wanted, Step):
                self._give(task, wanted)
                return
            if isinstance(wanted, Given):
                value = wanted.promise.value
                if value is not None:
                    continue
                self._await(task, wanted)
                return
            if wanted.holds():
                value = True
            elif self._clock() >= wanted.deadline:
                value = False
            else:
                self._waiting[task] = wanted, self.at(wanted.deadline, lambda: self._give_up(task))
                return

    def _await(self, task: Task, wanted: Given) -> None:
        """Not from within ``Promise.give``: who gives has not come to the end of what it does."""
        timer = None if wanted.deadline is None else self.at(wanted.deadline, lambda: self._take(task, wanted))
        self._promised[task] = wanted, timer
        wanted.promise.then(lambda _: self._given.append((task, wanted)))

    def _take(self, task: Task, wanted: Given) -> None:
        waiting = self._promised.get(task)
        if waiting is not None and waiting[0] is wanted:
            del self._promised[task]
            if waiting[1] is not None:
                waiting[1].cancel()
            self._go_on(task, wanted.promise.value, None)

    def _give_up(self, task: Task) -> None:
        until, _timer = self._waiting.pop(task)
        self._go_on(task, until.holds(), None)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _give(self, task: Task, step: Step) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="coordinator-disk", daemon=True)
            self._worker.start()
        self._steps.append((task, step))
        self._step_wanted.release()

    def _work(self) -> None:
        while True:
            self._step_wanted.acquire()
            if self._is_closed:
                return
            task, step = self._steps.popleft()
            self.step_mark = self._mark()
            try:
                self._done.append((task, step.run(), None))
            except BaseException as error:
                self._done.append((task, None, error))
            self.step_mark = None
            os.eventfd_write(self._done_fd, 1)

    def _take_done(self, _events: int) -> None:
        os.eventfd_read(self._done_fd)
        while self._done:
            task, value, error = self._done.popleft()
            self._go_on(task, value, error)
