from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef enum:
    MAX_FORMATS = 8
    FORMAT_OF_NEW = 0        # what a partition gets that is made by its first message

# Why a walk over entries ended. The numbers between are a format's own, for its reports.
cdef enum EntriesStatus:
    ENTRIES_WHOLE = 0        # the bytes end exactly at the end of an entry
    ENTRIES_CUT = 1          # the bytes end inside an entry
    ENTRIES_TOO_LARGE = 6    # an entry above the limit

# The whole and valid entries at the beginning of some bytes.
cdef struct Entries:
    uint64_t bytes           # they end here
    uint64_t count           # entries
    uint64_t compressed      # of these, those that hold others, which must be opened to be checked and counted
    uint64_t suspicious      # of these, those that look as if a codec bit were lost
    uint64_t span            # offsets that they take
    uint64_t next            # what the next one claims to have, where it is above the limit
    int64_t max_timestamp    # the largest of their times in ms, -1 where they have none
    bint misstated           # an entry says another largest time than that
    int status               # an EntriesStatus, or the format's own reason why the next one is not valid

cdef enum EntryStatus:
    ENTRY_BEGINS = 0
    ENTRY_INVALID = 1        # what stands here is no entry
    ENTRY_UNREADABLE = 2     # it is longer than what can be read

# Whose clients can read and write a log; those of the other protocol get an error.
cdef enum Clients:
    OF_KAFKA_07 = 1
    OF_KAFKA = 2
    READ_BY_KAFKA = 4        # today's clients can read it, converted (``_bridge``), and cannot write it

# The beginning of an entry.
cdef struct EntryHead:
    uint64_t bytes           # the whole entry
    uint64_t offset
    uint64_t next_offset     # the offset behind it
    int64_t max_timestamp

# What an entry says of the producer that has numbered its messages.
cdef struct Sequenced:
    int64_t producer         # its id; -1: it numbers nothing
    int32_t epoch
    uint32_t first           # numbers of the first and the last message; they begin anew at 0 behind 2^31 - 1
    uint32_t last
    uint32_t delta           # messages, less one
    int64_t time             # the largest of their times in ms
    bint in_transaction
    bint is_marker           # the end of a transaction; it has no numbers

# What compiled code asks of a log format. Functions hold no state, take no lock, and serve any process and thread.
cdef struct Format:
    const char* name
    const char* suffix       # of the names of segment files, with its dot
    int clients              # a set of Clients
    # the entries of a produced set; a message above max_message bytes ends it, unless that is negative
    void (*validate)(const uint8_t* p, uint64_t n, int64_t max_message, Entries* out) noexcept nogil
    # the entries of stored bytes
    void (*scan)(const uint8_t* p, uint64_t n, Entries* out) noexcept nogil
    # where in a segment with this base offset the entry of an offset begins: a position in its file. NULL where entries have
    # to be walked to find it (``_index``), by ``head``
    uint64_t (*locate)(uint64_t base, uint64_t offset) noexcept nogil
    # what the first ``head_bytes`` bytes of an entry say; whether they can be those of one
    bint (*head)(const uint8_t* p, EntryHead* out) noexcept nogil
    uint64_t head_bytes
    # under the append lock, before entries are written: say in them which offsets they get. NULL where they do not hold them
    void (*assign)(uint8_t* p, uint64_t n, uint64_t offset, uint32_t epoch) noexcept nogil
    # by whom the entry at p is numbered, for formats with ``assign``
    void (*sequenced)(const uint8_t* p, Sequenced* out) noexcept nogil
    # whether an entry begins at p, of which `have` bytes were read; `available` belong to the log, `readable` can be read
    int (*begins)(const uint8_t* p, uint64_t have, uint64_t available, uint64_t readable) noexcept nogil

# The format of a slot; NULL for a number that none has.
cdef const Format* format_of(uint32_t number) noexcept nogil
# Give a format the next number; the struct must stay. LogError when there is one of this name, or no room.
cdef int add_format(const Format* added) except -1
