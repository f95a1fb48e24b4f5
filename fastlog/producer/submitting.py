"""Messages of ``submit`` for topics of which nothing is known yet, while the brokers are asked."""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from fastlog.errors import FastlogError, TransportError
from fastlog.producer._send import Routes
from fastlog.producer.hooks import Delivery, ProducerData
from fastlog.producer.ledger import Ledger
from fastlog.producer.router import Router
from fastlog.producer.waiting import Background, LocklessCondition


@dataclass(slots=True, eq=False)
class Submission:
    """One value on its way into a buffer, and the future of what becomes of it."""

    future: Future[Delivery]
    data: ProducerData
    payload: bytes | None

    def settle(self, delivery: Delivery) -> None:
        """Complete the future with the delivery, or with its error."""
        if delivery.error is not None:
            self.fail(delivery.error)
        elif self.future.set_running_or_notify_cancel():
            self.future.set_result(delivery)

    def fail(self, error: FastlogError) -> None:
        """Complete the future with an error, unless it was cancelled."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


PutSubmission = Callable[[Submission], object]
"""Puts a submission into its buffer; raises what is wrong with it."""


class _Lane:
    """What waits for one topic, and who brings it on its way; trying for the lock never waits, not even in a signal."""

    def __init__(self, put: PutSubmission) -> None:
        self.put = put
        self.items: deque[Submission] = deque()
        self.is_run = _thread.allocate_lock()


class Submissions:
    """Brings what waits into buffers, in its order, in one thread for each topic. Safe in any thread.

    A topic is held while something waits for it: the compiled path leaves it alone, and ``send`` waits as well.
    """

    def __init__(self, router: Router, routes: Routes, ledger: Ledger) -> None:
        self._router = router
        self._routes = routes
        self._ledger = ledger
        self._lanes: dict[str, _Lane] = {}
        self._threads: set[int] = set()
        self._done = LocklessCondition()

    def __len__(self) -> int:
        return self._routes.waiting

    @property
    def failed(self) -> int:
        """How many messages failed before they were in a buffer."""
        return self._routes.failed

    def add(self, item: Submission, put: PutSubmission) -> None:
        """Have a message put into its buffer once that is known, or else its future failed."""
        topic = item.data.topic
        lane = self._lanes.get(topic) or self._lanes.setdefault(topic, _Lane(put))
        self._routes.hold(topic, lane.items, item)  # in one step: an interrupt leaves no topic held for nothing
        self._see_to(topic, lane)

    def is_this_thread(self) -> bool:
        """Whether the caller is one of the threads, which would wait for itself."""
        return threading.get_ident() in self._threads

    def wait(self, topic: str | None, seconds: float) -> bool:
        """Return True when nothing waits for a topic (None: for any), False after ``seconds`` (negative: no limit)."""
        for name, lane in list(self._lanes.items()):
            self._see_to(name, lane)
        return self._done.wait_for(lambda: not self._routes.is_held(topic), seconds)

    def give_up(self, error: FastlogError) -> None:
        """Fail every message that waits for its buffer."""
        for topic, lane in list(self._lanes.items()):
            self._fail_all(topic, lane, error)

    def _see_to(self, topic: str, lane: _Lane) -> None:
        """Have a thread bring what waits, unless one does; the thread takes the lock, as nothing interrupts it."""
        if lane.items and not lane.is_run.locked():
            Background(lambda: self._run(topic, lane), "fastlog-producer-submit", self._ledger)

    def _run(self, topic: str, lane: _Lane) -> None:
        me = threading.get_ident()
        self._threads.add(me)
        try:
            while lane.items and lane.is_run.acquire(False):
                try:
                    while lane.items:
                        self._bring(topic, lane)
                finally:
                    lane.is_run.release()
        finally:
            self._threads.discard(me)

    def _bring(self, topic: str, lane: _Lane) -> None:
        try:
            item = lane.items.popleft()
        except IndexError:
            return  # it was given up meanwhile
        failed = True
        try:
            lane.put(item)
            failed = False
        except TransportError as error:  # what waited while the brokers were asked need not ask them again
            item.fail(error)
            self._fail_all(topic, lane, error)
        except FastlogError as error:
            item.fail(error)
        except BaseException as error:  # a partitioner of the program's
            if not item.future.done() and item.future.set_running_or_notify_cancel():
                item.future.set_exception(error)
        self._let_go(topic, failed)

    def _fail_all(self, topic: str, lane: _Lane, error: FastlogError) -> None:
        for _ in range(len(lane.items)):
            try:
                item = lane.items.popleft()
            except IndexError:
                return  # another thread took it
            item.fail(error)
            self._let_go(topic, True)

    def _let_go(self, topic: str, failed: bool) -> None:
        if self._routes.let_go(topic, failed):
            self._router.publish(topic)
        self._done.notify_all()
