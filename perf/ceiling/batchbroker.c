/* batchbroker: the least program that is still a broker of today's Kafka protocol, to see what this machine can do.
 *
 *   batchbroker --directory DIR [--topic T] [--partitions P] [--congestion NAME]
 *
 * It keeps one topic, DIR/T-N/00000000000000000000.log for each partition, new at each start, and serves connections, a
 * thread each, with PRODUCE (3-9), FETCH (4-11), LIST_OFFSETS (1-5), METADATA (4) and API_VERSIONS (0-3) in the versions
 * that batchgen asks for, so that batchgen drives it as it drives fastlog. When it listens it prints "batchbroker: ready
 * port=N crc=NAME"; it ends when its standard input does, so it cannot outlive whoever started it.
 *
 * What it does as fastlog does, since a ceiling that left it out would be one of something else:
 *   - every frame is parsed, every length checked, the CRC-32C of every batch computed before it is written;
 *   - batches get their base offset and leader epoch under the partition's lock and are written by pwritev, those for
 *     one partition that arrived together in one call;
 *   - readers get bytes by sendfile, from the batch that holds their offset, found by a sparse index.
 * What it leaves out, which is what the ratio to it shows: flushes (acks -1 is answered as 1), Python, processes,
 * recovery, segments (one file grows), a look at records or into compressed batches, topics, counters, time-outs.
 */
#define _GNU_SOURCE
#define PROGRAM "batchbroker"
#include "batches.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum {
    RECEIVE_BYTES = 512 << 10, /* what one recv() may bring: still in the second-level cache when written */
    MAX_FRAME = 100 << 20,
    COPY_BELOW = 4 << 10,      /* smaller batches are moved together: cheaper than an iovec each */
    MAX_SPANS = 256,
    MAX_PENDING = 4096,
    INDEX_BYTES = 4096,        /* one entry of the index for so many bytes at least */
    LOOK_BYTES = 64 << 10,
    ANSWER_LEAST = 64 << 10,
};

static struct {
    const char *directory, *topic, *congestion;
    int64_t partitions;
} opt = {.topic = "ceiling", .congestion = "reno", .partitions = 1};

static int port;

static struct partition {
    pthread_mutex_t lock;
    pthread_cond_t grown;
    int file;
    int64_t end, next;             /* bytes in the file; offset of the next record */
    struct place { int64_t offset, position; } *index;
    int64_t entries, room, indexed; /* of the index; position of its last entry */
} *partitions;

/* ---- one connection ---- */

struct client {
    int fd;
    uint8_t *buffer;
    size_t room;
    /* Checked batches for one partition that lie in the buffer and are not yet written. */
    struct iovec spans[MAX_SPANS];
    int span_count, pending_count;
    int64_t partition, pending_bytes;
    struct pending { uint8_t *batch; int64_t records; int32_t correlation; int16_t version; bool acked; } pending[MAX_PENDING];
    uint8_t *out; /* answers that are not yet sent */
    size_t out_size, out_room;
};

static uint8_t *answer_room(struct client *c, size_t n) {
    if (c->out_size + n > c->out_room) {
        c->out_room = (c->out_size + n) * 2 + ANSWER_LEAST;
        if (!(c->out = realloc(c->out, c->out_room))) fail("out of memory (%zu bytes)", c->out_room);
    }
    return c->out + c->out_size;
}

static void answered(struct client *c, uint8_t *start, uint8_t *end) {
    put(start, 4, end - start - 4);
    c->out_size += (size_t)(end - start);
}

