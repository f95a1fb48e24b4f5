from libc.stdint cimport int64_t, uint64_t

# The few file calls of the broker. Each returns what the system call returns, or -errno; each can be told to fail, to
# be cut short, to be slow, or to stop or kill the process (see FASTLOG_FAULTS in _files.pyx).
cdef enum Op:
    OP_OPEN = 0
    OP_PWRITE
    OP_PREAD
    OP_FTRUNCATE
    OP_FDATASYNC
    OP_FSYNC
    OP_FALLOCATE
    OP_SENDFILE
    OP_MARK
    OP_RENAME
    OP_WRITEBACK
    OP_FADVISE
    # named points in the code, where a test may stop or kill the process; what each lies between stands in OPS
    AT_AFTER_LOCK
    AT_MID_WRITE
    AT_AFTER_WRITE
    AT_PRODUCER_BEGUN
    AT_PRODUCER_BLOCK
    AT_PRODUCER_WRITTEN
    AT_CELL_OPEN
    AT_CELL_FILLED
    AT_APPEND_PUBLISHED
    AT_BEFORE_UNLOCK
    AT_UNLOCKED
    AT_ROLL_CREATED
    AT_ROLL_ENTRY
    AT_ROLL_PUBLISHED
    AT_REPAIR_MARKED
    AT_IN_REPAIR
    AT_REPAIR_CUT
    AT_REPAIR_DONE
    AT_FLUSH_BEGUN
    AT_FLUSH_TAIL_READ
    AT_FLUSH_END_READ
    AT_FLUSH_MARKED
    AT_BEFORE_SYNC
    AT_SEGMENT_SYNCED
    AT_NAMES_SYNCED
    AT_MARK_MOVED
    AT_AFTER_SYNC
    AT_TIME_STORED
    AT_FLUSHED
    AT_FLUSH_PUBLISHED
    AT_FLUSH_ENDED
    AT_REWRITE
    AT_REWRITTEN
    AT_RELEASE_LOCKED
    AT_RELEASE_SEALED
    AT_LOCATE_WATERMARK
    AT_LOCATE_TAIL
    AT_LOCATE_HEAD
    AT_LOCATE_ENTRY
    AT_SEGMENTS_TAIL
    AT_SEGMENTS_READ
    AT_VIEW_ENDS
    AT_LEAVING_READ
    AT_RETENTION_START
    AT_RETENTION_PUBLISHED
    AT_RETENTION_UNLINK
    AT_RETENTION_UNLINKED
    AT_STARTS_FILE
    AT_STARTS_KEPT
    AT_STARTS_PUBLISHED
    AT_CREATE_DIR
    AT_CREATE_SIDE_FILE
    AT_CREATE_SEGMENT
    AT_CREATE_SLOT
    AT_CREATE_LIVES
    AT_CREATE_PUBLISHED
    AT_LIFE_MARKED
    AT_LIFE_ENDED
    AT_LIFE_ANNOUNCED
    AT_RETURN_RECOVERED
    AT_RETURN_ADDED
    AT_RETURN_ELSEWHERE
    AT_RETURN_REVIVED
    AT_DELETE_WANTED
    AT_DELETE_PAST
    AT_DELETE_RENAMED
    AT_DELETE_DONE
    AT_DELETE_SETTLED
    AT_DELETE_UNLINK
    AT_SIDE_FILE
    AT_METADATA_FILE
    AT_EPOCHS_FILE
    AT_INDEX_FILE
    AT_SNAPSHOT_FILE
    AT_MARKER
    AT_START_RECOVERED
    AT_START_MARKER_TAKEN
    AT_START_AGAIN
    AT_CREATORS
    AT_META
    AT_METADATA_APPENDED
    AT_TOPIC_CREATING
    AT_TOPIC_MADE
    AT_TOPIC_DELETING
    AT_TOPIC_GONE
    AT_TOPIC_ALTERED
    AT_GROUP_KEPT
    AT_LOG_SNAPSHOT
    AT_HANDOVER_SENT
    AT_HANDOVER_TAKEN
    AT_ACK_WAITS
    AT_HOLD_LOOKED
    AT_HOLD_NOBODY
    AT_APPEND_REFUSED
    AT_CREATE_BUSY
    AT_FLUSHER_CLEAN
    AT_FLUSHER_PAST
    AT_PROCESSOR_PAST
    AT_PROCESSOR_LOOKS
    OP_COUNT

# not 0 while rules are armed in this process, or its calls are recorded: without, a call or a point costs one test of it
cdef int armed

# never through a symbolic link, but for a directory
cdef int file_open(const char* path, int flags, int mode) noexcept nogil
cdef int64_t file_pwrite(int fd, const void* data, size_t n, uint64_t position) noexcept nogil
cdef int64_t file_pread(int fd, void* data, size_t n, uint64_t position) noexcept nogil
cdef int64_t file_pread_nowait(int fd, void* data, size_t n, uint64_t position) noexcept nogil
cdef int64_t file_sendfile(int sock, int fd, uint64_t position, size_t n) noexcept nogil
cdef int file_ftruncate(int fd, uint64_t size) noexcept nogil
# as ftruncate, but -EIO, and nothing changed, where that would make the file longer: no byte is ever invented
cdef int file_cut(int fd, uint64_t size) noexcept nogil
cdef int file_fdatasync(int fd) noexcept nogil
cdef int file_fsync(int fd) noexcept nogil
cdef int file_rename(const char* old, const char* new) noexcept nogil
# one byte of the flush marks
cdef int file_mark(int fd, bint on, uint64_t position) noexcept nogil
cdef int file_preallocate(int fd, uint64_t position, uint64_t n) noexcept nogil
cdef int file_drop_cache(int fd, uint64_t position, uint64_t n) noexcept nogil
cdef int file_writeback(int fd, uint64_t position, uint64_t n) noexcept nogil
cdef int tripped(int op) noexcept nogil

# a named point was reached; never for every message, but for every append, flush or look-up
cdef inline void failpoint(int point) noexcept nogil:
    if armed:
        tripped(point)

# bytes to write before a kill in the middle of a write, or n when none is due
cdef size_t mid_write_cut(size_t n) noexcept nogil
