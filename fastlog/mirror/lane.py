"""One partition of a source on its way to one partition of the target.

What is taken is sent in order, and counts as consumed in order once the target has acknowledged it. When anything of it
fails, what came behind counts for nothing, though it may be stored: the partition is read again from the first message
that was not acknowledged. So nothing is left out, and what comes twice is known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from fastlog._segment import cut
from fastlog.consumer._delivery import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.stream import Run
from fastlog.errors import BrokerError, FastlogError, InvalidMessageError, MessageTooLargeError
from fastlog.limited_log import LimitedLog
from fastlog.mirror.pieces import MirrorPiece, TargetPartition
from fastlog.mirror.pipe import Pipe
from fastlog.retry import pause_after

log = logging.getLogger(__name__)

_LEAST_PAUSE = 0.02
_MOST_PAUSE = 1.0
_REFUSED_PAUSE = 5.0
_OF_A_MESSAGE = (InvalidMessageError, MessageTooLargeError)

Done = Callable[["MessageLane", MirrorPiece, FastlogError | None], None]
"""Called for each piece that was acknowledged (None), or left out for that error; in order."""


class StoredRanges:
    """Which part of a source partition is known to be in the target. Written by one pipe's thread at a time."""

    def __init__(self) -> None:
        self._end = -1
        self._holes: list[tuple[int, int]] = []  # what was refused, perhaps with something behind it that was not

    def refused(self, piece: MirrorPiece) -> None:
        """Note that nothing of a piece was stored."""
        self.passed(piece)  # it may be one that is tried for hours
        self._holes.append((piece.offset, piece.next_offset))

    def add(self, piece: MirrorPiece) -> int:
        """Note that all of a piece was stored; returns how many of its entries were stored before already."""
        known = 0
        if piece.offset < self._end:
            again = piece.data[: self._end - piece.offset]
            at = piece.offset
            for end, entries, _ in cut(again, 1 if self._holes else len(again), len(again)):
                known += 0 if any(low <= at < high for low, high in self._holes) else entries
                at = piece.offset + end
        self.passed(piece)
        self._end = max(self._end, piece.next_offset)
        return known

    def passed(self, piece: MirrorPiece) -> None:
        """Note that a piece counts as done, and is not to be sent again for having been refused."""
        left = [
            part
            for low, high in self._holes
            for part in ((low, min(high, piece.offset)), (max(low, piece.next_offset), high))
        ]
        self._holes = [(low, high) for low, high in left if low < high]


