/* A bit-reflected CRC of 32 bits of a span of bytes, three ways, the fastest of which is chosen at run time. The polynomial G
   is zlib's unless another one is defined, with the two numbers that follow from it, before this is included.

   portable   slicing by 8: eight table look-ups for eight bytes
   pclmul     carry-less multiplication, 16 bytes at a time
   avx512     the same arithmetic, 64 bytes at a time

   The arithmetic of the last two. Bytes are a polynomial over GF(2), the first bit the highest power; the CRC is that
   polynomial times x^32, modulo G. A block that lies d bits before the end of the span counts x^d times as much as the
   last one, and may be replaced by anything congruent to it: its two 64-bit halves are multiplied by x^(d+64) mod G and
   x^d mod G, which moves it into the last block's place. All blocks are xored together there, and 128 bits are
   left to be divided by G. In the reflected order a 64x64-bit product comes out one power too low, so that
   every multiplier below carries one power of x less than the text says.

   A span need not be whole blocks: zeros in front of it change nothing, so the FIRST block is the short one, filled up
   with zeros at its front. The starting value is xored into the span's first four bytes; when the first
   block has fewer than four of them, the rest of it spills into the second one.

   Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009. */

#ifndef FASTLOG_CRC_FOLD_H
#define FASTLOG_CRC_FOLD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9))
#define CRC_HAS_FOLDING 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define CRC_HAS_FOLDING 0
#endif

#ifndef CRC_POLYNOMIAL
#define CRC_POLYNOMIAL 0xEDB88320u        /* G without x^32, reflected */
#define CRC_FOLD_96 0xCCAA009E            /* x^95 mod G, reflected */
#define CRC_QUOTIENT 0xB4E5B025F7011641   /* floor(x^96 / G), reflected */
#endif

/* Takes and returns the finished CRC (0 for no bytes), as zlib does; p may be NULL when n is 0. */
typedef uint32_t (*crc_function)(uint32_t crc, const uint8_t *p, size_t n);

/* ---------------------------------------------------------------- portable */

static uint32_t crc_table[8][256]; /* [k][b]: what byte b does when k more bytes follow it in its group of eight */

static void crc_setup_portable(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? CRC_POLYNOMIAL : 0);
        crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++)
            crc_table[k][byte] = (crc_table[k - 1][byte] >> 8) ^ crc_table[0][crc_table[k - 1][byte] & 0xFF];
}

