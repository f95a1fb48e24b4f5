from libc.stdint cimport uint64_t

from fastlog.log._layout cimport fl_slot
from fastlog.log._shared_memory cimport SharedMemory


cdef class Arena(SharedMemory):
    cdef fl_slot* slot(self, uint64_t index) except NULL
    cdef fl_slot* take_free_slot(self)
    cdef fl_slot* take_new_slot(self, bint spare) except NULL
    cdef list ended(self, bint returns)
