"""The file that ``fastlog dump`` writes: a topic with all its partitions, in records that are checked one by one.

    magic       8 bytes   ``fastlogD``
    then records, each
    kind        1 byte    1 head, 2 piece, 3 end
    length      4 bytes   of the body
    checksum    4 bytes   CRC-32 of kind, length and body
    body

The head and the end are JSON objects in UTF-8. A piece is broker (4 bytes), partition (4), offset (8), and whole
messages as they lie in the log from that offset on. Numbers are big-endian and signed, but for checksum and length.
The pieces of a partition come in order and leave nothing out; the end says what they add up to, so that a file that
was cut is noticed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from fastlog.tools.report import EXIT_DAMAGED, CommandError
from fastlog.zkpaths import PartitionId

MAGIC = b"fastlogD"
VERSION = 1
_RECORD = struct.Struct(">BII")
_PIECE = struct.Struct(">iiq")
_HEAD, _PART, _END = 1, 2, 3
_MOST_BODY_BYTES = 2**30 + _PIECE.size
_READ_BYTES = 1024 * 1024


class Held(NamedTuple):
    """A partition in the file: the offsets that its bytes had."""

    partition: PartitionId
    start: int
    end: int


class Head(NamedTuple):
    """What the file begins with."""

    topic: str
    time_ms: int
    partitions: tuple[Held, ...]

    @property
    def size(self) -> int:
        """Bytes of messages in the file."""
        return sum(held.end - held.start for held in self.partitions)


class Piece(NamedTuple):
    """Whole messages of one partition, from an offset on."""

    partition: PartitionId
    offset: int
    data: bytes


class Writer:
    """Writes one file, from the head to ``finish``."""

    def __init__(self, out: IO[bytes], head: Head) -> None:
        self._out = out
        self._sums = {held.partition: 0 for held in head.partitions}
        self._at = {held.partition: held.start for held in head.partitions}
        out.write(MAGIC)
        partitions = [
            {
                "broker": held.partition.broker,
                "partition": held.partition.partition,
                "start": held.start,
                "end": held.end,
            }
            for held in head.partitions
        ]
        self._json(_HEAD, version=VERSION, topic=head.topic, time_ms=head.time_ms, partitions=partitions)

    def piece(self, partition: PartitionId, data: bytes) -> None:
        """The next messages of a partition."""
        self._record(_PART, _PIECE.pack(*partition, self._at[partition]) + data)
        self._sums[partition] = zlib.crc32(data, self._sums[partition])
        self._at[partition] += len(data)

    def finish(self) -> None:
        """Say what it was in all."""
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


class Reader:
    """Reads one file: ``head``, then the pieces, once. What is damaged or missing raises ``CommandError``."""

    def __init__(self, name: str, source: IO[bytes]) -> None:
        self._name = name
        self._source = source
        self._position = 0
        magic = self._read(len(MAGIC))
        if magic != MAGIC:
            raise self._damaged(0, "it does not begin as a file of fastlog dump does")
        kind, body = self._record()
        if kind != _HEAD:
            raise self._damaged(len(MAGIC), "its head is missing")
        try:
            fields = json.loads(body)
            if fields["version"] != VERSION:
                raise CommandError(
                    f"{name} is of version {fields['version']}",
                    f"this fastlog reads version {VERSION}",
                    "load it with the fastlog that made it",
                    EXIT_DAMAGED,
                )
            self.head = Head(
                fields["topic"],
                fields["time_ms"],
                tuple(
                    Held(PartitionId(item["broker"], item["partition"]), item["start"], item["end"])
                    for item in fields["partitions"]
                ),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(len(MAGIC), f"its head makes no sense ({error!r})") from None

    def pieces(self) -> Iterator[Piece]:
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
            if at.get(partition) != offset or offset + len(data) > ends[partition]:
                raise self._damaged(start, f"a piece of {partition} at offset {offset} is not the one that follows")
            at[partition] += len(data)
            sums[partition] = zlib.crc32(data, sums[partition])
            yield Piece(partition, offset, data)
        try:
            told = {
                PartitionId(item["broker"], item["partition"]): (item["end"], item["crc32"])
                for item in json.loads(body)["partitions"]
            }
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(start, f"its end makes no sense ({error!r})") from None
        if at != ends or told != {item: (ends[item], sums[item]) for item in ends}:
            raise self._damaged(start, "its pieces are not what it says at its end")
        if self._source.read(1):
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
        """So many bytes; piece by piece, so that a length that is wrong takes no memory."""
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


def _checksum(kind: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack(">BI", kind, len(body))))
