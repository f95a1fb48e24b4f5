"""The compiled twin of ``files.py``: every file call of the hot paths, with a place to make each of them fail.

``FASTLOG_FAULTS`` holds rules separated by commas, ``[role:]call@numbers=action``: ``flusher:fdatasync@3=EIO``,
``processor:pwrite@5-9=ENOSPC``, ``pwrite@1-=short``, ``fdatasync@1-=slow:1000`` (milliseconds), and, for the named
points of the code, ``append.after_lock@50=kill`` and ``flusher:flush.before_sync@2=stop``. A rule counts the calls of its own
process. One that is stopped stands there until somebody sends SIGCONT, with all its threads: a test lets the others run past
it meanwhile. Without the variable a call costs one test of a word that is always in the cache.
"""

from libc.errno cimport EINTR, EIO, ENOSPC, EOPNOTSUPP, errno
from libc.stdint cimport int64_t, uint64_t

import errno as errno_names
import os

from fastlog.errors import ConfigError

cdef extern from "<fcntl.h>" nogil:
    int open(const char*, int, ...)
    int O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW
    int fallocate(int, int, long, long)
    int FALLOC_FL_KEEP_SIZE
    int sync_file_range(int, long, long, unsigned int)
    int posix_fadvise(int, long, long, int)
    int POSIX_FADV_DONTNEED
    unsigned int SYNC_FILE_RANGE_WRITE

cdef extern from "<stdio.h>" nogil:
    int rename(const char*, const char*)
    int dprintf(int, const char*, ...)
    int snprintf(char*, size_t, const char*, ...)

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int, const void*, size_t, long)
    ssize_t pread(int, void*, size_t, long)
    int ftruncate(int, long)
    int fdatasync(int)
    int fsync(int)
    int getpid()
    ssize_t readlink(const char*, char*, size_t)

cdef extern from "<sys/stat.h>" nogil:
    struct stat_t "stat":
        long st_size
    int fstat(int, stat_t*)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int nanosleep(const timespec*, timespec*)

cdef extern from "<signal.h>" nogil:
    int kill(int, int)
    int raise_signal "raise"(int)
    int SIGKILL, SIGSTOP

cdef extern from *:
    """
    #include <stdint.h>
    /* each number goes to one thread: a fault at the n-th call meets one of them, never two or none */
    static inline uint64_t call_number(uint64_t *calls) { return __atomic_add_fetch(calls, 1, __ATOMIC_RELAXED); }
    """
    uint64_t call_number(uint64_t*) nogil

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from *:
    """
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifndef RWF_NOWAIT /* musl before 1.2.5, which has not the function either */
    #define RWF_NOWAIT 8
    static ssize_t preadv2(int fd, const struct iovec *pieces, int count, long position, int flags) {
        return syscall(SYS_preadv2, fd, pieces, count, position, 0L, flags);
    }
    #endif
    """
    ssize_t preadv2(int, const iovec*, int, long, int) nogil
    int RWF_NOWAIT

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int, int, long*, size_t)

