/* loadgen: drives a broker over one loopback connection at next to no cost to itself.
 *
 *   loadgen produce       frames encoded once and sent again and again (or, with --encode each, every message copied
 *                         and its checksum computed, as a client must); ends when the log end is visible
 *   loadgen produce-acked acknowledged produce (request 1000), a window of requests in flight
 *   loadgen fetch         reads a partition from its start to its visible end
 *
 * Prints one line of JSON on stdout. Every failure is one line on stderr and exit status 1; wrong usage is status 2.
 *
 * Messages have magic 1 and codec 0:  length(4) magic(1) attributes(1) crc(4) payload.  All integers are big-endian.
 */
#define _GNU_SOURCE
#define PROGRAM "loadgen"
#include "net.h"
#include "bytes.h"

enum { ENTRY_HEADER = 10, RING_TARGET = 1 << 20, ANSWER_BYTES = 30, MAX_SAMPLES = 1 << 20, MAX_WINDOW = 4096,
       POOL_BYTES = 1 << 20 };
enum check { CHECK_NONE, CHECK_WALK, CHECK_CRC };

static struct {
    const char *mode, *host, *port, *topic, *congestion;
    int64_t partition, messages, size, batch, write_bytes, window, acks, max_bytes, prefetch, timeout, nudge, metadata;
    enum check check;
    bool encode_each;
} opt = {.host = "127.0.0.1", .port = "9092", .topic = "ceiling", .congestion = "reno", .messages = 1000000, .size = 200,
         .batch = 50, .write_bytes = 65536, .window = 256, .acks = 1, .max_bytes = 1 << 20, .prefetch = 1, .timeout = 60,
         .nudge = 1, .metadata = 1};

static int dial_broker(void) { return dial(opt.host, opt.port, opt.timeout, opt.congestion); }

/* Returns the answer's body behind its size, in a buffer that the next call reuses; NULL when the broker closed. */
static uint8_t *receive_answer(int fd, size_t *size) {
    static uint8_t *buffer;
    static size_t room;
    uint8_t header[4];
    if (!receive_all(fd, header, 4)) return NULL;
    *size = be32(header);
    if (*size < 2 || *size > 1u << 30) fail("an answer claims %zu bytes", *size);
    if (*size > room) buffer = realloc(buffer, room = *size);
    if (!buffer) fail("out of memory (%zu bytes)", room);
    return receive_all(fd, buffer, *size) ? buffer : NULL;
}

/* ---- requests ---- */

static uint8_t *put_topic(uint8_t *p) {
    size_t length = strlen(opt.topic);
    p = put(p, 2, (int64_t)length);
    memcpy(p, opt.topic, length);
    return put(p + length, 4, opt.partition);
}

static size_t encode_fetch(uint8_t *frame, int64_t offset, int64_t max_bytes) {
    uint8_t *p = put_topic(put(frame + 4, 2, 1));
    p = put(put(p, 8, offset), 4, max_bytes);
    put(frame, 4, p - frame - 4);
    return (size_t)(p - frame);
}

/* One value of the OFFSETS request: -1 asks for the visible end, -2 for the start. */
static int64_t ask_offset(int fd, int64_t when) {
    uint8_t frame[512], *p = put(put(put_topic(put(frame + 4, 2, 4)), 8, when), 4, 1);
    put(frame, 4, p - frame - 4);
    send_all(fd, frame, (size_t)(p - frame));
    size_t size;
    uint8_t *answer = receive_answer(fd, &size);
    if (!answer) fail("the broker closed the connection on an OFFSETS request");
    if (get(answer, 2)) fail("OFFSETS answered error %lld", (long long)get(answer, 2));
    if (size < 6 || get(answer + 2, 4) < 1) return 0;
    return get(answer + 6, 8);
}

/* An empty fetch at the visible end is what a waiting consumer sends: it asks the broker to flush. */
static void nudge(int fd, int64_t offset) {
    uint8_t frame[512];
    size_t size;
    send_all(fd, frame, encode_fetch(frame, offset, 1));
    if (!receive_answer(fd, &size)) fail("the broker closed the connection on a FETCH request");
}

