"""One step for each of many partitions, by threads of each log directory, where what takes time is the disk.

A sync takes a disk about as long as sixteen that come together, and a directory on a slow one keeps no other waiting.
The caller's thread only waits, so it sees signals. No thread is left on return: the supervisor forks afterwards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

THREADS_PER_DIRECTORY = 8
ITEMS_PER_THREAD = 16
"""A directory with fewer gets fewer threads; one directory with at most as many is done by the caller."""
_TURN_SECONDS = 0.05

Item = TypeVar("Item")
Result = TypeVar("Result")


def for_each(
    items: Sequence[tuple[int, Item]],
    work: Callable[[Item], Result],
    *,
    threads: int = THREADS_PER_DIRECTORY,
    turn: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Return what ``work`` makes of each item, in their order; an item comes with the index of its log directory.

    Args:
        threads: of each directory at most.
        turn: called in the caller's thread while there is work, whenever some has been done.

    Raises:
        Exception: the first that ``work`` raised. What was begun is finished; nothing else is begun after it.
    """
    queues: dict[int, deque[int]] = {}
    for number, (directory, _) in enumerate(items):
        queues.setdefault(directory, deque()).append(number)
    shares = [min(threads, -(-len(queue) // ITEMS_PER_THREAD)) for queue in queues.values()]
    if sum(shares) <= 1:
        results = []
        for _, item in items:
            results.append(work(item))
            turn()
        return results
    crew = _Crew(items, work)
    for queue, share in zip(queues.values(), shares, strict=True):
        crew.start(queue, share)
    return crew.wait(turn)


class _Crew(Generic[Item, Result]):
    """The threads of one call of ``for_each``."""

    def __init__(self, items: Sequence[tuple[int, Item]], work: Callable[[Item], Result]) -> None:
        self._items = items
        self._work = work
        self._results: dict[int, Result] = {}
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._stopped = False

    def start(self, queue: deque[int], count: int) -> None:
        for _ in range(count):
            # a daemon: one that hangs with its disk must not keep a process whose start is broken off
            self._threads.append(threading.Thread(target=self._run, args=(queue,), daemon=True))
            self._threads[-1].start()

    def _run(self, queue: deque[int]) -> None:
        while not self._stopped:
            try:
                number = queue.popleft()
            except IndexError:
                return
            try:
                self._results[number] = self._work(self._items[number][1])
            except BaseException as error:
                self._failures.append(error)
                self._stopped = True

    def wait(self, turn: Callable[[], None]) -> list[Result]:
        seen = 0
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(_TURN_SECONDS)
                    done = len(self._results)
                    if done != seen:
                        seen = done
                        turn()
        finally:
            self._stopped = True
        if self._failures:
            raise self._failures[0]
        if len(self._results) != seen:
            turn()
        return [self._results[number] for number in range(len(self._items))]
