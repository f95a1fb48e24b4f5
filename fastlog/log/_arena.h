/* The layout of the arena: the memory that the processes of one broker share, and nobody else maps.
 *
 *   header page | dirty bitmap | bitmaps of moved slots | process cells | slot 0 | slot 1 | ... | owners of producer blocks |
 *   producer blocks
 *
 * A slot is one partition: a page of words followed by its segment table. Every 64-bit word has one writer at a time
 * (named beside it), is stored with release and loaded with acquire order, and words of different writers lie on
 * different cache lines. A word that says "any" is changed by atomic read-modify-write alone.
 *
 * An end of a log is a position: how many bytes of the partition's stream lie before it. What belongs to that end (the
 * offset of the next message, the messages counted) is its cell: fl_end_publish and fl_end_read keep the two together.
 * Positions are of this start; on disk a place is a segment and a position in its file.
 *
 * What happens when a writer dies half-way stands beside each group.
 */
#ifndef FASTLOG_ARENA_H
#define FASTLOG_ARENA_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FL_ARENA_MAGIC 0x66617374616c6f67ULL
#define FL_ARENA_VERSION 1u
#define FL_MAX_PROCESSES 64
#define FL_NAME_BYTES 256
#define FL_LINE __attribute__((aligned(64)))
#define FL_COUNTERS 64
#define FL_KEYS 128 /* api keys of today's protocol are below */
#define FL_REFUSALS 64
#define FL_NO_MARK UINT64_MAX
#define FL_NO_POSITION UINT64_MAX
#define FL_NO_LIMIT UINT64_MAX
#define FL_CHANGES 256u /* a power of two */
#define FL_SEEN_ALL UINT64_MAX
#define FL_HEADER_PAGE 4096u
#define FL_SPARE_SLOTS 16u /* beyond those that partitions may have: what is recovered takes another slot before its own is free */

/* Fixed places in the list of processes; processors follow. Those from FL_CLEANER to FL_TLS are reserved: they have a cell,
 * and no process, eventfd or watch. The supervisor is none of those it watches: it has the last cell, for its heartbeat alone */
enum {
    FL_FLUSHER = 0,
    FL_KEEPER = 1,
    FL_ACCEPTOR = 2,
    FL_COORDINATOR = 3,
    FL_CLEANER = 4,
    FL_TLS = 5,
    FL_FIRST_PROCESSOR = 6,
    FL_SUPERVISOR = FL_MAX_PROCESSES - 1
};
static inline int fl_is_reserved(int process) { return process >= FL_CLEANER && process <= FL_TLS; }

/* The stages of a stop, each after the processes of the one before have left: who is to finish and leave. 0: serve */
enum {
    FL_STAGE_PROCESSORS = 1, /* with the acceptor */
    FL_STAGE_COORDINATOR = 2,
    FL_STAGE_FLUSHER = 3,
    FL_STAGE_KEEPER = 4,
};

/* slot state bits: once set they stay as long as the slot is alive */
enum {
    FL_STATE_READ_ONLY = 1,
    FL_STATE_OFFLINE = 2,
    FL_STATE_NO_FLUSH = 4, /* with one of the others: what is not flushed is in doubt, or damaged */
};

/* why a partition left service while the broker ran; in bits 8-15 of the state word, errno in bits 16-31 */
enum {
    FL_WHY_START = 1,   /* found damaged at start */
    FL_WHY_FLUSH = 2,   /* a flush failed */
    FL_WHY_CUT = 3,     /* cutting back a failed write failed */
    FL_WHY_REPAIR = 4,  /* repair after a dead lock owner failed */
    FL_WHY_CHECK = 5,   /* bytes read again after a lost flush are not what was written */
    FL_WHY_NAME = 6,    /* a file that holds bytes has the name of the next segment */
    FL_WHY_ROOM = 7,    /* the disk was too full at the start to make sure of its end */
};

