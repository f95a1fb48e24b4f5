/* Stands between a program and the C library, and counts, records and fails the calls that reach files below one
 * directory. tests/harness/disk_shim.py builds it, has it loaded first (LD_PRELOAD) and shares `struct control` with it:
 * one mapping for every process that is forked, so that a count outlives the process that made it.
 *
 * A process is watched once it has a role: by disk_role(), or by the name "fastlog-<role>" that it gives itself. Calls
 * on a descriptor count when the watched process opened it below the root. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CALLS(X) X(open) X(close) X(read) X(write) X(pread) X(pwrite) X(sendfile) X(ftruncate) X(fallocate) \
    X(fdatasync) X(fsync) X(writeback) X(fadvise) X(rename) X(unlink) X(mkdir) X(rmdir) X(link) X(opendir) X(readdir) \
    X(stat) X(fstat) X(statfs) X(utime) X(chmod) X(flock) X(mmap) X(access) X(readlink)
#define ROLES(X) X(supervisor) X(acceptor) X(processor) X(flusher) X(keeper) X(mirror) X(tool)

enum call {
#define X(name) CALL_##name,
    CALLS(X)
#undef X
    CALL_COUNT
};

static const char *const ROLE_NAMES[] = {
#define X(name) #name,
    ROLES(X)
#undef X
};
enum {
    ROLE_COUNT = sizeof ROLE_NAMES / sizeof *ROLE_NAMES,
    FDS = 4096,
    NAME = 80,
    RECORDS = 16384,
    RULES = 5,
    SHORT = -1, /* move half of the bytes */
    KILL = -2 /* end the process before the call */
};

/* What happens to one call: the number-th of a kind that processes of a role make, counted from 1. Of several rules for
 * the same call the last one counts. */
struct rule {
    int32_t role, call, number, action; /* action 0: none */
    int32_t fired;
    char name[NAME]; /* of the file, once it has */
};

struct record {
    int32_t pid;
    int16_t role;
    int16_t call;
    int32_t number; /* of this role's calls of this kind, from 1 */
    int32_t action; /* what was done to it: 0 nothing, an errno, SHORT */
    char name[NAME]; /* below the root; "" is the root itself */
};

struct control {
    char root[PATH_MAX];
    struct rule rules[RULES];
    int32_t counts[ROLE_COUNT][CALL_COUNT];
    int32_t record_count; /* may pass RECORDS, which are then all that are kept */
    struct record records[RECORDS];
};

static struct control *control;
static size_t root_size;
static int role = -1;
static unsigned char watched[FDS];
static char names[FDS][NAME];

const char *disk_calls(void) {
    return ""
#define X(name) #name " "
        CALLS(X)
#undef X
        ;
}

const char *disk_roles(void) {
    return ""
#define X(name) #name " "
        ROLES(X)
#undef X
        ;
}

/* Watch this process under a role from now on, or, with a name that is none, no more. */
void disk_role(const char *name) {
    size_t n = strcspn(name, "-");
    role = -1;
    for (int i = 0; i < ROLE_COUNT; i++)
        if (n > 2 && strncmp(ROLE_NAMES[i], name, n) == 0) role = i; /* the kernel takes 15 bytes of a process's name */
}

/* The root has changed; descriptors that are open belong to nothing any more. */
void disk_forget(void) {
    root_size = 0;
    memset(watched, 0, sizeof watched);
}

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("DISK_SHIM_CONTROL");
    if (path == NULL) return;
    int fd = (int)((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) abort();
    ((int (*)(int))dlsym(RTLD_NEXT, "close"))(fd);
}

static const char *below(const char *path) {
    if (role < 0 || control == NULL || path == NULL) return NULL;
    if (root_size == 0) root_size = strlen(control->root);
    if (strncmp(path, control->root, root_size) != 0) return NULL;
    path += root_size;
    return *path == 0 ? path : *path == '/' ? path + 1 : NULL;
}

