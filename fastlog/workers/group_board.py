"""How the groups stand, as the coordinator says when the page of metrics asks: in memory that both share.

Neither waits for the other: who asks looks for the answer for as long as it likes, and a process that dies half way
leaves bytes whose checksum is wrong. The supervisor makes it before the first fork.

    uint64 number of the last question    written by who asks
    uint64 number of the question that is answered, uint64 size, uint32 CRC-32 of the bytes, all written at once
    from 64 on, the bytes: JSON, an array of rows of ``GroupRow`` in each line
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Sequence
from typing import NamedTuple

_QUESTION = struct.Struct("=Q")
_ANSWER = struct.Struct("=QQI")
_ANSWER_AT = _QUESTION.size
_BYTES_AT = 64
_LOOK_SECONDS = 0.002


class GroupRow(NamedTuple):
    """A group: how many members it has, and what it has committed as (topic, partition, offset)."""

    name: str
    members: int
    offsets: Sequence[tuple[str, int, int]]


class GroupBoard:
    """One who asks at a time, and one who answers."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("fastlog-groups", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _BYTES_AT)

    def close(self) -> None:
        """Give the memory back, once no process has it any more."""
        os.close(self._fd)

    # -- who answers ---------------------------------------------------------------------------------------------------

    @property
    def question(self) -> int:
        """The number of the last question."""
        (number,) = _QUESTION.unpack(os.pread(self._fd, _QUESTION.size, 0))
        return int(number)

    @property
    def is_asked(self) -> bool:
        """Whether the last question has no answer yet."""
        return self.question != self._answer()[0]

    def answer(self, question: int, lines: Sequence[bytes]) -> None:
        """Answer a question with rows of groups, as ``encoded`` makes them."""
        data = b"\n".join(lines)
        os.ftruncate(self._fd, _BYTES_AT + len(data))  # what an answer of former times took is given back
        place = 0
        while place < len(data):
            place += os.pwrite(self._fd, memoryview(data)[place:], _BYTES_AT + place)
        os.pwrite(self._fd, _ANSWER.pack(question, len(data), zlib.crc32(data)), _ANSWER_AT)

    # -- who asks ------------------------------------------------------------------------------------------------------

    def ask(self) -> int:
        """Ask; the number of the question. Whoever answers is woken by the caller."""
        number = self.question + 1
        os.pwrite(self._fd, _QUESTION.pack(number), 0)
        return number

    def wait(self, question: int, seconds: float) -> list[GroupRow] | None:
        """The answer to a question; None when none comes in time."""
        deadline = time.monotonic() + seconds
        while True:
            found = self._read(question)
            if found is not None:
                return [GroupRow(*row) for line in found.splitlines() for row in json.loads(line)]
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)

    def _answer(self) -> tuple[int, int, int]:
        number, size, checksum = _ANSWER.unpack(os.pread(self._fd, _ANSWER.size, _ANSWER_AT))
        return number, size, checksum

    def _read(self, question: int) -> bytes | None:
        number, size, checksum = self._answer()
        if number < question:
            return None
        data = os.pread(self._fd, size, _BYTES_AT)
        return data if len(data) == size and zlib.crc32(data) == checksum else None


def encoded(rows: Sequence[GroupRow]) -> bytes:
    """Rows of groups as one line of JSON."""
    return json.dumps(rows, separators=(",", ":")).encode()
