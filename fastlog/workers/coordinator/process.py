"""The coordinator process: takes frames from the processors, has them handled, and sends the answers back.

It costs a broker that nobody asks next to nothing: it sleeps, and loads what it needs at the first frame. Killing it
delays no produce and no fetch; connections whose frames it had are closed by their processors, and its successor goes
on from what stands on the disk.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable

from fastlog import logs
from fastlog.log._shared_memory import COORDINATOR, STAGE_COORDINATOR
from fastlog.workers import child
from fastlog.workers._authorizer import Authorizer
from fastlog.workers.coordinator.context import Broker
from fastlog.workers.coordinator.dispatch import Dispatcher
from fastlog.workers.coordinator.frames import Frame
from fastlog.workers.coordinator.groups.groups import Groups
from fastlog.workers.coordinator.groups.report import answer_questions
from fastlog.workers.coordinator.link import Link
from fastlog.workers.coordinator.loop import Loop
from fastlog.workers.coordinator.topics import Topics

log = logging.getLogger(__name__)

MOST_REQUEST_BYTES_HELD = 64 << 20
"""Requests that are not answered yet, those of all processors together; beyond, no other is begun to be received."""

Answer = Callable[[bytes | None], None]
Handle = Callable[[Frame, Answer, Callable[[], None]], None]
"""Handles a request and calls back with the whole answer, its size before it; None: the connection is to close.

The second callback says before that that the request's bytes are not kept any more."""


class Coordinator:
    """The coordinator's parts and their loop; not thread-safe."""

    def __init__(self, shared: child.Shared, loop: Loop, handle: Handle) -> None:
        self._arena = shared.arena
        self._loop = loop
        self._handle = handle
        self._links = [Link(shared.arena, number, fd) for number, fd in enumerate(shared.forward_coordinator)]
        self._held = 0
        self._changes_seen = shared.arena.change_count
        loop.watch(self._arena.eventfd(COORDINATOR), selectors.EVENT_READ, lambda _: self.wake())
        self._watch_links()

    def close(self) -> None:
        """Give back the descriptors; what has been asked gets no answer."""
        for link in self._links:
            link.close()
        self._loop.close()

    def turn(self, most_seconds: float) -> None:
        """Wait for something to do, and do it."""
        self._arena.beat(COORDINATOR)
        self._see_changes()
        self._loop.turn(most_seconds)

    def wake(self) -> None:
        """Look at the shared memory, which may have changed."""
        self._arena.wake_taken(COORDINATOR)
        for link in self._links:
            link.look()
        self._loop.look()
        self._watch_links()

    def _see_changes(self) -> None:
        """Between two turns: say that this process is past the partitions that have gone, but for those that a step of
        the thread may have met: it began before they went.
        """
        now = self._arena.change_count
        mark = self._loop.step_mark  # in this order: a step that begins now looks at what is there now
        past = now if mark is None else min(now, mark)
        if past != self._changes_seen:
            self._changes_seen = past
            self._arena.see(COORDINATOR, past)

    def _watch_links(self) -> None:
        """Receive what there is memory for, and send what waits."""
        held = self._held + sum(link.held for link in self._links)
        for link in self._links:
            events = selectors.EVENT_WRITE if link.has_answers else 0
            # one whose request has begun is let finish: nothing moves before that
            if link.wants_requests and (held <= MOST_REQUEST_BYTES_HELD or link.held):
                events |= selectors.EVENT_READ
            self._loop.watch(link.fd, events, lambda events, link=link: self._ready(link, events))  # type: ignore[misc]

    def _ready(self, link: Link, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            link.send()
        if events & selectors.EVENT_READ:
            for frame in link.receive(MOST_REQUEST_BYTES_HELD - self._held):
                self._begin(link, frame)
        self._watch_links()

    def _begin(self, link: Link, frame: Frame) -> None:
        held = len(frame.body)
        self._held += held
        asked = frame._replace(body=b"")

        def let_go() -> None:
            nonlocal held
            self._held -= held
            held = 0
            self._watch_links()

        def answer(data: bytes | None) -> None:
            link.answer(asked, data)
            let_go()

        if not frame.body:
            answer(None)
            return
        try:
            self._handle(frame, answer, let_go)
        except Exception:
            log.exception("a request was not handled connection=%d bytes=%d", frame.connection, held)
            answer(None)


def run(shared: child.Shared, number: int) -> int:
    """Answer until the broker stops; the exit code of the process."""
    assert number == COORDINATOR
    signal_fd = child.begin(shared, number)
    loop = Loop(mark=lambda: shared.arena.change_count)
    # Python runs the handlers of signals by itself, once it is awake
    loop.watch(signal_fd, selectors.EVENT_READ, lambda _: os.read(signal_fd, 64))
    topics = Topics(shared.config, shared.arena, loop)
    groups = Groups(shared.config, loop, topics)
    broker = Broker(shared.config, shared.arena, shared.listeners, shared.cluster_id, topics, groups, Authorizer())
    coordinator = Coordinator(shared, loop, Dispatcher(broker, loop).handle)
    loop.start(topics.begin())
    loop.start(groups.begin())
    if shared.groups is not None:
        loop.start(answer_questions(shared.groups, groups))
    beat_at = 0.0
    while True:
        if os.getppid() != shared.supervisor_pid:
            return 1
        if shared.arena.stopping >= STAGE_COORDINATOR:
            return 0
        if time.monotonic() >= beat_at:
            # as if woken: a waker that died may have set the flag and not signalled
            beat_at = time.monotonic() + child.HEARTBEAT_MS / 1000
            coordinator.wake()
            topics.adopt()
            topics.shorten()
            groups.keep_house()
            logs.catch_up()
        coordinator.turn(child.HEARTBEAT_MS / 1000)
