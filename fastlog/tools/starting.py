"""Where ``fastlog consume`` begins: which partitions, from which offset, up to where."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastlog.client.addresses import Address
from fastlog.client.connection import Broker
from fastlog.client.topics import described_in, readable_end
from fastlog.consumer.broker_logs import offset_at_time, plain_extent
from fastlog.consumer.simple import SimpleConsumer
from fastlog.consumer.tail import Tail, find_last
from fastlog.counts import counted
from fastlog.errors import error_for, meaning_of
from fastlog.tools import options
from fastlog.tools.lanes import ReadCursor
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError, note, unknown
from fastlog.wire import responses

_PLAIN_LIMIT_BYTES = 100 * 2**20  # the largest request a 0.7.2 broker takes by default, so no message is larger
_FLUSH_SECONDS = 5.0
_FLUSH_STEP_SECONDS = 0.2


class Start:
    """The cursors of one run, and how to open consumers for them.

    A moment as ``offset`` is the first segment that was appended to then or later. ``settings`` are those of
    ``SimpleConsumer``.

    Raises:
        CommandError: the topic or the partition cannot be read.
        TransportError: the broker cannot be reached.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        partition: int | None,
        offset: options.Begin,
        exit_at_end: bool,
        settings: dict[str, Any],
    ) -> None:
        self.broker = broker
        self.topic = topic
        self.skip: dict[int, int] = {}
        """By partition: messages at the beginning that are not wanted."""
        self.addresses = options.answering_first(broker)
        self._settings = dict(settings)
        self._partition = partition
        self._offset = offset
        self._exit_at_end = exit_at_end
        metadata = broker.metadata_or_none((topic,))
        if metadata is None and self._settings["max_message_bytes"] is None:
            self._settings["max_message_bytes"] = _PLAIN_LIMIT_BYTES
        with self.open(self.addresses[0]) as consumer:
            self.cursors = (
                self._without_metadata(consumer) if metadata is None else self._with_metadata(metadata, consumer)
            )

    def open(self, address: Address) -> SimpleConsumer:
        """A consumer of the broker at an address."""
        return SimpleConsumer(address.host, address.port, timeout=self.broker.timeout, **self._settings)

    def described(self) -> dict[int, responses.PartitionMetadata] | None:
        """What the broker says now of the topic's partitions, by number; None when it does not tell."""
        metadata = self.broker.metadata_or_none((self.topic,))
        if metadata is None:
            return None
        return {item.partition: item for item in described_in(metadata, self.topic).partitions}

    def _with_metadata(self, metadata: responses.MetadataAnswer, consumer: SimpleConsumer) -> list[ReadCursor]:
        described = described_in(metadata, self.topic)
        if described.error:
            raise CommandError(
                f"topic {self.topic!r} cannot be read",
                meaning_of(described.error),
                error_for(described.error).what_to_do,
                EXIT_USAGE,
            )
        if not described.partitions:
            self._unknown_topic()
        by_number = {item.partition: item for item in described.partitions}
        absent = responses.PartitionMetadata(0, responses.STATE_OK, 0, 0, 0)
        return [
            self._cursor(number, by_number.get(number, absent), consumer)
            for number in self._numbers(max([described.configured_partitions, *(number + 1 for number in by_number)]))
        ]

    def _numbers(self, count: int) -> Sequence[int]:
        """The partitions that are read, of the ``count`` that there may be."""
        if self._partition is None:
            if isinstance(self._offset, int) and self._offset >= 0 and count > 1:
                raise CommandError(
                    f"--offset {self._offset} needs --partition",
                    f"{self.topic} has {count} partitions, and an offset means something in one of them only",
                    "add --partition",
                    EXIT_USAGE,
                )
            return range(count)
        if self._partition >= count:
            raise CommandError(
                f"{self.topic} has no partition {self._partition}",
                f"its partitions on this broker are {f'0 to {count - 1}' if count > 1 else '0 alone'}",
                "leave --partition out to read all of them",
                EXIT_USAGE,
            )
        return [self._partition]

    def _cursor(self, number: int, known: responses.PartitionMetadata, consumer: SimpleConsumer) -> ReadCursor:
        end = readable_end(known) if self._exit_at_end else None
        begin = self._offset
        if isinstance(begin, int) and begin < 0:
            begin = self._last(consumer, number, -begin, readable_end(known), known.high_watermark)
        elif isinstance(begin, options.At):
            found = offset_at_time(consumer, self.topic, number, begin.time_ms)
            begin = min(max(found, known.log_start), known.high_watermark)
        elif not isinstance(begin, int):
            begin = known.log_start if begin == "beginning" else known.high_watermark
        elif not known.log_start <= begin <= readable_end(known):
            raise CommandError(
                f"{self.topic}, partition {number} has no offset {begin}",
                f"what the broker holds of it goes from {known.log_start} to {readable_end(known)}",
                "--offset beginning is the oldest message, end the newest, -N the last N messages",
                EXIT_FAILED,
            )
        return ReadCursor(number, begin, end)

    def _without_metadata(self, consumer: SimpleConsumer) -> list[ReadCursor]:
        cursors = []
        for number in self._numbers(consumer.partition_count(self.topic)):
            first, last = plain_extent(consumer, self.topic, number)
            known = responses.PartitionMetadata(number, responses.STATE_OK, first, last, last)
            cursors.append(self._cursor(number, known, consumer))
        return cursors

    def _last(self, consumer: SimpleConsumer, number: int, count: int, end: int, visible: int) -> int:
        """Where the last messages before ``end`` begin, which becomes visible as soon as somebody waits for it."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        while visible < end and time.monotonic() < deadline:
            consumer.fetch(self.topic, number, visible, wait=_FLUSH_STEP_SECONDS)
            known = (self.described() or {}).get(number)
            if known is None:
                break
            visible, end = known.high_watermark, min(end, readable_end(known))
        found = find_last(consumer, self.topic, number, count, min(end, visible)) if end else Tail(0, 0)
        self.skip[number] = found.skip
        return found.offset

    def _unknown_topic(self) -> None:
        """Wait for a topic nobody has written to yet, unless the end was asked for."""
        if not self._exit_at_end:
            note(f"topic {self.topic!r} does not exist yet; waiting for it")
            return
        metadata = self.broker.metadata_or_none()
        names = [topic.name for topic in metadata.topics] if metadata else []
        raise unknown(
            f"topic {self.topic!r} does not exist",
            f"the broker holds {counted(len(names), 'topic')}, and none of that name",
            self.topic,
            names,
            "fastlog topics list shows them",
        )
