"""The arena: the memory that the processes of one broker share; see ``_arena.h`` for the layout and the writers."""

from collections.abc import Sequence
from typing import Final, NamedTuple

COUNTERS: Final[tuple[str, ...]]
FLUSH_BUCKETS_US: Final[tuple[int, ...]]
"""Flushes that took up to so many microseconds, and longer than the one before says, have a counter each."""
FLUSHER: Final[int]
KEEPER: Final[int]
ACCEPTOR: Final[int]
COORDINATOR: Final[int]
STAGE_PROCESSORS: Final[int]
STAGE_COORDINATOR: Final[int]
STAGE_FLUSHER: Final[int]
STAGE_KEEPER: Final[int]
FIRST_PROCESSOR: Final[int]
SUPERVISOR: Final[int]
MAX_PROCESSORS: Final[int]
STATE_READ_ONLY: Final[int]
STATE_OFFLINE: Final[int]
STATE_NO_FLUSH: Final[int]
WHY_START: Final[int]
WHY_NAME: Final[int]
WHY_ROOM: Final[int]

class SlotView(NamedTuple):
    """What one partition's slot said at one moment; words of different writers may be a moment apart.

    ``*_end`` are positions, with the offset and the count of messages that belong to each; starts are offsets:
    ``log_start`` where readers begin, ``kept_start`` what is written down of it, ``wanted_start`` what is to be.
    """

    index: int  # type: ignore[assignment]
    life: int
    topic: str
    partition: int
    directory: int
    format: int
    created_ms: int
    log_start: int
    flushed_end: int
    flushed_offset: int
    visible_end: int
    visible_offset: int
    log_end: int
    log_offset: int
    state: int
    table_head: int
    table_tail: int
    appended_messages: int
    flushed_messages: int
    dir_synced_tail: int
    unflushed_since_ns: int
    """Monotonic time; nothing above the flushed end is older. Says nothing where all is flushed."""
    epoch: int
    topic_id: bytes
    """16 bytes, all zeros where the topic has none."""
    retention_ms: int
    retention_bytes: int | None
    max_message_bytes: int
    """Of record batches: of one batch; 0: what the broker allows."""
    append_time: bool
    """Of record batches: records get the time of their append."""
    kept_start: int
    wanted_start: int
    settled: bool
    """It is written down that the partition is there: clients of today are told of it."""

class IndexState(NamedTuple):
    """What the end of a log says of the newest segment's indexes; the words stand in ``fl_end`` (``_arena.h``).

    ``indexed_ms`` and ``largest_ms`` are a time plus 1, 0 where there is none.
    """

    unindexed: int = 0
    index_entries: int = 0
    time_entries: int = 0
    indexed_ms: int = 0
    largest_ms: int = 0
    largest_offset: int = 0

class Numbered(NamedTuple):
    """A batch that its producer has numbered: last number, offset of its first record, records less one, time."""

    last_sequence: int
    offset: int
    delta: int
    time_ms: int

class ProducerState(NamedTuple):
    """What a partition knows of a producer: its last batches, oldest first, how long ago it was heard of, and where
    its open transaction begins."""

    id: int
    epoch: int
    batches: tuple[Numbered, ...]
    age_ms: int = 0
    open_offset: int | None = None

PRODUCER_BLOCKS: Final[int]
PRODUCER_EXPIRY_MS: Final[int]

class SlotSettings(NamedTuple):
    """What the configuration of its topic says of a partition; it may change while the partition is there."""

    segment_bytes: int
    roll_ms: int
    flush_messages: int
    flush_bytes: int
    flush_ns: int
    retention_ms: int
    retention_bytes: int | None
    max_message_bytes: int
    append_time: bool

class SlotSpec(NamedTuple):
    """What a new slot is made of: the partition, where it lies, its segments, its limits."""

    topic: str
    partition: int
    directory: int
    format: int
    created_ms: int
    segment_bytes: int
    roll_ms: int
    flush_messages: int
    flush_bytes: int
    flush_ns: int
    segments: list[tuple[int, int, int]]
    log_end: int
    state: int = 0
    durable: bool = True
    flushed_base: int | None = None
    starts: list[int] | None = None
    indexes: IndexState = ...
    epoch: int = 0
    topic_id: bytes = ...
    retention_ms: int = ...
    retention_bytes: int | None = None
    max_message_bytes: int = 0
    append_time: bool = False
    producers: tuple[ProducerState, ...] = ()
    log_start: int = 0
    """What is written down; the log begins there, or at its first segment where that is later."""
    settled: bool = True
    """It is written down that the partition is there, or nobody writes that down."""

class Leaving(NamedTuple):
    """A partition that has gone, whose files may still be there."""

    index: int  # type: ignore[assignment]
    topic: str
    partition: int
    directory: int

