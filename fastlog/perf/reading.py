"""The threads that read: what they count, and how they share the messages that are wanted."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

from fastlog.errors import ClosedError, FastlogError
from fastlog.perf.sending import IntervalReports


class LocalReadError(FastlogError):
    """The segment files cannot be read from here."""


class MessageQuota:
    """How many messages are still wanted; threads take from it."""

    def __init__(self, messages: int | None) -> None:
        self.left = messages
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether no more messages are wanted."""
        return self.left == 0

    def take(self, count: int) -> int:
        """Of ``count`` messages that came, how many are wanted."""
        if self.left is None:
            return count
        with self._lock:
            taken = min(count, self.left)
            self.left -= taken
        return taken


class ReadingThread(ABC):
    """One reading thread. The counts may be read from any thread."""

    def __init__(self, number: int, share: MessageQuota, reports: IntervalReports | None) -> None:
        self.count = 0
        self.payload_bytes = 0
        self.last_at = 0.0
        """When the last message was counted, on the clock of ``time.perf_counter``."""
        self.source = "socket"
        self.error: BaseException | None = None
        self.stopping = False
        self.finished = threading.Event()
        self._share = share
        self._reports = reports
        self._thread = threading.Thread(target=self._run, name=f"fastlog-perf-reader-{number}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End, also in the middle of waiting; waits for nothing."""
        self.stopping = True
        self._let_go()

    def join(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the thread to end."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        try:
            self._read()
            if self._reports is not None and self.count % self._reports.every:
                self._reports.tell(self.count, self.payload_bytes)  # 0.7's threads report at their end, too
        except ClosedError as error:
            if not self.stopping:
                self.error = error
        except BaseException as error:
            self.error = error
        finally:
            self._let_go()
            self.finished.set()

    @abstractmethod
    def _read(self) -> None:
        """Read until there is nothing more, or ``_done``."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close what is read from, whoever waits for it; may be called again, from any thread."""

    def _done(self) -> bool:
        return self.stopping or self._share.is_empty

    def _note(self, count: int, size: int) -> None:
        self.count += count
        self.payload_bytes += size
        self.last_at = time.perf_counter()

    def _pieces(self, batch: list[bytes]) -> Iterator[list[bytes]]:
        """Of a batch what is wanted, cut where a report is due."""
        taken = self._share.take(len(batch))
        if taken < len(batch):
            batch = batch[:taken]
        reports = self._reports
        if reports is None:
            if batch:
                yield batch
            return
        at = 0
        while at < len(batch):
            piece = batch[at : at + reports.left(self.count)]
            yield piece
            reports.due(self.count, self.payload_bytes)
            at += len(piece)

    def _note_lengths(self, lengths: object) -> None:
        """Count the messages of an array of lengths, as far as they are wanted."""
        import numpy

        found = numpy.asarray(lengths)
        found = found[: self._share.take(len(found))]
        reports = self._reports
        at = 0
        while at < len(found):
            piece = found[at:] if reports is None else found[at : at + reports.left(self.count)]
            self._note(len(piece), int(piece.sum(dtype=numpy.int64)))
            if reports is not None:
                reports.due(self.count, self.payload_bytes)
            at += len(piece)
