from libc.stdint cimport uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_cell
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers._bridge cimport Bridge
from fastlog.workers._jobs cimport Jobs
from fastlog.workers._partitions cimport Partitions
from fastlog.workers._reads cimport Reads
from fastlog.workers._reports cimport Reports
from fastlog.workers._writes cimport Writes
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.net._slot_waits cimport SlotWaits

cdef class Engine:
    cdef Arena arena
    cdef SegmentFiles files
    cdef int process
    cdef fl_cell* cell
    cdef uint64_t* counters
    cdef object services
    cdef Authorizer authorizer
    cdef Reports reports
    cdef Partitions partitions
    cdef Jobs jobs
    cdef readonly SlotWaits slot_waits
    cdef Writes writes
    cdef Reads reads
    cdef Bridge bridge
