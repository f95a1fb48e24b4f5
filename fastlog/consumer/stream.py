"""A stream: the messages of some partitions of a group, for one thread."""

from __future__ import annotations

import enum
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from fastlog.consumer._delivery import Batch, Delivery, GroupMessage, Place
from fastlog.consumer.chunks import AnyChunk
from fastlog.consumer.feed import AutoResetEvent, Feed
from fastlog.consumer.fetched import NumpyBatch
from fastlog.consumer.partitions import Lease, TopicPartition
from fastlog.errors import ConsumerTimeout, CoordinationError, FastlogError, ForkedError
from fastlog.message import DEFAULT_LIMITS, AnySpan

FOREVER = -1.0
_BATCH_MESSAGES = 1000
_BATCH_BYTES = 16 * 2**20
_LEASE_LOOK_SECONDS = 0.05
_DRIVE_SECONDS = 0.02


class NoMessage(enum.Enum):
    """Why there is no message now. False where a truth value is asked for."""

    NOT_ASSIGNED = "no partition is assigned to this stream"
    NO_DATA = "nothing has come so far"
    AT_END = "everything that can be read has been read"
    NO_BROKER = "the broker of every partition that is not at its end fails"
    NOT_SAVED = "offsets cannot be saved, and nothing is handed out until they can"
    ENDED = "the consumer was shut down"

    def __bool__(self) -> bool:
        return False


class Done(Protocol):
    """What a stream has handed out: a message, a batch, arrays."""

    @property
    def place(self) -> Place:
        """How far its partition has been handed out and consumed."""

    @property
    def next_offset(self) -> int:
        """The offset behind it, which is committed once it is consumed."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamArrays(NumpyBatch):
    """A ``NumpyBatch`` of a group's stream; ``source`` has the broker as well, ``partition`` is the number there."""

    place: Place

    @property
    def source(self) -> TopicPartition:
        """The partition, with its topic and broker."""
        return self.place.source


class Run(NamedTuple):
    """Whole messages of one partition as they lie in its log, compressed sets closed: what was fetched at once.

    Of a topic of record batches, whole batches, the first of which may begin before ``offset``.
    """

    place: Place
    offset: int
    next_offset: int
    data: memoryview
    entries: int
    """How many messages, a compressed set counting as one; or how many batches."""
    wrappers: int
    """How many of the entries are compressed."""