typedef struct {
    /* written by the supervisor before the first fork, constant afterwards */
    uint64_t magic;
    uint32_t version;
    uint32_t max_partitions; /* slots, the spare ones included */
    uint32_t table_entries; /* a power of two */
    uint32_t processes;
    uint64_t slot_bytes;
    uint64_t dirty_offset;
    uint64_t cells_offset;
    uint64_t slots_offset;
    uint64_t total_bytes;

    /* the lock of partition creation and deletion; an owner that dies leaves a slot that is alive or one that is not, because
     * life is stored last, and perhaps one that was not announced: the next owner has every process look at all of them */
    pthread_mutex_t create_lock FL_LINE;

    /* holder of create_lock */
    uint64_t slot_count FL_LINE;   /* slots that were ever used */
    uint64_t change_count;         /* lives that began or ended, ever */
    uint64_t free_count;           /* slots below slot_count that can be used again, at most */
    uint64_t leaving_count;        /* slots whose partitions have gone and that are not free yet, at least */
    uint64_t changes[FL_CHANGES];  /* which slots the last ones were, change c in changes[c & (FL_CHANGES - 1)] */

    uint64_t deletions_wanted FL_LINE; /* any: grows when somebody has left a marker in a log directory by which a topic is deleted */
    uint64_t create_waiters;         /* any: processes that wait for a partition to appear or to go, or for the lock */
    uint64_t starts_wanted;          /* any: grows when somebody has wanted a partition to begin at a later offset */
    uint64_t moves_lost;             /* any: grows when slots may have moved and whoever was to say so has died */

    uint64_t retention_generation FL_LINE; /* keeper: grows when segments were unlinked */
    uint64_t other_broker; /* keeper: 1 + the id of another broker that ZooKeeper shows; 0: of none it is known */

    uint64_t stopping FL_LINE; /* supervisor: 0 serve, or a stage of the stop */
    uint64_t ending;           /* supervisor: 1 from the first moment of a stop, before the mirror and the stages above */
    uint64_t stalled_ns;       /* supervisor: monotonic time when a process was last seen to wait for a disk in a stop */

    /* written by the supervisor before the first fork, constant afterwards */
    uint64_t producers_offset FL_LINE;
    uint64_t producer_blocks;    /* how many blocks there are */
    uint64_t moved_offset;       /* the bitmaps of all processes, one behind the other */
    uint64_t producer_expiry_ms; /* after so long without a batch a producer is one that nobody knows */
    uint64_t largest_producer;   /* supervisor, then the keeper: 1 + the largest producer id met in a log that was recovered */

    uint64_t wake_flags[FL_MAX_PROCESSES] FL_LINE; /* any: 1 while the eventfd of that process holds a wake-up */
} fl_header;
_Static_assert(sizeof(fl_header) <= FL_HEADER_PAGE, "the header fits in one page");

/* An error in answers to a request of today's protocol, and how often it was answered. */
typedef struct {
    uint64_t what; /* 1 + (api key << 16 | code), written once; 0: not taken yet; FL_OTHER_REFUSALS: all that found no entry */
    uint64_t count;
} fl_refusal;
#define FL_OTHER_REFUSALS UINT64_MAX

/* One process: written by it alone, read by the supervisor, the acceptor and the keeper. A dead process leaves its last
 * values; the supervisor clears the cell before it starts a successor. */
typedef struct {
    uint64_t pid FL_LINE;
    uint64_t heartbeat_ns;  /* monotonic time of the last turn of its loop */
    uint64_t busy_permille; /* share of the last second spent outside the wait */
    uint64_t connections;   /* open ones */
    uint64_t holding;       /* 1 + slot while it holds that slot's append lock */
    uint64_t handed_over;   /* connections received so far */
    uint64_t disk_ns;       /* monotonic time when it began what it waits for a disk with; 0: it does not */
    uint64_t seen;          /* changes that it is past with all its threads: it looks at no slot as it was before them.
                             * FL_SEEN_ALL while nobody is there, and for a process that looks at no slots */
    uint64_t incarnation FL_LINE; /* supervisor: how many of these processes have died; what one of them sent or was sent is void
                                   * as soon as the word has moved on */
    uint64_t counters[FL_COUNTERS] FL_LINE;
    uint64_t requests[FL_KEYS] FL_LINE; /* of today's protocol, by api key */
    fl_refusal refusals[FL_REFUSALS] FL_LINE; /* entries are taken one after the other, for good */
} fl_cell;

