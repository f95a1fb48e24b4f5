"""A queue before a producer that nobody ever waits for: for log records, which must not hold up who writes them."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress

from fastlog.errors import ClosedError, FastlogError, ForkedError, TransportError
from fastlog.producer.brokers import check_topic
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import Delivery
from fastlog.producer.producer import Producer
from fastlog.producer.waiting import LazyThread, LocklessCondition, wait_ended
from fastlog.retry import Backoff

Key = str | bytes | None

_MOST_AT_ONCE = 1000
_REPORT_SECONDS = 10.0
_LEAST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_END_SECONDS = 1.0


class _Epoch:
    """The payloads put between two flushes; those that are settled are delivered or dropped."""

    __slots__ = ("put", "settled")

    def __init__(self) -> None:
        self.put = 0
        self.settled = 0


class _Group:
    """Payloads that were handed to the producer in one call; their bytes are given back with the last of them."""

    __slots__ = ("epoch", "owner", "payload_bytes", "payloads")

    def __init__(self, owner: Publisher, epoch: _Epoch, payloads: list[bytes]) -> None:
        self.owner = owner
        self.epoch = epoch
        self.payloads = len(payloads)
        self.payload_bytes = sum(map(len, payloads))

    def settle(self, delivery: Delivery) -> None:
        """Note what became of some of them; called in the producer's sending threads."""
        self.owner._settle(self, delivery.messages, delivery.error)