static uint32_t crc_portable(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = crc_table[7][crc & 0xFF] ^ crc_table[6][crc >> 8 & 0xFF] ^ crc_table[5][crc >> 16 & 0xFF] ^
              crc_table[4][crc >> 24] ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
              crc_table[0][p[7]];
    }
    for (; n > 0; n--, p++)
        crc = (crc >> 8) ^ crc_table[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

#if CRC_HAS_FOLDING

/* ------------------------------------------------------------------ pclmul */

#define CRC_PCLMUL __attribute__((target("pclmul,sse4.1")))
#define CRC_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define CRC_BLOCKS 32 /* distances the table knows: a first block of avx512 lies up to 7 * 4 + 3 blocks from the last */

/* [d]: the two multipliers that move a block d blocks (of 128 bits) ahead; [0] stays 0. */
static uint64_t crc_ahead[CRC_BLOCKS][2] __attribute__((aligned(16)));

/* A window of 16 bytes at [m] makes a shuffle that moves the first m bytes to the end and puts zeros in front; at
   [16 + m], one that drops the first m bytes. */
static uint8_t crc_shuffle[48] __attribute__((aligned(16)));

/* x^power mod G, reflected into 64 bits. */
static uint64_t crc_power(unsigned power) {
    uint32_t residue = 0x80000000u; /* x^0 */
    while (power--)
        residue = (residue >> 1) ^ ((residue & 1) ? CRC_POLYNOMIAL : 0);
    return (uint64_t)residue << 32;
}

static inline uint64_t crc_load8(const uint8_t *p) {
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline uint32_t crc_load4(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

CRC_PCLMUL static inline __m128i crc_move(__m128i block, __m128i multipliers) {
    return _mm_xor_si128(_mm_clmulepi64_si128(block, multipliers, 0x00),
                         _mm_clmulepi64_si128(block, multipliers, 0x11));
}

CRC_PCLMUL static inline __m128i crc_move_ahead(__m128i block, size_t blocks) {
    return crc_move(block, _mm_load_si128((const __m128i *)crc_ahead[blocks]));
}

/* block * x^32 mod G. First 128 bits become 96 (with x^96 mod G), written one lane up so that the upper 64 of them
   fill the low half; then Barrett's division: the quotient from floor(x^96 / G), and the remainder in lane 2. */
CRC_PCLMUL static inline uint32_t crc_divide(__m128i block) {
    const __m128i fold_96 = _mm_cvtsi64_si128(CRC_FOLD_96);
    const __m128i barrett = _mm_set_epi64x((long long)CRC_POLYNOMIAL << 1 | 1, (long long)CRC_QUOTIENT);
    __m128i value = _mm_xor_si128(_mm_clmulepi64_si128(block, fold_96, 0x00), _mm_srli_si128(block, 8));
    __m128i quotient = _mm_clmulepi64_si128(value, barrett, 0x00);
    __m128i multiple = _mm_clmulepi64_si128(quotient, barrett, 0x10);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(value, multiple), 2);
}

/* Fewer than 16 bytes, without reading outside them: two loads that overlap, put at the end of one block.
   ``state`` is the complement of a CRC, here and below. */
CRC_PCLMUL static inline uint32_t crc_short(uint32_t state, const uint8_t *p, size_t n) {
    if (n >= 8) {
        uint64_t front = crc_load8(p) ^ state;
        uint64_t back = crc_load8(p + n - 8) ^ ((uint64_t)state >> (8 * (n - 8)));
        front = (front << (120 - 8 * n)) << 8; /* the bytes before ``back``; in two steps: 64 in one is undefined */
        return crc_divide(_mm_set_epi64x((long long)back, (long long)front));
    }
    if (n >= 4) {
        uint64_t word = (crc_load4(p) | (uint64_t)crc_load4(p + n - 4) << (8 * (n - 4))) ^ state;
        return crc_divide(_mm_set_epi64x((long long)(word << (64 - 8 * n)), 0));
    }
    if (n == 0)
        return state;
    uint32_t word = p[0] | (uint32_t)p[n / 2] << (8 * (n / 2)) | (uint32_t)p[n - 1] << (8 * (n - 1));
    uint64_t block = (uint64_t)(word ^ state) << (64 - 8 * n);
    return crc_divide(_mm_set_epi64x((long long)block, 0)) ^ (state >> (8 * n));
}

CRC_PCLMUL static uint32_t crc_pclmul(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 16)
        return ~crc_short(~crc, p, n);
    const size_t first_bytes = (n - 1) % 16 + 1;
    const __m128i state = _mm_cvtsi32_si128((int)~crc);
    const __m128i first =
        _mm_shuffle_epi8(_mm_xor_si128(CRC_LOAD(p), state), CRC_LOAD(crc_shuffle + first_bytes));
    size_t left = (n - first_bytes) / 16; /* blocks not loaded yet */
    if (left == 0)
        return ~crc_divide(first);
    p += first_bytes;
    const __m128i spill = _mm_shuffle_epi8(state, CRC_LOAD(crc_shuffle + 16 + first_bytes));
    const __m128i second = _mm_xor_si128(CRC_LOAD(p), spill);
    p += 16;
    left--;
    __m128i sum, last; /* what was moved onto the last block so far; the block loaded last */
    if (left < 2) {
        sum = crc_move_ahead(first, left + 1);
        last = second;
    } else {
        /* Four independent chains hide the latency of the multiplication. */
        const __m128i four_ahead = _mm_load_si128((const __m128i *)crc_ahead[4]);
        __m128i a = first, b = second, c = CRC_LOAD(p), d = CRC_LOAD(p + 16);
        for (p += 32, left -= 2; left >= 4; p += 64, left -= 4) {
            a = _mm_xor_si128(crc_move(a, four_ahead), CRC_LOAD(p));
            b = _mm_xor_si128(crc_move(b, four_ahead), CRC_LOAD(p + 16));
            c = _mm_xor_si128(crc_move(c, four_ahead), CRC_LOAD(p + 32));
            d = _mm_xor_si128(crc_move(d, four_ahead), CRC_LOAD(p + 48));
        }
        sum = _mm_xor_si128(_mm_xor_si128(crc_move_ahead(a, left + 3), crc_move_ahead(b, left + 2)),
                            crc_move_ahead(c, left + 1));
        last = d;
    }
    for (; left > 0; p += 16, left--) {
        sum = _mm_xor_si128(sum, crc_move_ahead(last, left));
        last = CRC_LOAD(p);
    }
    return ~crc_divide(_mm_xor_si128(sum, last));
}

/* ------------------------------------------------------------------ avx512 */

#define CRC_AVX512 __attribute__((target("pclmul,sse4.1,avx512f,avx512bw,vpclmulqdq")))
#define CRC_WIDE_BLOCKS (CRC_BLOCKS / 4)

/* [d][lane]: multipliers for the four blocks of a wide block d wide blocks before the last: each lane goes straight to
   the place of the last block of all. The last lane of [0] is there already: its multipliers are 0, it is xored in. */
static uint64_t crc_wide_ahead[CRC_WIDE_BLOCKS][4][2] __attribute__((aligned(64)));

/* 64 bytes from [m]: a mask of the starting value's bytes in a first block of m bytes; from [64 + m]: in the second. */
static uint8_t crc_state_mask[192] __attribute__((aligned(64)));

CRC_AVX512 static inline __m512i crc_wide_move(__m512i block, __m512i multipliers) {
    return _mm512_xor_si512(_mm512_clmulepi64_epi128(block, multipliers, 0x00),
                            _mm512_clmulepi64_epi128(block, multipliers, 0x11));
}

CRC_AVX512 static inline __m512i crc_wide_move_ahead(__m512i block, size_t blocks) {
    return crc_wide_move(block, _mm512_load_si512(crc_wide_ahead[blocks]));
}

CRC_AVX512 static uint32_t crc_avx512(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 16)
        return ~crc_short(~crc, p, n);
    const size_t first_bytes = (n - 1) % 64 + 1;
    /* Turned so that repeating it over the block puts its bytes in order from the first byte of the span on. */
    const uint64_t twice = (uint64_t)~crc << 32 | (uint32_t)~crc;
    const __m512i state = _mm512_set1_epi32((int)(uint32_t)(twice >> (8 * (first_bytes % 4))));
    /* Bytes in front of p are masked out of the load, and a masked byte cannot fault. */
    const uint8_t *before = (const uint8_t *)((uintptr_t)p - (64 - first_bytes));
    __m512i last = _mm512_maskz_loadu_epi8(~UINT64_C(0) << (64 - first_bytes), before);
    last = _mm512_xor_si512(last, _mm512_and_si512(state, _mm512_loadu_si512(crc_state_mask + first_bytes)));
    size_t left = (n - first_bytes) / 64; /* wide blocks not loaded yet */
    p += first_bytes;
    __m512i sum = _mm512_setzero_si512();
    if (left > 0) {
        const __m512i spill = _mm512_and_si512(state, _mm512_loadu_si512(crc_state_mask + 64 + first_bytes));
        const __m512i second = _mm512_xor_si512(_mm512_loadu_si512(p), spill);
        p += 64;
        left--;
        if (left < CRC_WIDE_BLOCKS - 1) {
            sum = crc_wide_move_ahead(last, left + 1);
            last = second;
        } else {
            const __m512i four_ahead = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)crc_ahead[16]));
            __m512i a = last, b = second, c = _mm512_loadu_si512(p), d = _mm512_loadu_si512(p + 64);
            for (p += 128, left -= 2; left >= 4; p += 256, left -= 4) {
                a = _mm512_xor_si512(crc_wide_move(a, four_ahead), _mm512_loadu_si512(p));
                b = _mm512_xor_si512(crc_wide_move(b, four_ahead), _mm512_loadu_si512(p + 64));
                c = _mm512_xor_si512(crc_wide_move(c, four_ahead), _mm512_loadu_si512(p + 128));
                d = _mm512_xor_si512(crc_wide_move(d, four_ahead), _mm512_loadu_si512(p + 192));
            }
            sum = _mm512_xor_si512(_mm512_xor_si512(crc_wide_move_ahead(a, left + 3), crc_wide_move_ahead(b, left + 2)),
                                   crc_wide_move_ahead(c, left + 1));
            last = d;
        }
        for (; left > 0; p += 64, left--) {
            sum = _mm512_xor_si512(sum, crc_wide_move_ahead(last, left));
            last = _mm512_loadu_si512(p);
        }
    }
    sum = _mm512_xor_si512(sum, crc_wide_move_ahead(last, 0));
    sum = _mm512_xor_si512(sum, _mm512_maskz_mov_epi64(0xC0, last));
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    return ~crc_divide(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

static void crc_setup_folding(void) {
    for (unsigned d = 1; d < CRC_BLOCKS; d++) {
        crc_ahead[d][0] = crc_power(128 * d + 63);
        crc_ahead[d][1] = crc_power(128 * d - 1);
    }
    for (unsigned d = 0; d < CRC_WIDE_BLOCKS; d++)
        for (unsigned lane = 0; lane < 4; lane++)
            memcpy(crc_wide_ahead[d][lane], crc_ahead[4 * d + 3 - lane], sizeof crc_ahead[0]);
    memset(crc_shuffle, 0x80, sizeof crc_shuffle);
    for (uint8_t i = 0; i < 16; i++)
        crc_shuffle[16 + i] = i;
    memset(crc_state_mask + 64, 0xFF, 4);
}

#endif /* CRC_HAS_FOLDING */

/* --------------------------------------------------------------- the choice */

#if CRC_HAS_FOLDING
static int crc_width; /* of crc_cpu_width(), once: the instruction that asks leaves a virtual machine, for microseconds */

/* How many bits are folded at once by the instructions that this CPU has and the system keeps registers of: 512, 128 or 0. The CPU itself is
   asked, because __builtin_cpu_supports says no to everything where a compiler's runtime lacks what fills its table, as Zig's does. */
static int crc_cpu_width(void) {
    const unsigned zmm_kept = 0xE6; /* of XCR0: SSE, AVX, and the three parts of AVX-512 */
    unsigned a, b, c, d, kept = 0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_PCLMUL) || !(c & bit_SSE4_1))
        return 0;
    if (c & bit_OSXSAVE)
        __asm__ volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    if ((kept & zmm_kept) != zmm_kept || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 128;
    return (b & bit_AVX512F) && (b & bit_AVX512BW) && (c & bit_VPCLMULQDQ) ? 512 : 128;
}
#endif

/* Fill the tables; must have returned before anything else here is called. */
static void crc_setup(void) {
    crc_setup_portable();
#if CRC_HAS_FOLDING
    crc_setup_folding();
    crc_width = crc_cpu_width();
#endif
}

/* The n-th way this CPU can go, fastest first, and its name; NULL when there are not so many. */
static crc_function crc_choice(int n, const char **name) {
#if CRC_HAS_FOLDING
    if (crc_width >= 512 && n-- == 0)
        return *name = "avx512", crc_avx512;
    if (crc_width >= 128 && n-- == 0)
        return *name = "pclmul", crc_pclmul;
#endif
    return n == 0 ? (*name = "portable", crc_portable) : NULL;
}

#endif
