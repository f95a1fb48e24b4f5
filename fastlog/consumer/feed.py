"""The queue between the thread that fetches a partition and the stream that hands its messages out."""

from __future__ import annotations

import _thread
import enum
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fastlog import escaping
from fastlog.client.addresses import Address
from fastlog.consumer._delivery import Place
from fastlog.consumer.chunks import AnyChunk, Chunk, RecordChunk
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import FastlogError

log = escaping.logger(__name__)


class AutoResetEvent:
    """An event that wakes one waiting thread and is reset by it; set while nobody waits, it ends the next wait at once.

    Takes no lock that an interrupted thread could hold, so a signal handler may set it.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that will. May be called again."""
        try:
            self._lock.release()
        except RuntimeError:
            return  # it is set already

    def wait(self, seconds: float | None) -> None:
        """Return when it is set, at the latest after ``seconds`` (None: no limit), and reset it. Ctrl-C interrupts."""
        self._lock.acquire(timeout=-1 if seconds is None else min(max(seconds, 0.0), threading.TIMEOUT_MAX))


class Jump(NamedTuple):
    """Reading goes on elsewhere, since the broker does not have the offset ``old`` (any more).

    With ``new`` above ``old``, what is between was lost to the group; below it, the log had ended before ``old``.
    """

    source: TopicPartition
    old: int
    new: int
    reason: str
    time: float
    """When it happened, in seconds since 1970."""
    log: int = 0
    """When the log was made in which ``new`` is, in ms since 1970; 0: not known."""

    def __str__(self) -> str:
        what = (
            f"offsets {self.old} to {self.new} are lost to the group"
            if self.new > self.old
            else f"it goes back to {self.new}"
        )
        return f"{self.source}: offset {self.old} is out of range, {what} ({self.reason})"


class Failure(NamedTuple):
    """An error for the program, raised once everything fetched before it has been handed out."""

    error: FastlogError


Item = AnyChunk | Jump | Failure


class Phase(enum.Enum):
    """The phase that the fetching of a partition is in."""

    STARTING = "starting"
    READING = "reading"
    AT_END = "at end"
    PAUSED = "paused"
    FAILING = "failing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition of this consumer as it is now. Offsets are None while they are not known.

    ``position``: fetched up to here. ``high_watermark``: the broker's, when it last answered. ``queued``: pieces
    that wait. ``source``: ``socket``, or ``read`` or ``map`` while the broker's files are read. ``error``: why it is
    failing or stopped, ``failures`` how often in a row, ``failing_since`` in seconds since 1970. ``gaps``: how often a
    piece did not begin where the one before had ended, and was fetched again.
    """

    phase: Phase
    address: Address
    thread: str
    position: int | None
    consumed: int | None
    high_watermark: int | None
    queued: int
    source: str
    error: FastlogError | None
    failures: int
    failing_since: float | None
    gaps: int


class Fetching(Protocol):
    """A thread that fetches one partition from one offset on; another one is made to go on elsewhere."""

    place: Place
    queue: deque[Item]
    wakeup: AutoResetEvent
    at_end: bool
    """The broker had nothing more when it last answered."""
    is_starved: bool
    """Set by a stream that has nothing of any partition, so that the thread lets ``drive`` fetch in its place."""

    @property
    def log(self) -> int:
        """When the log was made that is fetched from, in ms since 1970; 0: not known."""

    @property
    def error(self) -> FastlogError | None:
        """Why nothing can be fetched now; None while fetching works."""

    def start(self) -> None:
        """Start the thread."""

    def drive(self, seconds: float) -> bool:
        """Fetch the next chunk in the calling thread; False unless it is on its way and comes within ``seconds``."""

    def stop(self, error: FastlogError | None = None) -> None:
        """Fetch nothing any more. ``error`` is why."""

    def renewed(self) -> Fetching:
        """A new one, not started, that goes on behind the last chunk that the stream has taken."""

    def state(self, feed: Feed) -> PartitionState:
        """The state of the partition as users see it."""


class Feed:
    """One owned partition on its way to a stream.

    The group's worker makes it and gives it up; a user may reposition it meanwhile. Who exchanges ``fetch`` looks at
    ``is_released`` afterwards, and who releases sets it first, so that one of them stops the last one.
    """

    def __init__(
        self,
        source: TopicPartition,
        thread: str,
        fetch: Fetching,
        on_begin: Callable[[TopicPartition], None] = lambda source: None,
    ) -> None:
        """``on_begin`` is called once the partition counts as consumed up to where a jump has led."""
        self.source = source
        self._on_begin = on_begin
        self.thread = thread
        self.fetch = fetch
        self.is_released = False
        self.gaps = 0
        self._exchange = threading.Lock()

    def release(self) -> int:
        """Hand nothing out any more and fetch nothing; the offset that it has been consumed to, -1 when not known."""
        self.is_released = True
        fetch = self.fetch
        consumed = fetch.place.end()
        fetch.stop()
        return consumed

    def replace(self, following: Callable[[Fetching], Fetching]) -> bool:
        """Go on with what follows the one at work; False when the partition was given up meanwhile."""
        with self._exchange:
            before = self.fetch
            fetch = self.fetch = following(before)
            before.stop()
        if self.is_released:
            fetch.place.end()
            return False
        fetch.start()
        if self.is_released:
            fetch.stop()
        return True

    @property
    def at_end(self) -> bool:
        """Whether everything that the broker has made visible was handed out."""
        return self.fetch.at_end and not self.fetch.queue

    def take_or_none(self, stream: TakesChunks) -> bool:
        """Give the stream the next chunk to take in hand; False when there is none.

        An item leaves the queue when it is in hand: an interrupt in between shows it twice, and the second time it lies
        before what is expected.

        Raises:
            FastlogError: the partition could not be read any further; once for each place and reason.
        """
        fetch = self.fetch
        queue, place = fetch.queue, fetch.place
        while queue and not place.is_over:  # what it has of a place that was given up is nobody's, and no gap
            item = queue[0]
            taken = False
            if isinstance(item, Chunk | RecordChunk):
                end = item.end
                start = max(item.offset, place.expected)
                if item.offset > place.expected:
                    self._close_gap(fetch, item.offset)
                    return False
                if start < end:
                    stream.begin_chunk(place, item, start, end)
                    taken = True
            elif isinstance(item, Jump):
                place.begin(item.new, item.log)
                self._on_begin(self.source)
            queue.popleft()
            fetch.wakeup.set()
            if taken:
                return True
            if isinstance(item, Failure):
                raise item.error
        return False

    def _close_gap(self, fetch: Fetching, found: int) -> None:
        self.gaps += 1
        expected = fetch.place.expected
        log.error("gap partition=%s expected=%d found=%d: fetched again from there", self.source, expected, found)
        self.replace(lambda before: before.renewed())


class TakesChunks(Protocol):
    """What a feed gives its chunks to: a stream."""

    def begin_chunk(self, place: Place, chunk: AnyChunk, start: int, end: int) -> None:
        """Hand out next the messages of ``chunk`` from offset ``start`` up to ``end``."""
