/* Today's Kafka protocol as far as the measurements need it: record batches, request heads, and answers taken apart.
 *
 * A program that includes this defines PROGRAM before, as for net.h. Requests and their versions: PRODUCE 9, FETCH 11,
 * LIST_OFFSETS 5, METADATA 4, API_VERSIONS 0. Only PRODUCE is "flexible": lengths in it are base 128 and one too large.
 */
#ifndef PERF_CEILING_BATCHES_H
#define PERF_CEILING_BATCHES_H

/* CRC-32C, by the broker's own code; see fastlog/_crc32c.pyx. */
#define CRC_POLYNOMIAL 0x82F63B78u
#define CRC_FOLD_96 0x493C7D27
#define CRC_QUOTIENT 0x4869EC38DEA713F1

#include "net.h"
#include "bytes.h"

enum { API_PRODUCE = 0, API_FETCH = 1, API_LIST_OFFSETS = 2, API_METADATA = 3, API_VERSIONS = 18 };
enum { PRODUCE_VERSION = 9, FETCH_VERSION = 11, LIST_OFFSETS_VERSION = 5, METADATA_VERSION = 4 };

/* Where the fields of a batch stand; fastlog/record_batches.py has the table. */
enum {
    BATCH_LENGTH = 8, BATCH_FRONT = 12, BATCH_EPOCH = 12, BATCH_MAGIC = 16, BATCH_CRC = 17, BATCH_ATTRIBUTES = 21,
    BATCH_LAST_DELTA = 23, BATCH_BASE_TIME = 27, BATCH_MAX_TIME = 35, BATCH_PRODUCER = 43, BATCH_COUNT = 57,
    BATCH_HEAD = 61, BATCH_LEAST = BATCH_HEAD - BATCH_FRONT,
};

static inline uint64_t be64(const uint8_t *p) { return (uint64_t)be32(p) << 32 | be32(p + 4); }

static inline uint8_t *put_varint(uint8_t *p, uint64_t value) {
    for (; value > 127; value >>= 7) *p++ = (uint8_t)(value | 128);
    *p++ = (uint8_t)value;
    return p;
}

static inline uint8_t *put_zigzag(uint8_t *p, int64_t value) {
    return put_varint(p, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

static inline uint8_t *put_bytes(uint8_t *p, const void *data, size_t n) {
    memcpy(p, data, n);
    return p + n;
}

static inline uint8_t *put_string(uint8_t *p, const char *text) {
    size_t n = strlen(text);
    return put_bytes(put(p, 2, (int64_t)n), text, n);
}

static inline size_t varint_bytes(uint64_t value) {
    size_t n = 1;
    while (value >>= 7) n++;
    return n;
}

/* What is left of a request or an answer; p moves on, and a field that is not there makes it NULL. */
struct body {
    const uint8_t *p, *end;
};

static inline const uint8_t *take_bytes(struct body *b, uint64_t n) {
    if (!b->p || (uint64_t)(b->end - b->p) < n) return b->p = NULL;
    b->p += n;
    return b->p - n;
}

static inline int64_t take(struct body *b, int n) {
    const uint8_t *p = take_bytes(b, (uint64_t)n);
    return p ? get(p, n) : 0;
}

static inline uint64_t take_varint(struct body *b) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint64_t byte = (uint8_t)take(b, 1);
        value |= (byte & 127) << shift;
        if (byte < 128) return value;
    }
    b->p = NULL;
    return 0;
}

/* A string with its length before it in 2 bytes; nothing is copied. */
static inline const uint8_t *take_string(struct body *b, int64_t *n) {
    *n = take(b, 2);
    return *n > 0 ? take_bytes(b, (uint64_t)*n) : NULL;
}

static inline void skip_string(struct body *b) {
    int64_t n;
    take_string(b, &n);
}

/* Tagged fields, which nobody here has a use for. */
static inline void skip_tags(struct body *b) {
    for (uint64_t left = take_varint(b); b->p && left; left--) {
        take_varint(b);
        take_bytes(b, take_varint(b));
    }
}

/* The whole batch that begins at p, of which n bytes are there: its size, 0 when it is cut. Fails when it is none. */
static inline int64_t batch_size(const uint8_t *p, int64_t n) {
    if (n < BATCH_FRONT) return 0;
    int64_t size = (int64_t)(int32_t)be32(p + BATCH_LENGTH) + BATCH_FRONT;
    if (size < BATCH_HEAD) return -1;
    return size <= n ? size : 0;
}

/* NULL, or what is wrong with a whole batch, the checksum over all of its records included. */
static inline const char *check_batch(const uint8_t *p, int64_t size) {
    int32_t count = (int32_t)be32(p + BATCH_COUNT);
    if (p[BATCH_MAGIC] != 2) return "a batch of another magic than 2";
    if (count < 1 || (int32_t)be32(p + BATCH_LAST_DELTA) != count - 1) return "a batch with a wrong number of records";
    if (be32(p + BATCH_CRC) != crc32_of(p + BATCH_ATTRIBUTES, (size_t)(size - BATCH_ATTRIBUTES)))
        return "a batch with a wrong checksum";
    return NULL;
}

#endif
