/* minibroker: the least program that is still a broker, to see what this machine can do at this moment.
 *
 *   minibroker --directory DIR [--topic T] [--flush-messages M] [--flush-bytes B] [--flush-ms S] ...
 *
 * It keeps one partition, DIR/T-0/00000000000000000000.kafka, new at each start, and serves one connection after
 * another with four requests of fastlog's protocol: PRODUCE (0), FETCH (1), OFFSETS (4) and METADATA (1002), so loadgen
 * drives it as it drives fastlog. When it listens it prints "minibroker: ready port=N crc=NAME"; it ends when its
 * standard input does, so it cannot outlive whoever started it.
 *
 * What it does as fastlog does, since a ceiling that left it out would be one of something else:
 *   - every frame is parsed, every length checked, the CRC of every message computed before its set is written;
 *   - requests that arrived together are written together;
 *   - a thread syncs at half of M messages, at half of B bytes, at S milliseconds, or when a reader waits; appends wait
 *     at M and B and at twice S; readers see what was synced, and nothing else;
 *   - blocks are reserved ahead of the end, and write-back starts early when told to.
 * What it leaves out, which is what the ratio to it shows: Python, more than one connection, topic or process at a
 * time, recovery, segments (one file grows), compressed sets (refused), magic 0 (refused), counters, time-outs.
 */
#define _GNU_SOURCE
#define PROGRAM "minibroker"
#include <fcntl.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "net.h"
#include "bytes.h"

enum {
    RECEIVE_BYTES = 512 << 10,  /* what one recv() may bring: still in the second-level cache when written */
    MAX_FRAME = 100 << 20,
    AHEAD_BYTES = 2 << 20,      /* reserve the next step when so little is left of the last one */
    COPY_BELOW = 4 << 10,       /* smaller sets are moved together: cheaper than an iovec each */
    MAX_SPANS = 256,
    ENTRY_HEADER = 10,
};

static struct {
    const char *directory, *topic, *congestion;
    int64_t flush_messages, flush_bytes, flush_ms, min_interval_ms, preallocate, writeback;
} opt = {.topic = "ceiling", .congestion = "reno", .flush_messages = 1000000, .flush_bytes = 256 << 20, .flush_ms = 1000,
         .min_interval_ms = 5, .preallocate = 16 << 20};

static int file = -1;

/* Everything below is guarded by ``lock``. ``changed`` wakes whoever waits for any of it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t flush_wanted, ahead_wanted, flushed;
static struct {
    int64_t end, end_messages;         /* appended; moved by the connection's thread */
    int64_t visible, visible_messages; /* synced; moved by the flusher */
    int64_t oldest_ns;                 /* when the oldest unflushed byte was appended, at the latest */
    int64_t reserved, written_back;    /* moved by the thread that runs ahead */
    bool demanded;                     /* a reader waits at the visible end */
} state;

/* ---- flushing ---- */

static bool flush_due(int64_t now, int64_t last_ns) {
    if (state.end == state.visible) return false;
    return (state.end_messages - state.visible_messages) * 2 >= opt.flush_messages ||
           (state.end - state.visible) * 2 >= opt.flush_bytes || now - state.oldest_ns >= opt.flush_ms * 1000000 ||
           (state.demanded && now - last_ns >= opt.min_interval_ms * 1000000);
}

static void wait_until_ns(pthread_cond_t *condition, int64_t at) {
    struct timespec t = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
    pthread_cond_timedwait(condition, &lock, &t);
}

static void *flusher(void *unused) {
    (void)unused;
    int64_t last_ns = 0, now;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!flush_due(now = now_ns(), last_ns)) {
            int64_t age_at = state.oldest_ns + opt.flush_ms * 1000000;
            int64_t demand_at = last_ns + opt.min_interval_ms * 1000000;
            if (state.end == state.visible) pthread_cond_wait(&flush_wanted, &lock);
            else wait_until_ns(&flush_wanted, state.demanded && demand_at < age_at ? demand_at : age_at);
        }
        int64_t end = state.end, messages = state.end_messages;
        state.demanded = false;
        last_ns = now;
        pthread_mutex_unlock(&lock);
        if (fdatasync(file)) fail("fdatasync: %s", strerror(errno));
        pthread_mutex_lock(&lock);
        state.visible = end;
        state.visible_messages = messages;
        state.oldest_ns = now; /* what was appended meanwhile is younger than that */
        pthread_cond_broadcast(&flushed);
    }
    return NULL;
}

static bool behind(void) {
    return (opt.preallocate && state.end + AHEAD_BYTES > state.reserved) ||
           (opt.writeback && state.end - state.written_back >= opt.writeback);
}

