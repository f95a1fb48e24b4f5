from libc.stdint cimport int64_t, uint32_t


cdef struct Run:
    int64_t window                 # the window's start, in ms
    int64_t first                  # numbers from here on, in the order they were given
    int64_t end                    # up to, and not, here


# Guarded by the GIL like the buffers: from giving a number to a message to having put it into its buffer, compiled code does
# not let another thread run; Python code holds the number meanwhile.
cdef class Stamp:
    cdef readonly str topic
    cdef readonly int64_t producer_id
    cdef readonly bint numbered
    cdef uint32_t server_id
    cdef int64_t window_ms
    cdef public int64_t shift_ms   # added to the clock
    cdef int64_t next
    cdef int64_t first             # of the run that is not finished
    cdef int64_t window
    cdef int64_t window_end        # the run holds times from window up to, and not, here
    cdef Run* runs
    cdef Py_ssize_t run_count
    cdef Py_ssize_t run_capacity
    cdef list held                 # numbers that Python code has not brought on their way yet
    cdef list voids                # (first, end) of numbers that may be in no message

    cdef Py_ssize_t extra(self, Py_ssize_t key_bytes) noexcept
    cdef int turn(self, int64_t now) except -1
    cdef int finish_run(self) except -1
    cdef bytes wrap(self, object value, const unsigned char* key, Py_ssize_t key_bytes)
    cdef void take_back(self, int64_t count) noexcept

# Sets ``p`` to the bytes of a key, valid for as long as the key exists; returns their number, -1 when there are none.
cdef Py_ssize_t find_key(object key, const unsigned char** p) except -2
