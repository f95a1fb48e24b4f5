"""The broker's own logs, which are kept short by snapshots: reading them, and where the newest whole snapshot begins.

One partition of record batches each, written by the coordinator alone. A snapshot is all that the log stands for, in
some batches among others that are written meanwhile. It begins a segment, whose first record has the key ``snapshot``,
and ends with a record of the key ``snapshot-end``; once that is visible, the segments before it say nothing more, and
the keeper drops them. Neither key is one of Apache Kafka's in ``__consumer_offsets``, whose readers pass over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fastlog import record_batches
from fastlog.errors import FastlogError
from fastlog.log.files import FileOps

SNAPSHOT, SNAPSHOT_END = b"snapshot", b"snapshot-end"
MOST_SEGMENT_BYTES = 2**31 - 1


def whole_batches(data: bytes) -> Iterator[memoryview]:
    """The batches of a segment's bytes, up to the first that is not whole and valid, where recovery would cut."""
    at = 0
    while at < len(data):
        batch = memoryview(data)[at:]
        try:
            header = record_batches.BatchHeader.parse(batch)
            batch = batch[: header.size_bytes]
            record_batches.check(batch)
        except FastlogError:
            return
        yield batch
        at += header.size_bytes


def newest_snapshot(segments: Sequence[tuple[Path, int]], files: FileOps) -> int | None:
    """Which of the segments, given oldest first with their visible bytes, begins the newest snapshot that is whole.

    Raises:
        OSError: one cannot be read.
    """
    has_end = False
    for number in range(len(segments) - 1, -1, -1):
        path, visible = segments[number]
        keys = _first_keys(files.read_file(path, MOST_SEGMENT_BYTES)[:visible])
        has_end = has_end or SNAPSHOT_END in keys
        if keys[:1] == [SNAPSHOT]:
            if has_end:
                return number
            has_end = False
    return None


def _first_keys(data: bytes) -> list[bytes | None]:
    """The key of each batch's first record."""
    return [next(record_batches.records(batch)).key for batch in whole_batches(data)]
