"""The file that ``fastlog dump`` writes: topics with all their partitions, in records that are checked one by one.

    magic       8 bytes   ``fastlogD``
    then records, of each topic a head, its pieces and an end, each
    kind        1 byte    1 head, 2 piece, 3 end
    length      4 bytes   of the body
    checksum    4 bytes   CRC-32 of kind, length and body
    body

The head and the end are JSON objects in UTF-8. A piece is broker (4 bytes), partition (4), offset (8), and whole
messages as they lie in the log from that offset on, or whole batches of records, whose first one begins there. Numbers
are big-endian and signed, but for checksum and length. The pieces of a partition come in order and leave nothing out;
the end says what they add up to, and the head how many topics follow, so that a file that was cut is noticed.

The head of a topic of records has its own settings, and of each partition also ``log_start``, which may lie inside of
the first batch.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

from fastlog._record_batch import BATCHES_OK, scan_batches
from fastlog.tools.report import EXIT_DAMAGED, CommandError
from fastlog.zkpaths import PartitionId

MAGIC = b"fastlogD"
_MESSAGES, _RECORDS = 1, 2
"""Versions: of a file with one topic of Kafka 0.7, and of any other."""
_RECORD = struct.Struct(">BII")
_PIECE = struct.Struct(">iiq")
_HEAD, _PART, _END = 1, 2, 3
_MOST_BODY_BYTES = 2**30 + _PIECE.size
_READ_BYTES = 1024 * 1024


class DumpedPartition(NamedTuple):
    """A partition in the file: the offsets that its bytes had."""

    partition: PartitionId
    start: int
    end: int
    log_start: int | None = None
    """Of records: where the log began, at ``start``, or behind it in the same batch."""

    @property
    def first(self) -> int:
        """The first offset that could be read."""
        return self.start if self.log_start is None else self.log_start


class TopicHead(NamedTuple):
    """What the part of a topic begins with."""

    topic: str
    time_ms: int
    partitions: tuple[DumpedPartition, ...]
    settings: Mapping[str, str] | None = None
    """Those that a topic of records has itself; None: it is one of Kafka 0.7."""
    following: int = 0
    """Topics in the file behind this one."""

    @property
    def is_of_records(self) -> bool:
        """Whether the topic consists of record batches; otherwise of messages of Kafka 0.7."""
        return self.settings is not None

    @property
    def size(self) -> int:
        """The offsets of the file: bytes of messages, or records."""
        return sum(held.end - held.start for held in self.partitions)

    def next_offset(self, offset: int, data: bytes) -> int:
        """The offset behind a piece that begins at one. Raises ``ValueError``: it does not, or is damaged."""
        if self.settings is None:
            return offset + len(data)
        found = scan_batches(data)
        if found.status != BATCHES_OK or not data or int.from_bytes(data[:8], "big") != offset:
            raise ValueError(f"no whole batches from offset {offset} on")
        return found.next_offset


class DumpPiece(NamedTuple):
    """Whole messages of one partition, from an offset on."""

    partition: PartitionId
    offset: int
    data: bytes


class DumpWriter:
    """Writes one file: for each topic ``begin``, its pieces, and ``finish``."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._head = TopicHead("", 0, ())
        self._sums: dict[PartitionId, int] = {}
        self._at: dict[PartitionId, int] = {}
        out.write(MAGIC)

    def begin(self, head: TopicHead) -> None:
        """Begin the part of the next topic; the one before it is finished."""
        self._head = head
        self._sums = {held.partition: 0 for held in head.partitions}
        self._at = {held.partition: held.start for held in head.partitions}
        partitions = [
            {
                **held.partition._asdict(),
                "start": held.start,
                "end": held.end,
                **({"log_start": held.first} if head.is_of_records else {}),
            }
            for held in head.partitions
        ]
        is_old = not head.is_of_records and not head.following
        fields: dict[str, Any] = {"version": _MESSAGES if is_old else _RECORDS, "topic": head.topic}
        fields |= {"time_ms": head.time_ms, "partitions": partitions}
        if not is_old:
            fields |= {"settings": head.settings, "following": head.following}
        self._json(_HEAD, **fields)

    def piece(self, partition: PartitionId, data: bytes) -> None:
        """The next messages of a partition, or batches. Raises ``ValueError``: they are not those that follow."""
        end = self._head.next_offset(self._at[partition], data)
        self._record(_PART, _PIECE.pack(*partition, self._at[partition]) + data)
        self._sums[partition] = zlib.crc32(data, self._sums[partition])
        self._at[partition] = end

    def finish(self) -> None:
        """End the part of the topic with the end offset and the CRC-32 of each partition."""
        self._json(
            _END,
            partitions=[
                {"broker": item.broker, "partition": item.partition, "end": self._at[item], "crc32": self._sums[item]}
                for item in self._at
            ],
        )

    def _json(self, kind: int, **fields: Any) -> None:
        self._record(kind, json.dumps(fields, separators=(",", ":")).encode())

    def _record(self, kind: int, body: bytes) -> None:
        self._out.write(_RECORD.pack(kind, len(body), _checksum(kind, body)) + body)


