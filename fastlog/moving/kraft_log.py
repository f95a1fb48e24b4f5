"""Apache Kafka's metadata log on the disk: the newest snapshot of ``__cluster_metadata-0`` and what stands behind it.

    <offset>-<epoch>.checkpoint   a snapshot: all that was said before the offset. 20 and 10 digits
    <offset>.log                  segments, as those of any partition
    bootstrap.checkpoint          beside the directory: what a controller writes into a log that is empty

Each begins and ends, where it is a snapshot, with a control batch; the others have the records of ``kraft_records``.

Source: Apache Kafka 4.2 (Snapshots, KafkaRaftLog, BootstrapDirectory).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastlog import record_batches
from fastlog.errors import CorruptLogError, LogError
from fastlog.log.files import FileOps
from fastlog.moving.kraft_records import DIRECTORIES_SINCE, METADATA_VERSION, KraftState
from fastlog.moving.stored_records import StoredBatch, batches_of, records_of, segments_of
from fastlog.record_batches import BatchHeader, Record
from fastlog.segment_files import SegmentFile

DIRECTORY_NAME = "__cluster_metadata-0"
BOOTSTRAP_NAME = "bootstrap.checkpoint"
RECORDS_IN_BATCH = 500
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint", re.ASCII)


def read_kraft_state(log_directory: Path, files: FileOps) -> tuple[KraftState, int] | None:
    """What the metadata log of a log directory says, and the offset behind its last record; None where there is none.

    Raises:
        LogError: it is damaged, or holds what is not known.
        OSError: it cannot be read.
    """
    directory = log_directory / DIRECTORY_NAME
    if not directory.is_dir():
        return None
    snapshots = [(found, item.name) for item in files.listdir(directory) if (found := _SNAPSHOT.fullmatch(item.name))]
    begin, state = 0, KraftState()
    if snapshots:
        (found, name) = max(snapshots, key=lambda each: (each[0][1], each[0][2]))
        begin = int(found[1])
        _read(_as_segment(directory / name), state, files)
    end = begin
    for segment in segments_of(directory):
        end = max(end, _read(segment, state, files, begin))
    return state, end


def _read(segment: SegmentFile, state: KraftState, files: FileOps, begin: int = 0) -> int:
    """Apply what stands at ``begin`` and behind it, and return the offset behind it."""
    end = 0
    for batch in batches_of(segment, files, whole=True):
        header = batch.header
        end = header.next_offset
        if header.is_control or end <= begin:
            continue
        for record in records_of(batch):
            try:
                state.apply(record.value or b"")
            except LogError as error:
                raise LogError(str(error), path=str(batch.path), position=batch.position) from error
    return end


def _as_segment(path: Path) -> SegmentFile:
    return SegmentFile(0, path, path.stat().st_size)


def read_bootstrap(log_directory: Path, files: FileOps) -> KraftState:
    """What the controller of a formatted log directory will begin with.

    Raises:
        LogError: it is none that a topic can be put into: not formatted, or by a version of Kafka before 3.7.
        OSError: it cannot be read.
    """
    path, state = log_directory / BOOTSTRAP_NAME, KraftState()
    if not path.exists():
        raise LogError("no bootstrap.checkpoint in it, which kafka-storage format makes", path=str(log_directory))
    _read(_as_segment(path), state, files)
    level = state.features.get(METADATA_VERSION, 0)
    if level < DIRECTORIES_SINCE:
        reason = f"it is formatted for metadata.version level {level}; topics can be exported to 3.7-IV2 and later"
        raise LogError(reason, path=str(path))
    return state


def bootstrap_with(log_directory: Path, values: Sequence[bytes], now_ms: int, files: FileOps) -> bytes:
    """The bytes of a bootstrap checkpoint that says this besides what it says: before the control batch that ends it.

    Raises:
        LogError: it does not end so.
        OSError: it cannot be read.
    """
    segment = _as_segment(log_directory / BOOTSTRAP_NAME)
    kept = [bytes(each.data or b"") for each in _each_copied(segment, files)]
    if not kept or not BatchHeader.parse(kept[-1]).is_control:
        raise CorruptLogError("the checkpoint has no end", path=str(segment.path))
    last = kept.pop()
    offset = BatchHeader.parse(kept[-1]).next_offset if kept else 0
    made = []
    for at in range(0, len(values), RECORDS_IN_BATCH):
        records = [Record(None, value, now_ms) for value in values[at : at + RECORDS_IN_BATCH]]
        made.append(record_batches.build(records, base_offset=offset, leader_epoch=0))
        offset += len(records)
    return b"".join([*kept, *made, offset.to_bytes(8, "big"), last[8:]])


def _each_copied(segment: SegmentFile, files: FileOps) -> Iterator[StoredBatch]:
    for batch in batches_of(segment, files, whole=True):
        yield batch._replace(data=memoryview(bytes(batch.data or b"")))
