"""One partition on its way from a source to the target: what was fetched, what is to be appended, what is written down.

Nothing here asks anybody: a worker does, and tells a lane what came of it.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from fastlog.client.kafka_fields import Place
from fastlog.client.records import RecordsError, meaning_of
from fastlog.errors import FastlogError, InvalidFetchSizeError
from fastlog.kafka_codes import Code
from fastlog.mirror.records.batches import Fetched, Outgoing
from fastlog.mirror.records.finding import Rules, StandstillError
from fastlog.mirror.records.position import MOST_SEAMS, Position
from fastlog.retry import Backoff

_REFUSED = frozenset(
    (
        Code.CORRUPT_MESSAGE,
        Code.MESSAGE_TOO_LARGE,
        Code.RECORD_LIST_TOO_LARGE,
        Code.INVALID_TIMESTAMP,
        Code.INVALID_RECORD,
    )
)
"""Errors of the records themselves: they come again however often they are sent."""
OUT_OF_SEQUENCE = frozenset(
    (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.DUPLICATE_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID)
)
"""The target has something of this mirror that is not counted yet, or has lost something: it is looked up."""
_RETRY_SECONDS = 5.0
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 1.0
_QUIET_RETRIES = 3
_KNOWN_SECONDS = 60.0


class Sent(NamedTuple):
    """A batch that was handed to a connection."""

    lane: RecordLane
    turn: int
    number: int
    batch: Outgoing


class RecordLane:
    """One partition on its way. For one thread. ``position`` is known from ``begin`` on, until the next ``again``."""

    def __init__(self, place: Place, rules: Rules) -> None:
        self.place = place
        self.error: FastlogError | None = None
        """Why the partition does not go on, where that is worth reporting; None while it does."""
        self.position: Position | None = None
        self.offset = 0
        """The offset in the source that is fetched next."""
        self.end = -1
        """Up to where the source could be read when it last said so."""
        self.turn = 0
        """Grows with every new beginning: answers to requests of an earlier turn are ignored."""
        self.left_out: list[FastlogError] = []
        """The errors of records that were left out; the worker takes them from here and counts them."""
        self._rules = rules
        self._kept: Position | None = None
        self._plan: deque[tuple[int, Outgoing]] = deque()
        self._number = 0
        self._under_way = 0
        self._due = 0.0
        self._known_until = 0.0
        self._backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE, 0.25)
        self._failures = 0
        self._most_bytes = rules.most_bytes
        self._single_until = -1
        self._gathers = True

    # -- where it is ---------------------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether it is time to find out where the partition goes on."""
        return self.position is None and now >= self._due

    @property
    def is_ready(self) -> bool:
        """Whether something may be fetched and taken now."""
        return self.position is not None and time.monotonic() >= self._due

    @property
    def has_plan(self) -> bool:
        """Whether a batch waits to be sent."""
        return bool(self._plan)

    @property
    def lag(self) -> int | None:
        """Records, or their offsets, that the source has and the target has not acknowledged; None: not known."""
        if self.position is None or self.end < 0:
            return None
        return max(0, self.end - self.position.source_offset(self.position.count))

    def begin(self, position: Position, offset: int) -> None:
        """Go on at ``position`` in the target, and at ``offset`` in the source."""
        self.position, self.offset = position, offset
        self._number = position.count

    def again(self, error: FastlogError | None, pause: float | None = None) -> None:
        """Forget what is under way, and have it found out anew where it goes on, after a pause."""
        self.turn += 1
        self.position = self._kept = None
        self._known_until = 0.0
        self._plan.clear()
        self._under_way = 0
        self._due = time.monotonic() + (self._backoff.next() if pause is None else pause)
        self._failures += 1
        if error is not None:
            self.error = error.at(topic=self.place[0], partition=self.place[1])

    def refused_by_source(self, code: int) -> None:
        """Begin again after an error code from the source."""
        self.again(RecordsError(f"source: {meaning_of(code)}", code))

    # -- from the source -----------------------------------------------------------------------------------------------

    def take(self, data: memoryview, aborted: tuple[tuple[int, int], ...]) -> None:
        """Plan to append what was fetched at ``offset``. What is damaged stops it there, or is left out."""
        assert self.position is not None
        is_single = self.offset < self._single_until
        fetched = Fetched(
            data, self.offset, aborted,
            most_bytes=self._most_bytes,
            most_records=1 if is_single else 2**31 - 1,
            gathers=self._gathers and not is_single,
        )  # fmt: skip
        try:
            for batch in fetched.batches():
                self._put(batch)
                if len(self.position.seams) >= MOST_SEAMS:
                    self.offset = batch.next
                    return
            self._gathers = True
        except InvalidFetchSizeError:
            pass  # only a part of a batch fitted behind other partitions: it comes first another time
        except FastlogError as error:
            if fetched.next_offset > self.offset:
                pass  # what is before it goes first
            elif self._gathers:
                self._gathers = False  # to know which batch it is
            elif self._rules.leaves_out and fetched.refused_end is not None:
                self._leave_out(error, self.offset, fetched.refused_end)
                return
            else:
                self.error = error.at(topic=self.place[0], partition=self.place[1], offset=self.offset)
                self._due = time.monotonic() + _RETRY_SECONDS
        self.offset = fetched.next_offset

    def _put(self, batch: Outgoing) -> None:
        assert self.position is not None
        self._plan.append((self._number, batch))
        for offset, records in batch.runs:
            self.position = self.position.with_run(self._number, offset, records)
            self._number += records

    def _leave_out(self, error: FastlogError, offset: int, end: int) -> None:
        self.left_out.append(error.at(topic=self.place[0], partition=self.place[1], offset=offset))
        self.offset = end

    # -- to the target -------------------------------------------------------------------------------------------------

    @property
    def has_to_keep(self) -> bool:
        """Whether ``position_to_send`` has to be written down before what is planned may be sent.

        Without that, nobody could say after a kill which records of the source the target has then.
        """
        if not self._plan or self.position is None:
            return False
        kept, seams = self._kept, self.position_to_send.seams
        return kept is None or kept.is_resting or kept.seams[-len(seams) :] != seams

    @property
    def position_to_send(self) -> Position:
        """The position that has to be written down before the next batch is sent."""
        assert self.position is not None
        return self.position.at(self.position.count, self.position.target_offset, is_resting=False)

    def position_to_keep(self) -> Position | None:
        """What is to be written down from time to time; None where that stands already."""
        if self.position is None:
            return None
        is_resting = not self._plan and not self._under_way
        found = self.position.at(self.position.count, self.position.target_offset, is_resting=is_resting)
        return None if found == self._kept else found

    def kept(self, position: Position) -> None:
        """Note that a position was written down."""
        self._kept = position

    @property
    def may_send(self) -> bool:
        """Whether another batch may be sent now.

        The first one alone: a broker that does not know the producer takes any number, and so would take the second
        batch without the first. It forgets nobody of whom it has heard lately.
        """
        return self.has_plan and (not self._under_way or time.monotonic() < self._known_until)

    def next_to_send(self) -> Sent:
        """Take the next batch off the plan, and count it as sent."""
        number, batch = self._plan.popleft()
        self._under_way += 1
        return Sent(self, self.turn, number, batch)

    @property
    def next_bytes(self) -> int:
        """The size of the batch that ``next_to_send`` gives, in bytes."""
        return len(self._plan[0][1].data)

    def acknowledged(self, sent: Sent, offset: int) -> None:
        """Note that a batch was stored in the target, from ``offset`` on."""
        assert self.position is not None
        self._under_way -= 1
        self.position = self.position.at(
            sent.number + sent.batch.records, offset + sent.batch.records, is_resting=False
        )
        self._known_until = time.monotonic() + _KNOWN_SECONDS
        self._backoff.reset()
        self._failures = 0
        self.error = None

    def refused(self, sent: Sent, code: int) -> None:
        """Act on an error code of the target for a batch: begin again, split it, or leave it out."""
        error = RecordsError(f"target: {meaning_of(code)}", code)
        batch = sent.batch
        if code in OUT_OF_SEQUENCE:
            # of what a former mirror had on its way; only if that does not end is something wrong
            self.again(error if self._failures >= _QUIET_RETRIES else None)
        elif code not in _REFUSED:
            self.again(error)
        elif batch.records > 1:
            if code == Code.MESSAGE_TOO_LARGE:
                self._most_bytes = max(1, len(batch.data) // 2)
            else:
                self._single_until = max(self._single_until, batch.next)
            self.again(None, 0.0)
        elif self._rules.leaves_out:
            assert self.position is not None
            self._leave_out(error, batch.first, batch.next)
            self.turn += 1
            self._plan.clear()
            self._under_way = 0
            self._number = sent.number
            self.position = self.position.with_run(sent.number, batch.next, 1)
        else:
            self.again(StandstillError(f"{error.reason}: tried again every {_RETRY_SECONDS:g} s"), _RETRY_SECONDS)