OPS = {
    "open": OP_OPEN, "pwrite": OP_PWRITE, "pread": OP_PREAD, "ftruncate": OP_FTRUNCATE, "fdatasync": OP_FDATASYNC,
    "fsync": OP_FSYNC, "fallocate": OP_FALLOCATE, "sendfile": OP_SENDFILE, "mark": OP_MARK, "rename": OP_RENAME,
    "sync_file_range": OP_WRITEBACK, "posix_fadvise": OP_FADVISE,
    # an append, in this order; before_unlock also where nothing was appended
    "append.after_lock": AT_AFTER_LOCK,
    "append.mid_write": AT_MID_WRITE,              # half of the bytes are in the file
    "append.after_write": AT_AFTER_WRITE,          # all of them, and nobody knows
    "producer.begun": AT_PRODUCER_BEGUN,           # the version of a producer that does not count any more is none
    "producer.block_taken": AT_PRODUCER_BLOCK,     # a block is the slot's, and not in its chain
    "producer.written": AT_PRODUCER_WRITTEN,       # the version says what holds from the new log end on, which stands where it was
    "append.cell_open": AT_CELL_OPEN,              # the cell that is not in use says nothing
    "append.cell_filled": AT_CELL_FILLED,          # it says all of the new log end, which stands where it was
    "append.published": AT_APPEND_PUBLISHED,       # the log end has moved, the flusher was not woken
    "append.before_unlock": AT_BEFORE_UNLOCK,
    "append.unlocked": AT_UNLOCKED,                # the lock is free, its waiters and the flusher sleep on
    "roll.created": AT_ROLL_CREATED,               # the file is there, the table does not name it
    "roll.entry_written": AT_ROLL_ENTRY,           # the entry is written, behind the table's tail
    "roll.published": AT_ROLL_PUBLISHED,           # the tail has passed it, the flusher was not woken
    "repair.marked": AT_REPAIR_MARKED,             # the slot says it is torn, the lock is not consistent yet
    "repair.inside": AT_IN_REPAIR,
    "repair.cut": AT_REPAIR_CUT,                   # the file ends at the log end, a half-made roll is still one
    "repair.done": AT_REPAIR_DONE,                 # all is whole, the slot still says it is torn
    # a flush, in this order
    "flush.begun": AT_FLUSH_BEGUN,                 # flush_in_progress is set, no word was read
    "flush.tail_read": AT_FLUSH_TAIL_READ,         # the tail was read, the log end not
    "flush.end_read": AT_FLUSH_END_READ,           # the log end was read, no mark left
    "flush.marked": AT_FLUSH_MARKED,
    "flush.before_sync": AT_BEFORE_SYNC,           # of each segment
    "flush.segment_synced": AT_SEGMENT_SYNCED,     # of each segment
    "flush.names_synced": AT_NAMES_SYNCED,         # the directories are synced, the flushed mark was not moved
    "flush.mark_moved": AT_MARK_MOVED,             # it was moved, and its name not synced
    "flush.after_sync": AT_AFTER_SYNC,             # everything is synced, nothing published
    "flush.time_stored": AT_TIME_STORED,           # the time is published, both ends are unchanged
    "flush.flushed": AT_FLUSHED,                   # the flushed end has moved, readers see no more than before
    "flush.published": AT_FLUSH_PUBLISHED,         # the visible end has moved, too, flush_in_progress is set
    "flush.ended": AT_FLUSH_ENDED,                 # it is not any more, and nobody was woken
    "flush.rewrite": AT_REWRITE,                   # with the append lock
    "flush.rewritten": AT_REWRITTEN,               # still with it
    "release.locked": AT_RELEASE_LOCKED,           # with the append lock, nothing was cut
    "release.sealed": AT_RELEASE_SEALED,           # a segment counts as sealed, its size was not read
    # a look-up
    "locate.watermark_read": AT_LOCATE_WATERMARK,
    "locate.tail_read": AT_LOCATE_TAIL,
    "locate.head_read": AT_LOCATE_HEAD,
    "locate.entry_read": AT_LOCATE_ENTRY,          # what was found is not yet believed
    "segments.tail_read": AT_SEGMENTS_TAIL,
    "segments.read": AT_SEGMENTS_READ,             # the rows are read, and not yet believed
    "view.ends_read": AT_VIEW_ENDS,                 # start, visible and flushed end, and the log end not
    "leaving.read": AT_LEAVING_READ,               # the name of a partition that has gone, and not yet believed
    "retention.start_published": AT_RETENTION_START,  # and the table's head not
    "retention.published": AT_RETENTION_PUBLISHED,
    "retention.unlink": AT_RETENTION_UNLINK,       # before each file
    "retention.unlinked": AT_RETENTION_UNLINKED,   # the files are gone, descriptors of them open everywhere
    "starts_file.write": AT_STARTS_FILE,           # log starts are in a file that has not its name
    "starts.kept": AT_STARTS_KEPT,                 # they are durable, and not published
    "starts.published": AT_STARTS_PUBLISHED,       # and no segment is dropped
    "create.directory": AT_CREATE_DIR, "create.side_file": AT_CREATE_SIDE_FILE, "create.segment": AT_CREATE_SEGMENT,
    "create.slot_written": AT_CREATE_SLOT,         # the slot is filled, and does not live
    "create.slot_lives": AT_CREATE_LIVES,          # now it is, and no change was published
    "create.slot_published": AT_CREATE_PUBLISHED,  # it is published, and nobody was woken
    "life.marked": AT_LIFE_MARKED,                 # the slot is marked as leaving, and is alive
    "life.ended": AT_LIFE_ENDED,                   # it is not alive, and no change was published
    "life.announced": AT_LIFE_ANNOUNCED,           # it is published, and nobody was woken
    "life.flusher_past": AT_FLUSHER_PAST,          # the flusher has forgotten it, and has not said so
    "life.processor_past": AT_PROCESSOR_PAST,      # a processor has forgotten it, and has not said so
    "life.processor_looks": AT_PROCESSOR_LOOKS,    # its tables know all changes, and it has not looked a partition up
    "return.recovered": AT_RETURN_RECOVERED,       # a partition's files are whole again, and it does not live
    "return.added": AT_RETURN_ADDED,               # it is alive in another slot, and its own says that it returns
    "return.elsewhere": AT_RETURN_ELSEWHERE,       # its own says that it does not, and no change was published
    "return.revived": AT_RETURN_REVIVED,           # it is alive as before, and its slot says that it is to return
    "delete.wanted": AT_DELETE_WANTED,             # the request is durable, the keeper was not woken
    "delete.past": AT_DELETE_PAST,                 # nobody looks at the partition any more, its directory has its name
    "delete.renamed": AT_DELETE_RENAMED,           # it has another, not durable
    "delete.done": AT_DELETE_DONE,                 # all directories have, durable; the marker is still there
    "delete.settled": AT_DELETE_SETTLED,           # the marker is gone, the slots are not free
    "delete.unlink": AT_DELETE_UNLINK,             # before each file
    "side_file.write": AT_SIDE_FILE, "metadata_file.write": AT_METADATA_FILE, "epochs_file.write": AT_EPOCHS_FILE,
    "index_file.write": AT_INDEX_FILE, "snapshot_file.write": AT_SNAPSHOT_FILE, "marker.write": AT_MARKER, "creators.write": AT_CREATORS, "meta.write": AT_META,
    # topics of record batches, by the coordinator
    "metadata.appended": AT_METADATA_APPENDED,     # a change is in the metadata log, not flushed
    "topic.creating": AT_TOPIC_CREATING,           # the intent is flushed, no partition is made
    "topic.made": AT_TOPIC_MADE,                   # all partitions and their names are durable, which is not written down
    "topic.deleting": AT_TOPIC_DELETING,           # the intent is flushed, no marker stands
    "topic.gone": AT_TOPIC_GONE,                   # the name is free, which is not written down
    "topic.altered": AT_TOPIC_ALTERED,             # other settings are written down, no partition has them
    "group.kept": AT_GROUP_KEPT,                   # a group's assignment is flushed, and no member has its answer
    "log.snapshot": AT_LOG_SNAPSHOT,               # a part of a snapshot is flushed, and others may be missing
    # a connection on its way to a processor
    "handover.sent": AT_HANDOVER_SENT,             # the acceptor has not counted it, and has its own copy
    "handover.taken": AT_HANDOVER_TAKEN,           # the processor has it, and nobody counted that
    # a waiter, between what it saw and that it says so
    "wait.ack": AT_ACK_WAITS,                      # what is to be acknowledged is appended and not flushed
    "wait.hold": AT_HOLD_LOOKED,                   # a long poll found too little
    "wait.hold_nobody": AT_HOLD_NOBODY,            # a long poll found no partition
    "wait.append": AT_APPEND_REFUSED,              # an append found the lock taken, or no room
    "wait.create": AT_CREATE_BUSY,                 # a creation found another one under way
    "wait.flusher": AT_FLUSHER_CLEAN,              # the flusher found a partition flushed, and has taken its mark away
    "start.recovered": AT_START_RECOVERED, "start.marker_taken": AT_START_MARKER_TAKEN, "start.again": AT_START_AGAIN,
}

