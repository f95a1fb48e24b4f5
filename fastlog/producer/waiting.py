"""Waiting without locks that an interrupted thread could hold: safe where signal handlers may wait as well."""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from fastlog.client.slices import slice_of
from fastlog.errors import TransportError

FOREVER = -1.0
T = TypeVar("T")


class OneShotEvent:
    """Like ``threading.Event``, without ``clear`` and without a lock: any thread or signal handler may use it."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: deque[_thread.LockType] = deque()

    def is_set(self) -> bool:
        """Whether ``set`` was called."""
        return self._is_set

    def set(self) -> None:
        """Wake every thread that waits; later calls of ``wait`` return at once. May be called again."""
        self._is_set = True
        _release_all(self._waiters)

    def wait(self, seconds: float = FOREVER) -> bool:
        """Return True once it is set, False after ``seconds`` (negative: no limit); Ctrl-C interrupts at once."""
        return self._is_set or _wait(self._waiters, lambda: self._is_set, seconds)


class LocklessCondition:
    """Like ``threading.Condition``, without a lock: threads wait until a predicate holds, which others make true.

    Safe in any thread and signal handler, as ``OneShotEvent``. The predicate is called in the thread that waits.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: deque[_thread.LockType] = deque()

    def wait_for(self, predicate: Callable[[], bool], seconds: float = FOREVER) -> bool:
        """Return True once the predicate holds, False after ``seconds`` (negative: no limit)."""
        deadline = time.monotonic() + seconds if seconds >= 0 else None
        while not predicate():
            left = FOREVER if deadline is None else deadline - time.monotonic()
            if deadline is not None and left <= 0:
                return False
            _wait(self._waiters, predicate, left)
        return True

    def notify_all(self) -> None:
        """Have every waiting thread evaluate its predicate again."""
        if self._waiters:
            _release_all(self._waiters)


class OwnedThread(threading.Thread):
    """A daemon thread that works for ``owner``, which ``wait_ended`` can wait for."""

    def __init__(self, owner: object, work: Callable[[], object], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.owner = owner


class LazyThread:
    """A thread that begins its work when it is first asked to, for ``owner``, as an ``OwnedThread``.

    Any thread and signal handler may ask: none waits for another that does, which may be the one it has interrupted.
    """

    def __init__(self, owner: object, work: Callable[[], object], name: str) -> None:
        self._owner = owner
        self._work = work
        self._name = name
        self.has_begun = False
        self._is_run = _thread.allocate_lock()

    def begin(self) -> None:
        """Begin the work, unless it has begun; may be called again."""
        if not self.has_begun:
            # once more where an interrupt came in between: nobody can say whether that thread comes; one of both works
            OwnedThread(self._owner, self._run, self._name).start()
            self.has_begun = True

    def _run(self) -> None:
        if self._is_run.acquire(blocking=False):
            self._work()


def wait_ended(owner: object, seconds: float) -> bool:
    """Return True when no other thread of ``owner`` is alive any more, False after ``seconds``.

    An event that a thread sets last says that its work is done; for a moment the thread is still alive.
    """
    deadline = time.monotonic() + seconds
    for thread in threading.enumerate():
        if isinstance(thread, OwnedThread) and thread.owner is owner and thread is not threading.current_thread():
            while thread.is_alive():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                thread.join(slice_of(left))
    return True


class Background(Generic[T]):
    """Work in a thread of its own, so that Ctrl-C need not wait for what cannot be interrupted."""

    def __init__(self, work: Callable[[], T], name: str, owner: object = None) -> None:
        self._work = work
        self._found: list[T] = []
        self._failures: list[BaseException] = []
        self._done = OneShotEvent()
        OwnedThread(owner, self._run, name).start()

    def result(self, seconds: float) -> T:
        """Return what the work returned, or raise what it raised.

        Raises:
            TransportError: it took longer than ``seconds``.
        """
        if not self._done.wait(seconds):
            raise TransportError("no answer in time")
        if self._failures:
            raise self._failures[0]
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:
            self._failures.append(error)
        self._done.set()


def _wait(waiters: deque[_thread.LockType], predicate: Callable[[], bool], seconds: float) -> bool:
    lock = _thread.allocate_lock()
    lock.acquire()
    waiters.append(lock)
    try:
        # Whoever made the predicate true before the lock was in the list has not released it.
        if predicate():
            return True
        deadline = time.monotonic() + seconds if seconds >= 0 else None
        while True:
            left = FOREVER if deadline is None else max(0.0, deadline - time.monotonic())
            step = slice_of(left)
            if lock.acquire(timeout=min(step, threading.TIMEOUT_MAX)) or step == left:
                return predicate()
    finally:
        with suppress(ValueError):  # it was released, and is out of the list
            waiters.remove(lock)


def _release_all(waiters: deque[_thread.LockType]) -> None:
    # Released before it is out of the list: an interrupt in between leaves nobody asleep whom nobody knows of.
    for lock in list(waiters):
        with suppress(RuntimeError):  # another thread was first
            lock.release()
        with suppress(ValueError):
            waiters.remove(lock)
