"""Telling what became of messages: receipts, the program's callbacks, the next flush, the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastlog import codecs
from fastlog.errors import FastlogError, MessageTooLargeError, error_for
from fastlog.producer._frames import Chunk
from fastlog.producer._tickets import Ticket, tell
from fastlog.producer.hooks import Delivery
from fastlog.producer.ledger import Ledger, Receipt, call_back, log_failed_callback

if TYPE_CHECKING:
    from fastlog.producer._flight import Event
    from fastlog.producer.brokers import Directory


class Outcomes:
    """Reports the outcomes of one broker's messages to tickets and callbacks. For the thread of its link."""

    def __init__(self, ledger: Ledger, directory: Directory) -> None:
        self.too_large = 0
        """Messages whose compressed set was larger than a message may be."""
        self._ledger = ledger
        self._directory = directory

    def compressed(self, chunk: Chunk, max_payload: int) -> Chunk:
        """The chunk with its sets compressed; those that are too large as one message are reported and left out."""
        made, refused = chunk.compressed(codecs.compress, max_payload)
        for size, frame, tickets in refused:
            messages = frame.messages
            self.too_large += messages
            self._note_failed(frame)
            error = MessageTooLargeError(
                f"{messages} messages are {size} bytes as one compressed set, more than the limit of {max_payload}"
                " (max.message.size, of this producer or of the broker)"
            )
            for _, first, count, ticket in tickets:
                self._tell((ticket, chunk, count, error, chunk.partition, -1, -1, 0, first))
            self._tell((None, chunk, messages, error, chunk.partition, -1, -1, 0, -1), reported=bool(tickets))
        return made

    def tell(self, events: list[Event | Ticket], failed: Iterable[Chunk]) -> None:
        """Report what a flight has finished to tickets and callbacks; ``failed``: the frames among it that failed."""
        tell(events, self._tell, log_failed_callback)
        for frame in failed:
            self._note_failed(frame)

    def _error_of(self, code: int) -> FastlogError:
        return error_for(code)

    def _note_failed(self, frame: Chunk) -> None:
        if self._ledger.on_failed is not None:
            self._ledger.on_failed(frame)

    def _tell(self, event: Event, *, reported: bool = False) -> None:
        ticket, chunk, messages, failure, partition, base, following, position, first = event
        broker = self._directory.broker
        error = self._error_of(failure) if isinstance(failure, int) else failure
        if error is not None:
            error = error.at(topic=chunk.topic, partition=partition, broker=broker.address)
        if position > 0 and base >= 0:
            base += position
        delivery = Delivery(chunk.topic, broker.id, partition, base, following, messages, error, first)
        if ticket is not None:
            if isinstance(ticket, Receipt):
                ticket.settle(delivery)
            else:
                call_back(ticket, delivery)  # type: ignore[arg-type]
            return
        if self._ledger.on_delivery is not None:
            call_back(self._ledger.on_delivery, delivery)
            reported = True
        if error is not None:
            self._ledger.failed(delivery, reported=reported or chunk.has_tickets)