cdef enum Action:
    ACT_ERRNO = 1
    ACT_SHORT
    ACT_SLOW
    ACT_KILL
    ACT_STOP

BARE_ACTIONS = {"short": ACT_SHORT, "kill": ACT_KILL, "stop": ACT_STOP}

cdef struct Rule:
    int op
    uint64_t first
    uint64_t last
    int action
    int argument

cdef Rule[32] rules
cdef int rule_count = 0
cdef uint64_t[OP_COUNT] calls
cdef int record_fd = -1


def arm(str text, str role):
    """Take the rules of ``text`` that are for ``role`` (or for all); the counts begin at zero. Safe before threads only.

    Raises:
        ConfigError: a rule is malformed.
    """
    global armed, rule_count
    cdef int i
    rule_count = 0
    armed = record_fd >= 0
    for i in range(OP_COUNT):
        calls[i] = 0
    for rule in filter(None, (part.strip() for part in text.split(","))):
        try:
            where, action = rule.split("=")
            call, _, numbers = where.partition("@")
            wanted_role, _, name = call.rpartition(":")
            first, dash, last = (numbers or "1-").partition("-")
            kind, _, argument = action.partition(":")
            op = OPS[name]
            low, high = int(first), int(last) if last else ((1 << 62) if dash else int(first))
            if kind in BARE_ACTIONS:
                act, value = BARE_ACTIONS[kind], 0
            elif kind == "slow":
                act, value = ACT_SLOW, int(argument)
            else:
                act, value = ACT_ERRNO, getattr(errno_names, kind)
        except (ValueError, KeyError, AttributeError):
            raise ConfigError(
                f"FASTLOG_FAULTS: cannot read {rule!r}; the form is [role:]call@first-last=action, calls are "
                f"{', '.join(OPS)}, actions are errno names, short, slow:ms, stop, kill"
            ) from None
        if wanted_role and role != wanted_role and not role.startswith(f"{wanted_role}-"):
            continue
        if rule_count == 32:
            raise ConfigError("FASTLOG_FAULTS: at most 32 rules")
        rules[rule_count] = Rule(op, low, high, act, value)
        rule_count += 1
        armed = 1