/* Count a call on a name below the root: 0 go on, SHORT, or the errno to fail with, which is set, too. */
static int begin(enum call call, const char *name) {
    int number = __atomic_add_fetch(&control->counts[role][call], 1, __ATOMIC_SEQ_CST), action = 0;
    for (int i = RULES - 1; i >= 0 && action == 0; i--) {
        struct rule *r = &control->rules[i];
        if (r->action != 0 && r->role == role && r->call == (int)call && r->number == number && !r->fired) {
            r->fired = 1;
            snprintf(r->name, NAME, "%s", name);
            action = r->action;
        }
    }
    int place = __atomic_fetch_add(&control->record_count, 1, __ATOMIC_SEQ_CST);
    if (place < RECORDS) {
        struct record *r = &control->records[place];
        snprintf(r->name, NAME, "%s", name);
        r->pid = getpid();
        r->role = (int16_t)role;
        r->call = (int16_t)call;
        r->number = number;
        r->action = action;
    }
    if (action == KILL) kill(getpid(), SIGKILL);
    if (action > 0) errno = action;
    return action;
}

static int on(enum call call, int fd) {
    return role >= 0 && fd >= 0 && fd < FDS && watched[fd] ? begin(call, names[fd]) : 0;
}

static int at(enum call call, const char *path) {
    const char *name = below(path);
    return name == NULL ? 0 : begin(call, name);
}

static size_t cut(int action, size_t n) { return action == SHORT && n > 1 ? n / 2 : n; }

static void opened(int fd, const char *name) {
    if (fd < 0 || fd >= FDS) return;
    watched[fd] = name != NULL;
    if (name != NULL) snprintf(names[fd], NAME, "%s", name);
}

/* The same function under the name that it has for files beyond 2 GiB. */
#define ALSO(wide, name) __asm__(".globl " #wide "\n.type " #wide ", @function\n.set " #wide ", " #name);

/* The next function of this name, of the type of the one that asks. */
#define NEXT(name) \
    static __typeof__(name) *next; \
    if (next == NULL) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int open(const char *path, int flags, ...) {
    NEXT(open);
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    const char *name = below(path);
    if (name != NULL && begin(CALL_open, name) > 0) return -1;
    int fd = next(path, flags, mode);
    opened(fd, name);
    return fd;
}
ALSO(open64, open)

int openat(int folder, const char *path, int flags, ...) {
    NEXT(openat);
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    const char *name = below(path);
    if (name != NULL && begin(CALL_open, name) > 0) return -1;
    int fd = next(folder, path, flags, mode);
    opened(fd, name);
    return fd;
}
ALSO(openat64, openat)

int close(int fd) {
    NEXT(close);
    int action = on(CALL_close, fd), saved = errno;
    if (fd >= 0 && fd < FDS) watched[fd] = 0;
    int r = next(fd); /* also when it fails: Linux has let go of the descriptor then */
    if (action <= 0) return r;
    errno = saved;
    return -1;
}

/* Half of what a read has brought: whatever was asked for may be more than there is. */
static ssize_t halved(int action, ssize_t came) { return action == SHORT && came > 1 ? came / 2 : came; }

/* A call on a descriptor (first argument) that brings bytes; only for places of the file that are named. */
#define BRINGS(call, name, parameters, arguments) \
    ssize_t name parameters { \
        NEXT(name); \
        int action = on(CALL_##call, fd); \
        return action > 0 ? -1 : halved(action, next arguments); \
    }
/* A call on a descriptor (first argument) that moves n bytes. */
#define MOVES(call, type, name, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        int action = on(CALL_##call, fd); \
        if (action > 0) return -1; \
        n = cut(action, n); \
        return next arguments; \
    }