static bool send_answers(struct client *c) {
    for (size_t at = 0; at < c->out_size;) {
        ssize_t sent = send(c->fd, c->out + at, c->out_size - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += (size_t)sent;
    }
    c->out_size = 0;
    return true;
}

/* ---- appending ---- */

static void answer_produce(struct client *c, const struct pending *one, int64_t base) {
    size_t topic = strlen(opt.topic);
    uint8_t *start = answer_room(c, topic + 128), *p = put(start + 4, 4, one->correlation);
    if (one->version >= 9) {
        p = put_varint(put(p, 1, 0), 2);
        p = put_varint(put_bytes(put_varint(p, topic + 1), opt.topic, topic), 2);
    } else {
        p = put(put_string(put(p, 4, 1), opt.topic), 4, 1);
    }
    p = put(put(put(put(p, 4, c->partition), 2, 0), 8, base), 8, -1);
    if (one->version >= 5) p = put(p, 8, 0);
    if (one->version >= 9) p = put(put(put(put(p, 1, 1), 1, 0), 1, 0), 1, 0); /* no record errors, no message, no tags, twice */
    else if (one->version >= 8) p = put(put(p, 4, 0), 2, -1);
    p = put(p, 4, 0);
    if (one->version >= 9) p = put(p, 1, 0);
    answered(c, start, p);
}

static void add_to_index(struct partition *t, int64_t offset, int64_t position) {
    if (t->entries && position - t->indexed < INDEX_BYTES) return;
    if (t->entries == t->room) {
        t->room = t->room * 2 + 64;
        if (!(t->index = realloc(t->index, sizeof *t->index * (size_t)t->room))) fail("out of memory");
    }
    t->index[t->entries++] = (struct place){offset, position};
    t->indexed = position;
}

static void write_pending(struct client *c) {
    if (!c->pending_count) return;
    struct partition *t = partitions + c->partition;
    int64_t bases[MAX_PENDING];
    pthread_mutex_lock(&t->lock);
    int64_t position = t->end, at = position, next = t->next;
    for (int i = 0; i < c->pending_count; i++) {
        const struct pending *one = c->pending + i;
        put(put(one->batch, 8, next) + 4, 4, 0);
        add_to_index(t, next, at);
        bases[i] = next;
        next += one->records;
        at += (int64_t)be32(one->batch + BATCH_LENGTH) + BATCH_FRONT;
    }
    struct iovec *span = c->spans;
    for (int left = c->span_count; left;) {
        ssize_t written = pwritev(t->file, span, left, position);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail("writing: %s", strerror(errno));
        for (position += written; left && (size_t)written >= span->iov_len; left--) written -= (ssize_t)span++->iov_len;
        if (left) {
            span->iov_base = (uint8_t *)span->iov_base + written;
            span->iov_len -= (size_t)written;
        }
    }
    if (position != at) fail("%lld bytes written, %lld expected", (long long)position, (long long)at);
    t->end = position;
    t->next = next;
    pthread_cond_broadcast(&t->grown);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < c->pending_count; i++)
        if (c->pending[i].acked) answer_produce(c, c->pending + i, bases[i]);
    c->span_count = c->pending_count = 0;
}

/* The batch lies in the buffer behind everything that is pending, so that moving it forward overwrites its own head. */
static void append(struct client *c, int64_t partition, uint8_t *batch, int64_t size, int16_t version, int32_t correlation,
                   bool acked) {
    if (c->pending_count && (partition != c->partition || c->pending_count == MAX_PENDING || c->span_count == MAX_SPANS))
        write_pending(c);
    c->partition = partition;
    struct iovec *last = c->spans + c->span_count - 1;
    if (c->span_count && size < COPY_BELOW) {
        batch = memmove((uint8_t *)last->iov_base + last->iov_len, batch, (size_t)size);
        last->iov_len += (size_t)size;
    } else {
        c->spans[c->span_count++] = (struct iovec){batch, (size_t)size};
    }
    c->pending[c->pending_count++] =
        (struct pending){batch, (int64_t)be32(batch + BATCH_COUNT), correlation, version, acked};
}

/* ---- requests ---- */

static bool is_topic(const uint8_t *name, uint64_t n) {
    return name && n == strlen(opt.topic) && !memcmp(name, opt.topic, n);
}

