/* stream_client: a minimal client of a RabbitMQ stream, over its own protocol.
 *
 *   stream_client produce --port P --stream S [--messages N] [--size BYTES] [--batch N] [--window N]
 *       creates the stream (deletes an older one) and publishes in frames of --batch messages, written 64 kB at a time,
 *       with at most --window messages unconfirmed; ends with the last confirm
 *   stream_client consume --port P --stream S [--messages N]
 *       reads from the first offset, credit given back with each chunk, every message counted and its length checked
 *       (RabbitMQ's clients check no CRC unless asked, and neither does this one)
 *
 * Messages are AMQP 1.0 data sections, as every ordinary client writes them. Prints one line of JSON. Every failure is
 * one line on stderr and exit status 1; wrong usage is status 2.
 *
 * Frame: size(4) key(2) version(2), then for requests and answers a correlation id(4). Source: RabbitMQ's stream
 * protocol reference, 3.10.
 */
#define _GNU_SOURCE
#define PROGRAM "stream_client"
#include <poll.h>

#include "../ceiling/net.h"
#include "../ceiling/bytes.h"

enum {
    DECLARE_PUBLISHER = 1, PUBLISH, CONFIRM, PUBLISH_ERROR, SUBSCRIBE = 7, DELIVER, CREDIT, CREATE = 13, DELETE,
    METADATA_UPDATE = 16, PEER_PROPERTIES, SASL_HANDSHAKE, SASL_AUTHENTICATE, TUNE, OPEN, CLOSE, HEARTBEAT,
    ANSWER = 0x8000, OK = 1, NO_SUCH_STREAM = 2, FIRST_OFFSET = 1,
    WRITE_BYTES = 65536, CREDITS = 10, CHUNK_HEADER = 48, FRAME_HEADER = 8, MAX_SECTION = 8, RECEIVE_BYTES = 4 << 20,
};

static struct {
    const char *stream;
    int64_t port, messages, size, batch, window, timeout;
} opt = {.stream = "fastlog-peer", .port = 5552, .messages = 1000000, .size = 200, .batch = 50, .window = 20000,
         .timeout = 120};

static int fd;

/* Received bytes: whole frames are taken from ``at``, what is behind them is kept for the next one. */
static uint8_t *received;
static size_t at, held, room = RECEIVE_BYTES;

struct frame {
    int key;
    uint8_t *body;
    size_t bytes;
};

static bool take_frame(struct frame *f) {
    if (held - at < 4) return false;
    size_t size = be32(received + at);
    if (size < 4 || size > 1u << 30) fail("a frame of %zu bytes", size);
    if (held - at - 4 < size) {
        if (size + 4 > room && !(received = realloc(received, room = size + 4))) fail("out of memory");
        return false;
    }
    f->key = (int)(be32(received + at + 4) >> 16);
    f->body = received + at + FRAME_HEADER;
    f->bytes = size - 4;
    at += 4 + size;
    if (f->key == CLOSE && f->bytes >= 6)
        fail("the broker closes the connection (code %lld)", (long long)get(f->body + 4, 2));
    return true;
}

static void receive_more(void) {
    memmove(received, received + at, held -= at);
    at = 0;
    size_t got = receive_some(fd, received + held, room - held);
    if (!got) fail("the broker closed the connection");
    held += got;
}

/* The next frame that is no heartbeat. */
static struct frame next_frame(void) {
    struct frame f;
    for (;;) {
        while (!take_frame(&f)) receive_more();
        if (f.key != HEARTBEAT && f.key != METADATA_UPDATE) return f;
    }
}

/* ---- requests and their answers ---- */

static uint8_t *put_string(uint8_t *p, const char *text) {
    size_t size = strlen(text);
    p = put(p, 2, (int64_t)size);
    memcpy(p, text, size);
    return p + size;
}

static uint8_t request[1024];

static uint8_t *begin(int key) { return put(put(put(request + 4, 2, key), 2, 1), 4, 1); }

static int ask(uint8_t *end) {
    put(request, 4, end - request - 4);
    send_all(fd, request, (size_t)(end - request));
    int key = (int)get(request + 4, 2);
    struct frame f = next_frame();
    if (f.key != (key | ANSWER) || f.bytes < 6) fail("frame 0x%04X in answer to request %d", f.key, key);
    return (int)get(f.body + 4, 2);
}