/* An end of a log and what belongs to it. Two of them lie behind each word that says where an end is: the one whose position
 * the word names is in use, its writer fills the other one. From ``unindexed`` on it is of the segment that the end lies in, and
 * of formats whose segments have indexes. */
typedef struct {
    uint64_t position; /* FL_NO_POSITION while it is being filled */
    uint64_t offset;   /* of the next message */
    uint64_t messages; /* appended since the start; those of compressed sets counted */
    uint64_t unindexed;     /* bytes since the entry that the index got last */
    uint64_t index_entries; /* of its .index */
    uint64_t time_entries;  /* of its .timeindex */
    uint64_t indexed_ms;    /* the time in the last of these */
    uint64_t largest_ms;    /* 1 + the largest time of its messages; 0: none has one */
    uint64_t largest_offset; /* that of the last message of the entry that has it */
} fl_end;
#define FL_END_WORDS (sizeof(fl_end) / sizeof(uint64_t))

/* What a partition knows of a producer that numbers its batches. An entry has two of these, written by turns by the holder of the
 * append lock behind the bytes of the log and before its end is published; of those whose end the log has reached, the one
 * with the larger n counts. So a writer that dies leaves the older one whole, and repair drops the newer one: before the lock is
 * free, or the end of somebody else's append would make it count. */
#define FL_KEPT_BATCHES 5u     /* as many as a producer has under way at most */
#define FL_OWN_PRODUCERS 4u    /* entries in a slot */
#define FL_BLOCK_PRODUCERS 16u /* entries in a block of the pool */
typedef struct {
    uint64_t end;           /* the position behind it; 0: of a log that was recovered, which is flushed */
    uint64_t offset;        /* of its first record */
    int64_t time;           /* its largest time in ms */
    uint32_t last_sequence; /* the number of its last record */
    uint32_t delta;         /* its records, less one */
} fl_sequenced;
typedef struct {
    uint64_t n;   /* grows with each one that is written to an entry; 0: there is none */
    uint64_t end; /* the log end that it was written for */
    int64_t id;
    int32_t epoch;
    uint32_t count; /* batches, the newest last */
    uint64_t open;  /* 1 + the first offset of its open transaction; 0: none */
    fl_sequenced batches[FL_KEPT_BATCHES];
} fl_producer;
/* Beside the versions, so that entries are searched in few cache lines; repair makes ids agree with what counts. */
typedef struct {
    uint64_t id;      /* 1 + the producer's id; 0: the entry is free */
    uint64_t used_ms; /* when it was last needed: FL_USED_ORIGIN_MS and monotonic time */
} fl_producer_key;
#define FL_USED_ORIGIN_MS (1ull << 42) /* so that there are times before the machine was started */
typedef struct {
    fl_producer_key keys[FL_BLOCK_PRODUCERS];
    fl_producer producers[FL_BLOCK_PRODUCERS][2];
} fl_producer_block;
/* A block is one slot's alone, from the moment its owner is stored (by compare-and-swap from 0) until the slot is free again. */
typedef struct {
    uint64_t owner; /* 1 + the slot; 0: nobody's */
    uint64_t next;  /* holder of the slot's append lock: 1 + the next block of the same slot; 0: it is the last */
} fl_block_owner;

