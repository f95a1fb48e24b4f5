"""The counters of gcov, read without it: for one test file of many it would take longer than the tests.

``.gcno`` says of each function which blocks it has, which arcs join them and which lines they are; ``.gcda`` counts
the arcs that are not in the function's spanning tree, and from those follow all others: what goes into a block comes
out of it. Both as GCC writes them from version 12 on.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_NOTES = b"oncg"
_DATA = b"adcg"
_FUNCTION = 0x01000000
_BLOCKS = 0x01410000
_ARCS = 0x01430000
_LINES = 0x01450000
_COUNTS = 0x01A10000
_ON_TREE = 1
_MARK = re.compile(r'\s*/\* "(?P<source>fastlog/[^"]+)":(?P<line>\d+)$')


@dataclass
class _Function:
    """Arcs are (from, to, counted by themselves); the lines of a block are (file, line)."""

    arcs: list[tuple[int, int, bool]] = field(default_factory=list)
    lines: dict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))

    def reached(self, counts: list[int]) -> set[int]:
        """The blocks that ran, from the counts of the arcs that are counted by themselves, in their order."""
        known: list[int | None] = [None] * len(self.arcs)
        given = iter(counts)
        out_of: dict[int, list[int]] = defaultdict(list)
        into: dict[int, list[int]] = defaultdict(list)
        for number, (source, target, counted) in enumerate(self.arcs):
            out_of[source].append(number)
            into[target].append(number)
            if counted:
                known[number] = next(given)
        blocks: dict[int, int] = {}
        waiting = list(out_of.keys() | into.keys())
        while waiting:
            block = waiting.pop()
            for arcs in (out_of[block], into[block]):
                if arcs and block not in blocks and all(known[arc] is not None for arc in arcs):
                    blocks[block] = sum(known[arc] or 0 for arc in arcs)
            if block not in blocks:
                continue
            for arcs in (out_of[block], into[block]):
                unknown = [arc for arc in arcs if known[arc] is None]
                if len(unknown) == 1:
                    rest = blocks[block] - sum(known[arc] or 0 for arc in arcs)
                    known[unknown[0]] = max(rest, 0)  # threads that count at once may lose some
                    waiting += self.arcs[unknown[0]][:2]
        return {block for block, count in blocks.items() if count}


class Notes:
    """What the compiler noted of one library, in the words of its sources."""

    def __init__(self, root: Path, path: Path) -> None:
        self._root = root
        self._functions: dict[int, _Function] = {}
        self._read(path.read_bytes())
        files = {file for function in self._functions.values() for of in function.lines.values() for file, _ in of}
        counted = defaultdict(set)
        for function in self._functions.values():
            for lines in function.lines.values():
                for file, line in lines:
                    counted[file].add(line)
        self._sources = {file: self._of_sources(file, counted[file]) for file in files}

    def reached(self, data: bytes) -> list[tuple[str, int, bool]]:
        """Each line that the library was made of, and whether it ran, from the contents of a ``.gcda``."""
        ran: set[tuple[str, int]] = set()
        for ident, counts in self._counts(data):
            function = self._functions[ident]
            for block in function.reached(counts) if any(counts) else ():
                ran.update(function.lines.get(block, ()))
        return [
            (source, line, (file, made) in ran)
            for file, made_of in self._sources.items()
            for made, (source, line) in made_of.items()
        ]

    def _of_sources(self, name: str, counted: set[int]) -> dict[int, tuple[str, int]]:
        """For each line that says whether one of a source ran: source and line. A header's are its own.

        Of C made by Cython it is the first line of a statement: behind the last one of a function stands what every
        way out of it runs.
        """
        path = (self._root / name).resolve()
        if not path.is_relative_to(self._root):
            return {}
        if path.suffix == ".h":
            return {line: (str(path.relative_to(self._root)), line) for line in counted}
        found = {}
        statement = None
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            mark = _MARK.match(line)
            if mark:
                statement = mark["source"], int(mark["line"])
            elif statement and number in counted:
                found[number] = statement
                statement = None
        return found

    def _read(self, data: bytes) -> None:
        order = _order(data, _NOTES)
        at = 12 + 4  # magic, version, stamp, sum
        at = _string(data, at, order)[1] + 4  # the folder; whether blocks that never run are noted
        function = _Function()
        while at + 8 <= len(data):
            tag, length = struct.unpack_from(f"{order}II", data, at)
            at += 8
            end = at + length
            if tag == _FUNCTION:
                function = self._functions[struct.unpack_from(f"{order}I", data, at)[0]] = _Function()
            elif tag == _ARCS:
                source, *rest = struct.unpack_from(f"{order}{length // 4}I", data, at)
                function.arcs += [
                    (source, target, not flags & _ON_TREE) for target, flags in zip(rest[::2], rest[1::2], strict=False)
                ]
            elif tag == _LINES:
                self._read_lines(function, data[at:end], order)
            at = end

    @staticmethod
    def _read_lines(function: _Function, data: bytes, order: str) -> None:
        (block,) = struct.unpack_from(f"{order}I", data)
        at, file = 4, ""
        while at < len(data):
            (line,) = struct.unpack_from(f"{order}I", data, at)
            at += 4
            if line:
                function.lines[block].append((file, line))
                continue
            name, at = _string(data, at, order)
            if not name:
                return
            file = name

    @staticmethod
    def _counts(data: bytes) -> Iterator[tuple[int, list[int]]]:
        order = _order(data, _DATA)
        at, ident = 16, 0
        while at + 8 <= len(data):
            tag, length = struct.unpack_from(f"{order}Ii", data, at)
            at += 8
            if tag == _FUNCTION and length:
                (ident,) = struct.unpack_from(f"{order}I", data, at)
            elif tag == _COUNTS and length > 0:  # below 0: so many bytes of zeros, which are not written
                yield ident, list(struct.unpack_from(f"{order}{length // 8}q", data, at))
            at += max(length, 0)


def _order(data: bytes, magic: bytes) -> str:
    """How numbers are written.

    Raises:
        ValueError: GCC writes something else.
    """
    if data[:4] == magic:
        return "<"
    if data[:4] == magic[::-1]:
        return ">"
    raise ValueError(f"no file of gcov: it begins with {data[:4]!r}")


def _string(data: bytes, at: int, order: str) -> tuple[str, int]:
    """A string, and what comes behind it."""
    (length,) = struct.unpack_from(f"{order}I", data, at)
    return data[at + 4 : at + 4 + length].rstrip(b"\0").decode(errors="replace"), at + 4 + length
