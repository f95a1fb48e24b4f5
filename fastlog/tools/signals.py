"""SIGINT and SIGTERM as an exception that comes at once while a command waits, and never between two steps that
belong together.

A command that runs inside ``deferred()`` is interrupted only inside ``waiting()``, where nothing has been taken from a
socket or a file and not been counted yet. Outside ``deferred()`` a signal interrupts anywhere. For the main thread.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """SIGINT or SIGTERM came; not an Exception, so that nothing on the way takes it for an error."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum


class _State:
    deferring = False
    waiting = False
    pending = 0


def install() -> None:
    """Let SIGINT and SIGTERM raise ``Interrupted``."""
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)


def uninstall() -> None:
    """Give SIGINT and SIGTERM back to what Python and the system do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def deferred() -> Iterator[None]:
    """Interrupt only inside ``waiting()``; a second signal does not wait for that."""
    _State.deferring = True
    try:
        yield
    finally:
        _State.deferring = False
        _State.pending = 0


@contextmanager
def waiting() -> Iterator[None]:
    """Around a call that may block and takes nothing when it is interrupted, such as ``select``."""
    try:
        _State.waiting = True
        if _State.pending:
            signum, _State.pending = _State.pending, 0
            raise Interrupted(signum)
        yield
    finally:
        _State.waiting = False


def interrupt_after(seconds: int) -> None:
    """Raise ``Interrupted`` for SIGINT once that many seconds are over; 0 takes it back."""
    signal.signal(signal.SIGALRM, lambda signum, frame: _interrupt(signal.SIGINT, frame))
    signal.alarm(seconds)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if _State.deferring and not _State.waiting and not _State.pending:
        _State.pending = signum
        return
    raise Interrupted(signum)