typedef struct {
    /* written before the slot is alive, constant as long as anybody may look at it: fl_cell.seen says who does */
    uint32_t partition;
    uint32_t directory; /* index of the log directory */
    uint32_t name_bytes;
    uint32_t format; /* number of the log format */
    uint64_t created_ms;
    uint64_t segment_bytes;
    uint64_t roll_ms;
    uint64_t flush_messages; /* M */
    uint64_t flush_bytes;    /* B */
    uint64_t flush_ns;       /* S */
    uint64_t index;          /* this slot's own number */
    uint64_t retention_ms;
    uint64_t retention_bytes;   /* FL_NO_LIMIT: any size */
    uint32_t max_message_bytes; /* of record batches: a batch; 0: what the broker allows */
    uint32_t append_time;       /* of record batches: 1 when records get the time of their append */
    uint32_t epoch;          /* the leader epoch that is stored in what is appended */
    uint8_t topic_id[16];    /* all zeros where the topic has none */
    uint8_t name[FL_NAME_BYTES];

    /* the append lock: robust; who gets it from a dead owner repairs first */
    pthread_mutex_t lock FL_LINE;
    uint64_t lock_waiters FL_LINE; /* any: processes to wake after an unlock */

    /* written by the holder of the append lock; a holder that dies between two of these stores leaves a log end that is
     * at most behind what it wrote, and repair cuts the file back to it */
    uint64_t log_end FL_LINE;
    fl_end log_ends[2];
    uint64_t life;           /* odd while the slot is a partition; it ends under the append lock, and nothing is appended then */
    uint64_t table_tail FL_LINE; /* entries ever published */
    uint64_t dirty_since_ns;     /* time of the append that found everything flushed */
    uint64_t torn;               /* 1 from the moment an owner was found dead until repair is done, by whoever comes */

    /* holder of the append lock, too: what fl_producer says of producers */
    uint64_t sequenced FL_LINE; /* 1 once it has, or a log that was recovered had, a batch of a producer that numbers them */
    uint64_t blocks;            /* 1 + its first block of further entries; 0: none */
    fl_producer_key producer_keys[FL_OWN_PRODUCERS];
    fl_producer producers[FL_OWN_PRODUCERS][2];

    /* written by the flusher; a flusher that dies leaves flush_in_progress set, and its successor checks and rewrites
     * [flushed_end, log_end) before it syncs */
    uint64_t flushed_end FL_LINE; /* all before it is durable: admission, checkpoints and clean markers go by it */
    fl_end flushed_ends[2];
    uint64_t visible_end FL_LINE; /* what readers go by; as fl_may_see decided last */
    fl_end visible_ends[2];
    uint64_t last_flush_ns FL_LINE; /* when the last flush that succeeded began: nothing unflushed is older than that */
    uint64_t flush_in_progress;
    uint64_t dir_synced_tail; /* table entries whose directory entries are durable */
    uint64_t parent_synced;   /* 1 once the partition directory's own entry is durable */
    uint64_t flushed_base;    /* what the flushed mark of the partition names; FL_NO_MARK when there is none */

    /* written by retention (the keeper) */
    uint64_t log_start FL_LINE; /* readers go by fl_first_offset */
    uint64_t table_head; /* entries below it are gone */
    uint64_t kept_start; /* what log-start-offset-checkpoint says, durably; 0: nothing */

    /* any, upwards only (fl_raise), by who is not past the slot's life: the offset that the log is to begin at. It holds for
     * readers at once. Who wanted it may die: the keeper writes down and carries out what stands here */
    uint64_t wanted_start FL_LINE;

    /* the coordinator: 1 once it is written down that the partition is there; whoever lists partitions for clients of today
     * leaves out the others, so that a topic is seen as a whole or not at all */
    uint64_t settled;

    /* any */
    uint64_t waiters FL_LINE; /* processes to wake when the flushed end, the visible end or the state moves */
    uint64_t demand;          /* somebody waits for a flush */
    uint64_t state FL_LINE;

    /* holder of create_lock: 1 + the change with which its life ended, until its files have gone; 0: it is alive or free. Set
     * before the life ends, so that a slot that does not live is free only when its keeper has said so */
    uint64_t leaving;
    /* holder of create_lock: 1 while the partition is recovered, and will live again here or in another slot. Until then its
     * visible part is read as before */
    uint64_t returns;
} fl_slot;

/* The tables follow the slot's page; an entry is addressed by an index that is never reused, at index & mask. It is the
 * segment's base offset, the position of its first byte, a generation (even; odd while its file is exchanged) and the times of
 * its first and last append. Sizes are not stored. */
#define FL_TABLE_WORDS 5u
#define FL_SLOT_PAGE 4096u
_Static_assert(sizeof(fl_slot) <= FL_SLOT_PAGE, "a slot's words fit in one page");
_Static_assert(sizeof(pthread_mutex_t) <= 64, "a mutex fits in one cache line");

