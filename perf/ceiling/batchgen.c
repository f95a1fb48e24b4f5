/* batchgen: drives a broker of today's Kafka protocol at next to no cost to itself.
 *
 *   batchgen produce   batches made once and sent again and again, over one connection or several, each with a window of
 *                      requests in flight; every answer is checked; ends when a reader can see everything
 *   batchgen fetch     reads partitions from their start to their visible end; lengths, offsets, numbers of records and
 *                      checksums of every batch are checked
 *
 * Connection number c of C has the partitions c, c + C, ... of P, or with C > P the partition c mod P. A produce request
 * holds one batch for one partition, and goes to its partitions in turn, as fetches do. With --batch-file the batches are
 * those of a file, compressed or not, else records of --size random bytes without a key.
 *
 * Prints one line of JSON on stdout. Every failure is one line on stderr and exit status 1; wrong usage is status 2.
 */
#define _GNU_SOURCE
#define PROGRAM "batchgen"
#include "batches.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

enum { RING_TARGET = 1 << 20, MAX_WINDOW = 4096, MAX_SAMPLES = 1 << 18, MAX_CONNECTIONS = 1024, WRITE_BYTES = 64 << 10,
       RECORD_FIXED = 12, ANSWERS_BYTES = 256 << 10 };

static struct {
    const char *mode, *host, *port, *topic, *congestion, *batch_file;
    int64_t partitions, connections, messages, size, batch_bytes, batch_records, window, acks, max_bytes, prefetch, timeout,
        min_messages;
} opt = {.host = "127.0.0.1", .port = "9092", .topic = "ceiling", .congestion = "reno", .partitions = 1, .connections = 1,
         .messages = 1000000, .size = 200, .batch_bytes = 16384, .window = 16, .acks = 1, .max_bytes = 1 << 20,
         .prefetch = 1, .timeout = 60};

/* ---- one connection ---- */

struct link {
    pthread_t thread;
    int number, fd;
    int64_t *partitions;  /* those of this connection */
    int64_t count;        /* of them */
    int64_t *start, *end; /* offsets by partition of this connection: before and behind the run */
    int64_t messages, bytes, requests, received;
    double *latency;
    int64_t samples;
    int32_t correlation;
};

static pthread_barrier_t ready, done;
static bool is_shared; /* whether connections write to the same partitions, so that nobody knows its own offsets */

static uint8_t *put_head(uint8_t *p, int api, int version, int32_t correlation) {
    return put_string(put(put(put(p + 4, 2, api), 2, version), 4, correlation), PROGRAM);
}

static void send_request(int fd, uint8_t *frame, uint8_t *end) {
    put(frame, 4, end - frame - 4);
    send_all(fd, frame, (size_t)(end - frame));
}

/* One answer, its size and correlation id checked; whoever calls frees it. */
static struct body ask(struct link *l, uint8_t *frame, uint8_t *end, const char *name, uint8_t **held) {
    uint8_t head[4];
    send_request(l->fd, frame, end);
    if (!receive_all(l->fd, head, 4)) fail("the broker closed the connection on %s", name);
    uint32_t size = be32(head);
    if (size < 4 || size > 64u << 20) fail("%s answered %u bytes", name, size);
    uint8_t *answer = *held = allocate(size);
    if (!receive_all(l->fd, answer, size)) fail("the broker closed the connection inside an answer to %s", name);
    if ((int32_t)be32(answer) != l->correlation) fail("%s answered another correlation id", name);
    l->correlation++;
    return (struct body){answer + 4, answer + size};
}

/* The broker says what it knows: the first request of a connection, by which it may tell protocols apart. */
static void ask_versions(struct link *l) {
    const struct { int api, version; } needed[] = {
        {API_PRODUCE, PRODUCE_VERSION}, {API_FETCH, FETCH_VERSION}, {API_LIST_OFFSETS, LIST_OFFSETS_VERSION},
        {API_METADATA, METADATA_VERSION},
    };
    uint8_t frame[64], *held;
    struct body b = ask(l, frame, put_head(frame, API_VERSIONS, 0, l->correlation), "API_VERSIONS", &held);
    int64_t error = take(&b, 2), known = take(&b, 4), found = 0;
    if (error) fail("API_VERSIONS answered error %lld", (long long)error);
    for (; b.p && known > 0; known--) {
        int64_t api = take(&b, 2), low = take(&b, 2), high = take(&b, 2);
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
            found += needed[i].api == api && low <= needed[i].version && needed[i].version <= high;
    }
    if (!b.p) fail("API_VERSIONS answered too few bytes");
    if (found != sizeof needed / sizeof *needed) fail("the broker does not know the versions that are needed here");
    free(held);
}

