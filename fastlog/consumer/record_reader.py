"""Reading one partition of record batches, fetch by fetch, one of them ahead: as a client of today's protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastlog._record_batch import BATCHES_OK, BATCHES_TAIL, RecordSpans, scan_batches
from fastlog.client import record_fetching, record_requests
from fastlog.client.connection import Broker, Connection, pause
from fastlog.client.kafka_connection import MOST_ANSWER_BYTES, KafkaConnection
from fastlog.client.kafka_fields import ID_BYTES, Answer, Request, answer
from fastlog.client.record_fetching import Batches
from fastlog.client.record_topics import KnownTopic, known_topics, parse_known_topics
from fastlog.client.records import meaning_of
from fastlog.consumer.channel import Channel
from fastlog.consumer.chunks import RecordChunk
from fastlog.errors import (
    BrokerError,
    ClosedError,
    FastlogError,
    ForkedError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnknownServerError,
    WrongPartitionError,
)
from fastlog.kafka_codes import Code
from fastlog.message import DEFAULT_LIMITS
from fastlog.record_batches import LENGTH_AT, LENGTH_COUNTS_FROM
from fastlog.retry import Backoff

_T = TypeVar("_T")

GONE = frozenset(
    (
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    )
)
"""The topic or the partition is not there, or not that topic any more, or one of Kafka 0.7."""
PASSING = frozenset(
    (
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
    )
)
"""The broker is starting, or was started anew: it is asked again."""
_PASSING_SECONDS = 5.0
_HOLD_SECONDS = 5.0
_FLUSH_SECONDS = 0.05
_LEAST_PAUSE = 0.01
_MOST_PAUSE = 0.25
_MOST_GROWTH = 4
_MOST_GROWN_BYTES = 16 * 2**20
_LENGTH_END = LENGTH_AT + 4
_CLIENT = "fastlog"
_PURPOSE = "topics of record batches are read"


def record_channel(broker: Broker, owner: str, receive_buffer_bytes: int | None = None) -> Channel:
    """A channel whose connections speak today's protocol. Raises ``NotSpokenError`` where the broker does not."""

    def greet(connection: Connection) -> None:
        KafkaConnection(connection, _CLIENT).begin(_PURPOSE, time.monotonic() + broker.timeout)

    return Channel(broker, owner, receive_buffer_bytes, greet)


class RecordRequests:
    """Numbers requests on a channel. Used inside ``channel.alone()``."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._number = 0

    def topic_or_none(self, name: str) -> KnownTopic | None:
        """The topic with that name, if today's clients see it.

        Raises:
            NotSpokenError: the broker does not speak today's protocol.
            BrokerError: the broker refuses to say so.
            TransportError, ProtocolError: as for ``Channel.request``.
        """
        self.channel.connect()
        found = self.ask(known_topics([name]), parse_known_topics).get(name)
        if found is None or found.code in GONE or found.id == bytes(ID_BYTES):
            return None
        if found.code and found.code not in PASSING:
            raise refusal(found.code).at(topic=name, broker=self.channel.broker)
        return found

    def offset(self, topic: str, partition: int, time_ms: int) -> int:
        """The first offset whose record has that time or a later one, -1 for none; or ``EARLIEST``, ``LATEST``.

        Raises as ``topic_or_none``.
        """
        place = topic, partition
        found = self.ask(record_requests.list_offsets([place], time_ms), record_requests.parse_offsets)
        if place not in found:
            raise ProtocolError(f"{self.channel.broker} says nothing of {topic}, partition {partition}")
        code, offset = found[place]
        if code:
            raise refusal(code).at(topic=topic, partition=partition, broker=self.channel.broker)
        return offset

    def ask(self, request: Request, parse: Callable[[Answer], _T]) -> _T:
        """The answer to a request without tagged fields."""
        frame, number = self.framed(request)
        body = self.channel.request(frame, MOST_ANSWER_BYTES)
        return self._parsed(lambda: parse(answer(body, number)))

    def framed(self, request: Request) -> tuple[bytes, int]:
        """The bytes of a request, and the number by which its answer is known."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        return request.frame(self._number, _CLIENT), self._number

    def _parsed(self, parse: Callable[[], _T]) -> _T:
        try:
            return parse()
        except ProtocolError as error:
            self.channel.drop()
            raise ProtocolError(f"{self.channel.broker}: {error}") from error