/* A thread of its own, so that a step never waits for a sync that is under way. */
static void *run_ahead(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!behind()) pthread_cond_wait(&ahead_wanted, &lock);
        int64_t end = state.end, reserved = state.reserved, written_back = state.written_back;
        pthread_mutex_unlock(&lock);
        if (opt.preallocate && end + AHEAD_BYTES > reserved) {
            reserved = reserved > end ? reserved : end;
            if (fallocate(file, FALLOC_FL_KEEP_SIZE, reserved, opt.preallocate)) {
                if (errno != EOPNOTSUPP && errno != ENOSPC) fail("fallocate: %s", strerror(errno));
                reserved = INT64_MAX - AHEAD_BYTES; /* no such thing here, or no space to spare: go on without */
            } else {
                reserved += opt.preallocate;
            }
        }
        if (opt.writeback && end - written_back >= opt.writeback) {
            if (sync_file_range(file, written_back, end - written_back, SYNC_FILE_RANGE_WRITE))
                fail("sync_file_range: %s", strerror(errno));
            written_back = end;
        }
        pthread_mutex_lock(&lock);
        state.reserved = reserved;
        state.written_back = written_back;
    }
    return NULL;
}

/* ---- appending ---- */

/* Checked sets that lie in the receive buffer and are not yet written. */
static struct {
    struct iovec spans[MAX_SPANS];
    int count;
    int64_t messages;
    /* What M and B still allow, by the visible end as it was last seen: it only moves on, so this errs on the safe
       side, and small requests need not take the lock one by one. */
    int64_t free_bytes, free_messages;
} pending;

static void see_room(void) {
    pending.free_bytes = opt.flush_bytes - (state.end - state.visible);
    pending.free_messages = opt.flush_messages - (state.end_messages - state.visible_messages);
}

static void write_pending(void) {
    if (!pending.count) return;
    int64_t position = state.end; /* written by this thread alone */
    struct iovec *span = pending.spans;
    for (int left = pending.count; left;) {
        ssize_t written = pwritev(file, span, left, position);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail("writing: %s", strerror(errno));
        for (position += written; left && (size_t)written >= span->iov_len; left--) written -= (ssize_t)span++->iov_len;
        if (left) {
            span->iov_base = (uint8_t *)span->iov_base + written;
            span->iov_len -= (size_t)written;
        }
    }
    int64_t now = now_ns();
    pthread_mutex_lock(&lock);
    bool first = state.end == state.visible;
    if (first) state.oldest_ns = now;
    state.end = position;
    state.end_messages += pending.messages;
    if (first || flush_due(now, now)) pthread_cond_signal(&flush_wanted);
    if (behind()) pthread_cond_signal(&ahead_wanted);
    while (state.end != state.visible && now_ns() - state.oldest_ns >= 2 * opt.flush_ms * 1000000)
        pthread_cond_wait(&flushed, &lock);
    see_room();
    pthread_mutex_unlock(&lock);
    pending.count = 0;
    pending.messages = 0;
}

