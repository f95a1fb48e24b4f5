"""Reading partitions at once: threads with a simple consumer each put what they get into one queue."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fastlog.client.addresses import Address
from fastlog.client.connection import BoundedBackoff
from fastlog.consumer.fetched import MessageSet
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import ClosedError, FastlogError, TransportError
from fastlog.tools import signals

MAX_LANES = 32
_QUEUED_SETS = 4
_HOLD_SECONDS = 5.0
_ENDING_HOLD_SECONDS = 1.0  # where somebody may bring the end nearer meanwhile
_SHARED_HOLD_SECONDS = 0.05  # on a lane with several partitions, so that none waits long for its turn
_RETRY_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_LEAVE_SECONDS = 0.1

Opener = Callable[[Address], SimpleConsumer]


@dataclass
class ReadCursor:
    """Where reading of one partition stands. ``end`` None follows for ever; it may be lowered meanwhile."""

    partition: int
    offset: int
    end: int | None

    @property
    def done(self) -> bool:
        """Whether everything before ``end`` has been read."""
        return self.end is not None and self.offset >= self.end


@dataclass(eq=False)
class Track:
    """Partitions of one topic on one broker, and how to open consumers of it at any of its addresses."""

    opener: Opener
    addresses: Sequence[Address]
    topic: str
    cursors: Sequence[ReadCursor]


class FetchError(Exception):
    """A partition cannot be read on; ``error`` says why."""

    def __init__(self, track: Track, cursor: ReadCursor, error: FastlogError) -> None:
        super().__init__(str(error))
        self.track = track
        self.partition = cursor.partition
        self.offset = cursor.offset
        self.error = error


_Item = tuple[Track, MessageSet] | Exception | None


class Lanes:
    """For each track up to ``MAX_LANES`` threads, each with one connection and the partitions that take turns on it.

    A broken connection is replaced for up to half a minute, at any of the addresses, and reading goes on where it was.
    For one thread, the main one.
    """

    def __init__(self, tracks: Sequence[Track], fetch_bytes: int) -> None:
        self._queue: queue.Queue[_Item] = queue.Queue(_QUEUED_SETS)
        self._stopping = threading.Event()
        self._fetch_bytes = fetch_bytes
        self._lanes: list[_Lane] = []
        self._running = 0
        for track in tracks:
            self.add(track)

    def add(self, track: Track) -> None:
        """Start threads that read this track as well."""
        count = max(1, min(len(track.cursors), MAX_LANES))
        for index in range(count):
            lane = _Lane(track, track.cursors[index::count], self._fetch_bytes, self._put, self._stopping)
            self._lanes.append(lane)
            self._running += 1
            lane.start()

    def sets(self, seconds: float) -> Iterator[tuple[Track, MessageSet] | None]:
        """Yield what comes with where it is from, and None at least each ``seconds`` while nothing does.

        Ends when every partition is done.

        Raises:
            FetchError: a partition cannot be read on; what came before was yielded.
        """
        while self._running:
            try:
                with signals.waiting():
                    item = self._queue.get(timeout=seconds)
            except queue.Empty:
                yield None
                continue
            if isinstance(item, Exception):
                raise item
            if item is None:
                self._running -= 1
            else:
                yield item

    def close(self) -> None:
        """End the threads; waits for up to ``_LEAVE_SECONDS`` for them."""
        self._stopping.set()
        for lane in self._lanes:
            lane.stop()
        deadline = time.monotonic() + _LEAVE_SECONDS
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def _put(self, item: _Item) -> None:
        while not self._stopping.is_set():
            try:
                self._queue.put(item, timeout=_LOOK_SECONDS)
                return
            except queue.Full:
                continue


class _Lane(threading.Thread):
    def __init__(
        self,
        track: Track,
        cursors: Sequence[ReadCursor],
        fetch_bytes: int,
        put: Callable[[_Item], None],
        stopping: threading.Event,
    ) -> None:
        super().__init__(name=f"fastlog-consume-{cursors[0].partition if cursors else 0}", daemon=True)
        self._track = track
        self._addresses = deque(track.addresses)
        self._turns = deque(cursors)
        self._fetch_bytes = fetch_bytes
        self._put = put
        self._stopping = stopping
        self._backoff = BoundedBackoff(_RETRY_SECONDS)
        self._consumer = track.opener(self._addresses[0])

    def stop(self) -> None:
        """End what the thread waits for; for another thread."""
        self._consumer.close()

    def run(self) -> None:
        """Read until every partition is done; what ends it early goes into the queue."""
        try:
            self._read()
            self._put(None)
        except ClosedError as error:
            self._put(error)  # goes nowhere when the closing was meant
        except Exception as error:
            self._put(error)
        finally:
            self._consumer.close()

    def _read(self) -> None:
        empty_in_a_row = 0
        while not self._stopping.is_set():
            while self._turns and self._turns[0].done:
                self._turns.popleft()
            if not self._turns:
                return
            cursor = self._turns[0]
            self._turns.rotate(-1)
            found = self._fetched(cursor, empty_in_a_row)
            if found is None:
                empty_in_a_row += 1
                continue
            empty_in_a_row = 0
            if cursor.end is not None:
                found = found.before(cursor.end)
                if not found.valid_bytes:  # an end that is inside a message, or that was lowered below the offset
                    cursor.end = cursor.offset
                    continue
            cursor.offset = found.next_offset
            self._put((self._track, found))

    def _fetched(self, cursor: ReadCursor, empty_in_a_row: int) -> MessageSet | None:
        if len(self._turns) > 1:
            wait = _SHARED_HOLD_SECONDS if empty_in_a_row >= len(self._turns) else 0.0
        else:
            wait = _HOLD_SECONDS if cursor.end is None else _ENDING_HOLD_SECONDS
        while True:
            try:
                found = self._consumer.fetch(
                    self._track.topic, cursor.partition, cursor.offset, self._fetch_bytes, wait=wait
                )
                self._backoff.worked()
                return found or None
            except TransportError as error:
                try:
                    self._try_again(error)
                except TransportError as last:
                    raise FetchError(self._track, cursor, last) from last
            except ClosedError:
                raise
            except FastlogError as error:
                raise FetchError(self._track, cursor, error) from error

    def _try_again(self, error: TransportError) -> None:
        """Get ready for another try, elsewhere if there is another address. Raises ``error`` when it lasted long."""
        self._backoff.failed(error)
        if len(self._addresses) > 1:
            self._consumer.close()
            self._addresses.rotate(-1)
            self._consumer = self._track.opener(self._addresses[0])
            if self._stopping.is_set():
                self._consumer.close()
