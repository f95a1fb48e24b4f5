"""What became of the lines that were handed to a producer: which are stored, which are not, and why."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from fastlog.client.records import RecordsError
from fastlog.counts import listed
from fastlog.errors import BrokerError, FastlogError
from fastlog.producer.hooks import Delivery
from fastlog.producer.record_errors import LOST, PASSING
from fastlog.tools import signals

_LOOK_SECONDS = 0.1
_SHOWN_RANGES = 8

MOST_MESSAGE_BYTES = 2**31 - 1 - 2**20
"""The longest message where a broker tells no limit: a request has room for little more."""
NOT_ACKNOWLEDGED = "sent, not acknowledged"
"""What can be said of a produce of Kafka 0.7, which has no answer: never that it is stored."""


class Losses(logging.Handler):
    """Reports the producer's warnings, and remembers when messages may have been lost without an error."""

    def __init__(self, command: str, say: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self.first = ""
        """What the first of those warnings said."""
        self._command = command
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Report a warning of the producer, unless the summary will; remember the first that tells of lost messages."""
        text = record.getMessage()
        if text.startswith("messages not delivered"):
            return  # the summary says so
        if "may be lost" in text:
            self.first = self.first or text
        self._say(f"{self._command}: {text}")

    def __enter__(self) -> Losses:
        logging.getLogger("fastlog.producer").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("fastlog.producer").removeHandler(self)


def is_refusal(error: FastlogError | None) -> bool:
    """Whether a broker has refused what failed with this error: it is not stored."""
    if isinstance(error, RecordsError):
        return error.code not in LOST | PASSING
    return isinstance(error, BrokerError)


class Call:
    """One call of ``send``, of values for one partition: the delivery callback of its messages.

    Settled by the sending threads.
    """

    def __init__(
        self, owner: Deliveries, name: str, payloads: Sequence[bytes | None], numbers: Sequence[int], size: int
    ) -> None:
        self.name = name
        self.numbers = numbers
        self.size = size
        self.open = len(numbers)
        """How many of the messages are not settled."""
        self._settled: list[tuple[int, int]] = []
        self._owner = owner
        self._payloads = payloads

    def __call__(self, delivery: Delivery) -> None:
        """Take note of what became of some messages of the call; its requests may be settled in any order."""
        self._owner.settle(self, delivery)

    def settle(self, delivery: Delivery) -> tuple[int, int]:
        """The places of the messages that are settled now: the first, and the one behind the last."""
        start, end = delivery.first, delivery.first + delivery.messages
        self._settled.append((start, end))
        self.open -= delivery.messages
        return start, end

    def rest(self) -> Iterator[Sequence[int]]:
        """The numbers of the messages that are not settled, in parts."""
        done = 0
        for start, end in [*sorted(self._settled), (len(self.numbers), 0)]:
            if start > done:
                yield self.numbers[done:start]
            done = end

    def size_of(self, start: int, end: int) -> int:
        """Bytes of payload of some of the messages."""
        return self.size if end - start == len(self._payloads) else size_of(self._payloads[start:end])


class Deliveries:
    """Counts for the main thread; safe in any thread. ``woken`` is a descriptor that can be read after a failure."""

    def __init__(self, frame_bytes: int = 1, unit: str = "line") -> None:
        """``frame_bytes``: what a message takes in the input beside its payload; ``unit``: what it is called there."""
        self.delivered = 0
        self.delivered_bytes = 0
        self.refused = 0
        """Messages that a broker refused: they are not stored."""
        self.unknown = 0
        """Messages that were given up: some may be stored."""
        self.error: FastlogError | None = None
        """The error of the first message that was refused or given up; None: there is none."""
        self.woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.pending_bytes = 0
        """Of the input: what was handed over and has no answer yet."""
        self._frame_bytes = frame_bytes
        self._unit = unit
        self._lost: list[tuple[str, Sequence[int]]] = []
        self._calls: dict[Call, None] = {}
        self._changed = threading.Condition()

    def __del__(self) -> None:
        os.close(self.woken)

    def begin(self, name: str, payloads: Sequence[bytes | None], numbers: Sequence[int], size: int) -> Call:
        """A callback for one call: ``size`` bytes of payload, from lines of the input ``name`` with these numbers."""
        call = Call(self, name, payloads, numbers, size)
        with self._changed:
            self._calls[call] = None
            self.pending_bytes += call.size + len(payloads) * self._frame_bytes
        return call

    def cancel(self, call: Call) -> None:
        """Forget a call that was refused as a whole: nothing of it was sent."""
        with self._changed:
            self._forget(call)

    def wait_room(self, most_bytes: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Return when less than that is on its way, or something failed; ``meanwhile`` is called ever so often."""
        while self.pending_bytes >= most_bytes and self.error is None:
            with signals.waiting(), self._changed:
                self._changed.wait_for(lambda: self.pending_bytes < most_bytes or self.error is not None, _LOOK_SECONDS)
            meanwhile()

    def settle(self, call: Call, delivery: Delivery) -> None:
        """Take note of what became of some messages of a call."""
        with self._changed:
            start, end = call.settle(delivery)
            if delivery.error is None:
                self.delivered += delivery.messages
                self.delivered_bytes += call.size_of(start, end)
            else:
                self._fail(call, delivery, start, end)
            if call.open <= 0:
                self._forget(call)
            else:
                self._changed.notify_all()

    def _forget(self, call: Call) -> None:
        """Nothing of a call is under way any more; under the lock."""
        if self._calls.pop(call, call) is None:
            self.pending_bytes -= call.size + len(call.numbers) * self._frame_bytes
        self._changed.notify_all()

    def give_up(self) -> None:
        """Take what has no answer for lost: no more will come."""
        with self._changed:
            for call in self._calls:
                self.unknown += call.open
                self._lost += [(call.name, numbers) for numbers in call.rest()]
            self._calls.clear()

    def lost_ranges(self) -> Iterator[tuple[str, int, int]]:
        """Messages that are not known to be stored: the input, and the numbers of the first and last of each range."""
        return _ranges(self._lost)

    def lost_lines(self) -> str:
        """Where the lines are that are not known to be stored, in words; empty when there are none."""
        ranges = [
            f"{name}, {self._unit}{'' if first == last else 's'} {first}" + (f"-{last}" if last > first else "")
            for name, first, last in self.lost_ranges()
        ]
        return listed(ranges, _SHOWN_RANGES, separator="; ", noun="ranges")

    def _fail(self, call: Call, delivery: Delivery, start: int, end: int) -> None:
        error = delivery.error
        if is_refusal(error):
            self.refused += delivery.messages
        else:
            self.unknown += delivery.messages
        self._lost.append((call.name, call.numbers[start:end]))
        if self.error is None:
            self.error = error
            os.eventfd_write(self.woken, 1)


def size_of(payloads: Sequence[bytes | None]) -> int:
    """Bytes of all the payloads; null has none."""
    return sum(len(payload) for payload in payloads if payload)


def _ranges(lost: list[tuple[str, Sequence[int]]]) -> Iterator[tuple[str, int, int]]:
    """The line numbers of each input, in the order of the inputs, as ranges."""
    by_name: dict[str, set[int]] = {}
    for name, numbers in lost:
        by_name.setdefault(name, set()).update(numbers)
    for name, found in by_name.items():
        first = last = -1
        for number in sorted(found):
            if first >= 0 and number == last + 1:
                last = number
                continue
            if first >= 0:
                yield name, first, last
            first = last = number
        if first >= 0:
            yield name, first, last
