"""Sends rows of columns: for programs that have their messages as arrays and not as Python objects."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from fastlog.counts import counted
from fastlog.errors import ArgumentError, ClosedError, ConfigError, DeliveryError, FastlogError
from fastlog.producer._buffer import Buffer, Quota
from fastlog.producer._rows import put_rows
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import Delivery
from fastlog.producer.ledger import Ledger
from fastlog.producer.producer import make_router
from fastlog.producer.router import ANY


class Stretch(NamedTuple):
    """What was delivered to one partition: messages, and from where to where they and what came between lie."""

    offset: int
    next_offset: int
    messages: int


class RowSender:
    """Delivers rows to the brokers of a configuration of type ``async``. For one thread.

    Rows that go to the same buffer arrive in the order in which they were sent, also over broken connections; what was
    written before a break may then be there twice, as with ``Producer``.
    """

    def __init__(self, config: ProducerConfig) -> None:
        if config.producer_type != "async":
            raise ArgumentError("rows are sent through a queue: producer_type is async")
        if config.has_envelope:
            raise ConfigError("rows are sent as they are: envelope and audit.topic are for Producer")
        self._delivered: dict[tuple[str, int, int], Stretch] = {}
        self._failed = 0
        self._error: FastlogError | None = None
        self._ledger = Ledger(Quota(config.queue_messages, config.queue_bytes), self._note)
        self._router = make_router(config, self._ledger, None, None)

    def anywhere(self, topic: str) -> Buffer:
        """The buffer for some rows that may go to any partition; another one each time. Raises as ``Producer.send``."""
        return self._router.choose(topic, None, None)

    def by_key(self, topic: str) -> list[Buffer] | None:
        """The buffers of all partitions, among which the hash of a key chooses; None where keys have no effect.

        The same list for as long as nothing changes. Raises as ``Producer.send`` with a key.
        """
        return self._router.keyed_buffers(topic)

    def at(self, topic: str, broker: int | None, partition: int) -> Buffer:
        """The buffer of one partition. ``broker`` may be None where there is only one. Raises as ``Producer.send``."""
        return self._router.choose(topic, None, partition if broker is None else (broker, partition))

    def send(self, buffers: list[Buffer], destinations: Any, data: Any, ends: Any) -> None:
        """Send rows, see ``put_rows``; waits while the queue is full.

        Raises:
            DeliveryError: messages sent before could not be delivered.
            MessageTooLargeError: a row is too large; those before it are sent.
        """
        count, at = len(ends) - 1, 0
        while True:
            self._raise_failure()
            at = put_rows(buffers, destinations, data, ends, at)
            if at >= count:
                return
            self._ledger.room.wait_for(lambda: self._error is not None or self._ledger.quota.has_room())

    def flush(self) -> None:
        """Return when everything that was sent is delivered. Raises ``DeliveryError``: some of it could not be."""
        self._router.flush(-1.0)
        self._raise_failure()

    def delivered(self) -> dict[tuple[str, int, int], Stretch]:
        """What was confirmed so far, by topic, broker and partition; offsets are -1 where brokers do not tell them."""
        return dict(self._delivered)

    @property
    def possible_duplicates(self) -> int:
        """Messages that were written again after a connection broke, and may be there twice."""
        return sum(link.possible_duplicates for link in self._router.every_link())

    def close(self, timeout: float) -> None:
        """End; what is not delivered within the time, in seconds, is given up."""
        self._router.stop()
        self._router.wait_stopped(time.monotonic() + timeout)

    def _note(self, delivery: Delivery) -> None:
        """Called in sending threads, of which there is one for each broker: no two for the same partition at a time."""
        if delivery.error is not None:
            self._failed += delivery.messages
            self._error = self._error or delivery.error
            self._ledger.room.notify_all()
            return
        place = (delivery.topic, delivery.broker, delivery.partition)
        before = self._delivered.get(place)
        offset, messages = delivery.offset, delivery.messages
        if before is not None:
            offset, messages = min(before.offset, offset), messages + before.messages
        following = max(delivery.next_offset, before.next_offset if before is not None else ANY)
        self._delivered[place] = Stretch(offset, following, messages)

    def _raise_failure(self) -> None:
        error = self._error
        if error is None:
            return
        if isinstance(error, ClosedError):
            raise error
        raise DeliveryError(
            f"{counted(self._failed, 'message', 'was')} not delivered: {error}", self._failed, error
        ) from error
