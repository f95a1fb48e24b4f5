"""Counting what a stage of the pipeline has seen: a consumer, a mirror, a load job."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastlog import message
from fastlog._record_batch import RecordSpan
from fastlog.audit._tally import LATENCY_BOUNDS_MS, Tally
from fastlog.audit.events import SeenDuplicates, SeenEvent, SeenPage
from fastlog.consumer.fetched import MessageSet, NumpyBatch
from fastlog.errors import ConfigError, FastlogError, TransportError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fastlog.audit._tally import Page
    from fastlog.producer.hooks import Delivery
    from fastlog.producer.producer import Producer

__all__ = ["LATENCY_BOUNDS_MS", "Auditor", "Latencies"]

_PAGES = 40  # in one event: at most 4 KiB each, so that it fits a message of any broker
_DUPLICATES = 5000


class ForwardedRun(Protocol):
    """What a mirror calls its observers with: ``fastlog.mirror.Forwarded``."""

    @property
    def source(self) -> Any: ...
    @property
    def data(self) -> memoryview: ...
    @property
    def error(self) -> FastlogError | None: ...


class Latencies(NamedTuple):
    """Ages of messages, each counted once."""

    counts: tuple[int, ...]
    """How many were as old as each bound of ``fastlog.audit.LATENCY_BOUNDS_MS`` at most, and older than the one before;
    at last those older than all."""
    total_seconds: float
    """The sum of all ages, in seconds."""


class Auditor:
    """Counts the messages that one stage has seen, and publishes that to the audit topic. Safe in any thread.

    What was counted is known to nobody before ``publish()`` has returned: call it before offsets are committed, and a
    process that is killed and begins again at its last commit leaves no gap. Messages it counts again are the same
    messages: they change nothing.
    """

    def __init__(
        self,
        stage: str,
        producer: Producer | None = None,
        topic: str = "audit",
        *,
        window_ms: int = 60_000,
        server: str | None = None,
    ) -> None:
        """``producer`` sends to the audit topic ``topic``; without one there is nothing to publish.

        ``window_ms`` is that of the producers; ``server`` says where this is, by default the machine's name.

        Raises:
            ConfigError: no name, or a producer that would put the events into envelopes.
        """
        if not stage:
            raise ConfigError("a stage has a name")
        if window_ms < 1:
            raise ConfigError(f"window_ms: {window_ms} is less than 1")
        if producer is not None and producer.config.has_envelope and producer.config.audit_topic != topic:
            raise ConfigError("monitoring events are not put into envelopes: give a producer without them")
        self.stage = stage
        self.topic = topic
        self._producer = producer
        self._window_ms = window_ms
        self._server = server if server is not None else socket.gethostname()
        self._counter_id = random.SystemRandom().getrandbits(63)
        self._tallies: dict[str, Tally] = {}
        self._published: dict[tuple[str, int, int], int] = {}
        self._next: dict[object, int] = {}
        self._lock = threading.Lock()
        self._publishing = threading.Lock()

    def count(self, batch: NumpyBatch | MessageSet, *, source: object = None) -> None:
        """Count the messages of a batch, as ``numpy_batches()`` and ``fetch()`` give them.

        A batch of a partition that begins before the end of the last one was read before: its messages are no
        duplicates. ``source`` tells brokers apart where partitions of the same number are read from several.
        """
        place = getattr(batch, "source", (source, batch.topic, batch.partition))
        if isinstance(batch, MessageSet):
            begin = batch.offset
        else:
            begin = int(batch.offsets[0]) if len(batch) else batch.next_offset
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            known = self._next.get(place, -1)
            tally = self._tally(batch.topic)
            columns = batch
            if isinstance(batch, MessageSet):
                for span in batch.spans():
                    if isinstance(span, RecordSpan):
                        columns = batch.to_numpy()
                        break
                    tally.count_entries(span.entries, span.count, begin < known, now_ms)
            if not isinstance(columns, MessageSet):
                lengths = columns.lengths if columns.key_lengths is None else columns.lengths.clip(0)  # of nulls
                tally.count_columns(columns.buffer, columns.starts, lengths, begin < known, now_ms)
            self._next[place] = max(known, batch.next_offset)

    def count_run(self, topic: str, data: Buffer) -> None:
        """Count the messages of a message set, in which compressed sets may be closed; each time it is called.

        The audit topic itself is passed over.

        Raises:
            InvalidMessageError: something is damaged; what is before it was counted.
        """
        if topic == self.topic:
            return
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            tally = self._tally(topic)
            for span in message.spans(data):
                tally.count_entries(span.entries, span.count, now_ms=now_ms)

    def __call__(self, run: ForwardedRun) -> None:
        """Count what a mirror has forwarded: ``Mirror(config, observer=auditor)``."""
        if run.error is None:
            self.count_run(run.source.topic, run.data)

    def keep(self) -> None:
        """Publish, before the mirror's offsets move."""
        self.publish()

    def tallies(self) -> dict[str, Tally]:
        """What was counted, by topic; to be looked at when nobody counts."""
        return dict(self._tallies)

    def latencies(self) -> dict[str, Latencies]:
        """By topic, how old messages were when they were counted here: from the producer's clock to this machine's.

        ``fastlog.metrics.watch(auditor, name)`` shows them as a histogram.
        """
        with self._lock:
            found = {topic: tally.latencies() for topic, tally in self._tallies.items()}
        return {topic: Latencies(counts, age_ms / 1000) for topic, (counts, age_ms) in found.items()}

    def publish(self) -> None:
        """Return when all that was counted is known to the audit topic.

        Raises:
            ConfigError: there is no producer, or one whose handlers may change or leave out what is sent.
            FastlogError: it could not be sent; the next call sends it again.
        """
        if self._producer is None:
            raise ConfigError("this auditor was made without a producer")
        with self._publishing:
            with self._lock:
                news = list(self._news())
            if not news:
                return
            self._deliver(self._producer, [event.encode() for event, _ in news])
            with self._lock:
                for event, pages in news:
                    self._tallies[event.topic].note_published(pages)
                    for item in event.duplicates:
                        self._published[event.topic, item.producer_id, item.window_start] = item.messages

    def _deliver(self, producer: Producer, payloads: list[bytes]) -> None:
        """Return when the audit topic has them, whatever else the producer sends. Raises what has failed."""
        found: list[Delivery] = []
        producer.send(self.topic, payloads, on_delivery=found.append)
        producer.flush()
        for delivery in found:
            if delivery.error is not None:
                raise delivery.error
        if sum(delivery.messages for delivery in found) < len(payloads):
            raise TransportError(f"monitoring events of {self.stage} were not sent: the queue is full (queue.size)")

    def _tally(self, topic: str) -> Tally:
        tally = self._tallies.get(topic)
        if tally is None:
            tally = self._tallies[topic] = Tally(self._window_ms)
        return tally

    def _news(self) -> Iterator[tuple[SeenEvent, list[Page]]]:
        for topic, tally in self._tallies.items():
            pages = tally.changed_pages()
            found = [
                SeenDuplicates(producer, window, count)
                for producer, _, window, _, count in tally.cells()
                if producer is not None and count != self._published.get((topic, producer, window), 0)
            ]
            while pages or found:
                yield self._event(topic, pages[:_PAGES], found[:_DUPLICATES]), pages[:_PAGES]
                pages, found = pages[_PAGES:], found[_DUPLICATES:]

    def _event(self, topic: str, pages: list[Page], duplicates: list[SeenDuplicates]) -> SeenEvent:
        return SeenEvent(
            stage=self.stage,
            topic=topic,
            server=self._server,
            counter_id=self._counter_id,
            window_ms=self._window_ms,
            pages=[SeenPage(producer, server, number, bits) for producer, server, number, _, bits in pages],
            duplicates=duplicates,
            time_ms=time.time_ns() // 1_000_000,
        )
