"""Logging of the broker's processes: one event per line on stderr, and never more lines than somebody can read.

No process waits for whoever reads them: what finds no room is dropped, and the next line that finds some says how many.

A line with the same text is written once in ten seconds. Of what clients cause, a line is written once in that time
for each kind of event and client, whatever its text: the text is what the client has chosen. All lines together are
bounded as well, and what is left out is counted in a line of its own.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fastlog.escaping import EscapingFormatter
from fastlog.standard_error import StandardError

REPEAT_SECONDS = 10.0
MOST_OF_CLIENTS = 100
"""How many lines about what clients cause are written in ``REPEAT_SECONDS``, at most."""
MOST_LINES = 1000
"""All lines of a process in that time, from warnings up."""
REQUEST_LOGGER, SWITCH_LOGGER = "fastlog.request", "fastlog.logging"
"""Their lines are written whatever the level: who switches requests on wants to see them, and that it was heard."""
LAST_WORD_SECONDS = 1.0
"""How long ``say`` waits for room: what it says is waited for."""


LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
"""By their names, in the order of their signals."""
SIGNALS: dict[int, tuple[str | None, bool | None]] = {
    **{signal.SIGRTMIN + number: (name, None) for number, name in enumerate(LEVELS, 1)},
    signal.SIGRTMIN + len(LEVELS) + 1: (None, True),
    signal.SIGRTMIN + len(LEVELS) + 2: (None, False),
}
"""Real-time signals that tell a supervisor what is written from now on: the level, or whether requests are logged."""

_least: Sequence[int] = (logging.INFO,)
"""The lowest level that is written: the first item, which may be changed from outside (``follow``)."""


def follow(level: Sequence[int]) -> None:
    """From now on the first item is the least level that is written, whoever changes it; children inherit that."""
    global _least
    _least = level
    logging.getLogger().setLevel(logging.DEBUG)  # so that every line comes so far as to be looked at


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


class Handler(logging.Handler):
    """What ``set_up`` gives the root logger.

    ``timeout``: seconds that a line waits for a reader who is only slow, unless the one before was dropped.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self.output = StandardError(sys.stderr)
        self._timeout = timeout
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < _least[0] and record.name not in (REQUEST_LOGGER, SWITCH_LOGGER):
            return
        self._say(self._limit.left_out())
        if self._limit.admits(record):
            self._write(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A line whose arguments do not fit it; never on a stream that may wait."""
        self.output.write(f"a line of the log cannot be written: {record.msg!r}\n{traceback.format_exc()}")

    def close(self) -> None:
        self.acquire()
        try:
            self._say(self._limit.left_out(at_end=True))
            self.catch_up()
        finally:
            self.release()
        super().close()

    def catch_up(self) -> bool:
        """Say how many lines were dropped, if there is room now; whether none was, or that is said."""
        dropped = self.output.dropped
        if not dropped:
            self.output.finish()
            return True
        line = f"dropped lines={dropped}: nobody read standard error"
        if not self.output.write(self.format(_warning(line)) + "\n"):
            self.output.dropped = dropped
            return False
        self.output.dropped = 0
        return True

    def _write(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        timeout = 0.0 if self.output.dropped else self._timeout
        if self.catch_up():
            self.output.write(text, timeout)
        else:
            self.output.dropped += 1

    def _say(self, lines: Iterator[str]) -> None:
        for line in lines:
            self._write(_warning(line))


def _warning(line: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, line, (), None)


def _ours() -> Handler | None:
    return next((each for each in logging.getLogger().handlers if isinstance(each, Handler)), None)


def set_up(role: str, timeout: float = 0.0) -> None:
    """Write this process's log to stderr with its role and pid; called again in every child.

    ``timeout``: how many seconds a line may wait for a reader who is slow. One that reads nothing costs it once.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        if isinstance(handler, Handler):
            handler.output.close()
    made = Handler(timeout)
    made.setFormatter(
        EscapingFormatter(
            f"%(asctime)s.%(msecs)03d %(levelname)s {role}[{os.getpid()}] %(message)s", "%Y-%m-%d %H:%M:%S"
        )
    )
    root.addHandler(made)
    root.setLevel(logging.DEBUG if isinstance(_least, memoryview) else logging.INFO)


def say(line: str) -> None:
    """Write a line that is not of the log to stderr: what a start or a stop came to. Waits a moment for a reader."""
    handler = _ours()
    if handler is None:
        print(line, file=sys.stderr, flush=True)
        return
    handler.acquire()
    try:
        handler.output.write(f"{line}\n", LAST_WORD_SECONDS)
    finally:
        handler.release()


def catch_up() -> None:
    """Say how many lines were dropped, once there is room; for loops that may have nothing else to say for long."""
    handler = _ours()
    if handler is not None:
        handler.acquire()
        try:
            handler.catch_up()
        finally:
            handler.release()


def descriptor() -> int | None:
    """The descriptor of stderr that does not wait, where there is one; None where stderr is no file."""
    handler = _ours()
    return None if handler is None else handler.output.fileno()


def close() -> None:
    """Say what was left out so far: the process ends."""
    for handler in logging.getLogger().handlers:
        handler.close()
