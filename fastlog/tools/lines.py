"""Files as batches of messages: what stands between delimiters, or behind lengths."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from struct import Struct

from fastlog.tools.report import EXIT_DAMAGED, CommandError

NEWLINE = b"\n"
LENGTH = Struct(">I")
"""What stands before each message with ``--length-prefixed``: its length, 4 bytes, the highest first."""
_MOST_LENGTH = 2**31 - 1
_READ_BYTES = 1 << 20


class InputBatches(ABC):
    """Reads descriptors one after the other and gives their messages in batches of about ``batch_bytes``.

    Messages above ``max_message_bytes`` are left out and counted, and end the batch before them; memory stays bounded
    by a read, a batch and one such message.
    """

    unit = "line"
    """What one message is called in the input, for errors and summaries."""

    def __init__(self, batch_bytes: int, max_message_bytes: int) -> None:
        self.first_line = 0
        """The number of the first message of the batch that was given last, counted from 1 in each file."""
        self.size = 0
        """Bytes of the messages of that batch."""
        self.given_bytes = 0
        """Of the input, up to the end of that batch."""
        self.too_long = 0
        self.first_too_long = ""
        self._batch_bytes = batch_bytes
        self._max_message_bytes = max_message_bytes

    @abstractmethod
    def read(self, fd: int, name: str, wait: Callable[[int], None]) -> Iterator[list[bytes]]:
        """Yield the messages of one descriptor; ``wait(fd)`` is called before each read and returns when it may happen.

        Raises:
            CommandError: what is there are no messages.
        """

    def _numbered(self, first: int, messages: list[bytes]) -> list[bytes]:
        self.first_line, self.size = first, sum(map(len, messages))
        return messages

    def _leave_out(self, name: str, number: int) -> None:
        self.too_long += 1
        self.first_too_long = self.first_too_long or f"{name}, {self.unit} {number}"


class LineBatches(InputBatches):
    """A message ends at a delimiter or at the end of its file. Cut so that no Python code runs for each line."""

    def __init__(self, batch_bytes: int, max_message_bytes: int, delimiter: bytes = NEWLINE) -> None:
        super().__init__(batch_bytes, max_message_bytes)
        self._delimiter = delimiter
        # The last one in a block is found from its end, unless one may begin inside another: two newlines in three.
        self._overlaps = any(delimiter.startswith(delimiter[at:]) for at in range(1, len(delimiter)))

    def read(self, fd: int, name: str, wait: Callable[[int], None]) -> Iterator[list[bytes]]:
        """See ``InputBatches.read``."""
        delimiter, width = self._delimiter, len(self._delimiter)
        tail = b""  # while skipping: what may be the beginning of the delimiter
        skipping = False
        lines_before = 0
        while data := _some(fd, wait):
            block = tail + data if tail else data
            if skipping:
                end = block.find(delimiter)
                if end < 0:
                    self.given_bytes += len(data)
                    tail = block[len(block) - width + 1 :]
                    continue
                self.given_bytes += end + width - len(tail)
                block = block[end + width :]
                skipping = False
                lines_before += 1
            position = 0
            while (end := self._cut(block, position)) >= 0:
                lines = block[position:end].split(delimiter)
                self.given_bytes += end - position + width
                if end - position <= self._max_message_bytes:  # then no line of it is too long
                    self.first_line, self.size = lines_before + 1, end - position - (len(lines) - 1) * width
                    yield lines
                else:
                    yield from self._fitting(lines, name, lines_before)
                position = end + width
                lines_before += len(lines)
            tail = block[position:]
            if len(tail) >= self._max_message_bytes + width:
                self._leave_out(name, lines_before + 1)
                self.given_bytes += len(tail)
                tail = tail[len(tail) - width + 1 :]
                skipping = True
        if tail and not skipping:
            self.given_bytes += len(tail)
            yield from self._fitting([tail], name, lines_before)

    def _cut(self, block: bytes, position: int) -> int:
        """The delimiter that ends the batch starting at ``position``, or -1 when no line is complete."""
        delimiter = self._delimiter
        if not self._overlaps:
            end = block.rfind(delimiter, position, position + self._batch_bytes)
            return end if end >= 0 else block.find(delimiter, position)
        end, following = -1, block.find(delimiter, position)
        while following >= 0 and (end < 0 or following - position <= self._batch_bytes):
            end, following = following, block.find(delimiter, following + len(delimiter))
        return end

    def _fitting(self, lines: list[bytes], name: str, lines_before: int) -> Iterator[list[bytes]]:
        kept: list[bytes] = []
        for number, line in enumerate(lines, start=lines_before + 1):
            if len(line) <= self._max_message_bytes:
                kept.append(line)
                continue
            if kept:
                yield self._numbered(number - len(kept), kept)
                kept = []
            self._leave_out(name, number)
        if kept:
            yield self._numbered(lines_before + 1 + len(lines) - len(kept), kept)


class PrefixedBatches(InputBatches):
    """Before each message stands its length."""

    unit = "message"

    def read(self, fd: int, name: str, wait: Callable[[int], None]) -> Iterator[list[bytes]]:
        """As ``InputBatches``; a file ends behind a message."""
        tail = b""
        number = skip = 0
        while data := _some(fd, wait):
            passed = min(skip, len(data))
            skip -= passed
            self.given_bytes += passed
            block = tail + data[passed:]
            position = size = 0
            batch: list[bytes] = []
            while len(block) - position >= LENGTH.size:
                (length,) = LENGTH.unpack_from(block, position)
                end = position + LENGTH.size + length
                if length > _MOST_LENGTH:
                    raise _damaged(name, number + 1, f"a message of {length} bytes is more than any may have")
                fits = length <= self._max_message_bytes
                if fits and end > len(block):
                    break
                if fits:
                    batch.append(block[position + LENGTH.size : end])
                    size += length
                if batch and (not fits or size >= self._batch_bytes):
                    yield self._numbered(number + fits + 1 - len(batch), batch)
                    batch, size = [], 0
                number += 1
                if not fits:
                    self._leave_out(name, number)
                    skip = max(0, end - len(block))
                self.given_bytes += min(end, len(block)) - position
                position = min(end, len(block))
            if batch:
                yield self._numbered(number + 1 - len(batch), batch)
            tail = block[position:]
        if tail or skip:
            missing = f"{skip} bytes are missing" if skip else f"{len(tail)} bytes are left"
            raise _damaged(name, number + (not skip), f"it ends inside that message: {missing}")


def _some(fd: int, wait: Callable[[int], None]) -> bytes:
    wait(fd)
    return os.read(fd, _READ_BYTES)


def _damaged(name: str, number: int, why: str) -> CommandError:
    return CommandError(
        f"{name}, message {number} cannot be read; those before it were sent",
        why,
        "with --length-prefixed each message stands behind its length, 4 bytes, the highest first",
        EXIT_DAMAGED,
    )
