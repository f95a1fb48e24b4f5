/* Stands between compiled modules and the allocator, counts what each place in their code asks for, and refuses it to one
 * of them. tests/harness/memory_shim.py builds it, has it loaded first (LD_PRELOAD) and calls what begins with memory_;
 * a place is the address behind the call. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

enum { RANGES = 64, PLACES = 512 };

static struct { uintptr_t begin, end; } ranges[RANGES];
static atomic_int range_count;
static atomic_uintptr_t places[PLACES];
static atomic_int calls[PLACES];
static atomic_int refused_place = -1;
static atomic_int refused_calls, left; /* since memory_refuse, and still to come */

/* Whether this call is refused. A place that the table has no room for is not counted, and never refused. */
static int refuses(uintptr_t caller) {
    int i, count = atomic_load(&range_count);
    for (i = 0; i < count && (caller < ranges[i].begin || caller >= ranges[i].end); i++) {}
    if (i == count) return 0;
    for (i = 0; i < PLACES; i++) {
        uintptr_t empty = 0;
        if (atomic_load(&places[i]) == caller) break;
        if (atomic_compare_exchange_strong(&places[i], &empty, caller) || empty == caller) break;
    }
    if (i == PLACES) return 0;
    atomic_fetch_add(&calls[i], 1);
    if (atomic_load(&refused_place) != i || atomic_fetch_sub(&left, 1) <= 0) return 0;
    atomic_fetch_add(&refused_calls, 1);
    errno = ENOMEM;
    return 1;
}

#define CALLER ((uintptr_t)__builtin_return_address(0))

void *malloc(size_t size) { return refuses(CALLER) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return refuses(CALLER) ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return refuses(CALLER) ? NULL : __libc_realloc(old, size); }

int memory_watch(uintptr_t begin, uintptr_t end) {
    int i = atomic_load(&range_count);
    if (i == RANGES) return -1;
    ranges[i].begin = begin;
    ranges[i].end = end;
    atomic_store(&range_count, i + 1);
    return 0;
}

uintptr_t memory_place(int i) { return i < PLACES ? atomic_load(&places[i]) : 0; }

int memory_calls(int i) { return atomic_load(&calls[i]); }

/* Refuse the next calls of a place, so many of them. */
void memory_refuse(int i, int count) {
    atomic_store(&left, 0);
    atomic_store(&refused_calls, 0);
    atomic_store(&refused_place, i);
    atomic_store(&left, count);
}

int memory_refused(void) { return atomic_load(&refused_calls); }
