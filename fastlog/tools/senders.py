"""Two ways to send batches: acknowledged, with several requests in flight, and 0.7's produce that nobody answers."""

from __future__ import annotations

import select
from collections import deque
from typing import NamedTuple, Protocol

from fastlog.errors import BrokerError, ProtocolError, TransportError, error_for
from fastlog.tools import signals
from fastlog.tools.connection import Broker, Connection, Patience
from fastlog.wire import requests, responses

_IN_FLIGHT_REQUESTS = 32
_IN_FLIGHT_BYTES = 8 * 2**20


class Batch(NamedTuple):
    """One message set on its way."""

    frame: bytes
    correlation_id: int
    messages: int
    size: int


class Sender(Protocol):
    """What the produce command needs. For one thread."""

    delivered: int
    delivered_bytes: int
    failed: int
    possible_duplicates: int
    failure: BrokerError | None

    def send(self, message_set: bytes, count: int, size: int) -> None:
        """Send a set of ``count`` messages with ``size`` bytes of payload; may wait for earlier answers."""

    def wait_input(self, fd: int) -> None:
        """Return when ``fd`` has something to read; take answers that come before."""

    def finish(self) -> None:
        """Return when nothing is on its way any more."""

    def close(self) -> None:
        """Close the connection without waiting."""

    @property
    def unknown(self) -> int:
        """Messages that were sent, or were about to be, and of which nothing is known."""


class AckedSender:
    """PRODUCE_ACK with several requests in flight.

    After a broken connection it sends again, in order, what was not acknowledged: some of it may have been appended
    already, so those messages are counted as possible duplicates. An error answer is final: the broker stored nothing
    of that request.
    """

    def __init__(self, broker: Broker, topic: str, partition: int, acks: int) -> None:
        self.delivered = 0
        self.delivered_bytes = 0
        self.failed = 0
        self.possible_duplicates = 0
        self.failure: BrokerError | None = None
        self._broker = broker
        self._topic = topic
        self._partition = partition
        self._acks = acks
        self._in_flight: deque[Batch] = deque()
        self._in_flight_bytes = 0
        self._next_id = 0
        self._may_send_again = True
        self._patience = Patience()
        self._connection: Connection = broker.connect()

    @property
    def unknown(self) -> int:
        """Messages without an answer."""
        return sum(batch.messages for batch in self._in_flight)

    def send(self, message_set: bytes, count: int, size: int) -> None:
        """Send a set; waits while too much is in flight. Raises ``TransportError`` when the broker stays away."""
        while len(self._in_flight) >= _IN_FLIGHT_REQUESTS or self._in_flight_bytes >= _IN_FLIGHT_BYTES:
            self._take_answer()
        frame = requests.encode_produce_ack(self._next_id, self._acks, self._topic, self._partition, message_set)
        batch = Batch(frame, self._next_id, count, size)
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        self._in_flight.append(batch)
        self._in_flight_bytes += len(frame)
        try:
            self._connection.send(frame)
        except TransportError as error:
            self._send_again(error, but_last=1)

    def wait_input(self, fd: int) -> None:
        """Return when ``fd`` can be read; meanwhile take answers."""
        while True:
            watched = [fd, self._connection.fileno()] if self._in_flight else [fd]
            with signals.waiting():
                ready, _, _ = select.select(watched, [], [])
            if fd in ready:
                return
            self._take_answer()

    def finish(self) -> None:
        """Take every answer that is still missing; after an interruption, those of the requests that went out."""
        self._may_send_again = not self._connection.torn
        if self._connection.torn:
            self._connection.half_close()
        while self._in_flight:
            self._take_answer()
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _take_answer(self) -> None:
        try:
            answer = responses.decode_produce_ack(self._connection.receive())
        except TransportError as error:
            if not self._may_send_again:
                raise
            self._send_again(error)
            return
        self._patience.worked()
        batch = self._in_flight[0]
        if answer.correlation_id != batch.correlation_id:
            raise ProtocolError(f"the answer to request {batch.correlation_id} says it is for {answer.correlation_id}")
        self._in_flight.popleft()
        self._in_flight_bytes -= len(batch.frame)
        if answer.error:
            self.failed += batch.messages
            self.failure = self.failure or error_for(answer.error)
        else:
            self.delivered += batch.messages
            self.delivered_bytes += batch.size

    def _send_again(self, error: TransportError, but_last: int = 0) -> None:
        """Connect again and send everything in flight; ``but_last`` requests at the end never went out whole."""
        while True:
            self._connection.close()
            self._patience.failed(error)
            batches = list(self._in_flight)
            try:
                self._connection = self._broker.connect()
                self.possible_duplicates += sum(batch.messages for batch in batches[: len(batches) - but_last])
                for batch in batches:
                    self._connection.send(batch.frame)
                return
            except TransportError as again:
                error = again


class PlainSender:
    """0.7's PRODUCE: no answers, so nothing is known but that the broker took the bytes and closed in order."""

    def __init__(self, broker: Broker, topic: str, partition: int) -> None:
        self.delivered = 0
        self.delivered_bytes = 0
        self.failed = 0
        self.possible_duplicates = 0
        self.failure: BrokerError | None = None
        self._topic = topic
        self._partition = partition
        self._sent = 0
        self._sent_bytes = 0
        self._last = (0, 0)
        self._connection: Connection = broker.connect()

    @property
    def unknown(self) -> int:
        """Messages sent and not known to have been handled."""
        return self._sent

    def send(self, message_set: bytes, count: int, size: int) -> None:
        """Hand a set to the kernel. Raises ``TransportError`` when the broker has closed the connection."""
        if select.select([self._connection.fileno()], [], [], 0)[0]:
            raise self._closed()
        self._last = (count, size)
        self._sent += count
        self._sent_bytes += size
        self._connection.send(requests.encode_produce(self._topic, self._partition, message_set))

    def wait_input(self, fd: int) -> None:
        """Return when ``fd`` can be read; the broker closing the connection meanwhile raises."""
        with signals.waiting():
            ready, _, _ = select.select([fd, self._connection.fileno()], [], [])
        if fd not in ready:
            raise self._closed()

    def finish(self) -> None:
        """Half-close and wait for the broker to close: it handles everything it received before that."""
        cut_off, cut_off_bytes = self._last if self._connection.torn else (0, 0)
        self._connection.finish()
        self.delivered, self._sent = self._sent - cut_off, cut_off
        self.delivered_bytes = self._sent_bytes - cut_off_bytes

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _closed(self) -> TransportError:
        return TransportError(
            f"{self._connection.peer} closed the connection while messages were sent\n"
            "a 0.7 produce that fails is answered by closing: a wrong partition, an illegal topic, or a restart\n"
            "check --topic and --partition; what was stored can be seen with fastlog consume"
        )
