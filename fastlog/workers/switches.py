"""What of the log can be changed while the broker runs: which lines are written, and whether each request is one.

    byte 0: 1 while each request is a line of the logger ``fastlog.request``
    byte 1: the least level that is written, as ``logging`` numbers it

The supervisor makes the memory before the first fork and alone writes it, single bytes; the others look at each line.
"""

from __future__ import annotations

import logging
import mmap

from fastlog.logs import LEVELS, SIGNALS

_REQUESTS, _LEVEL = 0, 1


class Switches:
    """The two bytes; ``requests`` is what the setting ``trace.requests`` says at the start."""

    def __init__(self, requests: bool = False) -> None:
        self._bytes = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._bytes[_REQUESTS] = requests
        self._bytes[_LEVEL] = logging.INFO

    @property
    def tracing(self) -> memoryview:
        """The byte of requests, for compiled code."""
        return self._bytes[_REQUESTS : _REQUESTS + 1]

    @property
    def level_cell(self) -> memoryview:
        """The byte of the level, for ``logs``."""
        return self._bytes[_LEVEL : _LEVEL + 1]

    @property
    def requests(self) -> bool:
        """Whether each request is a line."""
        return bool(self._bytes[_REQUESTS])

    @property
    def level(self) -> str:
        """The name of the least level that is written."""
        return logging.getLevelName(self._bytes[_LEVEL]).lower()

    def set(self, number: int) -> None:
        """Do what a signal of ``SIGNALS`` says."""
        level, requests = SIGNALS[number]
        if level is not None:
            self._bytes[_LEVEL] = LEVELS[level]
        if requests is not None:
            self._bytes[_REQUESTS] = requests
