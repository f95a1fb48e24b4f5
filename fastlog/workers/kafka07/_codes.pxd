from fastlog.workers._partitions cimport (
    PROBLEM_DENIED, PROBLEM_FORMAT, PROBLEM_MESSAGE, PROBLEM_NONE, PROBLEM_OFFLINE, PROBLEM_PARTITION, PROBLEM_RANGE,
    PROBLEM_SIZE, PROBLEM_STORAGE, PROBLEM_TOPIC,
)

# Error codes of the answers. Those from 100 on are fastlog's own: a request of 0.7 gets CODE_UNKNOWN for them.
cdef enum Code:
    CODE_UNKNOWN = -1
    CODE_OUT_OF_RANGE = 1
    CODE_INVALID_MESSAGE = 2
    CODE_WRONG_PARTITION = 3
    CODE_INVALID_FETCH_SIZE = 4
    CODE_INVALID_TOPIC = 100
    CODE_OFFLINE = 101
    CODE_TOO_LARGE = 102
    CODE_STORAGE = 103
    CODE_VERSION = 104
    CODE_FEATURE = 105
    CODE_DENIED = 106
    CODE_MALFORMED = 107


cdef inline int code_of(int problem) noexcept nogil:
    """The error code for a ``Problem``; 0 for none."""
    if problem == PROBLEM_NONE:
        return 0
    if problem == PROBLEM_TOPIC:
        return CODE_INVALID_TOPIC
    if problem == PROBLEM_PARTITION or problem == PROBLEM_FORMAT:
        return CODE_WRONG_PARTITION
    if problem == PROBLEM_DENIED:
        return CODE_DENIED
    if problem == PROBLEM_OFFLINE:
        return CODE_OFFLINE
    if problem == PROBLEM_STORAGE:
        return CODE_STORAGE
    if problem == PROBLEM_RANGE:
        return CODE_OUT_OF_RANGE
    if problem == PROBLEM_SIZE:
        return CODE_INVALID_FETCH_SIZE
    return CODE_INVALID_MESSAGE if problem == PROBLEM_MESSAGE else CODE_UNKNOWN