class Segment(NamedTuple):
    """One entry of a segment table: index (never reused), base offset, times of its first and last append, position.

    While it is empty, the last time is 0 and the first one that of its making (0: unknown). ``start`` is the position
    of its first byte: what lies between two of them, or one and an end, are bytes of its file.
    """

    index: int  # type: ignore[assignment]
    base: int
    first_ms: int
    last_ms: int
    start: int

class Arena:
    """The shared memory of one broker. Made once by the supervisor; every child inherits it through fork."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        processes: int,
        max_partitions: int,
        table_entries: int,
        producer_blocks: int = ...,
        producer_expiry_ms: int = ...,
    ) -> None:
        """Map a new arena; ``table_entries`` is rounded up to a power of two.

        All partitions share ``producer_blocks`` blocks of 16 entries for producers that number their batches; after
        ``producer_expiry_ms`` without a batch such a producer is one that nobody knows.

        Raises:
            LogError: the kernel gives no memory, or the system has no robust mutexes.
        """

    @property
    def log_dirs(self) -> list[str]: ...
    @property
    def processes(self) -> int: ...
    @property
    def max_partitions(self) -> int: ...
    @property
    def slots(self) -> int:
        """Of all partitions there may be, and some for those that are recovered."""

    @property
    def table_entries(self) -> int: ...
    @property
    def slot_count(self) -> int: ...
    @property
    def retention_generation(self) -> int: ...
    @property
    def other_broker(self) -> int | None:
        """The id of another broker that ZooKeeper shows beside this one; None where it shows none."""

    def set_other_broker(self, broker: int | None) -> None:
        """Say that ZooKeeper shows another broker, by its id, or None; the keeper alone calls it."""

    @property
    def stopping(self) -> int: ...
    def set_stopping(self, stage: int) -> None:
        """Say how far the stop has come: one of the ``STAGE_`` numbers, whose processes finish and leave."""

    @property
    def ending(self) -> bool:
        """Whether the broker stops: True from the first moment on, while ``stopping`` may still be 0."""

    def set_ending(self) -> None:
        """Say that the stop begins (the supervisor, once)."""

    def set_stalled(self, now_ns: int) -> None:
        """Say that a stop waits for a disk, now (the supervisor): the time of the processors' last call begins anew."""

    def eventfd(self, process: int) -> int:
        """The descriptor that becomes readable when ``process`` is woken."""

    def wake(self, process: int) -> None: ...
    def wake_all(self) -> None: ...
    def wake_taken(self, process: int) -> None:
        """Take the wake-ups of ``process`` (itself); call it before looking at the shared words."""

    def create_lock(self) -> bool:
        """Try for the lock of partition creation; True when held. A dead owner's lock is taken over."""

    def create_unlock(self) -> None: ...
    def wake_creators(self) -> None:
        """Wake whoever waits for a partition to appear or to go."""

    def wait_for_creation(self, process: int) -> None:
        """Ask to be woken when the creation lock is released or a partition appears; look again afterwards."""

    @property
    def room(self) -> int:
        """How many partitions more there are slots for, at most; the creation lock makes it exact."""

    def add(self, spec: SlotSpec, spare: bool = False, like: int | None = None) -> int:
        """Write a partition into a slot and publish it; the caller holds the creation lock. Returns the slot's index.

        ``spare``: one of the spare slots may be taken, for a partition whose own slot is free soon. ``like``: the slot
        whose settings hold, instead of those of ``spec``.

        Raises:
            LogError: every slot is taken, or the partition has more segments than a table holds.
        """

    @property
    def producer_blocks_taken(self) -> int:
        """How many blocks of the pool are some slot's."""

    @property
    def largest_producer(self) -> int:
        """The largest producer id that was met in a log which was recovered; -1: none."""

    def meet_producer(self, producer: int) -> None:
        """Such an id was met; by the supervisor before it forks, then by the keeper alone."""

    def producers(self, index: int) -> list[ProducerState]:
        """What one slot says of producers, by id; for tests, while nobody appends."""

    def producer_ends(self, index: int) -> dict[int, list[int]]:
        """The positions behind the batches that ``producers`` tells of, by producer; for tests."""

    def sequenced(self, index: int) -> bool:
        """Whether the log of a slot has batches of producers that number them, as far as that is known."""

    @property
    def change_count(self) -> int:
        """How many lives of slots have begun or ended so far."""

    def changed(self, seen: int) -> tuple[int, list[int] | None]:
        """``(change_count, slots whose lives began or ended since)`` it was ``seen``; None: any slot may have."""

    def see(self, process: int, change_count: int) -> None:
        """Say that ``process`` (itself) looks with none of its threads at a slot as it was before these changes."""

    def seen(self, process: int) -> int:
        """The changes that ``process`` is past with all its threads."""

    def see_all(self, process: int) -> None:
        """Say that nobody is in the place of ``process`` (the supervisor, before it starts somebody there)."""

    def want_deletion(self) -> None:
        """Have the keeper look for wishes that a topic be deleted."""

    def want_start(self, index: int, offset: int) -> None:
        """Let a partition begin at an offset that is visible, for readers at once.

        The keeper writes it down and drops what is before it. For a process that is not past the partition's life.
        """

    def change_settings(self, index: int, life: int, settings: SlotSettings) -> None:
        """Give a partition other settings, unless it has gone. Under the creation lock: no slot is taken meanwhile."""

    def settle(self, index: int) -> None:
        """Show a partition to clients of today: it is written down that it is there. The coordinator alone calls it."""

    @property
    def starts_wanted(self) -> int:
        """How often somebody has wanted a partition to begin later."""

    def unkept_starts(self) -> list[int]:
        """The slots whose partitions are to begin at an offset that is not written down yet."""

    def publish_start(self, index: int, start: int) -> None:
        """Say that the start of one slot is written down, and let its log begin there; the keeper alone calls it.

        Raises:
            LogError: it would go back, or pass what is flushed and visible.
        """

    @property
    def deletions_wanted(self) -> int:
        """How often somebody has wanted a topic to be deleted."""

    def leaving(self) -> list[Leaving]:
        """The partitions that have gone and whose slots are not free yet."""

    def returning(self) -> list[Leaving]:
        """The partitions whose lives have ended to be recovered."""

    def succeed(self, index: int) -> None:
        """Let a partition that was to return leave this slot, because it lives in another one; under the creation lock.

        Raises:
            LogError: none was to return here.
        """

    def revive(self, index: int) -> None:
        """Let a partition live on in this slot as it was, because it could not be recovered; under the creation lock.

        Raises:
            LogError: none was to return here.
        """

    def is_past(self, index: int) -> bool:
        """Whether every process is past the end of this slot's life."""

    def free(self, index: int) -> None:
        """Let a slot be used again whose partition has gone; the caller holds the creation lock, and all are past it.

        Raises:
            LogError: it is free, or a partition.
        """

    def shown_view(self, index: int) -> SlotView | None:
        """The words of one slot, read in the order that keeps visible ≤ flushed ≤ log end; None: it is no partition.

        One that is to return is one: until then it is read as it was, and its life is even.
        """

    def live_view(self, index: int) -> SlotView | None:
        """The same, None also for one that is to return."""

    def view(self, index: int) -> SlotView:
        """The same for a partition that is there.

        Raises:
            PartitionGoneError: it is not any more.
        """

    def views(self) -> list[SlotView]:
        """All partitions there are."""

    def segments(self, index: int) -> list[Segment]:
        """The segments of one slot that are still held, oldest first.

        For who is not past the slot's life: of a slot that is used again meanwhile they would be another partition's.
        """

    def describe_state(self, state: int) -> str:
        """One phrase for a slot's state word."""

    def publish_retention(self, index: int, new_head: int, new_start: int) -> None:
        """Move the log start of one slot up; the keeper alone calls it, before it unlinks a file.

        Raises:
            LogError: the start would go back, or pass what is flushed and visible.
        """

    def retention_done(self) -> None:
        """Tell every process to close descriptors of segments that are gone."""

    def wait_for_end(self, index: int, process: int) -> None:
        """Have ``process`` woken when the flushed or visible end or the state of a slot moves; look again then."""

    def demand_flush(self, index: int) -> None:
        """Ask the flusher to flush one partition soon."""

    def clear_cell(self, process: int, pid: int, now_ns: int) -> None:
        """Begin a process's cell afresh (the supervisor before the start, the process at its start); counters go on."""

    def incarnation(self, process: int) -> int:
        """How many processes in this place have died so far; what one of them sent, or was sent, is void."""

    def end_incarnation(self, process: int) -> None:
        """Say that the process in this place has died: the supervisor, before it starts a successor."""

    def beat(self, process: int) -> None:
        """Say that ``process`` (itself) is alive, now."""

    def cell(self, process: int) -> tuple[int, int, int, int, int]:
        """``(pid, heartbeat_ns, busy_permille, connections, holding)`` of one process."""

    def disk_since(self, process: int) -> int:
        """When ``process`` began, in monotonic ns, what it waits for a disk with; 0: it does not, or does not say."""

    def counters(self, process: int) -> dict[str, int]:
        """The counters of one process by name; they survive the process."""

    def count(self, process: int, name: str, by: int = 1) -> None:
        """Add to a counter of ``process`` (itself)."""

    def requests(self, process: int) -> dict[int, int]:
        """How often a process has been asked with each api key of today's protocol, of those that it was asked with."""

    def refusals(self, process: int) -> dict[tuple[int, int] | None, int]:
        """How often a process has answered an error to such a request: by api key and code.

        Those that it had no place for stand under None. A scrape beside it may see an error that is just being counted
        with a count of 0.
        """

    def count_refusal(self, process: int, key: int, code: int) -> None:
        """Count an error that ``process`` (itself) answers to a request of today's protocol."""

    def handed_over(self, process: int) -> int:
        """Connections a processor has received so far."""