/* Wait until the topic is there with all its partitions; asking makes it, where the broker allows that. */
static void ask_metadata(struct link *l) {
    for (int64_t deadline = now_ns() + opt.timeout * 1000000000LL;;) {
        uint8_t frame[512], *held;
        uint8_t *p = put(put_string(put(put_head(frame, API_METADATA, METADATA_VERSION, l->correlation), 4, 1), opt.topic), 1, 1);
        struct body b = ask(l, frame, p, "METADATA", &held);
        take(&b, 4);
        for (int64_t left = take(&b, 4); b.p && left > 0; left--) {
            take(&b, 4), skip_string(&b), take(&b, 4), skip_string(&b);
        }
        skip_string(&b), take(&b, 4);
        int64_t topics = take(&b, 4), error = take(&b, 2), ready_partitions = 0;
        skip_string(&b), take(&b, 1);
        int64_t partitions = take(&b, 4);
        for (int64_t left = partitions; b.p && left > 0; left--) {
            int64_t bad = take(&b, 2), index = take(&b, 4), leader = take(&b, 4);
            take_bytes(&b, 4 * (uint64_t)take(&b, 4));
            take_bytes(&b, 4 * (uint64_t)take(&b, 4));
            ready_partitions += !bad && leader >= 0 && index < opt.partitions;
        }
        if (!b.p || topics != 1) fail("METADATA answered too few bytes");
        free(held);
        if (!error && ready_partitions >= opt.partitions) return;
        if (now_ns() > deadline)
            fail("after %lld s METADATA says error %lld and %lld partitions of %s, %lld are needed", (long long)opt.timeout,
                 (long long)error, (long long)partitions, opt.topic, (long long)opt.partitions);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

/* One offset: -1 asks for the visible end, -2 for the start. */
static int64_t ask_offset(struct link *l, int64_t partition, int64_t when) {
    uint8_t frame[512], *held, *p = put_head(frame, API_LIST_OFFSETS, LIST_OFFSETS_VERSION, l->correlation);
    p = put_string(put(put(put(p, 4, -1), 1, 0), 4, 1), opt.topic);
    struct body b = ask(l, frame, put(put(put(put(p, 4, 1), 4, partition), 4, -1), 8, when), "LIST_OFFSETS", &held);
    take(&b, 4), take(&b, 4), skip_string(&b), take(&b, 4);
    int64_t index = take(&b, 4), error = take(&b, 2);
    take(&b, 8);
    int64_t offset = take(&b, 8);
    if (!b.p || index != partition) fail("LIST_OFFSETS answered too few bytes, or for another partition");
    if (error) fail("LIST_OFFSETS answered error %lld for partition %lld", (long long)error, (long long)partition);
    free(held);
    return offset;
}

static void open_link(struct link *l) {
    l->fd = dial(opt.host, opt.port, opt.timeout, opt.congestion);
    ask_versions(l);
    l->count = opt.connections < opt.partitions ? (opt.partitions - l->number + opt.connections - 1) / opt.connections : 1;
    l->partitions = allocate(sizeof *l->partitions * (size_t)l->count);
    l->start = allocate(sizeof *l->start * (size_t)l->count);
    l->end = allocate(sizeof *l->end * (size_t)l->count);
    for (int64_t i = 0; i < l->count; i++) l->partitions[i] = (l->number + i * opt.connections) % opt.partitions;
}

/* ---- batches ---- */

struct batches {
    uint8_t *data;
    int64_t count;
    struct one { const uint8_t *data; int64_t size, records; } *one;
} made;

static uint8_t *put_batch(uint8_t *batch, int64_t records, int64_t time_ms) {
    uint8_t *p = batch + BATCH_HEAD;
    for (int64_t i = 0; i < records; i++) {
        uint8_t head[32], *h = put_zigzag(put_zigzag(put_zigzag(put(head, 1, 0), 0), i), -1);
        h = put_zigzag(h, opt.size);
        p = put_zigzag(p, h - head + opt.size + 1);
        p = put_bytes(p, head, (size_t)(h - head));
        fill_random(p, (size_t)opt.size);
        p = put_zigzag(p + opt.size, 0);
    }
    uint8_t *q = put(put(put(put(batch, 8, 0), 4, p - batch - BATCH_FRONT), 4, -1), 1, 2) + 4;
    q = put(put(put(put(q, 2, 0), 4, records - 1), 8, time_ms), 8, time_ms);
    put(put(put(put(q, 8, -1), 2, -1), 4, -1), 4, records);
    put(batch + BATCH_CRC, 4, crc32_of(batch + BATCH_ATTRIBUTES, (size_t)(p - batch - BATCH_ATTRIBUTES)));
    return p;
}

static void read_batches(void) {
    int fd = open(opt.batch_file, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) fail("%s: %s", opt.batch_file, strerror(errno));
    made.data = allocate((size_t)status.st_size);
    for (int64_t at = 0; at < status.st_size;) {
        ssize_t got = read(fd, made.data + at, (size_t)(status.st_size - at));
        if (got <= 0) fail("%s: %s", opt.batch_file, got ? strerror(errno) : "it became shorter");
        at += got;
    }
    close(fd);
    made.one = allocate(sizeof *made.one * (size_t)(status.st_size / BATCH_HEAD + 1));
    for (int64_t at = 0, size; at < status.st_size; at += size) {
        size = batch_size(made.data + at, status.st_size - at);
        const char *wrong = size > 0 ? check_batch(made.data + at, size) : "no whole batch";
        if (wrong) fail("%s: %s at byte %lld", opt.batch_file, wrong, (long long)at);
        made.one[made.count++] = (struct one){made.data + at, size, (int64_t)be32(made.data + at + BATCH_COUNT)};
    }
    if (!made.count) fail("%s: no batch", opt.batch_file);
}

static void make_batches(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t time_ms = now.tv_sec * 1000LL + now.tv_nsec / 1000000, record = RECORD_FIXED + opt.size;
    int64_t records = opt.batch_records ? opt.batch_records : (opt.batch_bytes - BATCH_HEAD) / record;
    if (records < 1) records = 1;
    if (records > opt.messages) records = opt.messages;
    int64_t room = BATCH_HEAD + records * (record + 16);
    made.count = RING_TARGET / room + 1;
    made.data = allocate((size_t)(made.count * room));
    made.one = allocate(sizeof *made.one * (size_t)made.count);
    for (int64_t i = 0; i < made.count; i++) {
        uint8_t *at = made.data + i * room;
        made.one[i] = (struct one){at, put_batch(at, records, time_ms) - at, records};
    }
}

/* ---- producing ---- */

/* Where a request's correlation id stands, and the partition's number: all else is the same each time. */
struct frame {
    uint8_t *data;
    int64_t size, partition_at, records;
};

enum { CORRELATION_AT = 8 };

static struct frame make_frame(const struct one *batch) {
    size_t topic = strlen(opt.topic), before = 256 + topic;
    struct frame f = {.data = allocate(before + (size_t)batch->size), .records = batch->records};
    uint8_t *p = put_head(f.data, API_PRODUCE, PRODUCE_VERSION, 0);
    *p++ = 0;                                          /* no tagged fields */
    p = put(put(put(p, 1, 0), 2, opt.acks), 4, 30000); /* no transaction; acks; 30 s */
    p = put_varint(put_varint(p, 2), topic + 1);       /* one topic */
    p = put_varint(put_bytes(p, opt.topic, topic), 2); /* one partition */
    f.partition_at = p - f.data;
    p = put_varint(p + 4, (uint64_t)batch->size + 1);
    p = put_bytes(p, batch->data, (size_t)batch->size);
    *p++ = 0, *p++ = 0, *p++ = 0;
    f.size = p - f.data;
    put(f.data, 4, f.size - 4);
    return f;
}

struct waiting {
    int64_t sent_at, place, records;
};

/* Answers that are whole are checked; returns the bytes they took. */
static size_t check_answers(struct link *l, const uint8_t *p, size_t n, const struct waiting *queue, int64_t *acked,
                            int64_t sent, int64_t *next, int64_t step) {
    size_t used = 0;
    int64_t at = now_ns();
    for (; n - used >= 4; ++*acked) {
        uint32_t size = be32(p + used);
        if (size > ANSWERS_BYTES - 4) fail("PRODUCE answered %u bytes", size);
        if (n - used - 4 < size) break;
        if (*acked >= sent) fail("an answer that nobody asked for");
        const struct waiting *w = queue + *acked % opt.window;
        struct body b = {p + used + 4, p + used + 4 + size};
        if (take(&b, 4) != (int32_t)*acked) fail("PRODUCE answered another correlation id");
        skip_tags(&b);
        uint64_t topics = take_varint(&b), name = take_varint(&b);
        take_bytes(&b, name - 1);
        uint64_t partitions = take_varint(&b);
        int64_t index = take(&b, 4), error = take(&b, 2), base = take(&b, 8);
        if (!b.p || topics != 2 || partitions != 2) fail("PRODUCE answered too few bytes, or for several partitions");
        if (error) fail("PRODUCE answered error %lld for partition %lld", (long long)error, (long long)index);
        if (index != l->partitions[w->place]) fail("PRODUCE answered for another partition");
        if (is_shared ? base < next[w->place] : base != next[w->place])
            fail("partition %lld: base offset %lld, expected %lld", (long long)index, (long long)base, (long long)next[w->place]);
        next[w->place] = base + w->records;
        if (*acked % step == 0) l->latency[l->samples++] = (double)(at - w->sent_at) / 1e6;
        used += 4 + size;
    }
    return used;
}

/* This connection's part of the messages, in whole batches but for the last. */
static int64_t share_of(const struct link *l) {
    return opt.messages / opt.connections + (l->number < opt.messages % opt.connections);
}

/* The last batch of a connection, smaller than the others. */
static struct frame make_rest(int64_t records) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER; /* the random bytes come from one state */
    uint8_t *data = allocate((size_t)(BATCH_HEAD + records * (RECORD_FIXED + opt.size + 16)));
    pthread_mutex_lock(&one_at_a_time);
    struct one rest = {data, put_batch(data, records, (int64_t)be64(made.one[0].data + BATCH_BASE_TIME)) - data, records};
    pthread_mutex_unlock(&one_at_a_time);
    struct frame f = make_frame(&rest);
    free(data);
    return f;
}

static void *produce_link(void *argument) {
    struct link *l = argument;
    struct frame *frames = allocate(sizeof *frames * (size_t)made.count), last = {0};
    int64_t per_round = 0, share = share_of(l), expected;
    for (int64_t i = 0; i < made.count; i++) frames[i] = make_frame(made.one + i), per_round += made.one[i].records;
    if (!opt.batch_file && share % frames[0].records) last = make_rest(share % frames[0].records);
    if (opt.batch_file) share = (share + per_round - 1) / per_round * per_round; /* whole rounds of the file */
    expected = opt.batch_file ? share / per_round * made.count : share / frames[0].records + (last.data != NULL);
    open_link(l);
    int64_t *next = allocate(sizeof *next * (size_t)l->count), step = expected / MAX_SAMPLES + 1;
    for (int64_t i = 0; i < l->count; i++) next[i] = l->start[i] = ask_offset(l, l->partitions[i], -1);
    struct waiting *queue = allocate(sizeof *queue * (size_t)opt.window);
    l->latency = allocate(sizeof *l->latency * (size_t)(expected / step + 1));
    uint8_t *answers = allocate(ANSWERS_BYTES), *out = allocate(WRITE_BYTES);
    size_t held = 0;
    int64_t sent = 0, acked = 0;
    pthread_barrier_wait(&ready);
    while (acked < expected) {
        size_t filled = 0;
        for (int64_t now = now_ns(); sent < expected && (!opt.acks || sent - acked < opt.window); sent++) {
            const struct frame *f = last.data && sent == expected - 1 ? &last : frames + sent % made.count;
            int64_t place = sent % l->count;
            bool fits = (size_t)f->size <= WRITE_BYTES - filled;
            if (!fits && filled) break;
            put(f->data + CORRELATION_AT, 4, sent);
            put(f->data + f->partition_at, 4, l->partitions[place]);
            if (fits) filled = (size_t)(put_bytes(out + filled, f->data, (size_t)f->size) - out);
            else send_all(l->fd, f->data, (size_t)f->size);
            if (opt.acks) queue[sent % opt.window] = (struct waiting){now, place, f->records};
            else next[place] += f->records, acked++;
            l->messages += f->records;
            l->bytes += f->size;
            if (!fits) {
                sent++;
                break;
            }
        }
        send_all(l->fd, out, filled);
        if (!opt.acks || (sent < expected && sent - acked < opt.window)) continue;
        size_t got = receive_some(l->fd, answers + held, ANSWERS_BYTES - held);
        if (!got) fail("the broker closed the connection after %lld answers", (long long)acked);
        held += got;
        size_t used = check_answers(l, answers, held, queue, &acked, sent, next, step);
        memmove(answers, answers + used, held -= used);
    }
    l->requests = expected;
    if (!opt.acks) ask_offset(l, l->partitions[0], -1); /* it is answered when everything before it was appended */
    pthread_barrier_wait(&done);
    l->correlation = 0;
    int64_t deadline = now_ns() + opt.timeout * 1000000000LL;
    for (int64_t i = 0; i < l->count; i++) {
        for (l->end[i] = -1; l->end[i] < next[i];) {
            l->end[i] = ask_offset(l, l->partitions[i], -1);
            if (l->end[i] < next[i] && now_ns() > deadline)
                fail("after %lld s the visible end of partition %lld is %lld, expected %lld", (long long)opt.timeout,
                     (long long)l->partitions[i], (long long)l->end[i], (long long)next[i]);
        }
        if (!is_shared && l->end[i] != next[i])
            fail("the visible end of partition %lld is %lld, expected %lld: somebody else writes",
                 (long long)l->partitions[i], (long long)l->end[i], (long long)next[i]);
    }
    for (int64_t i = 0; i < made.count; i++) free(frames[i].data);
    free(frames), free(last.data), free(queue), free(answers), free(out), free(next);
    return NULL;
}

/* ---- fetching ---- */

struct reading {
    int64_t place, size; /* of the partition; bytes of records */
    uint8_t *buffer;     /* the whole answer */
    uint8_t *records;
    int64_t room;
};

static void send_fetch(struct link *l, int64_t place, int64_t offset) {
    uint8_t frame[512], *p = put_head(frame, API_FETCH, FETCH_VERSION, l->correlation);
    p = put(put(put(put(p, 4, -1), 4, 500), 4, 1), 4, INT32_MAX);
    p = put_string(put(put(put(put(p, 1, 0), 4, 0), 4, -1), 4, 1), opt.topic);
    p = put(put(put(put(p, 4, 1), 4, l->partitions[place]), 4, -1), 8, offset);
    send_request(l->fd, frame, put(put(put(put(p, 8, -1), 4, opt.max_bytes), 4, 0), 2, 0));
}

static void receive_fetch(struct link *l, struct reading *r) {
    uint8_t head[4];
    if (!receive_all(l->fd, head, 4)) fail("the broker closed the connection");
    int64_t size = be32(head);
    if (size > r->room) {
        if (size > 1 << 30) fail("FETCH answered %lld bytes", (long long)size);
        free(r->buffer);
        r->buffer = allocate((size_t)(r->room = size));
    }
    if (!receive_all(l->fd, r->buffer, (size_t)size)) fail("the broker closed the connection inside an answer");
    struct body b = {r->buffer, r->buffer + size};
    if (take(&b, 4) != l->correlation++) fail("FETCH answered another correlation id");
    take(&b, 4);
    int64_t error = take(&b, 2);
    take(&b, 4), take(&b, 4), skip_string(&b), take(&b, 4);
    int64_t index = take(&b, 4), own = take(&b, 2);
    take_bytes(&b, 24);
    int64_t aborted = take(&b, 4);
    take_bytes(&b, aborted > 0 ? 16 * (uint64_t)aborted : 0);
    take(&b, 4);
    r->size = take(&b, 4);
    if (r->size < 0) r->size = 0;
    r->records = (uint8_t *)take_bytes(&b, (uint64_t)r->size);
    if (error || own) fail("FETCH answered error %lld, partition %lld error %lld", (long long)error, (long long)index, (long long)own);
    if (!b.p || index != l->partitions[r->place]) fail("FETCH answered too few bytes, or for another partition");
}

/* Where the whole batches of an answer end, and the offset behind them: lengths and offsets alone. */
static int64_t walk(const struct reading *r, int64_t *offset) {
    int64_t at = 0;
    for (int64_t size; (size = batch_size(r->records + at, r->size - at)); at += size) {
        if (size < 0) fail("a batch of a wrong size at offset %lld", (long long)*offset);
        int64_t base = (int64_t)be64(r->records + at), count = (int32_t)be32(r->records + at + BATCH_COUNT);
        if (base != *offset) fail("a batch with offset %lld, expected %lld", (long long)base, (long long)*offset);
        if (count < 1) fail("a batch of %lld records at offset %lld", (long long)count, (long long)base);
        *offset += count;
    }
    return at;
}

static void *fetch_link(void *argument) {
    struct link *l = argument;
    struct reading two[2] = {{0}};
    open_link(l);
    int64_t *next = allocate(sizeof *next * (size_t)l->count), place = 0, left = 0;
    for (int64_t i = 0; i < l->count; i++) {
        next[i] = l->start[i] = ask_offset(l, l->partitions[i], -2);
        l->end[i] = ask_offset(l, l->partitions[i], -1);
        left += l->end[i] > l->start[i];
    }
    pthread_barrier_wait(&ready);
    while (place < l->count && next[place] >= l->end[place]) place++;
    if (left) {
        two[0].place = place;
        send_fetch(l, place, next[place]);
    }
    for (int64_t turn = 0; left; turn++) {
        struct reading *r = two + (turn & 1), *after = two + (~turn & 1);
        receive_fetch(l, r);
        int64_t valid = walk(r, next + r->place);
        if (!valid) fail("no whole batch at offset %lld of partition %lld", (long long)next[r->place], (long long)l->partitions[r->place]);
        left -= next[r->place] >= l->end[r->place];
        if (left) {
            do place = (place + 1) % l->count;
            while (next[place] >= l->end[place]);
            after->place = place;
            if (opt.prefetch) send_fetch(l, place, next[place]);
        }
        for (int64_t at = 0, size; at < valid; at += size) {
            size = batch_size(r->records + at, valid - at);
            const char *wrong = check_batch(r->records + at, size);
            if (wrong) fail("%s at offset %lld", wrong, (long long)be64(r->records + at));
        }
        l->bytes += valid;
        l->received += r->size;
        l->requests++;
        if (left && !opt.prefetch) send_fetch(l, place, next[place]);
    }
    for (int64_t i = 0; i < l->count; i++) l->messages += next[i] - l->start[i];
    pthread_barrier_wait(&done);
    free(two[0].buffer), free(two[1].buffer), free(next);
    return NULL;
}

/* ---- the whole ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run(void *(*one)(void *), bool produces) {
    struct link *links = calloc((size_t)opt.connections, sizeof *links), first = {0};
    if (!links) fail("out of memory");
    open_link(&first); /* the topic is made, and all partitions are there, before any other connection asks */
    ask_metadata(&first);
    close(first.fd);
    is_shared = opt.connections > opt.partitions;
    pthread_barrier_init(&ready, NULL, (unsigned)opt.connections + 1);
    pthread_barrier_init(&done, NULL, (unsigned)opt.connections + 1);
    for (int i = 0; i < opt.connections; i++) {
        links[i].number = i;
        if (pthread_create(&links[i].thread, NULL, one, links + i)) fail("no thread");
    }
    pthread_barrier_wait(&ready);
    int64_t start = now_ns(), messages = 0, bytes = 0, requests = 0, received = 0, samples = 0;
    pthread_barrier_wait(&done);
    double seconds = since(start);
    for (int i = 0; i < opt.connections; i++) {
        pthread_join(links[i].thread, NULL);
        messages += links[i].messages, bytes += links[i].bytes, requests += links[i].requests;
        received += links[i].received, samples += links[i].samples;
        close(links[i].fd);
    }
    double visible = since(start);
    if (messages < opt.min_messages) fail("%lld messages, at least %lld were expected", (long long)messages, (long long)opt.min_messages);
    printf("{\"mode\": \"%s\", \"messages\": %lld, \"bytes\": %lld, \"requests\": %lld, \"seconds\": %.6f, \"rate\": %.1f, "
           "\"bytes_per_second\": %.1f, \"crc\": \"%s\"",
           opt.mode, (long long)messages, (long long)bytes, (long long)requests, seconds, messages / seconds,
           bytes / seconds, crc_fastest_name);
    if (!produces) printf(", \"received_bytes\": %lld", (long long)received);
    if (produces) printf(", \"acks\": %lld, \"visible_seconds\": %.6f, \"visible_rate\": %.1f", (long long)opt.acks, visible,
                         messages / visible);
    if (samples) {
        double *all = allocate(sizeof *all * (size_t)samples);
        int64_t n = 0;
        for (int i = 0; i < opt.connections; i++) {
            memcpy(all + n, links[i].latency, sizeof *all * (size_t)links[i].samples);
            n += links[i].samples;
        }
        qsort(all, (size_t)n, sizeof *all, by_value);
        printf(", \"latency_ms\": {\"p50\": %.4f, \"p99\": %.4f, \"max\": %.4f}", all[n / 2], all[n * 99 / 100], all[n - 1]);
    }
    printf("}\n");
}

