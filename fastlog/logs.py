"""Logging of the broker's processes: one event per line on stderr, identical lines at most once in a while."""

from __future__ import annotations

import logging
import os
import sys
import time

from fastlog.escaping import EscapingFormatter

REPEAT_SECONDS = 10.0
MAX_REMEMBERED = 1024


class RepeatFilter(logging.Filter):
    """Lets one of many identical lines through per ten seconds, the next one with a count of what was left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is written."""
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.getMessage())
        now = time.monotonic()
        last, left_out = self._seen.get(key, (-REPEAT_SECONDS, 0))
        if now - last < REPEAT_SECONDS:
            self._seen[key] = (last, left_out + 1)
            return False
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if left_out:
            record.msg = f"{key[1]} (and {left_out} more like it)"
            record.args = ()
        return True


def set_up(role: str) -> None:
    """Write this process's log to stderr with its role and pid; called again in every child."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        EscapingFormatter(
            f"%(asctime)s.%(msecs)03d %(levelname)s {role}[{os.getpid()}] %(message)s", "%Y-%m-%d %H:%M:%S"
        )
    )
    handler.addFilter(RepeatFilter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