class Publisher:
    """Sends payloads to one topic from a thread of its own; whoever puts them in waits for no broker.

    At most ``queue_messages`` payloads, or ``queue_bytes``, are neither delivered nor dropped at any time; what does
    not fit is dropped and counted. While no broker answers they are kept, in their order, and tried again.

    Safe in any thread and in signal handlers, which may flush and close wherever they interrupt a call: no thread that
    they wait for takes a lock that was taken there. What callers count and what sending threads count are apart, each
    with a lock of its own; no call stands between reading and writing a count.

    A forked child begins with an empty queue and a producer of its own: what was in the queue is the parent's to
    deliver. What is left at the end of the program has ``close_timeout_ms``.
    """

    def __init__(self, topic: str, config: ProducerConfig) -> None:
        """Connects to nothing yet. ``queue_time_ms`` is how long payloads are collected before they are sent."""
        self.topic = check_topic(topic)
        self._bound = config.queue_messages
        self._bound_bytes = config.queue_bytes
        self._collect_seconds = config.queue_time_ms / 1000
        self._close_seconds = config.close_timeout_ms / 1000
        # The bounds are kept here: a producer with bounds of its own would make its caller wait.
        self._config = dataclasses.replace(
            config,
            producer_type="async",
            queue_full="block",
            enqueue_timeout_ms=None,
            queue_messages=2**31 - 1,
            queue_bytes=2**63 - 1,
            queue_time_ms=0,
        )
        self._is_closed = False
        self._begin()
        _live.add(self)

    def _begin(self) -> None:
        """The state of a process that has sent nothing yet."""
        self._calling = threading.RLock()  # taken again by a signal handler that has interrupted who has it
        self._settling = threading.RLock()  # of the sending threads, which no signal interrupts
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._items: deque[tuple[_Epoch, Key, bytes]] = deque()
        self._epoch = _Epoch()
        self._older: deque[_Epoch] = deque()
        self._progress = LocklessCondition()
        self._producer: Producer | None = None
        self._thread = LazyThread(self, self._run, "fastlog-publisher")
        self._is_asleep = False
        self._hurries = self._hurries_seen = 0  # how often somebody wanted no more collecting
        self._gives_up = False
        self._is_over = False
        self._flush_failed = False
        self._put = self._put_bytes = self._refused = 0
        self._settled = self._settled_bytes = self._published = self._failed = 0
        self._reported = 0
        self._reported_at = -_REPORT_SECONDS
        self._reason = ""

    # -- for everybody -------------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Payloads of this process that were not delivered and will not be."""
        return self._refused + self._failed

    @property
    def published(self) -> int:
        """Payloads of this process that were delivered."""
        return self._published

    @property
    def pending(self) -> int:
        """Payloads that are in the queue or on their way."""
        settled = self._settled  # first: never more than were put
        return self._put - settled

    def put(self, payload: bytes, key: Key = None) -> bool:
        """Queue a payload; False when it was dropped. Raises nothing and waits for nothing."""
        size = len(payload)
        with self._calling:
            pending = self._put - self._settled
            if self._is_closed:
                self._refused += 1
                self._reason = "the handler is closed"
                return False
            if pending >= self._bound or self._put_bytes - self._settled_bytes >= self._bound_bytes:
                self._refused += 1
                self._reason = self._reason or "the queue is full"
                return False
            # No call from here to the last: whoever flushes in a signal handler finds what is counted.
            epoch = self._epoch
            epoch.put += 1
            self._put += 1
            self._put_bytes += size
            self._items.append((epoch, key, payload))
            is_full = (pending + 1) * 2 >= self._bound and self._hurries == self._hurries_seen
            if is_full:
                self._hurries += 1
        if self._is_asleep or is_full:
            self._wake()
        if not self._thread.has_begun:
            self._start()
        return True

    def drop(self, reason: str, count: int = 1) -> None:
        """Count payloads that could not even be made."""
        with self._calling:
            self._refused += count
            self._reason = reason

    def flush(self, timeout: float | None = None) -> bool:
        """Return True once all that was put before is delivered or dropped, False when the time is over.

        ``timeout``: seconds; None: as long as ``close`` waits.
        """
        fresh = _Epoch()
        with self._calling:
            former = self._epoch
            self._epoch = fresh
            self._older.append(former)  # no call before it since the look at the former
            for one in list(self._older):
                if one.put == one.settled:
                    with suppress(ValueError):
                        self._older.remove(one)
            waited = list(self._older)
            self._hurries += 1
        self._see_to_items()
        seconds = self._close_seconds if timeout is None else max(0.0, timeout)
        done = self._progress.wait_for(lambda: self._is_over or all(one.put == one.settled for one in waited), seconds)
        self._flush_failed = not done
        return done

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is in the queue, within the time; drop the rest. May be called again.

        Right after a ``flush`` that came to no end it waits no second time.
        """
        seconds = self._close_seconds if timeout is None else max(0.0, timeout)
        if self._flush_failed and timeout is None:
            seconds = 0.0
        with self._calling:
            was_closed, self._is_closed = self._is_closed, True
            self._hurries += 1
        if was_closed:
            return
        self._see_to_items()
        self._progress.wait_for(lambda: not self.pending, seconds)
        self._gives_up = True
        self._wake()
        producer = self._producer
        if producer is not None:
            try:
                producer.close(0.0 if self.pending else _END_SECONDS)
            except FastlogError as error:
                self._reason = self._reason or str(error).partition("\n")[0]
        wait_ended(self, _END_SECONDS)
        self._give_up_rest()
        self._report(0.0)
        _live.discard(self)

    def _see_to_items(self) -> None:
        """Have the thread look at what is in the queue, also where a call was interrupted before it had begun."""
        if self._items and not self._thread.has_begun:
            self._start()
        self._wake()

    def _wake(self) -> None:
        self._is_asleep = False
        self._wakeups.put(None)

    def _give_up_rest(self) -> None:
        """At the end: count what is neither delivered nor dropped as dropped."""
        with self._settling:
            self._is_over = True
            left = self._put - self._settled
            self._settled, self._settled_bytes = self._put, self._put_bytes
            self._items.clear()
            self._failed += left
            if left:
                self._reason = "not delivered before the end"

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        _close_with_this_process()
        try:
            self._thread.begin()
        except RuntimeError:
            self._gives_up = True  # the interpreter ends, or has no more threads to give: close() counts what is left

    def _run(self) -> None:
        while self._wait_for_items():
            hurries = self._hurries
            items = [self._items.popleft() for _ in range(min(len(self._items), _MOST_AT_ONCE))]
            if not self._items:
                self._hurries_seen = hurries
            groups: dict[tuple[_Epoch, Key], list[bytes]] = {}
            for epoch, key, payload in items:
                groups.setdefault((epoch, key), []).append(payload)
            for (epoch, key), payloads in groups.items():
                self._send(epoch, key, payloads)
            self._report(_REPORT_SECONDS)

    def _wait_for_items(self) -> bool:
        """Wait until something is to be sent, and a little for more to come; False at the end."""
        while not self._items:
            if self._is_closed:
                return False
            self._is_asleep = True  # before the look: who puts something looks at it afterwards
            if not self._items and not self._is_closed:
                self._sleep(_REPORT_SECONDS if self.dropped > self._reported else None)
                self._report(_REPORT_SECONDS)
            self._is_asleep = False
        deadline = time.monotonic() + self._collect_seconds
        while not (self._hurries != self._hurries_seen or self._is_closed or len(self._items) >= _MOST_AT_ONCE):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._sleep(left)
        return not self._gives_up

    def _sleep(self, seconds: float | None) -> None:
        with suppress(queue.Empty):
            self._wakeups.get(timeout=seconds)

    def _send(self, epoch: _Epoch, key: Key, payloads: list[bytes]) -> None:
        """Hand payloads to the producer, again and again while no broker answers."""
        group = _Group(self, epoch, payloads)
        backoff = Backoff(_LEAST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                if self._gives_up:
                    raise ClosedError("not delivered before the end")
                if self._producer is None:
                    self._producer = Producer(self._config)
                self._producer.send(self.topic, payloads, key=key, on_delivery=group.settle)
                return
            except TransportError as error:  # only before anything of the topic is known: nothing was sent
                self._reason = _first_line(error)
                self._report(_REPORT_SECONDS)
                until = time.monotonic() + backoff.next()
                while (left := until - time.monotonic()) > 0 and not self._gives_up:
                    self._sleep(left)
            except Exception as error:  # a partitioner of the program's, too
                if len(payloads) > 1 and not isinstance(error, ClosedError | ForkedError):
                    for payload in payloads:  # one that is too large keeps no other back
                        self._send(epoch, key, [payload])
                else:
                    self._settle(group, len(payloads), error)
                return

    def _settle(self, group: _Group, count: int, error: Exception | None) -> None:
        with self._settling:
            group.payloads -= count
            group.epoch.settled += count
            if self._is_over:
                return  # counted as dropped already
            self._settled += count
            if group.payloads <= 0:
                self._settled_bytes += group.payload_bytes
            if error is None:
                self._published += count
                self._flush_failed = False
                if self.dropped == self._reported:
                    self._reason = ""
            else:
                self._failed += count
                self._reason = _first_line(error)
        self._progress.notify_all()

    def _report(self, seconds: float) -> None:
        """Report on standard error what was dropped since the last report, if that is at least ``seconds`` ago."""
        now = time.monotonic()
        dropped = self.dropped
        if dropped == self._reported or now - self._reported_at < seconds:
            return
        text = (
            f"fastlog: topic {self.topic}: {dropped - self._reported} records were dropped, {dropped} so far:"
            f" {self._reason}"
        )
        self._reported, self._reported_at, self._reason = dropped, now, ""
        handler = logging.lastResort
        if handler is not None:  # not through a logger, whose handlers may lead back here
            handler.handle(logging.LogRecord("fastlog.publisher", logging.WARNING, __file__, 0, text, None, None))

    def _leave_to_parent(self) -> None:
        """In a forked child: forget the parent's queue and thread, and begin with empty ones."""
        self._begin()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


# --- the end of the program, and forks ---

_live: weakref.WeakSet[Publisher] = weakref.WeakSet()
_closes_in = 0


def _close_with_this_process() -> None:
    """A process of multiprocessing ends without atexit; its own list of things to do at the end is gone through."""
    global _closes_in
    process = sys.modules.get("multiprocessing.process")
    if _closes_in != os.getpid() and process is not None and process.parent_process() is not None:
        _closes_in = os.getpid()
        from multiprocessing import util

        util.Finalize(None, _close_all, exitpriority=-50)  # before the producers are closed


def _close_all() -> None:
    for publisher in list(_live):
        publisher.close()


def _after_fork_in_child() -> None:
    for publisher in list(_live):
        publisher._leave_to_parent()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
