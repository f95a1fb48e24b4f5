"""What the threads of one producer share: who waits for what, what became of messages, and what is worth a log line."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

from fastlog.counts import counted
from fastlog.errors import DeliveryError, FastlogError
from fastlog.limited_log import LimitedLog
from fastlog.producer._buffer import Quota
from fastlog.producer._frames import Chunk
from fastlog.producer.hooks import Delivery
from fastlog.producer.waiting import LocklessCondition, OneShotEvent

logger = logging.getLogger("fastlog.producer")

OnDelivery = Callable[[Delivery], object]


class Receipt:
    """Follows the messages of one call to their end. Settled by one sending thread, or by two when chunks moved."""

    __slots__ = ("_expected", "deliveries", "done", "on_delivery")

    def __init__(self, expected: int, on_delivery: OnDelivery | None = None) -> None:
        self._expected = expected
        self.deliveries: list[Delivery] = []
        self.done = OneShotEvent()
        self.on_delivery = on_delivery

    def settle(self, delivery: Delivery) -> None:
        """Note what became of some of the messages."""
        self.deliveries.append(delivery)
        if self.on_delivery is not None:
            call_back(self.on_delivery, delivery)
        if sum(item.messages for item in self.deliveries) >= self._expected:
            self.done.set()


class Ledger:
    """The shared part of a producer. Every method is safe from any thread; none takes a lock."""

    def __init__(
        self, quota: Quota, on_delivery: OnDelivery | None, on_failed: Callable[[Chunk], object] | None = None
    ) -> None:
        self.quota = quota
        self.on_delivery = on_delivery
        self.on_failed = on_failed
        """Called in the sending threads with each frame that failed, before a flush that waits for it is over."""
        self.room = LocklessCondition()
        """Where senders wait until the queue has room."""
        self.closing = False
        """Nothing more is taken in: waiters for room are not to wait longer."""
        self.moves = 0
        """Chunks that went from one broker's thread to another's."""
        self._unreported: dict[int, tuple[int, FastlogError]] = {}  # by a number that is given once
        self._numbers = itertools.count()
        self._log = LimitedLog(logger)

    def failed(self, delivery: Delivery, *, reported: bool) -> None:
        """Note a failure; unless it was ``reported`` to a callback or future, the next flush or close raises it."""
        error = delivery.error
        if error is None:
            return
        if not reported:
            self._unreported[next(self._numbers)] = delivery.messages, error
        self.log(
            logging.WARNING if reported else logging.ERROR,
            f"failed {delivery.topic} {type(error).__name__}",
            f"messages not delivered topic={delivery.topic} partition={delivery.partition}"
            f" messages={delivery.messages}: {_first_line(error)}",
        )

    def raise_unreported(self) -> None:
        """Raise ``DeliveryError`` for messages whose failure was not reported yet; each is raised once."""
        taken = self._unreported.copy()
        if not taken:
            return
        count = sum(messages for messages, _ in taken.values())
        first = next(iter(taken.values()))[1]
        error = DeliveryError(f"{counted(count, 'message', 'was')} not delivered: {first}", count, first)
        for number in taken:  # last: an interrupt before it leaves them to the next call
            self._unreported.pop(number, None)  # unless a call in between has raised them as well
        raise error from first

    def log(self, level: int, key: str, line: str) -> None:
        """Log a line, lines with the same key at most once in 10 s, with a count of those left out."""
        self._log.log(level, key, line)


def call_back(function: OnDelivery, delivery: Delivery) -> None:
    """Call a program's callback; what it raises, ``SystemExit`` too, is logged and goes no further."""
    try:
        function(delivery)
    except BaseException:
        log_failed_callback(delivery)


def log_failed_callback(delivery: Delivery) -> None:
    """Log the exception that a program's callback has just raised."""
    logger.exception("delivery callback failed topic=%s", delivery.topic)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
