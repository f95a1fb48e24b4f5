"""The topics of Kafka 0.7 of one broker, for a simple consumer: read by its requests, or from the broker's files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from fastlog.client.connection import Broker
from fastlog.client.counting import count_partitions
from fastlog.consumer.channel import Channel
from fastlog.consumer.chunks import Chunk
from fastlog.consumer.offered import FetchOffer, Offers
from fastlog.consumer.reader import Reader, open_reader
from fastlog.errors import (
    BrokerError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnsupportedFeatureError,
    WrongPartitionError,
    error_for,
)
from fastlog.wire import requests, responses

_T = TypeVar("_T")
_KEPT_READERS = 64
_OFFSETS_HEAD_BYTES = 64

Fetched = tuple[str, int, int, int]
"""One part of a multifetch: topic, partition, offset, and the most bytes to return."""


class MessageTopics:
    """Fetches from topics of messages over one channel, on which calls take turns. Safe in several threads.

    Raises (every call):
        WrongPartitionError, OffsetOutOfRangeError, …: what the broker answers.
        TransportError: the broker cannot be reached; or it is one of Kafka 0.7, which ends the connection for what it
            does not have.
        ProtocolError: what came is no answer.
    """

    def __init__(self, broker: Broker, channel: Channel, offers: Offers, local: str) -> None:
        """``local``: as for ``SimpleConsumer``."""
        self._broker = broker
        self._channel = channel
        self._offers = offers
        self._local = local
        self._readers: OrderedDict[tuple[str, int], Reader] = OrderedDict()  # by the channel's lock

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, wait: float) -> Chunk | None:
        """Messages from an offset on; None when none came within ``wait`` seconds."""
        return self._channel.alone(self._next_chunk, self._offers.get(), topic, partition, offset, max_bytes, wait)

    def iterate(self, channel: Channel, topic: str, partition: int, offset: int, fetch_bytes: int) -> Reader:
        """A reader that asks ahead, on a channel of its own."""
        return open_reader(
            channel, self._offers.get(), topic, partition, offset, fetch_bytes, ahead=True, local=self._local
        )

    def reader_or_none(self, topic: str, partition: int) -> Reader | None:
        """What ``fetch`` has read the partition by, if it did so lately."""
        return self._readers.get((topic, partition))

    def multifetch(self, asked: Sequence[Fetched]) -> list[tuple[int, memoryview]]:
        """An error code and the bytes for each of several fetches, by one request."""
        total = min(sum(max_bytes + _OFFSETS_HEAD_BYTES for *_, max_bytes in asked), 2**31 - 1)
        parts = self._asked(requests.encode_multifetch(asked), total, responses.split_multifetch)
        if len(parts) != len(asked):
            raise self._nonsense(f"a multifetch of {len(asked)} parts is answered with {len(parts)}")
        return list(parts)

    def fetch_unchecked(self, topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
        """The bytes that the broker has from an offset on, damaged or not."""
        frame = requests.encode_fetch(topic, partition, offset, max_bytes)
        code, found = self._asked(frame, max_bytes + _OFFSETS_HEAD_BYTES, _copied_fetch)
        if code:
            raise self.refused(code, topic, partition, offset)
        return found

    def offsets(self, topic: str, partition: int, time_ms: int, most: int) -> list[int]:
        """Offsets of segment starts not newer than that, newest first."""
        frame = requests.encode_offsets(topic, partition, time_ms, most)
        answer = self._asked(frame, 8 * most + _OFFSETS_HEAD_BYTES, responses.decode_offsets)
        if answer.error:
            raise self.refused(answer.error, topic, partition)
        if len(answer.offsets) > most or min(answer.offsets, default=0) < 0:
            raise self._nonsense(f"{most} offsets were asked for, the answer is {list(answer.offsets)}")
        return list(answer.offsets)

    def cut_points(
        self, topic: str, partition: int, start: int, end: int, step_bytes: int, max_points: int
    ) -> list[int]:
        """As ``SimpleConsumer.cut_points``. Raises ``UnsupportedFeatureError`` where the broker does not offer it."""
        if not self._offers.get().cut_points:
            raise UnsupportedFeatureError(f"{self._broker.addresses[0]} does not tell message boundaries")
        frame = requests.encode_cut_points(0, topic, partition, start, end, step_bytes, max_points)
        answer = self._asked(frame, 8 * max_points + _OFFSETS_HEAD_BYTES, responses.decode_cut_points)
        if answer.error:
            raise self.refused(answer.error, topic, partition, detail=f"cut points from {start} to {end}")
        return list(answer.offsets)

    def count_partitions(self, topic: str) -> int:
        """How many a plain 0.7 broker may have, found out by fetches. Raises ``UnsupportedFeatureError``, too."""
        return count_partitions(lambda number: self._may_exist(topic, number))

    def refused(
        self, code: int, topic: str, partition: int, offset: int | None = None, detail: str = ""
    ) -> BrokerError:
        """The exception for an error code of Kafka 0.7, with the place that was asked about."""
        broker = self._broker.addresses[0]
        return error_for(code, detail, topic=topic, partition=partition, offset=offset, broker=broker)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _next_chunk(
        self, offer: FetchOffer, topic: str, partition: int, offset: int, wanted: int, wait: float
    ) -> Chunk | None:
        reader = self._readers.get((topic, partition))
        if reader is None or reader.offer != offer:
            if reader is not None:
                reader.close()
            reader = open_reader(self._channel, offer, topic, partition, offset, wanted, ahead=False, local=self._local)
            self._readers[topic, partition] = reader
            if len(self._readers) > _KEPT_READERS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end((topic, partition))
        reader.seek(offset, wanted)
        return reader.next(wait)

    def _may_exist(self, topic: str, partition: int) -> bool:
        try:
            self.fetch_unchecked(topic, partition, 0, 1)
        except WrongPartitionError:
            return False
        except OffsetOutOfRangeError:
            pass  # retention was there
        return True

    def _asked(self, frame: bytes, max_bytes: int, decode: Callable[[memoryview], _T]) -> _T:
        """The decoded answer to a request; a malformed one ends the connection and raises ``ProtocolError``."""

        def ask() -> _T:
            body = self._channel.request(frame, max_bytes)
            try:
                return decode(body)
            except ProtocolError:
                self._channel.drop()
                raise

        return self._channel.alone(ask)

    def _nonsense(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self._broker.addresses[0]}: {what}")


def _copied_fetch(body: memoryview) -> tuple[int, bytes]:
    code, data = responses.split_fetch(body)
    return code, bytes(data)
