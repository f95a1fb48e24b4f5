"""``fastlog.aio.Consumer``: reads topics in a group from coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from fastlog import arguments
from fastlog.aio.threads import Threads
from fastlog.consumer import connector
from fastlog.consumer._delivery import Batch, GroupMessage
from fastlog.consumer.connector import Decoder, Settings
from fastlog.consumer.feed import Feed, Jump, PartitionState
from fastlog.consumer.fields import ConsumerFields
from fastlog.consumer.offsets import OffsetStore
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.consumer.stream import Done, NoMessage, Stream
from fastlog.errors import ConfigError, ConsumerTimeout, StateError

_TAKEN_IN_A_ROW = 256
_LOOK_AGAIN_SECONDS = 1.0
_LEASE_LOOK_SECONDS = 0.05
_SLICE_SECONDS = 0.25
_T = TypeVar("_T")


class Consumer:
    """A member of a group that gives its messages to the coroutines of one event loop.

    ``async with Consumer("localhost:2181", group_id="g", topics="logs") as consumer:`` and then ``async for message in
    consumer`` or ``async for batch in consumer.batches()``; settings are those of ``fastlog.Consumer``, and messages,
    batches, offsets and errors are the same. With ``topics`` it reads these; with ``whitelist`` or ``blacklist`` all
    that the regular expression means, also those to come.

    Which thread does what: threads of the consumer, one for each partition, fetch up to ``queued_chunks`` pieces and
    then wait, so a slow program needs no more memory. Coroutines take messages out of these in the loop's thread, where
    the decoder runs too, and wait there for nothing but the next piece. Joining, committing, seeking and
    leaving are done in threads of at most four. For one loop; not across a fork.

    What was given counts as consumed when the next is asked for, or when ``done`` says so; with ``acknowledge``, only
    then, as it should be where several tasks work on messages at once. A wait that is cancelled takes nothing.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        /,
        *,
        topics: str | Sequence[str] | None = None,
        whitelist: str | None = None,
        blacklist: str | None = None,
        decoder: Decoder | None = None,
        acknowledge: bool = False,
        store: OffsetStore | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> None:
        """Connects to nothing yet; ``async with`` or ``start()`` joins the group.

        Raises:
            ConfigError: a setting is unknown, out of range, or missing; not exactly one of ``topics``, ``whitelist``
                and ``blacklist`` is given.
        """
        if (topics is not None) + (whitelist is not None) + (blacklist is not None) != 1:
            raise ConfigError("give one of topics, whitelist and blacklist")
        self._threads = Threads("Consumer")
        self._consumer = _Inner(settings, store=store, threads=self._threads, **fields)
        self.config = self._consumer.config
        self._topics = [topics] if isinstance(topics, str) else None if topics is None else list(topics)
        self._whitelist = whitelist
        self._blacklist = blacklist
        self._decoder = decoder
        self._acknowledge = acknowledge
        self._streams: tuple[Stream, ...] = ()
        self._turn = 0
        self._taken = 0
        self._starting: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Join the group. May be called again: when it was cancelled, to wait for the same.

        Raises:
            CoordinationError: ZooKeeper cannot be reached, or the consumer id is in use.
            ClosedError: it is closed.
        """
        self._threads.loop()
        if self._starting is None:
            self._starting = self._threads.start(self._join)
        await asyncio.shield(self._starting)

    def _join(self) -> None:
        if self._topics is not None:
            found = self._consumer.create_message_streams(
                dict.fromkeys(self._topics, 1), decoder=self._decoder, acknowledge=self._acknowledge
            )
            self._streams = tuple(stream for streams in found.values() for stream in streams)
        else:
            self._streams = tuple(
                self._consumer.create_message_streams_by_filter(
                    whitelist=self._whitelist,
                    blacklist=self._blacklist,
                    decoder=self._decoder,
                    acknowledge=self._acknowledge,
                )
            )

    # -- messages ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupMessage:
        found: GroupMessage | None
        streams = self._streams
        self._taken += 1
        if (  # as it is nearly always, and no further call is needed
            len(streams) == 1
            and self._taken < _TAKEN_IN_A_ROW
            and self._threads.is_bound_to(asyncio.get_running_loop())
        ):
            try:
                found = streams[0].message(0.0)
            except ConsumerTimeout:
                found = await self._next(_message, self._timeout())
        else:
            found = await self._next(_message, self._timeout())
        if found is None:
            raise StopAsyncIteration
        return found

    def batches(self, max_messages: int = 1000, max_bytes: int = 16 * 2**20) -> Batches[Batch]:
        """The payloads in lists, each of one partition and with its offsets; no decoder is applied.

        The iterator can be used on after ``ConsumerTimeout`` and after a wait that was cancelled.
        """
        count = max(1, arguments.whole("max_messages", max_messages))
        size = max(1, arguments.whole("max_bytes", max_bytes))
        return Batches(self, lambda stream: stream.batch(count, size, 0.0))

    async def poll(self, timeout: float = 0.0) -> GroupMessage | NoMessage:
        """The next message if one comes within ``timeout`` seconds, else why there is none."""
        try:
            found = await self._next(_message, max(0.0, arguments.seconds("timeout", timeout)))
        except ConsumerTimeout as error:
            return error.reason if isinstance(error.reason, NoMessage) else NoMessage.NO_DATA
        return NoMessage.ENDED if found is None else found

    def done(self, given: Done) -> bool:
        """Count as consumed what this message or batch ends with, and all of its partition before it.

        False when its partition was given up or repositioned since: others may get it again.
        """
        return given.place.done(given.next_offset)

    def _timeout(self) -> float | None:
        milliseconds = self.config.consumer_timeout_ms
        return None if milliseconds is None else milliseconds / 1000

    async def _next(self, take: Callable[[Stream], _T | None], timeout: float | None) -> _T | None:
        """What ``take`` gives of one of the streams; None at the end. Nothing is awaited after it is taken."""
        self._threads.loop()
        self._taken += 1
        if self._taken > _TAKEN_IN_A_ROW:
            self._taken = 0
            await asyncio.sleep(0)  # a task that finds something each time would leave no turn to the others
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            streams = self._streams
            if not streams:
                self._consumer._check()
                raise StateError("this consumer has not joined its group yet: use async with, or start()")
            self._threads.begin_to_look()
            reason: NoMessage | None = None
            for number in range(self._turn, self._turn + len(streams)):
                stream = streams[number % len(streams)]
                try:
                    found = take(stream)
                except ConsumerTimeout as error:
                    reason = error.reason if reason in (None, NoMessage.AT_END) else reason
                    continue
                self._turn = number % len(streams) + 1
                return found
            # Nothing wakes this when a lease holds again.
            wait = _LOOK_AGAIN_SECONDS if self._consumer._lease.is_valid else _LEASE_LOOK_SECONDS
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    errors = "".join(stream._errors() for stream in streams)
                    said = "" if reason is None else f": {reason.value}"
                    raise ConsumerTimeout(f"no message within {timeout:g} s{said}{errors}", reason)
                wait = min(wait, left)
            await self._threads.wait(wait)

    # -- offsets -------------------------------------------------------------------------------------------------------

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Save how far every partition has been consumed, or these offsets. Goes on when it is cancelled.

        Raises as ``fastlog.Consumer.commit_offsets``.
        """
        await self._threads.run(self._consumer.commit_offsets, offsets)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at this offset, which may be ``EARLIEST`` or ``LATEST``. Raises as ``fastlog.Consumer.seek``."""
        await self._threads.run(self._consumer.seek, partition, offset)

    async def seek_to_time(self, partition: TopicPartition, time_ms: int) -> None:
        """Go on at the last segment that began before this time (ms since 1970). Raises as ``seek``."""
        await self._threads.run(self._consumer.seek_to_time, partition, time_ms)

    async def lag(self, timeout: float = 10.0) -> dict[TopicPartition, int | None]:
        """For each partition read here the bytes that can be read and have not been consumed; the brokers are asked."""
        return await self._threads.run(self._consumer.lag, timeout)

    async def wait_assigned(self, timeout: float) -> bool:
        """Wait until exactly the assigned partitions are read; False after ``timeout`` seconds."""
        deadline = time.monotonic() + arguments.seconds("timeout", timeout)
        while True:  # in slices, so that nothing is left behind in a thread when this is cancelled
            left = max(0.0, deadline - time.monotonic())
            if await self._threads.run(self._consumer.wait_assigned, min(left, _SLICE_SECONDS)):
                return True
            if left <= _SLICE_SECONDS:
                return False

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """How far each partition that is read here has been consumed, as far as it is known."""
        return self._consumer.offsets

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The committed offset of each partition that is owned, as far as it is known."""
        return self._consumer.committed

    # -- how it stands -------------------------------------------------------------------------------------------------

    @property
    def consumer_id(self) -> str:
        """The id of this member of the group."""
        return self._consumer.consumer_id

    @property
    def state(self) -> GroupState:
        """The state of the membership now."""
        return self._consumer.state

    @property
    def error(self) -> Exception | None:
        """The last error of the membership that has not been recovered from; None: there is none."""
        return self._consumer.error

    @property
    def failed_commits(self) -> int:
        """How many commits have failed that nobody waited for."""
        return self._consumer.failed_commits

    @property
    def owned(self) -> dict[TopicPartition, str]:
        """The partitions of this member, with the name of the thread; none while that is not certain."""
        return self._consumer.owned

    @property
    def partitions(self) -> dict[TopicPartition, PartitionState]:
        """The state of fetching for each partition that is read here, with the error where it fails."""
        return self._consumer.partitions

    @property
    def jumps(self) -> tuple[Jump, ...]:
        """Where reading could not go on and went on elsewhere; the last thousand."""
        return self._consumer.jumps

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = 5.0) -> None:
        """Hand out nothing any more, commit unless auto-commit is off, leave the group; within ``timeout`` seconds.

        Every iteration ends. May be called again: when it was cancelled, to wait for the same end, which goes on
        without anybody waiting.
        """
        self._threads.loop()
        if self._closing is None:
            self._closing = self._threads.start_alone(lambda: self._consumer.shutdown(timeout))
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            if self._closing is None:  # nobody will leave a block that was not entered
                self._closing = self._threads.start_alone(self._consumer.shutdown)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.{repr(self._consumer)[1:]}"


