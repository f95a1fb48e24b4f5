"""What becomes of producers that are open when the program ends or forks."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol

from fastlog.counts import counted
from fastlog.errors import DeliveryError, FastlogError
from fastlog.producer.ledger import logger


class Closable(Protocol):
    """A producer, as far as its end is concerned."""

    def close(self) -> None: ...
    def _unfinished(self) -> int: ...
    def _leave_to_parent(self) -> None: ...


_live: weakref.WeakSet[Closable] = weakref.WeakSet()


def register(producer: Closable) -> None:
    """Close it at the end of the program when the program does not, and make it unusable in forked children."""
    _live.add(producer)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # Such a process ends without atexit; its own list of things to do at the end is gone through.
        from multiprocessing import util

        util.Finalize(None, _drain_child, exitpriority=-100)


def forget(producer: Closable) -> None:
    """Forget a producer that was closed: there is nothing to do for it at the end of the program."""
    _live.discard(producer)


def _drain_all() -> None:
    """Close every producer that the program left open; lost messages make the exit code 1, and a loud line."""
    global _failure
    for producer in list(_live):
        try:
            producer.close()
        except (FastlogError, KeyboardInterrupt) as error:
            _failure = _Failure()
            if isinstance(error, KeyboardInterrupt):
                error = DeliveryError(f"interrupted, {counted(producer._unfinished(), 'message', 'was')} not delivered")
            line = f"fastlog: PRODUCER LEFT OPEN AT EXIT: {error}"
            logger.error("%s", line)
            print(line, file=sys.stderr, flush=True)
        _live.discard(producer)


class _Failure:
    """Makes the exit code 1. An exit handler cannot do that; this is destroyed with the module, when all of them have
    run and the standard streams are flushed."""

    def __del__(self, leave: Callable[[int], object] = os._exit) -> None:
        leave(1)


_failure: _Failure | None = None


def _drain_child() -> None:
    """The same for a process of multiprocessing, whose other things to do at the end are done by now."""
    global _failure
    _drain_all()
    if _failure is not None:
        sys.stdout.flush()
        _failure = None


def _after_fork_in_child() -> None:
    for producer in list(_live):
        producer._leave_to_parent()
        _live.discard(producer)


atexit.register(_drain_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
