"""Which connections wait for which slots, so that a wake-up costs as much as has moved, and what stands still costs nothing.

Whoever moves a slot sets its bit among those that this process is to look at, and then wakes the process (``fl_wake_slot``).
Here the bits are taken, and each finds the connections that wait for its slot. A wait stays until it is left, however often its slot
moves; but to be woken again, the process has to ask again (``waiters`` of the slot) before the slot is looked at.
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_load, fl_moved_word, fl_slot, fl_swap
from fastlog.workers.net._connection cimport Conn, SlotWait

cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil


@cython.final
@cython.no_gc_clear  # connections leave when their processor is freed
cdef class SlotWaits:
    """The waits of one process; its loop's thread only."""

    def __cinit__(self, Arena arena, int process):
        self.arena = arena
        self.process = process
        # what a predecessor was woken for is void: nobody waits yet
        self.seen = fl_load(&arena.header.moves_lost)
        self.waiting = <SlotWait**>calloc(arena.header.max_partitions, sizeof(SlotWait*))
        if self.waiting == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.waiting)

    cdef void join(self, SlotWait* wait, Conn* c, fl_slot* s) noexcept nogil:
        """Have the connection looked at when this slot moves; ``wait`` is zeroed memory, or waits already, for any slot."""
        if wait.conn != NULL:
            if wait.slot == s.index:
                return
            self.leave(wait)
        wait.conn = c
        wait.slot = s.index
        wait.previous = NULL
        wait.next = self.waiting[s.index]
        if wait.next != NULL:
            wait.next.previous = wait
        self.waiting[s.index] = wait

    cdef void leave(self, SlotWait* wait) noexcept nogil:
        """Wait for nothing any more; may be called for one that does not."""
        if wait.conn == NULL:
            return
        if wait.previous != NULL:
            wait.previous.next = wait.next
        else:
            self.waiting[wait.slot] = wait.next
        if wait.next != NULL:
            wait.next.previous = wait.previous
        wait.conn = NULL

    cdef void move(self, uint64_t slot) noexcept nogil:
        """Have all who wait for a slot look at it."""
        cdef SlotWait* wait = self.waiting[slot]
        while wait != NULL:
            if wait.moved != NULL and not wait.is_moved:
                wait.is_moved = True
                wait.next_moved = wait.moved[0]
                wait.moved[0] = wait
            if not wait.conn.is_due:
                wait.conn.is_due = True
                wait.conn.due_next = self.due
                self.due = wait.conn
            wait = wait.next

    cdef void take_moved(self) noexcept nogil:
        """After a wake-up: find those whose slots have moved."""
        cdef uint64_t* word
        cdef uint64_t bits, slot = 0
        cdef uint64_t lost = fl_load(&self.arena.header.moves_lost)
        cdef uint64_t count = fl_load(&self.arena.header.slot_count)
        if lost != self.seen:
            self.seen = lost
            for slot in range(count):
                self.move(slot)
            slot = 0
        while slot < count:
            word = fl_moved_word(self.arena.header, self.process, slot)
            if fl_load(word):
                bits = fl_swap(word, 0)
                while bits:
                    self.move(slot + <uint64_t>__builtin_ctzll(bits))
                    bits &= bits - 1
            slot += 64

    cdef Conn* next_due(self) noexcept nogil:
        """One of the connections that were found, until each has been given once; NULL: there is none."""
        cdef Conn* c = self.due
        if c != NULL:
            self.due = c.due_next
            c.due_next = NULL
            c.is_due = False
        return c