/* Waits until a request may be appended behind what is pending; a fully flushed partition takes any one request. */
static void wait_for_room(int64_t bytes, int64_t messages) {
    if (bytes <= pending.free_bytes && messages <= pending.free_messages) return;
    write_pending();
    pthread_mutex_lock(&lock);
    for (;;) {
        see_room();
        if (state.end == state.visible || (bytes <= pending.free_bytes && messages <= pending.free_messages)) break;
        pthread_cond_signal(&flush_wanted);
        pthread_cond_wait(&flushed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* The number of messages in a set, or why it is refused. */
static const char *check_set(const uint8_t *p, int64_t bytes, int64_t *count) {
    int64_t left = bytes;
    for (*count = 0; left; ++*count) {
        if (left < ENTRY_HEADER) return "a set that ends inside a message";
        int64_t size = be32(p);
        if (size < 6 || size > left - 4) return "a message with a wrong size";
        if (p[4] != 1 || p[5] != 0) return "a message that is not of magic 1, or compressed";
        if (be32(p + 6) != crc32_of(p + ENTRY_HEADER, (size_t)(size - 6))) return "a message with a wrong checksum";
        p += 4 + size;
        left -= 4 + size;
    }
    return NULL;
}

static void append(uint8_t *set, int64_t bytes, int64_t messages) {
    wait_for_room(bytes, messages);
    struct iovec *last = pending.spans + pending.count - 1;
    if (pending.count && bytes < COPY_BELOW) {
        /* Over the header of this very request, so nothing that is still needed is overwritten. */
        memmove((uint8_t *)last->iov_base + last->iov_len, set, (size_t)bytes);
        last->iov_len += (size_t)bytes;
    } else {
        if (pending.count == MAX_SPANS) write_pending();
        pending.spans[pending.count++] = (struct iovec){set, (size_t)bytes};
    }
    pending.messages += messages;
    pending.free_bytes -= bytes;
    pending.free_messages -= messages;
}

/* ---- requests ---- */

/* What is left of a request; ``p`` moves on, and a field that is not there makes it NULL. */
struct body {
    uint8_t *p, *end;
};

static int64_t take(struct body *b, int bytes) {
    if (!b->p || b->end - b->p < bytes) return b->p = NULL, 0;
    b->p += bytes;
    return get(b->p - bytes, bytes);
}

static bool takes_topic(struct body *b) {
    int64_t size = take(b, 2);
    if (!b->p || size != (int64_t)strlen(opt.topic) || b->end - b->p < size || memcmp(b->p, opt.topic, (size_t)size))
        return false;
    b->p += size;
    return true;
}

static const char *handle_produce(struct body b) {
    int64_t count, bytes;
    if (!takes_topic(&b) || take(&b, 4) != 0) return "another topic or partition";
    bytes = take(&b, 4);
    if (!b.p || bytes != b.end - b.p) return "a set of another size than its request";
    const char *refused = check_set(b.p, bytes, &count);
    if (!refused && bytes) append(b.p, bytes, count);
    return refused;
}

static const char *handle_fetch(int fd, struct body b) {
    uint8_t header[6];
    if (!takes_topic(&b) || take(&b, 4) != 0) return "another topic or partition";
    int64_t offset = take(&b, 8), bytes = take(&b, 4);
    if (!b.p || bytes < 0) return "a FETCH that is cut short";
    pthread_mutex_lock(&lock);
    int64_t visible = state.visible;
    if (offset == visible && state.end > visible) {
        state.demanded = true;
        pthread_cond_signal(&flush_wanted);
    }
    pthread_mutex_unlock(&lock);
    bool outside = offset < 0 || offset > visible;
    if (outside) bytes = 0;
    else if (bytes > visible - offset) bytes = visible - offset;
    put(put(header, 4, 2 + bytes), 2, outside);
    if (send(fd, header, sizeof header, MSG_NOSIGNAL | (bytes ? MSG_MORE : 0)) != sizeof header) return "";
    for (off_t at = offset; bytes > 0;) {
        ssize_t sent = sendfile(fd, file, &at, (size_t)bytes);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return "";
        bytes -= sent;
    }
    return NULL;
}

static const char *handle_offsets(int fd, struct body b) {
    uint8_t answer[18], *p = put(answer + 4, 2, 0);
    if (!takes_topic(&b) || take(&b, 4) != 0) return "another topic or partition";
    int64_t time = take(&b, 8), most = take(&b, 4);
    if (!b.p || most < 1 || (time != -1 && time != -2)) return "an OFFSETS for another time than -1 and -2";
    pthread_mutex_lock(&lock);
    p = put(put(p, 4, 1), 8, time == -1 ? state.visible : 0);
    pthread_mutex_unlock(&lock);
    put(answer, 4, p - answer - 4);
    send_all(fd, answer, (size_t)(p - answer));
    return NULL;
}

static const char *handle_metadata(int fd, struct body b) {
    uint8_t answer[512], *p = answer + 4;
    int64_t version = take(&b, 2), correlation = take(&b, 4), count = take(&b, 4);
    if (version != 1 || count != 1 || !takes_topic(&b)) return "a METADATA for another topic";
    int64_t size = (int64_t)strlen(opt.topic);
    p = put(put(put(put(p, 4, correlation), 2, 0), 4, 0), 2, 9);
    memcpy(p, "127.0.0.1", 9);
    p = put(put(put(put(p + 9, 4, 0), 4, MAX_FRAME), 4, MAX_FRAME), 4, 0); /* port, largest message, frame; no wait */
    p = put(put(put(put(p, 2, 1002), 2, 1002), 4, 1), 2, size);
    memcpy(p, opt.topic, (size_t)size);
    p = put(put(put(put(put(p + size, 2, 0), 4, 1), 4, 1), 4, 0), 2, 0); /* no error, 1 of 1 partitions, number 0, ok */
    pthread_mutex_lock(&lock);
    p = put(put(put(p, 8, 0), 8, state.visible), 8, state.end);
    pthread_mutex_unlock(&lock);
    put(answer, 4, p - answer - 4);
    send_all(fd, answer, (size_t)(p - answer));
    return NULL;
}

/* NULL, or why the connection is closed. Whatever answers must see the appends before it. */
static const char *handle(int fd, uint8_t *frame, int64_t bytes) {
    struct body b = {frame, frame + bytes};
    int64_t type = take(&b, 2);
    if (!b.p) return "a frame without a request";
    if (type == 0) return handle_produce(b);
    write_pending();
    return type == 1      ? handle_fetch(fd, b)
           : type == 4    ? handle_offsets(fd, b)
           : type == 1002 ? handle_metadata(fd, b)
                          : "a request that is not known here";
}

static void serve(int fd) {
    static uint8_t *buffer;
    static size_t room;
    size_t held = 0;
    const char *refused = NULL;
    if (!buffer) buffer = allocate(room = RECEIVE_BYTES);
    while (!refused) {
        size_t got = receive_some(fd, buffer + held, room - held), at = 0;
        if (!got) break;
        held += got;
        while (!refused && held - at >= 4) {
            size_t size = be32(buffer + at);
            if (size > MAX_FRAME) refused = "a frame that is too large";
            else if (held - at - 4 < size) break;
            else refused = handle(fd, buffer + at + 4, (int64_t)size);
            at += 4 + size;
        }
        write_pending(); /* before the buffer that it lies in is used again */
        if (refused) break;
        memmove(buffer, buffer + at, held -= at);
        if (held >= 4 && 4 + be32(buffer) > room && !(buffer = realloc(buffer, room = 4 + be32(buffer))))
            fail("out of memory (%zu bytes)", room);
    }
    if (refused && *refused) fprintf(stderr, PROGRAM ": refused: %s\n", refused);
    close(fd);
}

/* ---- the process ---- */

static void usage(const char *problem) {
    fprintf(stderr,
            PROGRAM ": %s\n"
            "usage: minibroker --directory DIR [--topic T] [--congestion NAME] [--flush-messages M]\n"
            "                  [--flush-bytes B] [--flush-ms S] [--flush-min-ms N] [--preallocate BYTES]\n"
            "                  [--writeback BYTES]\n",
            problem);
    exit(2);
}

static void parse(int argc, char **argv) {
    const struct { const char *name; int64_t low, *value; } numbers[] = {
        {"--flush-messages", 1, &opt.flush_messages}, {"--flush-bytes", 1, &opt.flush_bytes},
        {"--flush-ms", 1, &opt.flush_ms},             {"--flush-min-ms", 0, &opt.min_interval_ms},
        {"--preallocate", 0, &opt.preallocate},       {"--writeback", 0, &opt.writeback},
    };
    for (int i = 1; i < argc; i += 2) {
        size_t n = 0, known = sizeof numbers / sizeof *numbers;
        if (i + 1 == argc) usage("the last option has no value");
        while (n < known && strcmp(argv[i], numbers[n].name)) n++;
        if (n < known) number(argv[i], argv[i + 1], numbers[n].low, 1LL << 40, numbers[n].value);
        else if (!strcmp(argv[i], "--directory")) opt.directory = argv[i + 1];
        else if (!strcmp(argv[i], "--topic")) opt.topic = argv[i + 1];
        else if (!strcmp(argv[i], "--congestion")) opt.congestion = argv[i + 1];
        else usage("an unknown option");
    }
    if (!opt.directory) usage("--directory is needed");
    if (strlen(opt.topic) > 255 || strchr(opt.topic, '/')) usage("a topic name has at most 255 bytes and no slash");
}

static void make_log(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-0", opt.directory, opt.topic);
    if (mkdir(path, 0777) && errno != EEXIST) fail("%s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/%s-0/%020d.kafka", opt.directory, opt.topic, 0);
    file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) fail("%s: %s", path, strerror(errno));
}

static void *end_with_input(void *unused) {
    (void)unused;
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR) errno = 0;
    exit(0);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    crc_prepare();
    make_log();
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&flush_wanted, &monotonic);
    pthread_cond_init(&ahead_wanted, NULL);
    pthread_cond_init(&flushed, NULL);
    void *(*const threads[])(void *) = {flusher, run_ahead, end_with_input};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, threads[i], NULL)) fail("no thread");
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    choose_congestion(listener, opt.congestion); /* accepted sockets inherit it */
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        fail("listening: %s", strerror(errno));
    printf(PROGRAM ": ready port=%d crc=%s\n", ntohs(address.sin_port), crc_fastest_name);
    fflush(stdout);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) fail("accepting: %s", strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        serve(fd);
    }
}
