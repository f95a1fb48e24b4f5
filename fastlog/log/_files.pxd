from libc.stdint cimport int64_t, uint64_t

# The few file calls of the broker. Each returns what the system call returns, or -errno; each can be told to fail, to
# be cut short, to be slow, or to kill the process (see FASTLOG_FAULTS in _files.pyx).
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
    # named points in the code, where a test may kill the process
    AT_AFTER_LOCK
    AT_MID_WRITE
    AT_AFTER_WRITE
    AT_ROLL_CREATED
    AT_IN_REPAIR
    AT_BEFORE_UNLOCK
    AT_BEFORE_SYNC
    AT_AFTER_SYNC
    AT_CREATE_DIR
    AT_CREATE_SIDE_FILE
    AT_CREATE_SEGMENT
    AT_RETENTION_PUBLISHED
    AT_RETENTION_UNLINK
    AT_SIDE_FILE
    AT_MARKER
    AT_START_RECOVERED
    AT_START_MARKER_TAKEN
    AT_REWRITE
    AT_START_AGAIN
    AT_CREATORS
    OP_COUNT

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
cdef void failpoint(int point) noexcept nogil
# bytes to write before a kill in the middle of a write, or n when none is due
cdef size_t mid_write_cut(size_t n) noexcept nogil
