/* Milliseconds since 1970, for whoever needs them for every message.

To ask the system's clock costs as much as all else that is done with a small record. So the processor's own counter is
read, which is several times as quick, and the clock again once that says that another millisecond has begun. What the
counter is worth is measured against the monotonic clock all the time; where it runs backwards, jumps, or is not known well
enough, the clock is asked. A step of the clock shows within a millisecond. Guarded by the GIL. */
#ifndef FASTLOG_WALL_CLOCK_H
#define FASTLOG_WALL_CLOCK_H
#include <stdint.h>
#include <time.h>

#define FL_MILLISECOND_NS 1000000
#define FL_LEAST_GAP_NS 10000000        /* between the two looks that measure the counter */
#define FL_MOST_GAP_NS 10000000000      /* behind a longer one it is measured anew: the machine may have slept */
#define FL_LEAST_GAPS 64                /* as many times as long as both looks together is the gap, ... */
#define FL_LEAST_RATE (1.0 - 1.0 / FL_LEAST_GAPS) /* ... so that the counter is at least so many times as quick as measured */

struct fl_wall_clock {
    int64_t ms;                         /* what holds ... */
    uint64_t from, length;              /* ... for so many counts from there on; 0: no longer */
    uint64_t counted;                   /* when the counter was looked at last to measure it, ... */
    uint64_t doubt;                     /* ... between which counts, ... */
    int64_t counted_ns;                 /* ... and then, on the monotonic clock; 0: never */
    double per_ns;                      /* counts in a nanosecond; 0: not known */
};

static inline uint64_t fl_count(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t count;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
#else
    return 0;
#endif
}

/* What the clocks showed between two counts: measure the counter, and note for how long the millisecond holds. It may be
taken for over too early, as both clocks are read behind `before` and the counter may be slower than measured. */
static int64_t fl_note_time(struct fl_wall_clock *clock, uint64_t before, uint64_t after, int64_t wall_ns, int64_t ns) {
    int64_t gap = ns - clock->counted_ns;
    uint64_t counts = before - clock->counted, doubt = after - before;
    int is_over = clock->counted_ns == 0 || gap < 0 || gap > FL_MOST_GAP_NS || before <= clock->counted;
    int is_exact = !is_over && after >= before && doubt + clock->doubt < counts / FL_LEAST_GAPS;
    if (is_over)
        clock->per_ns = 0;
    else if (gap >= FL_LEAST_GAP_NS && is_exact)
        clock->per_ns = (double)counts / (double)gap;
    if (is_over || gap >= FL_LEAST_GAP_NS)
        clock->counted = before, clock->doubt = doubt, clock->counted_ns = ns;
    clock->ms = wall_ns / FL_MILLISECOND_NS;
    clock->from = before;
    clock->length = (uint64_t)((double)(FL_MILLISECOND_NS - wall_ns % FL_MILLISECOND_NS) * clock->per_ns * FL_LEAST_RATE);
    return clock->ms;
}

static int64_t fl_look_at_clock(struct fl_wall_clock *clock) {
    struct timespec wall, monotonic;
    uint64_t before = fl_count();
    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    return fl_note_time(clock, before, fl_count(), wall.tv_sec * INT64_C(1000000000) + wall.tv_nsec,
                        monotonic.tv_sec * INT64_C(1000000000) + monotonic.tv_nsec);
}

static inline int fl_still_holds(const struct fl_wall_clock *clock, uint64_t count) {
    return count - clock->from < clock->length;
}

static inline int64_t fl_now_ms(struct fl_wall_clock *clock) {
    return fl_still_holds(clock, fl_count()) ? clock->ms : fl_look_at_clock(clock);
}
#endif
