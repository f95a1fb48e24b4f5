from libc.stdint cimport int32_t


cdef struct Frame:
    Py_ssize_t end             # position behind the frame's last byte, from the start of its memory
    int32_t correlation_id     # of an acknowledged request; counts frames otherwise
    int32_t messages


# Finished frames in memory of their own. Nothing writes into it any more: it is freed with the object, and who sends it
# holds the object. So a buffer cannot be filled again while a request is still being written from it.
cdef class Chunk:
    cdef unsigned char* memory
    cdef readonly Py_ssize_t size
    cdef Frame* frames
    cdef readonly int frame_count
    cdef readonly long long messages
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int codec
    cdef Py_ssize_t header_bytes
    cdef bytes header
    cdef list tickets              # (frame index, position in the set, messages, ticket), ascending; or None
    cdef public long long taken_ns # when it left the queue, on the monotonic clock
    cdef public int attempts       # connections it was written to before this one
    cdef public long long sequence # its place among all chunks of its connection's queue
    # The sender's bookkeeping; the accumulating side does not look at it.
    cdef Py_ssize_t written        # bytes handed to the kernel on this connection, or not needed again
    cdef int written_frames        # frames that are wholly handed over
    cdef int finished_frames       # frames that are acknowledged or failed
    cdef int next_ticket
