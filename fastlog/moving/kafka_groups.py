"""Groups and their offsets, taken from the partitions of one ``__consumer_offsets`` and written into those of another.

Both sides have Apache Kafka's records (``coordinator/groups/records.py``). Here the last word on each key is found,
that of a transaction once it is committed, and what counts is written again in few batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastlog import record_batches
from fastlog.errors import LogError
from fastlog.log.files import FileOps
from fastlog.log.internal_logs import SNAPSHOT, SNAPSHOT_END
from fastlog.moving.log_survey import COMMIT, marker_of
from fastlog.moving.stored_records import batches_of, records_of, segments_of
from fastlog.record_batches import Record
from fastlog.workers.coordinator.groups import records
from fastlog.workers.coordinator.groups.groups import SETTINGS, TOPIC, shard_of
from fastlog.workers.coordinator.groups.records import GroupState, Offset, OffsetKey

__all__ = ["SETTINGS", "TOPIC", "KeptGroups", "end_of", "packed", "read_groups"]

BATCH_BYTES = 256 << 10

Rows = list[tuple[bytes, bytes | None]]


@dataclass(slots=True)
class KeptGroups:
    """What counts of ``__consumer_offsets``."""

    offsets: dict[OffsetKey, Offset] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    other_keys: set[bytes] = field(default_factory=set)
    """The keys of records of other kinds, such as those of groups of the new protocol and of share groups."""
    open: int = 0
    """Transactions with offsets that are not at their end."""

    @property
    def names(self) -> set[str]:
        """The groups that have offsets, or a state that is taken."""
        return {key.group for key in self.offsets} | set(self.groups)

    @property
    def others(self) -> set[str]:
        """The groups of which there is state of another kind, which is not taken."""
        return {_group_of(key) for key in self.other_keys}

    def without(self, topics: Iterable[str]) -> KeptGroups:
        """The same but for the offsets of some topics."""
        gone = set(topics)
        offsets = {key: value for key, value in self.offsets.items() if key.topic not in gone}
        return KeptGroups(offsets, self.groups, self.other_keys, self.open)

    def topics(self) -> set[str]:
        """The topics for which some group has committed an offset."""
        return {key.topic for key in self.offsets}


def read_groups(directories: Sequence[Path], files: FileOps) -> KeptGroups:
    """What the partitions of a ``__consumer_offsets`` say, which lie in these directories.

    Raises:
        LogError: one is damaged, or holds what is not known.
        OSError: one cannot be read.
    """
    found = KeptGroups()
    for directory in directories:
        pending: dict[int, Rows] = {}
        for rows in _committed(directory, files, pending):
            for key, value in rows:
                _take(found, key, value)
        found.open += len(pending)
    return found


def _committed(directory: Path, files: FileOps, pending: dict[int, Rows]) -> Iterator[Rows]:
    """Keys and values in the order in which they count: what is in a transaction when that is committed."""
    for segment in segments_of(directory):
        for batch in batches_of(segment, files, whole=True):
            header = batch.header
            if header.is_control:
                rows = pending.pop(header.producer_id, [])
                if marker_of(batch) == COMMIT:
                    yield rows
                continue
            rows = [(each.key or b"", each.value) for each in records_of(batch)]
            if header.is_transactional:
                pending.setdefault(header.producer_id, []).extend(rows)
            else:
                yield rows


def _take(found: KeptGroups, key: bytes, value: bytes | None) -> None:
    if key in (SNAPSHOT, SNAPSHOT_END):
        return
    about = records.read_key(key)
    if isinstance(about, OffsetKey):
        found.offsets.pop(about, None)
        if value is not None:
            found.offsets[about] = records.read_offset(value)
    elif about is not None:
        found.groups.pop(about, None)
        if value is not None:
            found.groups[about] = records.read_group(value)
    elif value is None:
        found.other_keys.discard(key)
    else:
        found.other_keys.add(key)


def _group_of(key: bytes) -> str:
    """The group that a key of another kind is about: its first field, as all kinds have it."""
    size = int.from_bytes(key[2:4], "big")
    try:
        return key[4 : 4 + size].decode()
    except UnicodeDecodeError as error:
        raise LogError("a key with text that is not UTF-8") from error


def packed(kept: KeptGroups, partitions: int, now_ms: int) -> list[bytes]:
    """The bytes of each partition's first segment: records of all that is kept, by the partition of its group."""
    rows: list[list[Record]] = [[] for _ in range(partitions)]
    for name, state in kept.groups.items():
        rows[shard_of(name, partitions)].append(Record(records.group_key(name), records.group_value(state), now_ms))
    for key, offset in kept.offsets.items():
        record = Record(records.offset_key(key), records.offset_value(offset), now_ms)
        rows[shard_of(key.group, partitions)].append(record)
    return [b"".join(_batches(each)) for each in rows]


def _batches(rows: Sequence[Record]) -> Iterator[bytes]:
    at = 0
    while at < len(rows):
        end, size = at, 0
        while end < len(rows) and (end == at or size < BATCH_BYTES):
            size += len(rows[end].key or b"") + len(rows[end].value or b"")
            end += 1
        yield record_batches.build(rows[at:end], base_offset=at, leader_epoch=0)
        at = end


def end_of(data: bytes) -> int:
    """The offset behind the last of these batches; 0 where there is none."""
    return max((header.next_offset for header, _ in record_batches.batches(data)), default=0)
