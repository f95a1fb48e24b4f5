"""Reads requests that compiled code has read before, and found whole and well-formed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fastlog.workers.kafka import kinds

NO_ID = bytes(16)
CORRELATION_END = 8
"""Api key, version and correlation id; what follows has lengths."""


class Listed(NamedTuple):
    """One partition that LIST_OFFSETS asks for."""

    topic: str
    partition: int
    time: int


def named_topics(request: bytes) -> list[bytes | None]:
    """The topics that a METADATA request names, in its order; None for one that it names by id.

    ``request`` begins at the api key.
    """
    reading = _begun(request, kinds.METADATA)
    names = []
    for _ in range(max(reading.length(4), 0)):
        topic_id = reading.take(16) if reading.version >= 10 else NO_ID
        name = reading.string()
        reading.tags()
        names.append(name if topic_id == NO_ID else None)
    return names


def listed_offsets(request: bytes) -> Iterator[Listed]:
    """The partitions of a LIST_OFFSETS request, in its order; as above."""
    reading = _begun(request, kinds.LIST_OFFSETS)
    reading.take(4 if reading.version < 2 else 5)
    for _ in range(max(reading.length(4), 0)):
        topic = (reading.string() or b"").decode("utf-8", "surrogateescape")
        for _ in range(max(reading.length(4), 0)):
            partition = reading.number(4)
            if reading.version >= 4:
                reading.take(4)
            yield Listed(topic, partition, reading.number(8))
            reading.tags()
        reading.tags()


def _begun(request: bytes, key: int) -> _Reading:
    """A reader of a request's body, behind the head."""
    reading = _Reading(request, CORRELATION_END)
    reading.string()  # the client's id, whose length is never a varint
    reading.flexible = reading.version >= kinds.APIS[key].flexible
    reading.tags()
    return reading


class _Reading:
    """A reader of a request's fields, with its position."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at, self.flexible = data, at, False
        self.version = int.from_bytes(data[2:4], "big")

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def length(self, size: int) -> int:
        return self._varint() - 1 if self.flexible else self.number(size)

    def string(self) -> bytes | None:
        size = self.length(2)
        return None if size < 0 else self.take(size)

    def tags(self) -> None:
        for _ in range(self._varint() if self.flexible else 0):
            self._varint()
            self.take(self._varint())

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