class Stream(Delivery):
    """Messages of the partitions that the group has assigned to one of its threads: iterate it.

    For one thread at a time; ``end`` and ``silence`` for any. The messages of a partition come in order; partitions
    take turns, piece by piece. A message counts as consumed when the next one is asked for, or when ``done`` says so;
    ``acknowledge``: only then. No partition is handed out that is not certainly owned at that moment.

    Source: Kafka 0.7.2 (KafkaStream, ConsumerIterator); there it counts as consumed when it is handed out.
    """

    def __init__(
        self,
        name: str,
        lease: Lease,
        *,
        timeout: float | None = None,
        decode: Callable[[bytes], Any] | None = None,
        acknowledge: bool = False,
        shallow: bool = False,
    ) -> None:
        """``timeout``: seconds without a message after which ``ConsumerTimeout`` is raised; None: never."""
        super().__init__(lease, decode, FOREVER if timeout is None else timeout)
        self.name = name
        self.acknowledge = acknowledge
        self._lease = lease
        self._shallow = shallow
        self._feeds: tuple[Feed, ...] = ()
        self._is_wanted: Callable[[Place], bool] | None = None
        self._turn = 0
        self._wakeup = AutoResetEvent()
        self._is_ended = False
        self._refusals: deque[FastlogError] = deque()
        self._reported: CoordinationError | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Stream {self.name}, {len(self._feeds)} partitions{', ended' if self._is_ended else ''}>"

    # -- for its user --------------------------------------------------------------------------------------------------

    def batches(self, max_messages: int = _BATCH_MESSAGES, max_bytes: int = _BATCH_BYTES) -> Iterator[Batch]:
        """The payloads in lists, each of one partition and with its offsets; no decoder is applied.

        The iterator can be used on after ``ConsumerTimeout``. Raises as iterating the stream does.
        """
        return iter(partial(self.batch, max(1, max_messages), max(1, max_bytes), self.timeout), None)

    def numpy_batches(self) -> Iterator[StreamArrays]:
        """Messages as arrays, each batch of one partition; no decoder is applied. Otherwise as ``batches``."""
        return iter(partial(self.made, self._arrays, self.timeout), None)

    def run(self, timeout: float = FOREVER) -> Run | None:
        """What was fetched at once of one partition, with no object per message; None at the end of the stream.

        Its bytes are whole, valid entries, and stay as they are for as long as somebody looks at them. Raises as
        iterating the stream does.
        """
        return self.made(self._run, timeout)

    def take_from(self, is_wanted: Callable[[Place], bool]) -> None:
        """Hand out only partitions that are wanted at that moment; the others wait, and hold up nobody.

        Asked in the stream's thread, for each partition that has something; ``wake`` lets it ask again.
        """
        self._is_wanted = is_wanted

    def done(self, given: Done) -> bool:
        """Count as consumed what this message, batch or arrays end with, and all of its partition before it.

        Safe in any thread. False when its partition was given up or repositioned since: others may get it again.
        """
        return given.place.done(given.next_offset)

    def silence(self) -> NoMessage:
        """Why there would be no message now. What is under way in another thread is not waited for."""
        if self._is_ended:
            return NoMessage.ENDED
        feeds = self._feeds
        if not feeds or not self._lease.is_valid:
            return NoMessage.NOT_ASSIGNED
        if self._lease.objection is not None:
            return NoMessage.NOT_SAVED
        waiting = [feed for feed in feeds if not feed.at_end]
        if not waiting:
            return NoMessage.AT_END
        return NoMessage.NO_BROKER if all(feed.fetch.error is not None for feed in waiting) else NoMessage.NO_DATA

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that this stream reads now."""
        return tuple(feed.source for feed in self._feeds)

    # -- for those who feed it -----------------------------------------------------------------------------------------

    def add(self, feed: Feed) -> None:
        """Hand out the messages of this feed too. Called by one thread, as ``remove``."""
        self._feeds = (*self._feeds, feed)

    def remove(self, feed: Feed) -> None:
        """Forget a feed; it was released before."""
        self._feeds = tuple(found for found in self._feeds if found is not feed)

    def wake(self) -> None:
        """Have the thread that waits for messages look for some at once."""
        self._wakeup.set()

    def refuse(self, error: FastlogError) -> None:
        """Have the stream raise ``error`` once, in the thread that asks it for messages. Safe in any thread."""
        self._refusals.append(error)
        self.wake()

    def end(self) -> None:
        """Hand out nothing any more; every iteration ends. Safe in any thread and signal handler."""
        self._is_ended = True
        for feed in self._feeds:
            feed.fetch.place.end()
        self.wake()

    # -- the half that is not compiled ---------------------------------------------------------------------------------

    def _next_chunk(self, timeout: float) -> bool:
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while self._goes_on():
            feeds = self._feeds
            for number in range(self._turn, self._turn + len(feeds)):
                feed = feeds[number % len(feeds)]
                if self._is_wanted is not None and not (feed.fetch.queue and self._is_wanted(feed.fetch.place)):
                    continue
                if feed.take_or_none(self):
                    self._turn = number % len(feeds) + 1
                    return True
            if not self._drive(feeds, deadline):
                self._wait(timeout, deadline)
        return False

    def _drive(self, feeds: tuple[Feed, ...], deadline: float | None) -> bool:
        """Fetch in this thread rather than wait for another one, where that is possible."""
        left = _DRIVE_SECONDS if deadline is None else min(_DRIVE_SECONDS, max(0.0, deadline - time.monotonic()))
        for number in range(self._turn, self._turn + len(feeds)):
            fetch = feeds[number % len(feeds)].fetch
            if (self._is_wanted is None or self._is_wanted(fetch.place)) and fetch.drive(left):
                return True
        for feed in feeds:
            feed.fetch.is_starved = True
        return False

    def _wait_for_lease(self, timeout: float) -> bool:
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while self._goes_on():
            if self._lease.seconds_left > _LEASE_LOOK_SECONDS:
                return True
            objection = self._lease.objection
            if objection is not None and objection is not self._reported:
                self._reported = objection  # once, so that a program that goes on waits
                raise CoordinationError(str(objection)) from objection.__cause__
            self._wait(timeout, deadline, _LEASE_LOOK_SECONDS)
        return False

    def _goes_on(self) -> bool:
        if os.getpid() != self._pid:
            raise ForkedError(f"this stream belongs to the process {self._pid}: make a new consumer after fork")
        if self._is_ended:
            self._wakeup.set()  # for whoever else waits
            return False
        if self._refusals:
            raise self._refusals.popleft()
        return True

    def _wait(self, timeout: float, deadline: float | None, most: float | None = None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            reason = self.silence()
            raise ConsumerTimeout(f"no message within {timeout:g} s: {reason.value}{self._errors()}", reason)
        self._wakeup.wait(left if most is None else most if left is None else min(left, most))

    def _errors(self) -> str:
        fetches = [feed.fetch for feed in self._feeds]
        return "".join(f"\n{fetch.place.source}: {fetch.error}" for fetch in fetches if fetch.error is not None)

    def _cut(self, chunk: AnyChunk, offset: int) -> Iterator[AnySpan]:
        rest = chunk.rest(offset)
        return rest.shallow(DEFAULT_LIMITS) if self._shallow else rest.spans(DEFAULT_LIMITS)

    def _run(self, place: Place, chunk: AnyChunk, offset: int, passed: int) -> tuple[Run, int]:
        rest = chunk.rest(offset)
        data = rest.data[: rest.result.valid_bytes]
        return Run(place, offset, rest.end, data, rest.entries, rest.wrappers), rest.end

    def _arrays(self, place: Place, chunk: AnyChunk, offset: int, passed: int) -> tuple[StreamArrays | None, int]:
        source = place.source
        found = chunk.rest(offset).arrays(source.topic, source.partition.partition, DEFAULT_LIMITS)
        if len(found) <= passed:
            return None, found.next_offset
        arrays = StreamArrays(
            topic=found.topic,
            partition=found.partition,
            buffer=found.buffer,
            next_offset=found.next_offset,
            place=place,
            **found.after(passed),
        )
        return arrays, found.next_offset

    def _stopped(self, place: Place, error: FastlogError) -> None:
        for feed in self._feeds:
            if feed.fetch.place is place:
                feed.fetch.stop(error)

    def _silence(self) -> NoMessage:
        return self.silence()


__all__ = ["Batch", "GroupMessage", "NoMessage", "Run", "Stream", "StreamArrays"]
