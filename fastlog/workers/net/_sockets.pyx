"""The life of a connection: received, handled, sent, watched and closed. Compiled, without the GIL.

A connection is read only while nothing of it waits: a request that cannot go on keeps its place, the read interest is
dropped, and the requests behind it wait in order.
"""

cimport cython
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_bump, fl_cell_at, fl_load, fl_store
from fastlog.log._shared_memory cimport N_OVER_BUDGET, N_RECEIVED, N_REFUSED, N_SENT, N_SHORT_SENDS
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers.net._connection cimport (
    OWED, SEND_FAILED, SEND_GONE, SEND_READ_AHEAD, SEND_UNREADABLE, UNWRITTEN, WAIT_ANY, WAIT_BUDGET, WAIT_CREATE, WAIT_JOB,
    WAIT_LOCK, WAIT_POLL, WAIT_ROOM, WAIT_SLOTS, WAIT_TURN, WAIT_VISIBLE, Conn, Job, Pool, conn_free, conn_new, conn_release_buffer, conn_reserve,
    go_on, out_discard, out_enough, out_pending, out_send, turn_begins, wait_for,
)
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.net._protocol cimport CLOSES, Protocol
from fastlog.workers.net._remote cimport QUEUE_REMOTE, Remote
from fastlog.workers.net._slot_waits cimport SlotWaits

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void*, size_t, int)
    int setsockopt(int, int, int, const void*, unsigned int)
    int SOL_SOCKET, SO_SNDBUF, SO_RCVBUF, MSG_DONTWAIT

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY, TCP_QUICKACK
    int IPPROTO_TCP

cdef extern from "<netinet/in.h>" nogil:
    pass

cdef extern from "<fcntl.h>" nogil:
    int fcntl(int, int, ...)
    int F_SETFL, F_GETFL, O_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    int close(int)

cdef extern from "_handoff.h" nogil:
    # makes the most of a connection whose other end is on this machine
    void fl_tune_local(int)

cdef enum:
    SCRATCH_BYTES = 256 << 10
    OWN_BUFFER_FROM = 64 << 10      # a request this large gets a buffer of its own
    FIRST_BUFFER = 128 << 10
    SLICE_BYTES = 256 << 10         # file bytes one connection may send while others wait
    LAST_CALL_BYTES = 8 << 20
    QUICK_BYTES = 2048
    SEEN_NS = 250000000             # how long bytes of a file that were in memory count as being there
    TURNS = 16                      # answers one connection may get before others have a turn
    OVER_BUDGET_READ = 16 << 10     # what is received at once while the memory for requests is used up


