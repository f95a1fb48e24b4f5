"""The queue of a producer with handlers: items in, batches out by a thread that calls the hooks.

A producer without handlers does not need it: its messages go straight into the compiled buffers.
Source: Kafka 0.7.2, ``AsyncProducer`` and ``ProducerSendThread``; the queue time is looked at with every item, not only
when the queue is empty.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from fastlog.errors import ClosedError, FastlogError, QueueFullError
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import CallbackHandler, Delivery, Encoder, EventHandler, QueueItem, Sender, parse_props
from fastlog.producer.ledger import Ledger, logger
from fastlog.producer.waiting import FOREVER, LocklessCondition, OneShotEvent, OwnedThread


class BatchQueue:
    """``put`` and ``flush`` are for any thread; the hooks run as ``fastlog.producer.hooks`` says."""

    def __init__(
        self,
        config: ProducerConfig,
        ledger: Ledger,
        event_handler: EventHandler,
        callback_handler: CallbackHandler | None,
        encoder: Encoder,
        sender: Sender,
    ) -> None:
        self.finished = OneShotEvent()
        self.dropped = 0
        self.failed = 0
        self.handled = 0
        """Accepted items that were given to the event handler, or passed over by the callback handler."""
        self._config = config
        self._ledger = ledger
        self._event_handler = event_handler
        self._callback_handler = callback_handler
        self._encoder = encoder
        self._sender = sender
        self._items: deque[QueueItem | OneShotEvent] = deque()
        self._work = LocklessCondition()
        self._room = LocklessCondition()
        self._taken = 0  # items that left the queue; a batch may have others, which the callback handler added
        self._stopping = False
        event_handler.init(parse_props("event.handler.props", config.event_handler_props))
        if callback_handler is not None:
            callback_handler.init(parse_props("callback.handler.props", config.callback_handler_props))
        self._thread = OwnedThread(ledger, self._run, "fastlog-producer-batch")
        self._thread.start()

    @property
    def accepted(self) -> int:
        """Items taken into the queue. Not a count of its own, which an interrupt could leave behind the queue."""
        return self._taken + sum(isinstance(item, QueueItem) for item in list(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def is_this_thread(self) -> bool:
        """Whether the caller is the batching thread."""
        return threading.get_ident() == self._thread.ident

    def put(self, item: QueueItem) -> None:
        """Queue an item, waiting for room as the settings say.

        Raises:
            QueueFullError: there is no room, and no more waiting is wanted.
            ClosedError: the producer was closed.
        """
        callback = self._callback_handler
        if callback is not None:
            item = callback.before_enqueue(item)
        try:
            added = self._has_room() or self._wait_room()
        except BaseException:
            if callback is not None:
                callback.after_enqueue(item, False)
            raise
        if added:
            self._items.append(item)
            self._work.notify_all()
            added = not self.finished.is_set() or self._keep_or_take_back(item)
        if callback is not None:
            callback.after_enqueue(item, added)
        if not added:
            self._check_open()
            self.dropped += 1
            if self._config.queue_full == "raise" or self._config.enqueue_timeout_ms is not None:
                raise QueueFullError(f"the queue holds {self._config.queue_messages} messages (queue.size)")
            self._ledger.log(logging.WARNING, "dropped", f"queue full, message dropped, {self.dropped} so far")

    def flush(self) -> OneShotEvent:
        """Handle what is queued now without waiting for the batch to fill; the event is set when that is done."""
        event = OneShotEvent()
        self._items.append(event)
        self._work.notify_all()
        if self.finished.is_set():
            self._let_go()
        return event

    def stop(self) -> None:
        """Handle what is queued, call the closing hooks, and end."""
        self._stopping = True
        self._work.notify_all()
        self._room.notify_all()

    def _check_open(self) -> None:
        if self._stopping:
            raise ClosedError("the producer is closed")

    def _keep_or_take_back(self, item: QueueItem) -> bool:
        """False when the end came after the look for room: nobody will handle the item any more."""
        try:
            self._items.remove(item)
        except ValueError:
            return True  # the batching thread found it at its end and has said that it failed
        return False

    def _let_go(self) -> None:
        """At the end: set the events still queued, and count what came too late for the last batch."""
        late: list[QueueItem] = []
        while self._items:
            item = self._items.popleft()
            if isinstance(item, OneShotEvent):
                item.set()
            else:
                late.append(item)
        if late:
            self._taken += len(late)
            self._give_up(late, ClosedError("the producer was closed"))
            self.handled = self._taken

    def _has_room(self) -> bool:
        self._check_open()
        return len(self._items) < self._config.queue_messages

    def _wait_room(self) -> bool:
        if self._config.queue_full != "block":
            return False
        if self.is_this_thread():
            return True  # a hook that sends: waiting would be for itself
        timeout = self._config.enqueue_timeout_ms
        return self._room.wait_for(self._has_room, -1.0 if timeout is None else timeout / 1000)

    def _run(self) -> None:
        batch: list[QueueItem] = []
        queue_seconds = self._config.queue_time_ms / 1000
        due = time.monotonic() + queue_seconds
        try:
            while True:
                # Without a queue time every item is sent when it comes, and nothing has to be looked at in between.
                left = max(0.0, due - time.monotonic()) if queue_seconds or batch else FOREVER
                self._work.wait_for(lambda: bool(self._items) or self._stopping, left)
                item = self._items.popleft() if self._items else None
                if len(self._items) < self._config.queue_messages:
                    self._room.notify_all()
                if isinstance(item, QueueItem):
                    self._taken += 1
                    batch += self._dequeued(item)
                expired = time.monotonic() >= due
                if expired:
                    batch += self._dequeued(None)
                if isinstance(item, OneShotEvent) or expired or len(batch) >= self._config.batch_messages:
                    self._handle(batch)
                    batch = []
                    due = time.monotonic() + queue_seconds
                if isinstance(item, OneShotEvent):
                    item.set()
                if item is None and self._stopping and not self._items:
                    break
            self._close(batch)
        except BaseException:
            logger.exception("the batching thread failed")
        finally:
            self._stopping = True
            self._let_go()
            self.finished.set()
            self._room.notify_all()
            self._let_go()  # of what came between the two lines before

    def _dequeued(self, item: QueueItem | None) -> Sequence[QueueItem]:
        if self._callback_handler is None:
            return [] if item is None else [item]
        try:
            return list(self._callback_handler.after_dequeuing_existing_data(item))
        except BaseException:
            logger.exception("after_dequeuing_existing_data failed")
            return [] if item is None else [item]

    def _handle(self, batch: list[QueueItem]) -> None:
        """Have a batch handled, and with it all that left the queue: the rest was passed over, or is kept."""
        if batch:
            try:
                self._event_handler.handle(batch, self._sender, self._encoder)
            except BaseException as error:
                logger.exception("event handler failed batch=%d", len(batch))
                cause = error if isinstance(error, FastlogError) else FastlogError(f"event handler failed: {error!r}")
                self._give_up(batch, cause)
        self.handled = self._taken

    def _give_up(self, items: Sequence[QueueItem], cause: FastlogError) -> None:
        self.failed += len(items)
        delivery = Delivery(items[0].topic, items[0].broker, items[0].partition, -1, -1, len(items), cause, -1)
        self._ledger.failed(delivery, reported=False)

    def _close(self, batch: list[QueueItem]) -> None:
        """Send the last batch, then call the closing hooks: nothing is sent after a handler was closed."""
        self._handle(batch)
        callback = self._callback_handler
        if callback is not None:
            try:
                self._handle(list(callback.last_batch_before_close()))
            except BaseException:
                logger.exception("last_batch_before_close failed")
        try:
            self._event_handler.close()
        finally:
            if callback is not None:
                callback.close()
