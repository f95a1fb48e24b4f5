"""The acceptor: takes connections in and hands each socket to the least busy processor.

When descriptors run out it pauses instead of spinning; a spare descriptor lets it close one waiting connection at once
rather than leave a client hanging. Killing it closes no connection: it holds none.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import socket
import termios
import time

from fastlog.log import _files
from fastlog.log._shared_memory import ACCEPTOR, FIRST_PROCESSOR
from fastlog.workers import child
from fastlog.workers.net.handover import HandOver

log = logging.getLogger(__name__)

TICK_SECONDS = child.HEARTBEAT_MS / 1000
PAUSE_SECONDS = 0.1
BUSY_STEP_PERMILLE = 100
"""Differences of load below a tenth do not decide; the number of connections does."""
ACCEPTS_PER_TURN = 64
LEAVING_TURNS = 17
"""As many as wait in the queue of a listening socket, which holds one more than it was given."""
LEAVING_SECONDS = 2.0
"""How long it waits at the stop for room to hand them over: a little less than processors wait for them."""
LEAVING_PAUSE_SECONDS = 0.02
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts connections and hands them to processors. One process, one thread."""

    def __init__(self, shared: child.Shared) -> None:
        self._shared = shared
        self._arena = shared.arena
        self._processors = list(range(FIRST_PROCESSOR, shared.arena.processes))
        self._senders = [socket.socket(fileno=os.dup(fd)) for fd in shared.handoff_send]
        for sender in self._senders:
            sender.setblocking(False)
        self._listeners = {listener.fd: socket.socket(fileno=os.dup(listener.fd)) for listener in shared.listeners}
        for listener in self._listeners.values():
            listener.setblocking(False)
        self._poll = select.poll()
        self._poll.register(shared.arena.eventfd(ACCEPTOR), select.POLLIN)
        self._listening = False  # until the first turn
        self._spare = self._open_spare()
        self._waiting: tuple[socket.socket, HandOver] | None = None  # accepted while every hand-over queue was full
        self._turn = 0
        self._sent = [shared.arena.handed_over(number) for number in self._processors]
        self._pids = [shared.arena.cell(number)[0] for number in self._processors]

    def run(self) -> int:
        """Accept until the broker stops; the exit code of the process."""
        resume_at = 0.0
        while True:
            self._arena.beat(ACCEPTOR)
            if os.getppid() != self._shared.supervisor_pid:
                return 1
            if self._arena.stopping:
                self._take_the_rest()
                return 0
            now = time.monotonic()
            if not self._listening and now >= resume_at:
                if self._hand_over_waiting():
                    self._listen(True)
                else:
                    resume_at = now + PAUSE_SECONDS
            timeout = TICK_SECONDS if self._listening else min(TICK_SECONDS, resume_at - now)
            ready = {fd for fd, _ in self._poll.poll(max(1, timeout * 1000))}
            if self._arena.eventfd(ACCEPTOR) in ready:
                self._arena.wake_taken(ACCEPTOR)
            for number, (fd, listener) in enumerate(self._listeners.items()):
                if fd in ready and not self._accept(number, listener):
                    self._arena.count(ACCEPTOR, "accept_pauses")
                    self._listen(False)
                    resume_at = time.monotonic() + PAUSE_SECONDS
                    break

    def _listen(self, on: bool) -> None:
        for fd in self._listeners:
            if on and not self._listening:
                self._poll.register(fd, select.POLLIN)
            elif not on and self._listening:
                self._poll.unregister(fd)
        self._listening = on

    def _accept(self, number: int, listener: socket.socket) -> bool:
        """Take what waits on one listening socket, by its place in the list; False when accepting should pause."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    log.warning("accepting pauses reason=%s: raise the limit of open files (ulimit -n)", error.strerror)
                    self._close_one(listener)
                    return False
                # the connection went away while it waited (ECONNABORTED and its like)
                continue
            record = HandOver.accepted(number, address)
            if not self._hand_over(connection, record):
                log.warning("accepting pauses reason=every hand-over queue is full: no processor takes connections now")
                self._waiting = connection, record
                return False
        return True

    def _hand_over_waiting(self) -> bool:
        """Whether nothing that was accepted waits for room in a hand-over queue, now."""
        if self._waiting is not None and self._hand_over(*self._waiting):
            self._waiting = None
        return self._waiting is None

    def _take_the_rest(self) -> None:
        """The broker stops: what has connected before may have sent something, and the processors wait for it."""
        leave_by = time.monotonic() + LEAVING_SECONDS
        for number, listener in enumerate(self._listeners.values()):
            turns = 0
            while turns < LEAVING_TURNS:
                if self._hand_over_waiting() and self._accept(number, listener):
                    turns += 1
                elif time.monotonic() < leave_by:
                    time.sleep(LEAVING_PAUSE_SECONDS)
                else:
                    self._close_waiting()
                    return

    def _close_waiting(self) -> None:
        if self._waiting is not None:
            log.warning("a connection is closed unserved: no processor took it before the stop")
            self._arena.count(ACCEPTOR, "refused_connections")
            self._waiting[0].close()
            self._waiting = None

    def _hand_over(self, connection: socket.socket, record: HandOver) -> bool:
        """Give the socket away or refuse it, and close it here; False, and still open: no processor takes one now."""
        load = [self._arena.cell(number) for number in self._processors]
        self._forget_lost(load)
        opened = [
            cell[3] + max(0, self._sent[place] - self._arena.handed_over(number))
            for place, (cell, number) in enumerate(zip(load, self._processors, strict=True))
        ]
        if sum(opened) >= self._shared.config.max_connections:
            log.warning("connection refused: max.connections=%d are open", self._shared.config.max_connections)
            self._arena.count(ACCEPTOR, "refused_connections")
            connection.close()
            return True
        self._turn += 1
        places = range(len(self._processors))
        order = sorted(
            places,
            key=lambda place: (
                load[place][2] // BUSY_STEP_PERMILLE,
                opened[place],
                (place - self._turn) % len(self._processors),
            ),
        )
        for place in order:
            try:
                socket.send_fds(self._senders[place], [record.pack()], [connection.fileno()])
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS, *OUT_OF_DESCRIPTORS):
                    raise
                continue
            _files.reach("handover.sent")
            self._sent[place] += 1
            connection.close()
            return True
        return False

    def _forget_lost(self, load: list[tuple[int, int, int, int, int]]) -> None:
        """A processor that died with a connection in its hand never says so; none is on its way to an empty queue."""
        for place, (number, cell) in enumerate(zip(self._processors, load, strict=True)):
            if cell[0] != self._pids[place] and not _unreceived(self._senders[place]):
                self._pids[place] = cell[0]
                self._sent[place] = self._arena.handed_over(number)

    def _open_spare(self) -> int:
        try:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1

    def _close_one(self, listener: socket.socket) -> None:
        """Out of descriptors: with the spare one, accept one connection and close it, so that its client knows."""
        if self._spare < 0:
            self._spare = self._open_spare()
            return
        os.close(self._spare)
        try:
            listener.accept()[0].close()
            self._arena.count(ACCEPTOR, "refused_connections")
        except OSError:
            log.debug("the waiting connection went away by itself")
        self._spare = self._open_spare()


def run(shared: child.Shared, number: int) -> int:
    """Accept until the broker stops; the exit code of the process."""
    assert number == ACCEPTOR
    child.begin(shared, number)
    return Acceptor(shared).run()


def _unreceived(sender: socket.socket) -> bool:
    """Whether something that was sent there has not been received."""
    return fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)) != bytes(4)