/* ---- command line ---- */

static void usage(const char *problem) {
    fprintf(stderr,
            "batchgen: %s\n"
            "usage: batchgen produce|fetch [--host H] [--port P] [--topic T] [--partitions P] [--connections C]\n"
            "               [--congestion NAME] [--timeout SECONDS]\n"
            "  produce: [--messages N] [--size BYTES] [--batch-bytes B | --batch-records R | --batch-file PATH]\n"
            "           [--window REQUESTS] [--acks -1|0|1]\n"
            "  fetch:   [--max-bytes N] [--prefetch 0|1] [--min-messages N]\n",
            problem);
    exit(2);
}

static void parse(int argc, char **argv) {
    const struct { const char *name, *modes; int64_t low, high, *value; } numbers[] = {
        {"--partitions", "pf", 1, 100000, &opt.partitions},   {"--connections", "pf", 1, MAX_CONNECTIONS, &opt.connections},
        {"--timeout", "pf", 1, 86400, &opt.timeout},          {"--messages", "p", 1, 1LL << 40, &opt.messages},
        {"--size", "p", 0, 1 << 24, &opt.size},               {"--batch-bytes", "p", 1, 100 << 20, &opt.batch_bytes},
        {"--batch-records", "p", 1, 1 << 24, &opt.batch_records}, {"--window", "p", 1, MAX_WINDOW, &opt.window},
        {"--acks", "p", -1, 1, &opt.acks},                    {"--max-bytes", "f", 1, 1 << 30, &opt.max_bytes},
        {"--prefetch", "f", 0, 1, &opt.prefetch},             {"--min-messages", "f", 0, 1LL << 40, &opt.min_messages},
    };
    if (argc < 2) usage("which mode?");
    opt.mode = argv[1];
    if (strcmp(opt.mode, "produce") && strcmp(opt.mode, "fetch")) usage("the modes are produce and fetch");
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *text = argv[i + 1];
        size_t n = 0, known = sizeof numbers / sizeof *numbers;
        if (i + 1 == argc) usage("the last option has no value");
        while (n < known && (strcmp(name, numbers[n].name) || !strchr(numbers[n].modes, opt.mode[0]))) n++;
        if (n < known) number(name, text, numbers[n].low, numbers[n].high, numbers[n].value);
        else if (!strcmp(name, "--host")) opt.host = text;
        else if (!strcmp(name, "--port")) opt.port = text;
        else if (!strcmp(name, "--topic")) opt.topic = text;
        else if (!strcmp(name, "--congestion")) opt.congestion = text;
        else if (*opt.mode == 'p' && !strcmp(name, "--batch-file")) opt.batch_file = text;
        else usage("an option that this mode does not take");
    }
    if (strlen(opt.topic) > 249) usage("a topic name has at most 249 bytes");
    if ((opt.batch_records ? opt.batch_records : 1) * (RECORD_FIXED + opt.size) > 100 << 20) usage("a batch has at most 100 MiB");
    if (opt.connections > opt.messages) usage("each connection needs a message");
}

int main(int argc, char **argv) {
    parse(argc, argv);
    crc_prepare();
    if (*opt.mode == 'f') {
        run(fetch_link, false);
    } else {
        if (opt.batch_file) read_batches();
        else make_batches();
        run(produce_link, true);
    }
    return 0;
}