/* The log end (appended, not only visible) by METADATA; -1 when the broker does not know that request. */
static int64_t ask_log_end(int fd) {
    size_t length = strlen(opt.topic), size;
    uint8_t frame[512], *p = put(put(put(put(frame + 4, 2, 1002), 2, 1), 4, 7), 4, 1);
    p = put(p, 2, (int64_t)length);
    memcpy(p, opt.topic, length);
    p += length;
    put(frame, 4, p - frame - 4);
    send_all(fd, frame, (size_t)(p - frame));
    uint8_t *answer = receive_answer(fd, &size);
    if (!answer) return -1;
    if (size < 6 || get(answer, 4) != 7) fail("METADATA answered another correlation id");
    if (get(answer + 4, 2)) fail("METADATA answered error %lld", (long long)get(answer + 4, 2));
    uint8_t *q = answer + 6, *end = answer + size;
    if (end - q < 6) fail("METADATA answer is too short");
    q += 4;
    q += 2 + get(q, 2) + 4 * 4 + 2 * 2;
    if (end - q < 4 || get(q, 4) < 1) return 0;
    q += 4;
    q += 2 + get(q, 2);
    if (end - q < 10) fail("METADATA answer is too short");
    int64_t partitions = get(q + 6, 4);
    for (q += 10; partitions-- > 0 && end - q >= 30; q += 30)
        if (get(q, 4) == opt.partition) return get(q + 22, 8);
    return 0;
}

/* Requests of its own are asked for once, on a connection of their own: 0.7 closes it. */
static bool knows_metadata(void) {
    if (!opt.metadata) return false;
    int fd = dial_broker();
    bool known = ask_log_end(fd) >= 0;
    close(fd);
    return known;
}

