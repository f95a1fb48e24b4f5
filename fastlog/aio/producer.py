"""``fastlog.aio.Producer``: sends from coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from fastlog import arguments
from fastlog.aio.threads import Threads
from fastlog.counts import counted
from fastlog.errors import ArgumentError, ConfigError, DeliveryError, QueueFullError, TransportError
from fastlog.producer import producer as threaded
from fastlog.producer.fields import ProducerFields
from fastlog.producer.hooks import Delivery, Encoder, PartitionChoice, ProducerData
from fastlog.producer.ledger import logger
from fastlog.producer.partitioners import Partitioner
from fastlog.producer.producer import ProducerStats, Settings
from fastlog.producer.record_parts import kept_headers
from fastlog.producer.router import wait_all
from fastlog.producer.waiting import LocklessCondition

if TYPE_CHECKING:
    from fastlog.producer._parts import Headers

_SLICE_SECONDS = 0.25
_LOOK_AGAIN_SECONDS = 0.5
_SENDS_IN_A_ROW = 256


class Producer:
    """Sends messages from the coroutines of one event loop.

    ``async with Producer("localhost:9092") as producer: await producer.send("lines", b"hello")``; settings are those of
    ``fastlog.Producer``, of type ``async``. ``send`` returns when the messages are queued, and waits while the queue is
    full; ``send_and_wait`` returns when the broker has answered.

    Which thread does what: coroutines put messages into the queue in the loop's thread, where the encoder and the
    partitioner run too; the producer's own threads, one for each broker, send them and tell the loop what became of
    them. What has to ask a broker first (the first send to a topic), ``flush`` and ``close`` wait in threads of at most
    four. For one loop; not across a fork.

    A call that is cancelled has queued all of its messages or none: none while it waits for room or for the first
    answer about a topic. What is queued is delivered all the same, once; if that fails and nobody waits for it any
    more, the next ``flush`` or ``close`` raises it. Messages of one task keep their order; tasks that wait take turns.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        /,
        *,
        encoder: Encoder | None = None,
        partitioner: Partitioner | None = None,
        **fields: Unpack[ProducerFields],
    ) -> None:
        """Connects to nothing yet.

        Raises:
            ConfigError: a setting is unknown, out of range, or names a handler, which could wait in the loop's thread.
        """
        config = threaded._config(settings, fields)
        if config.event_handler_class or config.callback_handler_class:
            raise ConfigError("handlers may wait, and a coroutine must not: use fastlog.Producer with them")
        self.config = config = dataclasses.replace(config, producer_type="async")
        self._uses_zookeeper = config.zk_connect is not None
        # "raise" never waits; what the policy of the settings asks for is done here.
        inner = dataclasses.replace(config, queue_full="raise", enqueue_timeout_ms=None)
        self._producer = threaded.Producer(inner, encoder=encoder, partitioner=partitioner)
        self._router = self._producer._router
        self._ledger = self._producer._ledger
        self._threads = Threads("Producer")
        self._ledger.room = _Room(self._threads)
        self._line = asyncio.Lock()
        self._in_line = 0
        self._asked: dict[tuple[str, str, str], asyncio.Future[None]] = {}
        self._noted: deque[tuple[_Answer, Delivery]] = deque()
        self._is_telling = False
        self._is_send_due = False
        self._sends = 0
        self._dropped = 0
        self._closing: asyncio.Future[None] | None = None

    # -- sending -------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: PartitionChoice = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        keys: Sequence[Any] | None = None,
    ) -> None:
        """Return when a value, or a list of values, is queued; wait while the queue has no room.

        ``key``, ``keys``, ``partition``, ``headers`` and ``timestamp`` as in ``fastlog.Producer.send``.

        Raises:
            MessageTooLargeError, InvalidTopicError, WrongPartitionError, ArgumentError: nothing was queued.
            QueueFullError: no room, and the settings say not to wait (any longer).
            TransportError: no broker can be reached; only at the first send to a topic.
            ClosedError, ForkedError: the producer is closed, or belongs to the parent process.
        """
        self._sends += 1
        if headers is not None:
            headers = kept_headers(headers)
        if (  # as it is nearly always, and no further call is needed
            partition is None
            and not self._in_line
            and type(topic) is str
            and self._sends < _SENDS_IN_A_ROW
            and self._threads.is_bound_to(asyncio.get_running_loop())
            and self._router.knows(topic, key is not None or keys is not None)
        ):
            try:
                self._producer.send(topic, value, key=key, headers=headers, timestamp=timestamp, keys=keys)
                return
            except QueueFullError:
                pass
        data = ProducerData(topic, value, key=key, keys=keys, partition=partition, headers=headers, timestamp=timestamp)
        await self._queue(data, None)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: PartitionChoice = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        keys: Sequence[Any] | None = None,
    ) -> tuple[Delivery, ...]:
        """The same, and return what became of the messages once the broker has answered, as a synchronous ``send``.

        It waits for no batch to fill. Cancelled after the messages are queued, it leaves them on their way.

        Raises:
            as ``send``, and the first error of a delivery.
        """
        count = len(value) if isinstance(value, list | tuple) else 1
        if not count:
            return ()
        answer = _Answer(self, self._threads.loop().create_future(), count)
        kept = kept_headers(headers)
        data = ProducerData(topic, value, key=key, keys=keys, partition=partition, headers=kept, timestamp=timestamp)
        await self._queue(data, answer)
        if not self._is_send_due:  # once for all tasks that send now, so that their messages go together
            self._is_send_due = True
            self._threads.loop().call_soon(self._send_now)
        return await answer.future

    async def partitions(self, topic: str) -> list[tuple[int, int]]:
        """What keys choose from now: (broker id, partition) of every partition of the topic. Raises as ``send``."""
        return await self._threads.run(self._producer.partitions, topic)

    async def _queue(self, data: ProducerData, answer: _Answer | None) -> None:
        self._threads.loop()
        self._sends += 1
        if self._sends > _SENDS_IN_A_ROW:
            self._sends = 0
            await asyncio.sleep(0)  # a task that only sends would leave no turn to the others
        keys = data.keys_of_values
        asked = [data.key] if keys is None else [key for key in keys if key is not None] or [None]
        if isinstance(data.topic, str) and not self._knows(data.topic, asked[0], data.partition):
            await self._ask(data.topic, asked, data.partition)
        if not self._in_line:
            try:
                self._put(data, answer)
                return
            except QueueFullError:
                if self.config.queue_full != "block":
                    self._refuse(data.value, answer)
                    return
        timeout = self.config.enqueue_timeout_ms
        try:
            async with asyncio.timeout(None if timeout is None else timeout / 1000):
                await self._put_with_room(data, answer)
        except TimeoutError:
            raise QueueFullError(f"no room in the queue within {timeout} ms") from None

    def _put(self, data: ProducerData, answer: _Answer | None) -> None:
        if not isinstance(data.topic, str):
            self._producer._check_usable()
            raise ArgumentError(f"send() takes a topic, which is a str, and a value: not {type(data.topic).__name__}")
        self._producer.send(
            data.topic,
            data.value,
            key=data.key,
            partition=data.partition,
            on_delivery=None if answer is None else answer.note,
            headers=data.headers,
            timestamp=data.timestamp,
            keys=data.keys,
        )

    async def _put_with_room(self, data: ProducerData, answer: _Answer | None) -> None:
        self._in_line += 1
        try:
            async with self._line:  # in the order in which they came
                while True:
                    self._threads.begin_to_look()
                    with contextlib.suppress(QueueFullError):  # which has had the batches sent that are not full yet
                        self._put(data, answer)
                        return
                    await self._threads.wait(_LOOK_AGAIN_SECONDS)
        finally:
            self._in_line -= 1

    def _refuse(self, value: Any, answer: _Answer | None) -> None:
        count = len(value) if isinstance(value, list | tuple) else 1
        if self.config.queue_full == "raise" or answer is not None:
            raise QueueFullError(f"the queue holds {self._ledger.quota.messages} messages, {count} more do not fit")
        self._dropped += count

    # -- asking brokers ------------------------------------------------------------------------------------------------

    def _knows(self, topic: str, key: Any, partition: PartitionChoice) -> bool:
        """Whether a buffer is found without asking anybody."""
        if partition is None or partition == -1:
            return self._router.knows(topic, key is not None and partition is None)
        return not self._uses_zookeeper and (topic, "", repr(partition)) in self._asked

    async def _ask(self, topic: str, keys: list[Any], partition: PartitionChoice) -> None:
        """Have a thread find the buffers, once for all tasks that wait for the same ones."""
        self._producer._check_usable()
        has_keys = keys != [None]
        mark = topic, repr(keys) if self._uses_zookeeper and has_keys else str(has_keys), repr(partition)
        if partition is not None and partition != -1:
            mark = topic, "", repr(partition)
        asked = self._asked.get(mark)
        if asked is None:
            asked = self._threads.start(self._choose, topic, keys, partition)
            self._asked[mark] = asked
            asked.add_done_callback(lambda done: self._asked_done(mark, done))
        await asyncio.shield(asked)

    def _choose(self, topic: str, keys: list[Any], partition: PartitionChoice) -> None:
        for key in keys:
            self._router.choose(topic, key, partition)

    def _asked_done(self, mark: tuple[str, str, str], done: asyncio.Future[None]) -> None:
        if mark[1] or self._uses_zookeeper or done.cancelled() or done.exception() is not None:
            self._asked.pop(mark, None)  # what is kept says that this partition of the topic has a buffer

    def _send_now(self) -> None:
        self._is_send_due = False
        self._router.send_now()

    # -- what became of them -------------------------------------------------------------------------------------------

    def _note(self, answer: _Answer, delivery: Delivery) -> None:
        """Pass it on to the loop, once for all that come meanwhile; called in the sending threads."""
        self._noted.append((answer, delivery))
        if not self._is_telling:
            self._is_telling = True
            self._threads.call(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        while self._noted:
            answer, delivery = self._noted.popleft()
            answer.settle(delivery)

    def stats(self) -> ProducerStats:
        """Counts so far; each of them right, though not all of the same moment."""
        found = self._producer.stats()
        return dataclasses.replace(found, dropped=found.dropped + self._dropped)

    # -- waiting and ending --------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Return when everything queued so far is delivered.

        Raises:
            DeliveryError: messages failed since the last call, and nobody waited for them.
            TransportError: not everything was delivered within ``timeout`` seconds.
        """
        self._threads.loop()
        self._producer._check_usable()
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            moves = self._ledger.moves
            events = [link.request_flush() for link in self._router.every_link()]
            # In slices, so that nothing is left behind in a thread when this is cancelled.
            while not all(event.is_set() for event in events):
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    left = self._producer._unfinished()
                    raise TransportError(f"{counted(left, 'message', 'was')} not delivered within {timeout:g} s")
                end = now + _SLICE_SECONDS if deadline is None else min(deadline, now + _SLICE_SECONDS)
                await self._threads.run(wait_all, events, end)
            if self._ledger.moves == moves:  # else another broker has some of it now
                break
        self._tell()
        self._ledger.raise_unreported()

    async def close(self, timeout: float | None = None) -> None:
        """Deliver everything, then end; what is not delivered within the time (``close.timeout.ms``) is given up.

        May be called again: when it was cancelled, to wait for the same end, which goes on without anybody waiting.

        Raises:
            DeliveryError: messages were not delivered, and nobody waited for them.
        """
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        self._threads.loop()
        if self._closing is None:
            self._closing = self._threads.start_alone(lambda: self._producer.close(timeout))
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        self._threads.loop()
        self._producer._check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except DeliveryError as lost:
            logger.error("%s", lost)  # the exception that is on its way says more


class _Answer:
    """What a call of ``send_and_wait`` waits for."""

    __slots__ = ("_deliveries", "_left", "_producer", "future")

    def __init__(self, producer: Producer, future: asyncio.Future[tuple[Delivery, ...]], count: int) -> None:
        self.future = future
        self._producer = producer
        self._left = count
        self._deliveries: list[Delivery] = []

    def note(self, delivery: Delivery) -> None:
        """Note a delivery, in a sending thread, for the loop."""
        self._producer._note(self, delivery)

    def settle(self, delivery: Delivery) -> None:
        """Count a delivery, in the loop's thread, and complete the future with the last one."""
        self._left -= delivery.messages
        self._deliveries.append(delivery)
        if self.future.done():
            self._producer._ledger.failed(delivery, reported=False)  # it was cancelled: the next flush says so
        elif self._left <= 0:
            error = next((one.error for one in self._deliveries if one.error is not None), None)
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(tuple(self._deliveries))


class _Room(LocklessCondition):
    """Wakes the coroutine that waits for room, beside the threads that do."""

    __slots__ = ("_threads",)

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def notify_all(self) -> None:
        """Have every thread and the coroutine look at their predicate again."""
        super().notify_all()
        self._threads.wake()