class MessageLane:
    """Three threads meet here: the stream's, which asks ``wants`` and calls ``take``; the pipe's, which settles pieces;
    and the mirror's, which assigns and resumes.
    """

    def __init__(
        self, source: TopicPartition, bound: int, done: Done, stored: dict[TopicPartition, StoredRanges], *, skips: bool
    ) -> None:
        """``bound``: bytes that may be sent beyond what is committed. ``skips``: leave out what the target refuses.

        ``stored``: what of each partition is known to be in the target; outlives the lane.
        """
        self.source = source
        self.error: FastlogError | None = None
        """Why nothing of the partition is sent now; None while it goes on."""
        self.pipe: Pipe | None = None
        self.target: TargetPartition | None = None
        self.place: Place | None = None
        self.committed = -1
        self.repeated = 0
        """Entries that were acknowledged a second time."""
        self.doubtful = 0
        """Entries that were sent again after a break, and may have been stored the first time."""
        self._bound = bound
        self._done = done
        self._stored = stored.setdefault(source, StoredRanges())
        self._skips = skips
        self._lock = threading.Lock()
        self._unsent: deque[MirrorPiece] = deque()
        self._sent: deque[MirrorPiece] = deque()
        self._sent_to = self._settled_to = -1
        self._is_moving = False
        self._is_failed = False
        self._failures = 0
        self._retry_at = 0.0
        self._careful_to = -1  # up to here each entry is sent alone, to find the one that is refused
        self._log = LimitedLog(log)

    # -- the stream's thread -------------------------------------------------------------------------------------------

    def wants(self, place: Place) -> bool:
        """Whether the next run of this place may come."""
        if place is not self.place and not self._begin(place):
            return False
        pipe = self.pipe
        return (
            pipe is not None
            and pipe.is_connected
            and not pipe.is_full
            and not (self._is_failed or self._is_moving or self._unsent)
            and self._sent_to - self.committed < self._bound
        )

    def _begin(self, place: Place) -> bool:
        """The partition was acquired or repositioned: forget what was, once nothing of it is under way."""
        with self._lock:
            if self._sent:
                return False  # where nothing is, nothing is unsent either: the last that was settled has seen to that
            self.place = place
            self.committed = self._sent_to = self._settled_to = max(0, place.consumed)
            self._is_failed = False
            return True

    def take(self, run: Run) -> None:
        """Send a run, in pieces that the target takes."""
        with self._lock:
            pipe, target = self.pipe, self.target
            if run.place is not self.place or self._is_failed or pipe is None or target is None:
                return  # it comes again
            at = 0
            for end, entries, is_too_large in self._pieces(run, pipe):
                data, offset = run.data[at:end], run.offset + at
                self._unsent.append(
                    MirrorPiece(
                        run.place,
                        self.source.topic,
                        offset,
                        data,
                        entries,
                        target,
                        self._settled,
                        is_too_large=is_too_large,
                    )
                )
                at = end
            self._sent_to = run.next_offset
            self._pump(pipe)

    def _pieces(self, run: Run, pipe: Pipe) -> list[tuple[int, int, bool]]:
        """The pieces of a run, as ``cut`` gives them; without a walk over what the target takes as it is."""
        if run.offset < self._careful_to:
            return cut(run.data, 1, pipe.max_payload)
        if len(run.data) <= min(pipe.max_set, pipe.max_payload):
            return [(len(run.data), run.entries, False)]
        return cut(run.data, pipe.max_set, pipe.max_payload)

    def _pump(self, pipe: Pipe) -> None:
        """Give the pipe what may be sent now."""
        while self._unsent and not self._is_failed:
            piece = self._unsent[0]
            if (piece.is_too_large or piece.offset < self._careful_to) and self._sent:
                return
            self._unsent.popleft()
            if piece.is_too_large:
                limit = pipe.max_payload
                error = MessageTooLargeError(f"a message of {len(piece.data)} bytes; the target takes {limit}")
                self._refused(piece, error)
                continue
            self._sent.append(piece)
            pipe.submit(piece)

    # -- the pipe's thread ---------------------------------------------------------------------------------------------

    def _settled(self, piece: MirrorPiece, error: FastlogError | None) -> None:
        with self._lock:
            assert self._sent[0] is piece
            if error is None:
                self.repeated += self._stored.add(piece)
            elif isinstance(error, BrokerError):
                self._stored.refused(piece)
            elif piece.is_sent:
                self.doubtful += piece.entries
            if not self._is_failed:
                if error is None:
                    self._failures = 0
                    self.error = None
                    self._settled_to = piece.next_offset
                    self._done(self, piece, None)
                elif isinstance(error, _OF_A_MESSAGE):
                    self._refused(piece, error)
                else:
                    self._fail(error)
            self._sent.popleft()
            if self.pipe is not None:
                self._pump(self.pipe)

    def _refused(self, piece: MirrorPiece, error: FastlogError) -> None:
        if piece.entries > 1:
            self._careful_to = max(self._careful_to, piece.next_offset)
            self._fail(error)
        elif self._skips:
            log.error("left out %s offset=%d bytes=%d: %s", self.source, piece.offset, len(piece.data), error)
            self._stored.passed(piece)
            self._settled_to = piece.next_offset
            self._done(self, piece, error)
        else:
            self._careful_to = max(self._careful_to, piece.next_offset)
            self._fail(error, _REFUSED_PAUSE)

    def _fail(self, error: FastlogError, least_pause: float = 0.0) -> None:
        self._is_failed = True
        self._unsent.clear()
        self.error = error
        now = time.monotonic()
        self._failures += 1
        self._retry_at = now + max(least_pause, pause_after(self._failures, _LEAST_PAUSE, _MOST_PAUSE))
        offset = self.place.consumed if self.place is not None else -1
        self._log.warning("waits", "waits %s offset=%d: %s", self.source, offset, " ".join(str(error).split()))

    # -- the mirror's thread -------------------------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether something was sent whose outcome is not known yet."""
        return bool(self._sent)

    @property
    def is_failed(self) -> bool:
        """Whether sending has failed and waits to be resumed."""
        return self._is_failed

    @property
    def wants_commit(self) -> bool:
        """Whether a quarter of what may be sent beyond the last commit was acknowledged, or all of it was sent."""
        place = self.place
        if place is None or place.is_over or self._settled_to <= self.committed:
            return False
        return self._settled_to - self.committed > self._bound // 4 or self._sent_to - self.committed >= self._bound

    def assign(self, pipe: Pipe, target: TargetPartition) -> bool:
        """Send to this partition once everything sent to another one has its outcome; whether that is so now."""
        if self.pipe is pipe and self.target == target:
            self._is_moving = False
            return True
        with self._lock:
            self._is_moving = True
            if self._sent or self._unsent:
                return False
            if self.target is not None:
                log.info("moves %s from %s to %s", self.source, self.target, target)
            self.pipe, self.target = pipe, target
            self._is_moving = False
            return True

    def resume_at(self) -> int | None:
        """Where to read again, if it is time; the caller repositions the partition."""
        place, pipe = self.place, self.pipe
        if not self._is_failed or self._sent or place is None or pipe is None or not pipe.is_connected:
            return None
        if place.consumed < self._settled_to:
            return None  # the new place counts as consumed up to where it begins, which has to be so first
        return int(place.consumed) if time.monotonic() >= self._retry_at and not place.is_over else None
