"""The simple consumer: reads given partitions from given offsets; the broker keeps no state of it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fastlog import arguments
from fastlog._batch import ConsumedMessage, MessageStream, PayloadStream
from fastlog.client.addresses import one_broker
from fastlog.client.connection import Broker
from fastlog.client.topics import check_described
from fastlog.consumer.channel import Channel
from fastlog.consumer.chunks import AnyChunk, RecordChunk
from fastlog.consumer.fetched import MessageSet, NumpyBatch, RecordSet, payload_lists
from fastlog.consumer.message_topics import MessageTopics
from fastlog.consumer.offered import Offers
from fastlog.consumer.reader import MAX_FETCH_BYTES, AnyReader, check_end
from fastlog.consumer.record_topics import RecordTopics
from fastlog.consumer.walking import walk
from fastlog.errors import (
    ArgumentError,
    BrokerError,
    ConfigError,
    FastlogError,
    TransportError,
    WrongPartitionError,
)
from fastlog.message import DEFAULT_LIMITS, AnySpan, DeepLimits
from fastlog.wire import requests, responses

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

EARLIEST = requests.TIME_EARLIEST
LATEST = requests.TIME_LATEST

_T = TypeVar("_T")
_LOCAL_MODES = ("auto", "read", "map", "shared", "off")
_KEPT_WAYS = 64


class SimpleConsumer:
    """Reads partitions of one broker. Safe in several threads; use it as a context, or close it.

    One-shot calls (``fetch``, ``multifetch``, ``get_offsets_before``) share one connection and take turns on it;
    each iteration has a connection of its own and fetches ahead. A broken connection is made again once in a call.
    ``close`` may be called from any thread and from signal handlers; calls under way end with ``ClosedError``. After a
    fork the child gets ``ForkedError``: the object belongs to its parent.

    Topics of Kafka 0.7 are read by its requests, or from the broker's files; topics of record batches by today's
    protocol, whether the broker is one of fastlog or of Apache Kafka. Which a topic is, the broker says.

    Source: Kafka 0.7.2 (SimpleConsumer).
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int | None = None,
        *,
        timeout: float = 30.0,
        fetch_bytes: int = 1024 * 1024,
        receive_buffer_bytes: int | None = None,
        max_message_bytes: int | None = None,
        local: str = "auto",
        limits: DeepLimits = DEFAULT_LIMITS,
    ) -> None:
        """Connects when it is first used, to ``host`` and ``port`` (9092), or to a ``host`` that is ``host:port``.

        ``timeout``: seconds to connect, and to get one whole answer. ``fetch_bytes``: asked for at once. A message that
        is longer is fetched alone, up to ``max_message_bytes`` of payload; by default that is what the broker says (at
        most 100 MiB), or 1,000,000 for a broker that does not say. ``local``: read the segment files instead of the
        socket where the broker runs on this machine and they are readable: ``"read"`` into memory, ``"map"`` as maps,
        ``"auto"`` whichever is faster, ``"off"`` never. ``"shared"`` is ``"read"`` also where the broker is on another
        machine: its log directory then has to be here under the same path. ``limits``: how much may come out of one
        compressed set.

        Raises:
            ConfigError: a value is out of range, or names no broker or several.
        """
        address = one_broker(host, port)
        if local not in _LOCAL_MODES:
            raise ConfigError(f"local: {local!r} is none of {', '.join(_LOCAL_MODES)}")
        arguments.whole("fetch_bytes", fetch_bytes, 1, MAX_FETCH_BYTES)
        if max_message_bytes is not None:
            arguments.whole("max_message_bytes", max_message_bytes, 1, MAX_FETCH_BYTES)
        if receive_buffer_bytes is not None:
            arguments.whole("receive_buffer_bytes", receive_buffer_bytes, 1)
        if not isinstance(limits, DeepLimits):
            raise ArgumentError(f"limits: {limits!r:.60} is not of DeepLimits")
        if not arguments.seconds("timeout", timeout) > 0:
            raise ConfigError(f"timeout: {timeout!r} is not above 0")
        self._broker = Broker([address], timeout)
        self._offers = Offers(self._broker, max_message_bytes)
        self._fetch_bytes = fetch_bytes
        self._receive_buffer_bytes = receive_buffer_bytes
        self._local = local
        self._limits = limits
        self._channel = self._new_channel()
        self._messages = MessageTopics(self._broker, self._channel, self._offers, local)
        self._records = RecordTopics(self._broker, receive_buffer_bytes, self._channel.check)
        self._streams: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._looked_up: set[str] = set()
        # Readers of iterations begun since the one-shot calls, or how they read.
        self._iterated: OrderedDict[tuple[str, int], AnyReader | tuple[str, str]] = OrderedDict()

    def __enter__(self) -> SimpleConsumer:
        self._channel.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._channel.closed else ""
        return f"<SimpleConsumer of {self._broker.addresses[0]}{state}>"

    def close(self) -> None:
        """Close every connection and file; may be called again, from any thread."""
        self._channel.close()
        self._records.close()
        for stream in list(self._streams):
            stream.close()

    # -- one-shot calls ------------------------------------------------------------------------------------------------

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int | None = None, *, wait: float = 0.0
    ) -> MessageSet:
        """Messages from ``offset`` on, about ``max_bytes`` of them (default: the consumer's ``fetch_bytes``).

        At least one whole message comes when there is one, however long it is. When there is none, the broker is given
        up to ``wait`` seconds to get one; then the set is empty.

        Raises:
            OffsetOutOfRangeError, WrongPartitionError, …: what the broker answers.
            MessageTooLargeError: the message at the offset is longer than may be fetched.
            InvalidMessageError: it is damaged, or the offset is not the start of one.
            TransportError: the broker cannot be reached; names each address tried and the reason.
        """
        chunk = self._fetch_chunk(topic, partition, offset, max_bytes, wait)
        if chunk is None:
            kind = RecordSet if self._records.knows(topic) else MessageSet
            return kind(topic, partition, offset, memoryview(b""), limits=self._limits)
        if isinstance(chunk, RecordChunk):
            return RecordSet(topic, partition, chunk.offset, chunk.data, batches=chunk.result, limits=self._limits)
        return MessageSet(topic, partition, chunk.offset, chunk.data, result=chunk.result, limits=self._limits)

    def fetch_numpy(
        self, topic: str, partition: int, offset: int, max_bytes: int | None = None, *, wait: float = 0.0
    ) -> NumpyBatch:
        """The same as arrays over one buffer; wrappers are decompressed into it. Raises as ``fetch``."""
        return self.fetch(topic, partition, offset, max_bytes, wait=wait).to_numpy()

    def fetch_arrow(
        self, topic: str, partition: int, offset: int, max_bytes: int | None = None, *, wait: float = 0.0
    ) -> pyarrow.RecordBatch:
        """The same as an Arrow record batch with partition, offset, next_offset and payload. Raises as ``fetch``.

        Raises:
            MissingDependencyError: pyarrow is not installed.
        """
        return self.fetch(topic, partition, offset, max_bytes, wait=wait).to_arrow()

    def multifetch(self, fetches: Sequence[tuple[str, int, int] | tuple[str, int, int, int]]) -> list[MessageSet]:
        """Several fetches, each (topic, partition, offset[, max bytes]), in one request; one set for each, in order.

        A part that fails raises when it is used, and shows its ``error``. A part whose first message is longer than
        its size is fetched again alone, and one of a topic of record batches is.
        """
        asked = [_one_fetch(item, self._fetch_bytes) for item in arguments.listed("fetches", fetches)]
        if not asked:
            self._channel.check()
            return []
        for topic in {topic for topic, *_ in asked}:
            self._look_up(topic)
        is_of_records = [self._records.knows(topic) for topic, *_ in asked]
        of_messages = [fetch for fetch, is_other in zip(asked, is_of_records, strict=True) if not is_other]
        parts = iter(self._messages.multifetch(of_messages) if of_messages else ())
        found = []
        for (topic, partition, offset, max_bytes), is_other in zip(asked, is_of_records, strict=True):
            if is_other:
                found.append(self._part(topic, partition, offset, max_bytes))
                continue
            code, data = next(parts)
            error = None
            check_end(offset, data)
            if code:
                error = self._messages.refused(code, topic, partition, offset)
                if isinstance(error, WrongPartitionError) and self._records.find(topic):
                    found.append(self._part(topic, partition, offset, max_bytes))
                    continue
            made = MessageSet(topic, partition, offset, data, error=error, limits=self._limits)
            if not error and len(data) >= max_bytes and not made.valid_bytes:
                made = self.fetch(topic, partition, offset, max_bytes)
            found.append(made)
        return found

    def fetch_unchecked(self, topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
        """The bytes that the broker has from an offset on, damaged or not; for tools that have to get past them.

        Raises:
            OffsetOutOfRangeError, WrongPartitionError, …: what the broker answers.
            TransportError: the broker cannot be reached.
        """
        arguments.whole("max_bytes", max_bytes, 1, MAX_FETCH_BYTES)
        _check_place(topic, partition, offset)
        return self._messages.fetch_unchecked(topic, partition, offset, max_bytes)

    def get_offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int = 1) -> list[int]:
        """Offsets of segment starts not newer than ``time_ms`` since 1970, newest first, at most ``max_offsets``.

        ``LATEST`` (-1) also gives the end of what is visible, ``EARLIEST`` (-2) the oldest offset held. A topic of
        record batches knows the times of its records: the one offset is that of the first record of ``time_ms`` or
        later, or the end where none is so late; ``LATEST`` gives the end and the oldest offset.

        Raises:
            WrongPartitionError: the partition does not exist, where the broker says so.
            TransportError: the broker cannot be reached, or is a 0.7 broker and closed the connection, as it does for
                a partition that does not exist.
        """
        arguments.whole("max_offsets", max_offsets, 0, 2**24)
        _check_place(topic, partition)
        arguments.offset("time_ms", time_ms)
        return self._of_either_kind(
            topic,
            lambda: self._messages.offsets(topic, partition, time_ms, max_offsets),
            lambda: self._records.offsets(topic, partition, time_ms, max_offsets),
        )

    def cut_points(
        self, topic: str, partition: int, start: int, end: int, step_bytes: int, max_points: int = 65536
    ) -> list[int]:
        """Message boundaries from ``start`` to ``end``, ascending, at least ``step_bytes`` apart but for the last one.

        The first is the first boundary at or behind ``start``. There may be fewer than asked for, as the broker walks
        64 MiB at a time: whoever wants more asks again from the last one but ``end``. Both ends lie in the visible log.

        Raises:
            UnsupportedFeatureError: the broker does not offer it.
            OffsetOutOfRangeError: the range is not, or no longer, in the visible log.
        """
        arguments.whole("max_points", max_points, 0, 2**24)
        _check_place(topic, partition, start)
        arguments.offset("end", end)
        arguments.whole("step_bytes", step_bytes)
        self._channel.check()
        return self._messages.cut_points(topic, partition, start, end, step_bytes, max_points)

    def metadata(self, topics: Sequence[str] | None = None) -> responses.MetadataAnswer | None:
        """What the broker says of itself and of ``topics`` (None: all), or None when it speaks plain 0.7."""
        self._channel.check()
        wanted = None if topics is None else tuple(arguments.listed("topics", topics))
        for topic in wanted or ():
            arguments.text("topic", topic)
        return self._broker.metadata_or_none(wanted)

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic may have on the broker, numbered from 0; some may not have been written to yet.

        A plain 0.7 broker is asked by fetches, which it refuses for other numbers.

        Raises:
            UnsupportedFeatureError: such a broker refuses none.
            BrokerError: it has no topics of that name.
        """
        _check_place(topic, 0)
        metadata = self.metadata([topic])
        for found in metadata.topics if metadata is not None else ():
            if found.name == topic:
                if found.error and self._records.find(topic):
                    return max(self._records.partitions(topic), default=-1) + 1
                check_described(found, self._broker.addresses[0])
                return max([found.configured_partitions, *(item.partition + 1 for item in found.partitions)])
        try:
            return self._messages.count_partitions(topic)
        except (WrongPartitionError, TransportError) as error:
            if not self._turns_out_as_records(topic, error):
                raise
        return max(self._records.partitions(topic), default=-1) + 1

    def source_of(self, topic: str, partition: int) -> tuple[str, str]:
        """How a partition was read last, ``"socket"``, ``"read"`` or ``"map"``, and why it was not local.

        By a call or by an iteration, of which the last one counts that was begun.
        """
        _check_place(topic, partition)
        found = self._iterated.get((topic, partition)) or self._messages.reader_or_none(topic, partition)
        if found is None:
            return "socket", "not asked for" if self._local == "off" else "nothing was fetched yet"
        return found if isinstance(found, tuple) else _way_of(found)

    # -- iterations ----------------------------------------------------------------------------------------------------

    def messages(
        self,
        topic: str,
        partition: int,
        offset: int = EARLIEST,
        *,
        shallow: bool = False,
        wait: float | None = 0.0,
        fetch_bytes: int | None = None,
    ) -> Iterator[ConsumedMessage]:
        """Each message from ``offset`` on, which may be ``EARLIEST`` or ``LATEST``.

        It ends when nothing came for ``wait`` seconds; 0: at the end of what had been appended when it came there;
        None: never. ``message.next_offset`` is where to go on after a message. ``shallow`` leaves wrappers closed.

        Raises:
            as ``fetch``; what is before a damaged message is yielded first.
        """
        return MessageStream(self._stream(topic, partition, offset, wait, fetch_bytes, shallow))

    def payloads(
        self,
        topic: str,
        partition: int,
        offset: int = EARLIEST,
        *,
        wait: float | None = 0.0,
        fetch_bytes: int | None = None,
    ) -> Iterator[bytes]:
        """The payload of each message from ``offset`` on, wrappers opened; otherwise as ``messages``."""
        return PayloadStream(self._stream(topic, partition, offset, wait, fetch_bytes, False))

    def batches(
        self,
        topic: str,
        partition: int,
        offset: int = EARLIEST,
        *,
        wait: float | None = 0.0,
        fetch_bytes: int | None = None,
    ) -> Iterator[list[bytes]]:
        """The payloads from ``offset`` on in lists, wrappers opened; otherwise as ``messages``."""
        with self._chunks(topic, partition, offset, wait, fetch_bytes) as chunks:
            for chunk in chunks:
                yield from payload_lists(chunk.spans(self._limits))

    def numpy_batches(
        self,
        topic: str,
        partition: int,
        offset: int = EARLIEST,
        *,
        wait: float | None = 0.0,
        fetch_bytes: int | None = None,
    ) -> Iterator[NumpyBatch]:
        """What ``fetch_numpy`` gives, from ``offset`` on; otherwise as ``messages``."""
        with self._chunks(topic, partition, offset, wait, fetch_bytes) as chunks:
            for chunk in chunks:
                at = chunk.offset
                while at < chunk.end:
                    batch = chunk.rest(at).arrays(topic, partition, self._limits)
                    at = batch.next_offset
                    yield batch

    # -- inside --------------------------------------------------------------------------------------------------------

    def _new_channel(self) -> Channel:
        return Channel(self._broker, "SimpleConsumer", self._receive_buffer_bytes)

    def _fetch_chunk(
        self, topic: str, partition: int, offset: int, max_bytes: int | None, wait: float
    ) -> AnyChunk | None:
        _check_place(topic, partition, offset)
        arguments.seconds("wait", wait)
        wanted = self._fetch_bytes if max_bytes is None else max_bytes
        arguments.whole("max_bytes", wanted, 1, MAX_FETCH_BYTES)
        self._channel.check()

        def of_messages() -> AnyChunk | None:
            self._iterated.pop((topic, partition), None)
            return self._messages.fetch(topic, partition, offset, wanted, wait)

        def of_records() -> AnyChunk | None:
            return self._records.fetch(topic, partition, offset, wanted, wait)

        try:
            return self._of_either_kind(topic, of_messages, of_records)
        except (WrongPartitionError, TransportError) as error:
            raise error.at(topic=topic, partition=partition, broker=self._channel.broker) from error.__cause__

    def _part(self, topic: str, partition: int, offset: int, max_bytes: int) -> MessageSet:
        """A part of a multifetch that is fetched alone."""
        try:
            return self.fetch(topic, partition, offset, max_bytes)
        except BrokerError as error:
            return MessageSet(topic, partition, offset, memoryview(b""), error=error, limits=self._limits)

    def _of_either_kind(self, topic: str, of_messages: Callable[[], _T], of_records: Callable[[], _T]) -> _T:
        """What the call for the kind of the topic returns; it may have been made anew as one of the other kind."""
        self._look_up(topic)
        if self._records.knows(topic):
            try:
                return of_records()
            except WrongPartitionError:
                if self._records.find(topic):
                    raise
        try:
            return of_messages()
        except (WrongPartitionError, TransportError) as error:
            if not self._turns_out_as_records(topic, error):
                raise
        return of_records()

    def _look_up(self, topic: str) -> None:
        """Find out of a topic that is met for the first time whether it is one of record batches.

        Asked for one by requests of Kafka 0.7, a broker of fastlog logs a warning about the client. One of Kafka 0.7
        cannot say what a topic is, and one of today's Kafka says so by ending the connection.
        """
        if topic in self._looked_up:
            return
        metadata = self._broker.metadata_or_none((topic,))
        if metadata is None:
            return
        if any(found.name == topic and found.error for found in metadata.topics):
            self._records.find(topic)
        self._looked_up.add(topic)

    def _turns_out_as_records(self, topic: str, error: FastlogError) -> bool:
        """Whether that is why the topic could not be read as one of Kafka 0.7.

        A broker of fastlog says that it has no such partition. One of today that has nothing else ends the connection,
        as one of Kafka 0.7 may for any reason.
        """
        if isinstance(error, WrongPartitionError):
            return self._records.find(topic)
        self._channel.check()
        try:
            return not self._offers.get().own_requests and self._records.find(topic)
        except TransportError:
            return False

    @contextmanager
    def _chunks(
        self, topic: str, partition: int, offset: int, wait: float | None, fetch_bytes: int | None
    ) -> Iterator[Iterator[AnyChunk]]:
        """The chunks of one iteration, on a connection that ends with it."""
        _check_place(topic, partition, offset)
        if wait is not None:
            arguments.seconds("wait", wait)
        wanted = self._fetch_bytes if fetch_bytes is None else fetch_bytes
        arguments.whole("fetch_bytes", wanted, 1, MAX_FETCH_BYTES)
        self._channel.check()
        channels: list[Channel] = []
        readers: list[AnyReader] = []
        try:
            yield self._walked(topic, partition, offset, wait, wanted, channels, readers)
        except FastlogError as error:  # of whoever takes chunks apart, too
            raise (readers[-1].placed(error) if readers else error) from error.__cause__
        finally:
            for channel in channels:
                channel.close()

    def _walked(
        self,
        topic: str,
        partition: int,
        offset: int,
        wait: float | None,
        wanted: int,
        channels: list[Channel],
        readers: list[AnyReader],
    ) -> Iterator[AnyChunk]:
        """The chunks; the connections and readers that they come from are put into the lists."""
        self._look_up(topic)
        if not (self._records.knows(topic) and self._records.find(topic)):  # it may have been made anew
            channel = self._note_channel(self._new_channel(), channels)
            start, reader = offset, None
            try:
                start = self._resolved(topic, partition, offset) if offset < 0 else offset
                if not self._records.knows(topic):
                    reader = self._messages.iterate(channel, topic, partition, start, wanted)
                    readers.append(reader)
                    yield from self._followed(channel, reader, topic, partition, wait)
                    return
            except (WrongPartitionError, TransportError) as error:
                has_begun = reader is not None and reader.offset != start
                if has_begun or not self._turns_out_as_records(topic, error):
                    raise
            channel.close()
        channel = self._note_channel(self._records.channel("SimpleConsumer"), channels)
        of_records = self._records.iterate(channel, topic, partition, offset, wanted)
        readers.append(of_records)
        yield from self._followed(channel, of_records, topic, partition, wait)

    def _note_channel(self, channel: Channel, channels: list[Channel]) -> Channel:
        channels.append(channel)
        self._streams.add(channel)
        self._channel.check()  # the consumer may have been closed meanwhile, and not have closed this one
        return channel

    def _followed(
        self, channel: Channel, reader: AnyReader, topic: str, partition: int, wait: float | None
    ) -> Iterator[AnyChunk]:
        self._note_way(topic, partition, reader)
        try:
            yield from walk(self._broker, channel, reader, topic, partition, wait)
        finally:
            if self._iterated.get((topic, partition)) is reader:
                self._iterated[topic, partition] = _way_of(reader)

    def _note_way(self, topic: str, partition: int, way: AnyReader | tuple[str, str]) -> None:
        self._iterated.pop((topic, partition), None)
        self._iterated[topic, partition] = way
        if len(self._iterated) > _KEPT_WAYS:
            self._iterated.popitem(last=False)

    def _resolved(self, topic: str, partition: int, offset: int) -> int:
        if offset not in (EARLIEST, LATEST):
            raise ConfigError(f"offset: {offset} is neither an offset nor EARLIEST or LATEST")
        found = self.get_offsets_before(topic, partition, offset, 1)
        return found[0] if found else 0

    def _stream(
        self, topic: str, partition: int, offset: int, wait: float | None, fetch_bytes: int | None, shallow: bool
    ) -> Iterator[AnySpan]:
        with self._chunks(topic, partition, offset, wait, fetch_bytes) as chunks:
            for chunk in chunks:
                yield from chunk.shallow(self._limits) if shallow else chunk.spans(self._limits)


def _way_of(reader: AnyReader) -> tuple[str, str]:
    return reader.source, reader.local_refused


def _one_fetch(item: Any, fetch_bytes: int) -> tuple[str, int, int, int]:
    if not isinstance(item, tuple | list) or len(item) not in (3, 4):
        raise ArgumentError(f"a fetch is (topic, partition, offset), and max bytes if need be: {item!r:.60}")
    topic, partition, offset, max_bytes = (*item, fetch_bytes)[:4]
    _check_place(topic, partition, offset)
    arguments.whole("max_bytes", max_bytes, 1, MAX_FETCH_BYTES)
    return topic, partition, offset, max_bytes


def _check_place(topic: str, partition: int, offset: int = 0) -> None:
    """Raise ``ArgumentError`` or ``ConfigError`` for what cannot name a place in a log."""
    arguments.text("topic", topic)
    arguments.whole("partition", partition)
    arguments.offset("offset", offset)
