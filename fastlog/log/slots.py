"""What the arena says of partitions, as rows for Python: slots, segments, producers."""

from __future__ import annotations

from typing import NamedTuple

MAX_MS = 2**63 - 1


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
    """The partition is recorded as existing: clients of today see it."""


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
    """``(base offset, first append ms, last append ms)`` of each, oldest first."""
    log_end: int
    """The offset of the next message."""
    state: int = 0
    durable: bool = True
    """The directory entries of segments and partition have been synced."""
    flushed_base: int | None = None
    """What the flushed mark on the disk names."""
    starts: list[int] | None = None
    """Positions of the segments and of the log end; None where offsets are positions."""
    indexes: IndexState = IndexState()
    epoch: int = 0
    topic_id: bytes = bytes(16)
    retention_ms: int = MAX_MS
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
