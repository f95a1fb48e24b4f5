"""How messages get into their buffers: first all that can be refused is looked at, then the queue's policy holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastlog.errors import ClosedError, QueueFullError
from fastlog.producer._buffer import Buffer
from fastlog.producer._parts import Parts
from fastlog.producer.auditing import Sending, Stamps
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import ProducerData
from fastlog.producer.ledger import Ledger, OnDelivery, Receipt
from fastlog.producer.partitioners import key_bytes
from fastlog.producer.record_parts import kept_headers, parts_of
from fastlog.producer.router import Router
from fastlog.producer.submitting import Submissions

if TYPE_CHECKING:
    from fastlog.producer._stamp import Stamp


class _Share(NamedTuple):
    """Payloads of a call that go to one buffer."""

    buffer: Buffer
    payloads: list[bytes | None]
    stamp: Stamp | None
    key: Any
    """Of all of them."""
    keys: list[Any] | None
    """In place of that, of each."""
    parts: Parts | None
    """Of records."""
    stored_keys: list[bytes | None] | None
    """Of records with a key each."""


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
        ready = [share for item, payloads in items for share in self._shares(item, payloads)]
        if self._is_async and self._config.queue_full != "block" and not self._has_room(ready):
            return []
        receipts = []
        for share in ready:
            receipt = None
            if on_delivery is not None or not self._is_async:
                receipt = Receipt(len(share.payloads), on_delivery)
            if share.stamp is None:
                self._put(share, share.payloads, receipt, None)
            else:
                plain = [payload or b"" for payload in share.payloads]
                with Sending(share.stamp, plain, share.key, share.keys) as sending:
                    self._put(share, sending.payloads, receipt, sending)
            if receipt is not None:
                receipts.append(receipt)
        return receipts

    def _shares(self, item: ProducerData, payloads: list[bytes | None]) -> Iterator[_Share]:
        """The payloads by the buffer that each of them goes to, in their order. Raises what is wrong with them."""
        stamp = self._stamps.of(item.topic) if self._stamps is not None else None
        keys, headers = item.keys_of_values, item.headers
        chosen: Mapping[Buffer, tuple[list[bytes | None], list[Any] | None]]
        if keys is None:
            chosen = {self._router.choose(item.topic, item.key, item.partition): (payloads, None)}
        else:
            chosen, headers = self._by_key(item, payloads, keys), kept_headers(headers)
        for buffer, (found, own) in chosen.items():
            parts = parts_of(item, headers, found, buffer)
            stored = None
            if own is not None and parts is not None:
                is_plain = set(map(type, own)) == {bytes}
                stored = own if is_plain else [None if key is None else key_bytes(key) for key in own]
            sizes = [0 if payload is None else len(payload) for payload in found]
            if stamp is not None and own is not None:
                sizes = [stamp.size_with(size, key) for size, key in zip(sizes, own, strict=True)]
            if stored is not None:
                sizes = [size + len(key or b"") for size, key in zip(sizes, stored, strict=True)]
            size = max(sizes)
            if stamp is not None and own is None:
                size = stamp.size_with(size, item.key)
            buffer.check(size if parts is None else size + parts.size_bytes)
            yield _Share(buffer, found, stamp, item.key, own, parts, stored)

    def _by_key(
        self, item: ProducerData, payloads: list[bytes | None], keys: list[Any]
    ) -> dict[Buffer, tuple[list[bytes | None], list[Any]]]:
        """The payloads with their keys, by the buffers that these choose; those without a key stay together."""
        choose = self._router.choose
        if item.partition is not None:
            some_key = next((key for key in keys if key is not None), None)
            return {choose(item.topic, some_key, item.partition): (payloads, keys)}
        chosen: dict[Buffer, tuple[list[bytes | None], list[Any]]] = {}
        together: Buffer | None = None
        for key, payload in zip(keys, payloads, strict=True):
            if key is None:
                buffer = together = together or choose(item.topic, None, None)
            else:
                buffer = choose(item.topic, key, None)
            found, own = chosen.setdefault(buffer, ([], []))
            found.append(payload)
            own.append(key)
        return chosen

    def _has_room(self, shares: Sequence[_Share]) -> bool:
        """Whether a queue that nobody waits for has room for all of a call; False: they are dropped.

        Raises:
            QueueFullError: it has not, and the policy says so.
        """
        quota, count = self._ledger.quota, sum(len(share.payloads) for share in shares)
        if quota.has_room(count):
            return True
        self._router.send_now()
        if self._config.queue_full == "raise":
            raise QueueFullError(f"the queue holds {quota.messages} messages, {count} more do not fit (queue.size)")
        self.dropped += count
        self._ledger.log(logging.WARNING, "dropped", f"queue full, messages dropped, {self.dropped} so far")
        return False

    def _put(
        self, share: _Share, payloads: Sequence[bytes | None], receipt: Receipt | None, sending: Sending | None
    ) -> None:
        """Put payloads, or what they are in their envelopes, into their buffer."""
        buffer, parts, keys = share.buffer, share.parts, share.stored_keys
        if not self._is_async:
            buffer.extend(payloads, 0, receipt, True, True, parts, keys)
        elif self._config.queue_full != "block":
            buffer.extend(payloads, 0, receipt, False, True, parts, keys)
        else:
            self._wait_and_put(share, payloads, receipt, sending)
        if sending is not None:
            sending.sent = len(payloads)

    def _wait_and_put(
        self, share: _Share, payloads: Sequence[bytes | None], receipt: Receipt | None, sending: Sending | None
    ) -> None:
        """The same for a queue that is waited for."""
        quota, count = self._ledger.quota, len(payloads)
        buffer, parts, keys = share.buffer, share.parts, share.stored_keys
        timeout = self._config.enqueue_timeout_ms
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        done = buffer.extend(payloads, 0, receipt, False, False, parts, keys)
        while done < count:
            if self._router.is_link_thread() or self._submissions.is_this_thread():
                # A callback that sends cannot wait for itself; what was submitted is bounded already.
                buffer.extend(payloads, done, receipt, False, True, parts, keys)
                break
            if sending is not None:
                sending.sent = done
            self._router.send_now()
            left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._ledger.room.wait_for(lambda: self._ledger.closing or quota.has_room(), left):
                raise QueueFullError(f"no room in the queue within {timeout} ms; {done} of {count} messages are in it")
            if self._ledger.closing:
                raise ClosedError("the producer is closed")
            done = buffer.extend(payloads, done, receipt, False, False, parts, keys)


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