class Batches(Generic[_T]):
    """An iteration over what a consumer gives; all of a consumer see the same messages, each once."""

    def __init__(self, consumer: Consumer, take: Callable[[Stream], _T | None]) -> None:
        self._consumer = consumer
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        found = await self._consumer._next(self._take, self._consumer._timeout())
        if found is None:
            raise StopAsyncIteration
        return found


def _message(stream: Stream) -> GroupMessage | None:
    return stream.message(0.0)


class _Inner(connector.Consumer):
    """The consumer of threads, with streams that wake tasks of an event loop."""

    def __init__(
        self,
        settings: Settings | None,
        /,
        *,
        store: OffsetStore | None,
        threads: Threads,
        **fields: Unpack[ConsumerFields],
    ) -> None:
        self._loop_threads = threads
        super().__init__(settings, store=store, **fields)

    def _new_stream(self, name: str, decoder: Decoder | None, acknowledge: bool) -> Stream:
        return _LoopStream(
            name,
            self._lease,
            decode=decoder,
            acknowledge=acknowledge,
            shallow=self.config.shallow,
            threads=self._loop_threads,
        )


class _LoopStream(Stream):
    """A stream that waits for nothing, and lets a loop know when there is something."""

    def __init__(self, *given: Any, threads: Threads, **named: Any) -> None:
        super().__init__(*given, **named)
        self._threads = threads

    def wake(self) -> None:
        """Let the coroutines that wait for messages look again."""
        super().wake()
        self._threads.wake()

    def _drive(self, feeds: tuple[Feed, ...], deadline: float | None) -> bool:
        """Fetching in the loop's thread would make it wait."""
        return False
