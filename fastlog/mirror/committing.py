"""When the offsets of a source move: once the observer has kept what was reported to it, in time for the lanes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from fastlog.consumer._delivery import Place
from fastlog.consumer.connector import Consumer
from fastlog.consumer.feed import AutoResetEvent
from fastlog.errors import FastlogError
from fastlog.limited_log import LimitedLog
from fastlog.mirror.pieces import Observer

log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.5
_LEAST_PAUSE = 0.005
_RETRY_SECONDS = 1.0


class Committer:
    """Commits of one source. ``settled`` and ``wake`` are for any thread, ``run`` has one of its own.

    The group commits by itself what counts as consumed. This decides what does; and commits at once where a lane may
    not send on before that.
    """

    def __init__(self, name: str, observer: Observer | None, is_wanted: Callable[[], bool]) -> None:
        """``is_wanted``: whether a lane waits for a commit."""
        self._name = name
        self._keep: Callable[[], object] | None = getattr(observer, "keep", None)
        self._is_wanted = is_wanted
        self._unkept: dict[Place, int] = {}
        self._lock = threading.Lock()
        self._wakeup = AutoResetEvent()
        self._over = threading.Event()
        self._log = LimitedLog(log)

    def settled(self, place: Place, next_offset: int) -> None:
        """Note that everything below this offset was acknowledged and passed to the observer."""
        if self._keep is None:
            place.done(next_offset)
            return
        with self._lock:
            is_first = not self._unkept
            self._unkept[place] = next_offset
        if is_first:
            self._wakeup.set()

    def wake(self) -> None:
        """Have ``run`` look whether a lane waits for a commit."""
        self._wakeup.set()

    def run(self, consumer: Consumer, committed: Callable[[], None]) -> None:
        """Commit until ``stop``; ``committed`` is called after each try, whether it has worked or not."""
        while not self._over.is_set():
            self._wakeup.wait(None)
            if not self._is_wanted() and not self._over.is_set():
                self._wakeup.wait(_GATHER_SECONDS)
            if self._over.is_set():
                return
            began = time.monotonic()
            try:
                self.keep()
                if self._is_wanted():
                    consumer.commit_offsets()
            except FastlogError as error:
                self._log.warning("offsets", "source=%s: offsets wait: %s", self._name, " ".join(str(error).split()))
                self._over.wait(_RETRY_SECONDS)
                self._wakeup.set()
            committed()
            self._over.wait(max(0.0, began + _LEAST_PAUSE - time.monotonic()))

    def stop(self) -> None:
        """Have ``run`` return soon; waits for nothing."""
        self._over.set()
        self._wakeup.set()

    def keep(self) -> None:
        """Let what was settled count as consumed.

        Raises:
            FastlogError: the observer cannot keep it now, and nothing moves.
        """
        if self._keep is None:
            return
        with self._lock:
            unkept = dict(self._unkept)
        if not unkept:
            return
        self._keep()
        with self._lock:
            for place, offset in unkept.items():
                place.done(offset)
                if self._unkept.get(place) == offset:  # two may be at it: the end does not wait for ``run``
                    del self._unkept[place]
