from fastlog.log._layout cimport fl_header


cdef class SharedMemory:
    cdef fl_header* header
    cdef int fd                # the memfd; -1 once closed
    cdef int[64] eventfds      # one per process, by its place in the list
    cdef char** directories    # log directories by index, as C strings
    cdef object _directory_bytes


# Numbers of the counters that compiled code adds to; the names stand in _shared_memory.pyx in the same order.
cdef enum:
    N_PRODUCE = 0
    N_FETCH
    N_OFFSETS
    N_OWN
    N_FAILED_PRODUCE
    N_FAILED_FETCH
    N_MESSAGES_IN
    N_BYTES_IN
    N_BYTES_OUT
    N_RECEIVED
    N_SENT
    N_TOO_LARGE
    N_INVALID_REQUEST
    N_INVALID_MESSAGE
    N_IDLE_CLOSED
    N_APPEND_WAITS
    N_LOCK_WAITS
    N_SUSPICIOUS
    N_APPENDS
    N_REPAIRS
    N_ROLLS
    N_OVER_BUDGET
    N_HELD_FETCHES
    N_INFLATED
    N_READ_AHEAD
    N_STRANGERS
    N_SHORT_SENDS
    N_FLUSHES
    N_FLUSH_FAILURES
    N_FLUSHES_NO_ROOM
    N_FLUSHES_NO_FILES
    N_FLUSH_NS
    N_FLUSHED_BYTES
    N_REWRITTEN
    N_HANDOVERS
    N_ACCEPT_PAUSES
    N_REFUSED
    N_READ_FAILURES
    N_KAFKA
    N_DUPLICATES
    N_OUT_OF_SEQUENCE
    N_PRODUCERS_EVICTED
    N_FETCH_LOOKS
