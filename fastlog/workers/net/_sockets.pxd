from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers.net._connection cimport Conn, Job, Pool
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.net._remote cimport Remote
from fastlog.workers.net._slot_waits cimport SlotWaits

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event*)
    int epoll_wait(int, epoll_event*, int, int)
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP, EPOLLONESHOT, EPOLLEXCLUSIVE
    int EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLL_CLOEXEC

cdef extern from "_handoff.h" nogil:
    # what is known of a new connection, see ``handover``
    struct fl_handover:
        int listener
        int transport
        int principal
        char* host
        int port

cdef enum:
    FD_BITS = 24                    # of the name that epoll knows a connection by
    MAX_LISTENERS = 16

cdef class Connections:
    cdef Arena arena
    cdef Helper helper
    cdef SegmentFiles files
    cdef Remote remote                    # does the jobs that no thread does
    cdef SlotWaits slot_waits
    cdef Pool pool
    cdef tuple protocols                  # what each listener speaks; a list could be emptied before __dealloc__
    cdef void* protocol_at[MAX_LISTENERS] # the same, for compiled code
    cdef int listener_count
    cdef int process, epoll, send_buffer, receive_buffer
    cdef uint64_t next_number, connection_limit
    cdef Conn** by_fd                     # the open connection of each descriptor, NULL for others
    cdef uint64_t by_fd_room
    cdef uint64_t count                   # connections open now
    cdef uint8_t* scratch
    cdef Conn* first
    cdef Conn* watching                   # those that wait for something that not only a slot tells of
    cdef Conn** deadlines                 # those that wait for a time: a heap from 1 on, the earliest first
    cdef int deadline_count, deadline_room
    cdef Conn* closed                     # in this turn, and not freed yet
    cdef uint64_t retry_at                # when the waiting ones are looked at even if nobody wakes us
    cdef uint64_t now                     # read once a turn
    cdef uint64_t retry_ns                # how soon a wait for another process's lock is tried again if nobody wakes us
    cdef int events_now                   # events of this turn: how many others wait
    cdef uint64_t marked                  # changes of slots' lives when the helper's threads were looked at last
    cdef bint budget_waiters, answer_waiters, finishing
    cdef uint64_t* counters

    cdef void add(self, int fd, const fl_handover* taken) noexcept nogil
    cdef int enter(self, Conn* c) noexcept nogil
    cdef Conn* named(self, uint64_t name) noexcept nogil
    cdef void remove(self, Conn* c) noexcept nogil
    cdef void free_closed(self) noexcept nogil
    cdef void watch(self, Conn* c) noexcept nogil
    cdef void unwatch(self, Conn* c) noexcept nogil
    cdef void expect(self, Conn* c) noexcept nogil
    cdef void place(self, Conn* c, int at) noexcept nogil
    cdef Conn* next_over(self) noexcept nogil
    cdef inline uint64_t first_deadline(self) noexcept nogil:
        return self.deadlines[1].deadline_ns if self.deadline_count else <uint64_t>-1
    cdef void set_interest(self, Conn* c, uint32_t events) noexcept nogil
    cdef void readable(self, Conn* c) noexcept nogil
    cdef void lose(self, Conn* c) noexcept nogil
    cdef void pump(self, Conn* c) noexcept nogil
    cdef void advance(self, Conn* c) noexcept nogil
    cdef void gone(self, Conn* c) noexcept nogil
    cdef bint settle(self, Conn* c) noexcept nogil
    cdef void start_job(self, Conn* c) noexcept nogil
    cdef bint has_whole_request(self, Conn* c) noexcept nogil
    cdef void begin_turn(self, int events) noexcept nogil
    cdef bint forget_gone(self) noexcept nogil
    cdef void take_jobs(self, Job* job) noexcept nogil
    cdef void finish(self, Conn* c) noexcept nogil
