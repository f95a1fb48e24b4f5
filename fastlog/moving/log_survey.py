"""Reading a whole log of record batches before it is moved: is it sound, and can the other side have what it holds?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastlog.errors import CorruptLogError
from fastlog.log.files import FileOps
from fastlog.log.manager import MOST_PRODUCERS
from fastlog.moving.stored_records import StoredBatch, batches_of, records_of
from fastlog.record_batches import NO_PRODUCER_ID
from fastlog.segment_files import SegmentFile

ABORT, COMMIT = 0, 1
"""What the record of a transaction's end says: bytes 2 and 3 of its key."""


@dataclass(slots=True)
class Survey:
    """What a partition's log was found to hold."""

    end: int
    """The offset behind its last record."""
    records: int = 0
    size: int = 0
    """The bytes of its segments."""
    is_numbered: bool = False
    """Whether a producer has numbered a batch."""
    largest_producer: int = NO_PRODUCER_ID
    """The largest id of a producer with numbered batches; one that no broker gives out does not count."""
    missing: tuple[int, int] | None = None
    """The first offset that compaction has left out, and the next one that is there."""
    aborted: int = 0
    """Transactions with records here that came to nothing."""
    open: int = 0
    """Transactions with records here whose end is not."""


def survey(
    segments: Sequence[SegmentFile], log_start: int, files: FileOps, turn: Callable[[int, int], None] = lambda *_: None
) -> Survey:
    """Read all batches of these segments, which follow one another, and check each.

    What is wholly below ``log_start`` does not count for transactions: nobody reads it. ``turn`` is called with the
    records and bytes of each segment.

    Raises:
        CorruptLogError: one is damaged, or its offsets go back; ``OldFormatError`` for one from before Kafka 0.11.
        OSError: one cannot be read.
    """
    found = Survey(segments[0].base)
    in_transaction: set[int] = set()
    for segment in segments:
        records = found.records
        _follow(found, segment.base, segment)
        for batch in batches_of(segment, files):
            header = batch.header
            _follow(found, header.base_offset, segment, batch.position)
            if header.record_count != header.last_offset_delta + 1 and found.missing is None:
                found.missing = header.base_offset, header.next_offset
            found.end = header.next_offset
            found.records += header.record_count
            if header.producer_id != NO_PRODUCER_ID:
                found.is_numbered = True
                if header.producer_id < MOST_PRODUCERS:
                    found.largest_producer = max(found.largest_producer, header.producer_id)
            if header.is_transactional and header.next_offset > log_start:
                if not header.is_control:
                    in_transaction.add(header.producer_id)
                elif header.producer_id in in_transaction:
                    in_transaction.remove(header.producer_id)
                    found.aborted += marker_of(batch) != COMMIT
        found.size += segment.size
        turn(found.records - records, segment.size)
    found.open = len(in_transaction)
    return found


def _follow(found: Survey, offset: int, segment: SegmentFile, position: int = 0) -> None:
    """The next offset that is there; those between were compacted away."""
    if offset < found.end:
        reason = "offsets that do not follow those before them"
        raise CorruptLogError(reason, path=str(segment.path), position=position, found=offset, expected=found.end)
    if offset > found.end and found.missing is None:
        found.missing = found.end, offset


def marker_of(batch: StoredBatch) -> int:
    """How a transaction ends, by the control batch that says it: ABORT, COMMIT, or -1 where it says something else.

    Raises:
        CorruptLogError: it cannot be read.
    """
    if batch.data is None:
        return -1
    key = next((each.key for each in records_of(batch)), None) or b""
    return int.from_bytes(key[2:4], "big") if len(key) >= 4 else -1