def refusal(code: int) -> BrokerError:
    """The error for a code of today's protocol."""
    text = meaning_of(code)
    if code == Code.OFFSET_OUT_OF_RANGE:
        return OffsetOutOfRangeError(text)
    return WrongPartitionError(text) if code in GONE else UnknownServerError(text)


class RecordReader:
    """Where reading of one partition stands: what ``Reader`` is for Kafka 0.7. Used inside ``channel.alone()``."""

    source = "socket"
    local = None
    local_refused = "record batches are read through the socket"

    def __init__(
        self,
        channel: Channel,
        requests: RecordRequests,
        topic: str,
        topic_id: bytes,
        partition: int,
        offset: int,
        fetch_bytes: int,
        *,
        ahead: bool,
    ) -> None:
        self.offset = offset
        self.high_watermark: int | None = None
        """Up to where the log could be read when the broker last said so."""
        self.topic_id = topic_id
        self._channel = channel
        self._requests = requests
        self._topic = topic
        self._partition = partition
        self._fetch_bytes = self._fitting_bytes = fetch_bytes
        self._is_fitted = False
        self.growth = 1
        """The factor by which more is requested than ``fetch_bytes``: batches may be larger than that."""
        self._ahead = ahead
        self._number = 0
        self._is_asked = False
        self._has_flushed_end = False

    def close(self) -> None:
        """Does nothing: records are read through the channel alone, without files."""

    def rest(self) -> None:
        """Free most of the buffers that are kept for later answers; for when little comes."""
        self._channel.rest()

    def go_back(self, offset: int) -> None:
        """Read on from there; what was asked for is forgotten."""
        self._channel.drop()
        self._is_asked = False
        self.offset = offset

    def seek(self, offset: int, fetch_bytes: int) -> None:
        """Go on at another place; not for a reader that fetches ahead."""
        assert not self._ahead
        self._is_asked = False  # what an interrupted call has asked for is for another place
        self.offset = offset
        self._fetch_bytes = self._fitting_bytes = fetch_bytes

    def log_end(self, broker: Broker) -> int:
        """The end of the partition with all that was appended before this call, which the broker flushes for it."""
        if not self._has_flushed_end:
            self._has_flushed_end = True
            return max(self._channel.alone(self._flushed_end), self.offset)
        return self.high_watermark or self.offset

    def next(self, wait: float) -> RecordChunk | None:
        """The next whole batches, waited for up to ``wait`` seconds when there are none; None when none came.

        Raises:
            BrokerError: the broker refuses, or the batch at this offset is damaged.
            TransportError, ProtocolError: as for ``Channel.request``.
        """
        began = time.monotonic()
        backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE)
        while True:
            left = max(0.0, began + wait - time.monotonic())
            found = self._fetched(left)
            if found.code not in PASSING:
                chunk = self._taken(found)
                if chunk is not None:
                    return chunk
                if time.monotonic() >= began + wait:
                    return None
            elif time.monotonic() - began > max(wait, _PASSING_SECONDS):
                raise self._refused(found)
            pause(backoff.next())  # it has answered before its time
            self._channel.check()

    @property
    def is_near(self) -> bool:
        """Whether the next chunk was requested already."""
        return self._channel.has_pending and self._is_asked

    def soon(self, seconds: float) -> RecordChunk | None:
        """The next batches if they were requested and come within ``seconds``; else None.

        After None ``next`` has to be called.

        Raises as ``next``, which meets the same again.
        """
        if not self.is_near:
            return None
        body = self._channel.collect_soon(seconds)
        if body is None:
            return None
        self._is_asked = False
        found = self._parsed(body)
        return None if found.code in PASSING else self._taken(found)

    def placed(self, error: FastlogError) -> FastlogError:
        """An error of reading, with what it is about; itself where it knows that, or is about the whole consumer."""
        if error.topic is not None or isinstance(error, ClosedError | ForkedError):
            return error
        if isinstance(error, BrokerError):  # in what was fetched last
            return error.at(**self._where(error.offset))
        return error.at(topic=self._topic, partition=self._partition, broker=self._channel.broker)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _flushed_end(self) -> int:
        """The high watermark a moment later: a fetch that waits has the broker flush what was appended."""
        if self._channel.has_pending:
            self.go_back(self.offset)
        self._post(_FLUSH_SECONDS)
        self._is_asked = False
        found = self._parsed(self._channel.collect())
        return self.offset if found.code else found.high_watermark

    def _fetched(self, wait: float) -> Batches:
        """What there is from the offset on; the answer that was posted ahead, when there is one."""
        if not self.is_near:
            self._post(wait)
        self._is_asked = False
        return self._parsed(self._channel.collect())

    def _post(self, wait: float) -> None:
        wait = min(wait, _HOLD_SECONDS)
        request = record_fetching.fetch(
            self.topic_id, self._partition, self.offset,
            max_wait_ms=int(wait * 1000), min_bytes=1, max_bytes=self._fitting_bytes,
        )  # fmt: skip
        frame, self._number = self._requests.framed(request)
        self._is_asked = True
        self._channel.post(frame, record_fetching.most_answer_bytes(self._fetch_bytes, MOST_ANSWER_BYTES), wait)

    def _parsed(self, body: memoryview) -> Batches:
        try:
            return record_fetching.parse_batches(body, self._number, self.topic_id, self._partition)
        except ProtocolError as error:
            self._channel.drop()
            raise ProtocolError(f"{self._channel.broker}: {error}") from error

    def _taken(self, found: Batches) -> RecordChunk | None:
        """The batches of an answer; None when it has none. Goes on behind them, and asks ahead for what follows."""
        if found.code:
            raise self._refused(found)
        self.high_watermark = found.high_watermark
        if not len(found.data):
            return None
        result = scan_batches(found.data, self.offset)
        if not result.valid_bytes:
            try:
                next(RecordSpans(found.data, self.offset, DEFAULT_LIMITS))
            except BrokerError as error:
                raise error.at(**self._where(self.offset)) from error.__cause__
        if result.next_offset <= self.offset:
            raise ProtocolError(f"{self._channel.broker}: batches came that end before offset {self.offset}")
        chunk = RecordChunk(self.offset, found.data, result)
        self.offset = result.next_offset
        self._has_flushed_end = False
        if self._ahead:
            self._adapt(found.data[result.valid_bytes :], result.valid_bytes)
        if self._ahead and self.offset < found.high_watermark and result.status in (BATCHES_OK, BATCHES_TAIL):
            self._post(0.0)
        return chunk

    def _adapt(self, cut: memoryview, whole_bytes: int) -> None:
        """Ask next for as many batches of the size of one that was cut off as the fetch takes: what is cut comes again.

        Where much is cut off all the same, since batches differ, more is asked for at once.
        """
        if len(cut) < _LENGTH_END:
            return
        may_grow = self.growth < _MOST_GROWTH and 2 * self._fetch_bytes <= _MOST_GROWN_BYTES
        if self._is_fitted and whole_bytes < 3 * len(cut) and may_grow:
            self.growth *= 2
            self._fetch_bytes *= 2
        batch_bytes = LENGTH_COUNTS_FROM + int.from_bytes(cut[LENGTH_AT:_LENGTH_END], "big")
        self._fitting_bytes = self._fetch_bytes // batch_bytes * batch_bytes or self._fetch_bytes
        self._is_fitted = True

    def _refused(self, found: Batches) -> BrokerError:
        return refusal(found.code).at(**self._where(self.offset))

    def _where(self, offset: int | None) -> dict[str, Any]:
        return {"topic": self._topic, "partition": self._partition, "offset": offset, "broker": self._channel.broker}
