"""``Mirror``: several source clusters into one, until it is stopped."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time

from fastlog.client.addresses import Address, resolve
from fastlog.errors import FastlogError
from fastlog.limited_log import LimitedLog
from fastlog.mirror.config import MirrorConfig, loop_error
from fastlog.mirror.counting import Counting
from fastlog.mirror.pieces import Observer
from fastlog.mirror.source import MessageSource
from fastlog.mirror.target import Pipes, make_target

log = logging.getLogger(__name__)
limited_log = LimitedLog(log)

_BUSY_SECONDS = 0.05
_IDLE_SECONDS = 0.25
_RESOLVE_SECONDS = 2.0
_LOOKUP_PATIENCE = 10.0
_CHECK_SECONDS = 1.0
"""Until a name is looked up again that is waited for."""
_RECHECK_SECONDS = 30.0
"""And one that is not."""
_LEAVE_SECONDS = 5.0


class Mirror:
    """Forwards what the sources have into the target. ``start``, ``wait`` and ``stop`` for one thread.

    Source offsets are committed after the target has acknowledged. Nothing ends it but ``stop``, and a source that
    turns out to be the target itself: brokers and ZooKeepers that are unavailable are tried again for ever.

    Source: Kafka 0.7.2 (MirrorMaker), which commits what it has read.
    """

    def __init__(self, config: MirrorConfig, observer: Observer | None = None) -> None:
        """``observer`` is called for everything that was forwarded, before the source's offset moves."""
        self.config = config
        self._news = threading.Event()
        self._stop = threading.Event()
        self._target = make_target(config, self._news.set)
        self._pipes = Pipes(config, self._target, self._room)
        self._counting: Counting | None = None
        if config.settings.audit_stage is not None:
            observer = self._counting = Counting(config.settings.audit_stage, config, observer)
        self.sources = [
            MessageSource(source, config, self._target, self._pipes, observer, self._news.set)
            for source in config.sources
        ]
        self._fatal: FastlogError | None = None
        self._checked: object = None
        self._check_again = self._wait_until = 0.0
        self._thread = threading.Thread(target=self._run, name="fastlog-mirror", daemon=True)

    def start(self) -> None:
        """Start the threads; returns at once."""
        self._thread.start()
        for source in self.sources:
            source.start()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``.

        Raises:
            FastlogError: it cannot go on: a setting cannot be used, or a source is the target itself.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._fatal is None:
            time.sleep(min(left, 0.1))
        if self._fatal is not None:
            raise self._fatal

    def stop(self, seconds: float = 10.0) -> list[str]:
        """Take nothing more, wait for what is under way, commit, leave; a line for whatever was left undone."""
        for source in self.sources:
            source.hold()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(source.is_under_way for source in self.sources):
            time.sleep(0.01)
        left = [f"{source.name}: not all was acknowledged" for source in self.sources if source.is_under_way]
        self._stop.set()
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join(_LEAVE_SECONDS)
        for source in self.sources:
            error = source.stop(_LEAVE_SECONDS)
            if error is not None:
                left.append(f"{source.name}: {error}")
        self._pipes.stop(_LEAVE_SECONDS)
        self._target.stop()
        if self._counting is not None:
            self._counting.close()
        return left

    @property
    def is_acknowledged(self) -> bool:
        """What counts as forwarded is stored; False where a broker of the target was sent something unanswered."""
        return self._pipes.are_acknowledged

    @property
    def target_errors(self) -> list[str]:
        """A line for each broker of the target that cannot be reached."""
        return self._pipes.errors

    def _room(self) -> None:
        for source in self.sources:
            source.wake_streams()
        self._news.set()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.clear()
            try:
                self._check_for_loops()
                for source in self.sources:
                    self._fatal = self._fatal or source.fatal
                    source.look()
                self._pipes.sweep()
            except FastlogError as error:
                self._fatal = self._fatal or error
            except Exception as error:
                log.exception("mirroring")
                self._fatal = self._fatal or FastlogError(f"mirroring failed: {error!r}")
            if self._fatal is not None:
                for source in self.sources:
                    source.hold()
                return
            busy = any(source.is_busy for source in self.sources)
            self._news.wait(_BUSY_SECONDS if busy else _IDLE_SECONDS)

    def _check_for_loops(self) -> None:
        """See that no broker of a source is one of the target; nothing of a source is forwarded before that.

        Names that cannot be looked up are waited for at first, and looked up again and again: what has no address
        cannot be reached until it has one.
        """
        target = dict(self._target.addresses())
        sources = [dict(source.consumer.brokers) if source.consumer is not None else {} for source in self.sources]
        state = target, sources
        now = time.monotonic()
        if not target or (state == self._checked and now < self._check_again):
            return
        if state != self._checked:
            self._wait_until = now + _LOOKUP_PATIENCE
        names = {address: _places(address) for known in (target, *sources) for address in known.values()}
        unknown = [str(address) for address, found in sorted(names.items()) if not found]
        if unknown:
            limited_log.warning("names", "cannot be looked up: %s", ", ".join(unknown))
        waits = now < self._wait_until and bool(unknown)
        of_target = {place for address in target.values() for place in (address, *names[address])}
        for source, addresses in zip(self.sources, sources, strict=True):
            for address in addresses.values():
                if not of_target.isdisjoint((address, *names[address])):
                    raise loop_error(source.name, f"{address} is a broker of both")
            source.is_checked = source.is_checked or (bool(addresses) and not waits)
        self._checked = state
        pause = (_CHECK_SECONDS if waits else _RECHECK_SECONDS) if unknown else math.inf
        self._check_again = time.monotonic() + pause


def _places(address: Address) -> set[Address]:
    """The addresses that a name has; none when the resolver does not tell."""
    try:
        return {
            Address(str(target[0]), address.port)
            for family, _, _, target in resolve(address, _RESOLVE_SECONDS)
            if family in (socket.AF_INET, socket.AF_INET6)
        }
    except OSError:
        return set()