static int64_t wait_visible(int fd, int64_t expected) {
    for (int64_t deadline = now_ns() + opt.timeout * 1000000000LL;;) {
        int64_t seen = ask_offset(fd, -1);
        if (seen >= expected) return seen;
        if (now_ns() > deadline)
            fail("after %lld s the visible end is %lld, expected %lld", (long long)opt.timeout, (long long)seen,
                 (long long)expected);
        if (opt.nudge) nudge(fd, seen);
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

/* ---- producing ---- */

static uint8_t *put_entries(uint8_t *p, int64_t count) {
    for (; count--; p += opt.size) {
        p = put(put(put(p, 4, 6 + opt.size), 1, 1), 1, 0) + 4;
        fill_random(p, (size_t)opt.size);
        put(p - 4, 4, crc32_of(p, (size_t)opt.size));
    }
    return p;
}

/* A plain PRODUCE, or with acks an acknowledged one whose correlation id is its place in the ring. */
static uint8_t *put_produce(uint8_t *frame, int64_t count, bool acked, int64_t correlation) {
    uint8_t *p = frame + 4;
    if (acked) {
        p = put(put(put(put(p, 2, 1000), 2, 1), 4, correlation), 1, opt.acks);
        p = put(put(put(p, 8, -1), 2, -1), 4, -1);
    } else {
        p = put(p, 2, 0);
    }
    p = put_topic(p);
    p = put_entries(put(p, 4, count * (ENTRY_HEADER + opt.size)), count);
    put(frame, 4, p - frame - 4);
    return p;
}

struct stream {
    uint8_t *ring;      /* whole frames, then the first bytes again so that every write is one span */
    int64_t frame_size, period, total; /* bytes of one frame, of the ring, of everything to be sent */
    int64_t frames, frames_in_ring;
    int64_t last_size;  /* bytes of the last, smaller frame; it lies behind the ring. 0 when all are alike */
    uint8_t *last;
};

static struct stream prepare(bool acked) {
    struct stream s = {.frames = opt.messages / opt.batch};
    int64_t rest = opt.messages % opt.batch;
    int64_t head = 4 + 2 + (acked ? 2 + 4 + 1 + 14 : 0) + 2 + (int64_t)strlen(opt.topic) + 4 + 4;
    s.frame_size = head + opt.batch * (ENTRY_HEADER + opt.size);
    s.frames_in_ring = (RING_TARGET + s.frame_size - 1) / s.frame_size;
    s.period = s.frames_in_ring * s.frame_size;
    s.total = s.frames * s.frame_size;
    int64_t laps = opt.write_bytes / s.period + 1;
    s.ring = allocate((size_t)(s.period + laps * s.period));
    for (int64_t i = 0; i < s.frames_in_ring; i++) put_produce(s.ring + i * s.frame_size, opt.batch, acked, i);
    for (int64_t lap = 1; lap <= laps; lap++) memcpy(s.ring + lap * s.period, s.ring, (size_t)s.period);
    if (rest) {
        s.last = allocate((size_t)s.frame_size);
        s.last_size = put_produce(s.last, rest, acked, s.frames % s.frames_in_ring) - s.last;
    }
    return s;
}

/* The work of a real client: each message is copied into its frame and its checksum computed. The payloads come from a
   pool that the processor's cache holds, as they do in a program that has just made them. */
static void send_encoded(int fd) {
    int64_t entry_bytes = ENTRY_HEADER + opt.size, pool_count = POOL_BYTES / (opt.size + 1), next = 0;
    pool_count = pool_count < 1 ? 1 : pool_count < opt.messages ? pool_count : opt.messages;
    uint8_t *pool = allocate((size_t)(pool_count * opt.size)), head[512], entry_head[6];
    fill_random(pool, (size_t)(pool_count * opt.size));
    put(put(put(entry_head, 4, 6 + opt.size), 1, 1), 1, 0);
    int64_t head_bytes = put_topic(put(head + 4, 2, 0)) + 4 - head;
    uint8_t *out = allocate((size_t)(opt.write_bytes + head_bytes + opt.batch * entry_bytes)), *p = out;
    for (int64_t left = opt.messages; left > 0;) {
        int64_t count = left < opt.batch ? left : opt.batch;
        put(head, 4, head_bytes - 4 + count * entry_bytes);
        put(head + head_bytes - 4, 4, count * entry_bytes);
        memcpy(p, head, (size_t)head_bytes);
        p += head_bytes;
        for (int64_t i = 0; i < count; i++, p += entry_bytes, next = next + 1 < pool_count ? next + 1 : 0) {
            const uint8_t *payload = pool + next * opt.size;
            uint32_t crc = htonl(crc32_of(payload, (size_t)opt.size));
            memcpy(p, entry_head, sizeof entry_head);
            memcpy(p + sizeof entry_head, &crc, 4);
            memcpy(p + ENTRY_HEADER, payload, (size_t)opt.size);
        }
        left -= count;
        if (p - out >= opt.write_bytes || !left) {
            send_all(fd, out, (size_t)(p - out));
            p = out;
        }
    }
    free(out), free(pool);
}

static void send_ring(int fd, const struct stream *s) {
    for (int64_t position = 0; position < s->total;) {
        int64_t span = s->total - position < opt.write_bytes ? s->total - position : opt.write_bytes;
        send_all(fd, s->ring + position % s->period, (size_t)span);
        position += span;
    }
    send_all(fd, s->last, (size_t)s->last_size);
}

static void print_head(double seconds, int64_t messages, int64_t bytes) {
    printf("{\"mode\": \"%s\", \"messages\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"rate\": %.1f, "
           "\"bytes_per_second\": %.1f",
           opt.mode, (long long)messages, (long long)bytes, seconds, messages / seconds, bytes / seconds);
}

static void produce(void) {
    struct stream s = {0};
    if (!opt.encode_each) s = prepare(false);
    bool metadata = knows_metadata();
    int fd = dial_broker();
    int64_t base = metadata ? ask_log_end(fd) : ask_offset(fd, -1);
    int64_t log_bytes = opt.messages * (ENTRY_HEADER + opt.size), expected = base + log_bytes, start = now_ns();
    if (opt.encode_each) send_encoded(fd);
    else send_ring(fd, &s);
    double sent = since(start);
    /* A produce is handled before the requests behind it, so any answer now means that everything was appended. */
    int64_t taken_end = metadata ? ask_log_end(fd) : ask_offset(fd, -1);
    double taken = since(start);
    if (metadata && taken_end != expected)
        fail("the log end is %lld, expected %lld", (long long)taken_end, (long long)expected);
    int64_t visible_end = wait_visible(fd, expected);
    double visible = since(start);
    if (visible_end != expected)
        fail("the visible end is %lld, expected %lld: somebody else writes", (long long)visible_end, (long long)expected);
    close(fd);
    print_head(taken, opt.messages, log_bytes);
    printf(", \"sent_seconds\": %.6f, \"taken_by\": \"%s\", \"visible_seconds\": %.6f, \"visible_rate\": %.1f}\n", sent,
           metadata ? "metadata" : "offsets", visible, opt.messages / visible);
    free(s.ring);
    free(s.last);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_answer(const uint8_t *p, int64_t correlation, int64_t base, int64_t next) {
    if (be32(p) != ANSWER_BYTES - 4) fail("an acknowledgement of %u bytes", be32(p));
    if (get(p + 8, 2)) fail("acknowledgement with error %lld", (long long)get(p + 8, 2));
    if (get(p + 4, 4) != correlation)
        fail("correlation id %lld, expected %lld", (long long)get(p + 4, 4), (long long)correlation);
    if (get(p + 14, 8) != base || get(p + 22, 8) != next)
        fail("acknowledged %lld..%lld, expected %lld..%lld", (long long)get(p + 14, 8), (long long)get(p + 22, 8),
             (long long)base, (long long)next);
}

static void produce_acked(void) {
    struct stream s = prepare(true);
    int fd = dial_broker();
    int64_t base = ask_log_end(fd);
    if (base < 0) fail("the broker does not know request 1000");
    int64_t total = s.frames + (s.last_size > 0), step = total / MAX_SAMPLES + 1, samples = 0;
    int64_t set_bytes = opt.batch * (ENTRY_HEADER + opt.size), next = base, sent = 0, acked = 0;
    int64_t log_bytes = opt.messages * (ENTRY_HEADER + opt.size);
    int64_t per_write = opt.write_bytes / s.frame_size > 0 ? opt.write_bytes / s.frame_size : 1;
    int64_t *sent_at = allocate(sizeof *sent_at * (size_t)opt.window);
    double *latency = allocate(sizeof *latency * (size_t)(total / step + 1));
    uint8_t *answers = allocate(ANSWER_BYTES * MAX_WINDOW);
    size_t held = 0;
    int64_t start = now_ns();
    while (acked < total) {
        int64_t free_slots = opt.window - (sent - acked), burst = per_write < free_slots ? per_write : free_slots;
        if (burst > s.frames - sent) burst = s.frames - sent;
        int64_t at = now_ns();
        if (burst > 0) {
            send_all(fd, s.ring + sent % s.frames_in_ring * s.frame_size, (size_t)(burst * s.frame_size));
        } else if (free_slots > 0 && sent == s.frames && sent < total) {
            send_all(fd, s.last, (size_t)s.last_size);
            burst = 1;
        }
        for (int64_t i = 0; i < burst; i++, sent++) sent_at[sent % opt.window] = at;
        if (sent < total && sent - acked < opt.window) continue;
        size_t got = receive_some(fd, answers + held, ANSWER_BYTES * MAX_WINDOW - held), used = 0;
        if (!got) fail("the broker closed the connection after %lld acknowledgements", (long long)acked);
        held += got;
        for (at = now_ns(); held - used >= ANSWER_BYTES; used += ANSWER_BYTES, acked++) {
            int64_t end = acked < s.frames ? next + set_bytes : base + log_bytes;
            check_answer(answers + used, acked % s.frames_in_ring, next, end);
            next = end;
            if (acked % step == 0) latency[samples++] = (at - sent_at[acked % opt.window]) / 1e6;
        }
        memmove(answers, answers + used, held -= used);
    }
    double seconds = since(start);
    wait_visible(fd, base + log_bytes);
    double visible = since(start);
    close(fd);
    qsort(latency, (size_t)samples, sizeof *latency, by_value);
    print_head(seconds, opt.messages, log_bytes);
    printf(", \"acks\": %lld, \"window\": %lld, \"visible_seconds\": %.6f, \"latency_ms\": {\"p50\": %.4f, \"p99\": %.4f, "
           "\"max\": %.4f}}\n",
           (long long)opt.acks, (long long)opt.window, visible, latency[samples / 2], latency[samples * 99 / 100],
           latency[samples - 1]);
    free(latency), free(sent_at), free(answers), free(s.ring), free(s.last);
}

/* ---- fetching ---- */

static void check_entries(const uint8_t *p, int64_t bytes) {
    for (int64_t at = 0, size; at < bytes; at += 4 + size) {
        size = be32(p + at);
        int64_t header = p[at + 4] == 0 ? 5 : 6;
        if (p[at + 4] > 1 || size < header) fail("an entry with magic %d and size %lld", p[at + 4], (long long)size);
        if (opt.check == CHECK_CRC &&
            be32(p + at + header) != crc32_of(p + at + 4 + header, (size_t)(size - header)))
            fail("an entry with a wrong checksum, %lld bytes into an answer", (long long)at);
    }
}

/* Receives one answer; lengths are walked while its bytes come in, so that the next request can leave at once. */
static int64_t receive_set(int fd, uint8_t *buffer, int64_t *count, int64_t *received) {
    uint8_t header[6];
    if (!receive_all(fd, header, 6)) fail("the broker closed the connection");
    int64_t size = (int64_t)be32(header) - 2, got = 0, walked = 0;
    if (get(header + 4, 2)) fail("FETCH answered error %lld", (long long)get(header + 4, 2));
    if (size < 0 || size > opt.max_bytes) fail("an answer of %lld bytes", (long long)size);
    while (got < size) {
        size_t more = receive_some(fd, buffer + got, (size_t)(size - got));
        if (!more) fail("the broker closed the connection inside an answer");
        got += (int64_t)more;
        for (int64_t next; got - walked >= 4; walked = next, ++*count) {
            uint32_t length = be32(buffer + walked);
            if (length < 5 || length > INT32_MAX) fail("an entry of size %u", length);
            if ((next = walked + 4 + length) > got) break;
        }
    }
    *received += size;
    return walked;
}

static void fetch(void) {
    int fd = dial_broker();
    uint8_t request[512], *buffers[2] = {allocate((size_t)opt.max_bytes), allocate((size_t)opt.max_bytes)};
    int64_t offset = ask_offset(fd, -2), end = ask_offset(fd, -1), first = offset, count = 0, fetches = 0, received = 0;
    if (end <= offset) fail("there is nothing to read");
    int64_t start = now_ns();
    send_all(fd, request, encode_fetch(request, offset, opt.max_bytes));
    for (bool more = true; more; fetches++) {
        uint8_t *buffer = buffers[fetches & 1];
        int64_t valid = receive_set(fd, buffer, &count, &received);
        if (!valid) fail("no whole message at offset %lld: larger than --max-bytes?", (long long)offset);
        offset += valid;
        more = offset < end;
        if (more && opt.prefetch) send_all(fd, request, encode_fetch(request, offset, opt.max_bytes));
        if (opt.check != CHECK_NONE) check_entries(buffer, valid);
        if (more && !opt.prefetch) send_all(fd, request, encode_fetch(request, offset, opt.max_bytes));
    }
    double seconds = since(start);
    close(fd);
    print_head(seconds, count, offset - first);
    printf(", \"fetches\": %lld, \"received_bytes\": %lld}\n", (long long)fetches, (long long)received);
    free(buffers[0]), free(buffers[1]);
}

/* ---- command line ---- */

static void usage(const char *problem) {
    fprintf(stderr,
            "loadgen: %s\n"
            "usage: loadgen produce|produce-acked|fetch [--host H] [--port P] [--topic T] [--partition N]\n"
            "               [--congestion NAME] [--timeout SECONDS]\n"
            "  produce, produce-acked: [--messages N] [--size BYTES] [--batch N] [--write-bytes N]\n"
            "  produce:                [--nudge 0|1] [--metadata 0|1] [--encode once|each]\n"
            "  produce-acked:          [--window N] [--acks 1|2]\n"
            "  fetch:                  [--max-bytes N] [--prefetch 0|1] [--check none|walk|crc]\n",
            problem);
    exit(2);
}

static void parse(int argc, char **argv) {
    const struct { const char *name, *modes; int64_t low, high, *value; } numbers[] = {
        {"--partition", "paf", 0, INT32_MAX, &opt.partition}, {"--timeout", "paf", 1, 86400, &opt.timeout},
        {"--messages", "pa", 1, 1LL << 40, &opt.messages},    {"--size", "pa", 0, 1 << 24, &opt.size},
        {"--batch", "pa", 1, 1 << 20, &opt.batch},            {"--write-bytes", "pa", 1, 1 << 26, &opt.write_bytes},
        {"--nudge", "pa", 0, 1, &opt.nudge},                  {"--metadata", "p", 0, 1, &opt.metadata},
        {"--window", "a", 1, MAX_WINDOW, &opt.window},        {"--acks", "a", 1, 2, &opt.acks},
        {"--max-bytes", "f", 4, 1 << 30, &opt.max_bytes},     {"--prefetch", "f", 0, 1, &opt.prefetch},
    };
    if (argc < 2) usage("which mode?");
    opt.mode = argv[1];
    char letter = !strcmp(opt.mode, "produce") ? 'p' : !strcmp(opt.mode, "produce-acked") ? 'a' : 'f';
    if (letter == 'f' && strcmp(opt.mode, "fetch")) usage("the modes are produce, produce-acked and fetch");
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *text = argv[i + 1];
        size_t n = 0, known = sizeof numbers / sizeof *numbers;
        if (i + 1 == argc) usage("the last option has no value");
        while (n < known && (strcmp(name, numbers[n].name) || !strchr(numbers[n].modes, letter))) n++;
        if (n < known) number(name, text, numbers[n].low, numbers[n].high, numbers[n].value);
        else if (!strcmp(name, "--host")) opt.host = text;
        else if (!strcmp(name, "--port")) opt.port = text;
        else if (!strcmp(name, "--topic")) opt.topic = text;
        else if (!strcmp(name, "--congestion")) opt.congestion = text;
        else if (letter == 'p' && !strcmp(name, "--encode") && !strcmp(text, "once")) opt.encode_each = false;
        else if (letter == 'p' && !strcmp(name, "--encode") && !strcmp(text, "each")) opt.encode_each = true;
        else if (letter == 'f' && !strcmp(name, "--check") && !strcmp(text, "none")) opt.check = CHECK_NONE;
        else if (letter == 'f' && !strcmp(name, "--check") && !strcmp(text, "walk")) opt.check = CHECK_WALK;
        else if (letter == 'f' && !strcmp(name, "--check") && !strcmp(text, "crc")) opt.check = CHECK_CRC;
        else usage("an option that this mode does not take, or a value that it does not know");
    }
    if (strlen(opt.topic) > 255) usage("a topic name has at most 255 bytes");
    if (opt.batch * (ENTRY_HEADER + opt.size) > 100 << 20) usage("a batch has at most 100 MiB");
}

int main(int argc, char **argv) {
    parse(argc, argv);
    crc_prepare();
    if (opt.mode[0] == 'f') fetch();
    else if (!strcmp(opt.mode, "produce")) produce();
    else produce_acked();
    return 0;
}
