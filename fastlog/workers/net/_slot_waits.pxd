from libc.stdint cimport uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot
from fastlog.workers.net._connection cimport Conn, SlotWait

cdef class SlotWaits:
    cdef Arena arena
    cdef int process
    cdef SlotWait** waiting      # by slot, the waits for it; NULL: none
    cdef uint64_t seen           # moves that were lost, ever
    cdef Conn* due               # connections that have one or more of their waits over, chained by ``due_next``

    cdef void join(self, SlotWait* wait, Conn* c, fl_slot* s) noexcept nogil
    cdef void leave(self, SlotWait* wait) noexcept nogil
    cdef void move(self, uint64_t slot) noexcept nogil
    cdef void take_moved(self) noexcept nogil
    cdef Conn* next_due(self) noexcept nogil