static inline uint64_t fl_load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void fl_store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void fl_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline uint64_t fl_or(uint64_t *p, uint64_t v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
static inline uint64_t fl_and(uint64_t *p, uint64_t v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }
static inline uint64_t fl_swap(uint64_t *p, uint64_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
/* the first reason stays: what follows from it would only hide it */
static inline void fl_take_out(uint64_t *state, uint64_t bits, uint64_t why, uint64_t error) {
    uint64_t old = fl_load(state), wanted;
    do wanted = old | bits | ((old >> 8) & 0xff ? 0 : (why << 8) | (error << 16));
    while (!__atomic_compare_exchange_n(state, &old, wanted, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE));
}
static inline void fl_raise(uint64_t *p, uint64_t v) {
    uint64_t old = fl_load(p);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE));
}
/* a counter that several threads of one process add to */
static inline void fl_add(uint64_t *p, uint64_t by) { __atomic_fetch_add(p, by, __ATOMIC_RELAXED); }
/* a counter with one writer: no locked instruction needed, only an untorn store */
static inline void fl_bump(uint64_t *p, uint64_t by) { __atomic_store_n(p, *p + by, __ATOMIC_RELAXED); }

/* Count an error in an answer of the process whose cell it is, by itself. */
static inline void fl_refused(fl_cell *c, int key, int code) {
    uint64_t what = 1 + ((uint64_t)(uint16_t)key << 16 | (uint16_t)code);
    int i = 0;
    while (i < FL_REFUSALS - 1 && c->refusals[i].what != what && c->refusals[i].what != 0) i++;
    if (c->refusals[i].what == 0)
        __atomic_store_n(&c->refusals[i].what, i < FL_REFUSALS - 1 ? what : FL_OTHER_REFUSALS, __ATOMIC_RELEASE);
    fl_bump(&c->refusals[i].count, 1);
}

static inline uint64_t fl_monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t fl_wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000ull + (uint64_t)(t.tv_nsec / 1000000);
}

static inline fl_slot *fl_slot_at(fl_header *h, uint64_t i) {
    return (fl_slot *)((char *)h + h->slots_offset + i * h->slot_bytes);
}
static inline fl_cell *fl_cell_at(fl_header *h, uint64_t i) {
    return (fl_cell *)((char *)h + h->cells_offset) + i;
}
static inline uint64_t *fl_dirty_word(fl_header *h, uint64_t i) {
    return (uint64_t *)((char *)h + h->dirty_offset) + i / 64;
}
/* Of the slots that a process waited for, those that have moved since it looked: set by whoever moved one, before it wakes the
 * process, and taken by that process. A setter that dies in between is made up for by moves_lost. */