static void demand(const char *what, uint8_t *end) {
    int code = ask(end);
    if (code != OK) fail("%s: the broker answered code %d", what, code);
}

static void open_connection(void) {
    static const char login[] = "\0guest\0guest";
    char port[16];
    snprintf(port, sizeof port, "%d", (int)opt.port);
    fd = dial("127.0.0.1", port, opt.timeout, "");
    received = allocate(room);
    demand("properties", put(begin(PEER_PROPERTIES), 4, 0));
    demand("handshake", begin(SASL_HANDSHAKE));
    uint8_t *p = put(put_string(begin(SASL_AUTHENTICATE), "PLAIN"), 4, sizeof login - 1);
    memcpy(p, login, sizeof login - 1);
    demand("login", p + sizeof login - 1);
    struct frame tune = next_frame();
    if (tune.key != TUNE || tune.bytes < 8) fail("frame 0x%04X instead of a tune frame", tune.key);
    p = put(put(put(request + 4, 2, TUNE), 2, 1), 4, be32(tune.body));
    p = put(p, 4, 0); /* no heartbeats: nothing here waits long */
    put(request, 4, p - request - 4);
    send_all(fd, request, (size_t)(p - request));
    demand("virtual host", put_string(begin(OPEN), "/"));
}

static void result(double seconds) {
    printf("{\"messages\": %lld, \"seconds\": %.6f, \"rate\": %.1f}\n", (long long)opt.messages, seconds,
           (double)opt.messages / seconds);
}

/* ---- producing ---- */

static int64_t confirmed;

static void take_confirms(void) {
    for (struct frame f; take_frame(&f);) {
        if (f.key == CONFIRM && f.bytes >= 5) confirmed += be32(f.body + 1);
        else if (f.key == PUBLISH_ERROR && f.bytes >= 15)
            fail("the broker refused a message (code %lld)", (long long)get(f.body + 13, 2));
        else if (f.key != HEARTBEAT && f.key != METADATA_UPDATE) fail("frame 0x%04X among confirms", f.key);
    }
}

/* Writes while it can and reads whenever there is something, so that neither side waits for the other for ever. */
static void write_out(const uint8_t *p, size_t n) {
    while (n) {
        struct pollfd wait = {.fd = fd, .events = POLLIN | POLLOUT};
        int ready = poll(&wait, 1, (int)opt.timeout * 1000);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) fail("sending: %s", ready ? strerror(errno) : "timed out");
        if (wait.revents & (POLLIN | POLLHUP | POLLERR)) {
            receive_more();
            take_confirms();
        }
        if (wait.revents & POLLOUT) {
            ssize_t sent = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0 && errno != EINTR && errno != EAGAIN) fail("sending: %s", strerror(errno));
            if (sent > 0) p += sent, n -= (size_t)sent;
        }
    }
}

/* AMQP 1.0: a described binary, in its short or its long form. */
static uint8_t *put_section(uint8_t *p) {
    p = put(p, 3, 0x005375);
    return opt.size < 256 ? put(put(p, 1, 0xA0), 1, opt.size) : put(put(p, 1, 0xB0), 4, opt.size);
}

static void produce(void) {
    uint8_t section[MAX_SECTION], *payloads = allocate((size_t)opt.size + 4096);
    int64_t section_bytes = put_section(section) - section, message_bytes = section_bytes + opt.size, sent = 0;
    fill_random(payloads, (size_t)opt.size + 4096);
    int code = ask(put_string(begin(DELETE), opt.stream));
    if (code != OK && code != NO_SUCH_STREAM) fail("deleting the stream: code %d", code);
    demand("creating the stream", put(put_string(begin(CREATE), opt.stream), 4, 0));
    demand("publisher", put_string(put_string(put(begin(DECLARE_PUBLISHER), 1, 1), ""), opt.stream));
    uint8_t *out = allocate((size_t)(WRITE_BYTES + 16 + opt.batch * (12 + message_bytes))), *p = out;
    int64_t start = now_ns();
    while (sent < opt.messages) {
        int64_t count = opt.messages - sent < opt.batch ? opt.messages - sent : opt.batch;
        p = put(put(put(p, 4, 9 + count * (12 + message_bytes)), 2, PUBLISH), 2, 1);
        p = put(put(p, 1, 1), 4, count);
        for (int64_t i = 0; i < count; i++, sent++) {
            p = put(put(p, 8, sent), 4, message_bytes);
            memcpy(p, section, (size_t)section_bytes);
            memcpy(p + section_bytes, payloads + sent % 4096, (size_t)opt.size);
            p += message_bytes;
        }
        bool full = sent - confirmed >= opt.window || sent == opt.messages;
        if (p - out >= WRITE_BYTES || full) {
            write_out(out, (size_t)(p - out));
            p = out;
        }
        while (sent - confirmed >= (sent == opt.messages ? 1 : opt.window)) {
            receive_more();
            take_confirms();
        }
    }
    double seconds = since(start);
    if (confirmed != opt.messages) fail("%lld confirms instead of %lld", (long long)confirmed, (long long)opt.messages);
    result(seconds);
    free(out), free(payloads);
}