MOVES(read, ssize_t, read, (int fd, void *data, size_t n), (fd, data, n))
MOVES(write, ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n))
BRINGS(pread, pread, (int fd, void *data, size_t n, off_t at), (fd, data, n, at))
MOVES(pwrite, ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
ALSO(pread64, pread)
ALSO(pwrite64, pwrite)

/* The same with pieces; a short one moves half of the first piece. */
#define MOVES_PIECES(call, name, parameters, arguments) \
    ssize_t name parameters { \
        NEXT(name); \
        int action = on(CALL_##call, fd); \
        struct iovec half; \
        if (action > 0) return -1; \
        if (action == SHORT && count > 0 && pieces->iov_len > 1) { \
            half = *pieces; \
            half.iov_len /= 2; \
            pieces = &half; \
            count = 1; \
        } \
        return next arguments; \
    }
MOVES_PIECES(read, readv, (int fd, const struct iovec *pieces, int count), (fd, pieces, count))
MOVES_PIECES(write, writev, (int fd, const struct iovec *pieces, int count), (fd, pieces, count))
BRINGS(pread, preadv, (int fd, const struct iovec *pieces, int count, off_t at), (fd, pieces, count, at))
MOVES_PIECES(pwrite, pwritev, (int fd, const struct iovec *pieces, int count, off_t at), (fd, pieces, count, at))
BRINGS(pread, preadv2, (int fd, const struct iovec *pieces, int count, off_t at, int flags),
       (fd, pieces, count, at, flags))
MOVES_PIECES(pwrite, pwritev2, (int fd, const struct iovec *pieces, int count, off_t at, int flags),
             (fd, pieces, count, at, flags))
ALSO(preadv64, preadv)
ALSO(pwritev64, pwritev)
ALSO(preadv64v2, preadv2)
ALSO(pwritev64v2, pwritev2)

ssize_t sendfile(int out, int in, off_t *offset, size_t n) {
    NEXT(sendfile);
    int action = on(CALL_sendfile, in);
    return action > 0 ? -1 : next(out, in, offset, cut(action, n));
}
ALSO(sendfile64, sendfile)

#define ON_FD(call, type, name, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        return on(CALL_##call, fd) > 0 ? (type)-1 : next arguments; \
    }
ON_FD(ftruncate, int, ftruncate, (int fd, off_t size), (fd, size))
ON_FD(fallocate, int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
/* What was watched is never waited for: no run is about the disk itself. */
#define SYNC(name) \
    int name(int fd) { \
        NEXT(name); \
        if (role < 0 || fd < 0 || fd >= FDS || !watched[fd]) return next(fd); \
        return begin(CALL_##name, names[fd]) > 0 ? -1 : 0; \
    }
SYNC(fdatasync)
SYNC(fsync)
ON_FD(writeback, int, sync_file_range, (int fd, off_t at, off_t size, unsigned flags), (fd, at, size, flags))
ON_FD(fstat, int, fstat, (int fd, struct stat *out), (fd, out))
ON_FD(statfs, int, fstatfs, (int fd, struct statfs *out), (fd, out))
ON_FD(statfs, int, fstatvfs, (int fd, struct statvfs *out), (fd, out))
ON_FD(utime, int, futimens, (int fd, const struct timespec times[2]), (fd, times))
ON_FD(chmod, int, fchmod, (int fd, mode_t mode), (fd, mode))
ON_FD(flock, int, flock, (int fd, int what), (fd, what))
ALSO(ftruncate64, ftruncate)
ALSO(fallocate64, fallocate)
ALSO(fstat64, fstat)
ALSO(fstatfs64, fstatfs)
ALSO(fstatvfs64, fstatvfs)

int posix_fadvise(int fd, off_t at, off_t size, int advice) {
    NEXT(posix_fadvise);
    int action = on(CALL_fadvise, fd);
    return action > 0 ? action : next(fd, at, size, advice);
}
ALSO(posix_fadvise64, posix_fadvise)

int posix_fallocate(int fd, off_t at, off_t size) {
    NEXT(posix_fallocate);
    int action = on(CALL_fallocate, fd);
    return action > 0 ? action : next(fd, at, size);
}
ALSO(posix_fallocate64, posix_fallocate)

void *mmap(void *place, size_t n, int access, int flags, int fd, off_t at) {
    NEXT(mmap);
    return on(CALL_mmap, fd) > 0 ? MAP_FAILED : next(place, n, access, flags, fd, at);
}
ALSO(mmap64, mmap)

#define ON_PATH(call, type, name, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        return at(CALL_##call, path) > 0 ? (type)-1 : next arguments; \
    }
ON_PATH(rename, int, rename, (const char *path, const char *other), (path, other))
ON_PATH(rename, int, renameat, (int folder, const char *path, int there, const char *other),
        (folder, path, there, other))
ON_PATH(rename, int, renameat2, (int folder, const char *path, int there, const char *other, unsigned flags),
        (folder, path, there, other, flags))
ON_PATH(link, int, link, (const char *path, const char *other), (path, other))
ON_PATH(link, int, linkat, (int folder, const char *path, int there, const char *other, int flags),
        (folder, path, there, other, flags))
ON_PATH(unlink, int, unlink, (const char *path), (path))
ON_PATH(unlink, int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(mkdir, int, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdir, int, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))
ON_PATH(rmdir, int, rmdir, (const char *path), (path))
ON_PATH(ftruncate, int, truncate, (const char *path, off_t size), (path, size))
ON_PATH(stat, int, stat, (const char *path, struct stat *out), (path, out))
ON_PATH(stat, int, lstat, (const char *path, struct stat *out), (path, out))
ON_PATH(stat, int, statx, (int folder, const char *path, int flags, unsigned mask, struct statx *out),
        (folder, path, flags, mask, out))
ON_PATH(statfs, int, statfs, (const char *path, struct statfs *out), (path, out))
ON_PATH(statfs, int, statvfs, (const char *path, struct statvfs *out), (path, out))
ON_PATH(utime, int, utimensat, (int folder, const char *path, const struct timespec times[2], int flags),
        (folder, path, times, flags))
ON_PATH(chmod, int, chmod, (const char *path, mode_t mode), (path, mode))
ON_PATH(access, int, access, (const char *path, int mode), (path, mode))
ON_PATH(readlink, ssize_t, readlink, (const char *path, char *out, size_t room), (path, out, room))
ALSO(stat64, stat)
ALSO(lstat64, lstat)
ALSO(statfs64, statfs)
ALSO(statvfs64, statvfs)
ALSO(truncate64, truncate)

/* Names in an open directory are relative to it: they count by the directory. */
int fstatat(int folder, const char *path, struct stat *out, int flags) {
    NEXT(fstatat);
    if ((folder >= 0 ? on(CALL_stat, folder) : at(CALL_stat, path)) > 0) return -1;
    return next(folder, path, out, flags);
}
ALSO(fstatat64, fstatat)

DIR *opendir(const char *path) {
    NEXT(opendir);
    const char *name = below(path);
    if (name != NULL && begin(CALL_opendir, name) > 0) return NULL;
    DIR *folder = next(path);
    if (folder != NULL) opened(dirfd(folder), name);
    return folder;
}

struct dirent *readdir(DIR *folder) {
    NEXT(readdir);
    return on(CALL_readdir, dirfd(folder)) > 0 ? NULL : next(folder);
}
ALSO(readdir64, readdir)

int closedir(DIR *folder) {
    NEXT(closedir);
    int fd = dirfd(folder), action = on(CALL_close, fd), saved = errno;
    if (fd >= 0 && fd < FDS) watched[fd] = 0;
    int r = next(folder);
    if (action <= 0) return r;
    errno = saved;
    return -1;
}

int prctl(int option, ...) {
    NEXT(prctl);
    unsigned long a[4];
    va_list more;
    va_start(more, option);
    for (int i = 0; i < 4; i++) a[i] = va_arg(more, unsigned long);
    va_end(more);
    if (option == PR_SET_NAME && control != NULL && strncmp((const char *)a[0], "fastlog-", 8) == 0)
        disk_role((const char *)a[0] + 8);
    return next(option, a[0], a[1], a[2], a[3]);
}
