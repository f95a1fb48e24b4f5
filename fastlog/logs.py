"""Logging of the broker's processes: one event per line on stderr, and never more lines than somebody can read.

A line with the same text is written once in ten seconds. Of what clients cause, a line is written once in that time
for each kind of event and client, whatever its text: the text is what the client has chosen. All lines together are
bounded as well, and what is left out is counted in a line of its own.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fastlog.escaping import EscapingFormatter

REPEAT_SECONDS = 10.0
MOST_OF_CLIENTS = 100
"""Lines in so many seconds about what clients cause."""
MOST_LINES = 1000
"""All lines of a process in that time, from warnings up."""


def about(kind: str, *who: object) -> dict[str, object]:
    """``extra`` for a line that a client can cause: one of this kind about whom it names is enough for a while."""
    return {"about": (kind, *who)}


@dataclass(slots=True)
class _Repeated:
    text: str
    written_at: float
    left_out: int = 0


class LineLimit:
    """Which lines are written, and how many were not; the caller holds the handler's lock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[object, _Repeated] = {}
        self._interval_at = now()
        self._lines = self._of_clients = self._left_out = 0

    def admits(self, record: logging.LogRecord) -> bool:
        """Whether this line is written now; it then also says how many like it were not."""
        if record.levelno < logging.WARNING:
            return True
        about_whom = getattr(record, "about", None)
        text = record.getMessage()
        key = about_whom or (record.name, text)
        now = self._now()
        seen = self._seen.get(key)
        if seen is not None and now - seen.written_at < REPEAT_SECONDS:
            seen.left_out += 1
            return False
        if self._lines >= MOST_LINES or (about_whom and self._of_clients >= MOST_OF_CLIENTS):
            self._left_out += 1
            return False
        self._lines += 1
        self._of_clients += bool(about_whom)
        self._seen[key] = _Repeated(text, now)
        if seen is not None and seen.left_out:
            record.msg, record.args = f"{text} (and {seen.left_out} more like it)", ()
        return True

    def left_out(self, *, at_end: bool = False) -> Iterator[str]:
        """Lines about those that were left out and whose time is over, each once; ``at_end``: about all of them."""
        now = self._now()
        if not at_end and now - self._interval_at < REPEAT_SECONDS:
            return
        if self._left_out:
            yield f"{self._left_out} more lines left out in {now - self._interval_at:.0f} s"
        self._interval_at = now
        self._lines = self._of_clients = self._left_out = 0
        for key, seen in list(self._seen.items()):
            # twice the time: one that goes on says it in its own next line
            if at_end or now - seen.written_at >= 2 * REPEAT_SECONDS:
                del self._seen[key]
                if seen.left_out:
                    yield f"{seen.text} (and {seen.left_out} more like it)"


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # generic for type checkers alone
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self._limit.left_out())
        if self._limit.admits(record):
            super().emit(record)

    def close(self) -> None:
        self.acquire()
        try:
            self._say(self._limit.left_out(at_end=True))
        finally:
            self.release()
        super().close()

    def _say(self, lines: Iterator[str]) -> None:
        for line in lines:
            super().emit(logging.LogRecord(__name__, logging.WARNING, __file__, 0, line, (), None))


def set_up(role: str) -> None:
    """Write this process's log to stderr with its role and pid; called again in every child."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = _Handler()
    handler.setFormatter(
        EscapingFormatter(
            f"%(asctime)s.%(msecs)03d %(levelname)s {role}[{os.getpid()}] %(message)s", "%Y-%m-%d %H:%M:%S"
        )
    )
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def close() -> None:
    """Say what was left out so far: the process ends."""
    for handler in logging.getLogger().handlers:
        handler.close()
