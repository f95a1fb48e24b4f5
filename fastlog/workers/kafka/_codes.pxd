from fastlog.workers._partitions cimport (
    PROBLEM_DENIED, PROBLEM_EPOCH, PROBLEM_FORMAT, PROBLEM_MESSAGE, PROBLEM_NONE, PROBLEM_OFFLINE, PROBLEM_PARTITION, PROBLEM_RANGE,
    PROBLEM_SEQUENCE, PROBLEM_SIZE, PROBLEM_STORAGE, PROBLEM_TOPIC, PROBLEM_UNREADABLE,
)

# Error codes of answers, as Apache Kafka numbers them.
cdef enum Code:
    CODE_UNKNOWN = -1
    CODE_NONE = 0
    CODE_OUT_OF_RANGE = 1
    CODE_CORRUPT_MESSAGE = 2
    CODE_UNKNOWN_TOPIC = 3
    CODE_LEADER_NOT_AVAILABLE = 5
    CODE_TOO_LARGE = 10
    CODE_INVALID_TOPIC = 17
    CODE_INVALID_ACKS = 21
    CODE_TOPIC_DENIED = 29
    CODE_INVALID_TIMESTAMP = 32
    CODE_VERSION = 35
    CODE_INVALID_REQUEST = 42
    CODE_FORMAT = 43
    CODE_OUT_OF_SEQUENCE = 45
    CODE_OLD_PRODUCER_EPOCH = 47
    CODE_TRANSACTION_DENIED = 53
    CODE_STORAGE = 56
    CODE_SESSION = 70
    CODE_OLD_EPOCH = 74
    CODE_NEW_EPOCH = 75
    CODE_COMPRESSION = 76
    CODE_INVALID_RECORD = 87
    CODE_UNKNOWN_TOPIC_ID = 100


cdef inline int code_of(int problem) noexcept nogil:
    """The error code for a ``Problem``."""
    if problem == PROBLEM_NONE:
        return CODE_NONE
    if problem == PROBLEM_TOPIC:
        return CODE_INVALID_TOPIC
    if problem == PROBLEM_PARTITION:
        return CODE_UNKNOWN_TOPIC
    if problem == PROBLEM_DENIED:
        return CODE_TOPIC_DENIED
    if problem == PROBLEM_FORMAT:
        return CODE_FORMAT
    if problem == PROBLEM_OFFLINE or problem == PROBLEM_STORAGE or problem == PROBLEM_UNREADABLE:
        return CODE_STORAGE
    if problem == PROBLEM_SEQUENCE:
        return CODE_OUT_OF_SEQUENCE
    if problem == PROBLEM_EPOCH:
        return CODE_OLD_PRODUCER_EPOCH
    if problem == PROBLEM_RANGE:
        return CODE_OUT_OF_RANGE
    if problem == PROBLEM_SIZE:
        return CODE_INVALID_REQUEST
    return CODE_CORRUPT_MESSAGE if problem == PROBLEM_MESSAGE else CODE_UNKNOWN
