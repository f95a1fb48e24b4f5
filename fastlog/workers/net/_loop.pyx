"""The event loop of a processor: new connections, wake-ups, timers. Compiled, and without the GIL but for rare requests.

What becomes of one connection is in ``_sockets``. Nothing on the loop waits for a disk or a lock.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    FL_ACCEPTOR, FL_FIRST_PROCESSOR, FL_SEEN_ALL, fl_bump, fl_cell, fl_cell_at, fl_clear_wake_flag, fl_header, fl_load,
    fl_monotonic_ns, fl_store, fl_wake, fl_wake_taken,
)
from fastlog.log._shared_memory cimport N_ACCEPT_PAUSES, N_HANDOVERS, N_IDLE_CLOSED, N_REFUSED
from fastlog.log._files cimport AT_HANDOVER_TAKEN, AT_PROCESSOR_PAST, failpoint
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers.net._connection cimport (
    LARGE_ANSWER, OWED, WAIT_BUDGET, WAIT_CREATE, WAIT_ROOM, WAIT_VISIBLE, Conn, Job, Pool, conn_trim, out_pending,
)
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.net._protocol cimport Protocol
from fastlog.workers.net._remote cimport Remote
from fastlog.workers.net._slot_waits cimport SlotWaits
from fastlog.workers.net._sockets cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP,
    MAX_LISTENERS, Connections, epoll_ctl, epoll_event, epoll_wait, fl_handover,
)

import logging

cdef extern from "<unistd.h>" nogil:
    int close(int)
    int getppid()
    ssize_t read(int, void*, size_t)

cdef extern from "_handoff.h" nogil:
    # takes one connection: >= 0, -1: none is there, -2: it was lost (this process is out of descriptors)
    int fl_receive_fd(int, fl_handover*)
    # the same from a listening socket, -1 with errno
    int fl_accept(int, int, fl_handover*)

cdef enum:
    LAST_CALL_NS = 2500000000
    LONG_TURN_NS = 1000000000
    EVENTS = 128
    HANDOFFS_PER_TURN = 64
    BACKLOG_TURNS = 16              # as many as wait in the queue of a listening socket, at the stop
    RESTING_NS = 1000000000
    TAG_WAKE = 1
    TAG_HANDOFF = 2
    TAG_SIGNAL = 3
    TAG_HELPER = 4
    TAG_REMOTE = 5
    TAG_LISTENER = 16
    TAGS_END = 4096


log = logging.getLogger(__name__)


cdef class Loop:
    """Serves connections until the supervisor says stop; one thread."""

    cdef Arena arena
    cdef Helper helper
    cdef Connections connections
    cdef SegmentFiles files
    cdef Remote remote
    cdef bint remote_has_room            # it is not watched for room
    cdef int process, handoff, signal_fd
    cdef int[MAX_LISTENERS] listeners
    cdef int listener_count
    cdef uint64_t idle_ns, max_connections, heartbeat_ns
    cdef uint64_t stalled_ns             # how long others wait for memory of one that neither sends nor takes anything
    cdef readonly uint64_t turns         # of the loop so far
    cdef bint listening
    cdef uint64_t seen                   # changes of slots' lives that this process is past
    cdef uint64_t* counters

    def __cinit__(self, Arena arena, Helper helper, SegmentFiles files, SlotWaits slot_waits, protocols, int process, int handoff, int signal_fd,
                  listeners, idle_ms, connection_limit, send_buffer, receive_buffer, memory_bytes, max_connections=1 << 40,
                  heartbeat_ms=250, retry_ms=5, stalled_ms=10_000, turn_ms=2, Remote remote=None):
        self.arena = arena
        self.helper = helper
        self.files = files
        self.remote = remote if remote is not None else Remote()  # which does no job
        self.remote_has_room = True
        self.process = process
        self.handoff = handoff
        self.signal_fd = signal_fd
        self.idle_ns = idle_ms * 1000000
        self.max_connections = max_connections
        self.heartbeat_ns = heartbeat_ms * 1000000
        self.stalled_ns = stalled_ms * 1000000
        self.counters = fl_cell_at(arena.header, process).counters
        self.seen = FL_SEEN_ALL
        self.connections = Connections(arena, helper, files, tuple(protocols), process, connection_limit, send_buffer,
                                       receive_buffer, memory_bytes, retry_ms, turn_ms, self.remote, slot_waits)
        self.watch_fd(arena.eventfds[process], TAG_WAKE, EPOLLIN)
        self.watch_fd(signal_fd, TAG_SIGNAL, EPOLLIN)
        self.watch_fd(helper.eventfd, TAG_HELPER, EPOLLIN)
        if remote is not None:
            self.watch_fd(remote.fd, TAG_REMOTE, EPOLLIN)
        if handoff >= 0:
            self.watch_fd(handoff, TAG_HANDOFF, EPOLLIN)
        for number, fd in enumerate(listeners):
            self.listeners[number] = fd
        self.listener_count = len(listeners)
        self.listen(True)

    cdef int watch_fd(self, int fd, uint64_t tag, uint32_t events) except -1:
        cdef epoll_event event
        event.events = events
        event.data.u64 = tag
        if epoll_ctl(self.connections.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef void listen(self, bint on) noexcept nogil:
        """Take connections from the listening sockets, or leave them in their queues for a while."""
        cdef epoll_event event
        cdef int number
        if self.listening == on:
            return
        self.listening = on
        for number in range(self.listener_count):
            event.events = EPOLLIN | EPOLLEXCLUSIVE
            event.data.u64 = TAG_LISTENER + number
            epoll_ctl(self.connections.epoll, EPOLL_CTL_ADD if on else EPOLL_CTL_DEL, self.listeners[number], &event)

    cdef void look_at_remote(self) noexcept nogil:
        """Go on with the connections whose jobs another process has done, or does no more."""
        cdef epoll_event event
        cdef Job* finished
        self.remote.look()
        while True:  # a connection may ask for the next one, which cannot be sent
            finished = self.remote.take_finished()
            if finished == NULL:
                break
            self.connections.take_jobs(finished)
        if self.remote.wants_room == self.remote_has_room:
            self.remote_has_room = not self.remote.wants_room
            event.events = EPOLLIN if self.remote_has_room else EPOLLIN | EPOLLOUT
            event.data.u64 = TAG_REMOTE
            epoll_ctl(self.connections.epoll, EPOLL_CTL_MOD, self.remote.fd, &event)

    cdef void look_at_waiting(self, bint woken) noexcept nogil:
        """Let every connection try again that waits for something that not only a slot tells of."""
        cdef Conn* c = self.connections.watching
        cdef Conn* after
        self.connections.retry_at = <uint64_t>-1
        self.connections.budget_waiters = False
        self.connections.answer_waiters = False
        while c != NULL:
            after = c.watch_next
            if c.busy:  # the helper tells when it is done
                c.woken = c.woken or woken
            elif c.waits & WAIT_BUDGET and self.over_budget() and not (<Protocol>c.protocol).unfinished(c) & OWED:
                self.connections.budget_waiters = True
            elif c.waits & WAIT_ROOM and self.answers_wait() and not c.dead:
                self.connections.answer_waiters = True
            else:
                self.connections.pump(c)
            c = after

    cdef void look_at_due(self) noexcept nogil:
        """Let those try again that wait for a slot that has moved, or whose time is over."""
        cdef Conn* c
        while True:
            c = self.connections.slot_waits.next_due()
            if c == NULL:
                c = self.connections.next_over()
            if c == NULL:
                return
            if not c.busy:  # else the helper tells when it is done
                self.connections.pump(c)

    cdef bint over_budget(self) noexcept nogil:
        return self.connections.pool.used > self.connections.pool.budget and self.connections.pool.over != NULL

    cdef bint answers_wait(self) noexcept nogil:
        return self.connections.pool.answers > self.connections.pool.budget and self.connections.pool.answering != NULL

    @property
    def held(self):
        """What is taken and not given back yet, by name; exact while nothing is under way. Any thread may ask."""
        cdef int entry
        pins = 0
        for entry in range(self.files.capacity):
            pins += self.files.entries[entry].pins
        return {
            "connections": self.connections.count,
            "memory": self.connections.pool.used,
            "over budget": (self.connections.pool.over != NULL) + (self.connections.pool.answering != NULL),
            "pins": pins,
            "jobs": self.helper.jobs() + self.remote.jobs(),
        }

    @property
    def answer_bytes(self):
        """Memory of answers that are made, owed or not sent yet, and what connections keep for the next ones."""
        return self.connections.pool.answers

    @property
    def job_steps(self):
        """How often a thread of the helper has taken up a job."""
        return self.helper.steps

    # -- the loop ----------------------------------------------------------------------------------------------------

    cdef int take_handoffs(self) noexcept nogil:
        """Take connections from the hand-over queue, few enough that the others get their turn; returns how many."""
        cdef fl_handover taken
        cdef int fd, n
        for n in range(HANDOFFS_PER_TURN):
            fd = fl_receive_fd(self.handoff, &taken)
            if fd == -1:
                return n
            failpoint(AT_HANDOVER_TAKEN)
            # counted also when its descriptor was lost: the acceptor takes the difference for connections on their way
            fl_bump(&fl_cell_at(self.arena.header, self.process).handed_over, 1)
            if fd < 0:
                fl_bump(&self.counters[<int>N_REFUSED], 1)
                continue
            fl_bump(&self.counters[<int>N_HANDOVERS], 1)
            self.connections.add(fd, &taken)
        return HANDOFFS_PER_TURN

    cdef bint more_come(self) noexcept nogil:
        """During the stop: take what is in the hand-over queue; whether the acceptor may still put something there."""
        # in this order: what it handed over before it left is in the queue now
        cdef bint lives = fl_load(&fl_cell_at(self.arena.header, FL_ACCEPTOR).pid) != 0
        while self.handoff >= 0 and self.take_handoffs() > 0:
            pass
        return lives

    cdef int accept_here(self, int number) noexcept nogil:
        """The processor owns this listening socket itself, no acceptor in between; how many connections it took."""
        cdef fl_handover taken
        cdef int fd, n
        for n in range(HANDOFFS_PER_TURN):
            fd = fl_accept(self.listeners[number], number, &taken)
            if fd < 0:
                if errno != EAGAIN and errno != ECONNABORTED and errno != EINTR:
                    # out of descriptors: the queue stays ready, so stop looking at it until the next heartbeat
                    fl_bump(&self.counters[<int>N_ACCEPT_PAUSES], 1)
                    self.listen(False)
                return n
            if self.broker_is_full():
                fl_bump(&self.counters[<int>N_REFUSED], 1)
                close(fd)
            else:
                self.connections.add(fd, &taken)
        return HANDOFFS_PER_TURN

    cdef bint broker_is_full(self) noexcept nogil:
        cdef uint64_t total = 0
        cdef uint64_t i
        for i in range(FL_FIRST_PROCESSOR, self.arena.header.processes):
            total += fl_load(&fl_cell_at(self.arena.header, i).connections)
        return total >= self.max_connections

    cdef void close_idle(self) noexcept nogil:
        """Close connections that neither send nor take anything, or are too slow with a request; rest the others."""
        cdef Conn* c = self.connections.first
        cdef Conn* after
        cdef uint64_t quiet
        while c != NULL:
            after = c.next
            quiet = self.connections.now - c.active_ns
            if c.frame_since_ns and not c.interest & <uint32_t>EPOLLIN:
                c.frame_since_ns = self.connections.now  # the rest of it may have been sent, and is not read meanwhile
            if c.busy or (<Protocol>c.protocol).unfinished(c) or c.waits & (WAIT_VISIBLE | WAIT_CREATE | WAIT_ROOM):
                pass  # it waits for us
            elif quiet > self.idle_ns or (c.frame_since_ns and self.connections.now - c.frame_since_ns > self.idle_ns) \
                    or (quiet > self.stalled_ns and self.keeps_others_waiting(c)):
                fl_bump(&self.counters[<int>N_IDLE_CLOSED], 1)
                self.connections.remove(c)
            elif quiet > <uint64_t>RESTING_NS:
                conn_trim(c)
                (<Protocol>c.protocol).trim(c)
            c = after

    cdef bint keeps_others_waiting(self, Conn* c) noexcept nogil:
        """Whether others wait for the memory of a connection that sends nothing or takes nothing."""
        if c == self.connections.pool.over and self.connections.budget_waiters:
            return True
        return self.connections.answer_waiters and out_pending(c) and (
            c == self.connections.pool.answering or c.answers > <uint64_t>LARGE_ANSWER
        )

    cdef void excuse(self, uint64_t turn_ns) noexcept nogil:
        """A turn took long, for example on a stalled disk: what clients sent meanwhile has not been looked at."""
        cdef Conn* c = self.connections.first
        while c != NULL:
            c.active_ns += turn_ns
            if c.frame_since_ns:
                c.frame_since_ns += turn_ns
            c = c.next

    cdef void last_call(self) noexcept nogil:
        """The broker stops: take what has arrived, answer it, and close."""
        cdef Conn* c
        cdef Conn* after
        cdef int number, turn
        if self.listening:
            for number in range(self.listener_count):
                for turn in range(BACKLOG_TURNS):
                    if self.accept_here(number) < HANDOFFS_PER_TURN:
                        break
        self.listen(False)
        c = self.connections.first
        while c != NULL:
            after = c.next
            self.connections.finish(c)
            c = after

    def run(self, uint64_t parent):
        """Serve until the stop; 0 when every connection was finished, 1 when the supervisor is gone."""
        cdef fl_header* h = self.arena.header
        cdef Connections connections = self.connections
        cdef fl_cell* cell = fl_cell_at(h, self.process)
        cdef epoll_event[EVENTS] events
        cdef Conn* c
        cdef int n, i, timeout, result = 0
        cdef uint64_t tag, before, beat_at, wake_at, asleep = 0, window_at, last_call_at = 0, ends_at
        cdef uint32_t what
        cdef bint woken = True
        connections.retry_at = <uint64_t>-1
        beat_at = 0
        with nogil:
            # what a predecessor left: its wake-ups are ours, and the flusher looks at what it left dirty
            fl_wake_taken(h, self.arena.eventfds, self.process)
            fl_wake(h, self.arena.eventfds, 0)
            window_at = connections.now = fl_monotonic_ns()
            while True:
                if connections.now >= beat_at:
                    beat_at = connections.now + self.heartbeat_ns
                    # a waker that died between setting the flag and writing the eventfd must not silence the next ones
                    fl_clear_wake_flag(h, self.process)
                    woken = True
                    self.close_idle()
                    if not connections.finishing:
                        self.listen(True)
                    if <uint64_t>getppid() != parent:
                        result = 1
                        break
                if connections.now - window_at >= <uint64_t>1000000000:
                    fl_store(&cell.busy_permille, 1000 - min(<uint64_t>1000, asleep * 1000 // (connections.now - window_at)))
                    window_at = connections.now
                    asleep = 0
                if woken:
                    connections.slot_waits.take_moved()
                self.look_at_due()
                if woken or connections.now >= connections.retry_at:
                    self.files.close_retired()
                    self.look_at_waiting(woken)
                    woken = False
                    if fl_load(&h.stopping) and not connections.finishing:
                        connections.finishing = True
                        last_call_at = connections.now
                    if connections.finishing:
                        self.last_call()
                self.look_at_remote()
                connections.free_closed()
                self.see_changes()
                if connections.budget_waiters and not self.over_budget():
                    connections.retry_at = connections.now
                if connections.answer_waiters and not self.answers_wait():
                    connections.retry_at = connections.now
                wake_at = min(beat_at, min(connections.retry_at, connections.first_deadline()))
                if connections.finishing:
                    # a disk that stalls takes nothing of the time in which the others come to their end
                    ends_at = max(last_call_at, fl_load(&h.stalled_ns)) + <uint64_t>LAST_CALL_NS
                    if not self.more_come() and connections.count == 0 or connections.now >= ends_at:
                        break
                    wake_at = min(wake_at, ends_at)
                timeout = 0 if wake_at <= connections.now else <int>((wake_at - connections.now + 999999) // 1000000)
                fl_store(&cell.heartbeat_ns, connections.now)
                before = fl_monotonic_ns()
                if before - connections.now > <uint64_t>LONG_TURN_NS:
                    self.excuse(before - connections.now)
                self.turns += 1
                n = epoll_wait(connections.epoll, events, EVENTS, timeout)
                connections.now = fl_monotonic_ns()
                asleep += connections.now - before
                fl_store(&cell.heartbeat_ns, connections.now)
                connections.begin_turn(n)
                for i in range(n):
                    tag = events[i].data.u64
                    what = events[i].events
                    if tag == TAG_WAKE:
                        fl_wake_taken(h, self.arena.eventfds, self.process)
                        woken = True
                    elif tag == TAG_HELPER:
                        connections.take_jobs(self.helper.take_finished())
                    elif tag == TAG_REMOTE:
                        self.remote.ready()
                    elif tag == TAG_HANDOFF:
                        self.take_handoffs()
                    elif tag == TAG_SIGNAL:
                        self.signals()
                    elif tag < TAGS_END:
                        self.accept_here(<int>(tag - TAG_LISTENER))
                    else:
                        c = connections.named(tag)
                        if c == NULL:
                            continue
                        if c.interest & EPOLLONESHOT:
                            c.interest = 0
                        if what & (EPOLLERR | EPOLLHUP):
                            # nothing received is cancelled: it is read and written, answers are dropped
                            connections.gone(c)
                        if c.waits & WAIT_VISIBLE and what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                            # whoever held a fetch has stopped sending: answer with what there is, then read on
                            c.leaving = True
                            connections.pump(c)
                        elif c.dead and not c.waits and not c.ended and not c.closing:
                            connections.readable(c)
                        elif what & EPOLLIN and not c.waits and not c.ended:
                            connections.readable(c)
                        elif what & EPOLLOUT or (c.dead and not c.waits):
                            if connections.settle(c):
                                connections.pump(c)
            self.helper.close()
        return result

    cdef void see_changes(self) noexcept nogil:
        """Between two turns nothing is under way: be past the partitions that have gone, and say so."""
        cdef uint64_t now = fl_load(&self.arena.header.change_count)
        if now != self.seen and self.connections.forget_gone():
            failpoint(AT_PROCESSOR_PAST)
            self.seen = now
            fl_store(&fl_cell_at(self.arena.header, self.process).seen, now)

    cdef void signals(self) noexcept nogil:
        """A signal came: have Python run its handlers."""
        cdef uint8_t[64] bytes
        read(self.signal_fd, bytes, 64)
        with gil:
            try:
                PyErr_CheckSignals()
            except Exception as error:
                log.error("unexpected error in a signal's handler: %r", error, exc_info=error)