def arm_from_environment(str role):
    """Take the rules of ``FASTLOG_FAULTS`` for a process of this role."""
    arm(os.environ.get("FASTLOG_FAULTS", ""), role)


def record(str path):
    """From now on write down what this process and those it forks do with files, and each point, as a line of ``path``.

    Opens, and what changes or syncs something, in the order in which it ended: process id, number in ``OPS``, position, size
    (of an open: its flags), result, name of the file (none where the error was injected), new name; with tabs between them.
    ``None`` ends it.
    """
    global armed, record_fd
    if record_fd >= 0:
        os.close(record_fd)
        record_fd = -1
    if path is not None:
        record_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    armed = rule_count > 0 or record_fd >= 0


def reach(str name):
    """A named point of Python code was reached: a rule may end the process here, or raise its error."""
    cdef int r, point
    if armed:
        point = OPS[name]
        with nogil:  # a thread that stands at a point holds up no other one
            r = tripped(point)
        if r < 0:
            raise OSError(-r, os.strerror(-r), f"fault injected at {name}")


cdef void noted(int op, uint64_t position, uint64_t n, int64_t r, const char* path, const char* new_path) noexcept nogil:
    """Write a line of the record, if there is one."""
    if record_fd >= 0:
        dprintf(record_fd, "%d\t%d\t%llu\t%llu\t%lld\t%s\t%s\n", getpid(), op, <unsigned long long>position,
                <unsigned long long>n, <long long>r, path, new_path)


cdef int64_t done(int op, int fd, uint64_t position, uint64_t n, int64_t r) noexcept nogil:
    """A call on an open file has ended with ``r``, which is returned."""
    cdef char[64] link
    cdef char[4096] path
    cdef ssize_t length
    if record_fd >= 0:
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd)
        length = readlink(link, path, sizeof(path) - 1)
        path[max(length, <ssize_t>0)] = 0
        noted(op, position, n, r, path, "")
    return r