static const char *handle_produce(struct client *c, struct body b, int version, int32_t correlation) {
    bool flexible = version >= 9;
    uint64_t transaction = flexible ? take_varint(&b) : (uint16_t)take(&b, 2);
    if (transaction > (flexible ? 1 : 0) && transaction != 0xFFFF) return "a PRODUCE of a transaction";
    int64_t acks = take(&b, 2);
    take(&b, 4);
    int64_t topics = flexible ? (int64_t)take_varint(&b) - 1 : take(&b, 4), n;
    const uint8_t *name;
    if (flexible) n = (int64_t)take_varint(&b) - 1, name = n > 0 ? take_bytes(&b, (uint64_t)n) : NULL;
    else name = take_string(&b, &n);
    int64_t count = flexible ? (int64_t)take_varint(&b) - 1 : take(&b, 4), partition = take(&b, 4);
    int64_t size = flexible ? (int64_t)take_varint(&b) - 1 : take(&b, 4);
    uint8_t *batch = (uint8_t *)take_bytes(&b, size > 0 ? (uint64_t)size : 0);
    if (flexible) skip_tags(&b), skip_tags(&b), skip_tags(&b);
    if (!b.p || b.p != b.end || topics != 1 || count != 1) return "a PRODUCE that is not of one batch for one partition";
    if (!is_topic(name, (uint64_t)n) || partition < 0 || partition >= opt.partitions) return "another topic or partition";
    if (size < BATCH_HEAD || batch_size(batch, size) != size) return "a batch of another size than its request";
    const char *wrong = check_batch(batch, size);
    if (!wrong) append(c, partition, batch, size, (int16_t)version, correlation, acks != 0);
    return wrong;
}

/* The position of the batch that holds an offset below the end, and its size; the caller has the lock. */
static int64_t locate(struct partition *t, int64_t offset, int64_t *size) {
    int64_t low = 0, high = t->entries;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (t->index[middle].offset <= offset) low = middle;
        else high = middle;
    }
    int64_t position = t->index[low].position, end = t->end;
    uint8_t look[LOOK_BYTES];
    for (;;) {
        int64_t want = end - position < LOOK_BYTES ? end - position : LOOK_BYTES;
        if (pread(t->file, look, (size_t)want, position) != want) fail("reading: %s", strerror(errno));
        for (int64_t at = 0; want - at >= BATCH_HEAD;) {
            *size = (int64_t)be32(look + at + BATCH_LENGTH) + BATCH_FRONT;
            if ((int64_t)be64(look + at) + (int64_t)be32(look + at + BATCH_LAST_DELTA) >= offset) return position + at;
            at += *size;
            if (want - at < BATCH_HEAD) position += at;
        }
    }
}

static const char *handle_fetch(struct client *c, struct body b, int version, int32_t correlation) {
    int64_t n, bytes, size = 0, position = 0;
    take(&b, 4);
    int64_t wait_ms = take(&b, 4), least = take(&b, 4), most = take(&b, 4);
    take(&b, 1);
    if (version >= 7) take(&b, 4), take(&b, 4);
    int64_t topics = take(&b, 4);
    const uint8_t *name = take_string(&b, &n);
    int64_t count = take(&b, 4), number = take(&b, 4);
    if (version >= 9) take(&b, 4);
    int64_t offset = take(&b, 8);
    if (version >= 5) take(&b, 8);
    int64_t own = take(&b, 4);
    if (!b.p || topics != 1 || count != 1) return "a FETCH that is not of one partition";
    if (!is_topic(name, (uint64_t)n) || number < 0 || number >= opt.partitions) return "another topic or partition";
    if (own < most) most = own;
    struct partition *t = partitions + number;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000, until.tv_nsec += wait_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&t->lock);
    while (offset == t->next && least > 0 && wait_ms > 0)
        if (pthread_cond_timedwait(&t->grown, &t->lock, &until)) break;
    int64_t next = t->next, end = t->end;
    bool outside = offset < 0 || offset > next;
    if (!outside && offset < next) position = locate(t, offset, &size);
    pthread_mutex_unlock(&t->lock);
    bytes = size ? end - position : 0;
    if (bytes > most) bytes = most > size ? most : size;
    uint8_t *start = answer_room(c, strlen(opt.topic) + 128), *p = put(put(start + 4, 4, correlation), 4, 0);
    if (version >= 7) p = put(put(p, 2, 0), 4, 0);
    p = put(put(put_string(put(p, 4, 1), opt.topic), 4, 1), 4, number);
    p = put(put(put(p, 2, outside), 8, next), 8, next);
    if (version >= 5) p = put(p, 8, 0);
    p = put(p, 4, -1);
    if (version >= 11) p = put(p, 4, -1);
    p = put(p, 4, bytes);
    put(start, 4, p - start - 4 + bytes);
    c->out_size += (size_t)(p - start);
    int on = 1, off = 0;
    setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
    bool sent_all = send_answers(c);
    for (off_t at = position; sent_all && bytes > 0;) {
        ssize_t sent = sendfile(c->fd, t->file, &at, (size_t)bytes);
        if (sent < 0 && errno == EINTR) continue;
        sent_all = sent > 0;
        bytes -= sent;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
    return sent_all ? NULL : "";
}

