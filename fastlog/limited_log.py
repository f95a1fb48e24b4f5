"""Log lines about what may go wrong a thousand times: each kind at most once in ten seconds, until it is over."""

from __future__ import annotations

import logging
import time

from fastlog.escaping import printable

REPEAT_SECONDS = 10.0
_MOST_REMEMBERED = 1024
_MOST_CHARACTERS = 2000  # of names and values that others wrote


class LimitedLog:
    """A logger that leaves out lines. Safe in several threads, as far as counts may be off by a few."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._seen: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, message: str, *arguments: object) -> None:
        """Log a warning; see ``log``."""
        self.log(logging.WARNING, kind, message, *arguments)

    def log(self, level: int, kind: str, message: str, *arguments: object) -> None:
        """Log it unless one of its kind was logged just now; the next one says how many were left out."""
        now = time.monotonic()
        last, left_out = self._seen.get(kind, (-REPEAT_SECONDS, 0))
        if now - last < REPEAT_SECONDS:
            self._seen[kind] = (last, left_out + 1)
            return
        if len(self._seen) >= _MOST_REMEMBERED:
            self._seen.clear()
        self._seen[kind] = (now, 0)
        text = printable(message % arguments if arguments else message, "\n", _MOST_CHARACTERS)
        more = f" (and {left_out} more like it)" if left_out else ""
        self._logger.log(level, "%s%s", text, more)

    def over(self, kind: str) -> None:
        """It goes well again: the next one of its kind is logged at once."""
        self._seen.pop(kind, None)
