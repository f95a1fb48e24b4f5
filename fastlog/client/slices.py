"""Blocking in slices: a signal that comes in the moment before a call blocks does not interrupt it.

Python looks for signals before and after such a call; in between, the call would go on for all of its time with the
signal already there. Only the main thread runs signal handlers, so only it blocks in slices.
"""

from __future__ import annotations

import select
import socket
import threading
import time

_SLICE_SECONDS = 0.1


def slice_of(seconds: float) -> float:
    """How much of ``seconds`` (negative: no end) this thread may block for at once."""
    if threading.get_ident() != threading.main_thread().ident:
        return seconds
    return min(seconds, _SLICE_SECONDS) if seconds >= 0 else _SLICE_SECONDS


def wait_ready(sock: socket.socket, event: int, seconds: float) -> bool:
    """Whether a socket is ready for ``select.POLLIN`` or ``POLLOUT`` within ``seconds``.

    Raises:
        ValueError: it is closed.
    """
    waiting = select.poll()  # not select(), which fails where a process has many descriptors
    waiting.register(sock, event)
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.001, deadline - time.monotonic())
        step = slice_of(left)
        if waiting.poll(step * 1000):
            return True
        if step == left:
            return False


def sleep(seconds: float) -> None:
    """Sleep for ``seconds``; a signal handler runs in time, also one that raises."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(slice_of(left))