static const char *handle_offsets(struct client *c, struct body b, int version, int32_t correlation) {
    int64_t n;
    take(&b, 4);
    if (version >= 2) take(&b, 1);
    int64_t topics = take(&b, 4);
    const uint8_t *name = take_string(&b, &n);
    int64_t count = take(&b, 4), number = take(&b, 4);
    if (version >= 4) take(&b, 4);
    int64_t time = take(&b, 8);
    if (!b.p || topics != 1 || count != 1 || (time != -1 && time != -2)) return "a LIST_OFFSETS for another time than -1 and -2";
    if (!is_topic(name, (uint64_t)n) || number < 0 || number >= opt.partitions) return "another topic or partition";
    struct partition *t = partitions + number;
    pthread_mutex_lock(&t->lock);
    int64_t offset = time == -1 ? t->next : 0;
    pthread_mutex_unlock(&t->lock);
    uint8_t *start = answer_room(c, strlen(opt.topic) + 128), *p = put(start + 4, 4, correlation);
    if (version >= 2) p = put(p, 4, 0);
    p = put(put(put_string(put(p, 4, 1), opt.topic), 4, 1), 4, number);
    p = put(put(put(p, 2, 0), 8, -1), 8, offset);
    if (version >= 4) p = put(p, 4, 0);
    answered(c, start, p);
    return NULL;
}

static const char *handle_metadata(struct client *c, int32_t correlation) {
    uint8_t *start = answer_room(c, strlen(opt.topic) + 256 + 26 * (size_t)opt.partitions), *p = put(start + 4, 4, correlation);
    p = put_string(put(put(put(p, 4, 0), 4, 1), 4, 0), "127.0.0.1");
    p = put(put(put(put(put(p, 4, port), 2, -1), 2, -1), 4, 0), 4, 1); /* no rack, no cluster id, controller 0; one topic */
    p = put(put(put_string(put(p, 2, 0), opt.topic), 1, 0), 4, opt.partitions);
    for (int64_t i = 0; i < opt.partitions; i++)
        p = put(put(put(put(put(put(put(p, 2, 0), 4, i), 4, 0), 4, 1), 4, 0), 4, 1), 4, 0);
    answered(c, start, p);
    return NULL;
}

static const struct { int api, low, high; } known[] = {
    {API_PRODUCE, 3, PRODUCE_VERSION}, {API_FETCH, 4, FETCH_VERSION}, {API_LIST_OFFSETS, 1, LIST_OFFSETS_VERSION},
    {API_METADATA, METADATA_VERSION, METADATA_VERSION}, {API_VERSIONS, 0, 0},
};
enum { KNOWN = sizeof known / sizeof *known };

static const char *handle_versions(struct client *c, int version, int32_t correlation) {
    uint8_t *start = answer_room(c, 256), *p = put(put(start + 4, 4, correlation), 2, version ? 35 : 0);
    p = put(p, 4, KNOWN);
    for (size_t i = 0; i < KNOWN; i++) p = put(put(put(p, 2, known[i].api), 2, known[i].low), 2, known[i].high);
    answered(c, start, p);
    return NULL;
}

/* NULL, or why the connection is closed. Whatever answers must see the appends before it. */
static const char *handle(struct client *c, uint8_t *frame, int64_t bytes) {
    struct body b = {frame, frame + bytes};
    int api = (int)take(&b, 2), version = (int)take(&b, 2);
    int32_t correlation = (int32_t)take(&b, 4);
    skip_string(&b);
    if (api == API_PRODUCE && version >= 9) skip_tags(&b);
    if (!b.p) return "a frame without a request";
    if (api == API_VERSIONS) return handle_versions(c, version, correlation);
    for (size_t i = 0; i < KNOWN; i++)
        if (known[i].api == api && (version < known[i].low || version > known[i].high)) return "a version that is not known here";
    if (api == API_PRODUCE) return handle_produce(c, b, version, correlation);
    write_pending(c);
    return api == API_FETCH          ? handle_fetch(c, b, version, correlation)
           : api == API_LIST_OFFSETS ? handle_offsets(c, b, version, correlation)
           : api == API_METADATA     ? handle_metadata(c, correlation)
                                     : "a request that is not known here";
}

