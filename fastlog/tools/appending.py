"""Appending message sets as they are to one partition, each exactly once, however often the connection breaks."""

from __future__ import annotations

import time

from fastlog.client.addresses import Address
from fastlog.client.connection import BoundedBackoff, Broker, Connection
from fastlog.client.records import RecordsError
from fastlog.client.topics import described_in
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import BrokerError, FastlogError, StorageError, TransportError, error_for
from fastlog.kafka_codes import Code
from fastlog.tools import options
from fastlog.tools.report import EXIT_FAILED, EXIT_UNREACHABLE, CommandError
from fastlog.wire import requests, responses

_APPENDED, _FLUSHED = 1, 2
_FLUSH_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_MOST_ANSWER_BYTES = 64 * 1024
_SEE = "see the broker's settings and its log"
_MAKE_ROOM = "make room on the broker's disk, whose log says more, then go on with --resume"
_TO_DO: dict[int, str] = {
    Code.MESSAGE_TOO_LARGE: "give the topic larger max.message.bytes (fastlog topics settings), then go on with"
    " --resume",
    Code.KAFKA_STORAGE_ERROR: _MAKE_ROOM,
    Code.INVALID_REQUIRED_ACKS: "load into a fastlog broker of this version: that one stores no records at offsets of"
    " their own",
}
"""Where the broker refuses records, by its code."""


class OtherBytesError(FastlogError):
    """The log holds other bytes than what was to be put there, or has grown by somebody else's hand."""


class MessageAppender:
    """The only one that appends to a partition of a fastlog broker. For one thread; close it, or use it as a context.

    What a broken connection leaves unknown is looked up: the log has either grown by those bytes, or not at all.
    """

    def __init__(self, topic: str, partition: int, address: Address, timeout: float, end: int) -> None:
        self.end = end
        """Where the log ends: the offset of what is appended next."""
        self._topic = topic
        self._partition = partition
        self._timeout = timeout
        self._broker: Broker = options.broker_at(str(address), timeout, waits=False)
        self._address = address
        self._connection: Connection | None = None
        self._consumer: SimpleConsumer | None = None
        self._number = 0

    def __enter__(self) -> MessageAppender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. May be called twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def append(self, data: bytes, *, flushed: bool = False) -> None:
        """Put whole messages at the end of the log; returns when that is acknowledged.

        Raises:
            OtherBytesError: somebody else appends, too.
            BrokerError: the broker refuses; nothing of it is stored.
            TransportError: the broker is unavailable for half a minute.
        """
        backoff = BoundedBackoff()
        while True:
            try:
                self._send(data, _FLUSHED if flushed else _APPENDED)
                return
            except TransportError as error:
                self.close()
                if self._is_stored(data, error, backoff):
                    return

    def holds(self, offset: int, data: bytes) -> bool:
        """Whether the log has these bytes at an offset. Raises as ``SimpleConsumer.fetch``."""
        if self._consumer is None:
            address = self._address
            self._consumer = SimpleConsumer(address.host, address.port, timeout=self._timeout, local="off")
        at = 0
        deadline = time.monotonic() + _FLUSH_SECONDS
        while at < len(data):
            found = self._consumer.fetch(
                self._topic, self._partition, offset + at, len(data) - at, wait=_LOOK_SECONDS
            ).before(offset + len(data))
            size = found.valid_bytes
            if size and found.data[:size] != data[at : at + size]:
                return False
            if not size and time.monotonic() > deadline:
                raise TransportError(f"what was appended at offset {offset + at} does not become visible")
            at += size
        return True

    def _send(self, data: bytes, acks: int) -> None:
        if self._connection is None:
            self._connection = self._broker.connect(_MOST_ANSWER_BYTES)
        self._number = (self._number + 1) & 0x7FFFFFFF
        frame = requests.encode_produce_ack(self._number, acks, self._topic, self._partition, data)
        answer = responses.decode_produce_ack(self._connection.request(frame))
        if answer.error:
            raise error_for(answer.error, topic=self._topic, partition=self._partition)
        if (answer.base_offset, answer.next_offset) != (self.end, self.end + len(data)):
            raise OtherBytesError(
                f"{len(data)} bytes are at offset {answer.base_offset} instead of {self.end}: somebody else appends"
            )
        self.end = answer.next_offset

    def _is_stored(self, data: bytes, error: TransportError, backoff: BoundedBackoff) -> bool:
        """After a connection broke: ask where the log ends now."""
        while True:
            backoff.failed(error)
            try:
                metadata = self._broker.metadata_or_none((self._topic,))
            except TransportError as again:
                error = again
                continue
            found = {} if metadata is None else {p.partition: p for p in described_in(metadata, self._topic).partitions}
            end = found[self._partition].log_end if self._partition in found else 0
            if end == self.end:
                return False
            if end == self.end + len(data) and self.holds(self.end, data):
                self.end = end
                return True
            raise OtherBytesError(f"the log ends at {end}, where {self.end} was expected: somebody else appends")


def explained(error: FastlogError, what: str) -> CommandError:
    """Why ``what`` cannot be done, in three lines."""
    why = str(error).replace("\n", "; ")
    if isinstance(error, OtherBytesError):
        return CommandError(what, why, "let nobody else produce to the topic meanwhile; use an empty one", EXIT_FAILED)
    if isinstance(error, RecordsError):
        return CommandError(what, f"the broker refuses: {why}", _TO_DO.get(error.code, _SEE), EXIT_FAILED)
    if isinstance(error, TransportError):
        return CommandError(what, why, "start the broker again, then go on as said above", EXIT_UNREACHABLE)
    if isinstance(error, BrokerError):
        what_to_do = _MAKE_ROOM if isinstance(error, StorageError) else _SEE
        return CommandError(what, f"the broker refuses: {why}", what_to_do, EXIT_FAILED)
    return CommandError(what, why, "see above", EXIT_FAILED)