@cython.final
@cython.no_gc_clear  # __dealloc__ gives back to files and protocols
cdef class Connections:
    """The connections of one processor, its epoll, and what they wait for; the loop's thread only."""

    def __cinit__(self, Arena arena, Helper helper, SegmentFiles files, tuple protocols, int process, connection_limit,
                  send_buffer, receive_buffer, memory_bytes, retry_ms, turn_ms, Remote remote, SlotWaits slot_waits):
        cdef int i
        cdef Protocol protocol
        self.arena = arena
        self.helper = helper
        self.files = files
        self.remote = remote
        self.slot_waits = slot_waits
        self.protocols = protocols
        self.listener_count = len(protocols)
        if self.listener_count > MAX_LISTENERS:
            raise ValueError("too many listeners")
        for i in range(self.listener_count):
            protocol = protocols[i]
            self.protocol_at[i] = <void*>protocol
        self.pool.budget = memory_bytes
        self.pool.turn_ns = turn_ms * 1000000
        self.process = process
        self.connection_limit = connection_limit
        self.send_buffer = send_buffer or 0
        self.receive_buffer = receive_buffer or 0
        self.counters = fl_cell_at(arena.header, process).counters
        self.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.next_number = 1
        self.retry_ns = retry_ms * 1000000
        if self.scratch == NULL or self.epoll < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef Conn* c = self.first
        cdef Conn* after
        while c != NULL:
            after = c.next
            if not c.busy:
                (<Protocol>c.protocol).close(c)
                conn_free(c, self.files)
            c = after
        free(self.scratch)
        free(self.by_fd)
        free(self.deadlines)
        if self.epoll >= 0:
            close(self.epoll)

    cdef void add(self, int fd, const fl_handover* taken) noexcept nogil:
        cdef int one = 1
        cdef epoll_event event
        cdef Conn* c
        if self.count >= self.connection_limit or taken.listener >= self.listener_count:
            fl_bump(&self.counters[<int>N_REFUSED], 1)
            close(fd)
            return
        c = conn_new(fd, self.next_number << FD_BITS | <uint64_t>fd, self.now, &self.pool)
        if c == NULL:
            close(fd)
            return
        self.next_number += 1
        c.listener = taken.listener
        c.protocol = self.protocol_at[taken.listener]
        c.principal = taken.principal
        c.transport = taken.transport
        memcpy(c.host, taken.host, sizeof(c.host))
        c.port = taken.port
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL, 0) | O_NONBLOCK)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(int))
        fl_tune_local(fd)
        if self.send_buffer:
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &self.send_buffer, sizeof(int))
        if self.receive_buffer:
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &self.receive_buffer, sizeof(int))
        c.interest = EPOLLIN
        event.events = c.interest
        event.data.u64 = c.name
        if (<Protocol>c.protocol).open(c) != 0 or self.enter(c) != 0 or epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
            (<Protocol>c.protocol).close(c)
            conn_free(c, self.files)
            return
        self.by_fd[fd] = c
        c.next = self.first
        if self.first != NULL:
            self.first.previous = c
        self.first = c
        self.count += 1
        fl_store(&fl_cell_at(self.arena.header, self.process).connections, self.count)
        if self.finishing:
            self.finish(c)

    cdef void remove(self, Conn* c) noexcept nogil:
        """Close a connection; its memory goes at the end of this turn, because callers still look at it."""
        self.unwatch(c)
        go_on(c, WAIT_ANY)
        self.expect(c)
        self.slot_waits.leave(&c.flushing)
        (<Protocol>c.protocol).close(c)
        if c.previous != NULL:
            c.previous.next = c.next
        else:
            self.first = c.next
        if c.next != NULL:
            c.next.previous = c.previous
        # closing is not enough: as long as another process has the socket open (the acceptor closes its copy when it
        # comes to it), epoll goes on naming a connection that is gone, and nobody can take it out any more
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, c.fd, NULL)
        close(c.fd)
        self.by_fd[c.fd] = NULL
        c.fd = -1
        c.dead = True
        c.next = self.closed
        self.closed = c
        self.count -= 1
        fl_store(&fl_cell_at(self.arena.header, self.process).connections, self.count)

    cdef void free_closed(self) noexcept nogil:
        """Free the connections that were closed in this turn."""
        cdef Conn* c = self.closed
        cdef Conn* after
        self.closed = NULL
        while c != NULL:
            after = c.next
            conn_free(c, self.files)
            c = after

    cdef int enter(self, Conn* c) noexcept nogil:
        """Make room for the connection's descriptor in the table of names; 0, or -1 without memory."""
        cdef uint64_t room = self.by_fd_room
        cdef Conn** larger
        if <uint64_t>c.fd >= room:
            if c.fd >> FD_BITS:
                return -1
            room = max(room * 2, <uint64_t>c.fd + 64)
            larger = <Conn**>realloc(self.by_fd, room * sizeof(Conn*))
            if larger == NULL:
                return -1
            memset(larger + self.by_fd_room, 0, (room - self.by_fd_room) * sizeof(Conn*))
            self.by_fd = larger
            self.by_fd_room = room
        return 0

    cdef Conn* named(self, uint64_t name) noexcept nogil:
        """The open connection an event is for; NULL when it has been closed, whoever has its descriptor now."""
        cdef uint64_t fd = name & ((<uint64_t>1 << FD_BITS) - 1)
        cdef Conn* c = self.by_fd[fd] if fd < self.by_fd_room else NULL
        return c if c != NULL and c.name == name else NULL

    cdef void watch(self, Conn* c) noexcept nogil:
        if not c.watched:
            c.watched = True
            c.watch_previous = NULL
            c.watch_next = self.watching
            if self.watching != NULL:
                self.watching.watch_previous = c
            self.watching = c

    cdef void unwatch(self, Conn* c) noexcept nogil:
        if c.watched:
            c.watched = False
            if c.watch_previous != NULL:
                c.watch_previous.watch_next = c.watch_next
            else:
                self.watching = c.watch_next
            if c.watch_next != NULL:
                c.watch_next.watch_previous = c.watch_previous

    cdef void expect(self, Conn* c) noexcept nogil:
        """Put a connection in its place among those that wait for a time, or take it out of them."""
        cdef int at = c.deadline
        cdef Conn** larger
        if c.until_ns == 0:
            if at:
                c.deadline = 0
                self.deadline_count -= 1
                if at <= self.deadline_count:
                    self.place(self.deadlines[self.deadline_count + 1], at)
            return
        if at == 0:
            if self.deadline_count + 1 >= self.deadline_room:
                larger = <Conn**>realloc(self.deadlines, <size_t>max(self.deadline_room * 2, 64) * sizeof(Conn*))
                if larger == NULL:
                    self.retry_at = min(self.retry_at, self.now + self.retry_ns)  # looked at as one that waits for no time
                    self.watch(c)
                    return
                self.deadlines = larger
                self.deadline_room = max(self.deadline_room * 2, 64)
            self.deadline_count += 1
            at = self.deadline_count
        c.deadline_ns = c.until_ns
        self.place(c, at)

    cdef void place(self, Conn* c, int at) noexcept nogil:
        """Let the connection take a place in the heap that is free, or was its own, and go on to where it belongs."""
        cdef int other
        while at > 1 and self.deadlines[at // 2].deadline_ns > c.deadline_ns:
            self.deadlines[at] = self.deadlines[at // 2]
            self.deadlines[at].deadline = at
            at //= 2
        while 2 * at <= self.deadline_count:
            other = 2 * at
            if other < self.deadline_count and self.deadlines[other + 1].deadline_ns < self.deadlines[other].deadline_ns:
                other += 1
            if self.deadlines[other].deadline_ns >= c.deadline_ns:
                break
            self.deadlines[at] = self.deadlines[other]
            self.deadlines[at].deadline = at
            at = other
        self.deadlines[at] = c
        c.deadline = at

    cdef Conn* next_over(self) noexcept nogil:
        """A connection whose time is over, which it waits for no more; NULL: there is none."""
        cdef Conn* c = self.deadlines[1] if self.deadline_count else NULL
        if c == NULL or c.deadline_ns > self.now:
            return NULL
        c.until_ns = 0  # its request knows its own time: what cannot go on yet is not asked again and again
        self.expect(c)
        return c

    cdef void set_interest(self, Conn* c, uint32_t events) noexcept nogil:
        cdef epoll_event event
        if c.interest != events:
            c.interest = events
            event.events = events
            event.data.u64 = c.name
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, c.fd, &event)

    # -- one connection's work ---------------------------------------------------------------------------------------

    cdef void readable(self, Conn* c) noexcept nogil:
        """Receive once and handle what is whole."""
        cdef Pool* pool = &self.pool
        cdef size_t left = c.end - c.start
        cdef size_t used = 0, room, most = SCRATCH_BYTES
        cdef uint64_t need = 0
        cdef ssize_t r
        cdef bint own
        cdef int one = 1
        if left:
            need = (<Protocol>c.protocol).next_size(c.buffer + c.start, left)
        own = need > OWN_BUFFER_FROM or left >= OWN_BUFFER_FROM
        if pool.used > pool.budget and pool.over != c:
            # small requests go on, and of a large one no more than its beginning is taken in
            most = left + OVER_BUDGET_READ
            if own and pool.over != NULL:
                fl_bump(&self.counters[<int>N_OVER_BUDGET], 1)
                wait_for(c, WAIT_BUDGET, 0)
                self.budget_waiters = True
                self.settle(c)
                return
        if own:
            # doubles with the bytes that came, up to the size that was announced
            room = <size_t>min(need, <uint64_t>max(left * 2, <size_t>FIRST_BUFFER))
            if room <= left:
                room = left + FIRST_BUFFER
            if conn_reserve(c, room) != 0:
                self.lose(c)
                return
            if pool.used > pool.budget and pool.over == NULL:
                pool.over = c  # the one that passed the budget is the one that may be over it
            r = recv(c.fd, c.buffer + c.end, c.room - c.end, MSG_DONTWAIT)
        else:
            if left:  # a connection of which nothing is kept has no buffer
                memcpy(self.scratch, c.buffer + c.start, left)
            r = recv(c.fd, self.scratch + left, min(most, <size_t>SCRATCH_BYTES) - left, MSG_DONTWAIT)
        if r < 0 and (errno == EAGAIN or errno == EINTR):
            return
        if r <= 0:
            c.leaving = True
            c.ended = True
            c.dead = c.dead or r < 0
            if self.settle(c):
                self.pump(c)
            return
        c.active_ns = self.now
        fl_bump(&self.counters[<int>N_RECEIVED], <uint64_t>r)
        if own:
            c.end += <size_t>r
            self.pump(c)
            return
        left += <size_t>r
        turn_begins(c)
        if (<Protocol>c.protocol).process_bytes(c, self.scratch, left, self.now, &used) == CLOSES:
            c.closing = True
            used = left
        c.start = c.end = 0
        if used != left:
            left -= used
            if conn_reserve(c, (left + 4095) // 4096 * 4096) != 0:
                self.lose(c)
                return
            memcpy(c.buffer, self.scratch + used, left)
            c.end = left
        if r < QUICK_BYTES and not out_pending(c):
            # old clients write size and body apart, and small produces one by one: the next write of such a client
            # waits for our acknowledgement, and no answer carries it
            setsockopt(c.fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof(int))
        if used:
            c.frame_since_ns = 0
        if c.closing:
            self.advance(c)
        if self.settle(c):
            self.pump(c)

    cdef void lose(self, Conn* c) noexcept nogil:
        """Close a connection whose bytes there is no memory for; where a thread works for it, when that is done."""
        if not c.busy:
            self.remove(c)
            return
        c.closing = c.ended = True
        self.gone(c)
        self.settle(c)

    cdef void pump(self, Conn* c) noexcept nogil:
        """Go on with what was received: after a wait, after an answer has left, after more bytes came."""
        cdef int turns
        turn_begins(c)
        for turns in range(TURNS):
            self.advance(c)
            if not self.settle(c):
                return
        # others have a turn before the next of its requests
        wait_for(c, WAIT_TURN, 0)
        self.watch(c)
        self.retry_at = self.now
        self.set_interest(c, EPOLLONESHOT)

    cdef void advance(self, Conn* c) noexcept nogil:
        """Handle received requests until one waits, an answer must leave first, or none is whole."""
        cdef size_t used
        while not c.busy:
            go_on(c, WAIT_ANY & ~<int>WAIT_POLL)
            if (<Protocol>c.protocol).resume(c) == CLOSES:
                c.closing = True
            if c.waits & ~<int>WAIT_POLL or c.closing or c.start == c.end:
                return
            if out_enough(c) and not c.incomplete and not c.dead:
                return
            go_on(c, WAIT_ANY)
            used = 0
            if (<Protocol>c.protocol).process_bytes(c, c.buffer + c.start, c.end - c.start, self.now, &used) == CLOSES:
                c.closing = True
            c.start += used
            if used:
                c.frame_since_ns = 0
            if used == 0 or c.waits:
                return

    cdef void gone(self, Conn* c) noexcept nogil:
        """Nothing can be sent any more: what was received is still handled, but nothing is read to answer nobody."""
        c.dead = c.leaving = True
        if c.busy and c.job.for_answer:
            if c.job.queue == QUEUE_REMOTE:
                self.remote.cancel(c.job)
            else:
                self.helper.cancel(c.job)

    cdef bint has_whole_request(self, Conn* c) noexcept nogil:
        """Whether the received bytes begin with something to handle: a whole request, or one that is refused."""
        cdef size_t left = c.end - c.start
        return left > 0 and (<Protocol>c.protocol).next_size(c.buffer + c.start, left) <= left

    cdef bint settle(self, Conn* c) noexcept nogil:
        """After any work on a connection: start its job, send, decide what it waits for next, or close it.

        True when nothing holds up the requests that were received: the caller goes on with them.
        """
        cdef uint64_t sent = 0
        cdef int status, left
        cdef uint32_t events
        if c.waits & WAIT_JOB and not c.busy:
            self.start_job(c)
        if out_pending(c):
            if c.dead:
                out_discard(c, self.files)
            elif not c.incomplete and not (c.busy and c.has_files):
                # one job at a time: sending from files may need the helper itself
                if self.now - c.active_ns > <uint64_t>SEEN_NS:
                    c.probed_to = 0
                status = out_send(c, self.files, SLICE_BYTES if self.events_now > 1 else 8 * SLICE_BYTES, &sent)
                if sent:
                    c.active_ns = self.now
                    fl_bump(&self.counters[<int>N_SENT], sent)
                if status == SEND_UNREADABLE:
                    (<Protocol>c.protocol).unreadable(
                        c.spans[c.span_start].entry, c.spans[c.span_start].position, c.read_error
                    )
                if status == SEND_FAILED or status == SEND_GONE or status == SEND_UNREADABLE:
                    if status != SEND_GONE:
                        fl_bump(&self.counters[<int>N_SHORT_SENDS], 1)
                        c.ended = True
                    self.gone(c)
                    out_discard(c, self.files)
                elif status == SEND_READ_AHEAD:
                    if self.helper.read_ahead(c, &c.reading, c.reading.entry, c.reading.position, c.reading.count) == 0:
                        wait_for(c, WAIT_JOB, 0)
        if c.waits == 0 and not c.closing and not out_pending(c) and self.has_whole_request(c):
            return True
        left = (<Protocol>c.protocol).unfinished(c)
        if c.start == c.end:
            c.frame_since_ns = 0
        elif c.frame_since_ns == 0:
            c.frame_since_ns = self.now
        if not left & UNWRITTEN and c.start == c.end and c.room and c.waits == 0:
            conn_release_buffer(c)
        if (c.closing or (c.ended and c.waits == 0)) and not left & UNWRITTEN and not c.busy and not out_pending(c):
            # what was received is done: no whole request is left here, see above
            if c.dead or not left & OWED:
                self.remove(c)
                return False
        if c.waits & ~<int>WAIT_POLL or (c.waits and not c.waits & WAIT_SLOTS) or (left & OWED and c.flushing.conn == NULL):
            self.watch(c)
            if c.waits & WAIT_TURN:
                self.retry_at = self.now
            if c.waits & WAIT_ROOM:
                self.answer_waiters = True
            if c.waits & (WAIT_LOCK | WAIT_CREATE):
                if c.woken and not c.busy:  # what its job has found busy may have ended before the job did
                    c.woken = False
                    self.retry_at = self.now
                else:
                    self.retry_at = min(self.retry_at, self.now + self.retry_ns)
        else:
            self.unwatch(c)
        self.expect(c)
        if c.waits:
            events = EPOLLONESHOT
            if c.waits & WAIT_VISIBLE and not c.leaving:
                events |= EPOLLRDHUP
            if out_pending(c) and not c.incomplete and not (c.busy and c.has_files):
                events |= EPOLLOUT
        elif out_pending(c):
            events = EPOLLOUT
        elif c.ended or c.closing:
            events = EPOLLONESHOT
        else:
            events = EPOLLIN
        self.set_interest(c, events)
        return False

    cdef void start_job(self, Conn* c) noexcept nogil:
        """Hand over the job that was asked for: now its bytes stand in the connection's own buffer."""
        cdef int r
        c.woken = False
        r = self.remote.submit(c, c.job) if c.job.queue == QUEUE_REMOTE else self.helper.submit(c, c.job)
        if r != 0:
            self.retry_at = min(self.retry_at, self.now + self.retry_ns)

    cdef void take_jobs(self, Job* job) noexcept nogil:
        """Go on with the connections whose jobs are finished, chained by ``next``."""
        cdef Job* after
        cdef Conn* c
        while job != NULL:
            after = job.next
            c = job.conn
            go_on(c, WAIT_JOB)
            if self.helper.done(job):
                (<Protocol>c.protocol).job_done(c)
            self.pump(c)
            job = after

    cdef void begin_turn(self, int events) noexcept nogil:
        """The loop has this many events to handle."""
        cdef int i
        self.events_now = events
        for i in range(self.listener_count):
            (<Protocol>self.protocol_at[i]).begin_turn()

    cdef bint forget_gone(self) noexcept nogil:
        """Look at no partition any more that has gone; whether that holds for all threads, else ask again soon."""
        cdef uint64_t now = fl_load(&self.arena.header.change_count)
        cdef int i
        if now != self.marked:
            for i in range(self.listener_count):
                if not (<Protocol>self.protocol_at[i]).forget_gone(now):
                    return False
            self.helper.mark()
            self.marked = now
        return self.helper.is_past()

    cdef void finish(self, Conn* c) noexcept nogil:
        cdef uint64_t before, total = 0
        if c.ended:
            return
        while not c.waits and not c.ended and not c.closing and c.fd >= 0 and total < LAST_CALL_BYTES:
            before = self.counters[<int>N_RECEIVED]
            self.readable(c)
            if self.counters[<int>N_RECEIVED] == before:
                break
            total += self.counters[<int>N_RECEIVED] - before
        if c.fd >= 0:
            c.leaving = True
            # one that waits reads on when its turn comes: more may have arrived by then
            c.ended = c.waits == 0
            if not c.ended:
                self.retry_at = min(self.retry_at, self.now + self.retry_ns)
            self.pump(c)
