"""The demo's text: where it comes from, how it is numbered and dealt out, and the check of what came back."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PARTITIONS = 4
LONGEST_PIECE = 100_000
DEFAULT_FILES = ("syslog", "messages", "*.log", "*/*.log")
MOST_DEFAULT_BYTES = 64 << 20
LEAST_DEFAULT_LINES = 100
GENERATED_LINES = 20_000
SPACE_FACTOR = 4  # numbered lines, the log, what is read back, and room to spare


class DemoFailed(Exception):
    """The demo could not be run, or a promise was broken; one line."""


class CheckFailed(DemoFailed):
    """What came back is not what was published."""


class Source(NamedTuple):
    """Text to publish: a name for people, and its lines, from the first on at each call."""

    name: str
    lines: Callable[[], Iterator[bytes]]


class Published(NamedTuple):
    """The numbered lines of each partition, a file each, and how many there are."""

    files: list[Path]
    lines: int
    size: int
    passes: int


def find_source(file: Path | None, folder: Path = Path("/var/log")) -> Source:
    """The file that was asked for, else readable logs of the machine, else generated access-log lines."""
    if file is not None:
        if not file.is_file() or not os.access(file, os.R_OK):
            raise DemoFailed(f"{file} is not a file that can be read")
        return Source(str(file), lambda: _lines_of([file]))
    found: list[Path] = []
    size = 0
    for path in dict.fromkeys(path for pattern in DEFAULT_FILES for path in sorted(folder.glob(pattern))):
        with contextlib.suppress(OSError):
            if path.is_file() and os.access(path, os.R_OK) and 0 < path.stat().st_size <= MOST_DEFAULT_BYTES - size:
                found.append(path)
                size += path.stat().st_size
    if sum(1 for _ in _lines_of(found)) >= LEAST_DEFAULT_LINES:
        return Source(f"{len(found)} logs of this machine ({found[0]} …)", lambda: _lines_of(found))
    return Source("generated access-log lines", lambda: _generated(GENERATED_LINES))


def _lines_of(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_PIECE):  # a longer line is published in pieces
                yield line.rstrip(b"\n")


def _generated(count: int) -> Iterator[bytes]:
    chance = random.Random(7)
    for _ in range(count):
        address = ".".join(str(chance.randint(1, 254)) for _ in range(4))
        path = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz/-", k=chance.randint(1, 120)))
        moment = f"{chance.randint(1, 30):02}/May/2015:{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:05 +0000"
        yield f'{address} - - [{moment}] "GET /{path} HTTP/1.1" 200 {chance.randint(100, 99999)} "-" "demo"'.encode()


def write_numbered(source: Source, least: int, directory: Path) -> Published:
    """Number the lines, repeated as a whole until there are ``least``, and deal them out to one file a partition."""
    files = [directory / f"lines-{partition}" for partition in range(PARTITIONS)]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(path.open("wb", buffering=1 << 20)) for path in files]
        number = passes = 0
        while number < least or passes == 0:
            before = number
            for line in source.lines():
                outputs[number % PARTITIONS].write(b"%d\t%s\n" % (number, line))
                number += 1
            if number == before:
                raise DemoFailed(f"{source.name} has no lines")
            passes += 1
            written = sum(output.tell() for output in outputs)
            expected = written * max(1, least // number)
            if shutil.disk_usage(directory).free < SPACE_FACTOR * expected - written:
                raise DemoFailed(f"{directory} has not enough free space for {expected >> 20} MiB of text")
    return Published(files, number, sum(path.stat().st_size for path in files), passes)


def check(received: Iterable[bytes], published: Sequence[Iterable[bytes]]) -> int:
    """Compare what came back with what each partition was given; the number of lines.

    Lines of different partitions may come in any order between them; those of one in the order they were published.

    Raises:
        CheckFailed: names the first line that is lost, came twice, came out of order, or was changed.
    """
    waiting = [iter(lines) for lines in published]
    count = 0
    for line in received:
        number = _number(line)
        expected = next(waiting[number % len(waiting)], None)
        if line != expected:
            raise CheckFailed(_difference(number, expected))
        count += 1
    for partition, lines in enumerate(waiting):
        missing = next(lines, None)
        if missing is not None:
            raise CheckFailed(f"line {_number(missing)} is lost: partition {partition} ended before it")
    return count


def _number(line: bytes) -> int:
    digits = line.partition(b"\t")[0]
    if not digits.isdigit():
        raise CheckFailed(f"a line came back that nobody published: {line[:40]!r}")
    return int(digits)


def _difference(number: int, expected: bytes | None) -> str:
    if expected is None:
        return f"line {number} came although its partition was complete"
    wanted = _number(expected)
    if number < wanted:
        return f"line {number} came twice or out of order: line {wanted} was next"
    if number > wanted:
        return f"line {wanted} is lost or out of order: line {number} came in its place"
    return f"line {number} came back changed"