static void *serve(void *argument) {
    struct client *c = argument;
    size_t held = 0;
    const char *refused = NULL;
    c->buffer = allocate(c->room = RECEIVE_BYTES);
    while (!refused) {
        ssize_t got = recv(c->fd, c->buffer + held, c->room - held, 0);
        size_t at = 0;
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        held += (size_t)got;
        while (!refused && held - at >= 4) {
            size_t size = be32(c->buffer + at);
            if (size > MAX_FRAME) refused = "a frame that is too large";
            else if (held - at - 4 < size) break;
            else refused = handle(c, c->buffer + at + 4, (int64_t)size);
            at += 4 + size;
        }
        write_pending(c); /* before the buffer that it lies in is used again */
        if (!send_answers(c) || refused) break;
        memmove(c->buffer, c->buffer + at, held -= at);
        if (held >= 4 && 4 + (size_t)be32(c->buffer) > c->room &&
            !(c->buffer = realloc(c->buffer, c->room = 4 + (size_t)be32(c->buffer))))
            fail("out of memory (%zu bytes)", c->room);
    }
    if (refused && *refused) fprintf(stderr, PROGRAM ": refused %s\n", refused);
    close(c->fd);
    free(c->buffer), free(c->out), free(c);
    return NULL;
}

/* ---- command line ---- */

static void usage(const char *problem) {
    fprintf(stderr, "batchbroker: %s\nusage: batchbroker --directory DIR [--topic T] [--partitions P] [--congestion NAME]\n",
            problem);
    exit(2);
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) usage("the last option has no value");
        if (!strcmp(argv[i], "--partitions")) number(argv[i], argv[i + 1], 1, 100000, &opt.partitions);
        else if (!strcmp(argv[i], "--directory")) opt.directory = argv[i + 1];
        else if (!strcmp(argv[i], "--topic")) opt.topic = argv[i + 1];
        else if (!strcmp(argv[i], "--congestion")) opt.congestion = argv[i + 1];
        else usage("an unknown option");
    }
    if (!opt.directory) usage("--directory is needed");
    if (strlen(opt.topic) > 249 || strchr(opt.topic, '/')) usage("a topic name has at most 249 bytes and no slash");
}

static void make_logs(void) {
    char path[4096];
    partitions = allocate(sizeof *partitions * (size_t)opt.partitions);
    for (int64_t i = 0; i < opt.partitions; i++) {
        struct partition *t = partitions + i;
        memset(t, 0, sizeof *t);
        pthread_mutex_init(&t->lock, NULL);
        pthread_cond_init(&t->grown, NULL);
        snprintf(path, sizeof path, "%s/%s-%lld", opt.directory, opt.topic, (long long)i);
        if (mkdir(path, 0777) && errno != EEXIST) fail("%s: %s", path, strerror(errno));
        snprintf(path, sizeof path, "%s/%s-%lld/%020d.log", opt.directory, opt.topic, (long long)i, 0);
        t->file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (t->file < 0) fail("%s: %s", path, strerror(errno));
    }
}

static void *end_with_input(void *unused) {
    (void)unused;
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR) errno = 0;
    exit(0);
}

int main(int argc, char **argv) {
    pthread_t thread;
    parse(argc, argv);
    crc_prepare();
    make_logs();
    if (pthread_create(&thread, NULL, end_with_input, NULL)) fail("no thread");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    choose_congestion(listener, opt.congestion); /* accepted sockets inherit it */
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        fail("listening: %s", strerror(errno));
    port = ntohs(address.sin_port);
    printf(PROGRAM ": ready port=%d crc=%s\n", port, crc_fastest_name);
    fflush(stdout);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) fail("accepting: %s", strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct client *c = calloc(1, sizeof *c);
        if (!c) fail("out of memory");
        c->fd = fd;
        if (pthread_create(&thread, NULL, serve, c)) fail("no thread");
        pthread_detach(thread);
    }
}
