"""``fastlog.Producer``: one class before the synchronous and the asynchronous way of sending."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from fastlog import arguments
from fastlog.counts import counted
from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    DeliveryError,
    FastlogError,
    ForkedError,
    QueueFullError,
    StateError,
    TransportError,
)
from fastlog.producer import at_exit, hooks
from fastlog.producer._buffer import Quota
from fastlog.producer._send import Routes, SendPath
from fastlog.producer.auditing import FailedNumbers, Reporter, Stamps
from fastlog.producer.batching import BatchQueue
from fastlog.producer.brokers import check_topic
from fastlog.producer.config import ProducerConfig
from fastlog.producer.fields import ProducerFields
from fastlog.producer.hooks import (
    CallbackHandler,
    DefaultEncoder,
    DefaultEventHandler,
    Delivery,
    Encoder,
    EventHandler,
    PartitionChoice,
    ProducerData,
    QueueItem,
    payload_of,
)
from fastlog.producer.ledger import Ledger, OnDelivery, Receipt, logger
from fastlog.producer.partitioners import Partitioner
from fastlog.producer.placing import HandlerSender, Placing
from fastlog.producer.record_parts import kept_headers
from fastlog.producer.router import Router, wait_all
from fastlog.producer.submitting import Submission, Submissions
from fastlog.producer.waiting import Background

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fastlog.producer._parts import Headers

INTERRUPTED_SECONDS = 0.15
Settings = str | Path | Mapping[str, Any] | ProducerConfig


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counts of messages since the producer was made, and of connections."""

    queued: int
    in_flight: int
    accepted: int
    delivered: int
    failed: int
    dropped: int
    possible_duplicates: int
    connections: int