cdef int tripped(int op) noexcept nogil:
    """0 go on, 1 cut the call short, -errno fail; a kill does not return, a stop when the process is continued."""
    cdef int i, result = 0
    cdef uint64_t number = call_number(&calls[op])
    cdef timespec pause
    if op >= AT_AFTER_LOCK:
        noted(op, 0, 0, 0, "", "")
    for i in range(rule_count):
        if rules[i].op != op or number < rules[i].first or number > rules[i].last:
            continue
        if rules[i].action == ACT_KILL:
            kill(getpid(), SIGKILL)
        elif rules[i].action == ACT_STOP:
            raise_signal(SIGSTOP)  # to this thread: it does not go one step further
        elif rules[i].action == ACT_SLOW:
            pause.tv_sec = rules[i].argument // 1000
            pause.tv_nsec = rules[i].argument % 1000 * 1000000
            while nanosleep(&pause, &pause) != 0 and errno == EINTR:
                pass  # a call that hangs in the kernel is not shortened by a signal either
        elif rules[i].action == ACT_SHORT:
            result = 1
        else:
            result = -rules[i].argument
            noted(op, 0, 0, result, "", "")
    return result


cdef size_t mid_write_cut(size_t n) noexcept nogil:
    cdef int i
    if armed:
        for i in range(rule_count):
            if rules[i].op == AT_MID_WRITE and calls[<int>AT_MID_WRITE] + 1 >= rules[i].first \
                    and calls[<int>AT_MID_WRITE] + 1 <= rules[i].last:
                return n // 2
    return n


cdef int file_open(const char* path, int flags, int mode) noexcept nogil:
    cdef int r = tripped(OP_OPEN) if armed else 0
    if r < 0:
        return r
    # a log directory that somebody else can write in must not lead us to another file
    if not flags & O_DIRECTORY:
        flags |= O_NOFOLLOW
    while True:
        r = open(path, flags | O_CLOEXEC, mode)
        if r < 0:
            r = -errno
        if r != -EINTR:
            if armed:
                noted(OP_OPEN, 0, flags, r, path, "")
            return r


cdef int64_t file_pwrite(int fd, const void* data, size_t n, uint64_t position) noexcept nogil:
    """Write at a position of the file: how many bytes, fewer where the disk is full, or -errno."""
    cdef int64_t r = tripped(OP_PWRITE) if armed else 0
    if r < 0:
        return r
    if r == 1 and n > 1:
        n = n // 2
    while True:
        r = pwrite(fd, data, n, <long>position)
        if r < 0:
            r = -errno
        if r != -EINTR:
            return done(OP_PWRITE, fd, position, n, r) if armed else r


cdef int64_t file_pread(int fd, void* data, size_t n, uint64_t position) noexcept nogil:
    """Read from a position of the file: how many bytes, fewer at its end, or -errno."""
    cdef int64_t r = tripped(OP_PREAD) if armed else 0
    if r < 0:
        return r
    if r == 1 and n > 1:
        n = n // 2
    while True:
        r = pread(fd, data, n, <long>position)
        if r >= 0:
            return r
        if errno != EINTR:
            return -errno


cdef int64_t file_pread_nowait(int fd, void* data, size_t n, uint64_t position) noexcept nogil:
    """As pread, but -EAGAIN when the bytes are not in memory, and -EOPNOTSUPP where the file system cannot say."""
    cdef iovec piece
    cdef int64_t r = tripped(OP_PREAD) if armed else 0
    if r < 0:
        return r
    piece.iov_base = data
    piece.iov_len = n
    r = preadv2(fd, &piece, 1, <long>position, RWF_NOWAIT)
    return r if r >= 0 else -errno


cdef int64_t file_sendfile(int sock, int fd, uint64_t position, size_t n) noexcept nogil:
    """Send bytes of a file to a socket: how many, or -errno; -EAGAIN when the socket takes none now."""
    cdef long offset = <long>position
    cdef int64_t r = tripped(OP_SENDFILE) if armed else 0
    if r < 0:
        return r
    if r == 1 and n > 1:
        n = n // 2
    r = sendfile(sock, fd, &offset, n)
    return r if r >= 0 else -errno