/* ---- consuming ---- */

/* The messages of one chunk. */
static int64_t count_chunk(const struct frame *f) {
    const uint8_t *p = f->body + 1, *end = f->body + f->bytes; /* behind the subscription's number */
    if (end - p < CHUNK_HEADER || p[0] != 0x50) fail("a chunk of another format");
    if (p[1] != 0) return 0; /* the broker's own notes */
    int64_t entries = get(p + 2, 2) & 0xFFFF, data = be32(p + 36);
    p += CHUNK_HEADER;
    if (data > end - p) fail("a chunk that is cut short");
    for (int64_t i = 0; i < entries; i++) {
        uint32_t size = end - p < 4 ? UINT32_MAX : be32(p);
        if (size > end - p - 4) fail("a message that ends outside its chunk, or a batch inside one");
        if (size < opt.size) fail("a message of %u bytes", size);
        p += 4 + size;
    }
    return entries;
}

static void consume(void) {
    int64_t count = 0, start = now_ns();
    uint8_t grant[11], *p = put(put(put(grant, 4, 7), 2, CREDIT), 2, 1);
    put(put(p, 1, 1), 2, 1); /* one chunk more */
    p = put(put_string(put(begin(SUBSCRIBE), 1, 1), opt.stream), 2, FIRST_OFFSET);
    demand("subscribing", put(put(p, 2, CREDITS), 4, 0));
    while (count < opt.messages) {
        struct frame f = next_frame();
        if (f.key != DELIVER) fail("frame 0x%04X instead of a chunk", f.key);
        send_all(fd, grant, sizeof grant); /* before the chunk is looked at: the broker goes on meanwhile */
        count += count_chunk(&f);
    }
    double seconds = since(start);
    if (count != opt.messages) fail("%lld messages instead of %lld", (long long)count, (long long)opt.messages);
    result(seconds);
}

static void usage(const char *problem) {
    fprintf(stderr,
            PROGRAM ": %s\nusage: stream_client produce|consume --port P [--stream S] [--messages N] [--size BYTES]"
                    " [--batch N] [--window N] [--timeout SECONDS]\n",
            problem);
    exit(2);
}

int main(int argc, char **argv) {
    const struct { const char *name; int64_t low, high, *value; } numbers[] = {
        {"--port", 1, 65535, &opt.port},     {"--messages", 1, 1LL << 40, &opt.messages},
        {"--size", 1, 1 << 16, &opt.size},   {"--batch", 1, 4096, &opt.batch},
        {"--window", 1, 1 << 24, &opt.window}, {"--timeout", 1, 86400, &opt.timeout},
    };
    if (argc < 2 || (strcmp(argv[1], "produce") && strcmp(argv[1], "consume")))
        usage("the modes are produce and consume");
    for (int i = 2; i < argc; i += 2) {
        size_t n = 0, known = sizeof numbers / sizeof *numbers;
        if (i + 1 == argc) usage("the last option has no value");
        while (n < known && strcmp(argv[i], numbers[n].name)) n++;
        if (n < known) number(argv[i], argv[i + 1], numbers[n].low, numbers[n].high, numbers[n].value);
        else if (!strcmp(argv[i], "--stream")) opt.stream = argv[i + 1];
        else usage("an unknown option");
    }
    if (strlen(opt.stream) > 255) usage("a stream's name has at most 255 bytes");
    open_connection();
    if (!strcmp(argv[1], "produce")) produce();
    else consume();
    close(fd);
    return 0;
}
