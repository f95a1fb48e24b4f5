"""Following partitions over a few connections: one request in flight on each, held by the broker where it can."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fastlog._segment import SCAN_OK, SCAN_TAIL, ScanResult, scan
from fastlog.errors import InvalidMessageError, OffsetOutOfRangeError, ProtocolError, TransportError, error_for
from fastlog.tools import signals
from fastlog.tools.connection import Broker, Connection, Patience
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, CommandError
from fastlog.wire import requests, responses

MAX_LANES = 32
_HOLD_MS = 5_000
_SHARED_HOLD_MS = 50  # on a lane with several partitions, so that none waits long for its turn
_LEAST_PAUSE = 0.01
_MOST_PAUSE = 0.25
_LENGTH_BYTES = 4


@dataclass
class Cursor:
    """Where reading of one partition stands. ``end`` None follows for ever."""

    partition: int
    offset: int
    end: int | None
    fetch_bytes: int

    @property
    def done(self) -> bool:
        """Nothing below ``end`` is left."""
        return self.end is not None and self.offset >= self.end


@dataclass(frozen=True)
class Fetched:
    """Whole messages of one partition."""

    partition: int
    base_offset: int
    message_set: bytes
    result: ScanResult


class Lane:
    """One connection and the partitions that take turns on it."""

    def __init__(self, broker: Broker, topic: str, cursors: list[Cursor], *, hold_ms: int | None) -> None:
        self._broker = broker
        self._topic = topic
        self._turns = deque(cursors)
        self._hold_ms = hold_ms
        self._pause = _LEAST_PAUSE
        self._empty_in_a_row = 0
        self._correlation_id = 0
        self._asked: Cursor | None = None
        self._heard = 0.0
        self._patience = Patience()
        self.due = 0.0
        self.connection: Connection = broker.connect()

    @property
    def waits_for_answer(self) -> bool:
        """A request is on its way."""
        return self._asked is not None

    @property
    def done(self) -> bool:
        """Every partition has reached its end, and no answer is missing."""
        return self._asked is None and all(cursor.done for cursor in self._turns)

    def ask(self) -> None:
        """Send the fetch whose turn it is, when one is due and none is on its way. Raises ``TransportError``."""
        if self._asked is not None or time.monotonic() < self.due:
            return
        for _ in range(len(self._turns)):
            cursor = self._turns[0]
            self._turns.rotate(-1)
            if not cursor.done:
                self._asked = cursor
                self._heard = time.monotonic()
                self.connection.send(self._frame(cursor))
                return

    def ask_again(self, error: TransportError) -> None:
        """Connect again after a failure and repeat the fetch that was not answered. Raises it when it lasts."""
        while True:
            self.connection.close()
            self._patience.failed(error)
            try:
                self.connection = self._broker.connect()
                if self._asked is not None:
                    self._heard = time.monotonic()
                    self.connection.send(self._frame(self._asked))
                return
            except TransportError as again:
                error = again

    def check_overdue(self) -> None:
        """Raise ``TransportError`` when nothing came for longer than the broker may hold the answer."""
        allowed = self._broker.timeout + (self._hold_ms or 0) / 1000
        if self._asked is not None and time.monotonic() - self._heard > allowed:
            raise TransportError(f"{self.connection.peer} did not answer within {allowed:g} s")

    def take(self) -> tuple[Cursor, bytes] | None:
        """The cursor and the bytes of an answer that is whole after one read; None when it is not.

        Raises:
            TransportError: the connection broke.
            CommandError: the broker answered with an error.
        """
        body = self.connection.receive_available()
        self._heard = time.monotonic()
        if body is None:
            return None
        cursor = self._asked
        if cursor is None:
            raise ProtocolError("an answer came that nobody asked for")
        error, message_set, held_range = self._decoded(body)
        self._asked = None
        self._patience.worked()
        if error:
            raise self._refused(error, cursor, held_range)
        if message_set:
            self._empty_in_a_row = 0
            self._pause = _LEAST_PAUSE
        else:
            self._empty_in_a_row += 1
            if self._hold_ms is None and self._empty_in_a_row >= len(self._turns):
                self.due = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, _MOST_PAUSE)
        return cursor, message_set

    def _frame(self, cursor: Cursor) -> bytes:
        if self._hold_ms is None:
            return requests.encode_fetch(self._topic, cursor.partition, cursor.offset, cursor.fetch_bytes)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        hold_ms = self._hold_ms
        if len(self._turns) > 1:
            hold_ms = min(hold_ms, _SHARED_HOLD_MS) if self._empty_in_a_row >= len(self._turns) else 0
        return requests.encode_held_fetch(
            self._correlation_id, hold_ms, 1, self._topic, cursor.partition, cursor.offset, cursor.fetch_bytes
        )

    def _decoded(self, body: bytes) -> tuple[int, bytes, str]:
        if self._hold_ms is None:
            plain = responses.decode_fetch(body)
            return plain.error, plain.message_set, ""
        held = responses.decode_held_fetch(body)
        if held.correlation_id != self._correlation_id:
            raise ProtocolError(f"the answer to request {self._correlation_id} says it is for {held.correlation_id}")
        return held.error, held.message_set, f" The log goes from {held.log_start} to {held.high_watermark}."

    def _refused(self, error: int, cursor: Cursor, held_range: str) -> CommandError:
        return CommandError(
            f"fetch from {self._topic}, partition {cursor.partition}, offset {cursor.offset} failed with error {error}",
            str(error_for(error)) + (held_range if error == OffsetOutOfRangeError.code else ""),
            f"fastlog topics describe {self._topic} shows the partitions and their offsets",
            EXIT_FAILED,
        )


class Fetcher:
    """Reads partitions of one topic until each has reached its end; for one thread."""

    def __init__(
        self, broker: Broker, topic: str, cursors: list[Cursor], *, max_hold_ms: int | None, limit: int
    ) -> None:
        """``max_hold_ms`` None: the broker has no held fetch. ``limit``: the largest fetch a message may need."""
        hold_ms = None if max_hold_ms is None else min(_HOLD_MS, max_hold_ms)
        count = max(1, min(len(cursors), MAX_LANES))
        self._topic = topic
        self._limit = limit
        self._lanes: list[Lane] = []
        for index in range(count):
            self._lanes.append(Lane(broker, topic, cursors[index::count], hold_ms=hold_ms))

    def close(self) -> None:
        """Close every connection."""
        for lane in self._lanes:
            lane.connection.close()

    def chunks(self, seconds: float) -> Iterator[Fetched | None]:
        """Yield what comes, and None at least each ``seconds`` while nothing does; ends when every partition is done.

        A partition's offset has moved past a chunk when the next one is asked for.

        Raises:
            TransportError: the broker stays away.
            CommandError: the broker refuses a fetch, or the bytes are damaged; what is whole was yielded before.
        """
        while True:
            lanes = [lane for lane in self._lanes if not lane.done]
            if not lanes:
                return
            for lane in lanes:
                try:
                    lane.check_overdue()
                    lane.ask()
                except TransportError as error:
                    lane.ask_again(error)
            ready = self._ready(lanes, seconds)
            came = False
            for lane in ready:
                try:
                    answer = lane.take()
                except TransportError as error:
                    lane.ask_again(error)
                    continue
                if answer is not None and answer[1]:
                    came = True
                    yield from self._advance(*answer)
            if not came:
                yield None

    def _ready(self, lanes: list[Lane], seconds: float) -> list[Lane]:
        waits = {lane.connection.fileno(): lane for lane in lanes if lane.waits_for_answer}
        paused = [lane.due for lane in lanes if not lane.waits_for_answer and not lane.done]
        if paused:
            seconds = min(seconds, max(0.0, min(paused) - time.monotonic()))
        with signals.waiting():
            ready, _, _ = select.select(list(waits), [], [], seconds)
        return [waits[fd] for fd in ready]

    def _advance(self, cursor: Cursor, data: bytes) -> Iterator[Fetched]:
        if cursor.end is not None:
            data = data[: cursor.end - cursor.offset]
        result = scan(data)
        base_offset = cursor.offset
        if result.valid_bytes:
            yield Fetched(cursor.partition, base_offset, data[: result.valid_bytes], result)
            cursor.offset = base_offset + result.valid_bytes
        if result.status not in (SCAN_OK, SCAN_TAIL):
            raise self._damaged(cursor, "it is not a whole and valid message")
        if not result.valid_bytes:
            self._grow(cursor, data)

    def _grow(self, cursor: Cursor, data: bytes) -> None:
        """Make the next fetch large enough for a message that is longer than this one."""
        needed = 2 * _LENGTH_BYTES
        if len(data) >= _LENGTH_BYTES:
            needed = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
        if needed <= cursor.fetch_bytes and len(data) >= _LENGTH_BYTES:
            raise self._damaged(cursor, f"the log ends inside it, after {len(data)} of {needed} bytes")
        if needed > self._limit:
            raise self._damaged(cursor, f"it claims {needed} bytes, more than the {self._limit} this broker sends")
        cursor.fetch_bytes = min(self._limit, max(2 * cursor.fetch_bytes, needed))

    def _damaged(self, cursor: Cursor, why: str) -> CommandError:
        return CommandError(
            f"{InvalidMessageError.__name__}: {self._topic}, partition {cursor.partition}, offset {cursor.offset}",
            why,
            "if that offset is the start of a message, run fastlog fsck on the broker's log directory",
            EXIT_DAMAGED,
        )
