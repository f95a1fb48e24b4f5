"""Lines of files as batches of messages, cut so that no Python code runs for each line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

_READ_BYTES = 1 << 20


class LineBatches:
    """Reads descriptors one after the other and gives their lines in batches of about ``batch_bytes``.

    A line ends at a newline or at the end of its file. Lines above ``max_line_bytes`` are left out and counted, and
    end the batch before them; memory stays bounded by a read, a batch and one such line.
    """

    def __init__(self, batch_bytes: int, max_line_bytes: int) -> None:
        self.first_line = 0
        """The number of the first line of the batch that was given last; lines are numbered from 1 in each file."""
        self.size = 0
        """Bytes of the lines of that batch."""
        self.read_bytes = 0
        self.too_long = 0
        self.first_too_long = ""
        self._batch_bytes = batch_bytes
        self._max_line_bytes = max_line_bytes

    def read(self, fd: int, name: str, wait: Callable[[int], None]) -> Iterator[list[bytes]]:
        """Yield the lines of one descriptor; ``wait(fd)`` is called before each read and returns when it may happen."""
        tail = b""
        skipping = False
        lines_before = 0
        while True:
            wait(fd)
            data = os.read(fd, _READ_BYTES)
            self.read_bytes += len(data)
            if skipping:
                end = data.find(b"\n")
                if end < 0 and data:
                    continue
                data = data[end + 1 :]
                skipping = False
                lines_before += 1
                if not data:
                    if end < 0:
                        return
                    continue
            elif not data:
                break
            block = tail + data if tail else data
            position = 0
            while (end := self._cut(block, position)) >= 0:
                lines = block[position:end].split(b"\n")
                if end - position <= self._max_line_bytes:  # then no line of it is too long
                    self.first_line, self.size = lines_before + 1, end - position - len(lines) + 1
                    yield lines
                else:
                    yield from self._fitting(lines, name, lines_before)
                position = end + 1
                lines_before += len(lines)
            tail = block[position:]
            if len(tail) > self._max_line_bytes:
                self._leave_out(name, lines_before + 1)
                tail = b""
                skipping = True
        if tail:
            yield self._numbered(lines_before + 1, [tail])

    def _cut(self, block: bytes, position: int) -> int:
        """The newline that ends the batch starting at ``position``, or -1 when no line is complete."""
        end = block.rfind(b"\n", position, position + self._batch_bytes)
        return end if end >= 0 else block.find(b"\n", position)

    def _fitting(self, lines: list[bytes], name: str, lines_before: int) -> Iterator[list[bytes]]:
        kept: list[bytes] = []
        for number, line in enumerate(lines, start=lines_before + 1):
            if len(line) <= self._max_line_bytes:
                kept.append(line)
                continue
            if kept:
                yield self._numbered(number - len(kept), kept)
                kept = []
            self._leave_out(name, number)
        if kept:
            yield self._numbered(lines_before + 1 + len(lines) - len(kept), kept)

    def _numbered(self, first_line: int, lines: list[bytes]) -> list[bytes]:
        self.first_line, self.size = first_line, sum(map(len, lines))
        return lines

    def _leave_out(self, name: str, number: int) -> None:
        self.too_long += 1
        self.first_too_long = self.first_too_long or f"{name}, line {number}"
