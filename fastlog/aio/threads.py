"""The thread of an event loop, and the few others that wait for the network in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from fastlog.errors import StateError

_Given = ParamSpec("_Given")
_T = TypeVar("_T")
_MOST_THREADS = 4


class Threads:
    """Runs what blocks, for an object that belongs to one event loop: the one in which it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_woken = False
        self._is_scheduled = False

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this object, which has to be the one that runs.

        Raises:
            StateError: it is another one.
        """
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise StateError(f"this {self._name} belongs to another event loop: make one in each")
        return running

    def is_bound_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it is known already that the object belongs to this loop."""
        return self._loop is loop

    def start(self, call: Callable[_Given, _T], *given: _Given.args, **named: _Given.kwargs) -> asyncio.Future[_T]:
        """The call, in a thread; it goes on when whoever waits for it is cancelled. Await it shielded."""
        loop = self.loop()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_MOST_THREADS, f"fastlog-aio-{self._name}")
        made = loop.run_in_executor(self._executor, lambda: call(*given, **named))
        made.add_done_callback(_look_at)
        return made

    async def run(self, call: Callable[_Given, _T], *given: _Given.args, **named: _Given.kwargs) -> _T:
        """Make the call in a thread, and return what it returns or raise what it raises."""
        return await asyncio.shield(self.start(call, *given, **named))

    def start_alone(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """The same in a thread that nothing else is before, as for the end, and with no other after it."""
        loop = self.loop()
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
        last = ThreadPoolExecutor(1, f"fastlog-aio-{self._name}-close")
        made = loop.run_in_executor(last, call)
        last.shutdown(wait=False)
        made.add_done_callback(_look_at)
        return made

    # -- woken by threads ----------------------------------------------------------------------------------------------

    def call(self, function: Callable[[], object]) -> None:
        """Have the loop call ``function``; safe in any thread. Nothing happens when the loop is closed."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(function)

    def wake(self) -> None:
        """Have every task in ``wait`` return; safe in any thread and signal handler."""
        self._is_woken = True
        if self._waiters and not self._is_scheduled:
            self._is_scheduled = True
            self.call(self._wake_all)

    def begin_to_look(self) -> None:
        """Have the next ``wait`` return at once if ``wake`` is called between now and then."""
        self._is_woken = False

    async def wait(self, seconds: float) -> None:
        """Return at the next ``wake``, or one since ``begin_to_look``, at the latest after ``seconds``."""
        loop = self.loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        try:
            if self._is_woken:  # its thread saw nobody waiting
                return
            timer = loop.call_later(seconds, _set, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
        finally:
            self._waiters.discard(waiter)

    def _wake_all(self) -> None:
        self._is_scheduled = False
        for waiter in self._waiters:
            _set(waiter)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _look_at(made: asyncio.Future[_T]) -> None:
    """Whoever asked may have been cancelled; an error that nobody waits for is no message of asyncio's."""
    if not made.cancelled():
        made.exception()