static inline uint64_t fl_moved_words(const fl_header *h) { return (h->max_partitions + 63ull) / 64; }
static inline uint64_t *fl_moved_word(fl_header *h, int process, uint64_t i) {
    return (uint64_t *)((char *)h + h->moved_offset) + (uint64_t)process * fl_moved_words(h) + i / 64;
}
static inline uint64_t *fl_table(fl_slot *s) { return (uint64_t *)((char *)s + FL_SLOT_PAGE); }
static inline uint64_t *fl_base_at(fl_header *h, fl_slot *s, uint64_t i) {
    return fl_table(s) + (i & (h->table_entries - 1));
}
static inline uint64_t *fl_first_ms_at(fl_header *h, fl_slot *s, uint64_t i) {
    return fl_table(s) + h->table_entries + (i & (h->table_entries - 1));
}
static inline uint64_t *fl_last_ms_at(fl_header *h, fl_slot *s, uint64_t i) {
    return fl_table(s) + 2ull * h->table_entries + (i & (h->table_entries - 1));
}
static inline uint64_t *fl_start_at(fl_header *h, fl_slot *s, uint64_t i) {
    return fl_table(s) + 3ull * h->table_entries + (i & (h->table_entries - 1));
}
static inline uint64_t *fl_generation_at(fl_header *h, fl_slot *s, uint64_t i) {
    return fl_table(s) + 4ull * h->table_entries + (i & (h->table_entries - 1));
}
static inline fl_block_owner *fl_owner_at(fl_header *h, uint64_t block) {
    return (fl_block_owner *)((char *)h + h->producers_offset) + block;
}
static inline fl_producer_block *fl_block_at(fl_header *h, uint64_t block) {
    return (fl_producer_block *)(fl_owner_at(h, h->producer_blocks)) + block;
}
/* Entries are numbered: those of a slot, then those of all blocks. */
static inline fl_producer_key *fl_key_at(fl_header *h, fl_slot *s, uint64_t entry) {
    if (entry < FL_OWN_PRODUCERS) return &s->producer_keys[entry];
    entry -= FL_OWN_PRODUCERS;
    return &fl_block_at(h, entry / FL_BLOCK_PRODUCERS)->keys[entry % FL_BLOCK_PRODUCERS];
}
static inline fl_producer *fl_producers_at(fl_header *h, fl_slot *s, uint64_t entry) {
    if (entry < FL_OWN_PRODUCERS) return s->producers[entry];
    entry -= FL_OWN_PRODUCERS;
    return fl_block_at(h, entry / FL_BLOCK_PRODUCERS)->producers[entry % FL_BLOCK_PRODUCERS];
}
static inline int fl_take_block(fl_header *h, uint64_t block, uint64_t slot) {
    uint64_t nobody = 0;
    return fl_load(&fl_owner_at(h, block)->owner) == 0 &&
           __atomic_compare_exchange_n(&fl_owner_at(h, block)->owner, &nobody, slot + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}
static inline uint64_t fl_used_now_ms(void) { return FL_USED_ORIGIN_MS + fl_monotonic_ns() / 1000000; }

/* THE way from a position to a place in the file of the segment that it lies in or ends. */
static inline uint64_t fl_file_position(fl_header *h, fl_slot *s, uint64_t i, uint64_t position) {
    return position - fl_load(fl_start_at(h, s, i));
}

/* A slot is used again for another partition only when every process has seen that the former one has gone. Until then its words
 * stay as they are, so that whoever found it in this turn or this job reads what was. What outlasts a turn or a job (runs, owed
 * answers) carries the life. The append lock, positions and table indexes go on over lives. */
static inline int fl_lives(const fl_slot *s) { return fl_load(&s->life) & 1; }
static inline int fl_is_shown(const fl_slot *s) { return fl_lives(s) || fl_load(&s->returns); }
static inline void fl_announce(fl_header *h, uint64_t slot) {
    fl_store(&h->changes[h->change_count & (FL_CHANGES - 1)], slot);
    fl_store(&h->change_count, h->change_count + 1);
}
/* After an owner of create_lock died: what it has changed and not announced is found by looking at all slots. They are counted
 * exactly, because whoever believes that there is room makes files before it takes a slot. */
static inline void fl_announce_all(fl_header *h) {
    uint64_t leaving = 0, unused = 0;
    for (uint64_t i = 0; i < h->slot_count; i++) {
        fl_slot *s = fl_slot_at(h, i);
        leaving += fl_load(&s->leaving) != 0;
        unused += !fl_lives(s) && !fl_load(&s->leaving);
    }
    fl_store(&h->leaving_count, leaving);
    fl_store(&h->free_count, unused);
    fl_store(&h->change_count, h->change_count + FL_CHANGES + 1);
}
/* The slots that changed since `seen`, at most FL_CHANGES of them, into out; how many, or -1: all slots are to be looked at.
 * *now is what was seen with them. */
static inline int fl_changed(fl_header *h, uint64_t seen, uint64_t *now, uint64_t *out) {
    int n = 0;
    *now = fl_load(&h->change_count);
    if (*now - seen > FL_CHANGES) return -1;
    for (uint64_t c = seen; c != *now; c++) out[n++] = fl_load(&h->changes[c & (FL_CHANGES - 1)]);
    fl_fence();
    /* one more than fits may be on its way, written before it is counted */
    return fl_load(&h->change_count) - seen >= FL_CHANGES ? -1 : n;
}

/* By the one writer of the word: move an end, whole, in three steps: open the cell that is not in use, fill it, store the
 * word. Whoever dies before the last has moved nothing. An end that does not move is not published again. */
static inline fl_end *fl_end_open(const uint64_t *word, fl_end *ends) {
    fl_end *unused = &ends[ends[0].position == *word];
    fl_store(&unused->position, FL_NO_POSITION);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return unused;
}
static inline void fl_end_fill(fl_end *unused, const fl_end *end) {
    uint64_t *to = &unused->position;
    const uint64_t *from = &end->position;
    for (size_t i = 1; i < FL_END_WORDS; i++) __atomic_store_n(to + i, from[i], __ATOMIC_RELAXED);
    fl_store(&unused->position, end->position);
}
static inline void fl_end_publish(uint64_t *word, fl_end *ends, const fl_end *end) {
    fl_end_fill(fl_end_open(word, ends), end);
    fl_store(word, end->position);
}
/* The end as its own writer knows it. */
static inline const fl_end *fl_end_own(const uint64_t *word, const fl_end *ends) {
    return &ends[ends[0].position != *word];
}
/* By anybody: an end as it was at one moment. A turn more means that it has moved twice meanwhile. */
static inline void fl_end_read(const uint64_t *word, const fl_end *ends, fl_end *out) {
    for (;;) {
        uint64_t position = fl_load(word);
        for (int i = 0; i < 2; i++) {
            if (fl_load(&ends[i].position) != position) continue;
            const uint64_t *from = &ends[i].position;
            uint64_t *to = &out->position;
            to[0] = position;
            for (size_t word = 1; word < FL_END_WORDS; word++) to[word] = __atomic_load_n(from + word, __ATOMIC_RELAXED);
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (__atomic_load_n(&ends[i].position, __ATOMIC_RELAXED) == position) return;
        }
    }
}

/* THE offset that a log begins at for its readers. */
static inline uint64_t fl_first_offset(const fl_slot *s) {
    uint64_t start = fl_load(&s->log_start), wanted = fl_load(&s->wanted_start);
    fl_end visible;
    if (__builtin_expect(wanted <= start, 1)) return start;
    fl_end_read(&s->visible_end, s->visible_ends, &visible);
    if (wanted > visible.offset) wanted = visible.offset;
    return wanted > start ? wanted : start;
}

static inline int fl_mutex_init(pthread_mutex_t *m) {
    pthread_mutexattr_t a;
    int r = pthread_mutexattr_init(&a);
    if (r) return r;
    r = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    if (!r) r = pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (!r) r = pthread_mutex_init(m, &a);
    pthread_mutexattr_destroy(&a);
    return r;
}

/* Wake one process. The flag saves the system call while an earlier wake-up has not been taken yet; the sleeper clears
 * it before it looks at the shared words (fl_wake_taken), so a wake-up is never lost. */
static inline void fl_wake(fl_header *h, const int *eventfds, int process) {
    if (fl_swap(&h->wake_flags[process], 1) == 0) {
        uint64_t one = 1;
        ssize_t r = write(eventfds[process], &one, 8);
        (void)r;
    }
}
static inline void fl_clear_wake_flag(fl_header *h, int process) {
    fl_swap(&h->wake_flags[process], 0);
    fl_fence();
}
static inline void fl_wake_taken(fl_header *h, const int *eventfds, int process) {
    uint64_t count;
    ssize_t r = read(eventfds[process], &count, 8);
    (void)r;
    fl_clear_wake_flag(h, process);
}
static inline void fl_wake_mask(fl_header *h, const int *eventfds, uint64_t mask) {
    while (mask) {
        int process = __builtin_ctzll(mask);
        mask &= mask - 1;
        fl_wake(h, eventfds, process);
    }
}
/* Before a shared word is looked at once more: ask to be woken when it changes, or for what changes it. Nothing behind
 * this is loaded before; the reverse of fl_wake_waiters. */
static inline void fl_ask(uint64_t *word, uint64_t bits) {
    fl_or(word, bits);
    fl_fence();
}
/* The same for what others may have asked for already, whose cache line it is then. */
static inline void fl_ask_once(uint64_t *word, uint64_t bits) {
    if (!(fl_load(word) & bits)) fl_or(word, bits);
    fl_fence();
}
/* After a shared word was stored: wake whoever said it waits for it. */
static inline void fl_wake_waiters(fl_header *h, const int *eventfds, uint64_t *waiters) {
    fl_fence();
    if (fl_load(waiters)) fl_wake_mask(h, eventfds, fl_swap(waiters, 0));
}
/* The same after a word of a slot was stored, and say which slot it is. The bits of waiters are taken first: whoever finds the slot
 * among the moved ones and waits again is woken by the next move. */
static inline void fl_wake_slot(fl_header *h, const int *eventfds, fl_slot *s) {
    fl_fence();
    if (!fl_load(&s->waiters)) return;
    uint64_t waiting = fl_swap(&s->waiters, 0);
    for (uint64_t mask = waiting; mask; mask &= mask - 1)
        fl_or(fl_moved_word(h, __builtin_ctzll(mask), s->index), 1ull << (s->index & 63));
    fl_wake_mask(h, eventfds, waiting);
}
/* THE place that decides how far readers may see; nothing else may conclude it from other words. Today: what is flushed. A
 * further bound (open transactions, replicas) is a smaller number here; whoever moves one calls fl_show afterwards. */
static inline void fl_may_see(const fl_slot *s, fl_end *out) { fl_end_read(&s->flushed_end, s->flushed_ends, out); }
/* By the flusher, after a word that fl_may_see reads was stored; 1 when readers see more now. What was seen stays so. */
static inline int fl_show(fl_slot *s) {
    fl_end end;
    fl_may_see(s, &end);
    if (end.position <= s->visible_end) return 0;
    fl_end_publish(&s->visible_end, s->visible_ends, &end);
    return 1;
}
/* Whether a producer that waits for the flush of what ends at this position may be answered: it is durable, and whoever is asked next
 * for the end shows it. */
static inline int fl_may_tell(const fl_slot *s, uint64_t position) {
    return fl_load(&s->visible_end) >= position && fl_load(&s->flushed_end) >= position;
}
/* After a shared word was stored: the flusher clears the bit and looks at the words again, this is the reverse. */
static inline void fl_mark_dirty(fl_header *h, uint64_t slot) {
    uint64_t *word = fl_dirty_word(h, slot), bit = 1ull << (slot & 63);
    fl_fence();
    if (!(fl_load(word) & bit)) fl_or(word, bit);
}
/* The same, and have the flusher look now: a flusher that is woken before the bit is set may find nothing and sleep on. */
static inline void fl_wake_flusher(fl_header *h, const int *eventfds, uint64_t slot) {
    fl_mark_dirty(h, slot);
    fl_wake(h, eventfds, FL_FLUSHER);
}
/* How far the stop has come, and then a wake-up for everybody: whoever slept on after it would never look. */
static inline void fl_set_stopping(fl_header *h, const int *eventfds, uint64_t stage) {
    fl_store(&h->stopping, stage);
    for (int process = 0; process < (int)h->processes; process++)
        if (!fl_is_reserved(process)) fl_wake(h, eventfds, process);
}
/* Before the words of a partition are looked at once more. */
static inline void fl_clear_dirty(fl_header *h, uint64_t slot) {
    fl_and(fl_dirty_word(h, slot), ~(1ull << (slot & 63)));
    fl_fence();
}

/* The index of the segment that holds an offset, by bisection over base offsets; tail when the table is empty. The caller
 * has read tail before and checks table_head again afterwards. */
static inline uint64_t fl_find_segment(fl_header *h, fl_slot *s, uint64_t head, uint64_t tail, uint64_t offset) {
    uint64_t low = head, high = tail;
    if (head >= tail) return tail;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (fl_load(fl_base_at(h, s, middle)) <= offset) low = middle;
        else high = middle;
    }
    return low;
}
/* The same for a position. */
static inline uint64_t fl_find_position(fl_header *h, fl_slot *s, uint64_t head, uint64_t tail, uint64_t position) {
    uint64_t low = head, high = tail;
    if (head >= tail) return tail;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (fl_load(fl_start_at(h, s, middle)) <= position) low = middle;
        else high = middle;
    }
    return low;
}

#endif
