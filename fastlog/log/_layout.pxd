# What _arena.h declares: the meaning, the writer and the fate of each word stand there.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "errno.h" nogil:
    int EOWNERDEAD, ENOTRECOVERABLE


cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_trylock(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_mutex_consistent(pthread_mutex_t*)


cdef extern from "_arena.h" nogil:
    enum:
        FL_FLUSHER, FL_KEEPER, FL_ACCEPTOR, FL_COORDINATOR, FL_FIRST_PROCESSOR, FL_SUPERVISOR
        FL_STAGE_PROCESSORS, FL_STAGE_COORDINATOR, FL_STAGE_FLUSHER, FL_STAGE_KEEPER
        FL_STATE_READ_ONLY, FL_STATE_OFFLINE, FL_STATE_NO_FLUSH
        FL_WHY_START, FL_WHY_FLUSH, FL_WHY_CUT, FL_WHY_REPAIR, FL_WHY_CHECK, FL_WHY_NAME, FL_WHY_ROOM
        FL_MAX_PROCESSES, FL_NAME_BYTES, FL_COUNTERS, FL_SLOT_PAGE, FL_TABLE_WORDS, FL_CHANGES, FL_HEADER_PAGE, FL_SPARE_SLOTS
        FL_KEPT_BATCHES, FL_OWN_PRODUCERS, FL_BLOCK_PRODUCERS, FL_KEYS, FL_REFUSALS
    uint64_t FL_ARENA_MAGIC
    uint32_t FL_ARENA_VERSION
    uint64_t FL_NO_LIMIT, FL_NO_MARK, FL_NO_POSITION, FL_SEEN_ALL, FL_USED_ORIGIN_MS, FL_OTHER_REFUSALS

    ctypedef struct fl_header:
        uint64_t magic
        uint32_t version, max_partitions, table_entries, processes
        uint64_t slot_bytes, dirty_offset, cells_offset, slots_offset, total_bytes
        pthread_mutex_t create_lock
        uint64_t* changes
        uint64_t slot_count, change_count, free_count, leaving_count, deletions_wanted, create_waiters, starts_wanted, moves_lost
        uint64_t retention_generation, other_broker, stopping, ending, stalled_ns
        uint64_t producers_offset, moved_offset, producer_blocks, producer_expiry_ms, largest_producer

    ctypedef struct fl_refusal:
        uint64_t what, count

    ctypedef struct fl_cell:
        uint64_t pid, heartbeat_ns, busy_permille, connections, holding, handed_over, disk_ns, seen, incarnation
        uint64_t* counters
        uint64_t* requests
        fl_refusal* refusals

    ctypedef struct fl_end:
        uint64_t position, offset, messages
        uint64_t unindexed, index_entries, time_entries, indexed_ms, largest_ms, largest_offset

    ctypedef struct fl_sequenced:
        uint64_t end, offset
        int64_t time
        uint32_t last_sequence, delta

    ctypedef struct fl_producer:
        uint64_t n, end
        int64_t id
        int32_t epoch
        uint32_t count
        uint64_t open
        fl_sequenced* batches

    ctypedef struct fl_producer_key:
        uint64_t id, used_ms

    ctypedef struct fl_producer_block:
        fl_producer_key* keys

    ctypedef struct fl_block_owner:
        uint64_t owner, next

    ctypedef struct fl_slot:
        uint32_t partition, directory, name_bytes, format
        uint64_t created_ms, segment_bytes, roll_ms, flush_messages, flush_bytes, flush_ns, index
        uint64_t retention_ms, retention_bytes
        uint32_t max_message_bytes, append_time
        uint32_t epoch
        uint8_t* topic_id
        uint8_t* name
        pthread_mutex_t lock
        uint64_t lock_waiters
        uint64_t log_end, life, table_tail, dirty_since_ns, torn
        fl_end* log_ends
        uint64_t sequenced, blocks
        fl_producer_key* producer_keys
        uint64_t flushed_end, visible_end, last_flush_ns, flush_in_progress, dir_synced_tail, parent_synced
        uint64_t flushed_base
        fl_end* flushed_ends
        fl_end* visible_ends
        uint64_t log_start, table_head, kept_start, wanted_start, settled
        uint64_t waiters, demand, state, leaving, returns

    uint64_t fl_load(const uint64_t*)
    void fl_store(uint64_t*, uint64_t)
    void fl_fence()
    uint64_t fl_or(uint64_t*, uint64_t)
    uint64_t fl_swap(uint64_t*, uint64_t)
    void fl_take_out(uint64_t*, uint64_t, uint64_t, uint64_t)
    void fl_raise(uint64_t*, uint64_t)
    void fl_add(uint64_t*, uint64_t)
    void fl_bump(uint64_t*, uint64_t)
    void fl_refused(fl_cell*, int, int)
    uint64_t fl_monotonic_ns()
    uint64_t fl_wall_ms()
    fl_slot* fl_slot_at(fl_header*, uint64_t)
    fl_cell* fl_cell_at(fl_header*, uint64_t)
    uint64_t* fl_dirty_word(fl_header*, uint64_t)
    uint64_t fl_moved_words(const fl_header*)
    uint64_t* fl_moved_word(fl_header*, int, uint64_t)
    uint64_t* fl_base_at(fl_header*, fl_slot*, uint64_t)
    uint64_t* fl_first_ms_at(fl_header*, fl_slot*, uint64_t)
    uint64_t* fl_last_ms_at(fl_header*, fl_slot*, uint64_t)
    uint64_t* fl_start_at(fl_header*, fl_slot*, uint64_t)
    uint64_t* fl_generation_at(fl_header*, fl_slot*, uint64_t)
    fl_block_owner* fl_owner_at(fl_header*, uint64_t)
    fl_producer_block* fl_block_at(fl_header*, uint64_t)
    fl_producer_key* fl_key_at(fl_header*, fl_slot*, uint64_t)
    fl_producer* fl_producers_at(fl_header*, fl_slot*, uint64_t)
    bint fl_take_block(fl_header*, uint64_t, uint64_t)
    uint64_t fl_used_now_ms()
    bint fl_lives(const fl_slot*)
    bint fl_is_shown(const fl_slot*)
    void fl_announce(fl_header*, uint64_t)
    void fl_announce_all(fl_header*)
    int fl_changed(fl_header*, uint64_t, uint64_t*, uint64_t*)
    uint64_t fl_file_position(fl_header*, fl_slot*, uint64_t, uint64_t)
    int fl_mutex_init(pthread_mutex_t*)
    bint fl_is_reserved(int)
    void fl_wake(fl_header*, const int*, int)
    void fl_wake_taken(fl_header*, const int*, int)
    void fl_clear_wake_flag(fl_header*, int)
    void fl_wake_mask(fl_header*, const int*, uint64_t)
    void fl_ask(uint64_t*, uint64_t)
    void fl_ask_once(uint64_t*, uint64_t)
    void fl_wake_waiters(fl_header*, const int*, uint64_t*)
    void fl_wake_slot(fl_header*, const int*, fl_slot*)
    fl_end* fl_end_open(const uint64_t*, fl_end*)
    void fl_end_fill(fl_end*, const fl_end*)
    void fl_end_publish(uint64_t*, fl_end*, const fl_end*)
    const fl_end* fl_end_own(const uint64_t*, const fl_end*)
    void fl_end_read(const uint64_t*, const fl_end*, fl_end*)
    void fl_may_see(const fl_slot*, fl_end*)
    bint fl_show(fl_slot*)
    uint64_t fl_first_offset(const fl_slot*)
    bint fl_may_tell(const fl_slot*, uint64_t)
    void fl_mark_dirty(fl_header*, uint64_t)
    void fl_wake_flusher(fl_header*, const int*, uint64_t)
    void fl_set_stopping(fl_header*, const int*, uint64_t)
    void fl_clear_dirty(fl_header*, uint64_t)
    uint64_t fl_find_segment(fl_header*, fl_slot*, uint64_t, uint64_t, uint64_t)
    uint64_t fl_find_position(fl_header*, fl_slot*, uint64_t, uint64_t, uint64_t)