class DumpReader:
    """Reads one file: of each topic ``head``, then the pieces, once.

    What is damaged or missing raises ``CommandError``.
    """

    head: TopicHead
    """The head of the topic that is being read."""

    def __init__(self, name: str, source: IO[bytes]) -> None:
        self._name = name
        self._source = source
        self._position = 0
        magic = self._read(len(MAGIC))
        if magic != MAGIC:
            raise self._damaged(0, "it does not begin as a file of fastlog dump does")
        self._begin()

    def goes_on(self) -> bool:
        """Behind the pieces of a topic: go on to the next one, if there is one."""
        if not self.head.following:
            return False
        left = self.head.following - 1
        start = self._position
        self._begin()
        if self.head.following != left:
            raise self._damaged(start, f"{self.head.following} topics follow, instead of {left}")
        return True

    def _begin(self) -> None:
        start = self._position
        kind, body = self._record()
        if kind != _HEAD:
            raise self._damaged(start, "its head is missing")
        try:
            fields = json.loads(body)
            if fields["version"] not in (_MESSAGES, _RECORDS):
                raise CommandError(
                    f"{self._name} is of version {fields['version']}",
                    f"this fastlog reads versions {_MESSAGES} and {_RECORDS}",
                    "load it with the fastlog that made it",
                    EXIT_DAMAGED,
                )
            self.head = _head(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(start, f"its head is malformed ({error!r})") from None

    def pieces(self) -> Iterator[DumpPiece]:
        """Each piece; at the end everything that the head promises was there.

        Raises:
            CommandError: the file is damaged or cut.
        """
        at = {held.partition: held.start for held in self.head.partitions}
        ends = {held.partition: held.end for held in self.head.partitions}
        sums = dict.fromkeys(at, 0)
        while True:
            start = self._position
            kind, body = self._record()
            if kind == _END:
                break
            if kind != _PART or len(body) < _PIECE.size:
                raise self._damaged(start, "there is a record that does not belong there")
            broker, number, offset = _PIECE.unpack_from(body)
            partition = PartitionId(broker, number)
            data = body[_PIECE.size :]
            try:
                end = self.head.next_offset(offset, data)
            except ValueError as error:
                raise self._damaged(start, f"a piece of {partition} has {error}") from None
            if at.get(partition) != offset or end > ends[partition]:
                raise self._damaged(start, f"a piece of {partition} at offset {offset} is not the one that follows")
            at[partition] = end
            sums[partition] = zlib.crc32(data, sums[partition])
            yield DumpPiece(partition, offset, data)
        try:
            told = {
                PartitionId(item["broker"], item["partition"]): (item["end"], item["crc32"])
                for item in json.loads(body)["partitions"]
            }
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(start, f"its end is malformed ({error!r})") from None
        if at != ends or told != {item: (ends[item], sums[item]) for item in ends}:
            raise self._damaged(start, "its pieces are not what it says at its end")
        if not self.head.following and self._source.read(1):
            raise self._damaged(self._position, "something follows its end")

    def _record(self) -> tuple[int, bytes]:
        start = self._position
        kind, length, checksum = _RECORD.unpack(self._read(_RECORD.size))
        if length > _MOST_BODY_BYTES:
            raise self._damaged(start, f"a record claims {length} bytes")
        body = self._read(length)
        if _checksum(kind, body) != checksum:
            raise self._damaged(start, "the checksum of a record is wrong")
        return kind, body

    def _read(self, size: int) -> bytes:
        """The next ``size`` bytes; piece by piece, so that a length that is wrong takes no memory."""
        parts = []
        left = size
        while left:
            part = self._source.read(min(left, _READ_BYTES))
            if not part:
                raise self._damaged(self._position, f"it ends there, inside a record, {left} bytes too early")
            parts.append(part)
            left -= len(part)
            self._position += len(part)
        return b"".join(parts)

    def _damaged(self, position: int, why: str) -> CommandError:
        return CommandError(
            f"{self._name} is damaged at position {position}", why, "dump the topic again", EXIT_DAMAGED
        )


def _head(fields: dict[str, Any]) -> TopicHead:
    settings = fields.get("settings")
    partitions = tuple(
        DumpedPartition(
            PartitionId(item["broker"], item["partition"]), item["start"], item["end"],
            item["log_start"] if settings is not None else None,
        )
        for item in fields["partitions"]
    )  # fmt: skip
    if settings is not None and not all(isinstance(text, str) for text in settings.values()):
        raise ValueError("a setting that is no text")
    return TopicHead(fields["topic"], fields["time_ms"], partitions, settings, fields.get("following", 0))


def _checksum(kind: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack(">BI", kind, len(body))))
