/* Big-endian integers and zlib's CRC-32, for the C programs of the measurements. */
#ifndef PERF_CEILING_BYTES_H
#define PERF_CEILING_BYTES_H

#include <arpa/inet.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The broker's and the clients' own: a ceiling with a slower checksum would be too low. */
#include "../../fastlog/_crc_fold.h"

static inline uint8_t *put(uint8_t *p, int bytes, int64_t value) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) p[i] = (uint8_t)value;
    return p + bytes;
}

static inline int64_t get(const uint8_t *p, int bytes) {
    int64_t value = (int8_t)p[0];
    for (int i = 1; i < bytes; i++) value = (int64_t)((uint64_t)value << 8 | p[i]);
    return value;
}

static inline uint32_t be32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return ntohl(value);
}

static crc_function crc_fastest;
static const char *crc_fastest_name;

static inline void crc_prepare(void) {
    crc_setup();
    crc_fastest = crc_choice(0, &crc_fastest_name);
}

static inline uint32_t crc32_of(const uint8_t *p, size_t n) { return crc_fastest(0, p, n); }

#endif