class Producer(SendPath):
    """Sends messages to the brokers of a list, or to those that ZooKeeper shows.

    ``Producer("localhost:9092")``, ``Producer(zk_connect="localhost:2181")``,
    ``Producer({"broker.list": "0:localhost:9092", "producer.type": "async"})``,
    ``Producer(Path("producer.properties"))``; keywords are the fields of ``ProducerConfig``, beside objects for what a
    properties file can only name. A ``sync`` producer, the default, returns from ``send`` when the broker has answered;
    an ``async`` one when the messages are queued, and says what became of them to ``on_delivery``, ``flush()`` or
    ``close()``. Safe in any number of threads; not across a fork.

    Source: Kafka 0.7.2, ``kafka.producer.Producer``.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        /,
        *,
        encoder: Encoder | None = None,
        partitioner: Partitioner | None = None,
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
        on_delivery: OnDelivery | None = None,
        **fields: Unpack[ProducerFields],
    ) -> None:
        self._closed = True  # until it is whole, so that __del__ of a half-made one does nothing
        config = self.config = _config(settings, fields)
        _check_object("encoder", encoder, "encode")
        _check_object("partitioner", partitioner, "partition")
        _check_object("event_handler", event_handler, "handle")
        _check_object("callback_handler", callback_handler, "after_enqueue")
        _check_object("on_delivery", on_delivery, "__call__")
        self._encoder = (
            encoder if encoder is not None else hooks.make("serializer.class", config.serializer_class, "encode")
        )
        if event_handler is None and config.event_handler_class:
            event_handler = hooks.make("event.handler", config.event_handler_class, "handle")
        if callback_handler is None and config.callback_handler_class:
            callback_handler = hooks.make("callback.handler", config.callback_handler_class, "after_enqueue")
        hooked = event_handler is not None or callback_handler is not None
        if hooked and config.producer_type == "sync":
            raise ConfigError("handlers work on the queue of a producer of type async: set producer_type='async'")
        self._is_async = config.producer_type == "async"
        self._plain = type(self._encoder) is DefaultEncoder
        if hooked and config.has_envelope:
            raise ConfigError("handlers change messages after send(): they contradict envelope and audit.topic")
        failed = FailedNumbers(config.audit_topic) if config.audit_topic is not None else None
        note_failed = failed.note if failed is not None else None
        self._ledger = Ledger(Quota(config.queue_messages, config.queue_bytes), on_delivery, note_failed)
        self._stamps = Stamps(config) if config.has_envelope else None
        if self._stamps is not None:
            self._routes.stamp_with(self._stamps.of)
        fast = self._routes if self._is_async and not hooked and self._plain else None
        if partitioner is None and config.partitioner_class is not None:
            partitioner = hooks.make("partitioner.class", config.partitioner_class, "partition")
        self._router = make_router(config, self._ledger, partitioner, fast)
        self._queue: BatchQueue | None = None
        if hooked:
            if event_handler is None:
                event_handler = DefaultEventHandler(callback_handler)
            elif isinstance(event_handler, DefaultEventHandler) and event_handler.callback_handler is None:
                event_handler.callback_handler = callback_handler
            sender = HandlerSender(self._router, self._ledger)
            self._queue = BatchQueue(config, self._ledger, event_handler, callback_handler, self._encoder, sender)
        self._submissions = Submissions(self._router, self._routes, self._ledger)
        self._placing = Placing(config, self._router, self._ledger, self._submissions, self._stamps)
        self._reporter: Reporter | None = None
        if self._stamps is not None and failed is not None:
            self._reporter = Reporter(config, self._stamps, failed, self._router, self._ledger)
            self._reporter.start()
        self._closed = False
        at_exit.register(self)

    # --- sending ---

    def _send_slowly(
        self,
        topic: Any,
        value: Any,
        key: Any,
        partition: PartitionChoice,
        on_delivery: OnDelivery | None,
        headers: Headers | None,
        timestamp: int | None,
        keys: Sequence[Any] | None,
    ) -> tuple[Delivery, ...]:
        """What the compiled path leaves: everything but bytes to a known topic of a plain asynchronous producer."""
        self._check_usable()
        if on_delivery is not None and not callable(on_delivery):
            raise ArgumentError(f"on_delivery is called with each Delivery, and {type(on_delivery).__name__} cannot be")
        if isinstance(topic, ProducerData):
            topic = [topic]
        if isinstance(topic, str):
            items = [
                ProducerData(
                    topic, value, key=key, keys=keys, partition=partition, headers=headers, timestamp=timestamp
                )
            ]
        else:
            if any(given is not None for given in (value, key, partition, headers, timestamp, keys)):
                kind = type(topic).__name__
                raise ArgumentError(
                    f"send() takes a topic, which is a str, and a value, or ProducerData alone: not {kind}"
                )
            items = list(topic) if isinstance(topic, Iterable) else [topic]
            for item in items:
                if not isinstance(item, ProducerData):
                    kind = type(item).__name__
                    raise ArgumentError(
                        f"send() takes a topic, which is a str, and a value, or ProducerData: not {kind}"
                    )
        if self._queue is not None:
            if on_delivery is not None:
                raise ConfigError("with handlers nobody knows which message went where: give on_delivery to Producer()")
            return self._enqueue_items(self._queue, items)
        receipts = self._hand_out(items, on_delivery)
        if self._is_async:
            return ()
        if self._router.is_link_thread():
            return ()  # sent from a delivery callback, which cannot wait for its own thread
        for receipt in receipts:
            receipt.done.wait()
        deliveries = tuple(delivery for receipt in receipts for delivery in receipt.deliveries)
        for delivery in deliveries:
            if delivery.error is not None:
                raise delivery.error
        return deliveries

    def submit(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: PartitionChoice = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> Future[Delivery]:
        """Send one value and return a future of its ``Delivery``; the future raises what went wrong.

        Its arguments are those of ``send``. It waits for no broker: the first messages of a topic wait, in their order,
        until one has answered. Callbacks of the future run in a sending thread.

        Raises:
            ArgumentError, InvalidTopicError: the value, the key or the topic cannot be sent anywhere.
            ClosedError, ForkedError: the producer is closed, or belongs to the parent process.
        """
        from concurrent.futures import Future

        self._check_usable()
        if self._queue is not None:
            raise ConfigError("with handlers nobody knows which message went where: give on_delivery to Producer()")
        check_topic(topic)
        kept = kept_headers(headers)  # until a broker has answered
        data = ProducerData(topic, key, [value], partition=partition, headers=kept, timestamp=timestamp)
        (payload,) = self._encoded(data)
        item = Submission(Future(), data, payload)
        if self._routes.is_held(data.topic) or not self._router.knows(data.topic, key is not None):
            self._submit_later(item)
        else:
            try:
                self._put_submission(item)
            except (ArgumentError, ClosedError):
                raise
            except FastlogError as error:
                item.fail(error)
        return item.future

    def _submit_later(self, item: Submission) -> None:
        """Leave a message to the thread that asks about its topic; as many may wait as fit the queue."""
        full = len(self._submissions) >= self.config.queue_messages
        if full and self.config.queue_full != "block":
            item.fail(QueueFullError(f"{len(self._submissions)} messages wait for a first answer (queue.size)"))
            return
        if full:
            self._wait_for_submissions(item.data.topic)
        self._submissions.add(item, self._put_submission)

    def _put_submission(self, item: Submission) -> None:
        if not self._placing.place([(item.data, [item.payload])], item.settle):
            raise QueueFullError("the queue is full, the message was dropped")

    def partitions(self, topic: str) -> list[tuple[int, int]]:
        """What keys choose from now: (broker id, partition) of every partition of the topic, in this order.

        Brokers that come and go change it, with ``zk.connect``. Empty where a plain 0.7 broker of a ``broker.list``
        does not tell its partitions. Raises as ``send`` with a key does.
        """
        self._check_usable()
        return self._router.places(topic)

    def _hand_out(self, items: Sequence[ProducerData], on_delivery: OnDelivery | None) -> list[Receipt]:
        """Put the values into their buffers, after everything that can be refused was looked at."""
        found = [(item, self._encoded(item)) for item in items]
        for item, _ in found:
            check_topic(item.topic)
            self._wait_for_submissions(item.topic)
        return self._placing.place([(item, payloads) for item, payloads in found if payloads], on_delivery)

    def _encoded(self, item: ProducerData) -> list[bytes | None]:
        keys, values = item.keys_of_values, item.values
        if self._plain and set(map(type, values)) == {bytes}:
            return values
        return [
            self._payload(value if self._plain else self._encoder.encode(value), item, key)
            for value, key in zip(values, repeat(item.key) if keys is None else keys, strict=False)
        ]

    def _payload(self, value: object, item: ProducerData, key: object) -> bytes | None:
        """The bytes of a payload; None for a null, if one may be meant."""
        is_meant = key is not None or item.headers is not None or item.timestamp is not None
        if value is None and is_meant and self._stamps is None:
            return None
        return payload_of(value)

    def _wait_for_submissions(self, topic: str) -> None:
        """Return when none of a topic's messages waits for something to be known of it: later ones stay behind them."""
        if self._routes.is_held(topic) and not self._submissions.is_this_thread():
            self._submissions.wait(topic, -1.0)
            self._check_usable()

    def _enqueue_items(self, queue: BatchQueue, items: Sequence[ProducerData]) -> tuple[Delivery, ...]:
        ready = []
        for item in items:
            if item.headers is not None or item.timestamp is not None:
                raise ConfigError("handlers get values alone: headers and timestamps are for a producer without them")
            keys = item.keys_of_values
            if keys is None:
                broker, number = self._place_for_handlers(item.topic, item.key, item.partition)
                ready += [QueueItem(value, item.topic, number, broker) for value in item.values]
                continue
            for value, key in zip(item.values, keys, strict=True):
                broker, number = self._place_for_handlers(item.topic, key, item.partition)
                ready.append(QueueItem(value, item.topic, number, broker))
        for queued in ready:
            queue.put(queued)
        return ()

    def _place_for_handlers(self, topic: str, key: object, partition: PartitionChoice) -> tuple[int, int]:
        """Broker and partition that a key or a program chooses; -1 each where neither does."""
        if key is None and (partition is None or partition == -1):
            return -1, -1
        buffer = self._router.choose(topic, key, partition)
        if key is not None and buffer.lane is not None:
            raise ConfigError(
                "handlers get values alone: keys of records are for a producer without them, or give partition="
            )
        return buffer.broker, buffer.partition

    # --- waiting and ending ---

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent so far is delivered.

        Without acknowledgements, delivered means handed to the kernel.

        Raises:
            DeliveryError: messages failed since the last call, and no callback has reported it.
            TransportError: not everything was delivered within ``timeout`` seconds.
        """
        self._check_usable()
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        if self._is_own_thread():
            raise StateError("flush() in a callback would wait for its own thread")
        deadline = None if timeout is None else time.monotonic() + timeout
        done = self._submissions.wait(None, -1.0 if timeout is None else timeout)
        done = done and (self._queue is None or wait_all([self._queue.flush()], deadline))
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not done or not self._router.flush(left):
            raise TransportError(f"{counted(self._unfinished(), 'message', 'was')} not delivered within {timeout:g} s")
        self._ledger.raise_unreported()

    def close(self, timeout: float | None = None) -> None:
        """Deliver everything, then end; what is not delivered within the time (``close.timeout.ms``) is given up.

        May be called again, from any thread, from a signal handler, and from a callback (where it does not wait). In a
        forked child it lets go of what belongs to the parent.

        Raises:
            DeliveryError: messages were not delivered, and no callback has reported it.
        """
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        self._routes.clear()
        if self._is_forked() or getattr(self, "_router", None) is None:
            return
        self._closed = self._ledger.closing = True
        deadline = time.monotonic() + (self.config.close_timeout_ms / 1000 if timeout is None else timeout)
        self._ledger.room.notify_all()
        end = partial(_end, self._submissions, self._queue, self._reporter, self._router, deadline)
        if self._is_own_thread():
            Background(end, "fastlog-producer-close")
            return
        end()
        at_exit.forget(self)
        self._ledger.raise_unreported()
        left = self._unfinished()
        if left > 0:
            raise DeliveryError(
                f"{counted(left, 'message', 'was')} given up: not delivered before the time was over", left
            )

    def __enter__(self) -> Self:
        self._check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(INTERRUPTED_SECONDS if isinstance(error, KeyboardInterrupt) else None)
        except DeliveryError as lost:
            logger.error("%s", lost)  # the exception that is on its way says more

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._is_forked():
            return
        try:
            self.close()
        except FastlogError as error:
            logger.error("producer dropped without close(): %s", error)

    def stats(self) -> ProducerStats:
        """Counts so far; each of them right, though not all of the same moment."""
        links = self._router.every_link()
        queue = self._queue
        return ProducerStats(
            queued=self._ledger.quota.messages + len(self._submissions) + (len(queue) if queue is not None else 0),
            in_flight=sum(link.in_flight for link in links),
            accepted=queue.accepted if queue is not None else self._ledger.quota.accepted + self._submissions.failed,
            delivered=sum(link.delivered for link in links),
            failed=sum(link.failed for link in links)
            + (queue.failed if queue is not None else 0)
            + self._submissions.failed,
            dropped=self._placing.dropped + (queue.dropped if queue is not None else 0),
            possible_duplicates=sum(link.possible_duplicates for link in links),
            connections=sum(link.connections for link in links),
        )

    def _unfinished(self) -> int:
        links = self._router.every_link()
        waiting = self._queue.accepted - self._queue.handled if self._queue is not None else 0
        return waiting + self._ledger.quota.accepted - sum(link.delivered + link.failed for link in links)

    def _is_own_thread(self) -> bool:
        if self._submissions.is_this_thread():
            return True
        return self._router.is_link_thread() or (self._queue is not None and self._queue.is_this_thread())

    def _check_usable(self) -> None:
        if self._is_forked():
            raise ForkedError("this producer belongs to the parent process; make a new one after fork")
        if self._closed:
            raise ClosedError("the producer is closed")

    def _leave_to_parent(self) -> None:
        self._routes.clear()
        for link in self._router.every_link():
            link.leave_to_parent()


def _check_object(name: str, found: object, method: str) -> None:
    if found is not None and (isinstance(found, type) or not callable(getattr(found, method, None))):
        raise ArgumentError(f"{name}: an object with a method {method}() is needed, not {found!r:.60}")


def _config(settings: Settings | None, fields: Mapping[str, Any]) -> ProducerConfig:
    if isinstance(settings, ProducerConfig):
        if fields:
            raise ConfigError("give a ProducerConfig or single settings, not both")
        return settings
    if isinstance(settings, str):
        if "broker_list" in fields:
            raise ConfigError("the brokers are named twice")
        return ProducerConfig.from_fields({**fields, "broker_list": settings})
    if isinstance(settings, Mapping):
        return ProducerConfig.from_properties(settings, **fields)
    if isinstance(settings, os.PathLike):
        return ProducerConfig.from_file(settings, **fields)
    if settings is not None:
        raise ArgumentError(
            f"settings are 'host:port', a mapping, a Path or ProducerConfig, not {type(settings).__name__}"
        )
    return ProducerConfig.from_fields(fields)


def make_router(config: ProducerConfig, ledger: Ledger, partitioner: Partitioner | None, fast: Routes | None) -> Router:
    """The router for brokers of a list, or for those that ZooKeeper shows."""
    if config.zk_connect is None:
        return Router(config, ledger, partitioner, fast)
    from fastlog.producer.zookeeper_router import ZooKeeperRouter  # with it comes what talks to ZooKeeper

    return ZooKeeperRouter(config, ledger, partitioner, fast)


def _end(
    submissions: Submissions, queue: BatchQueue | None, reporter: Reporter | None, router: Router, deadline: float
) -> None:
    """Have the threads of a producer deliver everything up to ``deadline`` (``time.monotonic``), and end."""
    if not submissions.wait(None, max(0.0, deadline - time.monotonic())):
        submissions.give_up(ClosedError("the producer was closed before a broker of the topic had answered"))
    if queue is not None:
        queue.stop()
        wait_all([queue.finished], deadline)
    if reporter is not None:
        reporter.finish(deadline)
    router.stop()
    router.wait_stopped(deadline)
