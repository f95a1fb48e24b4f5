"""What a producer tells the audit topic: how many messages of each topic and window it has delivered.

A report says only what is settled: the reporter notes which numbers were given, lets everything up to them be
delivered or fail, and then counts. So a producer that is killed leaves messages that nobody reported, never a report of
messages that were not sent. An event stays with the reporter until it is delivered; a repeated one has the same number.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from fastlog import _envelope, _records, batch_codecs, message, record_batches
from fastlog.audit.events import Range, SentEvent
from fastlog.envelope import server_id_of
from fastlog.errors import FastlogError, TransportError
from fastlog.producer._frames import Chunk
from fastlog.producer._stamp import Stamp
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import Delivery
from fastlog.producer.ledger import Ledger, Receipt, logger
from fastlog.producer.router import Router, wait_all
from fastlog.producer.waiting import OneShotEvent, OwnedThread

_LEAST_SECONDS = 1.0  # that a report waits for messages on their way before it is put off
_FAILED_RANGES = 5000  # in one event, which has to fit a message


class Stamps:
    """The stamps of one producer, by topic."""

    def __init__(self, config: ProducerConfig) -> None:
        self.server = config.server if config.server is not None else socket.gethostname()
        self.server_id = config.server_id if config.server_id is not None else server_id_of(self.server)
        self.window_ms = config.audit_window_ms
        self._audit_topic = config.audit_topic
        self.by_topic: dict[str, Stamp] = {}

    def of(self, topic: str) -> Stamp | None:
        """The stamp for messages of a topic; None for the audit topic, whose messages have no envelope."""
        if topic == self._audit_topic:
            return None
        stamp = self.by_topic.get(topic)
        if stamp is None:
            made = Stamp(
                topic,
                self.server_id,
                random.SystemRandom().getrandbits(63),
                self.window_ms,
                self._audit_topic is not None,
            )
            stamp = self.by_topic.setdefault(topic, made)
        return stamp


class Sending:
    """Payloads in their envelopes while Python code brings them on their way; what it does not is declared void.

    ``payloads`` are the wrapped ones; ``sent`` is how many of them are in a buffer. Whoever is interrupted before the
    ``with`` drops the object, which is as good as its end.
    """

    held: int | None = None
    """The first of the numbers; None before they are given, and once they are settled."""

    def __init__(self, stamp: Stamp, payloads: list[bytes], key: object, keys: list[object] | None = None) -> None:
        self._stamp = stamp
        self.sent = 0
        self.payloads: list[bytes] = []
        stamp.begin(self, payloads, key, keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stamp.end(self)

    def __del__(self) -> None:
        if self.held is not None:  # else there may be nothing of it yet but this
            self._stamp.end(self)


class Reporter:
    """The thread that counts what was delivered and sends the counts. ``finish`` ends it."""

    def __init__(
        self, config: ProducerConfig, stamps: Stamps, failed: FailedNumbers, router: Router, ledger: Ledger
    ) -> None:
        assert config.audit_topic is not None
        self._topic = config.audit_topic
        self._interval = config.audit_interval_ms / 1000
        self._stamps = stamps
        self._router = router
        self._runs: list[tuple[Stamp, int, int, int]] = []
        self._failed = failed.by_topic
        self._next_seq: dict[int, int] = {}
        self._unsent: list[SentEvent] = []
        self._stop = OneShotEvent()
        self._ended = OneShotEvent()
        self._deadline = 0.0
        self._thread = OwnedThread(ledger, self._work, "fastlog-producer-audit")

    def start(self) -> None:
        """Start the thread that reports."""
        self._thread.start()

    def finish(self, deadline: float) -> None:
        """Report what is settled by the deadline (monotonic), and end; may be called again, also in a signal handler.

        The thread does it: who calls may be interrupted.
        """
        if not self._stop.is_set():
            self._deadline = deadline
        self._stop.set()  # again, as the call before may have been interrupted in it
        self._ended.wait(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        try:
            while not self._stop.wait(self._interval):
                deadline = time.monotonic() + max(self._interval, _LEAST_SECONDS)
                self._try_report(deadline, "counts are kept for the next report")
            self._try_report(self._deadline, "not everything was reported")
        finally:
            self._ended.set()

    def _try_report(self, deadline: float, otherwise: str) -> None:
        try:
            self._report(deadline)
        except FastlogError as error:
            logger.warning("%s topic=%s: %s", otherwise, self._topic, error)
        except Exception:
            logger.exception("reporting failed topic=%s", self._topic)

    def _report(self, deadline: float) -> None:
        for stamp in list(self._stamps.by_topic.values()):
            self._runs += [(stamp, *run) for run in stamp.take_runs()]
        if self._runs:
            if not self._router.flush(max(0.0, deadline - time.monotonic())):
                raise TransportError("messages are still on their way")
            runs, self._runs = self._runs, []
            for run in runs:
                self._unsent += self._count(*run)
        if self._unsent:
            self._publish(deadline)

    def _count(self, stamp: Stamp, window: int, first: int, end: int) -> list[SentEvent]:
        """The events about one run, all of whose messages are settled."""
        known = self._failed.setdefault(stamp.topic, set())
        known.update((start, behind - 1) for start, behind in stamp.take_voids())
        inside = sorted(item for item in known if item[0] < end and item[1] >= first)
        failed: list[Range] = []
        for low, high in inside:
            low, high = max(low, first), min(high, end - 1)
            if failed and low <= failed[-1][1] + 1:
                failed[-1] = (failed[-1][0], max(high, failed[-1][1]))
            else:
                failed.append((low, high))
        known.difference_update(item for item in inside if item[1] < end)
        events = []
        while first < end:
            part, failed = failed[:_FAILED_RANGES], failed[_FAILED_RANGES:]
            last = failed[0][0] - 1 if failed else end - 1
            events.append(self._event(stamp, window, first, last, part))
            first = last + 1
        return events

    def _event(self, stamp: Stamp, window: int, first: int, last: int, failed: list[Range]) -> SentEvent:
        seq = self._next_seq.get(stamp.producer_id, 0)
        self._next_seq[stamp.producer_id] = seq + 1
        count = last - first + 1 - sum(high - low + 1 for low, high in failed)
        stamps = self._stamps
        return SentEvent(
            topic=stamp.topic,
            server=stamps.server,
            server_id=stamps.server_id,
            window_start=window,
            window_ms=stamps.window_ms,
            n=count,
            producer_id=stamp.producer_id,
            seq=seq,
            first=first,
            last=last,
            failed=failed,
            time_ms=0,  # until it is sent
        )

    def _publish(self, deadline: float) -> None:
        """Send the events, and forget those that are delivered."""
        sent = self._unsent
        delivered: set[int] = set()
        buffer = self._router.choose(self._topic, None, None)
        now = time.time_ns() // 1_000_000
        payloads = [event._replace(time_ms=now + self._shift_ms(event)).encode() for event in sent]
        buffer.check(max(map(len, payloads)))
        events: list[OneShotEvent] = []
        for index, payload in enumerate(payloads):
            receipt = Receipt(1, _noting(delivered, index))
            events.append(receipt.done)
            buffer.extend([payload], 0, receipt, index == len(sent) - 1, True)
        done = wait_all(events, deadline)
        self._unsent = [event for index, event in enumerate(sent) if index not in delivered]
        if not done or self._unsent:
            raise TransportError(f"{len(self._unsent)} monitoring events were not delivered")

    def _shift_ms(self, event: SentEvent) -> int:
        return self._stamps.by_topic[event.topic].shift_ms


def _noting(delivered: set[int], index: int) -> Callable[[Delivery], object]:
    def note(delivery: Delivery) -> None:
        if delivery.error is None:
            delivered.add(index)

    return note


class FailedNumbers:
    """The numbers of messages that failed, by topic, read from the frames that did."""

    def __init__(self, audit_topic: str) -> None:
        self._audit_topic = audit_topic
        self.by_topic: dict[str, set[Range]] = {}

    def note(self, frame: Chunk) -> None:
        """Note the numbers of a frame that failed. Called in the sending threads."""
        if frame.topic == self._audit_topic:
            return
        try:
            numbers = {_number_of(payload) for data in frame.message_sets for payload in _payloads(frame, data)}
        except FastlogError:
            logger.exception("messages failed and count as sent all the same topic=%s", frame.topic)
            return
        self.by_topic.setdefault(frame.topic, set()).update((number, number) for number in numbers)


def _payloads(frame: Chunk, data: memoryview) -> Iterable[bytes]:
    if frame.lane is None:
        return (one.message.payload for one in message.deep(data))
    # Its checksum is written when the batch is, and it may never have been.
    header = record_batches.BatchHeader.parse(data)
    limit = message.DEFAULT_LIMITS.max_inflated_bytes
    packed = batch_codecs.decompress(header.codec, data[record_batches.HEADER_BYTES :], limit)
    return (entry[1] or b"" for entry in _records.entries(packed, header.record_count))


def _number_of(payload: bytes) -> int:
    identity = _envelope.decode(payload)[4]
    assert identity is not None
    return int.from_bytes(identity[9:], "big")
