/* Big-endian integers and the CRC-32 of zlib, for loadgen.c alone. */
#ifndef PERF_CEILING_BYTES_H
#define PERF_CEILING_BYTES_H

#include <arpa/inet.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint8_t *put(uint8_t *p, int bytes, int64_t value) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) p[i] = (uint8_t)value;
    return p + bytes;
}

static int64_t get(const uint8_t *p, int bytes) {
    int64_t value = (int8_t)p[0];
    for (int i = 1; i < bytes; i++) value = (int64_t)((uint64_t)value << 8 | p[i]);
    return value;
}

static inline uint32_t be32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return ntohl(value);
}

static uint32_t crc_table[8][256];

static void crc_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        crc_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            crc_table[t][i] = crc_table[t - 1][i] >> 8 ^ crc_table[0][crc_table[t - 1][i] & 255];
}

/* Eight bytes a step (little-endian loads, as on every machine this measures). */
static uint32_t crc32_of(const uint8_t *p, size_t n) {
    uint32_t c = ~0u, a, b;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&a, p, 4);
        memcpy(&b, p + 4, 4);
        a ^= c;
        c = crc_table[7][a & 255] ^ crc_table[6][a >> 8 & 255] ^ crc_table[5][a >> 16 & 255] ^ crc_table[4][a >> 24] ^
            crc_table[3][b & 255] ^ crc_table[2][b >> 8 & 255] ^ crc_table[1][b >> 16 & 255] ^ crc_table[0][b >> 24];
    }
    while (n--) c = c >> 8 ^ crc_table[0][(c ^ *p++) & 255];
    return ~c;
}

#endif
