"""The topics of record batches of one broker, for a simple consumer: found out, and read, by today's protocol."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from fastlog.client.connection import Broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.record_topics import KnownTopic
from fastlog.client.records import EARLIEST, LATEST
from fastlog.consumer.channel import Channel
from fastlog.consumer.chunks import RecordChunk
from fastlog.consumer.record_reader import RecordReader, RecordRequests, record_channel
from fastlog.errors import BrokerError, TransportError, WrongPartitionError

_KEPT_READERS = 64
_PROBES = 2


class RecordTopics:
    """Knows which topics of a broker consist of record batches, and fetches from them. Safe in several threads.

    One-shot calls share a connection and take turns on it, which is made when the first one needs it.
    """

    def __init__(self, broker: Broker, receive_buffer_bytes: int | None, check: Callable[[], None]) -> None:
        """``check`` raises where the consumer that this belongs to is closed, or another process's."""
        self._broker = broker
        self._receive_buffer_bytes = receive_buffer_bytes
        self._check = check
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._requests: RecordRequests | None = None
        self._known: dict[str, KnownTopic] = {}
        self._readers: OrderedDict[tuple[str, int], RecordReader] = OrderedDict()
        self._is_closed = False

    def close(self) -> None:
        """Close the connection; may be called again, from any thread and from signal handlers."""
        self._is_closed = True
        channel = self._channel
        if channel is not None:
            channel.close()

    def knows(self, topic: str) -> bool:
        """Whether the topic was one of record batches when it was looked up last; asks nobody."""
        return topic in self._known

    def find(self, topic: str) -> bool:
        """Look the topic up; whether it is one of record batches: the broker has it, and not among those of Kafka 0.7.

        Raises:
            TransportError: the broker cannot be reached.
            BrokerError: it refuses to say so.
        """
        channel, requests = self._asking()
        found = None
        if not self._is_of_messages(topic):
            for _ in range(_PROBES):  # a process that dies just then looks as a broker of Kafka 0.7 does
                try:
                    found = channel.alone(requests.topic_or_none, topic)
                    break
                except NotSpokenError:
                    continue
        if found is None:
            self._known.pop(topic, None)
            return False
        self._known[topic] = found
        return True

    def partitions(self, topic: str) -> Sequence[int]:
        """The numbers of a topic's partitions, of one that ``find`` has found."""
        return self._known[topic].partitions

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, wait: float) -> RecordChunk | None:
        """Batches from an offset on; None when none came within ``wait`` seconds. A topic made anew is read on."""
        return self._once_more(topic, lambda: self._fetch(topic, partition, offset, max_bytes, wait))

    def offsets(self, topic: str, partition: int, time_ms: int, most: int) -> list[int]:
        """Newest first: of ``LATEST`` the end and the start, of ``EARLIEST`` the start, of a time one offset.

        That one is of the first record with the time or a later one; the end, where no record is so late.
        """
        wanted = [LATEST, EARLIEST] if time_ms == LATEST else [time_ms]
        found = [self._offset(topic, partition, when) for when in wanted[:most]]
        if found == [-1]:
            found = [self._offset(topic, partition, LATEST)]
        return list(dict.fromkeys(found))

    def iterate(self, channel: Channel, topic: str, partition: int, offset: int, fetch_bytes: int) -> RecordReader:
        """A reader that asks ahead, on a channel of its own.

        Raises:
            WrongPartitionError: there is no such partition.
        """
        requests = RecordRequests(channel)
        found = channel.alone(requests.topic_or_none, topic)
        if found is None or partition not in found.partitions:
            raise self._missing(topic, partition)
        if offset < 0:
            offset = channel.alone(requests.offset, topic, partition, offset)
        return RecordReader(channel, requests, topic, found.id, partition, offset, fetch_bytes, ahead=True)

    def channel(self, owner: str) -> Channel:
        """A new channel to the broker, not connected yet; ``owner`` names it in messages."""
        return record_channel(self._broker, owner, self._receive_buffer_bytes)

    def _is_of_messages(self, topic: str) -> bool:
        """Whether the broker has partitions of it that requests of Kafka 0.7 read."""
        metadata = self._broker.metadata_or_none((topic,))
        return metadata is not None and any(
            found.name == topic and found.partitions and not found.error for found in metadata.topics
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _asking(self) -> tuple[Channel, RecordRequests]:
        with self._lock:
            if self._channel is None or self._requests is None:
                self._check()
                self._channel = self.channel("SimpleConsumer")
                self._requests = RecordRequests(self._channel)
                if self._is_closed:
                    self._channel.close()
            return self._channel, self._requests

    def _offset(self, topic: str, partition: int, time_ms: int) -> int:
        channel, requests = self._asking()
        return channel.alone(requests.offset, topic, partition, time_ms)

    def _once_more(self, topic: str, call: Callable[[], RecordChunk | None]) -> RecordChunk | None:
        try:
            return call()
        except WrongPartitionError:  # it may have been made anew since
            if not self.find(topic):
                raise
            return call()

    def _fetch(self, topic: str, partition: int, offset: int, max_bytes: int, wait: float) -> RecordChunk | None:
        channel, requests = self._asking()
        known = self._known[topic]
        if partition not in known.partitions:
            raise self._missing(topic, partition)

        def next_chunk() -> RecordChunk | None:
            reader = self._readers.get((topic, partition))
            if reader is None or reader.topic_id != known.id:
                reader = RecordReader(channel, requests, topic, known.id, partition, offset, max_bytes, ahead=False)
                self._readers[topic, partition] = reader
                if len(self._readers) > _KEPT_READERS:
                    self._readers.popitem(last=False)
            self._readers.move_to_end((topic, partition))
            reader.seek(offset, max_bytes)
            return reader.next(wait)

        try:
            return channel.alone(next_chunk)
        except TransportError as error:
            raise error.at(topic=topic, partition=partition, broker=channel.broker) from error.__cause__

    def _missing(self, topic: str, partition: int) -> BrokerError:
        error = WrongPartitionError("the topic or the partition does not exist on this broker")
        return error.at(topic=topic, partition=partition, broker=self._broker.addresses[0])