cdef int file_ftruncate(int fd, uint64_t size) noexcept nogil:
    cdef int r = tripped(OP_FTRUNCATE) if armed else 0
    if r < 0:
        return r
    while True:
        r = 0 if ftruncate(fd, <long>size) == 0 else -errno
        if r != -EINTR:
            return <int>done(OP_FTRUNCATE, fd, size, 0, r) if armed else r


cdef int file_cut(int fd, uint64_t size) noexcept nogil:
    cdef stat_t found
    if fstat(fd, &found) != 0:
        return -errno
    return -EIO if <uint64_t>found.st_size < size else file_ftruncate(fd, size)


cdef int file_fdatasync(int fd) noexcept nogil:
    """Make what was written to a file durable: 0, or -errno once; the next call may say 0 for bytes that are lost."""
    cdef int r = tripped(OP_FDATASYNC) if armed else 0
    if r < 0:
        return r
    # never tried again: the kernel reports a failed write-back once and marks the pages clean
    r = 0 if fdatasync(fd) == 0 else -errno
    return <int>done(OP_FDATASYNC, fd, 0, 0, r) if armed else r


cdef int file_fsync(int fd) noexcept nogil:
    """The same with all that is known of the file, or of the names in a directory."""
    cdef int r = tripped(OP_FSYNC) if armed else 0
    if r < 0:
        return r
    r = 0 if fsync(fd) == 0 else -errno
    return <int>done(OP_FSYNC, fd, 0, 0, r) if armed else r


cdef int file_rename(const char* old, const char* new) noexcept nogil:
    """Give a file another name, in place of the one that has it: 0 or -errno. Durable with the directory's sync."""
    cdef int r = tripped(OP_RENAME) if armed else 0
    if r < 0:
        return r
    r = 0 if rename(old, new) == 0 else -errno
    if armed:
        noted(OP_RENAME, 0, 0, r, old, new)
    return r


cdef int file_mark(int fd, bint on, uint64_t position) noexcept nogil:
    cdef unsigned char mark = on
    cdef int64_t r = tripped(OP_MARK) if armed else 0
    if r < 0:
        return <int>r
    while True:
        r = pwrite(fd, &mark, 1, <long>position)
        if r == 1:
            return <int>done(OP_MARK, fd, position, on, 0) if armed else 0
        if r == 0 or errno != EINTR:
            return -ENOSPC if r == 0 else -errno


cdef int file_preallocate(int fd, uint64_t position, uint64_t n) noexcept nogil:
    """Have the file system set blocks aside behind a file's end, which stays where it is: 0 or -errno."""
    cdef int r = tripped(OP_FALLOCATE) if armed else 0
    if r < 0:
        return r
    r = 0 if fallocate(fd, FALLOC_FL_KEEP_SIZE, <long>position, <long>n) == 0 else -errno
    return <int>done(OP_FALLOCATE, fd, position, n, r) if armed else r


def preallocate(int fd, uint64_t position, uint64_t n):
    """Have the disk keep room for these bytes of a file, whose size stays; nothing where the file system cannot."""
    cdef int r
    with nogil:
        r = file_preallocate(fd, position, n)
    if r < 0 and r != -EOPNOTSUPP:
        raise OSError(-r, os.strerror(-r))


cdef int file_drop_cache(int fd, uint64_t position, uint64_t n) noexcept nogil:
    """Let the kernel forget clean pages of this range; no promise hangs on it."""
    cdef int r = tripped(OP_FADVISE) if armed else 0
    if r < 0:
        return r
    r = -posix_fadvise(fd, <long>position, <long>n, POSIX_FADV_DONTNEED)
    return <int>done(OP_FADVISE, fd, position, n, r) if armed else r


cdef int file_writeback(int fd, uint64_t position, uint64_t n) noexcept nogil:
    """Start writing dirty pages back without waiting; no promise hangs on it."""
    cdef int r = tripped(OP_WRITEBACK) if armed else 0
    if r < 0:
        return r
    r = 0 if sync_file_range(fd, <long>position, <long>n, SYNC_FILE_RANGE_WRITE) == 0 else -errno
    return <int>done(OP_WRITEBACK, fd, position, n, r) if armed else r
