"""How messages get into their buffers: first all that can be refused is looked at, then the queue's policy holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastlog.errors import ClosedError, QueueFullError
from fastlog.producer._buffer import Buffer
from fastlog.producer._parts import Parts
from fastlog.producer.auditing import Sending, Stamps
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import ProducerData
from fastlog.producer.ledger import Ledger, OnDelivery, Receipt
from fastlog.producer.record_parts import parts_of
from fastlog.producer.router import Router
from fastlog.producer.submitting import Submissions

if TYPE_CHECKING:
    from fastlog.producer._stamp import Stamp


class Placing:
    """Puts messages into the buffers of the partitions that they go to. For any thread."""

    def __init__(
        self, config: ProducerConfig, router: Router, ledger: Ledger, submissions: Submissions, stamps: Stamps | None
    ) -> None:
        self.dropped = 0
        """How many messages were dropped because the queue was full."""
        self._config = config
        self._is_async = config.producer_type == "async"
        self._router = router
        self._ledger = ledger
        self._submissions = submissions
        self._stamps = stamps

    def place(
        self, items: Sequence[tuple[ProducerData, list[bytes | None]]], on_delivery: OnDelivery | None
    ) -> list[Receipt]:
        """Put payloads into the buffers that topic, key and partition choose, after all of them were looked at.

        There are receipts for what has a callback, or what a synchronous producer waits for; not for what was dropped.
        Raises as ``Producer.send``.
        """
        ready: list[tuple[Buffer, list[bytes | None], Stamp | None, Any, Parts | None]] = []
        for item, payloads in items:
            buffer = self._router.choose(item.topic, item.key, item.partition)
            parts = parts_of(item, payloads, buffer)
            stamp = self._stamps.of(item.topic) if self._stamps is not None else None
            size = max(0 if payload is None else len(payload) for payload in payloads)
            if stamp is not None:
                size = stamp.size_with(size, item.key)
            buffer.check(size if parts is None else size + parts.size_bytes)
            ready.append((buffer, payloads, stamp, item.key, parts))
        receipts = []
        for buffer, payloads, stamp, key, parts in ready:
            receipt = None
            if on_delivery is not None or not self._is_async:
                receipt = Receipt(len(payloads), on_delivery)
            if stamp is None:
                taken = self._put(buffer, payloads, receipt, None, parts)
            else:
                with Sending(stamp, [payload or b"" for payload in payloads], key) as sending:
                    taken = self._put(buffer, sending.payloads, receipt, sending, parts)
            if taken and receipt is not None:
                receipts.append(receipt)
        return receipts

    def _put(
        self,
        buffer: Buffer,
        payloads: Sequence[bytes | None],
        receipt: Receipt | None,
        sending: Sending | None,
        parts: Parts | None,
    ) -> bool:
        """Put payloads into their buffer; False when they were dropped."""
        if self._is_async and not self._queue_up(buffer, payloads, receipt, sending, parts):
            return False
        if not self._is_async:
            buffer.extend(payloads, 0, receipt, True, True, parts)
        if sending is not None:
            sending.sent = len(payloads)
        return True

    def _queue_up(
        self,
        buffer: Buffer,
        payloads: Sequence[bytes | None],
        receipt: Receipt | None,
        sending: Sending | None,
        parts: Parts | None,
    ) -> bool:
        """Put payloads into the bounded queue as the policy says; False when they were dropped."""
        config, quota = self._config, self._ledger.quota
        count = len(payloads)
        if config.queue_full != "block":
            if not quota.has_room(count):
                self._router.send_now()
                if config.queue_full == "raise":
                    raise QueueFullError(
                        f"the queue holds {quota.messages} messages, {count} more do not fit (queue.size)"
                    )
                self.dropped += count
                self._ledger.log(logging.WARNING, "dropped", f"queue full, messages dropped, {self.dropped} so far")
                return False
            buffer.extend(payloads, 0, receipt, False, True, parts)
            return True
        timeout = config.enqueue_timeout_ms
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        done = buffer.extend(payloads, 0, receipt, parts=parts)
        while done < count:
            if self._router.is_link_thread() or self._submissions.is_this_thread():
                # A callback that sends cannot wait for itself; what was submitted is bounded already.
                buffer.extend(payloads, done, receipt, False, True, parts)
                break
            if sending is not None:
                sending.sent = done
            self._router.send_now()
            left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._ledger.room.wait_for(lambda: self._ledger.closing or quota.has_room(), left):
                raise QueueFullError(f"no room in the queue within {timeout} ms; {done} of {count} messages are in it")
            if self._ledger.closing:
                raise ClosedError("the producer is closed")
            done = buffer.extend(payloads, done, receipt, parts=parts)
        return True


class HandlerSender:
    """What an event handler sends with; waits while the queue behind it is full."""

    def __init__(self, router: Router, ledger: Ledger) -> None:
        self._router = router
        self._ledger = ledger

    def multi_send(self, sets: Iterable[tuple[str, int, int, Sequence[bytes]]]) -> None:
        """Send payloads by (topic, partition, broker id), in this order; -1 for any partition or broker."""
        quota = self._ledger.quota
        ready = [(self._router.at(topic, broker, number), list(found)) for topic, number, broker, found in sets]
        for buffer, payloads in ready:
            buffer.check(max(map(len, payloads), default=0))
        for buffer, payloads in ready:
            self._ledger.room.wait_for(lambda: self._router.closed or quota.has_room())
            buffer.extend(payloads, 0, None, True, True)
